/* SPDX-License-Identifier: MIT
 *
 * mma_gradients.cuh: the five products of a tile on the tensor cores.
 *
 * A warp owns 16 keys (or 16 * MT) and computes scores the other way round, keys times queries:
 *
 *     S^T  = K Q^T        dP^T = V dO^T         [16 keys][queries]
 *     dV  += P^T dO       dK  += dS^T Q         [16 keys][D], in registers for the whole kernel
 *
 * An accumulator of mma.m16n8k16 has the layout of the left factor of the next one (stage 03's
 * mma.cuh). With S^T, that next product is the one that wants P^T on its left: P and dS go from
 * accumulator to factor without leaving the registers. With S, rows of queries, P^T and dS^T would
 * have to be turned in shared memory.
 *
 * Only dQ = dS K is left over: it sums over keys, that is, over warps. So dS^T is written to shared
 * memory once, and the warps share out the rows and channels of dQ.
 *
 *                 left factor (ldmatrix)           right factor (ldmatrix)
 *     S^T, dP^T   K, V as they lie                 Q, dO as they lie
 *     dV, dK      P^T, dS^T from registers         dO, Q transposed on the way
 *     dQ          dS^T transposed on the way       K transposed on the way
 *
 * Interface:
 * - GradientTile: sizes. GradientBytes: what lies where in shared memory.
 * - LaneAddresses, lane_addresses: where a lane points ldmatrix at.
 * - multiply_rows: S^T or dP^T. accumulate: dV or dK. multiply_dS_K: dQ.
 * - pack_factor: accumulators to left factors. store_factor: these to shared memory.
 * An argument *_at is a constant number of bytes, added to an address that depends on the lane.
 */
#ifndef FLASH_BACKWARD_MMA_GRADIENTS_CUH
#define FLASH_BACKWARD_MMA_GRADIENTS_CUH

#include "units/mma.cuh"

/* A group is KEY_WARPS warps that share keys: one, or 2 or 4, where sums of all D channels do not
 * fit one warp's registers. Each has its part of the queries, and its part of the channels. With
 * MT = 2 a group's second 16 keys lie GROUPS * 16 after its first, behind the first 16 of all
 * groups. DEPTH: tiles of Q and dO that shared memory holds. */
template <int D_, int WARPS_, int MT_, int Br_, int ROW_WARPS_, int KEY_WARPS_, int DEPTH_>
struct GradientTile {
    static const int D = D_, WARPS = WARPS_, MT = MT_, Br = Br_, KEY_WARPS = KEY_WARPS_;
    static const int GROUPS = WARPS / KEY_WARPS, Bc = GROUPS * MT * 16, THREADS = WARPS * 32;
    static const int WARP_CHANNELS = D / KEY_WARPS, DEPTH = DEPTH_;
    /* dQ: a warp has Br / ROW_WARPS rows and D / CHANNEL_WARPS channels. */
    static const int ROW_WARPS = ROW_WARPS_, CHANNEL_WARPS = WARPS / ROW_WARPS;
    static const int dQ_M = Br / ROW_WARPS / 16, dQ_N = D / CHANNEL_WARPS / 8;
};

template <class C> struct GradientBytes {
    static const int K = 0, V = K + C::Bc * C::D * 2;           /* [Bc][D] */
    static const int STAGES = V + C::Bc * C::D * 2;             /* DEPTH x (Q, dO [Br][D]) */
    static const int dO = C::Br * C::D * 2, STAGE = 2 * dO;     /* dO within a stage */
    static const int dS = STAGES + C::DEPTH * STAGE;            /* DEPTH x dS^T [Bc][Br] */
    static const int dS_STAGE = C::Bc * C::Br * 2;              /* one of these */
    static const int P = dS + C::DEPTH * dS_STAGE;              /* P^T [Bc][Br], of groups */
    static const int STATS = P + (C::KEY_WARPS > 1) * dS_STAGE; /* DEPTH x [Br] of (lse, delta) */
    static const int STATS_STAGE = C::Br * 8;                   /* one of these */
    static const int WORDS = STATS + C::DEPTH * STATS_STAGE;    /* DEPTH x masks: PairMask */
    static const int WORDS_STAGE = (C::Bc > 64 ? C::Bc / 32 : 2) * C::Br * 4;
    static const int ALL = WORDS + C::DEPTH * WORDS_STAGE;
};

/* Where this lane points ldmatrix at, in a tile at address 0 of shared memory. Tiles start on
 * multiples of 1024 bytes, and swizzle and skip_chunks act on the bits below that: one address
 * serves K and V, one Q and dO, and the distance between them is part of the instruction. */
struct LaneAddresses {
    uint32_t left;         /* K, V: this warp's keys */
    uint32_t right;        /* Q, dO: this warp's queries */
    uint32_t turned;       /* Q, dO, transposed: this warp's channels */
    uint32_t own;          /* P, dS: this warp's keys and queries */
    uint32_t dS, K_turned; /* the factors of dQ, both transposed */
};

