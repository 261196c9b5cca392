/* SPDX-License-Identifier: MIT
 *
 * v1_cublas: v1_blas on the GPU. The products go to the vendor's library, which keeps tiles in
 * shared memory and registers; between them stands one kernel of ours for the softmax.
 *
 * The products are now so fast that the matrix between them sets the pace: S is written by the
 * first product, read and rewritten as P by the softmax, and read by the second product. On a GPU
 * that reads 4 TB/s those passes over B*H*N*N floats take longer than the multiplications.
 *
 * With f16 or bf16 tensors S is float32 still (a score of 100 in bf16 is off by 0.25, a factor of
 * 1.3 in its probability), and P is rounded to the type T of the tensors, as the second product
 * wants it: into the first half of its own row.
 *
 * Backward computes S and dP = dO V^T by products, turns both into P and dS by one kernel, and
 * gets dQ, dK, dV by three more products. Query heads of one group add to their dK and dV one
 * after the other, so the sums are the same on every run.
 *
 * Memory: S, B*H*Nq*Nk floats; backward S and dP, twice that, and a copy of dO; and the results
 * of a product, [B][heads][N][d] in float32, before they are rounded into their tensor.
 *
 * Interface: the rung of stage 01 that takes every mask, a softcap and any d.
 */
#include "problem.cuh"
#include "units/cublas_heads.cuh"

enum { BLOCK = 256 }; /* threads of a block, which has one row of scores */

static cudaDataType_t type_of(const Problem *p)
{
    return p->dtype == F32 ? CUDA_R_32F : p->dtype == BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* --- one row of scores that a product has left -------------------------------------------------*/

/* S_ij = scale * q.k becomes the score: capped, or -inf where query i does not see key j. */
static __device__ inline float finish_score(const Problem &p, int i, int j, float s)
{
    if (!sees(&p, i, j))
        return -INFINITY;
    return p.softcap > 0.0f ? p.softcap * tanhf(s / p.softcap) : s;
}

/* Within a warp, lanes exchange registers: each step halves the number of partial results. The
 * warps then meet in shared memory. All BLOCK threads must call. */
template <bool IS_MAX> static __device__ inline float block_reduce(float value)
{
    __shared__ float of_warp[BLOCK / 32];
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = IS_MAX ? fmaxf(value, other) : value + other;
    }
    __syncthreads(); /* of_warp may still be read from the call before */
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[0];
    for (int warp = 1; warp < BLOCK / 32; warp++)
        value = IS_MAX ? fmaxf(value, of_warp[warp]) : value + of_warp[warp];
    return value;
}

/* Puts value j of a row of Nk floats back, as T. All threads call it together, with j =
 * first + threadIdx.x for first = 0, BLOCK, 2*BLOCK ..., each having read its value before.
 *
 * 16-bit values take half the room, so value j lands on the float j/2. Those up to `first` are
 * used up already; the ones of this step are once every thread has arrived. */
template <typename T>
static __device__ inline void store_score(float *row, int Nk, int j, float value)
{
    if (sizeof(T) != sizeof(float))
        __syncthreads();
    if (j < Nk)
        ((T *)row)[j] = (T)value;
}

/* One block: one row. S [B][H][Nq][Nk] = scale Q K^T becomes P, rounded to T. */
template <typename T>
static __global__ void softmax_rows_kernel(const __grid_constant__ Problem p, float *S)
{
    const int64_t row = blockIdx.x;
    const int i = (int)(row % p.Nq), Nk = p.Nk;
    float *S_i = S + row * Nk;
    float m_i = -INFINITY, l_i = 0.0f;
    for (int j = threadIdx.x; j < Nk; j += BLOCK) {
        S_i[j] = finish_score(p, i, j, S_i[j]);
        m_i = fmaxf(m_i, S_i[j]);
    }
    m_i = block_reduce<true>(m_i);
    if (m_i == -INFINITY)
        m_i = 0.0f; /* nothing visible: -inf - 0 stays -inf, while -inf - -inf would be NaN */
    for (int j = threadIdx.x; j < Nk; j += BLOCK)
        l_i += expf(S_i[j] - m_i);
    l_i = block_reduce<false>(l_i);
    const float inverse = l_i == 0.0f ? 0.0f : 1.0f / l_i;
    for (int first = 0; first < Nk; first += BLOCK) {
        const int j = first + threadIdx.x;
        const float P_ij = j < Nk ? expf(S_i[j] - m_i) * inverse : 0.0f;
        store_score<T>(S_i, Nk, j, P_ij);
    }
    if (threadIdx.x == 0)
        p.lse[row] = m_i + logf(l_i); /* log(0) = -inf: what an empty row should say */
}

