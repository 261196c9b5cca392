/* SPDX-License-Identifier: MIT
 *
 * debug.c: calls both parts with the sizes of a case, see debug_case.h. The numbers are not the
 * judge's; every fifth row is masked, and every fifth pair is an empty set.
 *
 *     make debug CASE="--rows 1 --cols 3"      make asan CASE="--rows 333 --cols 40"
 *
 * Interface: none.
 */
#include <math.h>

#include "debug_case.h"
#include "softmax_merge.h"
#include "softmax_rows.h"

static int call_rows(const DebugCase *c)
{
    float *S = debug_inputs(c, FILL_Q, c->rows * c->cols);
    float *P = debug_results(c->rows * c->cols), *lse = debug_results(c->rows);
    int status;
    for (int at = 0; at < c->rows * c->cols; at++)
        S[at] = at / c->cols % 5 == 4 ? -INFINITY : S[at];
    debug_show("S", S, c->rows, c->cols);
    status = softmax_rows_variant(S, P, lse, c->rows, c->cols);
    debug_show("P", P, c->rows, c->cols);
    debug_show("lse", lse, c->rows, 1);
    free(S), free(P), free(lse);
    return status;
}

static int call_merge(const DebugCase *c)
{
    const int n = c->rows;
    float *m_a = debug_inputs(c, FILL_Q, n), *l_a = debug_inputs(c, FILL_K, n);
    float *m_b = debug_inputs(c, FILL_V, n), *l_b = debug_inputs(c, FILL_DO, n);
    float *m = debug_results(n), *l = debug_results(n);
    int status;
    for (int at = 0; at < n; at++) {
        m_a[at] = at % 5 == 4 ? -INFINITY : m_a[at];
        l_a[at] = at % 5 == 4 ? 0.0f : 1.0f + fabsf(l_a[at]);
        l_b[at] = 1.0f + fabsf(l_b[at]);
    }
    debug_show("m_a", m_a, n, 1), debug_show("l_a", l_a, n, 1);
    debug_show("m_b", m_b, n, 1), debug_show("l_b", l_b, n, 1);
    status = softmax_merge_variant(m_a, l_a, m_b, l_b, m, l, n);
    debug_show("m", m, n, 1), debug_show("l", l, n, 1);
    free(m_a), free(l_a), free(m_b), free(l_b), free(m), free(l);
    return status;
}

int main(int count, char *words[])
{
    const DebugCase c = debug_read(count, words);
    const int status = call_rows(&c);
    return status ? status : call_merge(&c);
}
