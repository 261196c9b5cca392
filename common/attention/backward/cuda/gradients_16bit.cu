/* SPDX-License-Identifier: MIT
 *
 * gradients_16bit: the fastest portable backward kernel (sm_80 and later), for any mask and layout.
 *
 * What makes it fast are the steps of the rungs in ../../cuda, of which v9_warp_pairs has all:
 * scores the other way round, loads ahead, dQ in the order of the accumulators, full tiles, one
 * barrier (at d = 256 two, and loads during dQ), 32 keys for a fragment. What it has beyond them:
 *
 *   - Tiles that are visited, and their masks, follow from tables that a small kernel makes first
 *     (row_walk.cuh), so that a block does not start with a chain of dependent loads.
 *   - Masked tiles with runs of keys cost little more than full ones (score_factors.cuh), and half
 *     a tile is left out where the first or the second half of its keys is not seen. Keys in
 *     several segments, as in a ring's zigzag, have runs for each of them.
 *   - Longest first: under a causal mask the first keys are seen by all queries. Sections of heads
 *     whose Q, dO and dQ fit the L2 cache, as in stage 03.
 *   - --deterministic: tiles of keys take turns at each tile of dQ (see wait_for_turn).
 *   - Two sizes of tiles for each d, the smaller one in 99 KiB of shared memory.
 *
 * On a GPU of compute capability 9.0 the kernels of hopper_gradients.cu are asked first.
 *
 * Interface:
 * - flash_gradients_run, flash_gradients_workspace_bytes, flash_gradients_tiles (block.cuh): f16
 *   and bf16, d <= 256, any shape, mask and layout, into sums or tensors.
 * - flash_gradients_add, flash_gradients_tables_bytes (block_add.h).
 */
#include <type_traits>

#include "block.cuh"
#include "block_add.h"
#include "gradient_launch.cuh"
#include "gradient_loads.cuh"
#include "gradient_order.cuh"
#include "key_sums.cuh"
#include "store_keys.cuh"

/* IN_TURNS: tiles of keys add to dQ in a fixed order. */
template <typename T, class C, bool IN_TURNS>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    gradients_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ GradientPlan plan)
{
    typedef GradientBytes<C> Bytes;
    extern __shared__ __align__(1024) unsigned char smem[];
    __shared__ KeyTask task; /* not in registers: the products need them all */
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    const int H = (int)a.shape.H;
    if (threadIdx.x == 0) /* a block waits for those that have started before it, for no other */
        take_task<C>(task, a, plan, IN_TURNS ? atomicAdd(plan.w.ticket, 1) : blockIdx.x);
    __syncthreads();

    load_keys<T, C>(a.K, smem + Bytes::K, a, plan, task);
    load_keys<T, C>(a.V, smem + Bytes::V, a, plan, task);
    RowWalk walk; /* each warp has its own, all lanes the same */
    auto next_of_walk = [&]() {
        return next_tile<C::Bc>(walk, plan.w.tables, task.look, a, plan.group,
                                task.work.j0 / C::Bc);
    };
    start_walk(walk, task.look);
    RowTile next = next_of_walk();
    if (next.i >= 0)
        load_rows<T, C>(next, 0, smem, a, plan, task);
    copy_async_commit();
    const LaneAddresses start = lane_addresses<C>(smem_address, threadIdx.x);

    /* dQ of tile `tile` of the group's rows: its dS is complete since the last barrier. */
    auto add_dQ = [&](int tile, int dS_stage) {
        const KeyWork &work = task.work;
        float dQ[C::dQ_M][C::dQ_N][4];
        const LaneAddresses at = lane_addresses<C>(smem_address, read_thread());
        multiply_dS_K<T, C>(dQ, at.dS + dS_stage * Bytes::dS_STAGE, Bytes::dS, at.K_turned,
                            Bytes::K);
        const int64_t part =
            (int64_t)(work.b * H + work.h_kv * plan.group) * plan.w.tables.Tr + tile;
        float *to = plan.w.fragments + part * (C::Br * C::D);
        int *turn = plan.w.turns + part * C::WARPS + threadIdx.x / 32;
        const int j = work.j0 / C::Bc;
        if (IN_TURNS)
            wait_for_turn(turn,
                          tile_before(plan.w.tables, a, tile % plan.w.tables.Tr, j, plan.step));
        add_fragments<C>(to, dQ);
        if (IN_TURNS)
            give_turn(turn, j);
    };
    KeySums<C> sums;
    auto addresses_of = [&](int stage) {
        LaneAddresses at = C::LEAN ? lane_addresses<C>(smem_address, read_thread()) : start;
        at.right += stage * Bytes::STAGE;
        at.turned += stage * Bytes::STAGE;
        return at;
    };
    auto step = [&](auto code, int stage) {
        add_tile<T, C, code.value>(sums.dK, sums.dV, a, addresses_of(stage), smem, stage,
                                   task.runs ? task.work.j0 : -1);
    };
    auto step_by_runs = [&](int stage) {
        const PairMask mask = {(const uint32_t *)(smem + Bytes::WORDS + stage * Bytes::WORDS_STAGE),
                               task.work.j0};
        const uint32_t halves = C::MT == 2 ? seen_halves<C>(mask) : 3;
        if (halves == 1)
            add_half_tile<T, C, 0>(sums, a, addresses_of(stage), smem, stage, task.work.j0);
        else if (halves == 2)
            add_half_tile<T, C, C::MT - 1>(sums, a, addresses_of(stage), smem, stage, task.work.j0);
        else
            step(std::integral_constant<TileCode, TILE_RUNS>(), stage);
    };
    auto load_next = [&](int stage) {
        if (next.i >= 0)
            load_rows<T, C>(next, stage, smem, a, plan, task);
        copy_async_commit();
    };
    clear_sums<C>(sums);
    int stage = 0, previous = -1;
#pragma unroll 1
    while (next.i >= 0) {
        const int tile = next.g * plan.w.tables.Tr + next.i;
        const bool masked = next.masked;
        next = next_of_walk();
        copy_async_wait<0>();
        __syncthreads(); /* the tile is there; of two stages the other is free, its dS complete */
        if (C::DEPTH == 2) {
            load_next(1 - stage);
            if (previous >= 0)
                add_dQ(previous, 1 - stage);
        }
        if (masked)
            clear_empty_rows<C>(smem, stage);
        if (!masked)
            step(std::integral_constant<TileCode, TILE_CLEAN>(), stage);
        else if (plan.plain && task.runs)
            step_by_runs(stage);
        else
            step(std::integral_constant<TileCode, TILE_GENERAL>(), stage);
        if (C::DEPTH == 2) {
            previous = tile;
            stage = 1 - stage;
        } else {
            __syncthreads(); /* dS is there, Q and dO are free: they arrive beside the product */
            load_next(0);
            add_dQ(tile, 0);
        }
    }
    copy_async_wait<0>();
    __syncthreads();
    if (previous >= 0)
        add_dQ(previous, 1 - stage);
    __syncthreads(); /* K and V are not needed any more: room for dK and dV */
    store_keys<T, C>(sums.dK, a.scale, a.dK, plan.sums.dK, smem + Bytes::K, a, task.work, plan.wide,
                     plan.fresh);
    store_keys<T, C>(sums.dV, 1.0f, a.dV, plan.sums.dV, smem + Bytes::V, a, task.work, plan.wide,
                     plan.fresh);
}

