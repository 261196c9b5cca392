/* SPDX-License-Identifier: MIT
 *
 * wgmma_rows.cuh: what the Hopper rungs of the forward pass share: 64 query rows of a warpgroup,
 * from their key tiles to the result. (Backward owns keys instead: wgmma_keys.cuh.) Who loads,
 * who waits for whom and in which order is what the rungs are about, and stands in their own files.
 *
 * The loops are those of v1 to v8, and so is the arithmetic: m_i in powers of two, scale * log2(e)
 * inside the multiply-add in front of exp2, tiles that all rows see in full without a mask. Each
 * row sees one run of keys, first ... last, so a mask is two comparisons for each score.
 *
 * Shared memory of a block:  Q [CONSUMERS][64 rows]   K [STAGES][Bc keys]   V [STAGES][Bc keys]
 * and behind them the mbarriers. O leaves through the place of Q, in v14 through its own.
 *
 * Interface:
 * - WgmmaTile: the constants of one kernel, and where things lie in shared memory.
 * - TileMaps, make_maps (host): tensor maps of Q, K, V, O.
 * - RingPlace, advance, start_barriers, produce_Q, produce_keys, release: the stages.
 * - WarpgroupRows, start_rows: O, m and l of 64 rows. multiply_QK, hide_keys, update_rows,
 *   update_rows_lazily, round_P, rescale_O, multiply_PV: a step. store_rows: the end.
 * What v10 and v12 introduce (start_barriers, produce_keys; update_rows_lazily) stands in their
 * files in the same words, and is theirs there.
 */
#ifndef UNITS_WGMMA_ROWS_CUH
#define UNITS_WGMMA_ROWS_CUH

#include "units/hopper.cuh"

/* Br = 64 rows for each consumer warpgroup, Bc keys a tile, STAGES tiles of K and as many of V. An
 * element of Q, K and V has SIZE bytes. */
template <int D_, int Bc_, int CONSUMERS_, int STAGES_, bool OWN_O = false, int SIZE = 2>
struct WgmmaTile {
    static const int D = D_, Bc = Bc_, CONSUMERS = CONSUMERS_, STAGES = STAGES_;
    static const int Br = 64 * CONSUMERS;
    static const int Q_BYTES = 64 * D * SIZE, K_BYTES = Bc * D * SIZE; /* Q: of one warpgroup */
    static const int O_BYTES = 64 * D * 2;
    static const int Q_PANEL = 64 * PANEL * 2, K_PANEL = Bc * PANEL * 2; /* 128 bytes a row */
    static const int K = CONSUMERS * Q_BYTES, V = K + STAGES * K_BYTES;  /* bytes behind Q */
    static const int END = V + STAGES * K_BYTES, O = OWN_O ? END : 0;
    static const int Q_FULL = END + (OWN_O ? CONSUMERS * O_BYTES : 0), Q_FREE = Q_FULL + 8;
    static const int K_FULL = Q_FREE + 8, V_FULL = K_FULL + 8 * STAGES;
    static const int K_FREE = V_FULL + 8 * STAGES, V_FREE = K_FREE + 8 * STAGES;
    static const int ALL = V_FREE + 8 * STAGES;
    /* Registers a thread, of 65,536 in all: 1 warpgroup loads and needs few, CONSUMERS compute. */
    static const int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 24;
    static const int CONSUMER_REGISTERS = CONSUMERS == 2 ? 240 : CONSUMERS == 3 ? 160 : 112;
    static_assert(Bc % 16 == 0 && D % PANEL == 0 && ALL <= 227 * 1024, "tiles do not fit");
};

/* --- host --------------------------------------------------------------------------------------*/

struct TileMaps {
    CUtensorMap Q, K, V, O;
};

