/* SPDX-License-Identifier: MIT
 *
 * v5_clean_tiles: the fastest portable forward kernel (sm_80 and later): v4 without the work that
 * most tiles do not need.
 *
 *   - Clean tiles: under a causal mask of N keys only N / Bc tiles touch the diagonal, all others
 *     are seen in full or not at all. The step of a clean tile is compiled without mask, cap, sign
 *     and the test for empty rows; the step of a masked tile leaves out all 16x16 blocks that no
 *     row sees, in Q K^T and in P V.
 *   - exp2: S stays unscaled. m_i is kept in powers of two, and scale * log2(e), one constant, goes
 *     into the fused multiply-add that subtracts the maximum: exp(scale*s - m) = 2^(s*c - m'), two
 *     instructions for each score instead of four. The special-function units deliver 16 results a
 *     clock and multiprocessor, the tensor cores 1024 multiply-adds: at d = 64 the exponentials
 *     alone take half as long as both products. Instructions around them count.
 *   - Q fragments stay in registers for D <= 64, where there is room.
 *   - Scheduling: a causal row tile i costs i + 1. Blocks start in the order of their index, the
 *     longest first, so the short ones fill the gaps at the end. Tiles of one length from many
 *     heads
 *     would fill them best, tiles of one head share K and V in the L2 cache: sections of heads
 *     whose K and V fit it are the compromise.
 *   - O leaves through shared memory, in 16-byte pieces of whole rows.
 *
 * Prediction (H200, bf16): causal N = 1024, d = 64: of 9 tiles a block visits on average, two are
 * on
 * the diagonal; leaving out what nobody sees saves 0.5 + 2 * 0.2 of them, 8-10 %. Full: as v4 plus
 * what four instructions a score cost, 10-20 %.
 *
 * Interface:
 * - flash_forward_v5_clean_tiles: f16 and bf16, d <= 256, any shape, mask and layout.
 * - flash_block_16_bit (block.cuh): the same, resuming from (O, lse).
 */
#include "block.cuh"
#include "mma_rows.cuh"
#include "tile_load.cuh"

/* BLOCKS: how many blocks an SM shall hold; 128 threads x 2 blocks leave 255 registers a thread. */
template <int D_, int BLOCKS_ = 2, bool Q_IN_REGISTERS_ = D_ <= 64, int MT_ = Tile<D_>::MT,
          int Bc_ = Tile<D_>::Bc, int SECTION_MIB_ = 32>
struct CleanTile : Tile<D_, MT_, Bc_> {
    static const int BLOCKS = BLOCKS_;
    static const bool Q_IN_REGISTERS = Q_IN_REGISTERS_;
    static const int SECTION_MIB = SECTION_MIB_; /* K and V of a section of heads */
    static const int COLUMN_BLOCKS = Bc_ / 16;
    static const int Q_BYTES = MT_ * 64 * D_ * 2, TILE_BYTES = Bc_ * D_ * 2;
    static const int SMEM = Q_BYTES + 4 * TILE_BYTES;
};

/* threadIdx.x % 32, read anew each time: an address made from it is computed again for each tile
 * instead of being kept in a register that D = 128 does not have. */
static __device__ __forceinline__ int read_lane(void)
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread % 32;
}

/* Which of the 16x16 blocks of this warp's S hold a visible score? Bit mt * COLUMN_BLOCKS + n. */
template <class C>
static __device__ __forceinline__ uint32_t find_live_blocks(const RowMask<C::Br, C::Bc> &mask,
                                                            int j, int stage)
{
    uint32_t live = 0;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int word = 0; word < C::Bc / 32; word++) {
            const int r = first_row_of<C>(mt);
            const uint32_t bits = any_lane_bits(row_bits(mask, r, word, j, stage) |
                                                row_bits(mask, r + 8, word, j, stage));
            const uint32_t two = (bits & 0xffffu ? 1u : 0u) | (bits >> 16 ? 2u : 0u);
            live |= two << (mt * C::COLUMN_BLOCKS + word * 2);
        }
    return live;
}

template <class C> static __device__ __forceinline__ bool is_live(uint32_t live, int mt, int n)
{
    return live >> (mt * C::COLUMN_BLOCKS + n) & 1;
}

/* Does any row of the warp need columns 16n .. 16n + 15? */
template <class C> static __device__ __forceinline__ bool is_column_live(uint32_t live, int n)
{
    return live & ((1u << n) | (C::MT > 1 ? 1u << (C::COLUMN_BLOCKS + n) : 0u));
}

/* The address that this lane gives to ldmatrix for chunk 0 or 1 of its row (see v4). */
template <class C> static __device__ __forceinline__ uint32_t Q_lane_address(uint32_t Q_smem)
{
    const int lane = read_lane();
    return Q_smem + swizzle<C::D>(threadIdx.x / 32 * 16 + lane % 16, lane / 16);
}

