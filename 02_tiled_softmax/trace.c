/* SPDX-License-Identifier: MIT
 *
 * trace.c: one row of scores on its way through the blocks.
 *
 * Interface:
 * - softmax_trace: the last query of head 0, its scores in blocks of two keys, the state after each
 *   block, and the probabilities that come out; the same numbers by a merge tree beside it.
 */
#include "naive.h"
#include "tiled_softmax.h"

#include <stdlib.h>

#define TRACE_BLOCK 2
#define TRACE_MAX   8 /* keys shown */

static SoftmaxState trace_blocks(const float *s, int64_t Nk, SoftmaxState *blocks, FILE *to)
{
    SoftmaxState state = softmax_empty();
    fprintf(to,
            "block  keys   scores               block's (m, l)       alpha    running (m, l)\n");
    fprintf(to, "                                                                 (-inf, 0)\n");
    for (int64_t j = 0, block = 0; j < Nk; j += TRACE_BLOCK, block++) {
        int64_t n = Nk - j < TRACE_BLOCK ? Nk - j : TRACE_BLOCK;
        SoftmaxState mine = softmax_empty();
        float m_old = state.m;
        char scores[32] = "";
        int used = 0;
        for (int64_t c = 0; c < n; c++) {
            mine = softmax_push(mine, s[j + c]);
            used +=
                snprintf(scores + used, sizeof scores - (size_t)used, "%8.4f ", (double)s[j + c]);
        }
        blocks[block] = mine;
        state = softmax_merge(state, mine);
        fprintf(to, "%5d  %d..%d   %-18s  (%7.4f, %6.4f)   %7.4f   (%7.4f, %6.4f)\n", (int)block,
                (int)j, (int)(j + n - 1), scores, (double)mine.m, (double)mine.l,
                (double)expf(m_old - softmax_shift(state.m)), (double)state.m, (double)state.l);
    }
    return state;
}

int softmax_trace(const AttnArgs *args, FILE *to)
{
    const AttnShape *n = &args->shape;
    int64_t i = n->Nq - 1, Nk = n->Nk < TRACE_MAX ? n->Nk : TRACE_MAX;
    float s[TRACE_MAX];
    SoftmaxState blocks[TRACE_MAX], tree = softmax_empty(), state;
    float *Q_i = malloc((size_t)n->d * sizeof *Q_i);
    float *K = malloc((size_t)(Nk * n->d) * sizeof *K);
    if (!Q_i || !K) {
        free(Q_i);
        free(K);
        return -1;
    }
    naive_load_rows(&args->Q, 0, 0, i, 1, Q_i);
    naive_load_rows(&args->K, 0, 0, 0, Nk, K);
    naive_scores(args, Q_i, i, 1, K, 0, Nk, s, Nk);

    fprintf(to,
            "Query %d of head 0, %d keys in blocks of %d. merge: m = max, l = l_a exp(m_a - m) "
            "+ l_b exp(m_b - m)\n\n",
            (int)i, (int)Nk, TRACE_BLOCK);
    state = trace_blocks(s, Nk, blocks, to);
    /* Any order gives the same: from the last block to the first. */
    for (int64_t block = (Nk + TRACE_BLOCK - 1) / TRACE_BLOCK - 1; block >= 0; block--)
        tree = softmax_merge(blocks[block], tree);
    fprintf(to, "\nmerged from the last block to the first        (%7.4f, %6.4f)\n", (double)tree.m,
            (double)tree.l);
    fprintf(to, "lse = m + ln l = %.4f\n\nP = exp(s - m) / l:", (double)softmax_lse(state));
    for (int64_t c = 0; c < Nk; c++)
        fprintf(to, " %7.4f",
                (double)(expf(s[c] - softmax_shift(state.m)) * softmax_inverse(state)));
    fprintf(to, "\n\n");
    free(Q_i);
    free(K);
    return 0;
}