/* Q, O [B][Nq][H][d] and K, V [B][Nk][Hkv][d]. false: stderr says why. */
template <typename T, class C>
static bool make_maps(TileMaps *maps, int B, int H, int Hkv, int Nq, int Nk, const void *Q,
                      const void *K, const void *V, void *O)
{
    return make_tile_map<T>(&maps->Q, Q, B, Nq, H, C::D, 64) &&
           make_tile_map<T>(&maps->K, K, B, Nk, Hkv, C::D, C::Bc) &&
           make_tile_map<T>(&maps->V, V, B, Nk, Hkv, C::D, C::Bc) &&
           make_tile_map<T>(&maps->O, O, B, Nq, H, C::D, 64) && launch_is_done(0, NULL);
}

/* --- the ring of stages ------------------------------------------------------------------------*/

/* Which stage is next, and the parity of its phase: it turns over with each round of the ring. */
struct RingPlace {
    int stage, parity;
};

template <class C> static __device__ __forceinline__ void advance(RingPlace &place)
{
    if (++place.stage == C::STAGES) {
        place.stage = 0;
        place.parity ^= 1;
    }
}

/* By one thread: all barriers of a block with a producer. A stage is free when each warp of the
 * consumers has said so. */
template <class C> static __device__ __forceinline__ void start_barriers(uint32_t smem)
{
    barrier_init(smem + C::Q_FULL, 1);
    barrier_init(smem + C::Q_FREE, 4 * C::CONSUMERS);
    for (int stage = 0; stage < C::STAGES; stage++) {
        barrier_init(smem + C::K_FULL + 8 * stage, 1);
        barrier_init(smem + C::V_FULL + 8 * stage, 1);
        barrier_init(smem + C::K_FREE + 8 * stage, 4 * C::CONSUMERS);
        barrier_init(smem + C::V_FREE + 8 * stage, 4 * C::CONSUMERS);
    }
    barrier_init_done();
}

/* By one thread: Q of all consumers, from row i0 of head h of batch b. */
template <class C>
static __device__ __forceinline__ void produce_Q(const TileMaps &maps, int b, int h, int i0,
                                                 uint32_t smem)
{
    barrier_expect(smem + C::Q_FULL, C::CONSUMERS * C::Q_BYTES);
    for (int group = 0; group < C::CONSUMERS; group++)
        load_tile(smem + group * C::Q_BYTES, &maps.Q, b, h, i0 + 64 * group, smem + C::Q_FULL);
}

/* By one thread: K and V of kv head h, tile after tile from `end` - 1 to `begin`, each as soon as
 * its stage is free. */
template <class C>
static __device__ __forceinline__ void produce_keys(const TileMaps &maps, int b, int h, int begin,
                                                    int end, uint32_t smem, RingPlace &place)
{
#pragma unroll 1
    for (int j = end - 1; j >= begin; j--) {
        const uint32_t at = place.stage * C::K_BYTES, barrier = smem + 8 * place.stage;
        barrier_wait(barrier + C::K_FREE, place.parity ^ 1, WAIT_FREE_K);
        barrier_expect(barrier + C::K_FULL, C::K_BYTES);
        load_tile(smem + C::K + at, &maps.K, b, h, j * C::Bc, barrier + C::K_FULL);
        barrier_wait(barrier + C::V_FREE, place.parity ^ 1, WAIT_FREE_V);
        barrier_expect(barrier + C::V_FULL, C::K_BYTES);
        load_tile(smem + C::V + at, &maps.V, b, h, j * C::Bc, barrier + C::V_FULL);
        advance<C>(place);
    }
}

/* By each warp of the consumers, when the tensor cores read a stage no more for it. wgmma_wait,
 * which all lanes have passed together, said so: there is nothing to meet for. */
