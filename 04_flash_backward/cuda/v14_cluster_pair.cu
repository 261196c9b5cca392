/* SPDX-License-Identifier: MIT
 *
 * v14_cluster_pair: v13, but two blocks share what neither can hold: dQ over twice as many keys.
 *
 * Every block adds dQ of its 128 keys to memory, 32 KiB a tile, and without these adds v13 would be
 * 7 % faster (d = 128). dQ over 256 keys would be half as many adds, but dK and dV of 128 keys fill
 * the registers. So two blocks of a cluster walk over the same queries, each with its 128 keys, and
 * each makes dQ of every other tile for both: over 256 keys. For that it gets dS of the other block
 * by the copy engine, from shared memory to shared memory, and it has loaded the other's K, too.
 *
 *     tiles                 0                  1                  2                  3
 *     block 0, keys   0-127:  its own: dQ        dS to block 1      its own: dQ        ...
 *     block 1, keys 128-255:  dS to block 0      its own: dQ        dS to block 0      ...
 *
 * Of two tiles a block takes the other's first. So dS that it needs for its own is on the way while
 * it computes that tile itself, and neither waits for a copy:
 *
 *     block 0:   S dP of 1, dS to block 1 | S dP of 0 | S dP of 3, dQ of 0 | S dP of 2 | ...
 *     block 1:   S dP of 0, dS to block 0 | S dP of 1 | S dP of 2, dQ of 1 | S dP of 3 | ...
 *
 * Shared memory, KiB, d = 64 and 128 (of 227):
 *
 *     K of both   V    Q, dO        dS: own    to send  come
 *     32          16   2 x 32       32         32       32      = 208 and stats 2
 *     64          32   2 x 32       2 x 16     16       16      = 224 and stats 1
 *
 * Prediction (H200, bf16, N = 16384, d = 128): half of the adds are half of 7 %, the tensor cores
 * have the same work, shared memory 5 % more: 605 -> 625 TFLOP/s, causal 596 -> 610 (both blocks
 * walk over what either sees).
 * Measured: docs/lab/04_hopper.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128, on sm_90.
 */
#include "problem.cuh"
#include "units/cluster.cuh"
#include "units/fused_delta.cuh"
#include "units/wgmma_turns.cuh"

/* WgmmaKeys with K of both blocks (own, then the other's) and four places for dS. A stage is for
 * one kind of tile: the other block's, then the own. */
template <int D_> struct PairKeys : WgmmaKeys<D_> {
    typedef WgmmaKeys<D_> One;
    static const int D = D_, BOX = One::BOX, dS_BYTES = One::dS_BYTES, OWN_PLACES = D == 64 ? 1 : 2;
    static const int K = 0, K_THERE = K + 2 * BOX, V = K_THERE + 2 * BOX, Q = V + 2 * BOX;
    static const int dO = Q + 2 * One::ROWS_BYTES, dS = dO + 2 * One::ROWS_BYTES;
    static const int dS_OUT = dS + OWN_PLACES * dS_BYTES, dS_IN = dS_OUT + dS_BYTES;
    static const int STATS = dS_IN + dS_BYTES, KV_FULL = STATS + 2 * One::STATS_BYTES;
    static const int Q_FULL = KV_FULL + 8, dO_FULL = Q_FULL + 16, Q_FREE = dO_FULL + 16;
    static const int dO_FREE = Q_FREE + 16, dS_FULL = dO_FREE + 16, dS_FREE = dS_FULL + 16;
    /* OUT: written by all, and sent. IN: come, and free in the other block. */
    static const int OUT_FULL = dS_FREE + 16, OUT_FREE = OUT_FULL + 8, IN_FULL = OUT_FREE + 8;
    static const int IN_FREE = IN_FULL + 8, THERE_FULL = IN_FREE + 8, ALL = THERE_FULL + 8;
    static_assert(ALL <= 227 * 1024, "tiles do not fit");
};

/* Two tiles, for walks. */
template <class C> struct TwoTiles {
    static const int Br = 2 * C::Br;
};