/* One block: one row. S = scale Q K^T becomes P and dP = dO V^T becomes dS, both [B][H][Nq][Nk],
 * rounded to T. */
template <typename T>
static __global__ void gradient_rows_kernel(const __grid_constant__ Problem p, float *S, float *dP)
{
    const int64_t row = blockIdx.x;
    const int b = (int)(row / p.Nq / p.H), h = (int)(row / p.Nq % p.H), i = (int)(row % p.Nq);
    const T *O_i = (const T *)p.O + query_row(&p, b, h, i);
    const T *dO_i = (const T *)p.dO + query_row(&p, b, h, i);
    const float lse_i = p.lse[row], cap = p.softcap;
    float *S_i = S + row * p.Nk, *dP_i = dP + row * p.Nk, delta_i = 0.0f;
    for (int x = threadIdx.x; x < p.d; x += BLOCK)
        delta_i += (float)dO_i[x] * (float)O_i[x];
    delta_i = block_reduce<false>(delta_i);
    for (int first = 0; first < p.Nk; first += BLOCK) {
        const int j = first + threadIdx.x;
        const float s = j < p.Nk ? finish_score(p, i, j, S_i[j]) : -INFINITY;
        float P_ij = 0.0f, dS_ij = 0.0f;
        if (s != -INFINITY) {
            /* d/dx of cap * tanh(x / cap) is 1 - tanh^2, and tanh is s / cap */
            const float slope = cap > 0.0f ? 1.0f - (s / cap) * (s / cap) : 1.0f;
            P_ij = expf(s - lse_i);
            dS_ij = P_ij * (dP_i[j] - delta_i) * slope;
        }
        store_score<T>(S_i, p.Nk, j, P_ij);
        store_score<T>(dP_i, p.Nk, j, dS_ij);
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

/* One thread: one element of dO [B][Nq][H][d], with zeros in rows that see no key: they may be
 * padding with anything in it, and 0 * NaN is NaN. */
template <typename T>
static __global__ void copy_dO_kernel(const __grid_constant__ Problem p, T *to, int64_t count)
{
    const int64_t index = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= count)
        return;
    const int64_t h = index / p.d % p.H, i = index / p.d / p.H % p.Nq;
    const int64_t b = index / p.d / p.H / p.Nq;
    const bool empty = p.lse[lse_row(&p, (int)b, (int)h, (int)i)] == -INFINITY;
    to[index] = empty ? T(0.0f) : ((const T *)p.dO)[index];
}

/* --- the passes --------------------------------------------------------------------------------*/

static int64_t count_scores(const Problem *p)
{
    return (int64_t)p->B * p->H * p->Nq * p->Nk;
}

/* Of the largest product that is rounded: [B][heads][N][d], whole fours. */
static int64_t sum_floats(const Problem *p, int backward)
{
    const int64_t queries = (int64_t)p->H * p->Nq, keys = (int64_t)p->Hkv * p->Nk;
    return (p->B * (backward && keys > queries ? keys : queries) * p->d + 3) / 4 * 4;
}

/* to = alpha A' B' for all heads, [m][d] each: the product into `sums`, then rounded. heads: H, or
 * Hkv, then the heads of a group are added up. */
template <typename T>
static void multiply_into(const Problem *p, void *to, int heads, Transpose A_transposed,
                          float alpha, Matrices A, Matrices B, int m, int k, float *sums)
{
    const Matrices C = {
        sums, CUDA_R_32F, heads, p->d, (int64_t)heads * m * p->d, (int64_t)m * p->d};
    const int64_t count = (int64_t)p->B * heads * m * p->d;
    if (multiply_heads(stream_of(p), p->B, p->H, p->Hkv, A_transposed, AS_IS, m, p->d, k, alpha, &A,
                       &B, &C) != 0) {
        note_failure();
        return;
    }
    round_kernel<T><<<(unsigned)((count + BLOCK - 1) / BLOCK), BLOCK, 0, stream_of(p)>>>(
        (T *)to, sums, count, m, heads, p->d);
}

/* S = alpha A B^T for all heads: A of queries, B of keys. */
static void multiply_scores(const Problem *p, float *S, float alpha, Matrices A, Matrices B)
{
    const Matrices C = matrices_of_scores(S, CUDA_R_32F, p->H, p->Nq, p->Nk);
    if (multiply_heads(stream_of(p), p->B, p->H, p->Hkv, AS_IS, TRANSPOSED, p->Nq, p->Nk, p->d,
                       alpha, &A, &B, &C) != 0)
        note_failure();
}

static Matrices of_queries(const Problem *p, const void *X)
{
    return matrices_of_tensor(X, type_of(p), p->Nq, p->H, p->d);
}

static Matrices of_keys(const Problem *p, const void *X)
{
    return matrices_of_tensor(X, type_of(p), p->Nk, p->Hkv, p->d);
}

template <typename T> static void launch_forward(const Problem *p)
{
    float *S = (float *)p->work, *sums = S + count_scores(p);
    multiply_scores(p, S, p->scale, of_queries(p, p->Q), of_keys(p, p->K));
    softmax_rows_kernel<T><<<(unsigned)(p->B * p->H * p->Nq), BLOCK, 0, stream_of(p)>>>(*p, S);
    multiply_into<T>(p, p->O, p->H, AS_IS, 1.0f,
                     matrices_of_scores(S, type_of(p), p->H, p->Nq, p->Nk), of_keys(p, p->V), p->Nq,
                     p->Nk, sums);
}

static void forward(const Problem *p)
{
    RUN_ANY(launch_forward, p);
}

template <typename T> static void launch_backward(const Problem *p)
{
    const int64_t count = (int64_t)p->B * p->Nq * p->H * p->d;
    float *S = (float *)p->work, *dP = S + count_scores(p), *sums = dP + count_scores(p);
    T *dO = (T *)(sums + sum_floats(p, 1));
    copy_dO_kernel<T>
        <<<(unsigned)((count + BLOCK - 1) / BLOCK), BLOCK, 0, stream_of(p)>>>(*p, dO, count);
    multiply_scores(p, S, p->scale, of_queries(p, p->Q), of_keys(p, p->K));
    multiply_scores(p, dP, 1.0f, of_queries(p, dO), of_keys(p, p->V));
    gradient_rows_kernel<T><<<(unsigned)(p->B * p->H * p->Nq), BLOCK, 0, stream_of(p)>>>(*p, S, dP);
    const Matrices P = matrices_of_scores(S, type_of(p), p->H, p->Nq, p->Nk);
    const Matrices dS = matrices_of_scores(dP, type_of(p), p->H, p->Nq, p->Nk);
    multiply_into<T>(p, p->dQ, p->H, AS_IS, p->scale, dS, of_keys(p, p->K), p->Nq, p->Nk, sums);
    multiply_into<T>(p, p->dK, p->Hkv, TRANSPOSED, p->scale, dS, of_queries(p, p->Q), p->Nk, p->Nq,
                     sums);
    multiply_into<T>(p, p->dV, p->Hkv, TRANSPOSED, 1.0f, P, of_queries(p, dO), p->Nk, p->Nq, sums);
}

static void backward(const Problem *p)
{
    RUN_ANY(launch_backward, p);
}

static int64_t work(const Problem *p, int backward)
{
    const int64_t dO = backward ? (int64_t)p->B * p->Nq * p->H * p->d : 0; /* in at most 4 bytes */
    return 4 * ((backward ? 2 : 1) * count_scores(p) + sum_floats(p, backward) + dO);
}

RUNG(naive, v1_cublas, "both products by cuBLAS, no TF32 for f32", F32 | F16 | BF16, forward,
     backward, work, NULL, FULL | ANY_D | TENSOR_CORES | CUBLAS);
