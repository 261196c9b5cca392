/* SPDX-License-Identifier: MIT
 *
 * v2_register_tiles: v1's loops, every value from shared memory used many times.
 *
 * In v1 each FMA waits for a word from shared memory. Here a thread keeps an 8 x 8 piece of S and
 * one of O in registers and loads 16 values for 64 FMA (product_f32.cuh). Both products are one
 * loop, a sum of outer products, with Q, K and P transposed in shared memory:
 *
 *     S += Q[:, x] K[:, x]^T  for each channel x         O += P[:, j] V[j, :]  for each key j
 *
 * All columns of a row lie in the eight lanes of one warp: the row maximum takes three shuffles,
 * and P goes through shared memory within the warp, without a barrier.
 *
 * K_j comes in slices of 32 channels, V_j in slices of a few keys. While one is multiplied,
 * cp.async brings the next into the other of two buffers. The one barrier before a slice says
 * both: it is here, and nobody still reads the buffer that is filled next.
 *
 * Prediction (H200, f32, N = 16384, full): a tile of 64 x 64 at d = 64 costs a thread 8192 FMA, 512
 * float4 loads, 400 instructions of softmax, 250 of the mask, 500 of copies, addresses and loops:
 * 83 % of the issue slots are FMA. Two warps a scheduler, all that 255 registers allow, will leave
 * some slots empty: 38 to 42 of 67 TFLOP/s. d = 128: tiles of 32 keys, more loads for each FMA: 30
 * to 35.
 * Measured: docs/lab/03_rungs.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f32, d = 64 and 128.
 */
#include "problem.cuh"
#include "units/mma.cuh"
#include "units/product_f32.cuh"

namespace register_tiles
{

/* A thread holds ROWS x COLS of S and ROWS x D/8 of O: as much as 255 registers allow. All of
 * shared memory within 64 KiB, what GPUs from sm_75 on give a block: D = 128 has room for 32 keys
 * at a time. Transposed rows are 4 floats longer than their content, so that stores down a column
 * find eight banks, not one. */
template <int D_> struct FloatTile {
    static const int D = D_, WARPS = 2, THREADS = WARPS * 32;
    static const int BLOCKS = D == 64 ? 4 : 3; /* that an SM shall hold */
    static const int ROWS = 8, Br = WARPS * 4 * ROWS;
    static const int COLS = D == 128 ? 4 : 8, Bc = COLS * 8;
    static const int SLICE_CHANNELS = 32, SLICE_KEYS = D == 64 ? 32 : 16;
    static const int LD_Q = Br + 4, LD_K = Bc + 4, LD_P = Br + 4;
    static const int K_SLICE = SLICE_CHANNELS * LD_K, V_SLICE = SLICE_KEYS * D;
    static const int SLICE = K_SLICE > V_SLICE ? K_SLICE : V_SLICE;
    static const int SMEM = (D * LD_Q + Bc * LD_P + 2 * SLICE) * (int)sizeof(float);
};

/* The registers of a thread: its rows start at row0 of the block, its columns at column0. */
template <class C> struct ThreadRows {
    int row0, column0;
    float m_i[C::ROWS], l_i[C::ROWS]; /* l_i: over this thread's keys only, until the end */
    float O_reg[C::ROWS][C::D / 8];
};

} // namespace register_tiles

using namespace register_tiles;

template <class C> static __device__ __forceinline__ void start_rows(ThreadRows<C> &rows)
{
    rows.row0 = threadIdx.x / 32 * 4 * C::ROWS + lane_row();
    rows.column0 = lane_column();
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        rows.m_i[r] = -INFINITY;
        rows.l_i[r] = 0.0f;
#pragma unroll
        for (int x = 0; x < C::D / 8; x++)
            rows.O_reg[r][x] = 0.0f;
    }
}

/* The division by l_i that the loop put off, and lse. Nothing seen: O = 0, lse = -inf. */
template <class C>
static __device__ __forceinline__ void finish_rows(const ThreadRows<C> &rows, const Problem &p,
                                                   BlockWork work)
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        const int i = work.i0 + rows.row0 + row_of(r);
        const float l_row = sum_of_row(rows.l_i[r]);
        if (i >= p.Nq)
            continue;
        const float inverse = l_row == 0.0f ? 0.0f : 1.0f / l_row, *O = rows.O_reg[r];
        float *O_i = (float *)p.O + query_row(&p, work.b, work.h, i) + rows.column0;
#pragma unroll
        for (int x = 0; x < C::D / 8; x += 4) /* whole sectors: 16 bytes of eight lanes of a row */
            *reinterpret_cast<float4 *>(O_i + column_of(x)) = make_float4(
                O[x] * inverse, O[x + 1] * inverse, O[x + 2] * inverse, O[x + 3] * inverse);
        if (rows.column0 == 0)
            p.lse[lse_row(&p, work.b, work.h, i)] =
                l_row == 0.0f ? -INFINITY : rows.m_i[r] + logf(l_row);
    }
}

/* -inf where row i may not see key j, and where there is no key j. */
template <class C>
static __device__ __forceinline__ void hide_scores(float (&S_reg)[C::ROWS][C::COLS],
                                                   const ThreadRows<C> &rows, const Problem &p,
                                                   int i0, int j0)
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        /* The first and the last column that the row sees, counted from this thread's. */
        const int i = i0 + rows.row0 + row_of(r), j = j0 + rows.column0;
        const int first = i + p.from - j, last = min(i + p.to, p.Nk - 1) - j;
