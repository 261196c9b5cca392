/* SPDX-License-Identifier: MIT
 *
 * v14_persistent: v13 whose blocks stay and take one row tile after another.
 *
 * A block of v13 fills its multiprocessor. When it ends, the next one starts with nothing:
 * barriers, Q, the first K; and nothing is multiplied until these have come. The last product, the
 * division and the store of O are not hidden either. Here there are as many blocks as
 * multiprocessors, and the pipeline never drains: while consumers finish one row tile the producer
 * loads the next one.
 *
 *   - K and V: the ring of stages just goes on, over the end of a row tile.
 *   - Q has one place for each consumer and a thread of its own that fills it, as soon as the last
 *     S = Q K^T of the row tile is done (Q_free).
 *   - O leaves through room of its own; the copy engine reads it while the next tile is computed.
 *   - Order. The hardware gives the next block to whoever is free. We must plan: longest row tiles
 *     first, over all heads, from left to right and from right to left in turn. Without a causal
 *     mask all are equally long, and go head by head, so that K and V stay in the L2 cache.
 *
 * A ring place that lives longer than a loop cost up to 16 % at first: the compiler no longer saw
 * that it is the same in all lanes, kept it in ordinary registers, and moved each descriptor to
 * the uniform ones that wgmma reads, between the products. __reduce_max_sync says it: its result
 * is uniform.
 *
 * Prediction (H200, bf16): about 3 us a row tile are saved: N = 16384 1 to 3 %, N = 1024, where a
 * row tile takes 10 us, 15 %.
 * Measured: docs/lab/03_hopper.md, beside the prediction. (A row tile of N = 1024 took v13 20 us.)
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128, on sm_90.
 */
#include "problem.cuh"
#include "units/wgmma_rows.cuh"

/* S, softmax and O of 64 rows. P of tile j + 1 is multiplied while S of tile j is exponentiated:
 * `now` is the stage of tile j + 1, `next` that of tile j (tiles go from the last to the first). */
template <typename T, class C>
static __device__ __forceinline__ void
consume(WarpgroupRows<C> &rows, const Problem &p, const KeyTiles &tiles, const KeyTiles &full,
        uint32_t smem, uint32_t my_Q, int i, RingPlace &now, int Q_parity)
{
    float S[C::Bc / 8][4], alpha[2];
    uint32_t P[C::Bc / 16][4];
    const float scale_log2 = p.scale * (float)M_LOG2E;
    now.stage = (int)__reduce_max_sync(0xffffffffu, now.stage);
    now.parity = (int)__reduce_max_sync(0xffffffffu, now.parity);
    int j = tiles.end - 1;
    start_rows(rows);
    barrier_wait(smem + C::Q_FULL, Q_parity, WAIT_Q);
    if (j < tiles.begin) {
        __syncwarp(); /* who has not yet seen this Q would wait for a phase that is gone */
        release(smem + C::Q_FREE);
        return;
    }
    /* The first tile has nothing to overlap with. It may be masked or not; O is still 0. */
    barrier_wait(smem + C::K_FULL + 8 * now.stage, now.parity, WAIT_K);
    wgmma_begin();
    multiply_QK<T, C>(S, my_Q, smem + C::K + now.stage * C::K_BYTES);
    wgmma_wait<0>(S);
    release(smem + C::K_FREE + 8 * now.stage);
    if (j < full.begin || j >= full.end)
        hide_keys<C>(S, p.from, p.to, p.Nk, i, j);
    update_rows_lazily<C, true>(S, rows, alpha, scale_log2);
    round_P<T, C>(P, S);
#pragma unroll 1
    for (j--; j >= tiles.begin; j--) {
        RingPlace next = now;
        advance<C>(next);
        barrier_wait(smem + C::K_FULL + 8 * next.stage, next.parity, WAIT_K);
        wgmma_begin();
        multiply_QK<T, C>(S, my_Q, smem + C::K + next.stage * C::K_BYTES);
        barrier_wait(smem + C::V_FULL + 8 * now.stage, now.parity, WAIT_V);
        wgmma_begin();
        multiply_PV<T, C>(rows, P, smem + C::V + now.stage * C::K_BYTES);
        wgmma_wait<1>(S); /* S is there, O may take its time */
        release(smem + C::K_FREE + 8 * next.stage);
        bool grown;
        if (full.begin <= j && j < full.end) {
            grown = update_rows_lazily<C, false>(S, rows, alpha, scale_log2);
        } else {
            hide_keys<C>(S, p.from, p.to, p.Nk, i, j);
            grown = update_rows_lazily<C, true>(S, rows, alpha, scale_log2);
        }
        wgmma_wait<0>(rows.O); /* only now may P and O be touched */
        release(smem + C::V_FREE + 8 * now.stage);
        round_P<T, C>(P, S);
        if (grown)
            rescale_O(rows, alpha);
        now = next;
    }
    release(smem + C::Q_FREE); /* the next Q may come */
    barrier_wait(smem + C::V_FULL + 8 * now.stage, now.parity, WAIT_V);
    wgmma_begin();
    multiply_PV<T, C>(rows, P, smem + C::V + now.stage * C::K_BYTES);
    wgmma_wait<0>(rows.O);
    release(smem + C::V_FREE + 8 * now.stage);
    advance<C>(now);
}

