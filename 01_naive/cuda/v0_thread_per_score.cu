/* SPDX-License-Identifier: MIT
 *
 * v0_thread_per_score: the loops of v0_loops, handed to as many threads as there are results.
 *
 * Every score S_ij depends on nothing but Q_i and K_j, so each gets a thread of its own: the loops
 * over b, h, i and j disappear into the thread's index, and only the loop over x is left. The same
 * happens to O, dQ, dK and dV: one thread owns one output element and runs the remaining sum.
 *
 * What is slow about it: neighbouring threads have neighbouring keys j, so at each x they read
 * addresses that lie a whole row apart. Each load fetches 32 bytes to use 2 or 4, and Q and K are
 * read from global memory Nk and Nq times. Nothing is shared, nothing is reused on chip.
 *
 * Owning the output (and looping over the inputs) also means that no two threads add to the same
 * address: no atomics, and the same sums in the same order on every run.
 *
 * Memory: S, B*H*Nq*Nk floats; backward P and dS, twice that.
 *
 * Interface: naive_v0_thread_per_score, naive_v0_thread_per_score_backward (naive.h);
 * plain_scores, plain_weighted_sum (element.cuh).
 */
#include <cuda_runtime.h>

#include "alloc.h"
#include "attn_pairs.h"
#include "cuda/cuda_check.h"
#include "element.cuh"

/* Which b, h, n (and last: a key or a channel) a thread's index stands for, in [B][H][N][last]. */
struct Place {
    int64_t b, h, n, last;
};

static __device__ inline Place place_of(int64_t index, int64_t heads, int64_t N, int64_t lasts)
{
    Place at;
    at.last = index % lasts;
    at.n = index / lasts % N;
    at.h = index / lasts / N % heads;
    at.b = index / lasts / N / heads;
    return at;
}

static __device__ inline int64_t thread_index()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* Row a_element of A times row b_element of B: sum over x of d channels. */
static __device__ inline float dot(const Tensor *A, int64_t a_element, const Tensor *B,
                                   int64_t b_element, int64_t d)
{
    float sum = 0.0f;
    for (int64_t x = 0; x < d; x++)
        sum += load_element(A, a_element + x) * load_element(B, b_element + x);
    return sum;
}

/* S_ij, or -inf where query i may not see key j. */
static __device__ inline float score(const AttnArgs *args, Place at)
{
    const int64_t h_kv = naive_kv_head(&args->shape, at.h);
    if (!attn_sees(args, at.n, at.last))
        return -INFINITY;
    return attn_score(args, dot(&args->Q, tensor_offset(&args->Q, at.b, at.n, at.h), &args->K,
                                tensor_offset(&args->K, at.b, at.last, h_kv), args->shape.d));
}

/* __grid_constant__: the arguments are read where the launch put them, without a copy for each
 * thread. */

/* One thread: one score. S [B][H][Nq][Nk] */
static __global__ void scores_kernel(const __grid_constant__ AttnArgs args, int64_t count, float *S)
{
    const int64_t index = thread_index();
    if (index < count)
        S[index] = score(&args, place_of(index, args.shape.H, args.shape.Nq, args.shape.Nk));
}

/* One thread: one row of S [rows][Nk], which becomes P in place, and its lse. */
static __global__ void softmax_kernel(int64_t rows, int64_t Nk, float *S, float *lse)
{
    const int64_t row = thread_index();
    if (row >= rows)
        return;
    float *S_i = S + row * Nk;
    float m_i = -INFINITY, l_i = 0.0f;
    for (int64_t j = 0; j < Nk; j++)
        m_i = S_i[j] > m_i ? S_i[j] : m_i;
    if (m_i == -INFINITY)
        m_i = 0.0f; /* nothing visible: -inf - 0 stays -inf, while -inf - -inf would be NaN */
    for (int64_t j = 0; j < Nk; j++)
        l_i += S_i[j] = expf(S_i[j] - m_i);
    for (int64_t j = 0; j < Nk && l_i != 0.0f; j++)
        S_i[j] /= l_i;
    lse[row] = m_i + logf(l_i); /* log(0) = -inf: what an empty row should say */
}

/* One thread: one channel of one row of O. P [B][H][Nq][Nk]. Neighbouring threads have
 * neighbouring channels, so these loads of V do lie side by side. */