/* K of the other block's keys, from global memory: it does not change. */
template <class C>
static __device__ __forceinline__ void load_keys_there(const KeyMaps &maps, const KeyBlock &block,
                                                       int j_there, uint32_t smem)
{
    barrier_expect(smem + C::THERE_FULL, 2 * C::BOX);
    for (int half = 0; half < 2; half++)
        load_tile(smem + C::K_THERE + half * C::BOX, &maps.K, block.b, block.h_kv,
                  j_there + half * 64, smem + C::THERE_FULL);
}

/* By the producer. Of two tiles the one past the last query has no stats: it takes the first's. */
template <class C>
static __device__ __forceinline__ void produce_pairs(const KeyMaps &maps, const KeyBlock &block,
                                                     const Pass &pass, int H, int Nq, KeyWalk walk,
                                                     uint32_t smem, int rank)
{
    load_keys<C>(maps, block, smem);
    load_keys_there<C>(maps, block, block.j0 + (rank ? -C::Bc : C::Bc), smem);
#pragma unroll 1
    for (int tile = 0; tile < 2 * walk.count; tile++) {
        const int stage = tile % 2, before = tile / 2 % 2 ^ 1, second = stage ^ rank ^ 1;
        const float2 *stats = stats_of_head(pass, block.b * H + walk.h, Nq);
        KeyWalk now = walk;
        now.i0 += second * C::Br;
        barrier_wait(smem + C::Q_FREE + 8 * stage, before, WAIT_FREE_Q);
        load_Q<C>(maps, block, now, now.i0 < Nq ? stats : stats - C::Br, Nq, smem, stage);
        barrier_wait(smem + C::dO_FREE + 8 * stage, before, WAIT_FREE_dO);
        load_dO<C>(maps, block, now, smem, stage);
        if (stage == 1)
            next_tile<TwoTiles<C>>(walk);
    }
}

/* By one thread: dS of every other tile to the other block, when it is written here and there is
 * room there. And what has come: the sender may use its place again. */
template <class C>
static __device__ __forceinline__ void exchange_dS(int pairs, uint32_t smem, uint32_t there)
{
#pragma unroll 1
    for (int pair = 0; pair < pairs; pair++) {
        barrier_wait(smem + C::OUT_FULL, pair % 2, WAIT_dS);
        barrier_wait(smem + C::IN_FREE, pair % 2 ^ 1, WAIT_FREE_dS);
        expect_there(there + C::IN_FULL, C::dS_BYTES);
        copy_there(there + C::dS_IN, smem + C::dS_OUT, C::dS_BYTES, there + C::IN_FULL);
        barrier_wait(smem + C::IN_FULL, pair % 2, WAIT_dS);
        arrive_there(there + C::OUT_FREE);
    }
}

/* By one thread. */
template <class C> static __device__ __forceinline__ void start_pair_barriers(uint32_t smem)
{
    barrier_init(smem + C::OUT_FULL, CONSUMER_THREADS / 32);
    barrier_init(smem + C::OUT_FREE, 1);
    barrier_init(smem + C::IN_FULL, 1);
    barrier_init(smem + C::IN_FREE, CONSUMER_THREADS / 32);
    barrier_init(smem + C::THERE_FULL, 1);
    start_barriers<C>(smem);
}

/* Issues this warpgroup's square of dQ, over the keys of both blocks. dS: own and come. */
template <typename T, class C>
static __device__ __forceinline__ void multiply_dS_K_of_both(float (&dQ)[8][4], uint32_t dS,
                                                             uint32_t dS_in, uint32_t smem,
                                                             int warpgroup)
{
    const int rows = C::D == 64 ? warpgroup * C::dS_PANEL_BYTES : 0;
    const uint32_t K = smem + C::K + (C::D == 64 ? 0 : warpgroup * C::PANEL_BYTES);
    const uint64_t A = tile_descriptor(dS + rows, C::dS_PANEL_BYTES);
    const uint64_t A_in = tile_descriptor(dS_in + rows, C::dS_PANEL_BYTES);
    const uint64_t B = tile_descriptor(K, C::PANEL_BYTES);
    multiply_transposed<T, 0>(dQ, A, B);
#pragma unroll
    for (int k = 1; k < 2 * C::Bc / 16; k++)
        multiply_transposed<T, 1>(dQ, (k < C::Bc / 16 ? A : A_in) + key_tile_step(k % (C::Bc / 16)),
                                  B + (k / 4 * (C::BOX >> 4)) + key_tile_step(k % 4));
    wgmma_commit();
}

