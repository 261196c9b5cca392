/* SPDX-License-Identifier: MIT
 *
 * v2_tiled_merge: the row is cut into blocks, each block makes its own (m, l), and a tree of merges
 * makes the state of the row.
 *
 * v1 is a chain: element c waits for element c-1. Blocks wait for nobody. They could be computed by
 * different threads, SMs or machines, in any order, and the result is the same up to rounding,
 * because the merge is associative and (-inf, 0) is its identity:
 *
 *     block   0   1   2   3   4          merge(merge(0,1), merge(2,3)) with 4 left over
 *              \ /     \ /   |
 *               .       .    |           a chain of n additions rounds n times, a tree only
 *                \     /     |           log2(n) times: the sum also gets more accurate
 *                 `---'------'
 *
 * A tree over a row of unknown length in O(log) memory is a binary counter: waiting[k] holds the
 * state of 2^k blocks. A new block merges upwards while the bits of the block count carry.
 *
 * Inside a block exp is needed once for each element, not twice as in v1: the maximum of the block
 * is known before its sum starts, since the block is small enough to look at twice.
 *
 * Interface: rows x cols; attention with this softmax.
 */
#include <math.h>

#include "problem_rows.h"
#include "units/softmax_state.h"

#define BLOCK_COLS  64 /* 256 bytes: four cache lines, always in L1 */
#define TREE_LEVELS 58 /* 2^58 blocks of 2^6 columns: more than an int64_t can index */

/* Not inlined, so that m stays in a register (v0). */
static __attribute__((noinline)) float largest(const float *x, int64_t n)
{
    float m = -INFINITY;
    for (int64_t c = 0; c < n; c++)
        m = m > x[c] ? m : x[c];
    return m;
}

/* State of one block. x is copied first, so that memory is read once although the loop over the
 * block runs twice. */
static SoftmaxState block_state(const float *x, int64_t n)
{
    float block[BLOCK_COLS];
    SoftmaxState state = softmax_empty();
    LOAD_BLOCK(block, x, n);
    state.m = largest(block, n);
    float shift = softmax_shift(state.m);
    for (int64_t c = 0; c < n; c++)
        state.l += expf(block[c] - shift);
    return state;
}

static SoftmaxState row_state(const float *x, int64_t cols)
{
    SoftmaxState waiting[TREE_LEVELS]; /* waiting[k]: 2^k neighbouring blocks, when bit k is set */
    int64_t blocks = 0;
    for (int64_t first = 0; first < cols; first += BLOCK_COLS, blocks++) {
        int64_t n = cols - first < BLOCK_COLS ? cols - first : BLOCK_COLS;
        SoftmaxState carry = block_state(x + first, n);
        int level = 0;
        for (; blocks >> level & 1; level++)
            carry = softmax_merge(waiting[level], carry);
        waiting[level] = carry;
    }
    /* What is left are the set bits of the block count: unequal subtrees, which is no problem. */
    SoftmaxState state = softmax_empty();
    for (int level = 0; blocks >> level; level++)
        if (blocks >> level & 1)
            state = softmax_merge(waiting[level], state);
    return state;
}

static void softmax(const SoftmaxArgs *args)
{
    int64_t cols = args->cols;
    for (int64_t row = 0; row < args->rows; row++) {
        const float *x = args->x + row * cols; /* [cols] */
        float *y = args->y + row * cols;       /* [cols] */
        SoftmaxState state = row_state(x, cols);

        float shift = softmax_shift(state.m);
        float inverse = softmax_inverse(state);
        for (int64_t c = 0; c < cols; c++)
            STORE(&y[c], expf(LOAD(&x[c]) - shift) * inverse);

        if (args->lse)
            args->lse[row] = softmax_lse(state);
    }
}

RUNG_ROWS(tiled_softmax, v2_tiled_merge, "blocks carry (m, l), a tree of merges makes the row's",
          softmax, NULL, 2, 0);