static __global__ void weighted_sum_kernel(const __grid_constant__ AttnArgs args, int64_t count,
                                           const float *P)
{
    const int64_t index = thread_index(), Nk = args.shape.Nk, d = args.shape.d;
    if (index >= count)
        return;
    const Place at = place_of(index, args.shape.H, args.shape.Nq, d);
    const int64_t h_kv = naive_kv_head(&args.shape, at.h);
    const float *P_i = P + index / d * Nk;
    float sum = 0.0f;
    for (int64_t j = 0; j < Nk; j++)
        if (P_i[j] != 0.0f || attn_sees(&args, at.n, j)) /* hidden: 0 * NaN would be NaN */
            sum += P_i[j] * load_element(&args.V, tensor_offset(&args.V, at.b, j, h_kv) + at.last);
    store_element(&args.O, tensor_offset(&args.O, at.b, at.n, at.h) + at.last, sum);
}

/* One thread: one row. delta [B][H][Nq] = sum over x of dO * O */
static __global__ void delta_kernel(const __grid_constant__ AttnArgs args, int64_t rows,
                                    float *delta)
{
    const int64_t row = thread_index();
    if (row >= rows)
        return;
    const Place at = place_of(row, args.shape.H, args.shape.Nq, 1);
    delta[row] = dot(&args.dO, tensor_offset(&args.dO, at.b, at.n, at.h), &args.O,
                     tensor_offset(&args.O, at.b, at.n, at.h), args.shape.d);
}

/* One thread: one P_ij and one dS_ij. P, dS [B][H][Nq][Nk], delta [B][H][Nq] */
static __global__ void gradient_scores_kernel(const __grid_constant__ AttnArgs args, int64_t count,
                                              const float *delta, float *P, float *dS)
{
    const int64_t index = thread_index();
    if (index >= count)
        return;
    const Place at = place_of(index, args.shape.H, args.shape.Nq, args.shape.Nk);
    const int64_t row = index / args.shape.Nk, h_kv = naive_kv_head(&args.shape, at.h);
    const float s = score(&args, at), cap = args.softcap;
    if (s == -INFINITY) {
        P[index] = dS[index] = 0.0f;
        return;
    }
    /* d/dx of cap * tanh(x / cap) is 1 - tanh^2, and tanh is s / cap */
    const float slope = cap > 0.0f ? 1.0f - (s / cap) * (s / cap) : 1.0f;
    const float dP = dot(&args.dO, tensor_offset(&args.dO, at.b, at.n, at.h), &args.V,
                         tensor_offset(&args.V, at.b, at.last, h_kv), args.shape.d);
    P[index] = expf(s - args.lse[row]);
    dS[index] = P[index] * (dP - delta[row]) * slope;
}

/* One thread: one channel of one row of dQ. */
static __global__ void dq_kernel(const __grid_constant__ AttnArgs args, int64_t count,
                                 const float *dS)
{
    const int64_t index = thread_index(), Nk = args.shape.Nk, d = args.shape.d;
    if (index >= count)
        return;
    const Place at = place_of(index, args.shape.H, args.shape.Nq, d);
    const int64_t h_kv = naive_kv_head(&args.shape, at.h);
    const float *dS_i = dS + index / d * Nk;
    float sum = 0.0f;
    for (int64_t j = 0; j < Nk; j++)
        if (dS_i[j] != 0.0f || attn_sees(&args, at.n, j))
            sum += dS_i[j] * load_element(&args.K, tensor_offset(&args.K, at.b, j, h_kv) + at.last);
    store_element(&args.dQ, tensor_offset(&args.dQ, at.b, at.n, at.h) + at.last, args.scale * sum);
}

/* One thread: one channel of one key, in dK and dV, over all queries of all heads of its group. */
static __global__ void dk_dv_kernel(const __grid_constant__ AttnArgs args, int64_t count,
                                    const float *P, const float *dS)
{
    const int64_t index = thread_index(), H = args.shape.H, Hkv = args.shape.Hkv;
    const int64_t Nq = args.shape.Nq, Nk = args.shape.Nk;
    if (index >= count)
        return;
    const Place at = place_of(index, Hkv, Nk, args.shape.d);
    float dK_jx = 0.0f, dV_jx = 0.0f;
    for (int64_t h = at.h * (H / Hkv); h < (at.h + 1) * (H / Hkv); h++)
        for (int64_t i = 0; i < Nq; i++) {
            const int64_t row = (at.b * H + h) * Nq + i, ij = row * Nk + at.n;
            if (args.lse[row] == -INFINITY || (P[ij] == 0.0f && !attn_sees(&args, i, at.n)))
                continue; /* P is 0, but dO may be padding, and 0 * NaN is NaN */
            dV_jx += P[ij] * load_element(&args.dO, tensor_offset(&args.dO, at.b, i, h) + at.last);
            dK_jx += dS[ij] * load_element(&args.Q, tensor_offset(&args.Q, at.b, i, h) + at.last);
        }
    store_element(&args.dK, tensor_offset(&args.dK, at.b, at.n, at.h) + at.last,
                  args.scale * dK_jx);
    store_element(&args.dV, tensor_offset(&args.dV, at.b, at.n, at.h) + at.last, dV_jx);
}

