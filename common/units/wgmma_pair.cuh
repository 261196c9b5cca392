/* SPDX-License-Identifier: MIT
 *
 * wgmma_pair.cuh: what v14_cluster_pair of stage 04 and the library share at d = 256: 64 keys of a
 * block, whose products are those of two warpgroups together, and dQ over the keys of two blocks of
 * a cluster. Who loads, who sends dS and in which order is what that rung is about, and stands in
 * its file.
 *
 * Interface:
 * - PairKeys: the constants, and where things lie in shared memory. PairRows, PairChannels: what of
 *   it is one warpgroup's. P_OF, dS_OF: named barriers.
 * - start_pair_barriers, report_to_both: the mbarriers.
 * - multiply_half, add_own_queries, add_other_queries, multiply_dS_K_of_both: the products.
 * - store_half: P or dS to registers and to shared memory.
 */
#ifndef UNITS_WGMMA_PAIR_CUH
#define UNITS_WGMMA_PAIR_CUH

#include "units/cluster.cuh"
#include "units/wgmma_keys.cuh"

/* Named barriers. P_OF + w, dS_OF + w: P, dS of warpgroup w lie in shared memory. Warpgroup w
 * arrives, the other waits. dS_OF + w also says that w has read the other's P, which may now be
 * overwritten. */
#define P_OF  4
#define dS_OF 6

struct PairKeys {
    static const int D = 256, Br = 64, Bc = 64;
    static const int PANEL_BYTES = 64 * 128, ROW_PANEL_BYTES = PANEL_BYTES;
    static const int BOX = 64 * D * 2, ROWS_BYTES = BOX, STATS_BYTES = Br * 8;
    static const int SCORES_BYTES = Bc * Br * 2; /* bytes of P or dS */
    static const int K = 0, K_IN = BOX, V = K_IN + BOX / 2, Q = V + BOX, dO = Q + 2 * BOX;
    static const int P = dO + BOX, dS = P + SCORES_BYTES, dS_IN = dS + 2 * SCORES_BYTES;
    static const int STATS = dS_IN + 2 * SCORES_BYTES, KV_FULL = STATS + 2 * STATS_BYTES;
    static const int K_IN_FULL = KV_FULL + 8, Q_FULL = K_IN_FULL + 8, Q_FREE = Q_FULL + 16;
    static const int dO_FULL = Q_FREE + 16, dO_FREE = dO_FULL + 8;
    /* OUT_FULL: dS is written here. IN_FULL: the other's has come. */
    static const int OUT_FULL = dO_FREE + 8, IN_FULL = OUT_FULL + 16, ALL = IN_FULL + 16;
    static_assert(ALL <= 227 * 1024, "tiles do not fit");
};

/* A warpgroup's share of S and dP, and of dK and dV. */
struct PairRows {
    static const int Br = 32;
};
struct PairChannels {
    static const int D = 128, PANEL_BYTES = PairKeys::PANEL_BYTES;
};

static __device__ __forceinline__ void start_pair_barriers(uint32_t smem)
{
    typedef PairKeys C;
    const int warps = CONSUMER_THREADS / 32;
    barrier_init(smem + C::KV_FULL, 1);
    barrier_init(smem + C::K_IN_FULL, 1);
    barrier_init(smem + C::dO_FULL, 1);
    barrier_init(smem + C::dO_FREE, 2 * warps); /* of both blocks */
    for (int n = 0; n < 2; n++) {
        barrier_init(smem + C::Q_FULL + 8 * n, 1);
        barrier_init(smem + C::Q_FREE + 8 * n, 2 * warps);
        barrier_init(smem + C::OUT_FULL + 8 * n, warps);
        barrier_init(smem + C::IN_FULL + 8 * n, 1);
    }
    barrier_init_done();
}

/* report, to both blocks. at: the barrier's place in each. */
static __device__ __forceinline__ void report_to_both(uint32_t smem, uint32_t there, int at)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(smem + at);
        arrive_there(there + at);
    }
}

/* --- products of one warpgroup -----------------------------------------------------------------*/

/* wgmma.mma_async, both factors from shared memory. TURNED: 0 or 1 of A and of B, transposed. */
#define NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_ANY(N, TYPE, NAMES, A_NAME, B_NAME, P_NAME, TURNED, ...)                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P_NAME ", 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES        \
                 "}, " A_NAME ", " B_NAME ", p, 1, 1, " TURNED ";\n}\n"                            \
                 : __VA_ARGS__                                                                     \
                 : "l"(A_desc), "l"(B_desc), "n"(ADD))
/* C[64][32] = or += A[64][16] B[32][16]^T */
template <typename T, int ADD>
static __device__ __forceinline__ void multiply_narrow(float (&C)[4][4], uint64_t A_desc,
                                                       uint64_t B_desc)
{
    BY_TYPE(WGMMA_ANY, 32, NAMES_32, "%16", "%17", "%18", "0, 0", COLUMNS_32(C, 0));
}