template <class C>
static __device__ __forceinline__ void load_Q(uint32_t (&Q_frag)[C::MT][4], uint32_t Q_lane, int k)
{
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
        ldmatrix_x4(Q_frag[mt], skip_chunks<C::D>(Q_lane, k) + mt * C::WARPS * 16 * C::D * 2);
}

/* S_reg = Q K_j^T of this warp's rows. */
template <typename T, class C, bool MASKED>
static __device__ __forceinline__ void multiply_QK(float (&S_reg)[C::MT][C::Bc / 8][4],
                                                   const uint32_t (*Q_reg)[C::MT][4],
                                                   uint32_t Q_smem, uint32_t K_smem, uint32_t live)
{
    const int lane = read_lane();
    const uint32_t Q_lane = Q_lane_address<C>(Q_smem);
    const uint32_t K_lane = K_smem + swizzle<C::D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                S_reg[mt][n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < C::D / 16; k++) {
        uint32_t Q_frag[C::MT][4];
        if (C::Q_IN_REGISTERS) {
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    Q_frag[mt][e] = Q_reg[k][mt][e];
        } else {
            load_Q<C>(Q_frag, Q_lane, k);
        }
#pragma unroll
        for (int n = 0; n < C::COLUMN_BLOCKS; n++) {
            uint32_t K_frag[4];
            if (MASKED && !is_column_live<C>(live, n))
                continue;
            ldmatrix_x4(K_frag, skip_chunks<C::D>(K_lane, k) + n * 16 * C::D * 2);
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++) {
                if (MASKED && !is_live<C>(live, mt, n))
                    continue;
                mma_16816<T>(S_reg[mt][2 * n], Q_frag[mt], K_frag[0], K_frag[1]);
                mma_16816<T>(S_reg[mt][2 * n + 1], Q_frag[mt], K_frag[2], K_frag[3]);
            }
        }
    }
}

/* What a tile that is not plain needs before the softmax: cap or sign, then the mask. */
template <class C>
static __device__ __forceinline__ void adjust_scores(float (&S_reg)[C::MT][C::Bc / 8][4],
                                                     const AttnArgs &a)
{
    const bool capped = a.softcap > 0.0f;
    if (!capped && a.scale > 0.0f)
        return;
    const float factor = capped ? a.scale / a.softcap : a.scale < 0.0f ? -1.0f : 0.0f;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float s = S_reg[mt][n][e] * factor;
                S_reg[mt][n][e] = capped ? tanhf(s) : s;
            }
}

/* The factor that turns adjusted scores into powers of two. Positive, so that the largest raw score
 * is the largest score. */
static __device__ __forceinline__ float exponent_scale(const AttnArgs &a)
{
    if (a.softcap > 0.0f)
        return a.softcap * LOG2E;
    return a.scale == 0.0f ? 1.0f : fabsf(a.scale) * LOG2E;
}

/* Online softmax: P replaces S, O and l are rescaled to the new maximum. */
template <class C, bool MASKED>
static __device__ __forceinline__ void update_rows_exp2(float (&S_reg)[C::MT][C::Bc / 8][4],
                                                        TileRows<C> &rows, float scale_log2,
                                                        uint32_t live)
{
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++) {
        if (MASKED && !(live >> (mt * C::COLUMN_BLOCKS) & ((1u << C::COLUMN_BLOCKS) - 1)))
            continue; /* no row of these 16 sees a key of this tile */
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float m_new = fmaxf(S_reg[mt][0][2 * e], S_reg[mt][0][2 * e + 1]);
#pragma unroll
            for (int n = 1; n < C::Bc / 8; n++)
                m_new = fmaxf(m_new, fmaxf(S_reg[mt][n][2 * e], S_reg[mt][n][2 * e + 1]));
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
                    const float p = exp2_sfu(fmaf(S_reg[mt][n][2 * e + x], scale_log2, -base));
                    S_reg[mt][n][2 * e + x] = p;
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
}

