/* SPDX-License-Identifier: MIT
 *
 * few_states.cuh: how a block of few queries begins, whichever kernel it is: what it works on. And
 * how one of few_queries.cu ends: from the states of its warps to O and lse, or to the state of its
 * part.
 *
 * Needs exp2_sfu (mma.cuh or hopper.cuh).
 *
 * Interface:
 * - Work, work_of_block; KeyTiles, tiles_of_part: its keys.
 * - StateSize, merge_states: the states of all rows in shared memory, and their sum.
 */
#ifndef FLASH_FORWARD_FEW_STATES_CUH
#define FLASH_FORWARD_FEW_STATES_CUH

#include "attn_band.h"
#include "split_states.cuh"

namespace few
{

/* What a block works on: all rows of kv head h_kv of batch b, part `split` of their keys. */
struct Work {
    int b, h_kv, split;
};

static __device__ __forceinline__ Work work_of_block(const AttnArgs &a, int splits)
{
    const int head = blockIdx.x / splits, Hkv = (int)a.shape.Hkv;
    return Work{head / Hkv, head % Hkv, (int)(blockIdx.x % splits)};
}

/* Tiles begin ... end - 1 of Bc keys; all rows see all keys of those within all_from ... all_to. */
struct KeyTiles {
    int begin, end, all_from, all_to;
};

template <int Bc>
static ATTN_HD __forceinline__ KeyTiles tiles_of_part(const AttnArgs &a, AttnBand band, int split,
                                                      int splits)
{
    const int last_row = (int)a.shape.Nq - 1, last_key = (int)a.shape.Nk - 1;
    const int first = max(band.from, 0), last = min(last_row + band.to, last_key);
    const int tiles = last < first ? 0 : last / Bc - first / Bc + 1;
    const int share = (tiles + splits - 1) / splits;
    KeyTiles keys;
    keys.begin = first / Bc + split * share;
    keys.end = first / Bc + min((split + 1) * share, tiles);
    keys.all_from = max(last_row + band.from, 0);
    keys.all_to = min(band.to, last_key);
    return keys;
}

/* A state of a row: O, then m in powers of two, then l; four floats more than channels, so that
 * rows begin at different banks. */
template <int D> struct StateSize {
    static const int PITCH = D + 4;
};

/* All rows, a warp a row: the STATES of a row lie ROWS rows apart. */
template <typename T, int D, int STATES, int ROWS>
static __device__ __forceinline__ void merge_states(const float *states, const AttnArgs &a,
                                                    Work work, const SplitStates &parts, int warps)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, step = ROWS * StateSize<D>::PITCH;
    const int group = (int)(a.shape.H / a.shape.Hkv);
    const int all_rows = (int)(a.shape.B * a.shape.H * a.shape.Nq);
    for (int r = warp; r < (int)a.shape.Nq * group; r += warps) {
        const float *row = states + r * StateSize<D>::PITCH;
        float m = -INFINITY, l_row = 0.0f;
#pragma unroll
        for (int w = 0; w < STATES; w++)
            m = fmaxf(m, row[w * step + D]);
        const float base = m == -INFINITY ? 0.0f : m;
#pragma unroll
        for (int w = 0; w < STATES; w++)
            l_row += row[w * step + D + 1] * exp2_sfu(row[w * step + D] - base);
        const int i = r / group, h = work.h_kv * group + r % group;
        const float inverse = l_row == 0.0f ? 0.0f : 1.0f / l_row;
        for (int x = lane; x < a.shape.d; x += 32) {
            float O = 0.0f;
#pragma unroll
            for (int w = 0; w < STATES; w++)
                O += row[w * step + x] * exp2_sfu(row[w * step + D] - base);
            O = l_row == 0.0f ? 0.0f : O * inverse; /* nothing seen: O = 0 */
            if (parts.O)
                parts.O[((int64_t)work.split * all_rows + (work.b * a.shape.Nq + i) * a.shape.H +
                         h) *
                            a.shape.d +
                        x] = O;
            else
                ((T *)a.O.data)[tensor_offset(&a.O, work.b, i, h) + x] = T(O);
        }
        if (lane == 0) {
            const int64_t at = (work.b * a.shape.H + h) * a.shape.Nq + i;
            const float lse = l_row == 0.0f ? -INFINITY : fmaf(m, (float)M_LN2, logf(l_row));
            (parts.O ? parts.lse + (int64_t)work.split * all_rows : a.lse)[at] = lse;
        }
    }
}

} // namespace few

#endif
