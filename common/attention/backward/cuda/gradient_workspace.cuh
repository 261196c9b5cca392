/* SPDX-License-Identifier: MIT
 *
 * gradient_workspace.cuh: what the 16-bit kernel keeps in device memory beside its inputs
 * and outputs.
 *
 * dQ. Every block of keys adds a tile of dQ to device memory. In rows and columns, a warp's add
 * would touch eight rows, 32 bytes of each. But nobody reads this dQ before it is complete, so it
 * may lie in any order: here, in that of the accumulators. Four floats a lane, 32 lanes side by
 * side: a warp adds 512 neighbouring bytes at a time. A last kernel puts the elements where they
 * belong, multiplies by the scale and rounds.
 *
 *     fragments [B][H][Tr][WARPS][dQ_M][dQ_N][32 lanes][4]
 *
 * Stats. For each row lse and delta, side by side; padded to whole tiles, so that tails need no
 * care: a row that does not exist or sees nothing has (+inf, 0), and exp2(s - inf) = 0.
 *
 *     stats [B][H][Tr * Br] of (lse * log2(e), delta)
 *
 * Turns, for --deterministic: which tile of keys added last to each warp's part of dQ, as its
 * number plus 1; 0: none yet.
 *
 *     turns [B][H][Tr][WARPS], ticket [1]
 *
 * Interface:
 * - GradientWorkspace, place_workspace, place_tables.
 * - prepare_kernel: stats, walk tables, and zeros in fragments and turns. positions_kernel: walk
 *   tables and turns for another block of keys.
 * - add_fragments: one add of a warp. finish_kernel: fragments to dQ or to the sums.
 */
#ifndef FLASH_BACKWARD_GRADIENT_WORKSPACE_CUH
#define FLASH_BACKWARD_GRADIENT_WORKSPACE_CUH

#include "attention/forward/cuda/dispatch.cuh"
#include "attn_pairs.h"
#include "mma_gradients.cuh"
#include "row_walk.cuh"

struct GradientWorkspace {
    WalkTables tables;
    float2 *stats;
    float *fragments;
    int *turns, *ticket; /* NULL: tiles of keys add in any order */
    int64_t turn_count;
};

/* The next `bytes` of a workspace, on a multiple of 256. */
static void *take_bytes(size_t *used, void *workspace, size_t bytes)
{
    void *place = workspace ? (char *)workspace + *used : NULL;
    *used += (bytes + 255) / 256 * 256;
    return place;
}

/* memory NULL: only the size counts, which is returned. */
template <class C> static size_t place_tables(WalkTables *w, const AttnShape *n, void *memory)
{
    const int Tr = tile_count(n->Nq, C::Br), Tc = tile_count(n->Nk, C::Bc);
    size_t used = 0;
    w->Tr = Tr;
    w->Tc = Tc;
    w->rows = (AttnRange *)take_bytes(&used, memory, (size_t)Tr * sizeof(AttnRange));
    w->keys = (AttnRange *)take_bytes(&used, memory, (size_t)Tc * sizeof(AttnRange));
    w->segments = (int *)take_bytes(&used, memory, (size_t)Tc * sizeof(int));
    w->runs = (int2 *)take_bytes(&used, memory, (size_t)RUN_SEGMENTS * Tr * C::Br * sizeof(int2));
    w->looks = (int4 *)take_bytes(&used, memory, (size_t)Tc * sizeof(int4));
    return used;
}

/* workspace NULL, as above. */
template <class C>
static size_t place_workspace(GradientWorkspace *w, const AttnShape *n, void *workspace,
                              bool in_turns)
{
    const int Tr = tile_count(n->Nq, C::Br);
    const int64_t rows = n->B * n->H * Tr * C::Br;
    size_t used = 0;
    w->turn_count = n->B * n->H * Tr * C::WARPS;
    w->fragments = (float *)take_bytes(&used, workspace, (size_t)rows * C::D * sizeof(float));
    w->stats = (float2 *)take_bytes(&used, workspace, (size_t)rows * sizeof(float2));
    used += place_tables<C>(&w->tables, n, workspace ? (char *)workspace + used : NULL);
    w->turns = NULL;
    if (in_turns)
        w->turns = (int *)take_bytes(&used, workspace, (size_t)(w->turn_count + 1) * sizeof(int));
    w->ticket = w->turns ? w->turns + w->turn_count : NULL;
    return used;
}

/* Lanes that share a row in prepare_kernel: each takes 16 bytes of O and dO, so that a warp has
 * several rows at a time and none of its lanes is idle. */
