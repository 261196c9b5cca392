/* SPDX-License-Identifier: MIT
 *
 * test_backward_large_gpu: gradients of more than 2^31 elements, where a 32-bit index wraps around.
 *
 * The problems are those of large_case.h. dO is zero but in sampled rows, so with many queries
 * these alone make dK and dV, and all of their gradients are known.
 *
 * O and lse are those of stage 03 on the device. What the oracle needs is downloaded: a small case
 * with the positions of the large one.
 *
 * Exit status: 0 right, 1 wrong, 77 no device, or less than 70 GiB on it.
 */
#include "large_case.h"

#include "../unit/judge_case.h"
#include "alloc.h"
#include "attention/backward/backward_library.h"
#include "attention/forward/flash_library.h"
#include "attn_config.h"
#include "harness/rung.h"

CUDA_RUNG_FN(flash_backward, v0_atomics)
CUDA_RUNG_FN(flash_backward, v1_two_kernels)
CUDA_RUNG_FN(flash_backward, v2_mma)
CUDA_RUNG_FN(flash_backward, v4_cp_async)
CUDA_RUNG_FN(flash_backward, v9_warp_pairs)
#ifdef HAVE_SM90A
CUDA_RUNG_FN(flash_backward, v10_wgmma)
CUDA_RUNG_FN(flash_backward, v13_fused_delta)
CUDA_RUNG_FN(flash_backward, v15_persistent)
#endif

/* Only the library knows several runs of positions: the many keys are its alone. */
static const struct {
    const char *name;
    AttnFn backward;
    unsigned dtypes;
    double c;
    int arch; /* this one only; 0: any */
} variants[] = {
    {"v0_atomics", flash_backward_v0_atomics_backward, 1, 4, 0},
    {"v1_two_kernels", flash_backward_v1_two_kernels_backward, 1, 4, 0},
    {"v2_mma", flash_backward_v2_mma_backward, 6, 16, 0},
    {"v4_cp_async", flash_backward_v4_cp_async_backward, 6, 16, 0},
    {"v9_warp_pairs", flash_backward_v9_warp_pairs_backward, 6, 16, 0},
#ifdef HAVE_SM90A
    {"v10_wgmma", flash_backward_v10_wgmma_backward, 6, 16, 90},
    {"v13_fused_delta", flash_backward_v13_fused_delta_backward, 6, 16, 90},
    {"v15_persistent", flash_backward_v15_persistent_backward, 6, 16, 90},
#endif
    {"library, f32", flash_backward_library_cuda, 1, 4, 0},
    {"library, 16 bit", flash_backward_library_cuda, 6, 16, 0},
};

/* Rows at .. of a host tensor become rows first .. of all heads of a large one. */
static void put_rows(const Tensor *large, int64_t first, const Tensor *host, int64_t at,
                     int64_t count)
{
    const size_t size = dtype_size(large->dtype), row = (size_t)large->shape[3] * size;
    for (int64_t h = 0; h < large->shape[2]; h++)
        assert_int_equal(
            cudaSuccess,
            cudaMemcpy2D((char *)large->data + tensor_offset(large, 0, first, h) * (int64_t)size,
                         (size_t)large->stride[1] * size,
                         (const char *)host->data + tensor_offset(host, 0, at, h) * (int64_t)size,
                         (size_t)host->stride[1] * size, row, (size_t)count,
                         cudaMemcpyHostToDevice));
}

/* dK and dV lie as K does. */
static void gradients_new(Large *g)
{
    AttnArgs *a = &g->args;
    const AttnDtype dtype = a->Q.dtype;
    const int heads_outside = a->K.stride[1] == a->shape.d;
    a->dO = large_tensor(dtype, a->shape.Nq, HEADS, 128, 0);
    a->dQ = large_tensor(dtype, a->shape.Nq, HEADS, 128, 0);
    a->dK = large_tensor(dtype, a->shape.Nk, HEADS, 128, heads_outside);
    a->dV = large_tensor(dtype, a->shape.Nk, HEADS, 128, heads_outside);
    assert_int_equal(0, device_fill_bytes(a->dO.data, 0, large_bytes(&a->dO)));
}

