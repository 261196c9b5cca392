/* SPDX-License-Identifier: MIT
 *
 * v3_simd_threads: the blocks of v2, with vector instructions inside a block and threads across.
 *
 * - Inside a block: row_max and softmax_exp_row of units/exp_rows.h work on 4 to 16 floats at a
 *   time. expf of the C library is one call for each element; the polynomial is a few multiply-adds
 *   for a whole vector.
 * - The block is 16 KiB, half of a first-level cache. A row that fits in it is read from memory
 *   once, and exp is computed once: two accesses for each element, the least possible. (On the GPU
 *   the same idea is v2_one_read, with registers in the place of the cache.)
 * - Across threads: rows are independent. When there are fewer rows than threads, a row is cut
 *   into one part for each thread, and the parts' states are merged: the operator of v2 once more.
 *
 * Interface: rows x cols; attention with this softmax.
 */
#include "problem_rows.h"
#include "units/exp_rows.h"
#include "units/softmax_state.h"

#define BLOCK_COLS 4096 /* a row up to here is read once: it stays in the cache */
#define MAX_PARTS  64   /* threads that share one row */

/* Takes n <= BLOCK_COLS columns into `block` and leaves exp(x - m) there. */
static SoftmaxState exp_block(float *block, const float *x, int64_t n)
{
    SoftmaxState state;
    LOAD_BLOCK(block, x, n);
    state.m = row_max(block, n);
    state.l = softmax_exp_row(block, block, n, softmax_shift(state.m));
    return state;
}

/* Pass 1 over columns first .. last-1 of a row. */
static SoftmaxState range_state(const float *x, int64_t first, int64_t last)
{
    _Alignas(64) float block[BLOCK_COLS];
    SoftmaxState state = softmax_empty();
    for (int64_t c = first; c < last; c += BLOCK_COLS) {
        int64_t n = last - c < BLOCK_COLS ? last - c : BLOCK_COLS;
        state = softmax_merge(state, exp_block(block, x + c, n));
    }
    return state;
}

/* Pass 2 over the same columns, when the state of the whole row is known. */
static void range_write(const float *x, float *y, int64_t first, int64_t last, SoftmaxState row)
{
    _Alignas(64) float block[BLOCK_COLS];
    float shift = softmax_shift(row.m);
    float inverse = softmax_inverse(row);
    for (int64_t c = first; c < last; c += BLOCK_COLS) {
        int64_t n = last - c < BLOCK_COLS ? last - c : BLOCK_COLS;
        LOAD_BLOCK(block, x + c, n);
        softmax_exp_row(block, block, n, shift);
        STORE_BLOCK_SCALED(y + c, block, n, inverse);
    }
}

/* One row by one thread. */
static SoftmaxState softmax_row(const float *x, float *y, int64_t cols)
{
    SoftmaxState state;
    if (cols <= BLOCK_COLS) {
        _Alignas(64) float block[BLOCK_COLS];
        state = exp_block(block, x, cols);
        STORE_BLOCK_SCALED(y, block, cols, softmax_inverse(state));
    } else {
        state = range_state(x, 0, cols);
        range_write(x, y, 0, cols, state);
    }
    return state;
}

/* One row by `parts` threads: pass 1 in parallel, a merge, pass 2 in parallel. */
static SoftmaxState softmax_row_shared(const float *x, float *y, int64_t cols, int parts)
{
    SoftmaxState part[MAX_PARTS];
    SoftmaxState row = softmax_empty();
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int p = 0; p < parts; p++)
        part[p] = range_state(x, cols * p / parts, cols * (p + 1) / parts);
    for (int p = 0; p < parts; p++)
        row = softmax_merge(row, part[p]);
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int p = 0; p < parts; p++)
        range_write(x, y, cols * p / parts, cols * (p + 1) / parts, row);
    return row;
}

static void softmax(const SoftmaxArgs *args)
{
    int64_t rows = args->rows, cols = args->cols;
    int parts = args->threads < MAX_PARTS ? args->threads : MAX_PARTS;

    /* A short row is not worth sharing: starting threads costs some microseconds. */
    if (rows < args->threads && cols > parts * (int64_t)BLOCK_COLS) {
        for (int64_t row = 0; row < rows; row++) {
            SoftmaxState state =
                softmax_row_shared(args->x + row * cols, args->y + row * cols, cols, parts);
            if (args->lse)
                args->lse[row] = softmax_lse(state);
        }
        return;
    }
#pragma omp parallel for num_threads(args->threads) schedule(static) if (args->threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        SoftmaxState state = softmax_row(args->x + row * cols, args->y + row * cols, cols);
        if (args->lse)
            args->lse[row] = softmax_lse(state);
    }
}

RUNG_ROWS(tiled_softmax, v3_simd_threads, "blocks that stay in the cache, vector exp, threads",
          softmax, NULL, 2, BLOCK_COLS);