template <int D> struct PrepareLanes {
    static const int LANES = D <= 32 ? 4 : D <= 64 ? 8 : D <= 128 ? 16 : 32;
};

/* delta of row i of head (b, h), by LANES neighbouring lanes of a warp. */
template <typename T, int LANES>
static __device__ __forceinline__ float delta_of_row(const AttnArgs &a, int b, int h, int i,
                                                     bool aligned)
{
    const int lane = threadIdx.x % LANES, d = (int)a.shape.d;
    const T *O = (const T *)a.O.data + tensor_offset(&a.O, b, i, h);
    const T *dO = (const T *)a.dO.data + tensor_offset(&a.dO, b, i, h);
    float sum = 0.0f;
    if (aligned) {
        for (int x = lane * 8; x < d; x += LANES * 8) {
            const uint4 O_8 = *(const uint4 *)(O + x), dO_8 = *(const uint4 *)(dO + x);
            const T *O_x = (const T *)&O_8, *dO_x = (const T *)&dO_8;
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum += float(O_x[e]) * float(dO_x[e]);
        }
    } else {
        for (int x = lane; x < d; x += LANES)
            sum += float(O[x]) * float(dO[x]);
    }
#pragma unroll
    for (int mask = LANES / 2; mask > 0; mask /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    return sum;
}

/* The walk tables, and turns from 0, by the first `blocks` blocks of 256 threads. */
template <class C>
static __device__ __forceinline__ void note_walk(const AttnArgs &a, const GradientWorkspace &w,
                                                 int blocks)
{
    const int thread = (int)(blockIdx.x * 256 + threadIdx.x), threads = blocks * 256;
    const int items = max(w.tables.Tr * C::Br, w.tables.Tc);
#pragma unroll 1
    for (int j = thread / 32; j < w.tables.Tc; j += threads / 32)
        note_look<C::Br, C::Bc>(w.tables, a, j);
#pragma unroll 1
    for (int item = thread; item < items; item += threads)
        note_positions<C::Br, C::Bc>(w.tables, a, item);
    if (w.turns)
#pragma unroll 1
        for (int64_t turn = thread; turn <= w.turn_count; turn += threads)
            w.turns[turn] = 0; /* the last one is the ticket */
}

/* Blocks that note the walk: an entry a thread. */
static int walk_blocks(const WalkTables &tables, int Br)
{
    const int items = tables.Tr * Br > tables.Tc ? tables.Tr * Br : tables.Tc;
    return (items + 255) / 256;
}

/* Another block of keys for the same queries: stats and fragments stay. */
template <class C>
static __global__ void __launch_bounds__(256)
    positions_kernel(const __grid_constant__ AttnArgs a, GradientWorkspace w)
{
    note_walk<C>(a, w, (int)gridDim.x);
}

/* Rows of [B][H][Tr * Br], by the blocks behind the first walk_blocks, which note the walk. delta
 * NULL: computed here from O and dO. 6 blocks an SM: to move memory takes many threads, so a walk
 * that wants more registers than that leaves has to spill. Rows fit 32 bits: 2^32 of them have more
 * bytes than a GPU. */
template <typename T, class C>
static __global__ void __launch_bounds__(256, 6)
    prepare_kernel(const __grid_constant__ AttnArgs a, const float *delta, GradientWorkspace w,
                   int walk_blocks, bool aligned)
{
    if (blockIdx.x < walk_blocks) {
        note_walk<C>(a, w, walk_blocks);
        return;
    }
    const int LANES = PrepareLanes<C::D>::LANES;
    const uint32_t row = (blockIdx.x - walk_blocks) * (256 / LANES) + threadIdx.x / LANES;
    const uint32_t rows_padded = (uint32_t)(w.tables.Tr * C::Br), H = (uint32_t)a.shape.H;
    const int lane = threadIdx.x % LANES;
    const int head = (int)(row / rows_padded), i = (int)(row % rows_padded);
    const int b = (int)(head / H), h = (int)(head % H);
    if (b >= a.shape.B) /* rows come in whole tiles: all lanes of a warp are inside or none */
        return;
    for (int x = lane * 4; x < C::D; x += LANES * 4)
        *(float4 *)(w.fragments + (int64_t)row * C::D + x) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float2 pair = make_float2(INFINITY, 0.0f);
    const int inside = min(i, (int)a.shape.Nq - 1); /* a row past the end: its lanes go along */
    const int64_t at = (int64_t)head * a.shape.Nq + inside;
    const float delta_i = delta ? delta[at] : delta_of_row<T, LANES>(a, b, h, inside, aligned);
    const float lse = a.lse[at];
    if (i < a.shape.Nq && lse != -INFINITY)
        pair = make_float2(lse * (float)M_LOG2E, delta_i);
    if (lane == 0)
        w.stats[row] = pair;
}

/* In memory += c. From sm_90 on one instruction adds four floats. */
static __device__ __forceinline__ void add_4(float *to, const float (&c)[4])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(c[0]), "f"(c[1]),
                 "f"(c[2]), "f"(c[3])
                 : "memory");
