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
 * T is the type of the tensors: float, __half or __nv_bfloat16. (float) and (T) convert; sums are
 * float.
 *
 * Memory: S, B*H*Nq*Nk floats; backward P and dS, twice that.
 *
 * Interface: the rung of stage 01 that takes every mask, a softcap and any d.
 */
#include "problem.cuh"

/* Threads of a block: 8 warps. The kernels here are limited by memory, so the exact number hardly
 * matters as long as each multiprocessor has many warps to switch between. */
enum { BLOCK = 256 };

/* Blocks that hold at least one thread for each of `count` elements; the last one is padded, which
 * is why each kernel starts by comparing its index with the count. */
static unsigned grid_for(int64_t count)
{
    return (unsigned)((count + BLOCK - 1) / BLOCK);
}

static __device__ inline int64_t thread_index()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* Which b, h, n (and last: a key or a channel) a thread's index stands for, in [B][H][N][last]. */
struct Place {
    int b, h, n, last;
};

static __device__ inline Place place_of(int64_t index, int heads, int N, int lasts)
{
    return {(int)(index / lasts / N / heads), (int)(index / lasts / N % heads),
            (int)(index / lasts % N), (int)(index % lasts)};
}

/* The sum over x of two rows of d channels. */
template <typename T> static __device__ inline float dot(const T *a, const T *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += (float)a[x] * (float)b[x];
    return sum;
}

/* S_ij, or -inf where query i may not see key j: exp(-inf) = 0 takes the key out of the row. */
template <typename T> static __device__ inline float score_at(const Problem &p, Place at)
{
    if (!sees(&p, at.n, at.last))
        return -INFINITY;
    const T *Q_i = (const T *)p.Q + query_row(&p, at.b, at.h, at.n);
    const T *K_j = (const T *)p.K + key_row(&p, at.b, kv_head(&p, at.h), at.last);
    return score(&p, dot(Q_i, K_j, p.d));
}

/* --- forward -----------------------------------------------------------------------------------*/
/* __grid_constant__: the arguments are read where the launch put them, without a copy for each
 * thread. */

/* One thread: one score. S [B][H][Nq][Nk] */
template <typename T>
static __global__ void scores_kernel(const __grid_constant__ Problem p, int64_t count, float *S)
{
    const int64_t index = thread_index();
    if (index < count)
        S[index] = score_at<T>(p, place_of(index, p.H, p.Nq, p.Nk));
}

/* One thread: one row of S [rows][Nk], which becomes P in place, and its lse. */
static __global__ void softmax_kernel(int64_t rows, int Nk, float *S, float *lse)
{
    const int64_t row = thread_index();
    if (row >= rows)
        return;
    float *S_i = S + row * Nk;
    float m_i = -INFINITY, l_i = 0.0f;
    for (int j = 0; j < Nk; j++)
        m_i = S_i[j] > m_i ? S_i[j] : m_i;
    if (m_i == -INFINITY)
        m_i = 0.0f; /* nothing visible: -inf - 0 stays -inf, while -inf - -inf would be NaN */
    for (int j = 0; j < Nk; j++)
        l_i += S_i[j] = expf(S_i[j] - m_i);
    for (int j = 0; j < Nk && l_i != 0.0f; j++)
        S_i[j] /= l_i;
    lse[row] = m_i + logf(l_i); /* log(0) = -inf: what an empty row should say */
}

/* One thread: one channel of one row of O. P [B][H][Nq][Nk]. Neighbouring threads have
 * neighbouring channels, so these loads of V do lie side by side. */
template <typename T>
static __global__ void weighted_sum_kernel(const __grid_constant__ Problem p, int64_t count,
                                           const float *P)
{
    const int64_t index = thread_index();
    if (index >= count)
        return;
    const Place at = place_of(index, p.H, p.Nq, p.d);
    const T *V = (const T *)p.V + key_row(&p, at.b, kv_head(&p, at.h), 0) + at.last;
    const float *P_i = P + index / p.d * p.Nk;
    float sum = 0.0f;
    for (int j = 0; j < p.Nk; j++)
        /* a key that it does not see may be Inf or NaN, and 0 * NaN is NaN */
        if (P_i[j] != 0.0f || sees(&p, at.n, j))
            sum += P_i[j] * (float)V[(int64_t)j * p.Hkv * p.d];
    ((T *)p.O)[query_row(&p, at.b, at.h, at.n) + at.last] = (T)sum;
}

static int64_t count_rows(const Problem *p)
{
    return (int64_t)p->B * p->H * p->Nq;
}

template <typename T> static void launch_forward(const Problem *p)
{
    const int64_t rows = count_rows(p), scores = rows * p->Nk, channels = rows * p->d;
    float *S = (float *)p->work;
    scores_kernel<T><<<grid_for(scores), BLOCK, 0, stream_of(p)>>>(*p, scores, S);
    softmax_kernel<<<grid_for(rows), BLOCK, 0, stream_of(p)>>>(rows, p->Nk, S, p->lse);
    weighted_sum_kernel<T><<<grid_for(channels), BLOCK, 0, stream_of(p)>>>(*p, channels, S);
}

static void forward(const Problem *p)
{
    RUN_ANY(launch_forward, p);
}

/* --- backward ----------------------------------------------------------------------------------*/

