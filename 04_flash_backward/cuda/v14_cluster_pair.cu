/* SPDX-License-Identifier: MIT
 *
 * v14_cluster_pair: d = 256. Two blocks share what neither can hold: dQ over twice as many keys.
 *
 * dK and dV of 64 keys and 256 channels fill the registers of two warpgroups, so a block has 64
 * keys, not 128 as in v13. In every tile of 64 queries it would add 64 KiB of dQ to memory: twice
 * what v13 adds, for the same products. These adds, not the products, are then what takes the time.
 *
 * So two blocks of a cluster walk over the same queries, each with its 64 keys, and each makes half
 * of dQ's channels over the keys of both. It needs dS of the other block, 8 KiB a tile, and once
 * half the channels of the other's K. The copy engine brings both from the other block's shared
 * memory. Each block adds 32 KiB a tile, and no product is computed twice:
 *
 *                 keys         dS of a tile    dQ of a tile
 *     block 0     0 ... 63     to block 1      channels   0 ... 127, over keys 0 ... 127
 *     block 1    64 ... 127    to block 0      channels 128 ... 255, over keys 0 ... 127
 *
 * Both read the same Q and dO. Each loads half of them, and the copy engine writes it to both
 * (multicast): L2 is read once where it was read twice. A place is free when both blocks say so.
 *
 * The two warpgroups of a block share S and dP by queries, 32 each, and dK and dV by channels, 128
 * each. So both need all of P and dS: their own from registers, the other's by shared memory. One
 * tile t, in the order in which a warpgroup issues it:
 *
 *     tensor cores   dV          | S of t + 1 | dK                | dQ           | dP of t + 1
 *     threads         dS of t                  adds of dQ of t - 1   P of t + 1
 *     copy engine                  dS there    | dO of t + 1          | Q of t + 2
 *
 * An add leaves the registers at 32 bytes a clock, and no product may write them before: some 1,000
 * clocks. So the warpgroups take turns, one adds before it issues dK, the other after it.
 *
 *     registers     S 16, dP 16, dQ 32, dK 64, dV 64, P and dS as factors 8 + 8 = 208 of 240
 *     memory, KiB   K 32, the other's K 16, V 32, Q 2 x 32, dO 32, P 8, dS 2 x 8, the other's
 *                   dS 2 x 8, stats 1 = 217 of 227
 *
 * Prediction (H200, bf16, N = 16384), TFLOP/s: a kernel of one block (the library's, then) takes
 * some 6,000 clocks a tile at 403 full, 411 causal. Here the products take 3,070 (S and dP, 32
 * queries wide, are bound by shared memory), shared memory is busy for 3,700, L2 has 1,950 clocks
 * of adds beside it. With some waits for shared memory 4,300: 560 full, 540 causal.
 * Measured: docs/lab/04_hopper.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 256, on sm_90.
 */
#include "problem.cuh"
#include "units/fused_delta.cuh"
#include "units/wgmma_pair.cuh"

/* What a consumer knows of its block, from tile to tile. */
struct Consumer {
    Band band;
    float scale_log2;
    int j0, rank, warpgroup;
    uint32_t there; /* the other block's shared memory */
};

/* --- the copy engine's work, by two threads ----------------------------------------------------*/

