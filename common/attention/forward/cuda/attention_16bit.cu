/* SPDX-License-Identifier: MIT
 *
 * attention_16bit.cu: the library's kernel for f16 and bf16 on sm_80 and later: any shape, mask,
 * strides, segments and softcap, from nothing or from a state. The rungs v3_mma to v8_schedule are
 * its ideas one by one, on the plain problem.
 *
 *   - Full tiles: under a causal mask of N keys only N / Bc tiles touch the diagonal, all others
 *     are seen in full or not at all. Tiles come in runs of one kind (key_runs.cuh), and a run of
 *     full tiles is a loop without mask, cap, sign, or a test for empty rows: nothing but products
 *     and exponentials, which the compiler may interleave freely.
 *   - Masked tiles are done 16 rows at a time: 16 rows that see nothing of a tile leave it out, and
 *     those that see all of it leave out the mask.
 *   - exp2: S stays unscaled. m_i is kept in powers of two, and scale * log2(e), one constant, goes
 *     into the fused multiply-add that subtracts the maximum: exp(scale*s - m) = 2^(s*c - m'), two
 *     instructions for each score instead of four. The special-function units deliver 16 results a
 *     clock and multiprocessor, the tensor cores 1024 multiply-adds: at d = 64 the exponentials
 *     alone take half as long as both products. Instructions around them count.
 *   - Q fragments stay in registers for D <= 64, where there is room.
 *   - Scheduling: the longest row tiles first (row_order.cuh).
 *   - Too few row tiles for the GPU: the keys are split (split_keys.cuh).
 *   - O leaves through shared memory, in 16-byte pieces of whole rows.
 *
 * On a GPU of compute capability 9.0 the kernel of hopper_16bit.cu is asked first.
 *
 * Interface:
 * - flash_block_16_bit, flash_16_bit_workspace_bytes (block_kernels.cuh): f16 and bf16, d <= 256,
 *   any shape, mask and layout, from nothing or a state, (O, lse) or unnormalised;
 *   flash_block_16_bit_heads: some heads, from a state to it or to O. block.cu makes the variant of
 *   them.
 */
#include <type_traits>

#include "attn_pairs.h"
#include "block_kernels.cuh"
#include "few_queries.cuh"
#include "key_runs.cuh"
#include "mma_products.cuh"
#include "row_order.cuh"
#include "scores.cuh"
#include "split_keys.cuh"
#include "tile_load.cuh"

/* BLOCKS: how many blocks an SM shall hold; 128 threads x 2 blocks leave 255 registers a thread.
 * LEAN: those are not enough for O, S and everything else. Then what depends on the lane alone is
 * computed again for each tile, and the runs lie in shared memory. */
template <int D_, int MT_ = Tile<D_>::MT> struct CleanTile : Tile<D_, MT_> {
    static const int BLOCKS = 2;
    static const bool Q_IN_REGISTERS = D_ <= 64, LEAN = D_ > 64;
};

/* Online softmax of m16 tiles MT0 ...: P replaces S, O and l are rescaled to the new maximum. */
template <class C, bool MASKED, int MT0, int COUNT>
static __device__ __forceinline__ void update_rows_exp2(float (&S_reg)[COUNT][C::Bc / 8][4],
                                                        TileRows<C> &rows, float scale_log2)
{
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int mt = MT0 + c;
            float m_new = fmaxf(S_reg[c][0][2 * e], S_reg[c][0][2 * e + 1]);
#pragma unroll
            for (int n = 1; n < C::Bc / 8; n++)
                m_new = fmaxf(m_new, fmaxf(S_reg[c][n][2 * e], S_reg[c][n][2 * e + 1]));
            m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 1));
            m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 2));
            m_new = fmaxf(rows.m_i[mt][e], m_new * scale_log2);
            /* A row that has seen nothing yet: -inf - -inf would be NaN. */
            const float base = MASKED && m_new == -INFINITY ? 0.0f : m_new;
            const float alpha = exp2_sfu(rows.m_i[mt][e] - base);
            rows.m_i[mt][e] = m_new;
            float l_tile = 0.0f;
