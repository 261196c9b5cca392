/* SPDX-License-Identifier: MIT
 *
 * decode_rows.cuh: what a group of lanes of v3_decode_window does with UNROLL keys and values.
 *
 * Each lane multiplies its 8 channels: a part of R * UNROLL scores. The sums over the lanes could
 * be made one by one, log2(LANES) shuffles for each, after which all lanes know all scores and all
 * make the same exponentials. Here two partners share the work in every step: each gives away its
 * parts of one half of the scores and adds what it gets to the other half.
 *
 *     16 lanes, 16 scores:    8 + 4 + 2 + 1 shuffles instead of 64, one exponential instead of 16
 *
 *     lane 0 .. 7 keep scores 0 .. 7,  lane 8 .. 15 keep 8 .. 15;  then 4 each, 2 each, 1 each
 *
 * Then score v is with lane v, the scores of a row are with neighbours, and P is handed round when
 * it is multiplied by V.
 *
 * Interface:
 * - DecodeTile<T, LANES, R>: sizes. DecodeWork: what a block works on. DecodeRows: its result.
 * - take_channels, multiply_keys, sum_and_share, update_rows, add_values: the steps, in order.
 */
#ifndef WINDOW_DECODE_ROWS_CUH
#define WINDOW_DECODE_ROWS_CUH

#include "decode_keys.cuh"
#include "scores.cuh"

/* LANES * 8 channels of a row. R: query heads of a block, all of one group. */
template <typename T, int LANES_, int R_> struct DecodeTile {
    static const int LANES = LANES_, R = R_, WARPS = 4, THREADS = WARPS * 32;
    static const int BLOCKS = R == 1 ? 4 : R == 8 ? 2 : 3; /* that an SM shall hold */
    static const int GROUPS = 32 / LANES;                  /* of lanes, in a warp */
    static const int UNROLL = sizeof(T) == 2 && R <= 4 ? 4 : 2;
    static const int STEP = GROUPS * UNROLL; /* keys of a warp at a time */
    static const int CHANNELS = LANES * EIGHT;
    /* Scores of a group, and how many of them a lane has when all are summed up: value v of row
     * v / UNROLL and key v % UNROLL is with lane v / HELD or, COPIES > 1, with so many lanes. */
    static const int SCORES = R * UNROLL, HELD = SCORES > LANES ? SCORES / LANES : 1;
    static const int COPIES = SCORES < LANES ? LANES / SCORES : 1;
    static const int ROW_LANES = LANES / R; /* that share a row's scores */
    /* Stages of K and V on their way: with eight rows a lane fetches half as much at a time. */
    static const int STAGES = R == 8 ? 4 : R == 4 ? 3 : 2;
    /* shared memory: Q [R][CHANNELS]; stages of K and V, in their place later the states */
    static const int Q_FLOATS = R * CHANNELS, LOADS = Channels<T>::LOADS;
    static const int STAGE = 2 * UNROLL * LOADS * THREADS; /* of uint4 */
    static const int STATE_FLOATS = WARPS * R * (CHANNELS + 2);
    static const int STAGE_BYTES = STAGES * STAGE * 16, STATE_BYTES = STATE_FLOATS * 4;
    static const int SMEM = Q_FLOATS * 4 + (STAGE_BYTES > STATE_BYTES ? STAGE_BYTES : STATE_BYTES);
};

/* The rows of a block: heads h .. h + count - 1 of the group of h_kv, all with query i. */
struct DecodeWork {
    int b, h, h_kv, i, count, split;
};

/* One group of lanes: of O this lane's channels of all rows; m (in powers of two) and l of the row
 * whose scores this lane has. l: the sum over this lane's scores only, until the end. */
template <class C> struct DecodeRows {
    float m, l, O[C::R][EIGHT];
};

/* Row n of a stage of K or of V, as this thread fetched it. */
template <typename T, class C>
static __device__ __forceinline__ void take_channels(float (&to)[EIGHT], const uint4 *stage, int n)
{
    Channels<T> c;
#pragma unroll
    for (int load = 0; load < C::LOADS; load++)
        c.raw[load] = stage[(n * C::LOADS + load) * C::THREADS];
    as_floats(to, c);
}

