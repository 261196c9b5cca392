/* SPDX-License-Identifier: MIT
 *
 * hopper_16bit.cuh: the library's kernel for f16 and bf16 on a GPU of compute capability 9.0: the
 * loop of the rungs v13 and v14 for any head dimension, stride order and state.
 *
 * What the rungs do not have:
 *
 *   - Each warpgroup has key tiles of its own. A block loads what any of its rows sees; a warpgroup
 *     lets the tiles pass that its own 64 rows do not see. With 256 rows and a causal mask of 1024
 *     keys that is 15 % of all products.
 *   - Head dimensions up to 64, 128, 256: the copy engine fills in zeros (hopper_tensor.cuh). At
 *     D = 256 there is no room in shared memory for O beside Q: O leaves from registers, so that
 *     the next Q need not wait for it.
 *   - Rows may start from a state and end in one (block_resume.h).
 *   - O of any strides: where the engine cannot write it, threads do.
 *   - Heads of a group can be folded into the rows: rows 0 to 3 of a tile are query 0 of four heads
 *     that read one kv head, rows 4 to 7 query 1 ... Then a tile spans a quarter of the positions:
 *     few queries fill it, and a mask cuts off less of it. The engine fetches it in that order.
 *   - A row tile without keys costs nothing where the state stays as it is.
 *
 * Blocks stay and take one row tile after another, or each takes one: that is the grid's size.
 *
 * Interface:
 * - HopperTile: the constants of one kernel. HopperWork: what a launch works on.
 * - launch_hopper<T, C>.
 */
#ifndef FLASH_FORWARD_HOPPER_16BIT_CUH
#define FLASH_FORWARD_HOPPER_16BIT_CUH

#include "block_resume.h"
#include "hopper_tensor.cuh"
#include "key_rule.h"
#include "units/transpose_quad.cuh"
#include "units/wgmma_rows.cuh"

/* As the rungs' tile. The warpgroup that loads does more here, and has more registers where there
 * are some. setmaxnreg deals out what the block was launched with: the same for all its threads, a
 * multiple of 8. Who asks for more than that waits for ever. */
template <int D, int Bc, int CONSUMERS, int STAGES>
struct HopperTile : WgmmaTile<D, Bc, CONSUMERS, STAGES, (D < 256)> {
    static const bool PLACE_OF_O = D < 256; /* in shared memory */
    static const int PANELS = D / PANEL, THREADS = 128 * (1 + CONSUMERS);
    static const int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
    static const int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : CONSUMERS == 3 ? 160 : 112;
    static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <=
                      (1 + CONSUMERS) * (65536 / THREADS / 8 * 8),
                  "registers that the block does not have");
};

/* Where rows come from and where they go. O_state NULL: from nothing to O. last: from the state to
 * O; else to the state. rows.m NULL: the state is (O, lse). */
struct HopperWork {
    KeyRule rule;
    float *O_state;
    FlashRows rows;
    FlashHeads heads;
    int fold;    /* rows of a tile are queries of 2^fold heads: of which `heads` is a multiple */
    int section; /* such bundles of heads whose row tiles are taken in turn */
    bool last, O_wide; /* O: 16 bytes at a time may be written */
    int missing;       /* rows of a head's first tile that do not exist: whole warpgroups */
    bool level;        /* all row tiles see equally many keys */
};

/* Batch, query head, the kv head that it reads, first row. */
struct QueryTile {
    int b, h, h_kv, i0;
};

/* Key tiles begin ... end - 1 of a row tile; those from full_begin to full_end - 1 are seen in full
 * by all its rows. */
struct SeenKeys {
    int begin, end, full_begin, full_end;
};

static __device__ __forceinline__ bool all_seen(const SeenKeys &seen, int j)
{
    return j >= seen.full_begin && j < seen.full_end;
}

/* How many rows a bundle of heads has. */
static __device__ __forceinline__ int rows_of(const AttnArgs &a, const HopperWork &work)
{
    return (int)a.shape.Nq << work.fold;
}