static __device__ __forceinline__ void release(uint32_t barrier)
{
    if (threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}

/* --- 64 rows of a warpgroup --------------------------------------------------------------------*/

/* A lane has two rows, e = 0, 1: 16 * warp + lane / 4 + 8 e. m in powers of two; l is the sum over
 * the lane's own columns until store_rows adds up the four lanes of a row. */
template <class C> struct WarpgroupRows {
    float O[C::D / 8][4], m[2], l[2];
};

template <class C> static __device__ __forceinline__ void start_rows(WarpgroupRows<C> &rows)
{
#pragma unroll
    for (int n = 0; n < C::D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            rows.O[n][e] = 0.0f;
    rows.m[0] = rows.m[1] = -INFINITY;
    rows.l[0] = rows.l[1] = 0.0f;
}

/* Issues S = Q K_j^T as a group. Q_smem, K_smem: addresses. */
template <typename T, class C>
static __device__ __forceinline__ void multiply_QK(float (&S)[C::Bc / 8][4], uint32_t Q_smem,
                                                   uint32_t K_smem)
{
    const uint64_t Q = tile_descriptor(Q_smem, C::Q_PANEL), K = tile_descriptor(K_smem, C::K_PANEL);
    multiply_smem<T, 0>(S, Q, K);
#pragma unroll
    for (int k = 1; k < C::D / 16; k++)
        multiply_smem<T, 1>(S, Q + row_tile_step(k, C::Q_PANEL), K + row_tile_step(k, C::K_PANEL));
    wgmma_commit();
}

/* Issues O += P V_j as a group. */
template <typename T, class C>
static __device__ __forceinline__ void
multiply_PV(WarpgroupRows<C> &rows, const uint32_t (&P)[C::Bc / 16][4], uint32_t V_smem)
{
    const uint64_t V = tile_descriptor(V_smem, C::K_PANEL);
#pragma unroll
    for (int k = 0; k < C::Bc / 16; k++)
        multiply_registers<T>(rows.O, P[k], V + key_tile_step(k));
    wgmma_commit();
}

/* Scores of keys j that row i does not see (from <= j - i <= to) become -inf, and those of no key.
 * i: the lane's row e = 0. */
template <class C>
static __device__ __forceinline__ void hide_keys(float (&S)[C::Bc / 8][4], int from, int to, int Nk,
                                                 int i, int j)
{
    const int column = j * C::Bc + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        /* 8 n + x, which the compiler knows, against two limits, which it does not. */
        const int first = i + 8 * e + from - column;
        const int last = min(i + 8 * e + to, Nk - 1) - column;
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++)
                if (8 * n + x < first || 8 * n + x > last)
                    S[n][2 * e + x] = -INFINITY;
    }
}

/* The largest score of row e in this lane. Two chains: a maximum waits for the one before it, and
 * one warp of each warpgroup has to keep its quarter of the multiprocessor busy. */
template <class C>
static __device__ __forceinline__ float largest(const float (&S)[C::Bc / 8][4], int e)
{
    float even = fmaxf(S[0][2 * e], S[0][2 * e + 1]), odd = fmaxf(S[1][2 * e], S[1][2 * e + 1]);
#pragma unroll
    for (int n = 2; n < C::Bc / 8; n += 2) {
        even = fmaxf(even, fmaxf(S[n][2 * e], S[n][2 * e + 1]));
        odd = fmaxf(odd, fmaxf(S[n + 1][2 * e], S[n + 1][2 * e + 1]));
    }
    return fmaxf(even, odd);
}

/* The same of the four lanes that share a row. */
static __device__ __forceinline__ float largest_of_row(float m)
{
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    return fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
}

/* P = 2^(scale_log2 S - m) of row e; returns the lane's sum. MASKED: the row may have seen nothing
 * yet, and -inf - -inf would be NaN. */
template <class C, bool MASKED>
static __device__ __forceinline__ float exponentiate(float (&S)[C::Bc / 8][4], int e, float m,
                                                     float scale_log2)
{
    const float base = MASKED && m == -INFINITY ? 0.0f : m;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
        for (int x = 0; x < 2; x++) {
            const float p = exp2_sfu(fmaf(S[n][2 * e + x], scale_log2, -base));
            S[n][2 * e + x] = p;
            sum += p;
        }
    return sum;
}

