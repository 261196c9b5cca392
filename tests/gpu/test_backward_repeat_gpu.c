/* SPDX-License-Identifier: MIT
 *
 * test_backward_repeat_gpu: what the CUDA variants of stage 04 promise about determinism. dK and dV
 * of all of them, and dQ of those without atomics, have the same bits on every run, whatever else
 * the GPU does.
 *
 * Each variant runs 200 times (40 with ATTN_TEST_QUICK), each time into poisoned outputs; what is
 * promised is compared byte by byte with the first run, which the oracle has judged. Meanwhile the
 * GPU does other work (noise.h); that work must really have gone on, or the test fails.
 *
 *     test_backward_repeat_gpu [REPEATS]
 *
 * Exit status: 0 right, 1 wrong, 77 no device.
 */
#include "gradient_device.h"

#include "../unit/judge_case.h"
#include "attn_config.h"
#include "harness/rung.h"
#include "noise.h"

CUDA_RUNG_FN(flash_backward, v0_atomics)
CUDA_RUNG_FN(flash_backward, v1_two_kernels)
CUDA_RUNG_FN(flash_backward, v2_mma)
CUDA_RUNG_FN(flash_backward, v3_transposed_scores)
CUDA_RUNG_FN(flash_backward, v4_cp_async)
CUDA_RUNG_FN(flash_backward, v6_full_tiles)
CUDA_RUNG_FN(flash_backward, v7_one_barrier)
CUDA_RUNG_FN(flash_backward, v9_warp_pairs)
#ifdef HAVE_SM90A
CUDA_RUNG_FN(flash_backward, v10_wgmma)
CUDA_RUNG_FN(flash_backward, v11_warp_specialised)
CUDA_RUNG_FN(flash_backward, v12_turns)
CUDA_RUNG_FN(flash_backward, v13_fused_delta)
CUDA_RUNG_FN(flash_backward, v15_persistent)
#endif

static int repeats = 200;

typedef struct Repeated {
    const char *name;
    AttnFn backward;
    unsigned dtypes;
    double c;
    int deterministic;  /* with --deterministic */
    int dQ_repeats;     /* promised; dK and dV always are */
    int problems;       /* how many of the list below: a rung takes the plain ones */
    int arch;           /* this one only; 0: sm_80 and later in 16 bits */
    int64_t smem_limit; /* 0: none. Any: no kernel of Hopper's own */
} Repeated;

static const Repeated variants[] = {
    {"v0_atomics", flash_backward_v0_atomics_backward, 1, 4, 0, 0, 3, 0, 0},
    {"v1_two_kernels", flash_backward_v1_two_kernels_backward, 1, 4, 0, 1, 3, 0, 0},
    {"v1_two_kernels --deterministic", flash_backward_v1_two_kernels_backward, 1, 4, 1, 1, 3, 0, 0},
    {"v2_mma", flash_backward_v2_mma_backward, 6, 16, 0, 0, 3, 0, 0},
    {"v3_transposed_scores", flash_backward_v3_transposed_scores_backward, 6, 16, 0, 0, 3, 0, 0},
    {"v4_cp_async", flash_backward_v4_cp_async_backward, 6, 16, 0, 0, 3, 0, 0},
    {"v6_full_tiles", flash_backward_v6_full_tiles_backward, 6, 16, 0, 0, 3, 0, 0},
    {"v7_one_barrier", flash_backward_v7_one_barrier_backward, 6, 16, 0, 0, 3, 0, 0},
    {"v9_warp_pairs", flash_backward_v9_warp_pairs_backward, 6, 16, 0, 0, 3, 0, 0},
#ifdef HAVE_SM90A
    {"v10_wgmma", flash_backward_v10_wgmma_backward, 6, 16, 0, 0, 3, 90, 0},
    {"v11_warp_specialised", flash_backward_v11_warp_specialised_backward, 6, 16, 0, 0, 3, 90, 0},
    {"v12_turns", flash_backward_v12_turns_backward, 6, 16, 0, 0, 3, 90, 0},
    {"v13_fused_delta", flash_backward_v13_fused_delta_backward, 6, 16, 0, 0, 3, 90, 0},
    {"v15_persistent", flash_backward_v15_persistent_backward, 6, 16, 0, 0, 3, 90, 0},
#endif
    {"library, f32", flash_backward_library_cuda, 1, 4, 0, 1, 5, 0, 0},
    {"library, f32 --deterministic", flash_backward_library_cuda, 1, 4, 1, 1, 5, 0, 0},
    {"library, 16 bit", flash_backward_library_cuda, 6, 16, 0, 0, 5, 0, 0},
    {"library, 16 bit --deterministic", flash_backward_library_cuda, 6, 16, 1, 1, 5, 0, 0},
    {"library, portable", flash_backward_library_cuda, 6, 16, 0, 0, 5, 0, KIB_227},
    {"library, portable --deterministic", flash_backward_library_cuda, 6, 16, 1, 1, 5, 0, KIB_227},
};

#define VARIANT_COUNT ((int)(sizeof variants / sizeof *variants))

/* Plain: several tiles each way, GQA; few queries and many keys, so that many blocks add to few
 * rows; queries without keys, whose dO is padding. Not plain: a window, so that each row has tiles
 * of its own, and keys that four warps share; a mask array over position maps of several
 * segments. */
