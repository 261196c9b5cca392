/* SPDX-License-Identifier: MIT
 *
 * sliding_window_step.h: attention with a sliding window, one block of queries and one block of
 * keys at a time. Online: the result is right after any number of steps, for the keys so far.
 *
 * A step does three things:
 *     1. the attention of the queries Q_i over the keys of block j alone: O_ij and lse_ij
 *     2. for each row, its lse becomes that of the old keys and the new ones together, and the row
 *        of global_o the weighted mean of its old value and O_ij
 *     3. nothing, for rows that see no key of this block
 *
 * The harness calls it for the blocks in any order, rows first, columns first or at random, and
 * compares global_o and global_lse after each step. At first global_o is 0 and global_lse is -inf:
 * attention over no keys. Mind that (-inf) - (-inf) is NaN.
 *
 * Which keys a query sees follows from positions: query p_q sees key p_k if
 *     left  < 0 or p_k >= p_q - left        and
 *     right < 0 or p_k <= p_q + right       both ends inclusive; causal is right = 0
 *
 * Interface:
 * - SlidingStep: what one step gets.
 * - sliding_window_step_variant.
 */
#ifndef COURSE_SLIDING_WINDOW_STEP_H
#define COURSE_SLIDING_WINDOW_STEP_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct SlidingStep {
    int Br, Bc; /* rows of Q_i, rows of K_j and V_j, in memory */
    int d;      /* channels of a row */

    /* The last blocks of a sequence may be shorter: the first rows_q rows of Q_i and the first
     * rows_k rows of K_j and V_j are tokens. The rest is filled with zeros and is no token: it has
     * no weight, and no row of the results belongs to it. */
    int rows_q, rows_k;

    int position_q;  /* position of row 0 of Q_i; row r has position_q + r */
    int position_k;  /* position of row 0 of K_j and V_j */
    int left, right; /* the window; -1: no limit on that side */
    float scale;     /* multiplies q.k */

    const float *Q_i; /* [Br][d] */
    const float *K_j; /* [Bc][d] */
    const float *V_j; /* [Bc][d] */

    /* Of the whole sequence of Nq queries, updated in place. Row r of Q_i belongs to row
     * first_row + r of both; the step writes to no other row. */
    int first_row, Nq;
    float *global_o;   /* [Nq][d] */
    float *global_lse; /* [Nq] */
} SlidingStep;

/* Returns 0 when it is done. */
int sliding_window_step_variant(const SlidingStep *step);

#ifdef __cplusplus
}
#endif
#endif
