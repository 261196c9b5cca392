/* SPDX-License-Identifier: MIT
 *
 * test_flash_repeat_gpu: the CUDA variants of stage 03 promise determinism: the same inputs give
 * the same bits, whatever else the GPU does.
 *
 * Each variant runs 200 times, each time into poisoned outputs, and O and lse are compared byte by
 * byte with the first run, which the oracle has judged. Meanwhile the GPU does other work
 * (noise.h); that work must really have gone on, or the test fails.
 *
 *     test_flash_repeat_gpu [REPEATS]
 *
 * Exit status: 0 right, 1 wrong, 77 no device.
 */
#include "device_case.h"

#include "../unit/judge_case.h"
#include "attn_config.h"
#include "harness/rung.h"
#include "noise.h" /* and v1_fa2 */

CUDA_RUNG_FN(flash_forward, v0_fa1)
CUDA_RUNG_FN(flash_forward, v2_register_tiles)
CUDA_RUNG_FN(flash_forward, v3_mma)
CUDA_RUNG_FN(flash_forward, v4_ldmatrix)
CUDA_RUNG_FN(flash_forward, v5_cp_async)
CUDA_RUNG_FN(flash_forward, v6_exp2)
CUDA_RUNG_FN(flash_forward, v7_full_tiles)
CUDA_RUNG_FN(flash_forward, v8_schedule)
#ifdef HAVE_SM90A
CUDA_RUNG_FN(flash_forward, v9_wgmma)
CUDA_RUNG_FN(flash_forward, v10_warp_specialised)
CUDA_RUNG_FN(flash_forward, v11_overlapped_softmax)
CUDA_RUNG_FN(flash_forward, v12_lazy_rescale)
CUDA_RUNG_FN(flash_forward, v13_more_warpgroups)
CUDA_RUNG_FN(flash_forward, v14_persistent)
#endif

static int repeats = 200;

/* --- the variants ------------------------------------------------------------------------------*/

typedef struct Repeated {
    const char *name;
    AttnFn forward;
    unsigned dtypes;
    double c;
    int hopper; /* 1: for a GPU of compute capability 9.0 alone */
} Repeated;

static const Repeated variants[] = {
    {"v0_fa1", flash_forward_v0_fa1, 1, 4, 0},
    {"v1_fa2", flash_forward_v1_fa2, 1, 4, 0},
    {"v2_register_tiles", flash_forward_v2_register_tiles, 1, 4, 0},
    {"v3_mma", flash_forward_v3_mma, 6, 16, 0},
    {"v4_ldmatrix", flash_forward_v4_ldmatrix, 6, 16, 0},
    {"v5_cp_async", flash_forward_v5_cp_async, 6, 16, 0},
    {"v6_exp2", flash_forward_v6_exp2, 6, 16, 0},
    {"v7_full_tiles", flash_forward_v7_full_tiles, 6, 16, 0},
    {"v8_schedule", flash_forward_v8_schedule, 6, 16, 0},
#ifdef HAVE_SM90A
    {"v9_wgmma", flash_forward_v9_wgmma, 6, 16, 1},
    {"v10_warp_specialised", flash_forward_v10_warp_specialised, 6, 16, 1},
    {"v11_overlapped_softmax", flash_forward_v11_overlapped_softmax, 6, 16, 1},
    {"v12_lazy_rescale", flash_forward_v12_lazy_rescale, 6, 16, 1},
    {"v13_more_warpgroups", flash_forward_v13_more_warpgroups, 6, 16, 1},
    {"v14_persistent", flash_forward_v14_persistent, 6, 16, 1},
#endif
    {"library, f32", flash_forward_library_cuda, 1, 4, 0},
    {"library, 16 bit", flash_forward_library_cuda, 6, 16, 0},
};

#define VARIANT_COUNT ((int)(sizeof variants / sizeof *variants))

/* Several tiles each way, GQA; few queries and many keys, where a kernel may split the keys; for 16
 * bits also so many row tiles that the library splits none, and its Hopper kernel runs. */
static const struct {
    AttnShape shape;
    AttnMask mask;
    AttnDtype dtype; /* of the 16-bit variants */
} problems[] = {
    {{2, 4, 2, 333, 333, 64}, ATTN_MASK_CAUSAL_LOWER_RIGHT, ATTN_BF16},
    {{1, 2, 1, 5, 3000, 128}, ATTN_MASK_NONE, ATTN_F16},
    {{2, 8, 2, 700, 700, 128}, ATTN_MASK_CAUSAL_LOWER_RIGHT, ATTN_BF16},
};

/* One run, brought to the host: all bytes of O's storage, and lse. */
static void run_once(DeviceCase *d, const AttnArgs *args, AttnFn forward)
{
    const Case *c = d->host;
    assert_int_equal(0, device_fill_bytes(d->O_dev, 0xFF, c->O.bytes));
    assert_int_equal(0, device_fill_bytes(d->lse_dev, 0xFF, d->rows * sizeof(float)));
    assert_int_equal(cudaSuccess, cudaStreamSynchronize(NULL));
    assert_int_equal(ATTN_OK, forward(args));
    assert_int_equal(cudaSuccess, cudaStreamSynchronize(args->stream));
    assert_int_equal(0, device_download(c->O.base, d->O_dev, c->O.bytes));
    assert_int_equal(0, device_download(c->lse, d->lse_dev, d->rows * sizeof(float)));
}

static void repeat_variant(const Repeated *v, int problem, cudaStream_t stream)
{
    const AttnDtype dtype = v->dtypes & 1 ? ATTN_F32 : problems[problem].dtype;
    Case *c = case_new(problems[problem].shape, dtype, LAYOUT_BSHD, 1);
    case_align(c, problems[problem].mask);
    DeviceCase *d = device_case_new(c);
    void *O = NULL, *lse = NULL;
    AttnArgs args = device_case_args(d, &c->args);
    args.stream = stream;
    for (int n = 0; n < repeats; n++) {
        run_once(d, &args, v->forward);
        if (n == 0)
            case_judge(c, 0, v->c, 2, v->name);
        assert_repeats(&O, c->O.base, c->O.bytes);
        assert_repeats(&lse, c->lse, d->rows * sizeof *c->lse);
    }
    free(O), free(lse);
    device_case_free(d);
    case_free(c);
}

TEST(test_same_bits_beside_other_work)
{
    cudaStream_t stream;
    assert_int_equal(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int n = 0; n < VARIANT_COUNT; n++)
        for (int problem = 0; problem < (variants[n].dtypes & 1 ? 2 : 3); problem++) {
            const int before = atomic_load(&noise_rounds);
            if ((!(variants[n].dtypes & 1) && device_arch() < 80) ||
                (variants[n].hopper && device_arch() != 90))
                continue;
            repeat_variant(&variants[n], problem, stream);
            print_message("%s, problem %d: %d runs, %d rounds of other work\n", variants[n].name,
                          problem, repeats, atomic_load(&noise_rounds) - before);
            assert_true(atomic_load(&noise_rounds) > before);
        }
    (void)cudaStreamDestroy(stream);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        repeats = atoi(argv[1]);
    return run_beside_noise(unit_tests);
}