template <typename T, class C, bool IN_TURNS>
static AttnStatus launch_gradients(const AttnArgs *a, const float *delta, FlashSums sums,
                                   void *workspace, int parts, FlashKeysOptions keys)
{
    const AttnShape *n = &a->shape;
    cudaStream_t stream = (cudaStream_t)a->stream;
    GradientPlan plan = {};
    if (n->Nq + n->Nk == 0)
        return ATTN_OK; /* a grid of no block is an error: so it is below */
    plan.sums = sums;
    plan.step = IN_TURNS && a->rule.right >= 0 ? -1 : 1;
    plan.group = (int)(n->H / n->Hkv);
    plan.plain = !(a->softcap > 0.0f) && a->scale > 0.0f;
    plan.aligned = all_rows_on_16_bytes(a) && rows_on_16_bytes(&a->dO);
    plan.wide = !sums.dK && rows_on_16_bytes(&a->dK) && rows_on_16_bytes(&a->dV);
    place_workspace<C>(&plan.w, n, workspace, IN_TURNS);
    if (keys.tables_dev)
        place_tables<C>(&plan.w.tables, n, keys.tables_dev);
    plan.fresh = keys.fresh;
    int device = 0, multiprocessors = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    plan.section_heads =
        heads_of_section(a, IN_TURNS, plan.w.tables.Tc, multiprocessors * C::BLOCKS);
    const int64_t rows = n->B * n->H * plan.w.tables.Tr * C::Br;
    const int walk = walk_blocks(plan.w.tables, C::Br);
    const AttnStatus status = /* asked first: a refusal leaves nothing behind */
        reserve_smem(gradients_kernel<T, C, IN_TURNS>, GradientBytes<C>::ALL);
    if (status != ATTN_OK)
        return status;
    if (parts & GRADIENTS_BEGIN) {
        prepare_kernel<T, C>
            <<<(unsigned)(walk + (rows * PrepareLanes<C::D>::LANES + 255) / 256), 256, 0, stream>>>(
                *a, delta, plan.w, walk, rows_on_16_bytes(&a->O) && rows_on_16_bytes(&a->dO));
        CUDA_TRY_LAUNCH();
    } else if (parts & GRADIENTS_ADD) { /* other keys than at the beginning */
        positions_kernel<C><<<(unsigned)walk, 256, 0, stream>>>(*a, plan.w);
        CUDA_TRY_LAUNCH();
    }
    if (parts & GRADIENTS_ADD && n->Nk > 0) {
        gradients_kernel<T, C, IN_TURNS><<<(unsigned)(n->B * n->Hkv * plan.w.tables.Tc), C::THREADS,
                                           GradientBytes<C>::ALL, stream>>>(*a, plan);
        CUDA_TRY_LAUNCH();
    }
    if (parts & GRADIENTS_END && n->Nq > 0) {
        finish_kernel<T, C><<<(unsigned)((rows / 2 * (C::D / 8) + 255) / 256), 256, 0, stream>>>(
            *a, plan.w, sums.dQ, rows_on_16_bytes(&a->dQ));
        CUDA_TRY_LAUNCH();
    }
    return ATTN_OK;
}

