/* SPDX-License-Identifier: MIT
 *
 * weights.h: what happens to probabilities between the softmax and V.
 *
 *     A_ij = clip((high - low) P_ij + low, 0, 1)      low <= 0, high >= 1
 *     W_ij = keep_ij A_ij / (1 - p)                    O_i = sum_j W_ij V_j
 *
 * Clipping (Bondarenko et al., arXiv 2306.12929) lets a row put exactly zero on a key, which a
 * softmax cannot; rows do not sum to 1 any more. Dropout removes pairs at random and makes the
 * others larger, so that the mean stays. An invisible pair has P = 0 and keeps the weight 0.
 *
 * Backward through the same two lines, last line first. Where clip cut something off, a small
 * change of P changes nothing:
 *
 *     dA_ij = keep_ij / (1 - p) * dW_ij                dW = dO V^T
 *     dP_ij = (high - low) dA_ij where 0 <= (high - low) P_ij + low <= 1, else 0
 *
 * and then the softmax: dS = P (dP - delta), delta_i = sum_j P_ij dP_ij. Without clipping delta is
 * rowsum(dO * O) as ever, dropout or not: P dP = W dW pair by pair, and sum_j W_ij V_j is O.
 *
 * Interface:
 * - WeightRule, weight_rule. weigh_row: P -> W. weigh_row_backward: dW -> dP.
 * - WeightPlace: which weights they are; window_index: a token's index within its sequence.
 */
#ifndef WINDOW_WEIGHTS_H
#define WINDOW_WEIGHTS_H

#include "attention/window/window_library.h"

typedef struct WeightRule {
    int clips, drops;
    float low, span;                /* span = high - low */
    uint32_t threshold;             /* of the generator's words */
    float larger;                   /* 1 / (1 - p) */
    const struct AttnOptions *with; /* the seed */
} WeightRule;

WeightRule weight_rule(const AttnArgs *args);

/* Which pair a weight belongs to: batch word, query head, and i and j within their sequence. */
typedef struct WeightPlace {
    int64_t b, h, i;
    const int64_t *j; /* [cols] */
} WeightPlace;

/* Local index i of a map -> its index within its sequence, and the sequence's id. */
int64_t window_index(AttnPositions map, int64_t i, int64_t *sequence);

/* W [cols] of P [cols], the same memory or another. A NaN stays one: no comparison holds. */
void weigh_row(const WeightRule *rule, WeightPlace at, int64_t cols, const float *P, float *W);
/* dW [cols] becomes dP in place. */
void weigh_row_backward(const WeightRule *rule, WeightPlace at, int64_t cols, const float *P,
                        float *dW);

#endif
