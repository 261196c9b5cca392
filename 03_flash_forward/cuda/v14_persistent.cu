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
 * - flash_forward_v14_persistent, flash_tiles_v14_persistent: as v9.
 */
#include "wgmma_rows.cuh"

/* S, softmax and O of 64 rows. P of tile j + 1 is multiplied while S of tile j is exponentiated:
 * `now` is the stage of tile j + 1, `next` that of tile j (tiles go from the last to the first). */
template <typename T, class C>
static __device__ __forceinline__ void
consume(WarpgroupRows<C> &rows, const RowLimits &limits, const SeenKeys &seen, uint32_t smem,
        uint32_t my_Q, int i, float scale_log2, RingPlace &now, int Q_parity)
{
    float S[C::Bc / 8][4], alpha[2];
    uint32_t P[C::Bc / 16][4];
    now.stage = (int)__reduce_max_sync(0xffffffffu, now.stage);
    now.parity = (int)__reduce_max_sync(0xffffffffu, now.parity);
    int j = seen.end - 1;
    start_rows(rows);
    barrier_wait(smem + C::Q_FULL, Q_parity, WAIT_Q);
    if (j < seen.begin) {
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
    if (!all_seen(seen, j))
        hide_keys<C>(S, limits, i, j);
    update_rows_lazily<C, true>(S, rows, alpha, scale_log2);
    round_P<T, C>(P, S);
#pragma unroll 1
    for (j--; j >= seen.begin; j--) {
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
        if (all_seen(seen, j)) {
            grown = update_rows_lazily<C, false>(S, rows, alpha, scale_log2);
        } else {
            hide_keys<C>(S, limits, i, j);
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
static __device__ __forceinline__ bool tile_of_turn(QueryTile &tile, const AttnArgs &a, int section,
                                                    int turn)
{
    const int tiles = ((int)a.shape.Nq + C::Br - 1) / C::Br;
    const int H = (int)a.shape.H, heads = (int)a.shape.B * H;
    const int place = turn & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int index = turn * gridDim.x + place;
    if (index >= tiles * heads)
        return false; /* behind the last head `here` would be 0 */
    const int first = index / (tiles * section) * section; /* head of the section */
    const int here = min(section, heads - first), rest = index - first * tiles;
    const int head = first + rest % here;
    tile.b = head / H;
    tile.h = head % H;
    tile.h_kv = tile.h / (H / (int)a.shape.Hkv);
    tile.i0 = (tiles - 1 - rest / here) * C::Br;
    return true;
}

template <typename T, class C>
static __global__ void __launch_bounds__(128 * (1 + C::CONSUMERS), 1)
    persistent_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ TileMaps maps,
                      int section)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), Nq = (int)a.shape.Nq;
    const RowLimits limits = row_limits(a);
    RingPlace place = {0, 0};
    QueryTile tile;
    if (threadIdx.x == 0)
        start_barriers<C>(smem);
    __syncthreads();
    if (warpgroup == 0) {
        registers_give<C::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            for (int turn = 0; tile_of_turn<C>(tile, a, section, turn); turn++)
                produce_keys<C>(maps, tile, seen_keys<C>(limits, tile.i0, Nq), smem, place);
        } else if (threadIdx.x == 32) {
            for (int turn = 0; tile_of_turn<C>(tile, a, section, turn); turn++) {
                barrier_wait(smem + C::Q_FREE, (turn & 1) ^ 1, WAIT_FREE_Q);
                produce_Q<C>(maps, tile, smem);
            }
        }
    } else {
        registers_take<C::CONSUMER_REGISTERS>();
        const int r = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; /* this lane's row */
        const uint32_t mine = (warpgroup - 1) * C::Q_BYTES;
#pragma unroll 1
        for (int turn = 0; tile_of_turn<C>(tile, a, section, turn); turn++) {
            const int i0 = tile.i0 + 64 * (warpgroup - 1);
            WarpgroupRows<C> rows;
            consume<T, C>(rows, limits, seen_keys<C>(limits, tile.i0, Nq), smem, smem + mine,
                          i0 + r, a.scale * LOG2E, place, turn & 1);
            store_rows<T, C>(rows, a, &maps.O, tile, i0, smem + C::O + mine, warpgroup);
        }
        store_tiles_read();
    }
}

template <typename T, int D> struct LaunchPersistent {
    typedef WgmmaTile<D, D == 64 ? 64 : 80, D == 64 ? 4 : 3, D == 64 ? 4 : 3, true> C;
    static AttnStatus run(const AttnArgs *a)
    {
        int device = 0, multiprocessors = 0;
        CUDA_TRY(cudaGetDevice(&device));
        CUDA_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
        const unsigned tiles = count_row_tiles(a, C::Br), most = (unsigned)multiprocessors;
        /* Where all row tiles are equally long, one head after another keeps K and V in the L2. */
        const bool equal = a->rule.right < 0 || a->rule.left >= 0;
        const int section = equal ? 1 : (int)(a->shape.B * a->shape.H);
        return launch_rows<C>(persistent_kernel<T, C>, a, tiles < most ? tiles : most,
                              128 * (1 + C::CONSUMERS), section);
    }
};

FlashTiles flash_tiles_v14_persistent(const AttnArgs *a)
{
    return a->shape.d == 64 ? flash_tiles_of(&a->shape, 256, 64)
                            : flash_tiles_of(&a->shape, 192, 80);
}

AttnStatus flash_forward_v14_persistent(const AttnArgs *a)
{
    return run_on_hopper<LaunchPersistent>(a);
}