#else
#pragma unroll
    for (int e = 0; e < 4; e++)
        atomicAdd(to + e, c[e]);
#endif
}

/* to: the first float of this tile. */
template <class C>
static __device__ __forceinline__ void add_fragments(float *to,
                                                     const float (&dQ)[C::dQ_M][C::dQ_N][4])
{
    to += (threadIdx.x / 32 * (C::dQ_M * C::dQ_N) * 32 + threadIdx.x % 32) * 4;
#pragma unroll
    for (int m = 0; m < C::dQ_M; m++)
#pragma unroll
        for (int n = 0; n < C::dQ_N; n++)
            add_4(to + (m * C::dQ_N + n) * 128, dQ[m][n]);
}

/* Eight channels of a row of dQ, scaled, to the tensor or (sum not NULL) added to the sums. */
template <typename T>
static __device__ __forceinline__ void finish_row(const AttnArgs &a, float (&dQ_x)[8], float *sum,
                                                  int b, int i, int h, int x0, bool aligned)
{
    const int d = (int)a.shape.d;
    T *to = (T *)a.dQ.data + tensor_offset(&a.dQ, b, i, h) + x0;
    if (!sum && aligned) {
        uint32_t packed[4];
#pragma unroll
        for (int t = 0; t < 4; t++)
            packed[t] = pack2<T>(dQ_x[2 * t] * a.scale, dQ_x[2 * t + 1] * a.scale);
        *(uint4 *)to = make_uint4(packed[0], packed[1], packed[2], packed[3]);
        return;
    }
#pragma unroll
    for (int x = 0; x < 8; x++) {
        if (x0 + x < d && sum)
            sum[((b * a.shape.Nq + i) * a.shape.H + h) * d + x0 + x] += dQ_x[x] * a.scale;
        else if (x0 + x < d)
            to[x] = T(dQ_x[x] * a.scale);
    }
}

/* A thread takes what four lanes have of an n8 tile: eight channels of row g and of row g + 8. */
template <typename T, class C>
static __global__ void __launch_bounds__(256)
    finish_kernel(const __grid_constant__ AttnArgs a, GradientWorkspace w, float *sum, bool aligned)
{
    const int CHUNKS = C::D / 8, ITEMS = C::Br / 2 * CHUNKS;                   /* of a tile */
    const uint32_t item = blockIdx.x * 256 + threadIdx.x, tile = item / ITEMS; /* 16 floats each */
    const int chunk = (int)(item % ITEMS) % CHUNKS, pair = (int)(item % ITEMS) / CHUNKS;
    const int Tr = w.tables.Tr, H = (int)a.shape.H;
    const int head = (int)(tile / (uint32_t)Tr), b = head / H, h = head % H;
    if (b >= a.shape.B || chunk * 8 >= a.shape.d)
        return;
    /* chunk: column of warps, n8 tile. pair: row of warps, m16 tile, g. */
    const int g = pair % 8, m = pair / 8 % C::dQ_M;
    const int channel_warp = chunk / C::dQ_N, n = chunk % C::dQ_N;
    const int row_warp = pair / 8 / C::dQ_M, warp = row_warp * C::CHANNEL_WARPS + channel_warp;
    const float *at = w.fragments + (int64_t)tile * (C::Br * C::D) +
                      (((warp * C::dQ_M + m) * C::dQ_N + n) * 32 + 4 * g) * 4;
    float low[8], high[8]; /* of rows g and g + 8 */
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const float4 lane = *(const float4 *)(at + 4 * t);
        low[2 * t] = lane.x;
        low[2 * t + 1] = lane.y;
        high[2 * t] = lane.z;
        high[2 * t + 1] = lane.w;
    }
    const int i = (int)(tile % (uint32_t)Tr) * C::Br + (row_warp * C::dQ_M + m) * 16 + g;
    if (i < a.shape.Nq)
        finish_row<T>(a, low, sum, b, i, h, chunk * 8, aligned);
    if (i + 8 < a.shape.Nq)
        finish_row<T>(a, high, sum, b, i + 8, h, chunk * 8, aligned);
}

#endif
