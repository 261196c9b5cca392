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
 */
#ifndef WINDOW_WEIGHTS_H
#define WINDOW_WEIGHTS_H

#include "io/philox.h"
#include "library/window_library.h"
#include "sliding_window.h"

typedef struct WeightRule {
    int clips, drops;
    float low, span;         /* span = high - low */
    uint32_t threshold;      /* of the generator's words */
    float larger;            /* 1 / (1 - p) */
    const AttnOptions *with; /* the seed */
} WeightRule;

static inline WeightRule weight_rule(const AttnArgs *args)
{
    WeightRule rule = {window_clips(args), window_drops(args), 0.0f, 1.0f, 0, 1.0f, args->options};
    if (rule.clips) {
        rule.low = args->options->clip_low;
        rule.span = args->options->clip_high - args->options->clip_low;
    }
    if (rule.drops) {
        rule.threshold = attn_dropout_threshold(args->options->dropout);
        rule.larger = 1.0f / (1.0f - args->options->dropout);
    }
    return rule;
}

/* Which pair a weight belongs to: batch word, query head, and i and j within their sequence. */
typedef struct WeightPlace {
    int64_t b, h, i;
    const int64_t *j; /* [cols] */
} WeightPlace;

/* weight [cols] of kept pairs times 1 / (1 - p), of the others 0. The generator makes four words at
 * a time, for four neighbouring keys: attn_keeps would throw three of them away. */
static inline void drop_row(const WeightRule *rule, WeightPlace at, int64_t cols, float *weight)
{
    const uint64_t seed = rule->with->dropout_seed;
    PhiloxWords counter = {{0, (uint32_t)at.i, (uint32_t)at.h, (uint32_t)at.b}}, words = counter;
    for (int64_t c = 0; c < cols; c++) {
        const int64_t j = at.j[c];
        if (c == 0 || j / 4 != at.j[c - 1] / 4) {
            counter.word[0] = (uint32_t)(j / 4);
            words = philox_4x32_10(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
        }
        weight[c] = words.word[j % 4] >= rule->threshold ? rule->larger * weight[c] : 0.0f;
    }
}

/* W [cols] of P [cols], the same memory or another. A NaN stays one: no comparison holds. */
static inline void weigh_row(const WeightRule *rule, WeightPlace at, int64_t cols, const float *P,
                             float *W)
{
    for (int64_t c = 0; c < cols; c++) {
        const float a = rule->span * P[c] + rule->low;
        W[c] = !rule->clips ? P[c] : a < 0.0f ? 0.0f : a > 1.0f ? 1.0f : a;
    }
    if (rule->drops)
        drop_row(rule, at, cols, W);
}

/* dW [cols] becomes dP in place. */
static inline void weigh_row_backward(const WeightRule *rule, WeightPlace at, int64_t cols,
                                      const float *P, float *dW)
{
    if (rule->drops)
        drop_row(rule, at, cols, dW);
    for (int64_t c = 0; rule->clips && c < cols; c++) {
        const float a = rule->span * P[c] + rule->low;
        dW[c] = a < 0.0f || a > 1.0f ? 0.0f : rule->span * dW[c];
    }
}

#endif