/* Online softmax: P replaces S; alpha is what O has to be multiplied by. */
template <class C, bool MASKED>
static __device__ __forceinline__ void update_rows(float (&S)[C::Bc / 8][4], WarpgroupRows<C> &rows,
                                                   float (&alpha)[2], float scale_log2)
{
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float m_new = fmaxf(rows.m[e], largest_of_row(largest<C>(S, e)) * scale_log2);
        alpha[e] = MASKED && m_new == -INFINITY ? 1.0f : exp2_sfu(rows.m[e] - m_new);
        rows.m[e] = m_new;
        rows.l[e] = rows.l[e] * alpha[e] + exponentiate<C, MASKED>(S, e, m_new, scale_log2);
    }
}

#define LAZY 8.0f /* powers of two */

/* Online softmax with a lazy maximum: m and O stay as they are as long as no score of the warp's
 * rows is more than LAZY powers of two above m. Returns whether alpha is for use. */
template <class C, bool MASKED>
static __device__ __forceinline__ bool update_rows_lazily(float (&S)[C::Bc / 8][4],
                                                          WarpgroupRows<C> &rows, float (&alpha)[2],
                                                          float scale_log2)
{
    const float top[2] = {largest<C>(S, 0) * scale_log2, largest<C>(S, 1) * scale_log2};
    const bool grown =
        __any_sync(0xffffffffu, top[0] > rows.m[0] + LAZY || top[1] > rows.m[1] + LAZY);
    if (grown) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float m_new = fmaxf(rows.m[e], largest_of_row(top[e]));
            alpha[e] = m_new == -INFINITY ? 1.0f : exp2_sfu(rows.m[e] - m_new);
            rows.m[e] = m_new;
            rows.l[e] *= alpha[e];
        }
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
        rows.l[e] += exponentiate<C, MASKED>(S, e, rows.m[e], scale_log2);
    return grown;
}

/* P as the left factor of the next product: two column tiles of S are one tile of A. */
template <typename T, class C>
static __device__ __forceinline__ void round_P(uint32_t (&P)[C::Bc / 16][4],
                                               const float (&S)[C::Bc / 8][4])
{
#pragma unroll
    for (int k = 0; k < C::Bc / 16; k++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            P[k][e] = pack2<T>(S[2 * k + e / 2][e % 2 * 2], S[2 * k + e / 2][e % 2 * 2 + 1]);
}

template <class C>
static __device__ __forceinline__ void rescale_O(WarpgroupRows<C> &rows, const float (&alpha)[2])
{
#pragma unroll
    for (int n = 0; n < C::D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            rows.O[n][e] *= alpha[e / 2];
}

/* O = O / l through 64 rows of shared memory of the warpgroup's own, which nobody else reads, to
 * head h of batch b in global memory; and lse [Nq] of that head. i0: its first row. id: a named
 * barrier of the warpgroup. Before the block ends the warpgroup's first thread must call
 * store_tiles_read. */
template <typename T, class C>
static __device__ __forceinline__ void store_rows(WarpgroupRows<C> &rows, const CUtensorMap *O_map,
                                                  float *lse, int b, int h, int i0, int Nq,
                                                  uint32_t O_smem, int id)
{
    const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (threadIdx.x % 128 == 0)
        store_tiles_read(); /* the O before this one has left */
    threads_sync(id, 128);  /* and no warp reads what was here */
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float l = rows.l[e];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
        const int r = 16 * warp + g + 8 * e;
        if (t == 0 && i0 + r < Nq)
            lse[i0 + r] = l == 0.0f ? -INFINITY : (float)M_LN2 * rows.m[e] + logf(l);
#pragma unroll
        for (int n = 0; n < C::D / 8; n++) { /* chunk n % 8 of panel n / 8, swizzled */
            const uint32_t pair =
                pack2<T>(rows.O[n][2 * e] * inverse, rows.O[n][2 * e + 1] * inverse);
            const uint32_t to = O_smem + n / 8 * C::Q_PANEL + r * 128 + (n % 8 ^ g) * 16 + t * 4;
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pair) : "memory");
        }
    }
    fence_async();
    threads_sync(id, 128);
    if (threadIdx.x % 128 == 0 && i0 < Nq)
        store_tile(O_smem, O_map, b, h, i0);
}

#endif
