/* SPDX-License-Identifier: MIT
 *
 * scores.h: a block of scores, ready for the softmax: scaled, capped, -inf where a query does not
 * see a key, since exp(-inf) = 0 takes the key out of the row.
 *
 * Interface:
 * - ScoreRule: what makes a score of a product, and who sees whom.
 * - score_block: the whole block. hide_scores: the mask alone.
 * - sees_nothing: may the block be left out?
 */
#ifndef UNITS_SCORES_H
#define UNITS_SCORES_H

#include <math.h>

#include "units/product.h"

typedef struct ScoreRule {
    float scale, softcap; /* s = cap * tanh(scale * qk / cap); softcap 0: no cap */
    int from, to;         /* query i sees key j when from <= j - i <= to ... */
    const uint8_t *mask;  /* ... and mask [Nq][Nk] is 0 there; NULL: no mask */
    int Nk;
} ScoreRule;

/* Query i0 + r and key j0 + c. */
static inline void hide_scores(const ScoreRule *rule, int i0, int rows, int j0, int cols, float *S,
                               int64_t ld_S)
{
    for (int r = 0; r < rows; r++) {
        const int first = i0 + r + rule->from - j0, last = i0 + r + rule->to - j0;
        float *S_r = S + r * ld_S;
        for (int c = 0; c < first && c < cols; c++)
            S_r[c] = -INFINITY;
        for (int c = last < 0 ? 0 : last + 1; c < cols; c++)
            S_r[c] = -INFINITY;
        for (int c = 0; rule->mask && c < cols; c++)
            if (rule->mask[(int64_t)(i0 + r) * rule->Nk + j0 + c])
                S_r[c] = -INFINITY;
    }
}

/* S [rows][ld_S], the first `cols` of each row. Q_i [rows][ld_Q], K_j [cols][ld_K]: d channels of
 * each row. */
static inline void score_block(const ScoreRule *rule, const float *Q_i, int64_t ld_Q, int i0,
                               int rows, const float *K_j, int64_t ld_K, int j0, int cols, int d,
                               float *S, int64_t ld_S)
{
    /* the scale rides on the product for nothing */
    matmul(AS_IS, TRANSPOSED, rows, cols, d, rule->scale, Q_i, ld_Q, K_j, ld_K, 0.0f, S, ld_S);
    for (int r = 0; rule->softcap > 0.0f && r < rows; r++)
        for (int c = 0; c < cols; c++)
            S[r * ld_S + c] = rule->softcap * tanhf(S[r * ld_S + c] / rule->softcap);
    hide_scores(rule, i0, rows, j0, cols, S, ld_S);
}

/* No query of i .. i + rows - 1 sees a key of j .. j + cols - 1, as far as the band tells. */
static inline int sees_nothing(const ScoreRule *rule, int i, int rows, int j, int cols)
{
    return j + cols - 1 < i + rule->from || j > i + rows - 1 + rule->to;
}

#endif
