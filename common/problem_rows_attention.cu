/* SPDX-License-Identifier: MIT
 *
 * problem_rows_attention.cu: attention around a softmax of rows, on a GPU. See
 * problem_rows_attention.h. The two products are cuBLAS's; in a build without it one thread
 * computes one result.
 *
 * Interface: rows_work_cuda, attend_by_rows_cuda.
 */
#include "problem_rows_attention.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdio.h>

#include "attn_config.h"
#include "problem.cuh"
#ifdef HAVE_CUBLAS
#include "units/cublas_heads.cuh"
#endif

enum { BLOCK = 256 };

static __device__ inline float finish_score(const Problem &p, int64_t row, int j, float s)
{
    if (!sees(&p, (int)(row % p.Nq), j))
        return -INFINITY;
    return p.softcap > 0.0f ? p.softcap * tanhf(s / p.softcap) : s;
}

static int launched()
{
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        fprintf(stderr, "rows_attention: %s\n", cudaGetErrorString(error));
    return error == cudaSuccess ? 0 : -1;
}

static unsigned grid_for(int64_t count)
{
    return (unsigned)((count + BLOCK - 1) / BLOCK);
}

static int64_t count_rows(const Problem &p)
{
    return (int64_t)p.B * p.H * p.Nq;
}

#ifdef HAVE_CUBLAS
static cudaDataType_t type_of(const float *)
{
    return CUDA_R_32F;
}

static cudaDataType_t type_of(const __half *)
{
    return CUDA_R_16F;
}

static cudaDataType_t type_of(const __nv_bfloat16 *)
{
    return CUDA_R_16BF;
}

/* One block: one row of S [B][H][Nq][Nk], scale Q K^T, gets its cap and mask. */
static __global__ void finish_kernel(const __grid_constant__ Problem p, float *S)
{
    const int64_t row = blockIdx.x;
    for (int j = threadIdx.x; j < p.Nk; j += BLOCK)
        S[row * p.Nk + j] = finish_score(p, row, j, S[row * p.Nk + j]);
}

/* One block: one row of P [B][H][Nq][Nk], rounded to 16 bits into its own first half: value j lands
 * on the float j/2. Those up to `first` are used up already; the ones of this step are once every
 * thread has arrived. */
template <typename T> static __global__ void round_rows_kernel(int Nk, float *P)
{
    float *P_i = P + (int64_t)blockIdx.x * Nk;
    for (int first = 0; first < Nk; first += BLOCK) {
        const int j = first + threadIdx.x;
        const float value = j < Nk ? P_i[j] : 0.0f;
        __syncthreads();
        if (j < Nk)
            ((T *)P_i)[j] = (T)value;
    }
}

/* One thread: one element of [B][N][heads][d] T from [B][heads][N][d] float32. */
template <typename T>
static __global__ void round_kernel(T *to, const float *from, int64_t count, int N, int heads,
                                    int d)
{
    const int64_t index = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    const int64_t x = index % d, n = index / d % N, h = index / d / N % heads;
    const int64_t b = index / d / N / heads;
    if (index < count)
        to[((b * N + n) * heads + h) * d + x] = (T)from[index];
}

/* S [B][H][Nq][Nk] of Q [B][Nq][H][d] and K [B][Nk][Hkv][d]: scaled, capped, -inf where hidden.
 * 0, or -1 with a sentence on stderr. */
template <typename T> static int multiply_QK(const Problem &p, const T *Q, const T *K, float *S)
{
    const Matrices A = matrices_of_tensor(Q, type_of(Q), p.Nq, p.H, p.d);
    const Matrices B = matrices_of_tensor(K, type_of(K), p.Nk, p.Hkv, p.d);
    const Matrices C = matrices_of_scores(S, CUDA_R_32F, p.H, p.Nq, p.Nk);
    if (multiply_heads(stream_of(&p), p.B, p.H, p.Hkv, AS_IS, TRANSPOSED, p.Nq, p.Nk, p.d, p.scale,
                       &A, &B, &C) != 0)
        return -1;
    finish_kernel<<<(unsigned)count_rows(p), BLOCK, 0, stream_of(&p)>>>(p, S);
    return launched();
}

/* O [B][Nq][H][d] = P V. P [B][H][Nq][Nk] is used up: in 16 bits its rows are rounded in place.
 * work: [B][H][Nq][d] floats. */
