/* SPDX-License-Identifier: MIT
 *
 * v3_decode_window: one query against a rolling cache of keys and values.
 *
 * When a model writes text it asks with one query a step. All kernels so far let a block of queries
 * share the keys that it loads; one query has nobody to share with but the other query heads of its
 * group (GQA). Its row alone would keep one warp of the GPU busy. But attention is a sum that can
 * be merged, so the keys are cut into parts, and each part is a warp's:
 *
 *     visible keys    [ part 0 ][ part 1 ][ part 2 ] ...      each with a state (O, lse)
 *     second kernel   lse = log sum exp(lse_part),   O = sum exp(lse_part - lse) O_part
 *
 * A query sees one run of keys, and parts are cut from it by count. (A rolling cache needs little
 * more: the newest key is beside the oldest, which makes two runs. The library takes any number.)
 *
 * Within a warp each lane has some of the channels: a row of K is read side by side, a score is a
 * sum over all lanes. To wait for one key at a time would take the time of memory's latency for
 * each, so the loads of AHEAD keys and values start together. The warps of a block work on
 * neighbouring heads: those of one group read the same keys at about the same time, and the L1
 * cache answers all but the first.
 *
 * It is short, not fast. The library (few_queries.cu, few_hopper.cu) makes the heads of a group and
 * their queries the rows of a tile on tensor cores: it reads keys once for up to 64 rows, through a
 * ring in shared memory.
 *
 * Prediction (H200, bf16, d = 128, H/Hkv = 4, 8 sequences, window 4096): some 550 instructions of a
 * warp for four keys and a head, a million keys in all, 4 x 132 a clock: 0.16 ms if no warp ever
 * waited, 0.2 to 0.25 ms with waits, and each further query as much again. Memory alone would need
 * 0.03.
 *
 * Interface: the rung of stage 05 that splits keys over warps; any number of queries, every dtype,
 * d <= 256.
 */
#include "problem.cuh"

#define WARPS        4   /* of a block */
#define AHEAD        4   /* keys whose loads start together */
#define WORTH_A_PART 128 /* keys: with fewer, to merge the states would cost more than it brings */
#define WARPS_WANTED 32  /* on each multiprocessor */

/* What a warp works on: query i of head h, one part of its keys. */
struct WarpWork {
    int b, i, h, part;
};

/* Attention over some keys, unnormalised: of O this lane's channels lane, lane + 32, ... */
template <int CHANNELS> struct State {
    float m, l, O[CHANNELS];
};

/* A lane's channels of a row; zeros from d on and where the row does not exist. */
template <int CHANNELS, typename T>
static __device__ __forceinline__ void load_row(float (&to)[CHANNELS], const T *row, int d,
                                                bool exists)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        to[c] = exists && lane + 32 * c < d ? (float)row[lane + 32 * c] : 0.0f;
}

/* The sum over all lanes, in all lanes. */
static __device__ __forceinline__ float sum_of_lanes(float x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

/* Keys begin .. end - 1 join the state: the online softmax, AHEAD keys a step. */
template <int CHANNELS, typename T>
static __device__ __forceinline__ void add_keys(State<CHANNELS> &state, const float (&q)[CHANNELS],
                                                const Problem &p, WarpWork work, int begin, int end)
{
    const int64_t row0 = key_row(&p, work.b, kv_head(&p, work.h), 0);
    const T *K = (const T *)p.K + row0, *V = (const T *)p.V + row0;
    const int ld = p.Hkv * p.d;
#pragma unroll 1
    for (int j = begin; j < end; j += AHEAD) {
        float K_reg[AHEAD][CHANNELS], V_reg[AHEAD][CHANNELS], S[AHEAD], m_new = state.m;
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            load_row(K_reg[n], K + (int64_t)(j + n) * ld, p.d, j + n < end);
            load_row(V_reg[n], V + (int64_t)(j + n) * ld, p.d, j + n < end);
        }
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            float qk = 0.0f;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++)
                qk = fmaf(q[c], K_reg[n][c], qk);
            qk = sum_of_lanes(qk);
            S[n] = j + n < end ? p.scale * qk : -INFINITY;
            m_new = fmaxf(m_new, S[n]);
        }
        const float base = m_new == -INFINITY ? 0.0f : m_new; /* -inf - -inf would be NaN */
        const float alpha = expf(state.m - base);
        state.m = m_new;
        state.l *= alpha;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            state.O[c] *= alpha;
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const float P = expf(S[n] - base);
            state.l += P;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++)
                state.O[c] = fmaf(P, V_reg[n][c], state.O[c]);
        }
    }
}

/* states [parts][B][H][Nq][d + 1]: O of a part, then its lse. */
static __device__ __forceinline__ float *state_of(float *states, const Problem &p, WarpWork work)
{
    const int64_t rows = (int64_t)p.B * p.H * p.Nq;
    return states + (work.part * rows + lse_row(&p, work.b, work.h, work.i)) * (p.d + 1);
}

