/* SPDX-License-Identifier: MIT
 *
 * v2_register_tiles: v1's loops, every value from shared memory used many times.
 *
 * In v1 each FMA waits for a word from shared memory. A thread that computes an 8 x 8 piece of S
 * loads 8 + 8 values for 64 FMA. Loaded as float4 along the channels, that is 16 load instructions
 * for 256 FMA; an SM issues four warps' FMA for one such load at a time, so loads fit in between.
 *
 * A warp is 4 x 8 threads: ty = lane / 8 chooses rows, tx = lane % 8 columns.
 *
 *     S: rows  row0 + 4*r + ty... (ROWS of them)   keys  tx + 8*c   (every 8th: eight lanes that
 *     read
 *     O: the same rows                             channels 4*tx + 32*n .. + 3      eight rows of K
 *                                                                            hit different banks)
 *
 * All columns of a row lie in the eight lanes of one warp, so the row maximum takes three shuffles,
 * and P goes through shared memory within the warp: no block-wide barrier.
 *
 * K and V take turns in one buffer: with it even D = 256 stays within 64 KiB of shared memory, what
 * GPUs from sm_75 on offer, and three or four blocks fit an SM of a large GPU. While one of them
 * waits for its loads, the others compute; that replaces double buffering here.
 *
 * Prediction (H200, f32, d=64, full): per tile and thread 8192 FMA, 512 float4 loads, 64 loads and
 * stores on the way in, about 600 instructions of softmax: 88 % of the issue slots are FMA.
 * Barriers and latencies with only two warps a scheduler will cost a third: 38-45 TFLOP/s of 67.
 *
 * Interface:
 * - flash_forward_v2_register_tiles: f32, d <= 256, any shape, mask and layout.
 * - flash_block_f32 (block.cuh): the same, resuming from (O, lse).
 */
#include "block.cuh"
#include "mma.cuh"
#include "row_mask.cuh"

/* ROWS x COLS of S, ROWS x D/8 of O: as much as 255 registers hold. LD: rows of shared memory are
 * 16 bytes longer than D channels, so that eight rows at one channel lie in different banks. */
template <int D_> struct FloatTile {
    static const int D = D_;
    static const int WARPS = D == 128 ? 4 : 2, THREADS = WARPS * 32;
    static const int BLOCKS = D <= 64 ? 4 : D == 128 ? 2 : 3; /* that an SM shall hold */
    static const int ROWS = D < 128 ? 8 : 4, Br = WARPS * 4 * ROWS;
    static const int Bc = D <= 64 ? 64 : 32, COLS = Bc / 8;
    static const int LD = D + 4, P_LD = Bc + 4;
    static const int SMEM = (Br * LD + Bc * LD + Br * P_LD) * (int)sizeof(float);
};

/* tile_smem [count][LD]; zeros past N and d. */
template <class C>
static __device__ __forceinline__ void load_tile_f32(float *tile_smem, const float *base,
                                                     int64_t stride, int first, int count, int N,
                                                     int d, bool aligned)
{
    if (aligned) {
#pragma unroll 4
        for (int e = threadIdx.x; e < count * (C::D / 4); e += C::THREADS) {
            const int r = e / (C::D / 4), x = e % (C::D / 4) * 4;
            float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (first + r < N && x < d)
                four = *reinterpret_cast<const float4 *>(base + (first + r) * stride + x);
            *reinterpret_cast<float4 *>(tile_smem + r * C::LD + x) = four;
        }
    } else {
        for (int e = threadIdx.x; e < count * C::D; e += C::THREADS) {
            const int r = e / C::D, x = e % C::D;
            tile_smem[r * C::LD + x] =
                first + r < N && x < d ? base[(first + r) * stride + x] : 0.0f;
        }
    }
}

static __device__ __forceinline__ float4 load_four(const float *from)
{
    return *reinterpret_cast<const float4 *>(from);
}

/* S_reg[r][c] = Q row (4r + ty) of the warp . K_j row (tx + 8c) */
template <class C>
static __device__ __forceinline__ void multiply_QK(float (&S_reg)[C::ROWS][C::COLS],
                                                   const float *Q_smem, const float *K_smem)
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++)
#pragma unroll
        for (int c = 0; c < C::COLS; c++)
            S_reg[r][c] = 0.0f;