/* Issues dV and dK of a tile whose P and dS are there; `full` learns that dS is in shared memory. */
template <typename T, class C>
static __device__ __forceinline__ void
add_keys(float (&dK)[C::D / 8][4], float (&dV)[C::D / 8][4], const uint32_t (&P)[C::Br / 16][4],
         const uint32_t (&dS)[C::Br / 16][4], uint32_t smem, int stage, uint32_t full)
{
    const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES;
    add_product<T, C>(dV, P, Q + C::dO - C::Q);
    add_product<T, C>(dK, dS, Q);
    fence_async();
    report(full);
}

/* S and dP of the tile in `stage`, while dV and dK of the tile before are at work; then the other
 * warpgroup's turn (if given), P and dS. free: the tile before lies there no more. */
template <typename T, class C>
static __device__ __forceinline__ void
next_pairs(uint32_t (&P)[C::Br / 16][4], uint32_t (&dS)[C::Br / 16][4], float (&dK)[C::D / 8][4],
           float (&dV)[C::D / 8][4], const Band &band, float scale, int i0, int j0, int stage,
           int parity, unsigned char *smem_bytes, int warpgroup, bool gives)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    uint32_t my_K = smem + C::K + warpgroup * C::BOX;
    asm volatile("" : "+r"(my_K)); /* computed anew: no registers for it from tile to tile */
    const uint32_t my_V = my_K + C::V - C::K;
    const int Q = C::Q + stage * C::ROWS_BYTES, dO = Q + C::dO - C::Q;
    float S[C::Br / 8][4], dP[C::Br / 8][4];
    barrier_wait(smem + C::Q_FULL + 8 * stage, parity, WAIT_Q);
    clear_unseen_rows<C>(smem_bytes + Q, rows_that_see(band), i0, band.Nq);
    wgmma_wait<1>(dV); /* P is read: room for S */
    wgmma_begin();
    multiply_rows<T, C>(S, my_K, smem + Q);
    barrier_wait(smem + C::dO_FULL + 8 * stage, parity, WAIT_dO);
    clear_unseen_rows<C>(smem_bytes + dO, rows_that_see(band), i0, band.Nq);
    wgmma_wait<1>(dK); /* dS is read: room for dP */
    wgmma_begin();
    multiply_rows<T, C>(dP, my_V, smem + dO);
    if (gives)
        threads_arrive(TURN + (1 - warpgroup), CONSUMER_THREADS);
    report(smem + C::dO_FREE + 8 * (1 - stage));
    report(smem + C::Q_FREE + 8 * (1 - stage));
    wgmma_wait<1>(S);
    weigh_pairs<T, C>(P, dS, S, dP, scale, band, i0, j0,
                      (const float2 *)(smem_bytes + C::STATS + stage * C::STATS_BYTES));
}

/* dK and dV of 64 keys over a walk of two tiles a step; dQ of one of them is added. As
 * consume_in_turns of v12; stage 0 is the other block's tile, stage 1 the own. */