/* O += P V_j. The registers of P are, rounded, the A fragments of the product. */
template <typename T, class C, bool MASKED>
static __device__ __forceinline__ void
multiply_PV(TileRows<C> &rows, float (&P_reg)[C::MT][C::Bc / 8][4], uint32_t V_smem, uint32_t live)
{
    const int lane = read_lane();
    const uint32_t V_lane = V_smem + swizzle<C::D>(lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < C::COLUMN_BLOCKS; k++) {
        if (MASKED && !is_column_live<C>(live, k))
            continue;
        uint32_t P_frag[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *P_pair = P_reg[mt][2 * k + e / 2] + e % 2 * 2;
                P_frag[mt][e] = pack2<T>(P_pair[0], P_pair[1]);
            }
#pragma unroll
        for (int n = 0; n < C::D / 16; n++) {
            uint32_t V_frag[4];
            ldmatrix_x4_trans(V_frag, skip_chunks<C::D>(V_lane, n) + k * 16 * C::D * 2);
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++) {
                if (MASKED && !is_live<C>(live, mt, k))
                    continue;
                mma_16816<T>(rows.O_reg[mt][2 * n], P_frag[mt], V_frag[0], V_frag[1]);
                mma_16816<T>(rows.O_reg[mt][2 * n + 1], P_frag[mt], V_frag[2], V_frag[3]);
            }
        }
    }
}

/* O through this warp's own rows of Q_smem, which it alone has read: a quad holds 16 bytes of a
 * row, a store of the warp shall cover whole rows. */
template <typename T, class C>
static __device__ __forceinline__ void store_rows_wide(TileRows<C> &rows, const AttnArgs &a,
                                                       BlockWork work, unsigned char *O_smem)
{
    const int lane = threadIdx.x % 32, t = lane % 4, CHUNKS = C::D / 8;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float inverse = finish_row(rows, a, work, mt, e, LOG2E);
            const int r = first_row_of<C>(mt) + 8 * e;
#pragma unroll
            for (int n = 0; n < CHUNKS; n++)
                *reinterpret_cast<uint32_t *>(O_smem + swizzle<C::D>(r, n) + 4 * t) = pack2<T>(
                    rows.O_reg[mt][n][2 * e] * inverse, rows.O_reg[mt][n][2 * e + 1] * inverse);
        }
    __syncwarp();
    T *O = (T *)a.O.data + tensor_offset(&a.O, work.b, work.i0, work.h);
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int c = lane; c < 16 * CHUNKS; c += 32) {
            const int r = (mt * C::WARPS + threadIdx.x / 32) * 16 + c / CHUNKS, chunk = c % CHUNKS;
            if (work.i0 + r < a.shape.Nq && chunk * 8 < a.shape.d)
                *reinterpret_cast<uint4 *>(O + r * a.O.stride[1] + chunk * 8) =
                    *reinterpret_cast<const uint4 *>(O_smem + swizzle<C::D>(r, chunk));
        }
}

/* Longest row tiles first within a section of heads. */
template <class C>
static __device__ __forceinline__ BlockWork work_in_sections(const AttnArgs &a, int section_heads)
{
    const int tiles = ((int)a.shape.Nq + C::Br - 1) / C::Br, heads = (int)(a.shape.B * a.shape.H);
    const int head = blockIdx.x / (tiles * section_heads) * section_heads;
    const int rest = blockIdx.x - head * tiles;
    const int here = min(section_heads, heads - head);
    return work_of_head(a, head + rest % here, (tiles - 1 - rest / here) * C::Br);
}

/* One block: Br rows of one head. O_state NULL: the plain forward pass. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    clean_tiles_kernel(const __grid_constant__ AttnArgs a, float *O_state, bool aligned,
                       bool O_aligned, int section_heads)
{
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K and V of stage 0, of stage 1 */
    __shared__ RowMask<C::Br, C::Bc> mask;
    const uint32_t Q_smem = (uint32_t)__cvta_generic_to_shared(smem);
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk, d = (int)a.shape.d;
    const BlockWork work = work_in_sections<C>(a, section_heads);
    const T *Q = (const T *)a.Q.data + tensor_offset(&a.Q, work.b, 0, work.h);
    const T *K = (const T *)a.K.data + tensor_offset(&a.K, work.b, 0, work.h_kv);
    const T *V = (const T *)a.V.data + tensor_offset(&a.V, work.b, 0, work.h_kv);
    auto load_keys = [&](const void *K, const void *V, int j, int stage) {
        unsigned char *tile = smem + C::Q_BYTES + stage * 2 * C::TILE_BYTES;
        load_tile_async<T, C::D, C::Bc, C::THREADS>(tile, (const T *)K, a.K.stride[1], j * C::Bc,
                                                    Nk, d, aligned);
        load_tile_async<T, C::D, C::Bc, C::THREADS>(tile + C::TILE_BYTES, (const T *)V,
                                                    a.V.stride[1], j * C::Bc, Nk, d, aligned);
    };

    /* Q does not wait for the positions, K and V must: which tiles are needed at all? */
    load_tile_async<T, C::D, C::Br, C::THREADS>(smem, Q, a.Q.stride[1], work.i0, Nq, d, aligned);
    const AttnRange q = attn_range(a.positions_q, work.i0, min(C::Br, Nq - work.i0));
    const KeyTiles tiles = find_key_tiles<C::Bc>(a, q);
    bool clean;
    int j = next_key_tile<C::Bc>(a, tiles, q, tiles.end, &clean);
    if (j >= 0)
        load_keys(K, V, j, 0);
    copy_async_commit();
    publish_plan(mask, a, work, K, V, q, tiles);
    TileRows<C> rows;
    start_rows(rows, a, work, O_state, LOG2E);
    uint32_t Q_reg[C::D / 16][C::MT][4];
    if (C::Q_IN_REGISTERS)
        copy_async_wait<0>();
    __syncthreads(); /* Q, and what publish_plan wrote */
    if (C::Q_IN_REGISTERS) {
#pragma unroll
        for (int k = 0; k < C::D / 16; k++)
            load_Q<C>(Q_reg[k], Q_lane_address<C>(Q_smem), k);
    }

    int stage = 0;