#pragma unroll 2
    for (int x = 0; x < C::D; x += 4) {
        float4 q[C::ROWS];
#pragma unroll
        for (int r = 0; r < C::ROWS; r++)
            q[r] = load_four(Q_smem + r * 4 * C::LD + x);
#pragma unroll
        for (int c = 0; c < C::COLS; c++) {
            const float4 k = load_four(K_smem + c * 8 * C::LD + x);
#pragma unroll
            for (int r = 0; r < C::ROWS; r++) {
                S_reg[r][c] = fmaf(q[r].x, k.x, S_reg[r][c]);
                S_reg[r][c] = fmaf(q[r].y, k.y, S_reg[r][c]);
                S_reg[r][c] = fmaf(q[r].z, k.z, S_reg[r][c]);
                S_reg[r][c] = fmaf(q[r].w, k.w, S_reg[r][c]);
            }
        }
    }
}

/* O_reg[r][4n + e] += P row (4r + ty) . V_j column (4tx + 32n + e) */
template <class C>
static __device__ __forceinline__ void multiply_PV(float (&O_reg)[C::ROWS][C::D / 8],
                                                   const float *P_smem, const float *V_smem)
{
#pragma unroll 2
    for (int key = 0; key < C::Bc; key += 4) {
        float p[C::ROWS][4];
#pragma unroll
        for (int r = 0; r < C::ROWS; r++)
            *reinterpret_cast<float4 *>(p[r]) = load_four(P_smem + r * 4 * C::P_LD + key);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int n = 0; n < C::D / 32; n++) {
                const float4 v = load_four(V_smem + (key + e) * C::LD + 32 * n);
#pragma unroll
                for (int r = 0; r < C::ROWS; r++) {
                    O_reg[r][4 * n] = fmaf(p[r][e], v.x, O_reg[r][4 * n]);
                    O_reg[r][4 * n + 1] = fmaf(p[r][e], v.y, O_reg[r][4 * n + 1]);
                    O_reg[r][4 * n + 2] = fmaf(p[r][e], v.z, O_reg[r][4 * n + 2]);
                    O_reg[r][4 * n + 3] = fmaf(p[r][e], v.w, O_reg[r][4 * n + 3]);
                }
            }
    }
}

/* The online softmax. P goes to P_smem (this thread's row 0, column tx), O and l are rescaled. */
template <class C>
static __device__ __forceinline__ void update_rows(float (&S_reg)[C::ROWS][C::COLS],
                                                   float (&m_i)[C::ROWS], float (&l_i)[C::ROWS],
                                                   float (&O_reg)[C::ROWS][C::D / 8], float *P_smem)
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        float m_new = m_i[r];
#pragma unroll
        for (int c = 0; c < C::COLS; c++)
            m_new = fmaxf(m_new, S_reg[r][c]);
#pragma unroll
        for (int distance = 4; distance > 0; distance /= 2)
            m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, distance));
        const float base = m_new == -INFINITY ? 0.0f : m_new; /* -inf - -inf would be NaN */
        const float alpha = exp2_sfu((m_i[r] - base) * LOG2E);
        m_i[r] = m_new;
        l_i[r] *= alpha; /* the sum over this thread's keys only, until the end */
#pragma unroll
        for (int c = 0; c < C::COLS; c++) {
            const float p = exp2_sfu((S_reg[r][c] - base) * LOG2E);
            l_i[r] += p;
            P_smem[r * 4 * C::P_LD + 8 * c] = p;
        }
#pragma unroll
        for (int x = 0; x < C::D / 8; x++)
            O_reg[r][x] *= alpha;
    }
}

/* One block: Br rows of one head. O_state NULL: the plain forward pass. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    register_tiles_kernel(const __grid_constant__ AttnArgs a, float *O_state, bool aligned)
{
    extern __shared__ __align__(16) float smem_f32[];
    __shared__ RowMask<C::Br, C::Bc> mask;
    float *Q_smem = smem_f32, *KV_smem = Q_smem + C::Br * C::LD, *P_smem = KV_smem + C::Bc * C::LD;
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk, d = (int)a.shape.d;
    const int ty = threadIdx.x % 32 / 8, tx = threadIdx.x % 8;
    const int row0 = threadIdx.x / 32 * 4 * C::ROWS + ty; /* this thread's rows: row0 + 4 * r */
    const BlockWork work = work_of_block(a, C::Br);
    const float *Q = (const float *)a.Q.data + tensor_offset(&a.Q, work.b, 0, work.h);
    const float *K = (const float *)a.K.data + tensor_offset(&a.K, work.b, 0, work.h_kv);
    const float *V = (const float *)a.V.data + tensor_offset(&a.V, work.b, 0, work.h_kv);

    const AttnRange q = attn_range(a.positions_q, work.i0, min(C::Br, Nq - work.i0));
    const KeyTiles tiles = find_key_tiles<C::Bc>(a, q);
    if (tiles.begin == tiles.end && O_state)
        return; /* nothing to add: the state stays as it is, to the bit */
    publish_plan(mask, a, work, K, V, q, tiles);
    load_tile_f32<C>(Q_smem, Q, a.Q.stride[1], work.i0, C::Br, Nq, d, aligned);

    float m_i[C::ROWS], l_i[C::ROWS], O_reg[C::ROWS][C::D / 8];
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        const int i = work.i0 + row0 + 4 * r;
        const bool resumes = O_state && i < Nq && a.lse[lse_row(a, work, i)] != -INFINITY;
        m_i[r] = resumes ? a.lse[lse_row(a, work, i)] : -INFINITY;
        l_i[r] =
            resumes && tx == 0 ? 1.0f : 0.0f; /* a state is normalised: weight l = 1 at m = lse */