/* One thread: one row. delta [B][H][Nq] = sum over x of dO * O */
template <typename T>
static __global__ void delta_kernel(const __grid_constant__ Problem p, int64_t rows, float *delta)
{
    const int64_t row = thread_index();
    if (row >= rows)
        return;
    const Place at = place_of(row, p.H, p.Nq, 1);
    const int64_t i = query_row(&p, at.b, at.h, at.n);
    delta[row] = dot((const T *)p.dO + i, (const T *)p.O + i, p.d);
}

/* One thread: one P_ij and one dS_ij. P, dS [B][H][Nq][Nk], delta [B][H][Nq] */
template <typename T>
static __global__ void gradient_scores_kernel(const __grid_constant__ Problem p, int64_t count,
                                              const float *delta, float *P, float *dS)
{
    const int64_t index = thread_index();
    if (index >= count)
        return;
    const Place at = place_of(index, p.H, p.Nq, p.Nk);
    const int64_t row = index / p.Nk;
    const float s = score_at<T>(p, at), cap = p.softcap;
    if (s == -INFINITY) {
        P[index] = dS[index] = 0.0f;
        return;
    }
    /* d/dx of cap * tanh(x / cap) is 1 - tanh^2, and tanh is s / cap */
    const float slope = cap > 0.0f ? 1.0f - (s / cap) * (s / cap) : 1.0f;
    const T *dO_i = (const T *)p.dO + query_row(&p, at.b, at.h, at.n);
    const T *V_j = (const T *)p.V + key_row(&p, at.b, kv_head(&p, at.h), at.last);
    P[index] = expf(s - p.lse[row]);
    dS[index] = P[index] * (dot(dO_i, V_j, p.d) - delta[row]) * slope;
}

/* One thread: one channel of one row of dQ. */
template <typename T>
static __global__ void dq_kernel(const __grid_constant__ Problem p, int64_t count, const float *dS)
{
    const int64_t index = thread_index();
    if (index >= count)
        return;
    const Place at = place_of(index, p.H, p.Nq, p.d);
    const T *K = (const T *)p.K + key_row(&p, at.b, kv_head(&p, at.h), 0) + at.last;
    const float *dS_i = dS + index / p.d * p.Nk;
    float sum = 0.0f;
    for (int j = 0; j < p.Nk; j++)
        if (dS_i[j] != 0.0f || sees(&p, at.n, j))
            sum += dS_i[j] * (float)K[(int64_t)j * p.Hkv * p.d];
    ((T *)p.dQ)[query_row(&p, at.b, at.h, at.n) + at.last] = (T)(p.scale * sum);
}

/* One thread: one channel of one key, in dK and dV, over all queries of all heads of its group. */
template <typename T>
static __global__ void dk_dv_kernel(const __grid_constant__ Problem p, int64_t count,
                                    const float *P, const float *dS)
{
    const int64_t index = thread_index();
    if (index >= count)
        return;
    const Place at = place_of(index, p.Hkv, p.Nk, p.d);
    const int group = p.H / p.Hkv;
    float dK_jx = 0.0f, dV_jx = 0.0f;
    for (int h = at.h * group; h < (at.h + 1) * group; h++)
        for (int i = 0; i < p.Nq; i++) {
            const int64_t ij = lse_row(&p, at.b, h, i) * p.Nk + at.n;
            const int64_t ix = query_row(&p, at.b, h, i) + at.last;
            if (P[ij] == 0.0f && !sees(&p, i, at.n))
                continue; /* dO may be padding, and 0 * NaN is NaN */
            dV_jx += P[ij] * (float)((const T *)p.dO)[ix];
            dK_jx += dS[ij] * (float)((const T *)p.Q)[ix];
        }
    const int64_t jx = key_row(&p, at.b, at.h, at.n) + at.last;
    ((T *)p.dK)[jx] = (T)(p.scale * dK_jx);
    ((T *)p.dV)[jx] = (T)dV_jx;
}

template <typename T> static void launch_backward(const Problem *p)
{
    const int64_t rows = count_rows(p), scores = rows * p->Nk, channels = rows * p->d;
    const int64_t keys = (int64_t)p->B * p->Hkv * p->Nk * p->d;
    float *P = (float *)p->work, *dS = P + scores, *delta = dS + scores;
    cudaStream_t stream = stream_of(p);
    delta_kernel<T><<<grid_for(rows), BLOCK, 0, stream>>>(*p, rows, delta);
    gradient_scores_kernel<T><<<grid_for(scores), BLOCK, 0, stream>>>(*p, scores, delta, P, dS);
    dq_kernel<T><<<grid_for(channels), BLOCK, 0, stream>>>(*p, channels, dS);
    dk_dv_kernel<T><<<grid_for(keys), BLOCK, 0, stream>>>(*p, keys, P, dS);
}

static void backward(const Problem *p)
{
    RUN_ANY(launch_backward, p);
}

static int64_t work(const Problem *p, int backward)
{
    const int64_t rows = count_rows(p), scores = rows * p->Nk;
    return (int64_t)sizeof(float) * (backward ? 2 * scores + rows : scores);
}

RUNG(naive, v0_thread_per_score, "one thread computes one score", F32 | F16 | BF16, forward,
     backward, work, NULL, FULL | ANY_D);
