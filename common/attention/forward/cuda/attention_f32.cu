/* SPDX-License-Identifier: MIT
 *
 * attention_f32.cu: the library's kernel for float32: any shape, mask, strides, segments and
 * softcap, from nothing or from a state. The rung v2_register_tiles is its idea alone.
 *
 * A thread keeps an 8 x 8 piece of S and one of O in registers and loads 16 values from shared
 * memory for 64 FMA (product_f32.cuh). Both products are one
 * loop, a sum of outer products, with Q, K and P transposed in shared memory:
 *
 *     S += Q[:, x] K[:, x]^T  for each channel x         O += P[:, j] V[j, :]  for each key j
 *
 * All columns of a row lie in the eight lanes of one warp: the row maximum takes three shuffles,
 * and P goes through shared memory within the warp, without a barrier.
 *
 * What else would keep the FMA units waiting, and what is done about it:
 *   - Device memory: K_j comes in slices of 32 channels, V_j in slices of a few keys. While one is
 *     multiplied, cp.async brings the next into the other of two buffers. The one barrier before
 *     a slice says both: it is here, and nobody still reads the buffer that is filled next.
 *   - Scale, cap and mask cost more than the softmax itself. Only tiles that are not clean are
 *     asked. The scale goes into the fused multiply-add in the exponent, exp(scale*s - m) =
 *     2^(s*c - m'), so m_i is kept in powers of two. m' is rounded, and all weights of a row carry
 *     that one factor: O = PV/l does not see it before it overflows, at scores of 2e9.
 *   - The end: the longest row tiles start first, short ones fill the gaps.
 *
 * Interface:
 * - flash_block_f32, flash_tiles_f32 (block_kernels.cuh): d <= 256.
 */
#include "attn_pairs.h"
#include "block_kernels.cuh"
#include "part_load_f32.cuh"
#include "row_mask.cuh"
#include "scores.cuh"
#include "units/mma.cuh"

/* A thread holds ROWS x COLS of S and ROWS x D/8 of O: as much as 255 registers allow. All of
 * shared memory within 64 KiB, what GPUs from sm_75 on give a block: D = 128 has room for 32 keys
 * at a time, D = 256 for 32 rows. Transposed rows are 4 floats longer than their content, so that
 * stores down a column find different banks. */
template <int D_> struct FloatTile {
    static const int D = D_, WARPS = 2, THREADS = WARPS * 32;
    static const int BLOCKS = D <= 64 ? 4 : 3; /* that an SM shall hold */
    static const int ROWS = D <= 128 ? 8 : 4, Br = WARPS * 4 * ROWS;
    static const int COLS = D == 128 ? 4 : 8, Bc = COLS * 8;
    static const int SLICE_CHANNELS = 32, SLICE_KEYS = D <= 64 ? 32 : D < 256 ? 16 : 8;
    static const int LD_Q = Br + 4, LD_K = Bc + 4, LD_P = Br + 4;
    static const int K_SLICE = SLICE_CHANNELS * LD_K, V_SLICE = SLICE_KEYS * D;
    static const int SLICE = K_SLICE > V_SLICE ? K_SLICE : V_SLICE;
    static const int SMEM = (D * LD_Q + Bc * LD_P + 2 * SLICE) * (int)sizeof(float);
};

/* The registers of a thread: its rows start at row0 of the block, its columns at column0. */
template <class C> struct ThreadRows {
    int row0, column0;
    float m_i[C::ROWS]; /* powers of two: log2(e) times the maximum */
    float l_i[C::ROWS]; /* the sum over this thread's keys only, until the end */
    float O_reg[C::ROWS][C::D / 8];
};

/* The longest row tiles of all heads start first: under a causal mask short ones fill the gaps. */
template <class C> static __device__ __forceinline__ BlockWork longest_first(const AttnArgs &a)
{
    const unsigned heads = (unsigned)(a.shape.B * a.shape.H);
    const int tiles = ((int)a.shape.Nq + C::Br - 1) / C::Br;
    return work_of_head(a, (int)(blockIdx.x % heads),
                        (tiles - 1 - (int)(blockIdx.x / heads)) * C::Br);
}

