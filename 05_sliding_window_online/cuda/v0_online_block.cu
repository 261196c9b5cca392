/* SPDX-License-Identifier: MIT
 *
 * v0_online_block: the seed's step on the device. Every pair of a block of queries and a block of
 * keys is a launch of its own, in the order of --order:
 *
 *     O = 0, lse = -inf
 *     for each visit (i, j):   unless the window hides the whole block:   step
 *
 * (the step: library/cuda/online.cu).
 *
 * Any order gives the same result, and this is the variant that shows it. What it costs: O and lse
 * go to memory and back in every step, where the kernels of stage 03 keep them in registers; a
 * launch has only the rows of one block to work on (B * H * block_q of them), so most of the GPU
 * watches; and with 16 bits every step rounds O.
 *
 * A block outside the window costs a look at four numbers here on the host: O(1), no launch.
 *
 * Interface:
 * - sliding_window_v0_online_block: every dtype, d <= 256, full mask, several sequences; no
 *   clipping and no dropout.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "alloc.h"
#include "attn_tiles.h"
#include "cuda/cuda_check.h"
#include "flash_forward.h"
#include "library/cpu/online_internal.h"
#include "library/cuda/window_cuda.h"

/* One warp: one row of O, and its lse. */
template <typename T>
static __global__ void __launch_bounds__(256)
    start_kernel(const __grid_constant__ Tensor O, float *lse /* [B][H][Nq] */)
{
    const int64_t N = O.shape[1], H = O.shape[2];
    const int64_t row = blockIdx.x * (int64_t)8 + threadIdx.x / 32;
    const int64_t b = row / (H * N), h = row / N % H, i = row % N;
    if (b >= O.shape[0])
        return;
    for (int x = threadIdx.x % 32; x < O.shape[3]; x += 32)
        ((T *)O.data)[tensor_offset(&O, b, i, h) + x] = T(0.0f);
    if (threadIdx.x % 32 == 0)
        lse[row] = -INFINITY;
}

static AttnStatus start_state(const AttnArgs *a)
{
    const int64_t rows = a->shape.B * a->shape.H * a->shape.Nq;
    const unsigned blocks = (unsigned)((rows + 7) / 8);
    const cudaStream_t stream = (cudaStream_t)a->stream;
    if (a->O.dtype == ATTN_F32)
        start_kernel<float><<<blocks, 256, 0, stream>>>(a->O, a->lse);
    else if (a->O.dtype == ATTN_F16)
        start_kernel<__half><<<blocks, 256, 0, stream>>>(a->O, a->lse);
    else
        start_kernel<__nv_bfloat16><<<blocks, 256, 0, stream>>>(a->O, a->lse);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

/* Tokens first .. first + count - 1. */
static Tensor tokens_of(const Tensor *t, int64_t first, int64_t count)
{
    Tensor part = *t;
    part.data = (char *)t->data + first * t->stride[1] * (t->dtype == ATTN_F32 ? 4 : 2);
    part.shape[1] = count;
    return part;
}

/* A run of consecutive local indexes with consecutive positions: tokens first .. of a segment. */
struct Run {
    int64_t first, count, position;
};

static Run block_of(const AttnSegment *segment, int64_t index, int64_t size)
{
    const int64_t skipped = index * size;
    Run run = {segment->first + skipped, segment->length - skipped, segment->position + skipped};
    run.count = run.count < size ? run.count : size;
    return run;
}

static AttnStatus step_block(const AttnArgs *a, Run q, Run k)
{
    const AttnRange of_q = {0, q.position, q.position + q.count - 1};
    const AttnRange of_k = {0, k.position, k.position + k.count - 1};
    OnlineStep step;
    if (attn_tile_class(a->rule, of_q, of_k) == ATTN_TILE_SKIP)
        return ATTN_OK;
    step.args = *a;
    step.args.shape.Nq = q.count;
    step.args.shape.Nk = k.count;
    step.args.Q = tokens_of(&a->Q, q.first, q.count);
    step.args.O = tokens_of(&a->O, q.first, q.count);
    step.args.K = tokens_of(&a->K, k.first, k.count);
    step.args.V = tokens_of(&a->V, k.first, k.count);
    step.args.options = NULL; /* Q and K are normalised already */
    step.args.mask = NULL;
    step.q = {0, q.count, 0, q.position, 1};
    step.k = {0, k.count, 0, k.position, 1};
    step.lse = a->lse + q.first;
    step.lse_ld = a->shape.Nq;
    step.mask = a->mask ? a->mask + q.first * a->shape.Nk + k.first : NULL;
    step.mask_ld = a->shape.Nk;
    const WindowStatus status = window_online_step_cuda(&step);
    return status == WINDOW_OK          ? ATTN_OK
           : status == WINDOW_NO_MEMORY ? ATTN_NO_MEMORY
                                        : ATTN_CUDA_ERROR;
}

/* All blocks of a segment of queries and one of keys, which are of the same sequence. */
static AttnStatus visit_blocks(const AttnArgs *a, const AttnSegment *q, const AttnSegment *k)
{
    const int64_t Br = window_block_q(), Bc = window_block_kv();
    const int64_t Tr = (q->length + Br - 1) / Br, Tc = (k->length + Bc - 1) / Bc;
    AttnStatus status = ATTN_OK;
    if (Tr * Tc == 0)
        return ATTN_OK;
    int64_t *visits = (int64_t *)workspace_alloc((size_t)(Tr * Tc) * sizeof *visits);
    if (!visits)
        return ATTN_NO_MEMORY;
    window_order_blocks(Tr, Tc, visits);
    for (int64_t t = 0; status == ATTN_OK && t < Tr * Tc; t++)
        status = step_block(a, block_of(q, visits[t] / Tc, Br), block_of(k, visits[t] % Tc, Bc));
    workspace_free(visits);
    return status;
}

static bool consecutive(AttnPositions map)
{
    for (int64_t s = 0; s < map.count; s++)
        if (map.host[s].stride != 1)
            return false;
    return true;
}

static AttnStatus run_steps(const AttnArgs *a)
{
    const AttnPositions q = a->positions_q, k = a->positions_k;
    if (!consecutive(q) || !consecutive(k)) {
        window_set_skip_reason("v0_online_block takes blocks of consecutive positions");
        return ATTN_SKIP;
    }
    AttnStatus status = start_state(a);
    for (int64_t s = 0; status == ATTN_OK && s < q.count; s++)
        for (int64_t t = 0; status == ATTN_OK && t < k.count; t++)
            if (q.host[s].sequence == k.host[t].sequence)
                status = visit_blocks(a, &q.host[s], &k.host[t]);
    return status;
}

AttnStatus sliding_window_v0_online_block(const AttnArgs *args)
{
    if (window_clips(args) || window_drops(args)) {
        window_set_skip_reason("v0_online_block knows no clipping and no dropout: both need the "
                               "final weights, and a step sees those of its own block");
        return ATTN_SKIP;
    }
    if (args->shape.d > 256 || flash_smem_refuses(window_online_smem_cuda(args->shape.d)))
        return ATTN_SKIP;
    return window_plain_run_cuda(args, run_steps);
}
