/* SPDX-License-Identifier: MIT
 *
 * v11_overlapped_softmax: v10, and a warpgroup's own products run while its softmax does.
 *
 * wgmma is asynchronous; v10 waits for it at once. But S of the next tile depends on nothing that
 * this tile's softmax makes. So the loop is shifted by half a turn. In each turn a warpgroup
 *
 *     issues   S = Q K_j^T             (of the new tile)
 *     issues   O += P V_(j+1)          (of the tile before, whose P is ready)
 *     waits for S only, and does the softmax of tile j while the second product runs
 *     waits for O; rounds P of tile j, rescales O
 *
 * The wait for S is wgmma.wait_group 1: "all but the latest group". P and O may not be touched as
 * long as a product reads or writes them, which is why rounding and rescaling come last. (ptxas
 * insists: a P that is rounded while any product is in flight makes it serialise all of them,
 * C7513, even if these registers are not the ones in use.)
 *
 * Prediction (H200, bf16, N = 16384, full): at d = 128 the second product, 512 of a warpgroup's
 * 1024 clocks of products, hides the softmax, about 600 clocks: 610. At d = 64 it is 256 clocks:
 * 480.
 * Measured: docs/lab/03_hopper.md, beside the prediction; a softmax takes twice as long.
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
    update_rows<C, true>(S, rows, alpha, scale_log2);
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
        if (full.begin <= j && j < full.end) {
            update_rows<C, false>(S, rows, alpha, scale_log2);
        } else {
            hide_keys<C>(S, p.from, p.to, p.Nk, i, j);
            update_rows<C, true>(S, rows, alpha, scale_log2);
        }
        wgmma_wait<0>(rows.O); /* only now may P and O be touched */
        release(smem + C::V_FREE + 8 * now.stage);
        round_P<T, C>(P, S);
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
    overlapped_kernel(const __grid_constant__ Problem p, const __grid_constant__ TileMaps maps)
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
    typedef WgmmaTile<D, 128, D == 64 ? 3 : 2, 2> C;
    TileMaps maps;
    if (!make_maps<T, C>(&maps, p->B, p->H, p->Hkv, p->Nq, p->Nk, p->Q, p->K, p->V, p->O))
        return note_failure();
    if (reserve_smem((const void *)overlapped_kernel<T, C>, C::ALL))
        overlapped_kernel<T, C>
            <<<row_blocks(p, C::Br), 128 * (1 + C::CONSUMERS), C::ALL, stream_of(p)>>>(*p, maps);
    if (!launch_is_done(stream_of(p), "v11_overlapped_softmax"))
        note_failure();
}

static void forward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? 192 : 128, 128};
}

RUNG(flash_forward, v11_overlapped_softmax,
     "the next S is multiplied, and this O, while the softmax runs", F16 | BF16, forward, NULL,
     NULL, tiles, SM90A);