#pragma unroll
            for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
                for (int x = 0; x < 2; x++) {
                    const float p = exp2_sfu(fmaf(S_reg[c][n][2 * e + x], scale_log2, -base));
                    S_reg[c][n][2 * e + x] = p;
                    l_tile += p;
                }
            rows.l_i[mt][e] = rows.l_i[mt][e] * alpha + l_tile;
#pragma unroll
            for (int n = 0; n < C::D / 8; n++) {
                rows.O_reg[mt][n][2 * e] *= alpha;
                rows.O_reg[mt][n][2 * e + 1] *= alpha;
            }
        }
}

/* A tile that all rows see in full. All threads call between(): K has been read, V is needed. */
template <typename T, class C, class Between>
static __device__ __forceinline__ void
step_clean(TileRows<C> &rows, const uint32_t (*Q_reg)[C::MT][4], TileAddresses at, float scale_log2,
           Between between)
{
    float S_reg[C::MT][C::Bc / 8][4];
    multiply_QK<T, C, 0, C::MT, C::Q_IN_REGISTERS>(S_reg, Q_reg, at.Q, at.K);
    between();
    update_rows_exp2<C, false, 0, C::MT>(S_reg, rows, scale_log2);
    multiply_PV<T, C, 0, C::MT>(rows, S_reg, at.V);
}

/* A masked tile for the 16 rows of m16 tile MT0. */
template <typename T, class C, int MT0, class Between>
static __device__ __forceinline__ void
step_masked(TileRows<C> &rows, const AttnArgs &a, const RowMask<C::Br, C::Bc> &mask,
            const uint32_t (*Q_reg)[C::MT][4], TileAddresses at, float scale_log2, int j, int stage,
            Between between)
{
    float S_reg[1][C::Bc / 8][4];
    const uint32_t look = look_at_tile<C>(mask, MT0, j, stage);
    if (look & 1)
        multiply_QK<T, C, MT0, 1, C::Q_IN_REGISTERS>(S_reg, Q_reg, at.Q, at.K);
    between();
    if (!(look & 1))
        return;
    adjust_scores(S_reg[0], a);
    if (look & 2)
        hide_scores<C, MT0, 1>(S_reg, mask, j, stage);
    update_rows_exp2<C, true, MT0, 1>(S_reg, rows, scale_log2);
    multiply_PV<T, C, MT0, 1>(rows, S_reg, at.V);
}

/* Where rows come from and where they go. Kernels apart, because the few values that tell them
 * apart, even unused, cost registers that D = 128 does not have. */
enum RowsWay {
    ROWS_THROUGH, /* from a state to the same state; from nothing to O */
    ROWS_LAST,    /* from a state to O */
    ROWS_OF_PART  /* only part blockIdx.y of the keys: O_state and a.lse are those of all parts */
};