/* Q has two places, since S of the next tile is multiplied before dK of this one; dO has one. */
static __device__ __forceinline__ void produce_pair(const KeyMaps &maps, const KeyBlock &block,
                                                    const Pass &pass, int H, int Nq, KeyWalk walk,
                                                    uint32_t smem, int rank)
{
    typedef PairKeys C;
    const uint32_t half = rank * (C::BOX / 2);
    barrier_expect(smem + C::KV_FULL, 2 * C::BOX);
    load_tile(smem + C::K, &maps.K, block.b, block.h_kv, block.j0, smem + C::KV_FULL);
    load_tile(smem + C::V, &maps.V, block.b, block.h_kv, block.j0, smem + C::KV_FULL);
#pragma unroll 1
    for (int tile = 0; tile < walk.count; tile++) {
        const int stage = tile % 2;
        const uint32_t Q_full = smem + C::Q_FULL + 8 * stage, dO_full = smem + C::dO_FULL;
        barrier_wait(smem + C::Q_FREE + 8 * stage, tile / 2 % 2 ^ 1, WAIT_FREE_Q);
        barrier_expect(Q_full, C::ROWS_BYTES + C::STATS_BYTES);
        load_for_both(smem + C::Q + stage * C::ROWS_BYTES + half, &maps.Q, block.b, walk.h, walk.i0,
                      0, 2 * rank, Q_full);
        load_bytes(smem + C::STATS + stage * C::STATS_BYTES,
                   stats_of_head(pass, block.b * H + walk.h, Nq) + walk.i0, C::STATS_BYTES, Q_full);
        barrier_wait(smem + C::dO_FREE, tile % 2 ^ 1, WAIT_FREE_dO);
        barrier_expect(dO_full, C::ROWS_BYTES);
        load_for_both(smem + C::dO + half, &maps.dO, block.b, walk.h, walk.i0, 0, 2 * rank,
                      dO_full);
        next_tile<C>(walk);
    }
}

/* The half of K that the other block needs, once, and dS of every tile. No barrier guards the two
 * places of dS, here or there. A warp that writes dS of tile t has waited for the other block's dS
 * of t - 1 (IN_FULL). That block wrote it after its dQ of t - 2, the last to read the place. The
 * other warpgroup of this block has reported dS of t - 1 (dS_OF): its dQ of t - 2 is done, too. */
static __device__ __forceinline__ void send(int tiles, uint32_t smem, uint32_t there, int rank)
{
    typedef PairKeys C;
    if (tiles == 0) /* the consumers write dK over K at once, so K may not be read */
        return;
    barrier_wait(smem + C::KV_FULL, 0, WAIT_K);
    expect_there(there + C::K_IN_FULL, C::BOX / 2);
    copy_there(there + C::K_IN, smem + C::K + (1 - rank) * (C::BOX / 2), C::BOX / 2,
               there + C::K_IN_FULL);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
        const int place = tile % 2;
        barrier_wait(smem + C::OUT_FULL + 8 * place, tile / 2 % 2, WAIT_dS);
        expect_there(there + C::IN_FULL + 8 * place, C::SCORES_BYTES);
        copy_there(there + C::dS_IN + place * C::SCORES_BYTES,
                   smem + C::dS + place * C::SCORES_BYTES, C::SCORES_BYTES,
                   there + C::IN_FULL + 8 * place);
    }
}

/* --- between the products ----------------------------------------------------------------------*/

/* S has come: P^T of the tile at i0, in place, as a factor and in shared memory. */
template <typename T>
static __device__ __forceinline__ void weigh(uint32_t (&P)[2][4], float (&S)[4][4],
                                             const Consumer &c, int i0, unsigned char *smem_bytes,
                                             int stage)
{
    typedef PairKeys C;
    const int j = c.j0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const float2 *stats =
        (const float2 *)(smem_bytes + C::STATS + stage * C::STATS_BYTES) + 32 * c.warpgroup;
    if (!sees_all<C>(c.band, i0, c.j0))
        hide_pairs<PairRows>(S, {rows_of_key(c.band, j), rows_of_key(c.band, j + 8)},
                             i0 + 32 * c.warpgroup);
    exponentiate<PairRows>(S, stats, c.scale_log2);
    store_half<T>(P, (uint32_t)__cvta_generic_to_shared(smem_bytes) + C::P, S, c.warpgroup);
    threads_arrive(P_OF + c.warpgroup, CONSUMER_THREADS);
}

/* One tile, as the head of this file draws it; of the next one S, P and the beginning of dP. Before
 * it P is there (rounded, and as floats in S), and dP is being multiplied. add: where dQ of the
 * tile before is added, or NULL. LAST: there is no next one. wgmma_wait<n>(x): at most the last n
 * groups are at work, and x is done. */