/* S [SCORES]: this lane's part of each score, the products of its channels. */
template <class C>
static __device__ __forceinline__ void
multiply_keys(float (&S)[C::SCORES], const float (&K_reg)[C::UNROLL][EIGHT], const float *Q_smem)
{
    const int lane = threadIdx.x % C::LANES;
#pragma unroll
    for (int r = 0; r < C::R; r++) {
        const float4 *Q = reinterpret_cast<const float4 *>(Q_smem) + r * 2 * C::LANES + lane;
        const float4 low = Q[0], high = Q[C::LANES];
        const float q[EIGHT] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int n = 0; n < C::UNROLL; n++) {
            S[r * C::UNROLL + n] = 0.0f;
#pragma unroll
            for (int x = 0; x < EIGHT; x++)
                S[r * C::UNROLL + n] = fmaf(q[x], K_reg[n][x], S[r * C::UNROLL + n]);
        }
    }
}

/* The sums over the group's lanes: S[0 .. HELD - 1] are this lane's, the rest is used up. */
template <class C> static __device__ __forceinline__ void sum_and_share(float (&S)[C::SCORES])
{
#pragma unroll
    for (int distance = C::LANES / 2, count = C::SCORES; distance > 0; distance /= 2) {
        const bool upper = threadIdx.x & distance;
        if (count > 1) {
            count /= 2;
#pragma unroll
            for (int v = 0; v < C::SCORES / 2; v++)
                if (v < count) {
                    const float give = upper ? S[v] : S[count + v];
                    const float keep = upper ? S[count + v] : S[v];
                    S[v] = keep + __shfl_xor_sync(0xffffffffu, give, distance);
                }
        } else {
            S[0] += __shfl_xor_sync(0xffffffffu, S[0], distance);
        }
    }
}

/* The online softmax of this lane's scores: they become P, and O is rescaled. Key n of the group is
 * j + n * GROUPS. */
template <class C>
static __device__ __forceinline__ void update_rows(DecodeRows<C> &rows, float (&P)[C::HELD],
                                                   const AttnArgs &a, DecodeWork work, int j,
                                                   int end, float scale_log2)
{
    const int first = threadIdx.x % C::LANES / C::COPIES * C::HELD;
    float raw[1][C::HELD], m_new = -INFINITY;
#pragma unroll
    for (int v = 0; v < C::HELD; v++)
        raw[0][v] = P[v];
    adjust_scores(raw, a);
#pragma unroll
    for (int v = 0; v < C::HELD; v++) {
        const int key = j + (first + v) % C::UNROLL * C::GROUPS;
        const bool seen = key < end && !(a.mask && a.mask[(int64_t)work.i * a.shape.Nk + key]);
        P[v] = seen ? raw[0][v] : -INFINITY;
        m_new = fmaxf(m_new, P[v]);
    }
#pragma unroll
    for (int distance = C::ROW_LANES / 2; distance > 0; distance /= 2)
        m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, distance));
    m_new = fmaxf(rows.m, m_new * scale_log2);
    const float base = m_new == -INFINITY ? 0.0f : m_new; /* -inf - -inf would be NaN */
    const float alpha = exp2_sfu(rows.m - base);
    rows.m = m_new;
    rows.l *= alpha;
#pragma unroll
    for (int v = 0; v < C::HELD; v++) {
        P[v] = exp2_sfu(fmaf(P[v], scale_log2, -base));
        rows.l += P[v];
    }
    if (!__any_sync(0xffffffffu, alpha != 1.0f))
        return; /* no row has a new maximum: the usual case after some keys */
#pragma unroll
    for (int r = 0; r < C::R; r++) {
        const float of_row = __shfl_sync(0xffffffffu, alpha, r * C::ROW_LANES, C::LANES);
#pragma unroll
        for (int x = 0; x < EIGHT; x++)
            rows.O[r][x] *= of_row;
    }
}

/* O += P V, P from the lanes that have it. V_stage: this thread's values,
 * [UNROLL][LOADS][THREADS] */
template <typename T, class C>
static __device__ __forceinline__ void add_values(DecodeRows<C> &rows, const float (&P)[C::HELD],
                                                  const uint4 *V_stage)
{
#pragma unroll
    for (int n = 0; n < C::UNROLL; n++) {
        float V_reg[EIGHT];
        take_channels<T, C>(V_reg, V_stage, n);
#pragma unroll
        for (int r = 0; r < C::R; r++) {
            const int v = r * C::UNROLL + n;
            const float p =
                __shfl_sync(0xffffffffu, P[v % C::HELD], v / C::HELD * C::COPIES, C::LANES);
#pragma unroll
            for (int x = 0; x < EIGHT; x++)
                rows.O[r][x] = fmaf(p, V_reg[x], rows.O[r][x]);
        }
    }
}

#endif
