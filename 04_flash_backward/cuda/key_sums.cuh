/* SPDX-License-Identifier: MIT
 *
 * key_sums.cuh: v4's tiles, and what one tile of queries adds to dK and dV of a warp's keys.
 *
 * Usually a warp has keys of its own and computes their scores with all queries of a tile, CHUNK at
 * a time. At d = 128 two warps are a pair (PAIR = 2, see v4): each has the scores of its half of
 * the queries in registers, sums with them, and then fetches the other half from shared memory.
 * Only these two have to wait for each other, and they have their own barrier for it.
 *
 * Interface:
 * - FastTile, TileFor<D, SMALL>: sizes.
 * - KeySums, add_tile.
 */
#ifndef FLASH_BACKWARD_KEY_SUMS_CUH
#define FLASH_BACKWARD_KEY_SUMS_CUH

#include "score_factors.cuh"

/* BLOCKS: how many blocks an SM shall hold. CHUNK: queries whose scores are in registers. */
template <int D_, int WARPS_, int MT_, int Br_, int ROW_WARPS_, int PAIR_, int CHUNK_, int BLOCKS_>
struct FastTile : GradientTile<D_, WARPS_, MT_, Br_, ROW_WARPS_, PAIR_> {
    static const int BLOCKS = BLOCKS_, CHUNK = CHUNK_;
    static const bool LEAN = D_ > 64; /* what follows from the lane is computed again each tile */
};

/* The static __shared__ of v4's kernel (work, walks) lies before the tiles and is rounded up to
 * their alignment of 1024. */
#define STATIC_SMEM 1024

/* SMALL: in 99 KiB of shared memory, what every GPU from sm_80 on has. The numbers of FastTile are
 * D, WARPS, MT, Br, ROW_WARPS, PAIR, CHUNK, BLOCKS; a block has WARPS / PAIR * MT * 16 keys. */
template <int D, bool SMALL> struct TileFor;
template <bool SMALL> struct TileFor<32, SMALL> {
    typedef FastTile<32, 4, 2, 64, 2, 1, 32, 2> C;
};
template <> struct TileFor<64, false> {
    typedef FastTile<64, 4, 2, 64, 2, 1, 32, 2> C;
};
template <> struct TileFor<64, true> {
    typedef FastTile<64, 4, 1, 64, 2, 1, 32, 3> C;
};
/* ROW_WARPS = 4: see v3 */
template <bool SMALL> struct TileFor<96, SMALL> {
    typedef FastTile<96, 4, 1, 64, 4, 1, 32, 2> C;
};
template <> struct TileFor<128, false> {
    typedef FastTile<128, 8, 2, 64, 2, 2, 32, 1> C;
};
template <> struct TileFor<128, true> {
    typedef FastTile<128, 4, 2, 32, 2, 2, 16, 2> C;
};
template <> struct TileFor<256, false> {
    typedef FastTile<256, 4, 1, 32, 2, 1, 32, 1> C;
};
template <> struct TileFor<256, true> {
    typedef FastTile<256, 2, 1, 16, 1, 1, 16, 1> C;
};

template <class C> struct KeySums {
    float dK[C::MT][C::WARP_CHANNELS / 8][4], dV[C::MT][C::WARP_CHANNELS / 8][4];
};

/* A barrier of the two warps that share keys. Barrier 0 is __syncthreads(), hence + 1. */
static __device__ __forceinline__ void meet_partner(int pair)
{
    asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
}

/* One tile of queries for this warp's keys: dV += P^T dO, dK += dS^T Q, and dS to shared memory.
 * run_j0: the block's first key where a masked tile has runs, -1 where it has words. */
template <typename T, class C, bool MASKED>
static __device__ __forceinline__ void add_tile(KeySums<C> &sums, const AttnArgs &a,
                                                const LaneAddresses &at, unsigned char *smem,
                                                int stage, int run_j0)
{
    typedef GradientBytes<C> Bytes;
    const float2 *stats = (const float2 *)(smem + Bytes::STATS + stage * Bytes::STATS_STAGE);
    const PairMask mask = {(const uint32_t *)(smem + Bytes::WORDS + stage * Bytes::WORDS_STAGE),
                           run_j0};
    unsigned char *dS_smem = smem + Bytes::dS + stage * Bytes::dS_STAGE;
    const int CHUNK = MASKED && C::D > 64 ? 16 : C::CHUNK; /* masks need registers too */
    const int OWN = C::Br / C::PAIR, half = threadIdx.x / 32 % C::PAIR;
    /* Masked: the same code for each chunk, or the loop would not fit the instruction cache. */
#pragma unroll(MASKED ? 1 : OWN / CHUNK)
    for (int down = 0; down < OWN; down += CHUNK) {
        ScoreFactors<C, CHUNK> f;
        const int q0 = half * OWN + down;
        const bool any =
            compute_scores<T, C, MASKED, CHUNK>(f, a, at, stats, mask, q0, down * C::D * 2);
        if (C::PAIR == 2)
            store_factor<C, CHUNK>(smem + Bytes::P, f.P, q0);
        if (any) {
#pragma unroll
            for (int k = 0; k < CHUNK / 16; k++)
                accumulate<T, C>(sums.dV, f.P[k], at.turned + half * OWN * C::D * 2,
                                 Bytes::STAGES + Bytes::dO + (down + k * 16) * C::D * 2);
        }
        store_factor<C, CHUNK>(dS_smem, f.dS, q0);
        if (any) {
#pragma unroll
            for (int k = 0; k < CHUNK / 16; k++)
                accumulate<T, C>(sums.dK, f.dS[k], at.turned + half * OWN * C::D * 2,
                                 Bytes::STAGES + (down + k * 16) * C::D * 2);
        }
    }
    if (C::PAIR == 2) {
        meet_partner(threadIdx.x / 64);
        const int first = (1 - half) * OWN * C::D * 2;
#pragma unroll
        for (int k = 0; k < OWN / 16; k++) {
            uint32_t P_frag[C::MT][4], dS_frag[C::MT][4];
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++) {
                const uint32_t from =
                    skip_chunks<C::Br>(at.theirs, k) + mt * C::GROUPS * 16 * C::Br * 2;
                ldmatrix_x4(P_frag[mt], from + Bytes::P);
                ldmatrix_x4(dS_frag[mt], from + Bytes::dS + stage * Bytes::dS_STAGE);
            }
            accumulate<T, C>(sums.dV, P_frag, at.turned + first,
                             Bytes::STAGES + Bytes::dO + k * 16 * C::D * 2);
            accumulate<T, C>(sums.dK, dS_frag, at.turned + first,
                             Bytes::STAGES + k * 16 * C::D * 2);
        }
    }
}

#endif
