/* SPDX-License-Identifier: MIT
 *
 * merge_rows.c: judges a changed 02_tiled_softmax/cpu/v2_tiled_merge.c on one row.
 *
 * Interface: -N scores, --empty: all are -inf.
 */
#include <math.h>

#include "learn.h"
#include "problem_rows.h"

#define BLOCK 64 /* scores of a block in v2_tiled_merge */

const Mistake mistakes[] = {
    {"sum_of_the_largest_tree",
     "Only the largest part of the tree is in m and l: the states that wait "
     "in the lower bits are lost."},
    {"smallest_part_only", "Only the part of the lowest set bit is in m and l."},
    {"merge_without_weights",
     "The waiting sums are added without bringing them to the common maximum."},
    {NULL, NULL}};

static float *x;
static Output *y, *lse;
static long n;

extern const RowsRung rows_v2_tiled_merge;

void prepare(void)
{
    long j;
    n = number("-N", 64);
    x = normal_input("x", n, 31, NULL);
    y = output("y", n, 1, "score", "");
    lse = output("lse", 1, 1, "row", "");
    for (j = 0; j < n && has_flag("--empty"); j++)
        x[j] = -INFINITY;
}

void call(void)
{
    const SoftmaxArgs args = {
        .x = x, .y = y->found, .lse = lse->found, .rows = 1, .cols = n, .threads = 1};
    rows_v2_tiled_merge.softmax(&args);
}

/* (m, l) of the scores from first to last - 1 */
static void part(long first, long last, double *m, double *l)
{
    long j;
    *m = -INFINITY, *l = 0.0;
    for (j = first; j < last; j++)
        *m = fmax(*m, x[j]);
    for (j = first; j<last && * m> - INFINITY; j++)
        *l += exp(x[j] - *m);
}

/* The parts of the tree, from the first score to the last: one for each set bit of the number of
 * blocks, the largest first. */
void expect(int mistake)
{
    const long blocks = (n + BLOCK - 1) / BLOCK;
    double m = -INFINITY, l = 0.0;
    long bit, first = 0, j;
    for (bit = 1L << 30; bit; bit >>= 1) {
        const long last = first + bit * BLOCK < n ? first + bit * BLOCK : n;
        double m_part, l_part, m_new;
        if (!(blocks & bit))
            continue;
        part(first, last, &m_part, &l_part);
        m_new = fmax(m, m_part);
        if ((mistake == 1 && first) || (mistake == 2 && last < n) || m_new == -INFINITY)
            l += 0.0;
        else if (mistake == 3)
            l += l_part;
        else
            l = l * exp(m - m_new) + l_part * exp(m_part - m_new);
        if (!(mistake == 1 && first) && !(mistake == 2 && last < n))
            m = m_new;
        first = last;
    }
    for (j = 0; j < n; j++)
        y->expected[j] = l > 0.0 ? exp(x[j] - m) / l : 0.0;
    lse->expected[0] = m + log(l);
}