/* A state (O, lse) is normalised: it enters with the weight l = 1 at the maximum m = lse. An
 * unnormalised one brings m and l. Where l = 0 no key has been seen, and O is not read. */
template <class C>
static __device__ __forceinline__ void start_rows(ThreadRows<C> &rows, const AttnArgs &a,
                                                  BlockWork work, const float *O_state,
                                                  FlashRows state)
{
    rows.row0 = threadIdx.x / 32 * 4 * C::ROWS + lane_row();
    rows.column0 = lane_column();
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        const int i = work.i0 + rows.row0 + row_of(r);
        float m_row = -INFINITY, l_row = 0.0f;
        if (O_state && i < a.shape.Nq) {
            const int64_t row = lse_row(a, work, i);
            m_row = state.m ? state.m[row] : a.lse[row] * (float)M_LOG2E;
            l_row = state.m ? state.l[row] : m_row != -INFINITY ? 1.0f : 0.0f;
        }
        const bool resumes = l_row != 0.0f;
        rows.m_i[r] = m_row;
        rows.l_i[r] = rows.column0 == 0 ? l_row : 0.0f;
#pragma unroll
        for (int x = 0; x < C::D / 8; x++) {
            const int channel = rows.column0 + column_of(x);
            rows.O_reg[r][x] =
                resumes && channel < a.shape.d ? O_state[state_row(a, work, i) + channel] : 0.0f;
        }
    }
}

/* The division by l_i that the loop put off, and lse. An unnormalised state gets m and l
 * instead. */
template <class C>
static __device__ __forceinline__ void finish_rows(const ThreadRows<C> &rows, const AttnArgs &a,
                                                   BlockWork work, float *O_state, FlashRows state)
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        const int i = work.i0 + rows.row0 + row_of(r);
        const float l_row = sum_of_row(rows.l_i[r]);
        if (i >= a.shape.Nq)
            continue;
        /* Nothing seen: O = 0. */
        const float inverse = state.m ? 1.0f : l_row == 0.0f ? 0.0f : 1.0f / l_row;
        float *O_i = O_state ? O_state + state_row(a, work, i)
                             : (float *)a.O.data + tensor_offset(&a.O, work.b, i, work.h);
#pragma unroll
        for (int x = 0; x < C::D / 8; x++)
            if (rows.column0 + column_of(x) < a.shape.d)
                O_i[rows.column0 + column_of(x)] = rows.O_reg[r][x] * inverse;
        /* A row of a state to which nothing was added keeps its lse, to the bit. */
        float *lse = a.lse + lse_row(a, work, i);
        if (rows.column0 == 0 &&
            !(O_state && l_row == 1.0f && rows.m_i[r] == *lse * (float)M_LOG2E))
            *lse = l_row == 0.0f ? -INFINITY : rows.m_i[r] * (float)M_LN2 + logf(l_row);
        if (rows.column0 == 0 && state.m) {
            state.m[lse_row(a, work, i)] = rows.m_i[r];
            state.l[lse_row(a, work, i)] = l_row;
        }
    }
}

/* What a tile that is not clean needs before the softmax: cap or sign, then the mask. The columns
 * of a thread are four neighbours in each run of 32, four bits in each word of the mask. */
template <class C>
static __device__ __forceinline__ void
adjust_tile(float (&S_reg)[C::ROWS][C::COLS], const AttnArgs &a, const RowMask<C::Br, C::Bc> &mask,
            int j, int row0, int column0)
{
    adjust_scores(S_reg, a);
#pragma unroll
    for (int r = 0; r < C::ROWS; r++)
#pragma unroll
        for (int word = 0; word < C::Bc / 32; word++) {
            const uint32_t bits = row_bits(mask, row0 + row_of(r), word, j, 0) >> column0;
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!(bits >> e & 1))
                    S_reg[r][word * 4 + e] = -INFINITY;
        }
}

/* The online softmax: O and l are rescaled to the new maximum, and P goes to P_smem [Bc][LD_P],
 * four rows at a time (P_smem points at this thread's first key and row). */
