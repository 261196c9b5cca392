/* SPDX-License-Identifier: MIT
 *
 * online.cu: one step of the online module as a kernel. A block of queries meets a block of keys,
 * and what comes out is merged into the global output, in place:
 *
 *     (O_ij, lse_ij) = attention of the rows over the keys of this block alone
 *     lse = max + log1p(exp(min - max))                      of lse_i and lse_ij
 *     O_i = exp(lse_i - lse) O_i + exp(lse_ij - lse) O_ij    rounded to the dtype of O
 *
 * Whatever was there before, the result is attention over the keys seen so far. So steps may come
 * in any order; and since every step rounds O_i, their number shows in the last digits (16 bits).
 *
 * A warp has ROWS rows; what it does with them is units/online_row.cuh. Here are strides, a mask, a
 * cap, and blocks whose padding is never read.
 *
 * Interface:
 * - window_online_step_cuda, window_online_cuda_refuses (library/cpu/online_internal.h).
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "alloc.h"
#include "attention/window/cpu/online_internal.h"
#include "attn_pairs.h"
#include "harness/device/cuda_check.h"
#include "units/online_row.cuh"
#include "window_cuda.h"

#define WARPS 8
#define ROWS  4 /* of a warp: its number, + WARPS, + 2 WARPS ... */

static __device__ __forceinline__ bool row_sees(const OnlineStep &s, int r, int c)
{
    const AttnPosition q = {0, s.q.position + r}, k = {0, s.k.position + c};
    return attn_visible(s.args.rule, q, k) && !(s.mask && s.mask[r * s.mask_ld + c]);
}

/* Row r against keys j0 ... of the block. K_smem, V_smem [Bc][d + 1] */
template <typename T>
static __device__ __forceinline__ void add_tile(BlockRow &row, const OnlineStep &s, const T *Q_row,
                                                const float *K_smem, const float *V_smem, int r,
                                                int j0, int Bc)
{
    const int lane = threadIdx.x % 32, d = (int)s.args.shape.d, c = lane % Bc;
    float qk = 0.0f;
#pragma unroll 4
    for (int x = 0; x < d; x++)
        qk = fmaf((float)Q_row[x], K_smem[c * (d + 1) + x], qk);
    float score = attn_score(&s.args, qk);
    if (lane >= Bc || j0 + c >= s.args.shape.Nk || !row_sees(s, r, j0 + c))
        score = -INFINITY;
    add_scores(row, score, V_smem, Bc, d);
}

/* One block: WARPS * ROWS rows of one head. */
template <typename T>
static __global__ void __launch_bounds__(WARPS * 32)
    step_kernel(const __grid_constant__ OnlineStep s)
{
    extern __shared__ float smem_f32[]; /* K, V [Bc][d + 1] */
    const AttnArgs &a = s.args;
    const int d = (int)a.shape.d, Bc = keys_of_tile(d), Nk = (int)a.shape.Nk;
    const int tiles = ((int)a.shape.Nq + WARPS * ROWS - 1) / (WARPS * ROWS);
    const int64_t head = blockIdx.x / tiles, b = head / a.shape.H, h = head % a.shape.H;
    const int64_t h_kv = h / (a.shape.H / a.shape.Hkv);
    const int r0 = (int)(blockIdx.x % tiles) * WARPS * ROWS + threadIdx.x / 32;
    float *K_smem = smem_f32, *V_smem = smem_f32 + Bc * (d + 1);
    const T *Q = (const T *)a.Q.data + tensor_offset(&a.Q, b, 0, h);
    BlockRow rows[ROWS];
#pragma unroll
    for (int n = 0; n < ROWS; n++)
        empty_row(rows[n]);
    for (int j0 = 0; j0 < Nk; j0 += Bc) {
        __syncthreads(); /* nobody reads the last tile any more */
        load_rows(K_smem, (const T *)a.K.data + tensor_offset(&a.K, b, j0, h_kv), a.K.stride[1],
                  Nk - j0, Bc, d, WARPS);
        load_rows(V_smem, (const T *)a.V.data + tensor_offset(&a.V, b, j0, h_kv), a.V.stride[1],
                  Nk - j0, Bc, d, WARPS);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            const int r = r0 + n * WARPS;
            if (r < a.shape.Nq) /* the same for all lanes of the warp */
                add_tile<T>(rows[n], s, Q + r * a.Q.stride[1], K_smem, V_smem, r, j0, Bc);
        }
    }
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        const int r = r0 + n * WARPS;
        if (r < a.shape.Nq)
            merge_row<T>(rows[n], (T *)a.O.data + tensor_offset(&a.O, b, r, h),
                         s.lse + head * s.lse_ld + r, d);
    }
}

static AttnStatus launch_step(const OnlineStep *s)
{
    const AttnShape *n = &s->args.shape;
    const int64_t tiles = (n->Nq + WARPS * ROWS - 1) / (WARPS * ROWS);
    const unsigned blocks = (unsigned)(n->B * n->H * tiles);
    const size_t smem = (size_t)tile_bytes((int)n->d);
    const cudaStream_t stream = (cudaStream_t)s->args.stream;
    if (s->args.Q.dtype == ATTN_F32)
        step_kernel<float><<<blocks, WARPS * 32, smem, stream>>>(*s);
    else if (s->args.Q.dtype == ATTN_F16)
        step_kernel<__half><<<blocks, WARPS * 32, smem, stream>>>(*s);
    else
        step_kernel<__nv_bfloat16><<<blocks, WARPS * 32, smem, stream>>>(*s);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

WindowStatus window_online_step_cuda(const OnlineStep *step)
{
    OnlineStep plain = *step;
    AttnOptions options;
    void *memory;
    AttnArgs args = step->args; /* its scale has the temperature in it already */
    AttnOptions norm;
    if (args.options) {
        norm = *args.options;
        norm.temperature = 1.0f;
        args.options = &norm;
    }
    AttnStatus status = window_make_plain_cuda(&args, &plain.args, &options, &memory);
    if (status == ATTN_OK)
        status = launch_step(&plain);
    workspace_free_device(memory); /* kept until the kernels are done */
    return status == ATTN_OK          ? WINDOW_OK
           : status == ATTN_NO_MEMORY ? WINDOW_NO_MEMORY
                                      : WINDOW_FAILED;
}

WindowStatus window_online_cuda_refuses(const WindowOnlineConfig *config, char error[WINDOW_ERROR])
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return window_refuse(error, WINDOW_NOT_SUPPORTED, "on_cuda: found no CUDA device");
    if (config->base.head_dim > MOST_D)
        return window_refuse(error, WINDOW_NOT_SUPPORTED,
                             "head_dim: found %lld, on_cuda accepts at most %d",
                             (long long)config->base.head_dim, MOST_D);
    return WINDOW_OK;
}