template <typename T, bool LAST>
static __device__ __forceinline__ void
walk_tile(uint32_t (&P)[2][4], float (&S)[4][4], float (&dP)[4][4], float (&dQ)[8][4],
          float (&dK)[16][4], float (&dV)[16][4], const Consumer &c, int tile, int i_next,
          float *add, unsigned char *smem_bytes)
{
    typedef PairKeys C;
    uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes), dS_factor[2][4];
    asm volatile(
        ""
        : "+r"(smem)); /* descriptors are computed anew in each tile: none stays in registers */
    const int stage = tile % 2, next = 1 - stage, parity = tile / 2 % 2, other = 1 - c.warpgroup;
    const uint32_t Q = smem + C::Q + stage * C::ROWS_BYTES,
                   dS = smem + C::dS + stage * C::SCORES_BYTES;
    const float2 *stats =
        (const float2 *)(smem_bytes + C::STATS + stage * C::STATS_BYTES) + 32 * c.warpgroup;
    const RowRange seeing = rows_that_see(c.band);
    wgmma_wait<0>(dP);
    wgmma_begin();
    add_own_queries<T>(dV, P, smem + C::dO, c.warpgroup);
    threads_sync(P_OF + other, CONSUMER_THREADS);
    add_other_queries<T>(dV, smem + C::P, smem + C::dO, c.warpgroup);
    multiply_by_P<PairRows>(dP, S, stats);
    store_half<T>(dS_factor, dS, dP, c.warpgroup);
    report(smem + C::OUT_FULL + 8 * stage);
    if (!LAST) {
        barrier_wait(smem + C::Q_FULL + 8 * next, (tile + 1) / 2 % 2, WAIT_Q);
        clear_unseen_rows<C>(smem_bytes + C::Q + next * C::ROWS_BYTES, seeing, i_next, c.band.Nq);
        wgmma_begin();
        multiply_half<T>(S, smem + C::K, smem + C::Q + next * C::ROWS_BYTES, c.warpgroup);
    }
    wgmma_wait<LAST ? 0 : 1>(dV);
    report_to_both(smem, c.there, C::dO_FREE);
    threads_arrive(dS_OF + c.warpgroup,
                   CONSUMER_THREADS); /* also: this one has read the other's P */
    if (c.warpgroup == 0)
        add_dQ(add, dQ);
    wgmma_begin();
    add_own_queries<T>(dK, dS_factor, Q, c.warpgroup);
    threads_sync(dS_OF + other, CONSUMER_THREADS);
    add_other_queries<T>(dK, dS, Q, c.warpgroup);
    if (c.warpgroup == 1)
        add_dQ(add, dQ);
    barrier_wait(smem + C::IN_FULL + 8 * stage, parity, WAIT_dS);
    wgmma_begin();
    multiply_dS_K_of_both<T>(dQ, smem, stage, c.rank, c.warpgroup);
    if (!LAST) {
        wgmma_wait<2>(S);
        weigh<T>(P, S, c, i_next, smem_bytes, next);
    }
    wgmma_wait<1>(dK);
    report_to_both(smem, c.there, C::Q_FREE + 8 * stage);
    if (!LAST) {
        barrier_wait(smem + C::dO_FULL, (tile + 1) % 2, WAIT_dO);
        clear_unseen_rows<C>(smem_bytes + C::dO, seeing, i_next, c.band.Nq);
        wgmma_begin();
        multiply_half<T>(dP, smem + C::V, smem + C::dO, c.warpgroup);
    }
    wgmma_wait<LAST ? 0 : 1>(dQ);
}

/* Where this warp's slab of dQ is added up. */
static __device__ __forceinline__ float *slab_of(const Pass &pass, int head, const Consumer &c,
                                                 int i0)
{
    const int warp = threadIdx.x % 128 / 32, panels = PairKeys::D / 64;
    const int64_t tile = (int64_t)head * divide_up(c.band.Nq, 64) + i0 / 64;
    return pass.dQ_sum + tile * (64 * PairKeys::D) +
           (warp * panels + 2 * c.rank + c.warpgroup) * (16 * 64);
}