template <typename T, class C>
static __device__ __forceinline__ void
consume_pairs(float (&dK)[C::D / 8][4], float (&dV)[C::D / 8][4], const Pass &pass,
              const Band &band, const KeyBlock &block, int H, float scale, KeyWalk walk,
              unsigned char *smem_bytes, int warpgroup, int rank, uint32_t there)
{
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int last = walk.count - 1, to_own = rank * C::Br, to_other = C::Br - to_own;
    const bool is_first = warpgroup == 0;
    /* dS_before, dS_in: in front of the first tile K, as in v12. */
    uint32_t P[C::Br / 16][4], dS[C::Br / 16][4];
    int head = 0, i_before = 1 << 30; /* of the own tile before: none yet, so dQ is dropped */
    start_sums<C>(dK, dV);
    wgmma_wait<0>(dK); /* nothing is in flight: it keeps the zeros in front of the products */
    wgmma_wait<0>(dV);
    barrier_wait(smem + C::KV_FULL, 0, WAIT_K);
    if (walk.count > 0) { /* S, dP, P and dS of the first tile */
        const uint32_t my_K = smem + C::K + warpgroup * C::BOX, my_V = my_K + C::V - C::K;
        const int i0 = walk.i0 + to_other;
        float S[C::Br / 8][4], dP[C::Br / 8][4];
        barrier_wait(smem + C::Q_FULL, 0, WAIT_Q);
        barrier_wait(smem + C::dO_FULL, 0, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + C::Q, rows_that_see(band), i0, band.Nq);
        clear_unseen_rows<C>(smem_bytes + C::dO, rows_that_see(band), i0, band.Nq);
        wgmma_begin();
        multiply_rows<T, C>(S, my_K, smem + C::Q);
        multiply_rows<T, C>(dP, my_V, smem + C::dO);
        wgmma_wait<1>(S);
        weigh_pairs<T, C>(P, dS, S, dP, scale, band, i0, block.j0,
                          (const float2 *)(smem_bytes + C::STATS));
        store_dS<C>(smem + C::dS_OUT, dS, warpgroup);
    }
    barrier_wait(smem + C::THERE_FULL, 0, WAIT_K);
    if (walk.count == 0)
        return;
    if (warpgroup == 1)
        threads_arrive(TURN, CONSUMER_THREADS);
#pragma unroll 1
    for (int tile = 0; tile <= 2 * last; tile++) {
        const int stage = tile % 2, pair = tile / 2, next = 1 - stage;
        const int place = pair % C::OWN_PLACES, before = (pair + C::OWN_PLACES - 1) % C::OWN_PLACES;
        float dQ[8][4];
        if (stage == 0 && tile > 0) {
            barrier_wait(smem + C::dS_FULL + 8 * before, (pair - 1) / C::OWN_PLACES % 2, WAIT_dS);
            barrier_wait(smem + C::IN_FULL, pair % 2 ^ 1, WAIT_dS);
        }
        threads_sync(TURN + warpgroup, CONSUMER_THREADS);
        if (stage == 0) {
            wgmma_begin();
            multiply_dS_K_of_both<T, C>(dQ, smem + (tile ? C::dS + before * C::dS_BYTES : C::K),
                                        smem + (tile ? C::dS_IN : C::K), smem, warpgroup);
            add_keys<T, C>(dK, dV, P, dS, smem, 0, smem + C::OUT_FULL);
            wgmma_wait<2>(dQ);
            if (tile > 0) {
                report(smem + C::dS_FREE + 8 * before);
                if (threadIdx.x % 32 == 0)
                    arrive_there(cluster_address(smem + C::IN_FREE, 1 - rank));
            }
            add_dQ(dQ_square<C>(pass.dQ_sum, head, band.Nq, i_before, warpgroup), dQ);
            head = block.b * H + walk.h;
            i_before = walk.i0 + to_own;
        } else {
            wgmma_begin();
            add_keys<T, C>(dK, dV, P, dS, smem, 1, smem + C::dS_FULL + 8 * place);
            next_tile<TwoTiles<C>>(walk);
        }
        next_pairs<T, C>(P, dS, dK, dV, band, scale, walk.i0 + (stage ? to_other : to_own),
                         block.j0, next, (tile + 1) / 2 % 2, smem_bytes, warpgroup,
                         is_first || tile < 2 * last);
        if (stage == 0)
            barrier_wait(smem + C::dS_FREE + 8 * place, pair / C::OWN_PLACES % 2 ^ 1, WAIT_FREE_dS);
        else
            barrier_wait(smem + C::OUT_FREE, pair % 2, WAIT_FREE_dS);
        store_dS<C>(smem + (stage ? C::dS_OUT : C::dS + place * C::dS_BYTES), dS, warpgroup);
    }
    {
        const int place = last % C::OWN_PLACES;
        float dQ[8][4];
        wgmma_begin();
        add_keys<T, C>(dK, dV, P, dS, smem, 1, smem + C::dS_FULL + 8 * place);
        barrier_wait(smem + C::dS_FULL + 8 * place, last / C::OWN_PLACES % 2, WAIT_dS);
        barrier_wait(smem + C::IN_FULL, last % 2, WAIT_dS);
        wgmma_begin();
        multiply_dS_K_of_both<T, C>(dQ, smem + C::dS + place * C::dS_BYTES, smem + C::dS_IN, smem,
                                    warpgroup);
        wgmma_wait<0>(dQ);
        add_dQ(dQ_square<C>(pass.dQ_sum, head, band.Nq, i_before, warpgroup), dQ);
    }
    wgmma_wait<0>(dK);
    wgmma_wait<0>(dV);
}