/* Row tile number `turn` of this block, or false: it has done its share. Blocks take the tiles in
 * order, from left to right and then from right to left: who had the longest in one turn has the
 * shortest in the next. Within a section the longest tiles of all heads come first.
 *
 * Where tiles are equally long, only those with missing rows are shorter. A head has one of them:
 * with 6 tiles a head and 132 blocks the same blocks would get it each turn, and all others none.
 * So each block moves on by one place from turn to turn. (Tiles of 64, 128 and 256 rows divide most
 * lengths; asking costs them registers of one bank, 1 % at d = 64.)
 *
 * Warpgroups without rows are the first ones of a head's first tile: their rows are negative. Under
 * a causal mask this tile sees the fewest keys. In the last tile, one warpgroup alone would go
 * through all keys of the head, and nothing would hide its waits. */
template <class C>
static __device__ __forceinline__ bool tile_of_turn(QueryTile &tile, const AttnArgs &a,
                                                    const HopperWork &work, int turn)
{
    const int tiles = (rows_of(a, work) + C::Br - 1) / C::Br, H = (int)a.shape.H;
    const int bundles = work.heads.count >> work.fold;
    const int place = C::CONSUMERS == 3 && work.level ? (blockIdx.x + turn) % gridDim.x
                      : turn & 1                      ? gridDim.x - 1 - blockIdx.x
                                                      : blockIdx.x;
    const int index = turn * gridDim.x + place;
    const int first = index / (tiles * work.section) * work.section; /* bundle of the section */
    const int here = min(work.section, bundles - first), rest = index - first * tiles;
    if (index >= tiles * bundles)
        return false;
    const int head = work.heads.first + ((first + rest % here) << work.fold);
    tile.b = head / H;
    tile.h = head % H;
    tile.h_kv = tile.h / (H / (int)a.shape.Hkv);
    tile.i0 = (tiles - 1 - rest / here) * C::Br - work.missing;
    return true;
}

/* Key tiles of queries i0 ... i_last. */
template <class C>
static __device__ __forceinline__ SeenKeys keys_of_queries(const KeyRule &rule, int i0, int i_last)
{
    const int p0 = row_position(&rule, i0), p_last = row_position(&rule, i_last);
    const int first = first_key(&rule, p0), last = last_key(&rule, p_last);
    SeenKeys seen;
    seen.begin = first / C::Bc;
    seen.end = last < first ? seen.begin : last / C::Bc + 1;
    seen.full_begin = (first_key(&rule, p_last) + C::Bc - 1) / C::Bc;
    seen.full_end = (last_key(&rule, p0) + 1) / C::Bc;
    return seen;
}

/* Key tiles of rows i0 ... i0 + count - 1, as many of them as there are. */
template <class C>
static __device__ __forceinline__ SeenKeys keys_of_group(const AttnArgs &a, const HopperWork &work,
                                                         int i0, int count)
{
    const int i_first = max(i0, 0), i_last = min(i0 + count, rows_of(a, work)) - 1;
    if (i_last < i_first)
        return SeenKeys{0, 0, 0, 0};
    return keys_of_queries<C>(work.rule, i_first >> work.fold, i_last >> work.fold);
}

/* Those of a warpgroup: a part of the block's. */
static __device__ __forceinline__ SeenKeys within(SeenKeys mine, const SeenKeys &block)
{
    mine.begin = min(max(mine.begin, block.begin), block.end);
    mine.end = min(max(mine.end, mine.begin), block.end);
    return mine;
}

/* The next row tile of this block that has something to do, and its keys; turn counts on. */
template <class C>
static __device__ __forceinline__ bool next_work(QueryTile &tile, SeenKeys &seen, int &turn,
                                                 const AttnArgs &a, const HopperWork &work)
{
    while (tile_of_turn<C>(tile, a, work, turn)) {
        turn++;
        seen = keys_of_group<C>(a, work, tile.i0, C::Br);
        if (seen.begin < seen.end || !work.O_state || work.last)
            return true;
    }
    return false;
}