/* --- launches ----------------------------------------------------------------------------------*/

static int64_t count_rows(const AttnShape *shape)
{
    return shape->B * shape->H * shape->Nq;
}

AttnStatus plain_scores(const AttnArgs *args, float *S_dev)
{
    const int64_t count = count_rows(&args->shape) * args->shape.Nk;
    scores_kernel<<<grid_for(count), BLOCK, 0, (cudaStream_t)args->stream>>>(*args, count, S_dev);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus plain_weighted_sum(const AttnArgs *args, const float *P_dev)
{
    const int64_t count = count_rows(&args->shape) * args->shape.d;
    weighted_sum_kernel<<<grid_for(count), BLOCK, 0, (cudaStream_t)args->stream>>>(*args, count,
                                                                                   P_dev);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

static AttnStatus launch_softmax(const AttnArgs *args, float *S_dev)
{
    const int64_t rows = count_rows(&args->shape);
    softmax_kernel<<<grid_for(rows), BLOCK, 0, (cudaStream_t)args->stream>>>(rows, args->shape.Nk,
                                                                             S_dev, args->lse);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus naive_v0_thread_per_score(const AttnArgs *args)
{
    const size_t pairs = (size_t)count_rows(&args->shape) * (size_t)args->shape.Nk;
    float *S_dev = (float *)workspace_alloc_device(pairs * sizeof(float));
    AttnStatus status = S_dev ? plain_scores(args, S_dev) : ATTN_NO_MEMORY;
    if (status == ATTN_OK)
        status = launch_softmax(args, S_dev);
    if (status == ATTN_OK)
        status = plain_weighted_sum(args, S_dev);
    workspace_free_device(S_dev); /* waits for the kernels: cudaFree does */
    return status;
}

/* P_dev, dS_dev [B][H][Nq][Nk], delta_dev [B][H][Nq] */
static AttnStatus launch_backward(const AttnArgs *args, float *P_dev, float *dS_dev,
                                  float *delta_dev)
{
    const AttnShape *shape = &args->shape;
    const int64_t rows = count_rows(shape), keys = shape->B * shape->Hkv * shape->Nk;
    cudaStream_t stream = (cudaStream_t)args->stream;
    delta_kernel<<<grid_for(rows), BLOCK, 0, stream>>>(*args, rows, delta_dev);
    CUDA_TRY_LAUNCH();
    gradient_scores_kernel<<<grid_for(rows * shape->Nk), BLOCK, 0, stream>>>(
        *args, rows * shape->Nk, delta_dev, P_dev, dS_dev);
    CUDA_TRY_LAUNCH();
    dq_kernel<<<grid_for(rows * shape->d), BLOCK, 0, stream>>>(*args, rows * shape->d, dS_dev);
    CUDA_TRY_LAUNCH();
    dk_dv_kernel<<<grid_for(keys * shape->d), BLOCK, 0, stream>>>(*args, keys * shape->d, P_dev,
                                                                  dS_dev);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus naive_v0_thread_per_score_backward(const AttnArgs *args)
{
    const size_t rows = (size_t)count_rows(&args->shape), pairs = rows * (size_t)args->shape.Nk;
    float *P_dev = (float *)workspace_alloc_device(pairs * sizeof(float));
    float *dS_dev = (float *)workspace_alloc_device(pairs * sizeof(float));
    float *delta_dev = (float *)workspace_alloc_device(rows * sizeof(float));
    AttnStatus status = ATTN_NO_MEMORY;
    if (P_dev && dS_dev && delta_dev)
        status = launch_backward(args, P_dev, dS_dev, delta_dev);
    workspace_free_device(delta_dev);
    workspace_free_device(dS_dev);
    workspace_free_device(P_dev);
    return status;
}