template <typename T, class C>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    pair_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass,
                const __grid_constant__ KeyMaps maps)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const int rank = blockIdx.x % 2;
    const uint32_t there = cluster_address(smem, 1 - rank);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    KeyBlock block = block_of_keys(blockIdx.x / 2, p.H, p.Hkv, p.Nk, 2 * C::Bc);
    const KeyWalk walk =
        start_walk<TwoTiles<C>>(block, rows_that_see(band, block.j0, 2 * C::Bc));
    block.j0 += rank * C::Bc;
    if (threadIdx.x == 0)
        start_pair_barriers<C>(smem);
    cluster_arrive();
    cluster_wait(); /* the other block has begun, and its barriers are made */
    if (warpgroup == PRODUCER) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0)
            produce_pairs<C>(maps, block, pass, p.H, p.Nq, walk, smem, rank);
        if (threadIdx.x % 128 == 32)
            exchange_dS<C>(walk.count, smem, there);
        __syncwarp();
        cluster_arrive();
    } else {
        float dK[C::D / 8][4], dV[C::D / 8][4];
        registers_take<CONSUMER_REGISTERS>();
        consume_pairs<T, C>(dK, dV, pass, band, block, p.H, p.scale, walk, smem_bytes, warpgroup,
                            rank, there);
        cluster_arrive();
        store_gradients<T, C>(dK, dV, p.scale, maps, block, p.Nk, smem_bytes, warpgroup);
        __syncwarp();
    }
    cluster_wait(); /* the other block has no more to do with this one's shared memory */
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef PairKeys<D> C;
    const PassSizes sizes = sizes_of(p);
    KeyMaps maps;
    if (!make_key_maps<T, D>(&maps, sizes, p->Hkv, p->Q, p->K, p->V, p->dO, p->dK, p->dV))
        return note_failure();
    if (!reserve_smem((const void *)pair_kernel<T, C>, C::ALL))
        return;
    const Pass pass =
        prepare<T, D>(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, stream_of(p));
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = 2;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2 * key_blocks(p, 2 * C::Bc));
    config.blockDim = dim3(128 + CONSUMER_THREADS);
    config.dynamicSmemBytes = C::ALL;
    config.stream = stream_of(p);
    config.attrs = &cluster;
    config.numAttrs = 1;
    if (cudaLaunchKernelEx(&config, pair_kernel<T, C>, *p, pass, maps) != cudaSuccess ||
        !launch_is_done(stream_of(p), "v14_cluster_pair"))
        return note_failure();
    round_squares<T, D>(sizes, p->scale, pass.dQ_sum, (T *)p->dQ, stream_of(p));
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

RUNG(flash_backward, v14_cluster_pair, "two blocks exchange dS, so dQ has half as many adds",
     F16 | BF16, NULL, backward, work, tiles, SM90A | ATOMICS);