/* By one thread: Q of all consumers. */
template <class C>
static __device__ __forceinline__ void load_Q(const TileMaps &maps, const QueryTile &tile, int fold,
                                              uint32_t smem)
{
    barrier_expect(smem + C::Q_FULL, C::CONSUMERS * C::Q_BYTES);
    for (int group = 0; group < C::CONSUMERS; group++)
        load_rows<C::PANELS>(smem + group * C::Q_BYTES, C::Q_PANEL, &maps.Q, tile.b, tile.h,
                             (tile.i0 + 64 * group) >> fold, smem + C::Q_FULL);
}

/* By one thread: K and V, tile after tile, each as soon as its stage is free. */
template <class C>
static __device__ __forceinline__ void load_keys(const TileMaps &maps, const QueryTile &tile,
                                                 const SeenKeys &seen, uint32_t smem,
                                                 RingPlace &place)
{
#pragma unroll 1
    for (int j = seen.end - 1; j >= seen.begin; j--) {
        const uint32_t at = place.stage * C::K_BYTES, barrier = smem + 8 * place.stage;
        barrier_wait(barrier + C::K_FREE, place.parity ^ 1, WAIT_FREE_K);
        barrier_expect(barrier + C::K_FULL, C::K_BYTES);
        load_rows<C::PANELS>(smem + C::K + at, C::K_PANEL, &maps.K, tile.b, tile.h_kv, j * C::Bc,
                             barrier + C::K_FULL);
        barrier_wait(barrier + C::V_FREE, place.parity ^ 1, WAIT_FREE_V);
        barrier_expect(barrier + C::V_FULL, C::K_BYTES);
        load_rows<C::PANELS>(smem + C::V + at, C::K_PANEL, &maps.V, tile.b, tile.h_kv, j * C::Bc,
                             barrier + C::V_FULL);
        advance<C>(place);
    }
}

/* release for a warp that has multiplied nothing: all its lanes must have seen that the stage is
 * full before one of them gives it back. Who comes too late would wait for a phase that is gone. */
static __device__ __forceinline__ void release_unused(uint32_t barrier)
{
    __syncwarp();
    release(barrier);
}

/* `count` tiles that this warpgroup does not see, and others of the block do. */
template <class C>
static __device__ __forceinline__ void let_pass(uint32_t smem, RingPlace &now, int count)
{
#pragma unroll 1
    for (; count > 0; count--) {
        barrier_wait(smem + C::K_FULL + 8 * now.stage, now.parity, WAIT_K);
        release_unused(smem + C::K_FREE + 8 * now.stage);
        barrier_wait(smem + C::V_FULL + 8 * now.stage, now.parity, WAIT_V);
        release_unused(smem + C::V_FREE + 8 * now.stage);
        advance<C>(now);
    }
}

/* O += P V_j as a group; 128 channels an instruction at most. */
template <typename T, class C>
static __device__ __forceinline__ void add_PV(WarpgroupRows<C> &rows,
                                              const uint32_t (&P)[C::Bc / 16][4], uint32_t V_smem)
{
    if constexpr (C::D <= 128) {
        multiply_PV<T, C>(rows, P, V_smem);
    } else {
        const uint64_t V = tile_descriptor(V_smem, C::K_PANEL);
        const uint64_t half = (uint64_t)(2 * C::K_PANEL >> 4);
        float(&left)[16][4] = reinterpret_cast<float(&)[16][4]>(rows.O[0]);
        float(&right)[16][4] = reinterpret_cast<float(&)[16][4]>(rows.O[16]);
#pragma unroll
        for (int k = 0; k < C::Bc / 16; k++) {
            multiply_registers<T>(left, P[k], V + key_tile_step(k));
            multiply_registers<T>(right, P[k], V + half + key_tile_step(k));
        }
        wgmma_commit();
    }
}