/* One block: Br rows of one head. O_state NULL: the plain forward pass. state: if unnormalised. */
template <typename T, class C, RowsWay WAY>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    attention_16bit_kernel(const __grid_constant__ AttnArgs a, float *O_state,
                           const __grid_constant__ FlashRows state, FlashHeads heads, bool aligned,
                           bool O_aligned, int section_heads)
{
    typedef TileBytes<C> Bytes;
    const bool SPLIT = WAY == ROWS_OF_PART;
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K and V of each stage */
    __shared__ RowMask<C::Br, C::Bc> mask;
    __shared__ KeyRuns runs_smem;
    KeyRuns runs_reg;
    KeyRuns &runs = C::LEAN ? runs_smem : runs_reg;
    const uint32_t smem_address = (uint32_t)__cvta_generic_to_shared(smem);
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk, d = (int)a.shape.d;
    const BlockWork work = work_in_sections<C>(a, heads, section_heads);
    const T *Q = (const T *)a.Q.data + tensor_offset(&a.Q, work.b, 0, work.h);
    const T *K = (const T *)a.K.data + tensor_offset(&a.K, work.b, 0, work.h_kv);
    const T *V = (const T *)a.V.data + tensor_offset(&a.V, work.b, 0, work.h_kv);
    auto load_K = [&](const void *K, int j, int stage) {
        load_tile_async<T, C::D, C::Bc, C::THREADS, C::LEAN>(smem + Bytes::Q + stage * Bytes::STAGE,
                                                             (const T *)K, a.K.stride[1], j * C::Bc,
                                                             Nk, d, aligned);
    };
    auto load_V = [&](const void *V, int j, int stage) {
        load_tile_async<T, C::D, C::Bc, C::THREADS, C::LEAN>(
            smem + Bytes::Q + stage * Bytes::STAGE + Bytes::K, (const T *)V, a.V.stride[1],
            j * C::Bc, Nk, d, aligned);
    };

    /* Q does not wait for the positions, K and V must: which tiles are needed at all? */
    load_tile_async<T, C::D, C::Br, C::THREADS, C::LEAN>(smem, Q, a.Q.stride[1], work.i0, Nq, d,
                                                         aligned);
    const AttnRange q = attn_range(a.positions_q, work.i0, min(C::Br, Nq - work.i0));
    KeyTiles tiles = find_key_tiles<C::Bc>(a, q);
    if (SPLIT)
        tiles = part_of_tiles(tiles, blockIdx.y, gridDim.y);
    const KeyRun run = next_key_run<C::Bc>(a, tiles, q, tiles.end);
    int j = last_tile(run);
    if (j >= 0) {
        load_K(K, j, 0);
        if (C::STAGES > 1)
            load_V(V, j, 0);
    }
    copy_async_commit();
    if (WAY == ROWS_THROUGH && O_state && j < 0) { /* nothing to add: the state stays as it is */
        copy_async_wait<0>();
        return;
    }
    publish_plan(mask, a, work, K, V, q, tiles);
    start_runs<C::Bc, C::LEAN>(runs, a, tiles, q, run);
    TileRows<C> rows;
    start_rows(rows, a, work, SPLIT ? NULL : O_state, state, (float)M_LOG2E);
    uint32_t Q_reg[C::D / 16][C::MT][4];
    const TileAddresses kept = tile_addresses<C>(smem_address, threadIdx.x);
    const float scale_log2 = exponent_scale(a);
    if (C::Q_IN_REGISTERS)
        copy_async_wait<0>();
    __syncthreads(); /* Q, and what was published */
#pragma unroll
    for (int k = 0; C::Q_IN_REGISTERS && k < C::D / 16; k++)
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
            load_Q<C>(Q_reg[k][mt], kept.Q, mt, k);

    int stage = 0;
    auto step = [&](auto masked, int j_next) {
        TileAddresses at = C::LEAN ? tile_addresses<C>(smem_address, read_thread()) : kept;
        at.K += C::STAGES > 1 ? stage * Bytes::STAGE : 0;
        at.V += C::STAGES > 1 ? stage * Bytes::STAGE : 0;
        if (masked.value && !mask.by_run)
            make_row_words(mask, a, j, stage);
        copy_async_wait<0>();
        __syncthreads(); /* tile j is there, and all warps are done with the other stage, or V */
        if (C::STAGES == 1) {
            load_V(mask.V, j, 0);
        } else if (j_next >= 0) {
            load_K(mask.K, j_next, 1 - stage);
            load_V(mask.V, j_next, 1 - stage);
        }
        copy_async_commit();
        auto between = [&]() {
            if (C::STAGES > 1)
                return;
            copy_async_wait<0>();
            __syncthreads(); /* V_j is there, and all warps are done with K_j */
            if (j_next >= 0)
                load_K(mask.K, j_next, 0);
            copy_async_commit();
        };
        if (!masked.value) {
            step_clean<T, C>(rows, Q_reg, at, scale_log2, between);
        } else {
            static_assert(C::STAGES > 1 || C::MT == 1, "between() is called once");
            step_masked<T, C, 0>(rows, a, mask, Q_reg, at, scale_log2, j, stage, between);
            if (C::MT > 1)
                step_masked<T, C, C::MT - 1>(rows, a, mask, Q_reg, at, scale_log2, j, stage,
                                             between);
        }
        stage = 1 - stage;
    };
    /* The tiles of one run. */
    auto walk = [&](auto masked) {
        bool more;
#pragma unroll 1
        do {
            more = j > runs.now.begin;
            step(masked, more ? j - 1 : last_tile(runs.next));
            j--;
        } while (more);
    };
#pragma unroll 1
    while (j >= 0) {
        if (runs.now.clean)
            walk(std::false_type());
        else
            walk(std::true_type());
        j = advance_run<C::Bc, C::LEAN>(runs, a, mask.tiles, mask.q);
    }
    copy_async_wait<0>();
    __syncthreads(); /* without a single tile, Q may still be on its way */
    if (SPLIT) {
        const int64_t first = blockIdx.y * a.shape.B * a.shape.H * a.shape.Nq;
        store_rows<T>(rows, a, mask.work, O_state + first * d, a.lse + first, no_rows(), false,
                      (float)M_LOG2E);
    } else if (O_aligned && (WAY == ROWS_LAST || !O_state)) {
        store_rows_wide<T>(rows, a, mask.work, smem);
    } else {
        store_rows<T>(rows, a, mask.work, WAY == ROWS_LAST ? NULL : O_state, a.lse,
                      WAY == ROWS_LAST ? no_rows() : state, false, (float)M_LOG2E);
    }
}

