/* SPDX-License-Identifier: MIT
 *
 * v3_split_row: one very long row, many blocks.
 *
 * v0-v2 give a row to one block, at most. One row of 2^28 columns would then use one of 132 SMs.
 * The merge frees the row from the block:
 *
 *     pass 1   slice 0   slice 1   slice 2  ...      each block: (m, l) of its slice
 *                 |         |         |
 *              partial_0 partial_1 partial_2 ...     8 bytes each, in global memory
 *                 \         |        /
 *     pass 2   every block merges all partials, then normalises its own slice
 *
 * Blocks of one launch cannot wait for each other, so the end of the first kernel is the barrier.
 * Two reads and one write: no row that long stays on chip (2^28 floats are 1 GiB, all register
 * files together 33 MiB), so three accesses are the least.
 *
 * Pass 2 walks through each slice backwards: the last chunks that pass 1 read are the ones the L2
 * cache may still hold.
 *
 * Prediction before measuring: 3 * 2^30 bytes at the copy rate are 0.76 ms. 256 threads hold 128
 * bytes each on the way, four blocks an SM: 128 KiB in flight, more than Little's law asks (see
 * v2). Merging 2112 partials in every block costs about 2 us a block, behind other blocks' loads.
 *
 * Interface: any rows, cols; float32; attention with this softmax.
 */
#include "problem_row_chunks.cuh"

#define SLICE_THREADS  256
#define SLICE_VECTORS  8
#define CHUNK_COLS     (SLICE_THREADS * 4 * SLICE_VECTORS) /* 8192: what a block loads at a time */
#define BLOCKS_WANTED  2112 /* 16 for each of an H200's 132 SMs, four rounds of four */
#define COLS_ALIGNMENT 32   /* slices start on a memory transaction of 128 bytes */

/* How a matrix is cut: `slices` pieces of `slice_cols` columns for each row, the last one shorter.
 */
typedef struct Cut {
    int64_t slices, slice_cols;
} Cut;

static Cut cut_rows(int64_t rows, int64_t cols)
{
    Cut cut;
    int64_t most = (cols + CHUNK_COLS - 1) / CHUNK_COLS; /* no slice below one chunk */
    int64_t wanted = rows < BLOCKS_WANTED ? BLOCKS_WANTED / rows : 1;
    cut.slices = wanted < most ? wanted : most;
    cut.slice_cols = (cols + cut.slices - 1) / cut.slices;
    cut.slice_cols = (cut.slice_cols + COLS_ALIGNMENT - 1) / COLS_ALIGNMENT * COLS_ALIGNMENT;
    cut.slices = (cols + cut.slice_cols - 1) / cut.slice_cols;
    return cut;
}

static int64_t work(int64_t rows, int64_t cols)
{
    return rows * cut_rows(rows, cols).slices * (int64_t)sizeof(SoftmaxState);
}

template <int FOUR>
static __global__ void __launch_bounds__(SLICE_THREADS, FOUR ? 4 : 3)
    slice_state_kernel(const float *x,        /* [rows][cols] */
                       SoftmaxState *partial, /* [rows][slices] */
                       int64_t cols, Cut cut)
{
    __shared__ SoftmaxState slots_smem[MAX_WARPS];
    const float *x_row = x + blockIdx.x / cut.slices * cols;
    int64_t first = blockIdx.x % cut.slices * cut.slice_cols;
    int64_t last = first + cut.slice_cols < cols ? first + cut.slice_cols : cols;
    SoftmaxState state = softmax_empty();
    float s_reg[4 * SLICE_VECTORS];

    for (; first < last; first += CHUNK_COLS) {
        int n = (int)(last - first < CHUNK_COLS ? last - first : CHUNK_COLS);
        load_chunk<FOUR, SLICE_VECTORS>(s_reg, x_row + first, n, threadIdx.x, SLICE_THREADS);
        state = push_chunk(state, s_reg);
    }
    state = block_merge(warp_merge(state), slots_smem);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = state;
}

template <int FOUR>
static __global__ void __launch_bounds__(SLICE_THREADS, FOUR ? 4 : 3)
    slice_write_kernel(const float *x,              /* [rows][cols] */
                       float *y,                    /* [rows][cols], may be x */
                       float *lse,                  /* [rows] or NULL */
                       const SoftmaxState *partial, /* [rows][slices] */
                       int64_t cols, Cut cut)
{
    __shared__ SoftmaxState slots_smem[MAX_WARPS];
    int64_t row = blockIdx.x / cut.slices;
    int64_t slice = blockIdx.x % cut.slices;
    int64_t slice_first = slice * cut.slice_cols;
    int64_t last = slice_first + cut.slice_cols < cols ? slice_first + cut.slice_cols : cols;
    SoftmaxState state = softmax_empty();

    /* All blocks of a row merge in the same order, so they get the same bits. */
    for (int64_t s = threadIdx.x; s < cut.slices; s += SLICE_THREADS)
        state = softmax_merge(state, partial[row * cut.slices + s]);
    state = block_merge(warp_merge(state), slots_smem);

    float shift = softmax_shift(state.m);
    float inverse = softmax_inverse(state);
    int64_t chunks = (last - slice_first + CHUNK_COLS - 1) / CHUNK_COLS;
    for (int64_t chunk = chunks - 1; chunk >= 0; chunk--) {
        int64_t first = slice_first + chunk * CHUNK_COLS;
        int n = (int)(last - first < CHUNK_COLS ? last - first : CHUNK_COLS);
        float s_reg[4 * SLICE_VECTORS];
        load_chunk<FOUR, SLICE_VECTORS>(s_reg, x + row * cols + first, n, threadIdx.x,
                                        SLICE_THREADS);
#pragma unroll
        for (int e = 0; e < 4 * SLICE_VECTORS; e++)
            s_reg[e] = expf(s_reg[e] - shift);
        store_chunk<FOUR, SLICE_VECTORS>(y + row * cols + first, s_reg, inverse, n, threadIdx.x,
                                         SLICE_THREADS);
    }
    if (slice == 0 && threadIdx.x == 0 && lse)
        lse[row] = softmax_lse(state);
}

template <int FOUR> static void launch_split_row(const SoftmaxArgs *args)
{
    cudaStream_t stream = (cudaStream_t)args->stream;
    SoftmaxState *partial = (SoftmaxState *)args->work;
    Cut cut = cut_rows(args->rows, args->cols);
    unsigned blocks = (unsigned)(args->rows * cut.slices);
    slice_state_kernel<FOUR>
        <<<blocks, SLICE_THREADS, 0, stream>>>(args->x, partial, args->cols, cut);
    slice_write_kernel<FOUR><<<blocks, SLICE_THREADS, 0, stream>>>(args->x, args->y, args->lse,
                                                                   partial, args->cols, cut);
    collect_counts(stream);
}

static void softmax(const SoftmaxArgs *args)
{
    is_aligned_for_four(args) ? launch_split_row<1>(args) : launch_split_row<0>(args);
}

RUNG_ROWS(tiled_softmax, v3_split_row, "many blocks share a row: two reads, one write", softmax,
          work, 2, 0);