template <typename T, int D> struct LaunchGradients {
    static AttnStatus run(const AttnArgs *a, const float *delta, FlashSums sums, void *workspace,
                          int parts, FlashKeysOptions keys)
    {
        return with_tile<D>(a, [=](auto tile) {
            typedef decltype(tile) C;
#ifdef ATTN_GPU_SAMPLE /* each size of tiles once, one of them in turns */
            const bool LARGE = std::is_same<C, typename TileFor<D, false>::C>::value;
            return launch_gradients<T, C, LARGE>(a, delta, sums, workspace, parts, keys);
#else
            return flash_backward_deterministic()
                       ? launch_gradients<T, C, true>(a, delta, sums, workspace, parts, keys)
                       : launch_gradients<T, C, false>(a, delta, sums, workspace, parts, keys);
#endif
        });
    }
};

template <typename T, int D> struct GradientsTiles {
    static AttnStatus run(const AttnArgs *a, FlashTiles *tiles)
    {
        return with_tile<D>(a, [=](auto tile) {
            *tiles = flash_tiles_of(&a->shape, decltype(tile)::Br, decltype(tile)::Bc);
            return ATTN_OK;
        });
    }
};

/* Room for either size of tiles, with turns. */
template <typename T, int D> struct GradientsBytes {
    static AttnStatus run(const AttnArgs *a, size_t *bytes)
    {
        GradientWorkspace w;
        const size_t large =
            place_workspace<typename TileFor<D, false>::C>(&w, &a->shape, NULL, true);
        const size_t small =
            place_workspace<typename TileFor<D, true>::C>(&w, &a->shape, NULL, true);
        *bytes = large > small ? large : small;
        return ATTN_OK;
    }
};

FlashTiles flash_gradients_tiles(const AttnArgs *a)
{
    FlashTiles tiles = {};
    if (!flash_gradients_hopper_tiles(a, &tiles))
        run_for_dim<GradientsTiles, __half>(a, &tiles);
    return tiles;
}

size_t flash_gradients_portable_bytes(const AttnShape *shape)
{
    AttnArgs a = {};
    size_t bytes = 0;
    a.shape = *shape;
    return run_for_dim<GradientsBytes, __half>(&a, &bytes) == ATTN_OK ? bytes : 0;
}

size_t flash_gradients_workspace_bytes(const AttnShape *shape)
{
    const size_t bytes = flash_gradients_portable_bytes(shape);
    const size_t hopper = bytes ? flash_gradients_hopper_bytes(shape) : 0;
    return bytes > hopper ? bytes : hopper;
}

AttnStatus flash_gradients_portable(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                                    void *workspace_dev, int parts, int fresh)
{
    const FlashKeysOptions keys = {NULL, fresh};
    return run_for_16_bit<LaunchGradients>(a, delta_dev, sums_dev, workspace_dev, parts, keys);
}

static AttnStatus run_gradients(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                                void *workspace_dev, int parts, FlashKeysOptions keys)
{
    const AttnStatus status =
        flash_gradients_hopper(a, delta_dev, sums_dev, workspace_dev, parts, keys.fresh);
    return status != ATTN_SKIP ? status
                               : run_for_16_bit<LaunchGradients>(a, delta_dev, sums_dev,
                                                                 workspace_dev, parts, keys);
}

AttnStatus flash_gradients_run(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                               void *workspace_dev, int parts)
{
    const FlashKeysOptions plain = {NULL, 0};
    return run_gradients(a, delta_dev, sums_dev, workspace_dev, parts, plain);
}

template <typename T, int D> struct WalkTablesBytes {
    static AttnStatus run(const AttnArgs *a, size_t *bytes)
    {
        WalkTables w;
        const size_t large = place_tables<typename TileFor<D, false>::C>(&w, &a->shape, NULL);
        const size_t small = place_tables<typename TileFor<D, true>::C>(&w, &a->shape, NULL);
        *bytes = large > small ? large : small;
        return ATTN_OK;
    }
};

size_t flash_gradients_tables_bytes(const AttnShape *shape)
{
    AttnArgs a = {};
    size_t bytes = 0;
    a.shape = *shape;
    return run_for_dim<WalkTablesBytes, __half>(&a, &bytes) == ATTN_OK ? bytes : 0;
}

/* Turns count all tiles of keys that are under way: with tables of its own there are others. */
AttnStatus flash_gradients_add(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                               void *workspace_dev, FlashKeysOptions keys)
{
    if (flash_backward_deterministic() && keys.tables_dev)
        return ATTN_SKIP;
    return run_gradients(a, delta_dev, sums_dev, workspace_dev, GRADIENTS_ADD, keys);
}
