/* SPDX-License-Identifier: MIT
 *
 * v13_more_warpgroups: v12 with more warpgroups and smaller key tiles.
 *
 * ncu on v12, d = 64: tensor cores 61 % busy, exponential units 61 %, and an instruction issued in
 * 45 % of the clocks. No unit is the limit; each quarter of the multiprocessor has three warps,
 * and too often all three wait. A fourth warp would fill the gaps, but registers are what warps
 * are made of: S of 64 rows and 128 keys alone takes 64 a thread. Half as many keys take half of
 * that. So
 *
 *     d      v12: rows x keys, registers         v13
 *     64     3 x 64 x 128, 160                   4 x 64 x 64, 112, 4 stages
 *     128    2 x 64 x 128, 240                   3 x 64 x 80, 160, 3 stages
 *
 * More rows of a block also share each tile of K and V: the L2 cache sends less. What it costs: a
 * product with 64 columns takes Q from shared memory as often as one with 128, and row tiles of 256
 * or 192 rows divide short sequences badly.
 *
 * Prediction: none. These tiles won among fourteen that were tried (lab notes); the account above
 * came afterwards. At d = 128 the tensor cores are 94 % busy.
 * Measured: docs/lab/03_hopper.md.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128, on sm_90.
 */
#include "problem.cuh"
#include "units/wgmma_rows.cuh"

/* S, softmax and O of 64 rows. P of tile j + 1 is multiplied while S of tile j is exponentiated:
 * `now` is the stage of tile j + 1, `next` that of tile j (tiles go from the last to the first). */
template <typename T, class C>
static __device__ __forceinline__ void consume(WarpgroupRows<C> &rows, const Problem &p,
                                               const KeyTiles &tiles, const KeyTiles &full,
                                               uint32_t smem, uint32_t my_Q, int i)
{
    float S[C::Bc / 8][4], alpha[2];
    uint32_t P[C::Bc / 16][4];
    const float scale_log2 = p.scale * (float)M_LOG2E;
    RingPlace now = {0, 0};
    int j = tiles.end - 1;
    start_rows(rows);
    barrier_wait(smem + C::Q_FULL, 0, WAIT_Q);
    if (j < tiles.begin)
        return;
    /* The first tile has nothing to overlap with. It may be masked or not; O is still 0. */
    barrier_wait(smem + C::K_FULL, 0, WAIT_K);
    wgmma_begin();
    multiply_QK<T, C>(S, my_Q, smem + C::K);
    wgmma_wait<0>(S);
    release(smem + C::K_FREE);
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
    barrier_wait(smem + C::V_FULL + 8 * now.stage, now.parity, WAIT_V);
    wgmma_begin();
    multiply_PV<T, C>(rows, P, smem + C::V + now.stage * C::K_BYTES);
    wgmma_wait<0>(rows.O);
}

template <typename T, class C>
static __global__ void __launch_bounds__(128 * (1 + C::CONSUMERS), 1)
    warpgroups_kernel(const __grid_constant__ Problem p, const __grid_constant__ TileMaps maps)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const BlockWork work = last_rows_first(p, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
    const KeyTiles full = full_tiles<C::Br, C::Bc>(p, work.i0, tiles);
    if (threadIdx.x == 0)
        start_barriers<C>(smem);
    __syncthreads();
    if (warpgroup == 0) {
        registers_give<C::PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            RingPlace place = {0, 0};
            produce_Q<C>(maps, work.b, work.h, work.i0, smem);
            produce_keys<C>(maps, work.b, work.h_kv, tiles.begin, tiles.end, smem, place);
        }
    } else {
        registers_take<C::CONSUMER_REGISTERS>();
        const int i0 = work.i0 + 64 * (warpgroup - 1); /* first row of the warpgroup, the lane */
        const int i = i0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        const uint32_t my_Q = smem + (warpgroup - 1) * C::Q_BYTES;
        WarpgroupRows<C> rows;
        consume<T, C>(rows, p, tiles, full, smem, my_Q, i);
        store_rows<T, C>(rows, &maps.O, p.lse + lse_row(&p, work.b, work.h, 0), work.b, work.h, i0,
                         p.Nq, my_Q, warpgroup);
        store_tiles_read();
    }
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef WgmmaTile<D, D == 64 ? 64 : 80, D == 64 ? 4 : 3, D == 64 ? 4 : 3> C;
    TileMaps maps;
    if (!make_maps<T, C>(&maps, p->B, p->H, p->Hkv, p->Nq, p->Nk, p->Q, p->K, p->V, p->O))
        return note_failure();
    if (reserve_smem((const void *)warpgroups_kernel<T, C>, C::ALL))
        warpgroups_kernel<T, C>
            <<<row_blocks(p, C::Br), 128 * (1 + C::CONSUMERS), C::ALL, stream_of(p)>>>(*p, maps);
    if (!launch_is_done(stream_of(p), "v13_more_warpgroups"))
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

RUNG(flash_forward, v13_more_warpgroups, "smaller key tiles, so that more warpgroups fit",
     F16 | BF16, forward, NULL, NULL, tiles, SM90A);