#pragma unroll 1
    while (j >= 0) {
        float S_reg[C::MT][C::Bc / 8][4];
        const uint32_t K_smem = Q_smem + C::Q_BYTES + stage * 2 * C::TILE_BYTES;
        const bool clean_j = clean;
        if (!mask.by_run && !clean_j)
            make_row_words(mask, a, j, stage);
        copy_async_wait<0>();
        __syncthreads(); /* tile j is there, and all warps are done with the other stage */
        const int j_next = next_key_tile<C::Bc>(a, mask.tiles, mask.q, j, &clean);
        if (j_next >= 0)
            load_keys(mask.K, mask.V, j_next, 1 - stage);
        copy_async_commit();
        if (clean_j) {
            multiply_QK<T, C, false>(S_reg, Q_reg, Q_smem, K_smem, 0);
            update_rows_exp2<C, false>(S_reg, rows, exponent_scale(a), 0);
            multiply_PV<T, C, false>(rows, S_reg, K_smem + C::TILE_BYTES, 0);
        } else {
            const uint32_t live = find_live_blocks<C>(mask, j, stage);
            multiply_QK<T, C, true>(S_reg, Q_reg, Q_smem, K_smem, live);
            adjust_scores<C>(S_reg, a);
            hide_scores<C>(S_reg, mask, j, stage);
            update_rows_exp2<C, true>(S_reg, rows, exponent_scale(a), live);
            multiply_PV<T, C, true>(rows, S_reg, K_smem + C::TILE_BYTES, live);
        }
        stage = 1 - stage;
        j = j_next;
    }
    copy_async_wait<0>();
    __syncthreads(); /* without a single tile, Q may still be on its way */
    if (O_aligned && !O_state)
        store_rows_wide<T>(rows, a, mask.work, smem);
    else
        store_rows<T>(rows, a, mask.work, O_state, false, LOG2E);
}

/* How many heads' K and V go into SECTION_MIB; one head, where all row tiles cost the same. */
template <class C> static int heads_of_section(const AttnArgs *a)
{
    const int64_t bytes = 2 * a->shape.Nk * a->shape.d * 2; /* K and V of a kv head */
    const int64_t heads = a->shape.B * a->shape.H, group = a->shape.H / a->shape.Hkv;
    int64_t fit = ((int64_t)C::SECTION_MIB << 20) / bytes * group;
    if (a->rule.right < 0 || a->rule.left >= 0)
        fit = 1;
    return (int)(fit < 1 ? 1 : fit > heads ? heads : fit);
}

template <typename T, class C>
static AttnStatus launch_clean_tiles(const AttnArgs *a, float *O_state)
{
    const AttnStatus status = reserve_smem(clean_tiles_kernel<T, C>, C::SMEM);
    if (status != ATTN_OK)
        return status;
    clean_tiles_kernel<T, C>
        <<<launch_blocks(a, C::Br), C::THREADS, C::SMEM, (cudaStream_t)a->stream>>>(
            *a, O_state, all_rows_on_16_bytes(a), rows_on_16_bytes(&a->O), heads_of_section<C>(a));
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

template <typename T, int D> struct LaunchCleanTiles {
    typedef CleanTile<D> C;
    static AttnStatus run(const AttnArgs *a, float *O_state)
    {
        return launch_clean_tiles<T, C>(a, O_state);
    }
};

FlashTiles flash_tiles_v5_clean_tiles(const AttnArgs *a)
{
    return tiles_for_dim<LaunchCleanTiles, __half>(a);
}

AttnStatus flash_block_16_bit(const AttnArgs *a, float *O_state_dev)
{
    return run_for_16_bit<LaunchCleanTiles>(a, O_state_dev);
}

AttnStatus flash_forward_v5_clean_tiles(const AttnArgs *a)
{
    return run_for_16_bit<LaunchCleanTiles>(a, NULL);
}