static void gradients_free(Large *g)
{
    device_free(g->args.dO.data);
    device_free(g->args.dQ.data);
    device_free(g->args.dK.data);
    device_free(g->args.dV.data);
    workspace_trim();
}

/* Sampled queries and keys, and a dO that the large case gets too. */
static Case *small_case(const Large *g, const Sample *queries, const Sample *keys)
{
    Case *c = large_small_case(g, queries, keys);
    for (int64_t r = 0, at = 0; r < queries->runs; at += queries->length[r++])
        put_rows(&g->args.dO, queries->first[r], &c->args.dO, at, queries->length[r]);
    return c;
}

/* Outputs of the sampled rows and keys into the small case. */
static void fetch_outputs(const Large *g, const Sample *queries, const Sample *keys, Case *c)
{
    const AttnArgs *a = &g->args;
    for (int64_t r = 0, at = 0; r < queries->runs; at += queries->length[r++]) {
        const size_t bytes = sizeof(float) * (size_t)queries->length[r];
        fetch_rows(&a->O, queries->first[r], &c->args.O, at, queries->length[r]);
        fetch_rows(&a->dQ, queries->first[r], &c->args.dQ, at, queries->length[r]);
        for (int64_t h = 0; h < HEADS; h++)
            assert_int_equal(0,
                             device_download(c->lse + h * queries->count + at,
                                             a->lse + h * a->shape.Nq + queries->first[r], bytes));
    }
    for (int64_t r = 0, at = 0; r < keys->runs; at += keys->length[r++]) {
        fetch_rows(&a->dK, keys->first[r], &c->args.dK, at, keys->length[r]);
        fetch_rows(&a->dV, keys->first[r], &c->args.dV, at, keys->length[r]);
    }
}

static void run_all(Large *g, const Sample *queries, const Sample *keys)
{
    AttnArgs *a = &g->args;
    const AttnDtype dtype = a->Q.dtype;
    Case *c = small_case(g, queries, keys);
    Oracle oracle = oracle_of(&c->args, 1, 4);
    assert_int_equal(queries->count, oracle.rows.count); /* all of the sample, no sample of it */
    assert_int_equal(keys->count, oracle.keys.count);
    assert_int_equal(ATTN_OK, flash_forward_library_cuda(a));
    for (size_t n = 0; n < sizeof variants / sizeof *variants; n++) {
        const Tensor *written[] = {&a->dQ, &a->dK, &a->dV};
        const int plain = variants[n].backward != flash_backward_library_cuda;
        if (!(variants[n].dtypes >> dtype & 1) ||
            (variants[n].arch && device_arch() != variants[n].arch) ||
            (plain && a->positions_q.count > 1))
            continue;
        for (int t = 0; t < 3; t++)
            assert_int_equal(0, device_fill_bytes(written[t]->data, 0xFF, large_bytes(written[t])));
        assert_int_equal(ATTN_OK, variants[n].backward(a));
        assert_int_equal(0, device_synchronize());
        fetch_outputs(g, queries, keys, c);
        const Check check = check_of(&c->args, &oracle, 1, variants[n].c);
        print_message("%s: worst error %.2f of its bound\n", variants[n].name, check.bound_ratio);
        assert_pass(&check, &c->args, variants[n].name);
        workspace_trim(); /* gigabytes */
    }
    oracle_free(&oracle);
    case_free(c);
}

static void run_gradients(Large *g, const Sample *queries, const Sample *keys)
{
    gradients_new(g);
    run_all(g, queries, keys);
    gradients_free(g);
}

int main(void)
{
    return large_main(run_gradients, 70);
}