/* C[64][128] = or += A[64][16] B[16][128] */
template <typename T, int ADD>
static __device__ __forceinline__ void multiply_wide(float (&C)[16][4], uint64_t A_desc,
                                                     uint64_t B_desc)
{
    BY_TYPE(WGMMA_ANY, 128, NAMES_128, "%64", "%65", "%66", "0, 1", COLUMNS_64(C, 0),
            COLUMNS_64(C, 8));
}

/* Issues S^T = K Q^T or dP^T = V dO^T: all 64 keys and this warpgroup's queries. */
template <typename T>
static __device__ __forceinline__ void multiply_half(float (&S)[4][4], uint32_t keys, uint32_t rows,
                                                     int warpgroup)
{
    typedef PairKeys C;
    const uint64_t A = tile_descriptor(keys, C::PANEL_BYTES);
    const uint64_t B = tile_descriptor(rows + warpgroup * 32 * 128, C::PANEL_BYTES);
    multiply_narrow<T, 0>(S, A, B);
#pragma unroll
    for (int k = 1; k < C::D / 16; k++)
        multiply_narrow<T, 1>(S, A + row_tile_step(k, C::PANEL_BYTES),
                              B + row_tile_step(k, C::PANEL_BYTES));
    wgmma_commit();
}

/* Issues dV += P^T dO or dK += dS^T Q of this warpgroup's channels, over its own queries: P or dS
 * from registers. add_other_queries closes the group. */
template <typename T>
static __device__ __forceinline__ void
add_own_queries(float (&sum)[16][4], const uint32_t (&factor)[2][4], uint32_t rows, int warpgroup)
{
    const uint64_t B =
        tile_descriptor(rows + 2 * warpgroup * PairKeys::PANEL_BYTES, PairKeys::PANEL_BYTES);
#pragma unroll
    for (int k = 0; k < 2; k++)
        multiply_registers<T>(sum, factor[k], B + key_tile_step(2 * warpgroup + k));
}

/* And over the other warpgroup's: P or dS [64 keys][64 queries] from shared memory. */
template <typename T>
static __device__ __forceinline__ void add_other_queries(float (&sum)[16][4], uint32_t factor,
                                                         uint32_t rows, int warpgroup)
{
    typedef PairKeys C;
    const int first = 2 * (1 - warpgroup);
    const uint64_t A = tile_descriptor(factor, C::PANEL_BYTES);
    const uint64_t B = tile_descriptor(rows + 2 * warpgroup * C::PANEL_BYTES, C::PANEL_BYTES);
#pragma unroll
    for (int k = 0; k < 2; k++)
        multiply_wide<T, 1>(sum, A + row_tile_step(first + k, C::PANEL_BYTES),
                            B + key_tile_step(first + k));
    wgmma_commit();
}

/* Issues dQ = dS K over the keys of both blocks: 64 channels of the half that this block makes. */
template <typename T>
static __device__ __forceinline__ void multiply_dS_K_of_both(float (&dQ)[8][4], uint32_t smem,
                                                             int place, int rank, int warpgroup)
{
    typedef PairKeys C;
    const uint64_t A = tile_descriptor(smem + C::dS + place * C::SCORES_BYTES, C::PANEL_BYTES);
    const uint64_t A_in =
        tile_descriptor(smem + C::dS_IN + place * C::SCORES_BYTES, C::PANEL_BYTES);
    const uint64_t B =
        tile_descriptor(smem + C::K + (2 * rank + warpgroup) * C::PANEL_BYTES, C::PANEL_BYTES);
    const uint64_t B_in =
        tile_descriptor(smem + C::K_IN + warpgroup * C::PANEL_BYTES, C::PANEL_BYTES);
    multiply_transposed<T, 0>(dQ, A, B);
#pragma unroll
    for (int k = 1; k < 4; k++)
        multiply_transposed<T, 1>(dQ, A + key_tile_step(k), B + key_tile_step(k));
#pragma unroll
    for (int k = 0; k < 4; k++)
        multiply_transposed<T, 1>(dQ, A_in + key_tile_step(k), B_in + key_tile_step(k));
    wgmma_commit();
}

/* P^T or dS^T [64 keys][32 queries] as a left factor, and to the tile that the other warpgroup
 * reads. */
template <typename T>
static __device__ __forceinline__ void store_half(uint32_t (&factor)[2][4], uint32_t tile,
                                                  const float (&sum)[4][4], int warpgroup)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const uint32_t row = tile + (16 * warp + lane % 16) * 128;
    round_factor<T, PairRows>(factor, sum);
#pragma unroll
    for (int k = 0; k < 2; k++)
        store_matrices(row + ((warpgroup * 4 + k * 2 + lane / 16) ^ lane % 8) * 16, factor[k]);
    fence_async();
}

#endif