/* Row e of a lane sees keys first[e] ... last[e]. */
struct RowEnds {
    int first[2], last[2];
};

/* i0: first row of the warpgroup. */
static __device__ __forceinline__ RowEnds ends_of_rows(const HopperWork &work, int i0)
{
    const int row = i0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    RowEnds ends;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int p = row_position(&work.rule, (row + 8 * e) >> work.fold);
        ends.first[e] = first_key(&work.rule, p);
        ends.last[e] = last_key(&work.rule, p);
    }
    return ends;
}

/* Scores of keys that a row does not see become -inf. */
template <class C>
static __device__ __forceinline__ void hide_scores(float (&S)[C::Bc / 8][4], const RowEnds &ends,
                                                   int j)
{
    const int column = j * C::Bc + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int from = ends.first[e] - column, to = ends.last[e] - column;
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++)
                if (8 * n + x < from || 8 * n + x > to)
                    S[n][2 * e + x] = -INFINITY;
    }
}

/* O, m and l of 64 rows from the keys that they see: v14's loop. `now` is the ring place of the
 * block's last tile, and goes on to the next row tile's. */
template <typename T, class C>
static __device__ __forceinline__ void
consume(WarpgroupRows<C> &rows, const SeenKeys &block, const SeenKeys &mine, const HopperWork &work,
        int i0, uint32_t smem, uint32_t my_Q, float scale_log2, RingPlace &now, int Q_parity)
{
    float S[C::Bc / 8][4], alpha[2];
    uint32_t P[C::Bc / 16][4];
    const RowEnds ends = ends_of_rows(work, i0);
    /* Uniform, which the compiler cannot know (v14_persistent). */
    now.stage = (int)__reduce_max_sync(0xffffffffu, now.stage);
    now.parity = (int)__reduce_max_sync(0xffffffffu, now.parity);
    barrier_wait(smem + C::Q_FULL, Q_parity, WAIT_Q);
    if (mine.begin == mine.end) {
        if (C::PLACE_OF_O)
            release_unused(smem + C::Q_FREE);
        let_pass<C>(smem, now, block.end - block.begin);
        return;
    }
    let_pass<C>(smem, now, block.end - mine.end);
    int j = mine.end - 1;
    /* The first tile has nothing to overlap with. It may be masked or not. */
    barrier_wait(smem + C::K_FULL + 8 * now.stage, now.parity, WAIT_K);
    wgmma_begin();
    multiply_QK<T, C>(S, my_Q, smem + C::K + now.stage * C::K_BYTES);
    wgmma_wait<0>(S);
    release(smem + C::K_FREE + 8 * now.stage);
    if (!all_seen(mine, j))
        hide_scores<C>(S, ends, j);
    if (update_rows_lazily<C, true>(S, rows, alpha, scale_log2))
        rescale_O(rows, alpha);
    round_P<T, C>(P, S);
#pragma unroll 1
    for (j--; j >= mine.begin; j--) {
        RingPlace next = now;
        advance<C>(next);
        /* Plus 0. At D = 256 the compiler would keep 16 addresses of Q from tile to tile, in
         * ordinary registers, and move each to the uniform ones between two products. */
        const uint32_t Q_now = C::D > 128 ? my_Q + (next.stage >> 16) : my_Q;
        barrier_wait(smem + C::K_FULL + 8 * next.stage, next.parity, WAIT_K);
        wgmma_begin();
        multiply_QK<T, C>(S, Q_now, smem + C::K + next.stage * C::K_BYTES);
        barrier_wait(smem + C::V_FULL + 8 * now.stage, now.parity, WAIT_V);
        wgmma_begin();
        add_PV<T, C>(rows, P, smem + C::V + now.stage * C::K_BYTES);
        wgmma_wait<1>(S); /* S is there, O may take its time */
        release(smem + C::K_FREE + 8 * next.stage);
        bool grown;
        if (all_seen(mine, j)) {
            grown = update_rows_lazily<C, false>(S, rows, alpha, scale_log2);
        } else {
            hide_scores<C>(S, ends, j);
            grown = update_rows_lazily<C, true>(S, rows, alpha, scale_log2);
        }
        wgmma_wait<0>(rows.O); /* only now may P and O be touched */
        release(smem + C::V_FREE + 8 * now.stage);
        round_P<T, C>(P, S);
        if (grown)
            rescale_O(rows, alpha);
        now = next;
    }
    if (C::PLACE_OF_O)
        release(smem + C::Q_FREE); /* the next Q may come */
    barrier_wait(smem + C::V_FULL + 8 * now.stage, now.parity, WAIT_V);
    wgmma_begin();
    add_PV<T, C>(rows, P, smem + C::V + now.stage * C::K_BYTES);
    wgmma_wait<0>(rows.O);
    release(smem + C::V_FREE + 8 * now.stage);
    advance<C>(now);
    let_pass<C>(smem, now, mine.begin - block.begin);
}

