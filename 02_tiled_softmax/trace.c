/* SPDX-License-Identifier: MIT
 *
 * trace.c: one row of scores on its way through the blocks.
 *
 * Interface:
 * - tiled_softmax_trace: the last query of head 0, its scores in blocks of two keys, the state
 *   after each block, and the probabilities that come out; the same numbers by a merge tree beside
 *   it.
 * - tiled_softmax_trace_steps: the same, a block a page, with the formulas filled in.
 */
#include "attention/rows.h"
#include "harness/report/pages.h"
#include "units/softmax_state.h"

#include <math.h>
#include <stdlib.h>

STAGE_TRACE(tiled_softmax);

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

/* Scores [Nk] of the last query of head 0. 0, or -1: no memory. */
static int load_scores(const AttnArgs *args, int64_t Nk, float *s)
{
    const AttnShape *n = &args->shape;
    float *Q_i = malloc((size_t)n->d * sizeof *Q_i);
    float *K = malloc((size_t)(Nk * n->d) * sizeof *K);
    const int failed = !Q_i || !K;
    if (!failed) {
        attn_load_rows(&args->Q, 0, 0, n->Nq - 1, 1, Q_i);
        attn_load_rows(&args->K, 0, 0, 0, Nk, K);
        attn_score_block(args, Q_i, n->Nq - 1, 1, K, 0, Nk, s, Nk);
    }
    free(Q_i);
    free(K);
    return failed ? -1 : 0;
}

int tiled_softmax_trace(const AttnArgs *args, FILE *to)
{
    const AttnShape *n = &args->shape;
    int64_t i = n->Nq - 1, Nk = n->Nk < TRACE_MAX ? n->Nk : TRACE_MAX;
    float s[TRACE_MAX];
    SoftmaxState blocks[TRACE_MAX], tree = softmax_empty(), state;
    if (load_scores(args, Nk, s) != 0)
        return -1;

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
    return 0;
}

static void print_scores(FILE *to, const float *s, int64_t from, int64_t end, int64_t Nk)
{
    for (int64_t c = 0; c < Nk; c++)
        if (c >= from && c < end)
            fprintf(to, " %8.4f", (double)s[c]);
        else
            fprintf(to, " %8s", "-");
    fputc('\n', to);
}

/* One page: the state before the block, the block, and the state after it. */
static void print_block(FILE *to, const float *s, int64_t j, int64_t end, int64_t Nk,
                        SoftmaxState before, SoftmaxState mine, SoftmaxState both)
{
    const float alpha = expf(before.m - softmax_shift(both.m));
    const float beta = expf(mine.m - softmax_shift(both.m));
    fprintf(to, "Online softmax of one row of %d scores, block of keys k%d to k%d\n\n", (int)Nk,
            (int)j, (int)end - 1);
    fprintf(to, "  all scores     ");
    print_scores(to, s, 0, Nk, Nk);
    fprintf(to, "  of this block  ");
    print_scores(to, s, j, end, Nk);
    fprintf(to, "\n                          m         l\n");
    fprintf(to, "  so far           %8.4f  %8.4f\n", (double)before.m, (double)before.l);
    fprintf(to, "  this block       %8.4f  %8.4f   m = max s, l = sum exp(s - m)\n", (double)mine.m,
            (double)mine.l);
    fprintf(to, "  both             %8.4f  %8.4f\n\n", (double)both.m, (double)both.l);
    fprintf(to, "  m     = max(%.4f, %.4f)\n", (double)before.m, (double)mine.m);
    fprintf(to, "  alpha = exp(m so far - m)   = %.4f    what the old sum is worth now\n",
            (double)alpha);
    fprintf(to, "  beta  = exp(m of block - m) = %.4f    what the block's sum is worth\n",
            (double)beta);
    fprintf(to, "  l     = %.4f * %.4f + %.4f * %.4f = %.4f\n\n", (double)alpha, (double)before.l,
            (double)beta, (double)mine.l, (double)both.l);
    fprintf(to, "  P, if the row ended here\n                 ");
    for (int64_t c = 0; c < Nk; c++)
        if (c < end)
            fprintf(to, " %8.4f",
                    (double)(expf(s[c] - softmax_shift(both.m)) * softmax_inverse(both)));
        else
            fprintf(to, " %8s", "-");
    fprintf(to, "\n  lse = m + ln l = %.4f\n\f", (double)softmax_lse(both));
}

int tiled_softmax_trace_steps(const AttnArgs *args, FILE *to)
{
    const int64_t Nk = args->shape.Nk < TRACE_MAX ? args->shape.Nk : TRACE_MAX;
    SoftmaxState state = softmax_empty();
    float s[TRACE_MAX];
    if (load_scores(args, Nk, s) != 0)
        return -1;
    for (int64_t j = 0; j < Nk; j += TRACE_BLOCK) {
        const int64_t end = j + TRACE_BLOCK < Nk ? j + TRACE_BLOCK : Nk;
        SoftmaxState mine = softmax_empty(), both;
        for (int64_t c = j; c < end; c++)
            mine = softmax_push(mine, s[c]);
        both = softmax_merge(state, mine);
        print_block(to, s, j, end, Nk, state, mine, both);
        state = both;
    }
    return 0;
}