/* dK and dV of 64 keys over a walk; dQ is added. */
template <typename T>
static __device__ __forceinline__ void
consume_pair(float (&dK)[16][4], float (&dV)[16][4], const Pass &pass, const Consumer &c,
             const KeyBlock &block, int H, KeyWalk walk, unsigned char *smem_bytes)
{
    typedef PairKeys C;
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const RowRange seeing = rows_that_see(c.band);
    uint32_t P[2][4];
    float S[4][4], dP[4][4], dQ[8][4], *add = NULL;
    start_sums<PairChannels>(dK, dV);
    wgmma_wait<0>(dK); /* nothing is in flight; it keeps the compiler from moving the zeros */
    wgmma_wait<0>(dV);
    barrier_wait(smem + C::KV_FULL, 0, WAIT_K); /* without tiles, too: dK is written there */
    if (walk.count == 0)
        return;
    barrier_wait(smem + C::K_IN_FULL, 0, WAIT_K);
    barrier_wait(smem + C::Q_FULL, 0, WAIT_Q);
    barrier_wait(smem + C::dO_FULL, 0, WAIT_dO);
    clear_unseen_rows<C>(smem_bytes + C::Q, seeing, walk.i0, c.band.Nq);
    clear_unseen_rows<C>(smem_bytes + C::dO, seeing, walk.i0, c.band.Nq);
    wgmma_begin();
    multiply_half<T>(S, smem + C::K, smem + C::Q, c.warpgroup);
    multiply_half<T>(dP, smem + C::V, smem + C::dO, c.warpgroup);
    wgmma_wait<1>(S);
    weigh<T>(P, S, c, walk.i0, smem_bytes, 0);
#pragma unroll 1
    for (int tile = 0; tile < walk.count - 1; tile++) {
        float *const before = add;
        add = slab_of(pass, block.b * H + walk.h, c, walk.i0);
        next_tile<C>(walk);
        walk_tile<T, false>(P, S, dP, dQ, dK, dV, c, tile, walk.i0, before, smem_bytes);
    }
    walk_tile<T, true>(P, S, dP, dQ, dK, dV, c, walk.count - 1, 0, add, smem_bytes);
    add_dQ(slab_of(pass, block.b * H + walk.h, c, walk.i0), dQ);
}

/* dK and dV through the place of K and V, each warpgroup its panels. Rows past the end are left
 * out; where all are, nothing is stored. */
template <typename T>
static __device__ __forceinline__ void
store_pair(const float (&dK)[16][4], const float (&dV)[16][4], float scale, const KeyMaps &maps,
           const KeyBlock &block, int Nk, unsigned char *smem_bytes, int warpgroup)
{
    typedef PairKeys C;
    unsigned char *K = smem_bytes + C::K + 2 * warpgroup * C::PANEL_BYTES;
    threads_sync(CONSUMERS_MEET,
                 CONSUMER_THREADS); /* nobody reads K and V: the other block has its half of K */
    round_keys<T, PairChannels>(dK, scale, K);
    round_keys<T, PairChannels>(dV, 1.0f, K + C::V - C::K);
    fence_async();
    threads_sync(CONSUMERS_MEET, CONSUMER_THREADS);
    if (threadIdx.x == 0 && block.j0 < Nk) {
        const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
        store_tile(smem + C::K, &maps.dK, block.b, block.h_kv, block.j0);
        store_tile(smem + C::V, &maps.dV, block.b, block.h_kv, block.j0);
        store_tiles_read();
    }
}