/* A row of a tile: query i of head h; behind the last one: i >= Nq. */
struct Row {
    int b, h, i;
};

static __device__ __forceinline__ Row row_of(const QueryTile &tile, int fold, int row)
{
    return Row{tile.b, tile.h + (row & ((1 << fold) - 1)), row >> fold};
}

/* Its place in m, l and lse [B][H][Nq]; in the state [B][Nq][H][d]. */
static __device__ __forceinline__ int64_t place_of_row(const AttnArgs &a, Row row)
{
    return (row.b * a.shape.H + row.h) * a.shape.Nq + row.i;
}

static __device__ __forceinline__ int64_t place_of_O(const AttnArgs &a, Row row)
{
    return ((row.b * a.shape.Nq + row.i) * a.shape.H + row.h) * a.shape.d;
}

/* This lane's rows, the first of them `first`, from the state. (O, lse) is divided: it enters with
 * the weight l = 1 at the maximum m = lse. Where l = 0 no key has been seen, and O is not read. */
template <class C>
static __device__ __forceinline__ void resume_rows(WarpgroupRows<C> &rows, const AttnArgs &a,
                                                   const HopperWork &work, const QueryTile &tile,
                                                   int first)
{
    const int t = threadIdx.x % 4, d = (int)a.shape.d;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const Row row = row_of(tile, work.fold, first + 8 * e);
        if (row.i >= (int)a.shape.Nq)
            continue;
        const int64_t at = place_of_row(a, row);
        const float m = work.rows.m ? work.rows.m[at] : a.lse[at] * (float)M_LOG2E;
        const float l = work.rows.m ? work.rows.l[at] : m != -INFINITY ? 1.0f : 0.0f;
        const float *O = work.O_state + place_of_O(a, row);
        rows.m[e] = m;
        rows.l[e] = t == 0 ? l : 0.0f;
        if (l == 0.0f)
            continue;
#pragma unroll
        for (int n = 0; n < C::D / 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++)
                if (8 * n + 2 * t + x < d)
                    rows.O[n][2 * e + x] = O[8 * n + 2 * t + x];
    }
}

/* lse, and m and l of a state that gets them; returns what O is to be multiplied by. */
template <class C>
static __device__ __forceinline__ float finish_row(WarpgroupRows<C> &rows, const AttnArgs &a,
                                                   const HopperWork &work, Row row, int e)
{
    const bool unnormalised = work.rows.m && !work.last;
    float l = rows.l[e];
    l += __shfl_xor_sync(0xffffffffu, l, 1);
    l += __shfl_xor_sync(0xffffffffu, l, 2);
    if (threadIdx.x % 4 == 0 && row.i < (int)a.shape.Nq) {
        const int64_t at = place_of_row(a, row);
        a.lse[at] = l == 0.0f ? -INFINITY : (float)M_LN2 * rows.m[e] + logf(l);
        if (unnormalised) {
            work.rows.m[at] = rows.m[e];
            work.rows.l[at] = l;
        }
    }
    return unnormalised ? 1.0f : l == 0.0f ? 0.0f : 1.0f / l;
}