static const struct {
    AttnShape shape;
    AttnMask mask;
    AttnDtype dtype; /* of the 16-bit variants */
    int64_t left, right;
    int zigzag;  /* queries as two halves, the later one first */
    int padding; /* the first Nq - Nk queries see no key, and their dO is NaN */
} problems[] = {
    {{2, 4, 2, 333, 333, 64}, ATTN_MASK_CAUSAL_LOWER_RIGHT, ATTN_BF16, -1, 0, 0, 0},
    {{1, 2, 1, 40, 2000, 128}, ATTN_MASK_NONE, ATTN_F16, -1, -1, 0, 0},
    {{1, 2, 1, 300, 130, 64}, ATTN_MASK_CAUSAL_LOWER_RIGHT, ATTN_BF16, -1, 0, 0, 1},
    {{1, 2, 1, 300, 500, 256}, ATTN_MASK_CAUSAL_LOWER_RIGHT, ATTN_F16, 130, 0, 0, 0},
    {{1, 4, 1, 200, 600, 59}, ATTN_MASK_FULL, ATTN_BF16, 450, 200, 1, 0},
};

enum { GRAD_Q, GRAD_K, GRAD_V, GRAD_COUNT };

/* One run, the gradients brought to the host with the gaps between their rows. */
static void run_once(const AttnArgs *args, AttnFn backward, const Storage *host[GRAD_COUNT])
{
    void *on_gpu[GRAD_COUNT] = {args->dQ.data, args->dK.data, args->dV.data};
    for (int t = 0; t < GRAD_COUNT; t++)
        assert_int_equal(0, device_fill_bytes(on_gpu[t], 0xFF, host[t]->bytes));
    assert_int_equal(cudaSuccess, cudaStreamSynchronize(NULL));
    assert_int_equal(ATTN_OK, backward(args));
    assert_int_equal(cudaSuccess, cudaStreamSynchronize(args->stream));
    for (int t = 0; t < GRAD_COUNT; t++)
        assert_int_equal(0, device_download(host[t]->base, on_gpu[t], host[t]->bytes));
}

/* Bytes of ones are NaN in every dtype. */
static void poison_padding(Case *c)
{
    const AttnShape *n = &c->args.shape;
    const size_t size = dtype_size(c->args.dO.dtype);
    for (int64_t row = 0; row < n->B * n->H * (n->Nq - n->Nk); row++)
        memset((char *)c->args.dO.data +
                   (size_t)tensor_offset(&c->args.dO, row / n->H / (n->Nq - n->Nk),
                                         row / n->H % (n->Nq - n->Nk), row % n->H) *
                       size,
               0xFF, (size_t)n->d * size);
}

static void repeat_variant(const Repeated *v, int problem, cudaStream_t stream)
{
    const AttnDtype dtype = v->dtypes & 1 ? ATTN_F32 : problems[problem].dtype;
    Case *c = case_new(problems[problem].shape, dtype, LAYOUT_BSHD, 1);
    const Storage *host[GRAD_COUNT] = {&c->dQ, &c->dK, &c->dV};
    void *first[GRAD_COUNT] = {NULL, NULL, NULL};
    Copies copies = {.count = 0};
    case_align(c, problems[problem].mask);
    c->args.rule = (AttnRule){problems[problem].left, problems[problem].right};
    if (problems[problem].mask == ATTN_MASK_FULL)
        case_mask(c);
    if (problems[problem].zigzag) {
        const int64_t half = c->args.shape.Nq / 2, start = c->segments_q[0].position;
        c->segments_q[0] = (AttnSegment){0, half, 0, start + half, 1};
        c->segments_q[1] = (AttnSegment){half, half, 0, start, 1};
        c->args.positions_q.count = 2;
    }
    free(run_forward(c));
    if (problems[problem].padding)
        poison_padding(c);
    AttnArgs args = args_up(&copies, &c->args);
    Tensor *gradients[GRAD_COUNT] = {&args.dQ, &args.dK, &args.dV};
    args.O = tensor_up(&copies, &c->args.O);
    args.stream = stream;
    for (int t = 0; t < GRAD_COUNT; t++) {
        gradients[t]->data = bytes_up(&copies, host[t]->base, host[t]->bytes);
        assert_true(host[t]->base == (unsigned char *)host[t]->view.data);
    }
    flash_backward_set_deterministic(v->deterministic);
    device_set_smem_limit(v->smem_limit);
    for (int n = 0; n < repeats; n++) {
        run_once(&args, v->backward, host);
        if (n == 0)
            case_judge(c, 1, v->c, 4, v->name);
        for (int t = v->dQ_repeats ? GRAD_Q : GRAD_K; t < GRAD_COUNT; t++)
            assert_repeats(&first[t], host[t]->base, host[t]->bytes);
    }
    flash_backward_set_deterministic(0);
    device_set_smem_limit(0);
    for (int t = 0; t < GRAD_COUNT; t++)
        free(first[t]);
    copies_free(&copies);
    case_free(c);
}

TEST(test_same_bits_beside_other_work)
{
    cudaStream_t stream;
    assert_int_equal(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int n = 0; n < VARIANT_COUNT; n++)
        for (int problem = 0; problem < variants[n].problems; problem++) {
            const int before = atomic_load(&noise_rounds);
            const int needed = variants[n].arch;
            if ((needed && device_arch() != needed) ||
                (!(variants[n].dtypes & 1) && device_arch() < 80)) {
                print_message("%s left out: it needs sm_%d\n", variants[n].name,
                              needed ? needed : 80);
                continue;
            }
            repeat_variant(&variants[n], problem, stream);
            print_message("%s, problem %d: %d runs, %d rounds of other work\n", variants[n].name,
                          problem, repeats, atomic_load(&noise_rounds) - before);
            assert_true(atomic_load(&noise_rounds) > before);
        }
    (void)cudaStreamDestroy(stream);
}

int main(int argc, char **argv)
{
    if (getenv("ATTN_TEST_QUICK"))
        repeats = 40;
    if (argc > 1)
        repeats = atoi(argv[1]);
    return run_beside_noise(unit_tests);
}
