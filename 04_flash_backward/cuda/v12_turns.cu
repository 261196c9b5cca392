/* SPDX-License-Identifier: MIT
 *
 * v12_turns: v11, but one warpgroup exponentiates while the products of the other run.
 *
 * In v11 both warpgroups wait for dS of the other, so both do the same at the same time: first the
 * tensor cores have ten products in line, then few or none. Here they take turns. A warpgroup
 * issues five products in one go, says that it is the other's turn, and makes P and dS of its next
 * tile while that one's products run:
 *
 *     warpgroup 0:  dQ' dV dK S dP | P, dS          | dQ' dV dK S dP | P, dS          | ...
 *     warpgroup 1:                 | dQ' dV dK S dP | P, dS          | dQ' dV dK S dP | ...
 *
 * S and dP are those of the next tile. dQ' is that of the tile before, because it takes dS of both
 * warpgroups, which are half a tile apart. So dS has two places for another reason than in v11:
 * mbarriers tell when all warps have written one, and when both dQ' have read it.
 *
 * One product is too many: in front of the first tile there is no dS, and nobody reads that dQ'.
 * (ptxas keeps products in flight only if they are issued each time.) Its place may be unwritten,
 * or being written by the other warpgroup; so it reads K, and V behind it, which stay as they are.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128, on sm_90.
 * Later rungs have in wgmma_turns.cuh what stands in namespace v12 here.
 */
#include "problem.cuh"
#include "units/wgmma_keys.cuh"

/* Named barriers 4 and 5: the turns of warpgroups 0 and 1. A turn begins when 256 threads have
 * come: the 128 that wait for it (threads_sync), and the 128 that hand it over (threads_arrive).
 * Warpgroup 1 hands over the first one. Both walk over the same tiles, so no turn is left over. */
#define TURN 4