template <class C>
static __device__ __forceinline__ void
update_rows(float (&S_reg)[C::ROWS][C::COLS], ThreadRows<C> &rows, float scale_log2, float *P_smem)
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        float m_new = S_reg[r][0];
#pragma unroll
        for (int c = 1; c < C::COLS; c++)
            m_new = fmaxf(m_new, S_reg[r][c]);
        m_new = fmaxf(rows.m_i[r], max_of_row(m_new) * scale_log2);
        const float base = m_new == -INFINITY ? 0.0f : m_new; /* -inf - -inf would be NaN */
        const float alpha = exp2_sfu(rows.m_i[r] - base);
        rows.m_i[r] = m_new;
        rows.l_i[r] *= alpha;
        /* Two instructions a score, and one for the sum. */
#pragma unroll
        for (int c = 0; c < C::COLS; c++) {
            S_reg[r][c] = exp2_sfu(fmaf(S_reg[r][c], scale_log2, -base));
            rows.l_i[r] += S_reg[r][c];
        }
#pragma unroll
        for (int x = 0; x < C::D / 8; x++)
            rows.O_reg[r][x] *= alpha;
    }
    __syncwarp(); /* the warp has read the P of the last tile */
#pragma unroll
    for (int c = 0; c < C::COLS; c++)
#pragma unroll
        for (int r = 0; r < C::ROWS; r += 4)
            *reinterpret_cast<float4 *>(P_smem + column_of(c) * C::LD_P + row_of(r)) =
                make_float4(S_reg[r][c], S_reg[r + 1][c], S_reg[r + 2][c], S_reg[r + 3][c]);
    __syncwarp();
}

/* One block: Br rows of one head. O_state NULL: the plain forward pass. state: m and l where the
 * state is unnormalised. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    attention_f32_kernel(const __grid_constant__ AttnArgs a, float *O_state,
                         const __grid_constant__ FlashRows state)
{
    extern __shared__ __align__(16) float smem_f32[]; /* Q [D][LD_Q], P [Bc][LD_P], two slices */
    __shared__ RowMask<C::Br, C::Bc> mask;
    float *Q_smem = smem_f32, *P_smem = Q_smem + C::D * C::LD_Q;
    float *slices_smem = P_smem + C::Bc * C::LD_P;
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk, d = (int)a.shape.d;
    const BlockWork work = longest_first<C>(a);
    const float *Q = (const float *)a.Q.data + tensor_offset(&a.Q, work.b, work.i0, work.h);
    const float *K = (const float *)a.K.data + tensor_offset(&a.K, work.b, 0, work.h_kv);
    const float *V = (const float *)a.V.data + tensor_offset(&a.V, work.b, 0, work.h_kv);

    /* Slices pass through two buffers in the order in which they are multiplied: of K_j, of V_j, of
     * the next tile's K. Each is fetched when the one before it is taken. (K and V are read from
     * `mask`: as variables of all threads they would cost registers.) */
    int stage = 0; /* the buffer that the next slice goes to */
    auto fetch_K = [&](int j, int channel) {
        const int64_t first = j * C::Bc;
        load_part_f32<true, C::Bc, C::SLICE_CHANNELS, C::LD_K, C::THREADS>(
            slices_smem + stage * C::SLICE, (const float *)mask.K + first * a.K.stride[1] + channel,
            a.K.stride[1], Nk - j * C::Bc, d - channel);
    };
    auto fetch_V = [&](int j, int key) {
        const int64_t first = j * C::Bc + key;
        load_part_f32<false, C::SLICE_KEYS, C::D, C::D, C::THREADS>(
            slices_smem + stage * C::SLICE, (const float *)mask.V + first * a.V.stride[1],
            a.V.stride[1], Nk - (int)first, d);
    };
    /* The slice that was fetched last. wait: this thread's share of it has arrived. Barrier: so has
     * everybody's, and all are done with the slice before, whose buffer is free now. */
    auto take_slice = [&]() -> const float * {
        copy_async_wait<0>();
        __syncthreads();
        stage ^= 1;
        return slices_smem + (stage ^ 1) * C::SLICE;
    };

    /* Which tiles, before anything is loaded; then Q and the first slice travel while the state is
     * set up. */
    const AttnRange q = attn_range(a.positions_q, work.i0, min(C::Br, Nq - work.i0));
    const KeyTiles tiles = find_key_tiles<C::Bc>(a, q);
    bool clean;
    int j = next_key_tile<C::Bc>(a, tiles, q, tiles.end, &clean);
    if (j < 0 && O_state)
        return; /* nothing to add: the state stays as it is, to the bit */
    publish_plan(mask, a, work, K, V, q, tiles);
    __syncthreads();
    load_part_f32<true, C::Br, C::D, C::LD_Q, C::THREADS>(Q_smem, Q, a.Q.stride[1], Nq - work.i0,
                                                          d);
    if (j >= 0)
        fetch_K(j, 0);
    copy_async_commit();
    ThreadRows<C> rows;
    start_rows(rows, a, work, O_state, state);
    const float scale_log2 = exponent_scale(a);