#pragma unroll
        for (int x = 0; x < C::D / 8; x++) {
            const int channel = x / 4 * 32 + 4 * tx + x % 4;
            O_reg[r][x] = resumes && channel < d ? O_state[state_row(a, work, i) + channel] : 0.0f;
        }
    }
    __syncthreads();

    bool clean;
    int j = next_key_tile<C::Bc>(a, tiles, q, tiles.end, &clean);
#pragma unroll 1
    for (; j >= 0; j = next_key_tile<C::Bc>(a, mask.tiles, mask.q, j, &clean)) {
        float S_reg[C::ROWS][C::COLS];
        load_tile_f32<C>(KV_smem, (const float *)mask.K, a.K.stride[1], j * C::Bc, C::Bc, Nk, d,
                         aligned);
        if (!mask.by_run && !clean)
            make_row_words(mask, a, j, 0);
        __syncthreads();
        multiply_QK<C>(S_reg, Q_smem + row0 * C::LD, KV_smem + tx * C::LD);
        __syncthreads(); /* K_j is used up, V_j takes its place */
        load_tile_f32<C>(KV_smem, (const float *)mask.V, a.V.stride[1], j * C::Bc, C::Bc, Nk, d,
                         aligned);
#pragma unroll
        for (int r = 0; r < C::ROWS; r++)
#pragma unroll
            for (int c = 0; c < C::COLS; c++) {
                S_reg[r][c] = attn_score(&a, S_reg[r][c]);
                if (!clean && !(row_bits(mask, row0 + 4 * r, c / 4, j, 0) >> (c % 4 * 8 + tx) & 1))
                    S_reg[r][c] = -INFINITY;
            }
        update_rows<C>(S_reg, m_i, l_i, O_reg, P_smem + row0 * C::P_LD + tx);
        __syncthreads(); /* V_j is there, and P */
        multiply_PV<C>(O_reg, P_smem + row0 * C::P_LD, KV_smem + 4 * tx);
        __syncthreads(); /* V_j is used up, and so are the words of the mask */
    }

#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        const int i = work.i0 + row0 + 4 * r;
#pragma unroll
        for (int distance = 4; distance > 0; distance /= 2)
            l_i[r] += __shfl_xor_sync(0xffffffffu, l_i[r], distance);
        if (i >= Nq)
            continue;
        const float inverse = l_i[r] == 0.0f ? 0.0f : 1.0f / l_i[r];
        float *O_i = O_state ? O_state + state_row(a, work, i)
                             : (float *)a.O.data + tensor_offset(&a.O, work.b, i, work.h);
#pragma unroll
        for (int x = 0; x < C::D / 8; x++)
            if (x / 4 * 32 + 4 * tx + x % 4 < d)
                O_i[x / 4 * 32 + 4 * tx + x % 4] = O_reg[r][x] * inverse;
        if (tx == 0)
            a.lse[lse_row(a, work, i)] = m_i[r] + logf(l_i[r]); /* nothing seen: -inf */
    }
}

template <typename T, int D> struct LaunchRegisterTiles {
    typedef FloatTile<D> C;
    static AttnStatus run(const AttnArgs *a, float *O_state)
    {
        const AttnStatus status = reserve_smem(register_tiles_kernel<C>, C::SMEM);
        if (status != ATTN_OK)
            return status;
        register_tiles_kernel<C>
            <<<launch_blocks(a, C::Br), C::THREADS, C::SMEM, (cudaStream_t)a->stream>>>(
                *a, O_state, all_rows_on_16_bytes(a));
        CUDA_TRY_LAUNCH();
        return ATTN_OK;
    }
};

FlashTiles flash_tiles_v2_register_tiles(const AttnArgs *a)
{
    return tiles_for_dim<LaunchRegisterTiles, float>(a);
}

AttnStatus flash_block_f32(const AttnArgs *a, float *O_state_dev)
{
    return a->Q.dtype == ATTN_F32 ? run_for_dim<LaunchRegisterTiles, float>(a, O_state_dev)
                                  : ATTN_SKIP;
}

AttnStatus flash_forward_v2_register_tiles(const AttnArgs *a)
{
    return flash_block_f32(a, NULL);
}