namespace v12
{

/* P^T and dS^T of a tile. S is done, dP is still being multiplied. */
template <typename T, class C>
static __device__ __forceinline__ void
weigh_pairs(uint32_t (&P_factor)[C::Br / 16][4], uint32_t (&dS_factor)[C::Br / 16][4],
            float (&S)[C::Br / 8][4], float (&dP)[C::Br / 8][4], float scale, const Band &band,
            int i0, int j0, const float2 *stats)
{
    const int j = j0 + threadIdx.x % 256 / 32 * 16 + threadIdx.x % 32 / 4;
    if (!sees_all<C>(band, i0, j0))
        hide_pairs<C>(S, {rows_of_key(band, j), rows_of_key(band, j + 8)}, i0);
    exponentiate<C>(S, stats, scale * (float)M_LOG2E);
    wgmma_wait<0>(dP);
    multiply_by_P<C>(dP, S, stats);
    round_factor<T, C>(P_factor, S);
    round_factor<T, C>(dS_factor, dP);
}

/* dS of this warp is there for the products, and all who read it are told. The fence takes some 300
 * clocks, because it waits for all that the warp has written; so the products that need no fence
 * are issued before it. */
template <class C> static __device__ __forceinline__ void publish_dS(uint32_t smem, int stage)
{
    fence_async();
    report(smem + C::dS_FULL + 8 * stage);
}

/* dK and dV of 64 keys over a walk; dQ is added. */
template <typename T, class C>
static __device__ __forceinline__ void
consume_in_turns(float (&dK)[C::D / 8][4], float (&dV)[C::D / 8][4], const Pass &pass,
                 const Band &band, const KeyBlock &block, int H, float scale, KeyWalk walk,
                 unsigned char *smem_bytes, int warpgroup)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const uint32_t my_K = smem + C::K + warpgroup * C::BOX, my_V = my_K + C::V - C::K;
    const RowRange seeing = rows_that_see(band);
    const int Nq = band.Nq, last = walk.count - 1;
    /* dS_before: where dS of the tile before lies. The first tile has none before it: that product
     * reads K and V, and add_dQ drops it (dQ_before is NULL). */
    uint32_t P_factor[C::Br / 16][4], dS_factor[C::Br / 16][4], dS_before = C::K;
    float *dQ_before = NULL, *dQ_now; /* where dQ of the tile before is added, and of this one */
    start_sums<C>(dK, dV);
    wgmma_wait<0>(dK); /* nothing is in flight: this keeps the zeros in front of the products */
    wgmma_wait<0>(dV);
    barrier_wait(smem + C::KV_FULL, 0, WAIT_K);
    if (warpgroup == 1 && last > 0)
        threads_arrive(TURN, CONSUMER_THREADS);
    if (walk.count > 0) { /* S, dP, P and dS of the first tile */
        float S[C::Br / 8][4], dP[C::Br / 8][4];
        barrier_wait(smem + C::Q_FULL, 0, WAIT_Q);
        barrier_wait(smem + C::dO_FULL, 0, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + C::Q, seeing, walk.i0, Nq);
        clear_unseen_rows<C>(smem_bytes + C::dO, seeing, walk.i0, Nq);
        wgmma_begin();
        multiply_rows<T, C>(S, my_K, smem + C::Q);
        multiply_rows<T, C>(dP, my_V, smem + C::dO);
        wgmma_wait<1>(S);
        weigh_pairs<T, C>(P_factor, dS_factor, S, dP, scale, band, walk.i0, block.j0,
                          (const float2 *)(smem_bytes + C::STATS));
        store_dS<C>(smem + C::dS, dS_factor, warpgroup);
    }
    /* Groups, as they are issued: dQ dV dK S dP. wgmma_wait<n>(x): of the groups issued so far only
     * the last n may still be at work, and x is not one of them. */
#pragma unroll 1
    for (int tile = 0; tile < last; tile++) {
        const int stage = tile % 2, next = 1 - stage, next_parity = (tile + 1) / 2 % 2;
        const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES, dO = Q + C::dO - C::Q;
        const uint32_t next_Q = smem + C::Q + next * C::ROWS_BYTES, next_dO = next_Q + C::dO - C::Q;
        const uint32_t next_dS = smem + C::dS + next * C::dS_BYTES; /* where the last dS lay */
        const float2 *next_stats = (const float2 *)(smem_bytes + C::STATS + next * C::STATS_BYTES);
        float S[C::Br / 8][4], dP[C::Br / 8][4], dQ[8][4];
        dQ_now = dQ_slab<C>(pass.dQ_sum, block.b * H + walk.h, Nq, walk.i0, warpgroup);
        next_tile<C>(walk);
        if (tile > 0)
            barrier_wait(smem + C::dS_FULL + 8 * next, next_parity ^ 1, WAIT_dS);
        threads_sync(TURN + warpgroup, CONSUMER_THREADS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, smem + dS_before, smem + C::K, warpgroup);
        dS_before = C::dS + stage * C::dS_BYTES;
        add_product<T, C>(dV, P_factor, dO);
        add_product<T, C>(dK, dS_factor, Q);
        publish_dS<C>(smem, stage);
        wgmma_wait<2>(dQ);
        if (tile > 0)
            report(smem + C::dS_FREE + 8 * next);
        add_dQ(dQ_before, dQ);
        dQ_before = dQ_now;
        barrier_wait(smem + C::Q_FULL + 8 * next, next_parity, WAIT_Q);
        clear_unseen_rows<C>(smem_bytes + (next_Q - smem), seeing, walk.i0, Nq);
        wgmma_wait<1>(dV); /* P is read: room for S */
        wgmma_begin();
        multiply_rows<T, C>(S, my_K, next_Q);
        barrier_wait(smem + C::dO_FULL + 8 * next, next_parity, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + (next_dO - smem), seeing, walk.i0, Nq);
        wgmma_wait<1>(dK); /* dS is read: room for dP */
        wgmma_begin();
        multiply_rows<T, C>(dP, my_V, next_dO);
        if (warpgroup == 0 || tile + 1 < last) /* after the last tile nobody takes it */
            threads_arrive(TURN + (1 - warpgroup), CONSUMER_THREADS);
        report(smem + C::dO_FREE + 8 * stage);
        report(smem + C::Q_FREE + 8 * stage);
        wgmma_wait<1>(S);
        weigh_pairs<T, C>(P_factor, dS_factor, S, dP, scale, band, walk.i0, block.j0, next_stats);
        if (tile > 0)
            barrier_wait(smem + C::dS_FREE + 8 * next, next_parity ^ 1, WAIT_FREE_dS);
        store_dS<C>(next_dS, dS_factor, warpgroup);
    }
    if (walk.count > 0) { /* what is left: dQ of two tiles, dV and dK */
        const int stage = last % 2;
        const uint32_t dS = smem + C::dS + stage * C::dS_BYTES;
        float dQ[8][4];
        dQ_now = dQ_slab<C>(pass.dQ_sum, block.b * H + walk.h, Nq, walk.i0, warpgroup);
        if (last > 0)
            barrier_wait(smem + C::dS_FULL + 8 * (1 - stage), (last - 1) / 2 % 2, WAIT_dS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, smem + dS_before, smem + C::K, warpgroup);
        add_product<T, C>(dV, P_factor, smem + C::dO + stage * C::ROWS_BYTES);
        add_product<T, C>(dK, dS_factor, smem + C::Q + stage * C::ROWS_BYTES);
        publish_dS<C>(smem, stage);
        wgmma_wait<2>(dQ);
        add_dQ(dQ_before, dQ);
        barrier_wait(smem + C::dS_FULL + 8 * stage, last / 2 % 2, WAIT_dS);
        wgmma_begin();
        multiply_dS_K<T, C>(dQ, dS, smem + C::K, warpgroup);
        wgmma_wait<0>(dQ);
        add_dQ(dQ_now, dQ);
    }
    wgmma_wait<0>(dK);
    wgmma_wait<0>(dV);
}

} // namespace v12