template <class C>
static __device__ __forceinline__ LaneAddresses lane_addresses(uint32_t smem, int thread)
{
    const int lane = thread % 32, warp = thread / 32;
    /* group: of warps with the same keys (in the kernels: of query heads with the same K and V) */
    const int group = warp / C::KEY_WARPS, part = warp % C::KEY_WARPS;
    const int row_warp = warp / C::CHANNEL_WARPS, channel_warp = warp % C::CHANNEL_WARPS;
    LaneAddresses at;
    at.left = smem + swizzle<C::D>(group * 16 + lane % 16, lane / 16);
    at.right = smem + swizzle<C::D>(lane % 8 + lane / 16 * 8, lane / 8 % 2) +
               part * (C::Br / C::KEY_WARPS) * C::D * 2;
    at.turned = smem + swizzle<C::D>(lane % 16, lane / 16 + part * (C::WARP_CHANNELS / 8));
    at.own = smem +
             swizzle<C::Br>(group * 16 + lane % 16, lane / 16 + part * (C::Br / C::KEY_WARPS / 8));
    at.dS = smem + swizzle<C::Br>(lane % 8 + lane / 16 * 8, lane / 8 % 2 + row_warp * C::dQ_M * 2);
    at.K_turned = smem + swizzle<C::D>(lane % 16, lane / 16 + channel_warp * C::dQ_N);
    return at;
}

/* acc [MT x 16 keys][QUERIES] += left [keys][D] * right^T [queries][D]. The second 16 queries lie
 * `step` bytes after the first. */
template <typename T, class C, int QUERIES>
static __device__ __forceinline__ void multiply_rows(float (&acc)[C::MT][QUERIES / 8][4],
                                                     uint32_t left, int left_at, uint32_t right,
                                                     int right_at, int step = 16 * C::D * 2)
{
#pragma unroll
    for (int k = 0; k < C::D / 16; k++) {
        uint32_t A[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
            ldmatrix_x4(A[mt],
                        skip_chunks<C::D>(left, k) + left_at + mt * C::GROUPS * 16 * C::D * 2);
#pragma unroll
        for (int n = 0; n < QUERIES / 16; n++) {
            uint32_t B[4];
            ldmatrix_x4(B, skip_chunks<C::D>(right, k) + right_at + n * step);
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++) {
                mma_16816<T>(acc[mt][2 * n], A[mt], B[0], B[1]);
                mma_16816<T>(acc[mt][2 * n + 1], A[mt], B[2], B[3]);
            }
        }
    }
}

/* Columns 16k .. 16k + 15 of an accumulator are the left factor of the next product. */
template <typename T, int MT, int QUERIES>
static __device__ __forceinline__ void pack_factor(uint32_t (&A)[QUERIES / 16][MT][4],
                                                   const float (&acc)[MT][QUERIES / 8][4])
{
#pragma unroll
    for (int k = 0; k < QUERIES / 16; k++)
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *pair = acc[mt][2 * k + e / 2] + e % 2 * 2;
                A[k][mt][e] = pack2<T>(pair[0], pair[1]);
            }
}

/* sum [MT x 16 keys][channels] += A [keys][16] * rows [16][channels]: one step of 16 queries */
template <typename T, class C>
static __device__ __forceinline__ void accumulate(float (&sum)[C::MT][C::WARP_CHANNELS / 8][4],
                                                  const uint32_t (&A)[C::MT][4], uint32_t turned,
                                                  int rows_at)
{
#pragma unroll
    for (int n = 0; n < C::WARP_CHANNELS / 16; n++) {
        uint32_t B[4];
        ldmatrix_x4_trans(B, skip_chunks<C::D>(turned, n) + rows_at);
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++) {
            mma_16816<T>(sum[mt][2 * n], A[mt], B[0], B[1]);
            mma_16816<T>(sum[mt][2 * n + 1], A[mt], B[2], B[3]);
        }
    }
}

/* P^T or dS^T of queries q0 .. of the tile, to shared memory [Bc][Br]. Registers 0 and 1 of a
 * factor are keys g and g + 8 of queries 2t, 2t + 1; 2 and 3 the same of the next eight queries. */
template <class C, int QUERIES>
static __device__ __forceinline__ void
store_factor(unsigned char *to, const uint32_t (&A)[QUERIES / 16][C::MT][4], int q0)
{
    const int lane = threadIdx.x % 32, group = threadIdx.x / 32 / C::KEY_WARPS;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int k = 0; k < QUERIES / 16; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = (mt * C::GROUPS + group) * 16 + lane / 4 + e % 2 * 8;
                *reinterpret_cast<uint32_t *>(to + swizzle<C::Br>(key, q0 / 8 + 2 * k + e / 2) +
                                              lane % 4 * 4) = A[k][mt][e];
            }
}

/* dQ [dQ_M x 16 rows][dQ_N x 8 channels] of this warp = dS [rows][Bc] * K [Bc][channels] */
template <typename T, class C>
static __device__ __forceinline__ void multiply_dS_K(float (&dQ)[C::dQ_M][C::dQ_N][4], uint32_t dS,
                                                     int dS_at, uint32_t K_turned, int K_at)
{
#pragma unroll
    for (int m = 0; m < C::dQ_M; m++)
#pragma unroll
        for (int n = 0; n < C::dQ_N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                dQ[m][n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < C::Bc / 16; k++) {
        uint32_t A[C::dQ_M][4];
#pragma unroll
        for (int m = 0; m < C::dQ_M; m++)
            ldmatrix_x4_trans(A[m], skip_chunks<C::Br>(dS, m) + dS_at + k * 16 * C::Br * 2);
#pragma unroll
        for (int n = 0; n < C::dQ_N / 2; n++) {
            uint32_t B[4];
            ldmatrix_x4_trans(B, skip_chunks<C::D>(K_turned, n) + K_at + k * 16 * C::D * 2);
#pragma unroll
            for (int m = 0; m < C::dQ_M; m++) {
                mma_16816<T>(dQ[m][2 * n], A[m], B[0], B[1]);
                mma_16816<T>(dQ[m][2 * n + 1], A[m], B[2], B[3]);
            }
        }
    }
}

#endif
