/* SPDX-License-Identifier: MIT
 *
 * v12_lazy_rescale: v11 with a maximum that follows only when it must.
 *
 * m_i is there to keep 2^(s - m_i) in range, and any m_i near the maximum does that as well as the
 * maximum itself: P, l and O all carry the same factor 2^(-m_i), which the final division takes out
 * again. Floating point loses nothing by it: P = 2^8 is as precise as P = 1. So m_i stays as it is
 * until a score is more than 8 powers of two above it. Then, and only then, the four lanes of a row
 * agree on the new maximum, and l and O are rescaled. After the first tile that is rare, and each
 * tile is spared
 *
 *   - the multiplication of O: d / 2 instructions of each thread, which stand between a tile's
 *     softmax and its next product, where nothing hides them;
 *   - two shuffles for each row, alpha, and the wait for them before the first exponential.
 *
 * All lanes of a warp decide together (__any_sync), so the branch is taken by all or by none. P is
 * at most 2^8, far from the largest f16; the largest P of a row that has been seen is at least 1,
 * so small ones underflow no earlier than before.
 *
 * Prediction (H200, bf16, N = 16384, full): 32 of some 330 instructions a tile go at d = 64, and
 * 64 of 360 at d = 128, and with them the latency of the shuffles: a few percent.
 * Measured: docs/lab/03_hopper.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128, on sm_90.
 * What stands in namespace v12 later rungs have in wgmma_rows.cuh.
 */
#include "problem.cuh"
#include "units/wgmma_rows.cuh"

namespace v12
{

/* Online softmax with a lazy maximum: m and O stay as they are as long as no score of the warp's
 * rows is more than LAZY powers of two above m. Returns whether alpha is for use. */
template <class C, bool MASKED>
static __device__ __forceinline__ bool update_rows_lazily(float (&S)[C::Bc / 8][4],
                                                          WarpgroupRows<C> &rows, float (&alpha)[2],
                                                          float scale_log2)
{
    const float top[2] = {largest<C>(S, 0) * scale_log2, largest<C>(S, 1) * scale_log2};
    const bool grown =
        __any_sync(0xffffffffu, top[0] > rows.m[0] + LAZY || top[1] > rows.m[1] + LAZY);
    if (grown) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float m_new = fmaxf(rows.m[e], largest_of_row(top[e]));
            alpha[e] = m_new == -INFINITY ? 1.0f : exp2_sfu(rows.m[e] - m_new);
            rows.m[e] = m_new;
            rows.l[e] *= alpha[e];
        }
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
        rows.l[e] += exponentiate<C, MASKED>(S, e, rows.m[e], scale_log2);
    return grown;
}

} // namespace v12

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
    v12::update_rows_lazily<C, true>(S, rows, alpha, scale_log2);
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
            grown = v12::update_rows_lazily<C, false>(S, rows, alpha, scale_log2);
        } else {
            hide_keys<C>(S, p.from, p.to, p.Nk, i, j);
            grown = v12::update_rows_lazily<C, true>(S, rows, alpha, scale_log2);
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
    lazy_kernel(const __grid_constant__ Problem p, const __grid_constant__ TileMaps maps)
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
    if (reserve_smem((const void *)lazy_kernel<T, C>, C::ALL))
        lazy_kernel<T, C>
            <<<row_blocks(p, C::Br), 128 * (1 + C::CONSUMERS), C::ALL, stream_of(p)>>>(*p, maps);
    if (!launch_is_done(stream_of(p), "v12_lazy_rescale"))
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

RUNG(flash_forward, v12_lazy_rescale, "the maximum, and O with it, moves only when it must",
     F16 | BF16, forward, NULL, NULL, tiles, SM90A);
