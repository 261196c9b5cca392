/* SPDX-License-Identifier: MIT
 *
 * key_sums.cuh: sizes of tiles, and what one tile of queries adds to dK and dV of a warp's keys.
 *
 * Usually a warp has keys of its own and computes their scores with all queries of a tile, CHUNK at
 * a time. At d = 128 two warps share keys (KEY_WARPS = 2, as in the rung v9_warp_pairs): each has
 * the scores of its half of the queries in registers, sums with them, and then fetches the other
 * half from shared memory. At d = 256 four do, with a quarter each (two, in 99 KiB). Here only
 * these wait for each other, and they have their own barrier for it. The whole block meets once or
 * twice a tile, for its loads and for dQ.
 *
 * Interface:
 * - FastTile, TileFor<D, SMALL>: sizes.
 * - KeySums, clear_sums, add_tile; seen_halves, add_half_tile.
 */
#ifndef FLASH_BACKWARD_KEY_SUMS_CUH
#define FLASH_BACKWARD_KEY_SUMS_CUH

#include "score_factors.cuh"

/* BLOCKS: how many blocks an SM shall hold. CHUNK: queries whose scores are in registers. */
template <int D_, int WARPS_, int MT_, int Br_, int ROW_WARPS_, int KEY_WARPS_, int CHUNK_,
          int BLOCKS_, int DEPTH_ = 2>
struct FastTile : GradientTile<D_, WARPS_, MT_, Br_, ROW_WARPS_, KEY_WARPS_, DEPTH_> {
    static const int BLOCKS = BLOCKS_, CHUNK = CHUNK_;
    static const bool LEAN = D_ > 64; /* what follows from the lane is computed again each tile */
};

/* The static __shared__ of the kernel (work, walks) lies before the tiles and is rounded up to
 * their alignment of 1024. */
#define STATIC_SMEM 1024

/* SMALL: in 99 KiB of shared memory, what every GPU from sm_80 on has. The numbers of FastTile are
 * D, WARPS, MT, Br, ROW_WARPS, KEY_WARPS, CHUNK, BLOCKS, DEPTH; a block has WARPS / KEY_WARPS *
 * MT * 16 keys. */
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
/* ROW_WARPS = 4: each warp has all channels of its rows of dQ. Half of them would start at chunk 6,
 * and skip_chunks of 192-byte rows needs a start on a multiple of 4 chunks. */
template <bool SMALL> struct TileFor<96, SMALL> {
    typedef FastTile<96, 4, 1, 64, 4, 1, 32, 2> C;
};
template <> struct TileFor<128, false> {
    typedef FastTile<128, 8, 2, 64, 2, 2, 32, 1> C;
};
template <> struct TileFor<128, true> {
    typedef FastTile<128, 4, 2, 32, 2, 2, 16, 2> C;
};
/* One tile of Q and dO at a time: the next one arrives during dQ. Where two fit (219 KiB) they
 * gained nothing (docs/lab/04_did_not_pay.md). */
template <> struct TileFor<256, false> {
    typedef FastTile<256, 8, 2, 64, 2, 4, 16, 1, 1> C;
};
template <> struct TileFor<256, true> {
    typedef FastTile<256, 4, 1, 32, 2, 2, 16, 1, 1> C;
};

template <class C> struct KeySums {
    float dK[C::MT][C::WARP_CHANNELS / 8][4], dV[C::MT][C::WARP_CHANNELS / 8][4];
};

template <class C> static __device__ __forceinline__ void clear_sums(KeySums<C> &sums)
{
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int n = 0; n < C::WARP_CHANNELS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums.dK[mt][n][e] = sums.dV[mt][n][e] = 0.0f;
}

/* The first or the second 16 keys of each group, as a tile of its own. What lies where in shared
 * memory stays as it is. */
template <class C> struct HalfTile : C {
    static const int MT = 1;
};

/* Bit 0: some pair with the keys of mt = 0 is seen, bit 1: with those of mt = 1. For masked tiles
 * with runs. All warps ask, since that is sooner than to wait for one. */
template <class C> static __device__ __forceinline__ uint32_t seen_halves(const PairMask &mask)
{
    const int j_half = mask.run_j0 + C::GROUPS * 16;
    uint32_t halves = 0;
#pragma unroll
    for (int r = threadIdx.x % 32; r < C::Br; r += 32) {
        const int2 run = *reinterpret_cast<const int2 *>(mask.words + 2 * r);
        halves |= (uint32_t)(run.x < j_half && run.y >= mask.run_j0 && run.x <= run.y) |
                  (uint32_t)(run.y >= j_half && run.x < mask.run_j0 + C::Bc && run.x <= run.y) << 1;
    }
    return any_lane_bits(halves);
}

/* One tile of queries for this warp's keys: dV += P^T dO, dK += dS^T Q, and dS to shared memory.
 * run_j0: the block's first key where a masked tile has runs, -1 where it has words. */