/* Row tile number `turn` of this block, or false: it has done its share. Blocks take the tiles in
 * order, from left to right and then from right to left: who had the longest in one turn has the
 * shortest in the next. Within a section of heads the longest tiles of all heads come first. */
template <class C>
static __device__ __forceinline__ bool tile_of_turn(BlockWork &work, const Problem &p, int section,
                                                    int turn)
{
    const int tiles = (p.Nq + C::Br - 1) / C::Br, heads = p.B * p.H;
    const int place = turn & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int index = turn * gridDim.x + place;
    if (index >= tiles * heads)
        return false; /* behind the last head `here` would be 0 */
    const int first = index / (tiles * section) * section; /* head of the section */
    const int here = min(section, heads - first), rest = index - first * tiles;
    work = work_of_head(p, first + rest % here, (tiles - 1 - rest / here) * C::Br);
    return true;
}

template <typename T, class C>
static __global__ void __launch_bounds__(128 * (1 + C::CONSUMERS), 1)
    persistent_kernel(const __grid_constant__ Problem p, const __grid_constant__ TileMaps maps,
                      int section)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    RingPlace place = {0, 0};
    BlockWork work;
    if (threadIdx.x == 0)
        start_barriers<C>(smem);
    __syncthreads();
    if (warpgroup == 0) {
        registers_give<C::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            for (int turn = 0; tile_of_turn<C>(work, p, section, turn); turn++) {
                const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
                produce_keys<C>(maps, work.b, work.h_kv, tiles.begin, tiles.end, smem, place);
            }
        } else if (threadIdx.x == 32) {
            for (int turn = 0; tile_of_turn<C>(work, p, section, turn); turn++) {
                barrier_wait(smem + C::Q_FREE, (turn & 1) ^ 1, WAIT_FREE_Q);
                produce_Q<C>(maps, work.b, work.h, work.i0, smem);
            }
        }
    } else {
        registers_take<C::CONSUMER_REGISTERS>();
        const int r = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; /* this lane's row */
        const uint32_t mine = (warpgroup - 1) * C::Q_BYTES;
#pragma unroll 1
        for (int turn = 0; tile_of_turn<C>(work, p, section, turn); turn++) {
            const int i0 = work.i0 + 64 * (warpgroup - 1);
            const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
            WarpgroupRows<C> rows;
            consume<T, C>(rows, p, tiles, full_tiles<C::Br, C::Bc>(p, work.i0, tiles), smem,
                          smem + mine, i0 + r, place, turn & 1);
            store_rows<T, C>(rows, &maps.O, p.lse + lse_row(&p, work.b, work.h, 0), work.b, work.h,
                             i0, p.Nq, smem + C::O + mine, warpgroup);
        }
        store_tiles_read();
    }
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef WgmmaTile<D, D == 64 ? 64 : 80, D == 64 ? 4 : 3, D == 64 ? 4 : 3, true> C;
    TileMaps maps;
    const unsigned blocks = min(row_blocks(p, C::Br), (unsigned)count_multiprocessors());
    /* Where all row tiles are equally long, one head after another keeps K and V in the L2. */
    const bool causal = p->to < 1 << 30 && p->from == -(1 << 30);
    const int section = causal ? p->B * p->H : 1;
    if (!make_maps<T, C>(&maps, p->B, p->H, p->Hkv, p->Nq, p->Nk, p->Q, p->K, p->V, p->O))
        return note_failure();
    if (blocks > 0 && reserve_smem((const void *)persistent_kernel<T, C>, C::ALL))
        persistent_kernel<T, C>
            <<<blocks, 128 * (1 + C::CONSUMERS), C::ALL, stream_of(p)>>>(*p, maps, section);
    if (!launch_is_done(stream_of(p), "v14_persistent"))
        note_failure();
}

static void forward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? 256 : 192, p->d == 64 ? 64 : 80};
}

RUNG(flash_forward, v14_persistent, "blocks that stay: the next row tile loads while one ends",
     F16 | BF16, forward, NULL, NULL, tiles, SM90A);