#pragma unroll
        for (int c = 0; c < C::COLS; c++)
            if (column_of(c) < first || column_of(c) > last)
                S_reg[r][c] = -INFINITY;
    }
}

/* The online softmax: O and l are rescaled to the new maximum, and P goes to P_smem [Bc][LD_P],
 * four rows at a time (P_smem points at this thread's first key and row). */
template <class C>
static __device__ __forceinline__ void update_rows(float (&S_reg)[C::ROWS][C::COLS],
                                                   ThreadRows<C> &rows, float scale, float *P_smem)
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        float m_new = S_reg[r][0];
#pragma unroll
        for (int c = 1; c < C::COLS; c++)
            m_new = fmaxf(m_new, S_reg[r][c]);
        m_new = fmaxf(rows.m_i[r], scale * max_of_row(m_new));
        const float base = m_new == -INFINITY ? 0.0f : m_new; /* -inf - -inf would be NaN */
        const float alpha = exp2_sfu((rows.m_i[r] - base) * (float)M_LOG2E);
        rows.m_i[r] = m_new;
        rows.l_i[r] *= alpha;
#pragma unroll
        for (int c = 0; c < C::COLS; c++) {
            S_reg[r][c] = exp2_sfu((scale * S_reg[r][c] - base) * (float)M_LOG2E);
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

/* One block: Br rows of one head. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    register_tiles_kernel(const __grid_constant__ Problem p)
{
    extern __shared__ __align__(16) float smem_f32[]; /* Q [D][LD_Q], P [Bc][LD_P], two slices */
    float *Q_smem = smem_f32, *P_smem = Q_smem + C::D * C::LD_Q;
    float *slices_smem = P_smem + C::Bc * C::LD_P;
    const BlockWork work = work_of_block(p, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const float *Q = queries_of((const float *)p.Q, p, work) + work.i0 * Q_step;
    const float *K = keys_of((const float *)p.K, p, work);
    const float *V = keys_of((const float *)p.V, p, work);

    /* Slices pass through two buffers in the order in which they are multiplied: of K_j, of V_j, of
     * the next tile's K. Each is fetched when the one before it is taken. */
    int stage = 0; /* the buffer that the next slice goes to */
    auto fetch_K = [&](int j, int channel) {
        load_tile_f32<true, C::Bc, C::SLICE_CHANNELS, C::LD_K, C::THREADS>(
            slices_smem + stage * C::SLICE, K + j * C::Bc * K_step + channel, K_step,
            p.Nk - j * C::Bc);
    };
    auto fetch_V = [&](int j, int key) {
        const int first = j * C::Bc + key;
        load_tile_f32<false, C::SLICE_KEYS, C::D, C::D, C::THREADS>(
            slices_smem + stage * C::SLICE, V + first * K_step, K_step, p.Nk - first);
    };
    /* The slice that was fetched last. wait: this thread's share of it has arrived. Barrier: so has
     * everybody's, and all are done with the slice before, whose buffer is free now. */
    auto take_slice = [&]() -> const float * {
        copy_async_wait<0>();
        __syncthreads();
        stage ^= 1;
        return slices_smem + (stage ^ 1) * C::SLICE;
    };

    load_tile_f32<true, C::Br, C::D, C::LD_Q, C::THREADS>(Q_smem, Q, Q_step, p.Nq - work.i0);
    if (tiles.begin < tiles.end)
        fetch_K(tiles.begin, 0);
    copy_async_commit();
    ThreadRows<C> rows;
    start_rows(rows);
#pragma unroll 1
    for (int j = tiles.begin; j < tiles.end; j++) {
        float S_reg[C::ROWS][C::COLS] = {}; /* becomes Q K_j^T, then P */
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
        hide_scores<C>(S_reg, rows, p, work.i0, j * C::Bc);
        update_rows(S_reg, rows, p.scale, P_smem + rows.column0 * C::LD_P + rows.row0);
        /* O += P V_j */
#pragma unroll 1
        for (int key = 0; key < C::Bc; key += C::SLICE_KEYS) {
            const float *V_smem = take_slice(); /* [SLICE_KEYS][D] */
            if (key + C::SLICE_KEYS < C::Bc)
                fetch_V(j, key + C::SLICE_KEYS);
            else if (j + 1 < tiles.end)
                fetch_K(j + 1, 0);
            copy_async_commit();
            multiply_add<C::SLICE_KEYS, C::LD_P, C::D>(
                rows.O_reg, P_smem + key * C::LD_P + rows.row0, V_smem + rows.column0);
        }
    }
    copy_async_wait<0>(); /* a block without keys has still asked for Q */
    finish_rows(rows, p, work);
}

template <int D> static void launch(const Problem *p)
{
    typedef FloatTile<D> C;
    if (reserve_smem((const void *)register_tiles_kernel<C>, C::SMEM))
        register_tiles_kernel<C><<<row_blocks(p, C::Br), C::THREADS, C::SMEM, stream_of(p)>>>(*p);
}

static void forward(const Problem *p)
{
    RUN_F32(launch, p);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? FloatTile<64>::Br : FloatTile<128>::Br,
            p->d == 64 ? FloatTile<64>::Bc : FloatTile<128>::Bc};
}

RUNG(flash_forward, v2_register_tiles, "tiles in registers and shared memory, vector loads", F32,
     forward, NULL, NULL, tiles, 0);