/* O through 64 rows of shared memory of the warpgroup's own to global memory. id: a named barrier
 * of the warpgroup. */
template <typename T, class C>
static __device__ __forceinline__ void
store_by_engine(WarpgroupRows<C> &rows, const AttnArgs &a, const HopperWork &work,
                const CUtensorMap *O_map, const QueryTile &tile, int i0, uint32_t O_smem, int id)
{
    const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (threadIdx.x % 128 == 0)
        store_tiles_read(); /* the O before this one has left */
    threads_sync(id, 128);  /* and no warp reads what was here */
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int r = 16 * warp + g + 8 * e;
        const float inverse = finish_row(rows, a, work, row_of(tile, work.fold, i0 + r), e);
#pragma unroll
        for (int n = 0; n < C::D / 8; n++) { /* chunk n % 8 of panel n / 8, swizzled */
            const uint32_t pair =
                pack2<T>(rows.O[n][2 * e] * inverse, rows.O[n][2 * e + 1] * inverse);
            const uint32_t to = O_smem + n / 8 * C::Q_PANEL + r * 128 + (n % 8 ^ g) * 16 + t * 4;
            write_smem(to, pair);
        }
    }
    fence_async();
    threads_sync(id, 128);
    if (threadIdx.x % 128 == 0) {
        for (int panel = 0; panel * PANEL < (int)a.shape.d; panel++)
            store_rows_of_panel(O_smem + panel * C::Q_PANEL, panel, O_map, tile.b, tile.h,
                                i0 >> work.fold);
        store_rows_end();
    }
}

/* O from registers, 16 bytes at a time: the four lanes of a row exchange what they have of 32
 * channels, after which each has 8 of its own. d: a multiple of 8. */