template <typename T, class C>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    turns_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass,
                 const __grid_constant__ KeyMaps maps)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const KeyBlock block = block_of_keys(blockIdx.x, p.H, p.Hkv, p.Nk, C::Bc);
    const KeyWalk walk = start_walk<C>(block, rows_that_see(band, block.j0, C::Bc));
    if (threadIdx.x == 0)
        start_barriers<C>(smem);
    __syncthreads();
    if (warpgroup == PRODUCER) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0)
            produce<C>(maps, block, pass, p.H, p.Nq, walk, smem);
    } else {
        float dK[C::D / 8][4], dV[C::D / 8][4];
        registers_take<CONSUMER_REGISTERS>();
        v12::consume_in_turns<T, C>(dK, dV, pass, band, block, p.H, p.scale, walk, smem_bytes,
                                    warpgroup);
        store_gradients<T, C>(dK, dV, p.scale, maps, block, p.Nk, smem_bytes, warpgroup);
    }
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef WgmmaKeys<D> C;
    const PassSizes sizes = sizes_of(p);
    KeyMaps maps;
    if (!make_key_maps<T, D>(&maps, sizes, p->Hkv, p->Q, p->K, p->V, p->dO, p->dK, p->dV))
        return note_failure();
    if (!reserve_smem((const void *)turns_kernel<T, C>, C::ALL))
        return;
    const Pass pass =
        start_pass(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, true, stream_of(p));
    turns_kernel<T, C>
        <<<key_blocks(p, C::Bc), 128 + CONSUMER_THREADS, C::ALL, stream_of(p)>>>(*p, pass, maps);
    if (!launch_is_done(stream_of(p), "v12_turns"))
        return note_failure();
    round_slabs<T, D>(sizes, p->scale, pass.dQ_sum, (T *)p->dQ, stream_of(p));
}

static void backward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static int64_t work(const Problem *p, int)
{
    return pass_bytes(sizes_of(p), true);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? 128 : 64, 128};
}

RUNG(flash_backward, v12_turns, "while one warpgroup exponentiates, the other multiplies",
     F16 | BF16, NULL, backward, work, tiles, SM90A | ATOMICS);
