/* SPDX-License-Identifier: MIT
 *
 * mma_products.cuh: the two products of a tile, from swizzled shared memory, for 16 bits.
 *
 * ldmatrix is one instruction of a warp that loads four 8x8 matrices as fragments (mma.cuh), each
 * lane naming one 16-byte row. Which row a lane names depends on the lane alone, and the next two
 * chunks of 8 channels are one XOR away (skip_chunks): a lane keeps one address for each of Q, K
 * and V. With L the lane:
 *
 *          the four matrices of one ldmatrix            lane L names
 *     Q    rows 0-7, 8-15 of chunk 0, then of chunk 1   row L % 16, chunk L / 16
 *     K    keys 0-7 of chunk 0, of chunk 1, then 8-15   key L % 8 + L / 16 * 8, chunk L / 8 % 2
 *     V    keys 0-7, 8-15 of chunk 0, then of chunk 1   key L % 16, chunk L / 16
 *
 * They arrive as a0 .. a3 of Q, as b0, b1 of keys 0-7 and of keys 8-15, and, V being transposed on
 * the way, as b0, b1 of channels 0-7 and of channels 8-15.
 *
 * A fragment of K or V serves all m16 tiles of the warp: that is what COUNT = 2 is good for.
 *
 * Interface:
 * - TileAddresses, tile_addresses<C>: a lane's addresses.
 * - multiply_QK, multiply_PV: m16 tiles MT0 .. MT0 + COUNT - 1 of the warp.
 */
#ifndef FLASH_FORWARD_MMA_PRODUCTS_CUH
#define FLASH_FORWARD_MMA_PRODUCTS_CUH

#include "mma_rows.cuh"

/* Bytes in shared memory: Q [Br][D], then for each stage K [Bc][D] and V [Bc][D]. */
template <class C> struct TileBytes {
    static const int Q = C::Br * C::D * 2, K = C::Bc * C::D * 2, V = K;
    static const int STAGE = K + V, ALL = Q + C::STAGES * STAGE;
};

/* Where this lane points ldmatrix at: Q, and K and V of stage 0. */
struct TileAddresses {
    uint32_t Q, K, V;
};

template <class C>
static __device__ __forceinline__ TileAddresses tile_addresses(uint32_t smem, int thread)
{
    const int lane = thread % 32, K_smem = TileBytes<C>::Q, V_smem = K_smem + TileBytes<C>::K;
    TileAddresses at;
    at.Q = smem + swizzle<C::D>(thread / 32 * 16 + lane % 16, lane / 16);
    at.K = smem + K_smem + swizzle<C::D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    at.V = smem + V_smem + swizzle<C::D>(lane % 16, lane / 16);
    return at;
}

/* Channels 16k .. 16k + 15 of m16 tile mt. */
template <class C>
static __device__ __forceinline__ void load_Q(uint32_t (&Q_frag)[4], uint32_t Q_lane, int mt, int k)
{
    ldmatrix_x4(Q_frag, skip_chunks<C::D>(Q_lane, k) + mt * C::WARPS * 16 * C::D * 2);
}

/* S_reg = Q K_j^T. Q_IN_REGISTERS: Q_reg has the fragments of Q; otherwise it is not read, and they
 * are loaded here, again for each tile of keys. */
template <typename T, class C, int MT0, int COUNT, bool Q_IN_REGISTERS>
static __device__ __forceinline__ void multiply_QK(float (&S_reg)[COUNT][C::Bc / 8][4],
                                                   const uint32_t (*Q_reg)[C::MT][4],
                                                   uint32_t Q_lane, uint32_t K_lane)
{
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                S_reg[c][n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < C::D / 16; k++) {
        uint32_t Q_frag[COUNT][4];
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            if (!Q_IN_REGISTERS)
                load_Q<C>(Q_frag[c], Q_lane, MT0 + c, k);
#pragma unroll
            for (int e = 0; Q_IN_REGISTERS && e < 4; e++)
                Q_frag[c][e] = Q_reg[k][MT0 + c][e];
        }
#pragma unroll
        for (int n = 0; n < C::Bc / 16; n++) {
            uint32_t K_frag[4];
            ldmatrix_x4(K_frag, skip_chunks<C::D>(K_lane, k) + n * 16 * C::D * 2);
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                mma_16816<T>(S_reg[c][2 * n], Q_frag[c], K_frag[0], K_frag[1]);
                mma_16816<T>(S_reg[c][2 * n + 1], Q_frag[c], K_frag[2], K_frag[3]);
            }
        }
    }
}

/* O += P V_j. P_reg, rounded to 16 bits, is the left factor without a detour: columns 16k .. 16k +
 * 15 are two accumulator tiles of S side by side. */
template <typename T, class C, int MT0, int COUNT>
static __device__ __forceinline__ void
multiply_PV(TileRows<C> &rows, float (&P_reg)[COUNT][C::Bc / 8][4], uint32_t V_lane)
{
#pragma unroll
    for (int k = 0; k < C::Bc / 16; k++) {
        uint32_t P_frag[COUNT][4];
#pragma unroll
        for (int c = 0; c < COUNT; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *P_pair = P_reg[c][2 * k + e / 2] + e % 2 * 2;
                P_frag[c][e] = pack2<T>(P_pair[0], P_pair[1]);
            }
#pragma unroll
        for (int n = 0; n < C::D / 16; n++) {
            uint32_t V_frag[4];
            ldmatrix_x4_trans(V_frag, skip_chunks<C::D>(V_lane, n) + k * 16 * C::D * 2);
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                mma_16816<T>(rows.O_reg[MT0 + c][2 * n], P_frag[c], V_frag[0], V_frag[1]);
                mma_16816<T>(rows.O_reg[MT0 + c][2 * n + 1], P_frag[c], V_frag[2], V_frag[3]);
            }
        }
    }
}

#endif