template <typename T, class C>
static __device__ __forceinline__ void
store_from_registers(WarpgroupRows<C> &rows, const AttnArgs &a, const HopperWork &work,
                     const QueryTile &tile, int i0)
{
    const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 1; e >= 0; e--) { /* the other way round, m lies in registers of one bank */
        const Row row = row_of(tile, work.fold, i0 + 16 * warp + g + 8 * e);
        const float inverse = finish_row(rows, a, work, row, e);
        const bool exists = row.i < (int)a.shape.Nq;
        T *O = (T *)a.O.data + (exists ? tensor_offset(&a.O, row.b, row.i, row.h) : 0);
#pragma unroll
        for (int n = 0; n < C::D / 8; n += 4) {
            uint32_t w[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[k] = pack2<T>(rows.O[n + k][2 * e] * inverse, rows.O[n + k][2 * e + 1] * inverse);
            transpose_quad(w);
            if (exists && 8 * (n + t) < (int)a.shape.d)
                *reinterpret_cast<uint4 *>(O + 8 * (n + t)) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

/* O to float32 (the state), or to O of any strides. */
template <typename T, class C>
static __device__ __forceinline__ void store_by_threads(WarpgroupRows<C> &rows, const AttnArgs &a,
                                                        const HopperWork &work,
                                                        const QueryTile &tile, int i0)
{
    const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int d = (int)a.shape.d;
    const bool to_state = work.O_state && !work.last;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const Row row = row_of(tile, work.fold, i0 + 16 * warp + g + 8 * e);
        const float inverse = finish_row(rows, a, work, row, e);
        if (row.i >= (int)a.shape.Nq)
            continue;
        float *O_state = to_state ? work.O_state + place_of_O(a, row) : NULL;
        T *O = to_state ? NULL : (T *)a.O.data + tensor_offset(&a.O, row.b, row.i, row.h);
#pragma unroll
        for (int n = 0; n < C::D / 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const int channel = 8 * n + 2 * t + x;
                if (channel < d && to_state)
                    O_state[channel] = rows.O[n][2 * e + x] * inverse;
                else if (channel < d)
                    O[channel] = T(rows.O[n][2 * e + x] * inverse);
            }
    }
}

template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 1)
    hopper_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ TileMaps maps,
                  const __grid_constant__ HopperWork work)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = (int)__reduce_max_sync(0xffffffffu, threadIdx.x / 128);
    RingPlace place = {0, 0};
    QueryTile tile;
    SeenKeys block;
    int turn = 0;
    if (threadIdx.x == 0)
        start_barriers<C>(smem);
    __syncthreads();
    if (warpgroup == 0) {
        registers_give<C::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            while (next_work<C>(tile, block, turn, a, work))
                load_keys<C>(maps, tile, block, smem, place);
        } else if (threadIdx.x == 32) {
            for (int n = 0; next_work<C>(tile, block, turn, a, work); n++) {
                barrier_wait(smem + C::Q_FREE, (n & 1) ^ 1, WAIT_FREE_Q);
                load_Q<C>(maps, tile, work.fold, smem);
            }
        }
    } else {
        registers_take<C::CONSUMER_REGISTERS>();
        const int r = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; /* this lane's row */
        const uint32_t mine = (warpgroup - 1) * C::Q_BYTES;
#pragma unroll 1
        for (int n = 0; next_work<C>(tile, block, turn, a, work); n++) {
            const int i0 = tile.i0 + 64 * (warpgroup - 1);
            WarpgroupRows<C> rows;
            start_rows(rows);
            if (work.O_state && i0 >= 0)
                resume_rows(rows, a, work, tile, i0 + r);
            consume<T, C>(rows, block, within(keys_of_group<C>(a, work, i0, 64), block), work, i0,
                          smem, smem + mine, a.scale * (float)M_LOG2E, place, n & 1);
            if (!C::PLACE_OF_O) /* not in consume, whose loop would get 22 instructions more */
                release_unused(smem + C::Q_FREE);
            if (i0 < 0)
                continue;
            if (!work.O_wide)
                store_by_threads<T, C>(rows, a, work, tile, i0);
            else if constexpr (C::PLACE_OF_O)
                store_by_engine<T, C>(rows, a, work, &maps.O, tile, i0, smem + C::O + mine,
                                      warpgroup);
            else
                store_from_registers<T, C>(rows, a, work, tile, i0);
        }
        store_tiles_read();
    }
}

/* grid: number of blocks, at most one for each row tile. */
template <typename T, class C>
static AttnStatus launch_hopper(const AttnArgs *a, HopperWork work, unsigned blocks)
{
    TileMaps maps = {};
    /* 16 bytes or nothing: the last ones of a row must be the row's alone. */
    work.O_wide = (!work.O_state || work.last) && copies_by_engine(&a->O) && a->shape.d % 8 == 0;
    AttnStatus status = make_head_map(&maps.Q, &a->Q, 1 << work.fold, 64 >> work.fold);
    if (status == ATTN_OK)
        status = make_head_map(&maps.K, &a->K, 1, C::Bc);
    if (status == ATTN_OK)
        status = make_head_map(&maps.V, &a->V, 1, C::Bc);
    if (status == ATTN_OK && work.O_wide && C::PLACE_OF_O)
        status = make_head_map(&maps.O, &a->O, 1 << work.fold, 64 >> work.fold);
    if (status == ATTN_OK)
        status = cuda_reserve_smem((const void *)hopper_kernel<T, C>, C::ALL);
    if (status == ATTN_OK)
        status = launch_is_done(0, NULL) ? ATTN_OK : ATTN_CUDA_ERROR;
    if (status != ATTN_OK)
        return status;
    hopper_kernel<T, C><<<blocks, C::THREADS, C::ALL, (cudaStream_t)a->stream>>>(*a, maps, work);
    CUDA_TRY_LAUNCH();
    return launch_is_done((cudaStream_t)a->stream, "the library's Hopper kernel") ? ATTN_OK
                                                                                  : ATTN_CUDA_ERROR;
}

#endif
