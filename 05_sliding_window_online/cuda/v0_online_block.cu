/* SPDX-License-Identifier: MIT
 *
 * v0_online_block: the step of v1_online_block on the device. Every pair of a block of queries and
 * a block of keys is a launch of its own, in the order of --order:
 *
 *     O = 0, lse = -inf
 *     for each visit (i, j), unless the window hides it:
 *         (O_ij, lse_ij) = attention of the rows over the keys of this block alone
 *         O_i, lse_i = both together, rounded to the dtype of O
 *
 * Any order gives the same result, and this is the rung that shows it. What it costs: O and lse go
 * to memory and back in every step, where the kernels of stage 03 keep them in registers; a launch
 * has only the rows of one block to work on (B * H * block_q of them), so most of the GPU watches;
 * and with 16 bits every step rounds O.
 *
 * A block outside the window costs a look at four numbers on the host: O(1), no launch.
 *
 * A warp has ROWS rows of a block; what it does with them is online_row.cuh.
 *
 * Interface: the rung of stage 05 that launches a step; every dtype, d <= 256.
 */
#include "problem.cuh"
#include "units/online_row.cuh"

#define WARPS 8
#define ROWS  4 /* of a warp: its number, + WARPS, + 2 WARPS ... */

/* Queries i0 .. i0+rows-1 meet keys j0 .. j0+cols-1. */
struct Step {
    int i0, rows, j0, cols;
};

/* Row i against the tile of keys from j on. K_smem, V_smem [Bc][d + 1] */
template <typename T>
static __device__ __forceinline__ void add_tile(BlockRow &row, const Problem &p, const Step &step,
                                                const T *Q_i, const float *K_smem,
                                                const float *V_smem, int i, int j, int Bc)
{
    const int lane = threadIdx.x % 32, c = lane % Bc, d = p.d;
    float qk = 0.0f;
#pragma unroll 4
    for (int x = 0; x < d; x++)
        qk = fmaf((float)Q_i[x], K_smem[c * (d + 1) + x], qk);
    float score = p.scale * qk;
    const int distance = j + c - i;
    if (lane >= Bc || j + c >= step.j0 + step.cols || distance < p.from || distance > p.to)
        score = -INFINITY;
    add_scores(row, score, V_smem, Bc, d);
}

/* One block: WARPS * ROWS rows of one head. */
template <typename T>
static __global__ void __launch_bounds__(WARPS * 32)
    step_kernel(const __grid_constant__ Problem p, Step step)
{
    extern __shared__ float smem_f32[]; /* K, V [Bc][d + 1] */
    const int Bc = keys_of_tile(p.d), ld_q = p.H * p.d, ld_k = p.Hkv * p.d;
    const int tiles = (step.rows + WARPS * ROWS - 1) / (WARPS * ROWS);
    const BlockWork work = work_of_head(p, blockIdx.x / tiles, step.i0);
    const int r0 = (int)(blockIdx.x % tiles) * WARPS * ROWS + threadIdx.x / 32;
    float *K_smem = smem_f32, *V_smem = smem_f32 + Bc * (p.d + 1);
    const T *Q = queries_of((const T *)p.Q, p, work) + (int64_t)step.i0 * ld_q;
    const T *K = keys_of((const T *)p.K, p, work), *V = keys_of((const T *)p.V, p, work);
    T *O = queries_of((T *)p.O, p, work) + (int64_t)step.i0 * ld_q;
    BlockRow rows[ROWS];
#pragma unroll
    for (int n = 0; n < ROWS; n++)
        empty_row(rows[n]);
    for (int j = step.j0; j < step.j0 + step.cols; j += Bc) {
        const int64_t at = (int64_t)j * ld_k;
        __syncthreads(); /* nobody reads the last tile any more */
        load_rows(K_smem, K + at, ld_k, step.j0 + step.cols - j, Bc, p.d, WARPS);
        load_rows(V_smem, V + at, ld_k, step.j0 + step.cols - j, Bc, p.d, WARPS);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            const int r = r0 + n * WARPS;
            if (r < step.rows) /* the same for all lanes of the warp */
                add_tile(rows[n], p, step, Q + (int64_t)r * ld_q, K_smem, V_smem, step.i0 + r, j,
                         Bc);
        }
    }
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        const int r = r0 + n * WARPS;
        if (r < step.rows)
            merge_row(rows[n], O + (int64_t)r * ld_q,
                      p.lse + lse_row(&p, work.b, work.h, step.i0 + r), p.d);
    }
}

/* One block: O and lse of a row that has seen nothing. */
template <typename T>
static __global__ void __launch_bounds__(256) start_kernel(const __grid_constant__ Problem p)
{
    const int64_t rows = (int64_t)p.B * p.H * p.Nq;
    const int64_t row = blockIdx.x * (int64_t)8 + threadIdx.x / 32;
    if (row >= rows)
        return;
    for (int x = threadIdx.x % 32; x < p.d; x += 32)
        ((T *)p.O)[row * p.d + x] = T(0.0f);
    if (threadIdx.x % 32 == 0)
        p.lse[row] = -INFINITY;
}

template <typename T> static void launch_step(const Problem *p, Step step)
{
    const int tiles = (step.rows + WARPS * ROWS - 1) / (WARPS * ROWS);
    const int last = step.i0 + step.rows - 1;
    if (first_key(p, step.i0) >= step.j0 + step.cols || end_key(p, last) <= step.j0)
        return; /* nobody sees anything */
    step_kernel<T>
        <<<(unsigned)(p->B * p->H * tiles), WARPS * 32, tile_bytes(p->d), stream_of(p)>>>(*p, step);
}

/* Block `index` of 0 .. N-1. */
static int block_length(int index, int size, int N)
{
    return min(size, N - index * size);
}

template <typename T> static void launch(const Problem *p)
{
    const int64_t rows = (int64_t)p->B * p->H * p->Nq;
    const int64_t Tr = (p->Nq + p->block_q - 1) / p->block_q;
    const int64_t Tc = (p->Nk + p->block_kv - 1) / p->block_kv;
    if (!reserve_smem((const void *)step_kernel<T>, tile_bytes(p->d)))
        return;
    start_kernel<T><<<(unsigned)((rows + 7) / 8), 256, 0, stream_of(p)>>>(*p);
    for (int64_t t = 0; t < Tr * Tc; t++) {
        const int i = (int)(p->visits[t] / Tc), j = (int)(p->visits[t] % Tc);
        launch_step<T>(p, {i * p->block_q, block_length(i, p->block_q, p->Nq), j * p->block_kv,
                           block_length(j, p->block_kv, p->Nk)});
    }
}

static void forward(const Problem *p)
{
    RUN_ANY(launch, p);
}

static Tiles tiles(const Problem *p)
{
    return {p->block_q, p->block_kv};
}

RUNG(sliding_window, v0_online_block, "one block of queries and keys a step, merged in place",
     F32 | F16 | BF16, forward, NULL, NULL, tiles, STEPS | ANY_D);