template <typename T, class C, RowsWay WAY>
static AttnStatus launch_attention(const AttnArgs *a, float *O_state, FlashRows state,
                                   FlashHeads heads, int splits)
{
    const dim3 grid((unsigned)(heads.count * tile_count(a->shape.Nq, C::Br)), splits);
    const AttnStatus status = reserve_smem(attention_16bit_kernel<T, C, WAY>, TileBytes<C>::ALL);
    if (status != ATTN_OK)
        return status;
    attention_16bit_kernel<T, C, WAY>
        <<<grid, C::THREADS, TileBytes<C>::ALL, (cudaStream_t)a->stream>>>(
            *a, O_state, state, heads, all_rows_on_16_bytes(a), rows_on_16_bytes(&a->O),
            heads_of_section(a));
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

template <typename T, int D> struct LaunchAttention {
    typedef CleanTile<D> C;
    static AttnStatus run(const AttnArgs *a, float *O_state, FlashRows state, FlashHeads heads,
                          int last)
    {
        const AttnStatus status = flash_block_hopper(a, O_state, state, heads, last);
        if (status != ATTN_SKIP)
            return status;
        return last ? launch_attention<T, C, ROWS_LAST>(a, O_state, state, heads, 1)
                    : launch_attention<T, C, ROWS_THROUGH>(a, O_state, state, heads, 1);
    }
};

/* Where keys are split, queries are few: tiles of 64 rows. */
template <typename T, int D> struct LaunchSplitKeys {
    typedef CleanTile<D, 1> C;
    static AttnStatus run(const AttnArgs *a, float *O_state, FlashRows state, void *workspace,
                          int splits)
    {
        const SplitStates parts = split_states(&a->shape, splits, workspace);
        AttnArgs into_parts = *a;
        into_parts.lse = parts.lse;
        const AttnStatus status = launch_attention<T, C, ROWS_OF_PART>(
            &into_parts, parts.O, no_rows(), all_heads(a), splits);
        return status == ATTN_OK ? merge_splits<T>(a, parts, O_state, state) : status;
    }
};

/* How many blocks of the kernel for parts one multiprocessor holds at a time. That of bf16 stands
 * for both dtypes: a workspace is asked for by shape alone. */
template <typename T, int D> struct BlocksOfSplitKeys {
    typedef CleanTile<D, 1> C;
    static AttnStatus run(const AttnArgs *, int *blocks)
    {
        const int smem = TileBytes<C>::ALL;
        const auto kernel = attention_16bit_kernel<T, C, ROWS_OF_PART>;
        CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
        CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, C::THREADS, smem));
        return ATTN_OK;
    }
};