#pragma unroll 1
    while (j >= 0) {
        float S_reg[C::ROWS][C::COLS] = {}; /* becomes Q K_j^T, then P */
        if (!clean && !mask.by_run)
            make_row_words(mask, a, j, 0);
#pragma unroll 1
        for (int x = 0; x < C::D; x += C::SLICE_CHANNELS) {
            const float *K_smem = take_slice(); /* [SLICE_CHANNELS][LD_K] */
            if (x + C::SLICE_CHANNELS < C::D)
                fetch_K(j, x + C::SLICE_CHANNELS);
            else
                fetch_V(j, 0);
            copy_async_commit();
            multiply_add<C::SLICE_CHANNELS, C::LD_Q, C::LD_K>(
                S_reg, Q_smem + x * C::LD_Q + rows.row0, K_smem + rows.column0);
        }
        if (!clean)
            adjust_tile<C>(S_reg, a, mask, j, rows.row0, rows.column0);
        /* P = 2^(S - m) */
        update_rows(S_reg, rows, scale_log2, P_smem + rows.column0 * C::LD_P + rows.row0);

        /* O += P V_j */
        const int j_next = next_key_tile<C::Bc>(a, mask.tiles, mask.q, j, &clean);
#pragma unroll 1
        for (int key = 0; key < C::Bc; key += C::SLICE_KEYS) {
            const float *V_smem = take_slice(); /* [SLICE_KEYS][D] */
            if (key + C::SLICE_KEYS < C::Bc)
                fetch_V(j, key + C::SLICE_KEYS);
            else if (j_next >= 0)
                fetch_K(j_next, 0);
            copy_async_commit();
            multiply_add<C::SLICE_KEYS, C::LD_P, C::D>(
                rows.O_reg, P_smem + key * C::LD_P + rows.row0, V_smem + rows.column0);
        }
        j = j_next;
    }
    copy_async_wait<0>(); /* a block without keys has still asked for Q */
    finish_rows(rows, a, work, O_state, state);
}

template <typename T, int D> struct LaunchRegisterTiles {
    typedef FloatTile<D> C;
    static AttnStatus run(const AttnArgs *a, float *O_state, FlashRows state)
    {
        const AttnStatus status = reserve_smem(attention_f32_kernel<C>, C::SMEM);
        if (status != ATTN_OK)
            return status;
        attention_f32_kernel<C>
            <<<launch_blocks(a, C::Br), C::THREADS, C::SMEM, (cudaStream_t)a->stream>>>(*a, O_state,
                                                                                        state);
        CUDA_TRY_LAUNCH();
        return ATTN_OK;
    }
};

FlashTiles flash_tiles_f32(const AttnArgs *a)
{
    return tiles_for_dim<LaunchRegisterTiles, float>(a);
}

AttnStatus flash_block_f32(const AttnArgs *a, float *O_state_dev, FlashRows rows_dev)
{
    return a->Q.dtype == ATTN_F32
               ? run_for_dim<LaunchRegisterTiles, float>(a, O_state_dev, rows_dev)
               : ATTN_SKIP;
}