template <typename T>
static int multiply_PV(const Problem &p, float *P, const T *V, float *work, T *O)
{
    const Matrices A = matrices_of_scores(P, type_of(V), p.H, p.Nq, p.Nk);
    const Matrices B = matrices_of_tensor(V, type_of(V), p.Nk, p.Hkv, p.d);
    const Matrices C = {work, CUDA_R_32F, p.H, p.d, (int64_t)p.H * p.Nq * p.d, (int64_t)p.Nq * p.d};
    const int64_t count = count_rows(p) * p.d;
    if (p.dtype != F32)
        round_rows_kernel<T><<<(unsigned)count_rows(p), BLOCK, 0, stream_of(&p)>>>(p.Nk, P);
    if (multiply_heads(stream_of(&p), p.B, p.H, p.Hkv, AS_IS, AS_IS, p.Nq, p.d, p.Nk, 1.0f, &A, &B,
                       &C) != 0)
        return -1;
    round_kernel<T><<<grid_for(count), BLOCK, 0, stream_of(&p)>>>(O, work, count, p.Nq, p.H, p.d);
    return launched();
}

#else

/* One thread: one score. */
template <typename T>
static __global__ void scores_kernel(const __grid_constant__ Problem p, int64_t count, const T *Q,
                                     const T *K, float *S)
{
    const int64_t index = (int64_t)blockIdx.x * BLOCK + threadIdx.x, row = index / p.Nk;
    if (index >= count)
        return;
    const int64_t i = row % p.Nq, h = row / p.Nq % p.H, b = row / p.Nq / p.H, j = index % p.Nk;
    const T *Q_i = Q + ((b * p.Nq + i) * p.H + h) * p.d;
    const T *K_j = K + ((b * p.Nk + j) * p.Hkv + h / (p.H / p.Hkv)) * p.d;
    float sum = 0.0f;
    for (int x = 0; x < p.d; x++)
        sum += (float)Q_i[x] * (float)K_j[x];
    S[index] = finish_score(p, row, (int)j, p.scale * sum);
}

/* One thread: one channel of one row of O. */
template <typename T>
static __global__ void weighted_sum_kernel(const __grid_constant__ Problem p, int64_t count,
                                           const float *P, const T *V, T *O)
{
    const int64_t index = (int64_t)blockIdx.x * BLOCK + threadIdx.x, row = index / p.d;
    if (index >= count)
        return;
    const int64_t i = row % p.Nq, h = row / p.Nq % p.H, b = row / p.Nq / p.H, x = index % p.d;
    float sum = 0.0f;
    for (int64_t j = 0; j < p.Nk; j++)
        sum += P[row * p.Nk + j] * (float)V[((b * p.Nk + j) * p.Hkv + h / (p.H / p.Hkv)) * p.d + x];
    O[((b * p.Nq + i) * p.H + h) * p.d + x] = (T)sum;
}

template <typename T> static int multiply_QK(const Problem &p, const T *Q, const T *K, float *S)
{
    const int64_t count = count_rows(p) * p.Nk;
    scores_kernel<T><<<grid_for(count), BLOCK, 0, stream_of(&p)>>>(p, count, Q, K, S);
    return launched();
}

template <typename T> static int multiply_PV(const Problem &p, float *P, const T *V, float *, T *O)
{
    const int64_t count = count_rows(p) * p.d;
    weighted_sum_kernel<T><<<grid_for(count), BLOCK, 0, stream_of(&p)>>>(p, count, P, V, O);
    return launched();
}

#endif

static int64_t bytes_of_softmax(const Problem *p, const RowsRung *rung)
{
    return rung->work ? (rung->work(count_rows(*p), p->Nk) + 255) / 256 * 256 : 0;
}

/* Work space: of the softmax, S, of the products. */
template <typename T> static void attend(const Problem *p, const RowsRung *rung)
{
    float *S = (float *)((char *)p->work + bytes_of_softmax(p, rung));
    const SoftmaxArgs rows = {S, S, p->lse, count_rows(*p), p->Nk, 1, p->work, p->stream};
    int failed = multiply_QK<T>(*p, (const T *)p->Q, (const T *)p->K, S);
    rung->softmax(&rows);
    failed |= multiply_PV<T>(*p, S, (const T *)p->V, S + rows.rows * rows.cols, (T *)p->O);
    if (failed)
        note_failure();
}

int64_t rows_work_cuda(const Problem *p, const RowsRung *rung)
{
    return bytes_of_softmax(p, rung) + 4 * count_rows(*p) * (p->Nk + p->d);
}

void attend_by_rows_cuda(const Problem *p, const RowsRung *rung)
{
    if (p->dtype == F32)
        attend<float>(p, rung);
    else if (p->dtype == BF16)
        attend<__nv_bfloat16>(p, rung);
    else
        attend<__half>(p, rung);
}