/* Parts that the keys are split into on this GPU. */
static AttnStatus splits_of(const AttnArgs *a, int *splits)
{
    int device = 0, major = 0, multiprocessors = 0, blocks = 0;
    *splits = 1;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    CUDA_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    if (major < 8)
        return ATTN_OK; /* nothing will be launched */
    const AttnStatus status = run_for_dim<BlocksOfSplitKeys, __nv_bfloat16>(a, &blocks);
    if (status != ATTN_OK)
        return status;
    const FlashTiles tiles = tiles_for_dim<LaunchSplitKeys, __half>(a);
    *splits = count_splits(&a->shape, tiles, (int64_t)blocks * multiprocessors);
    return ATTN_OK;
}

/* Parts for the kernel of few queries, as many as there is room for; 0: it is no case for it. */
static AttnStatus few_parts(const AttnArgs *a, int *parts)
{
    const AttnRule no_window = {-1, -1};
    int most = 0;
    *parts = 0;
    if (!few_queries_takes(a))
        return ATTN_OK;
    AttnStatus status = few_queries_splits(&a->shape, a->rule, parts);
    if (status == ATTN_OK)
        status = few_queries_splits(&a->shape, no_window, &most);
    if (most < *parts)
        *parts = most;
    return status;
}

FlashTiles flash_tiles_16_bit(const AttnArgs *a)
{
    FlashTiles tiles = tiles_for_dim<LaunchAttention, __half>(a);
    int splits = 1, few = 0;
    if (few_parts(a, &few) == ATTN_OK && few > 0)
        return few_queries_tiles(a, few);
    if (splits_of(a, &splits) == ATTN_OK && splits > 1) {
        tiles = tiles_for_dim<LaunchSplitKeys, __half>(a);
        tiles.splits = splits;
    } else {
        (void)flash_tiles_hopper(a, &tiles);
    }
    return tiles;
}

/* Room for the parts of either kernel that cuts keys: which of them will run, dtype, mask and rows
 * decide. */
size_t flash_16_bit_workspace_bytes(const AttnShape *shape)
{
    const AttnRule no_window = {-1, -1};
    AttnArgs a = {};
    int splits = 1, few = 0;
    a.shape = *shape;
    if (splits_of(&a, &splits) != ATTN_OK || few_queries_splits(shape, no_window, &few) != ATTN_OK)
        return 0;
    const size_t of_rows = split_bytes(shape, splits), of_few = few_queries_bytes(shape, few);
    return of_rows > of_few ? of_rows : of_few;
}

AttnStatus flash_block_16_bit(const AttnArgs *a, float *O_state_dev, FlashRows rows_dev,
                              void *workspace_dev)
{
    int splits = 1, few = 0;
    AttnStatus status = few_parts(a, &few);
    if (status == ATTN_OK && few > 0)
        return few_queries_run(a, O_state_dev, rows_dev, workspace_dev, few);
    if (status == ATTN_OK)
        status = splits_of(a, &splits);
    if (status != ATTN_OK)
        return status;
    return splits > 1
               ? run_for_16_bit<LaunchSplitKeys>(a, O_state_dev, rows_dev, workspace_dev, splits)
               : run_for_16_bit<LaunchAttention>(a, O_state_dev, rows_dev, all_heads(a), 0);
}

AttnStatus flash_block_16_bit_heads(const AttnArgs *a, float *O_state_dev, FlashRows rows_dev,
                                    FlashHeads heads, int last)
{
    int splits = 1;
    const AttnStatus status = splits_of(a, &splits);
    if (status != ATTN_OK)
        return status;
    return splits > 1 ? ATTN_SKIP
                      : run_for_16_bit<LaunchAttention>(a, O_state_dev, rows_dev, heads, last);
}