/* This warp's work: heads first, so that a group's lie side by side. False: there is none. */
static __device__ __forceinline__ bool find_work(WarpWork &work, const Problem &p, int parts)
{
    int64_t rest = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32;
    work.h = (int)(rest % p.H);
    rest /= p.H;
    work.part = (int)(rest % parts);
    rest /= parts;
    work.i = (int)(rest % p.Nq);
    work.b = (int)(rest / p.Nq);
    return work.b < p.B;
}

/* One warp: one part of the keys of one row. */
template <int CHANNELS, typename T>
static __global__ void __launch_bounds__(32 * WARPS)
    decode_kernel(const __grid_constant__ Problem p, float *states, int parts)
{
    WarpWork work;
    if (!find_work(work, p, parts))
        return;
    const int lane = threadIdx.x % 32;
    float q[CHANNELS];
    State<CHANNELS> state = {-INFINITY, 0.0f, {}};
    load_row(q, (const T *)p.Q + query_row(&p, work.b, work.h, work.i), p.d, true);
    /* the visible keys, in parts of equal size */
    const int first = first_key(&p, work.i), visible = max(end_key(&p, work.i) - first, 0);
    const int share = (visible + parts - 1) / parts;
    const int begin = min(work.part * share, visible), end = min(begin + share, visible);
    add_keys<CHANNELS, T>(state, q, p, work, first + begin, first + end);
    float *part = state_of(states, p, work);
    const float inverse = state.l == 0.0f ? 0.0f : 1.0f / state.l; /* nothing seen: O = 0 */
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        if (lane + 32 * c < p.d)
            part[lane + 32 * c] = state.O[c] * inverse;
    if (lane == 0)
        part[p.d] = state.l == 0.0f ? -INFINITY : state.m + logf(state.l);
}

/* One warp: the parts of one row, merged. */
template <typename T>
static __global__ void __launch_bounds__(32 * WARPS)
    merge_kernel(const __grid_constant__ Problem p, float *states, int parts)
{
    WarpWork work;
    if (!find_work(work, p, 1))
        return;
    const int lane = threadIdx.x % 32, d = p.d;
    float m = -INFINITY, l = 0.0f;
    for (work.part = 0; work.part < parts; work.part++)
        m = fmaxf(m, state_of(states, p, work)[d]);
    const float base = m == -INFINITY ? 0.0f : m;
    for (work.part = 0; work.part < parts; work.part++)
        l += expf(state_of(states, p, work)[d] - base);
    for (int x = lane; x < d; x += 32) {
        float O = 0.0f;
        for (work.part = 0; work.part < parts; work.part++) {
            const float *part = state_of(states, p, work);
            const float weight = expf(part[d] - base);
            O = fmaf(weight, part[x], O);
        }
        ((T *)p.O)[query_row(&p, work.b, work.h, work.i) + x] = T(l == 0.0f ? 0.0f : O / l);
    }
    if (lane == 0)
        p.lse[lse_row(&p, work.b, work.h, work.i)] = l == 0.0f ? -INFINITY : m + logf(l);
}

/* --- host --------------------------------------------------------------------------------------*/

/* As many as give each multiprocessor its warps, if each has enough keys: of the most that a query
 * can see. */
static int count_parts(const Problem *p)
{
    const int64_t rows = (int64_t)p->B * p->H * p->Nq;
    const int64_t wanted = (WARPS_WANTED * (int64_t)count_multiprocessors() + rows - 1) / rows;
    const int64_t worth = min((int64_t)p->to - p->from + 1, (int64_t)p->Nk) / WORTH_A_PART;
    return (int)max(min(wanted, worth), (int64_t)1);
}

static int64_t work(const Problem *p, int backward)
{
    (void)backward;
    return (int64_t)sizeof(float) * count_parts(p) * p->B * p->H * p->Nq * (p->d + 1);
}

template <int CHANNELS, typename T> static void launch_channels(const Problem *p)
{
    const int64_t rows = (int64_t)p->B * p->H * p->Nq;
    const int parts = count_parts(p);
    decode_kernel<CHANNELS, T>
        <<<(unsigned)((rows * parts + WARPS - 1) / WARPS), 32 * WARPS, 0, stream_of(p)>>>(
            *p, (float *)p->work, parts);
    merge_kernel<T><<<(unsigned)((rows + WARPS - 1) / WARPS), 32 * WARPS, 0, stream_of(p)>>>(
        *p, (float *)p->work, parts);
}

template <typename T> static void launch(const Problem *p)
{
    if (p->d <= 64)
        launch_channels<2, T>(p);
    else
        p->d <= 128 ? launch_channels<4, T>(p) : launch_channels<8, T>(p);
}

static void forward(const Problem *p)
{
    RUN_ANY(launch, p);
}

RUNG(sliding_window, v3_decode_window,
     "few queries against a rolling cache, keys split over warps and merged", F32 | F16 | BF16,
     forward, NULL, work, NULL, ANY_D);