template <typename T, class C, TileCode CODE>
static __device__ __forceinline__ void
add_tile(float (&dK)[C::MT][C::WARP_CHANNELS / 8][4], float (&dV)[C::MT][C::WARP_CHANNELS / 8][4],
         const AttnArgs &a, const LaneAddresses &at, unsigned char *smem, int stage, int run_j0,
         int keys_at = 0)
{
    typedef GradientBytes<C> Bytes;
    const float2 *stats = (const float2 *)(smem + Bytes::STATS + stage * Bytes::STATS_STAGE);
    const PairMask mask = {(const uint32_t *)(smem + Bytes::WORDS + stage * Bytes::WORDS_STAGE),
                           run_j0};
    unsigned char *dS_smem = smem + Bytes::dS + stage * Bytes::dS_STAGE + keys_at * C::Br * 2;
    unsigned char *P_smem = smem + Bytes::P + keys_at * C::Br * 2;
    const int CHUNK = CODE == TILE_GENERAL && C::D > 64 ? 16 : C::CHUNK; /* bits need registers */
    const int OWN = C::Br / C::KEY_WARPS, part = threadIdx.x / 32 % C::KEY_WARPS;
    /* Masked: the same code for each chunk, or the loop would not fit the instruction cache. */
#pragma unroll(CODE != TILE_CLEAN ? 1 : OWN / CHUNK)
    for (int down = 0; down < OWN; down += CHUNK) {
        ScoreFactors<C, CHUNK> f;
        const int q0 = part * OWN + down;
        const bool any = compute_scores<T, C, CODE, CHUNK>(f, a, at, stats, mask, q0,
                                                           down * C::D * 2, P_smem, dS_smem);
        if (C::KEY_WARPS > 1)
            store_factor<C, CHUNK>(P_smem, f.P, q0);
        if (any) {
#pragma unroll
            for (int k = 0; k < CHUNK / 16; k++)
                accumulate<T, C>(dV, f.P[k], at.turned + part * OWN * C::D * 2,
                                 Bytes::STAGES + Bytes::dO + (down + k * 16) * C::D * 2);
        }
        store_factor<C, CHUNK>(dS_smem, f.dS, q0);
        if (any) {
#pragma unroll
            for (int k = 0; k < CHUNK / 16; k++)
                accumulate<T, C>(dK, f.dS[k], at.turned + part * OWN * C::D * 2,
                                 Bytes::STAGES + (down + k * 16) * C::D * 2);
        }
    }
    if (C::KEY_WARPS > 1)
        meet_group<C>();
#pragma unroll
    for (int other = 1; other < C::KEY_WARPS; other++) { /* the queries of part ^ other */
        const uint32_t theirs = at.own ^ (uint32_t)(other * OWN * 2);
        const int first = (part ^ other) * OWN * C::D * 2;
#pragma unroll
        for (int k = 0; k < OWN / 16; k++) {
            uint32_t P_frag[C::MT][4], dS_frag[C::MT][4];
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++) {
                const uint32_t from =
                    skip_chunks<C::Br>(theirs, k) + mt * C::GROUPS * 16 * C::Br * 2;
                ldmatrix_x4(P_frag[mt], from + Bytes::P);
                ldmatrix_x4(dS_frag[mt], from + Bytes::dS + stage * Bytes::dS_STAGE);
            }
            accumulate<T, C>(dV, P_frag, at.turned + first,
                             Bytes::STAGES + Bytes::dO + k * 16 * C::D * 2);
            accumulate<T, C>(dK, dS_frag, at.turned + first, Bytes::STAGES + k * 16 * C::D * 2);
        }
    }
}

/* The same for a tile of which only the keys of mt = HALF are seen: where a block's first queries
 * see the first half of its keys and its last ones the second. Zeros for the other half of dS. */
template <typename T, class C, int HALF>
static __device__ __forceinline__ void add_half_tile(KeySums<C> &sums, const AttnArgs &a,
                                                     LaneAddresses at, unsigned char *smem,
                                                     int stage, int run_j0)
{
    typedef GradientBytes<C> Bytes;
    typedef float Sums[1][C::WARP_CHANNELS / 8][4];
    const int KEYS = C::GROUPS * 16, BYTES = KEYS * C::Br * 2;
    unsigned char *other = smem + Bytes::dS + stage * Bytes::dS_STAGE + (1 - HALF) * BYTES;
    for (int byte = threadIdx.x * 16; byte < BYTES; byte += C::THREADS * 16)
        *reinterpret_cast<uint4 *>(other + byte) = make_uint4(0, 0, 0, 0);
    at.left += HALF * KEYS * C::D * 2;
    at.own += HALF * BYTES;
    add_tile<T, HalfTile<C>, TILE_RUNS>(reinterpret_cast<Sums &>(sums.dK[HALF]),
                                        reinterpret_cast<Sums &>(sums.dV[HALF]), a, at, smem, stage,
                                        run_j0 + HALF * KEYS, HALF * KEYS);
}

#endif