template <typename T>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    pair_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass,
                const __grid_constant__ KeyMaps maps)
{
    typedef PairKeys C;
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    /* __shfl_sync: one number for all lanes of a warp (stage 03, v9) */
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), rank = blockIdx.x % 2;
    const uint32_t there = cluster_address(smem, 1 - rank);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    /* The walk is that of both blocks' 128 keys; then j0 of this one. */
    KeyBlock block = block_of_keys(blockIdx.x / 2, p.H, p.Hkv, p.Nk, 2 * C::Bc);
    const KeyWalk walk = start_walk<C>(block, rows_that_see(band, block.j0, 2 * C::Bc));
    block.j0 += rank * C::Bc;
    if (threadIdx.x == 0)
        start_pair_barriers(smem);
    cluster_arrive();
    cluster_wait(); /* the other block has begun, and its barriers are made */
    if (warpgroup == PRODUCER) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0)
            produce_pair(maps, block, pass, p.H, p.Nq, walk, smem, rank);
        if (threadIdx.x % 128 == 32)
            send(walk.count, smem, there, rank);
        __syncwarp();
        cluster_arrive();
    } else {
        float dK[16][4], dV[16][4];
        registers_take<CONSUMER_REGISTERS>();
        consume_pair<T>(dK, dV, pass,
                        {band, p.scale * (float)M_LOG2E, block.j0, rank, warpgroup, there}, block,
                        p.H, walk, smem_bytes);
        cluster_arrive(); /* nothing more is written to the other block */
        store_pair<T>(dK, dV, p.scale, maps, block, p.Nk, smem_bytes, warpgroup);
        __syncwarp();
    }
    cluster_wait(); /* the other block has no more to do with this one's shared memory */
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

/* make_tile_map, of half the panels: what one block loads for both. */
template <typename T> static bool make_half_map(CUtensorMap *map, const void *X, const Problem *p)
{
    const cuuint64_t head = PairKeys::D * sizeof(T), row = p->H * head, panel = PANEL * sizeof(T);
    const cuuint64_t sizes[5] = {PANEL, (cuuint64_t)p->Nq, PairKeys::D / PANEL, (cuuint64_t)p->H,
                                 (cuuint64_t)p->B};
    const cuuint64_t bytes[4] = {row, panel, head, p->Nq * row};
    const cuuint32_t box[5] = {PANEL, PairKeys::Br, PairKeys::D / PANEL / 2, 1, 1};
    return encode_map(map, MAP_TYPE<T>, 5, X, sizes, bytes, box);
}

template <typename T> static void launch(const Problem *p)
{
    typedef PairKeys C;
    const PassSizes sizes = sizes_of(p);
    KeyMaps maps;
    if (!make_key_maps<T, C::D>(&maps, sizes, p->Hkv, p->Q, p->K, p->V, p->dO, p->dK, p->dV) ||
        !make_half_map<T>(&maps.Q, p->Q, p) || !make_half_map<T>(&maps.dO, p->dO, p))
        return note_failure();
    if (!reserve_smem((const void *)pair_kernel<T>, C::ALL))
        return;
    const Pass pass =
        prepare<T, C::D>(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, stream_of(p));
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
    if (cudaLaunchKernelEx(&config, pair_kernel<T>, *p, pass, maps) != cudaSuccess ||
        !launch_is_done(stream_of(p), "v14_cluster_pair"))
        return note_failure();
    round_slabs<T, C::D>(sizes, p->scale, pass.dQ_sum, (T *)p->dQ, stream_of(p));
}

static void backward(const Problem *p)
{
#ifdef ATTN_NO_CUDA_F16
    launch<__nv_bfloat16>(p);
#else
    p->dtype == BF16 ? launch<__nv_bfloat16>(p) : launch<__half>(p);
#endif
}

static int64_t work(const Problem *p, int)
{
    return pass_bytes(sizes_of(p), true);
}

static Tiles tiles(const Problem *)
{
    return {64, 128}; /* of both blocks */
}

RUNG(flash_backward, v14_cluster_pair, "d = 256: two blocks exchange dS, half as many adds of dQ",
     F16 | BF16, NULL, backward, work, tiles, SM90A | ATOMICS | D_256);
