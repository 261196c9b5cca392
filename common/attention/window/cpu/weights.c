/* SPDX-License-Identifier: MIT
 *
 * weights.c: clipping and dropout of a row of weights, and the way back.
 *
 * Interface: weight_rule, window_index, weigh_row, weigh_row_backward (weights.h).
 */
#include "weights.h"

#include "attn_options.h"
#include "harness/io/philox.h"

WeightRule weight_rule(const AttnArgs *args)
{
    WeightRule rule = {attn_clips(args), attn_drops(args), 0.0f, 1.0f, 0, 1.0f, args->options};
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

int64_t window_index(AttnPositions map, int64_t i, int64_t *sequence)
{
    int64_t s = 0, first = 0;
    while (s + 1 < map.count && i >= map.segments[s + 1].first)
        s++;
    *sequence = map.segments[s].sequence;
    while (map.segments[first].sequence != *sequence)
        first++;
    return i - map.segments[first].first;
}

/* weight [cols] of kept pairs times 1 / (1 - p), of the others 0. The generator makes four words at
 * a time, for four neighbouring keys: attn_keeps would throw three of them away. */
static void drop_row(const WeightRule *rule, WeightPlace at, int64_t cols, float *weight)
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

void weigh_row(const WeightRule *rule, WeightPlace at, int64_t cols, const float *P, float *W)
{
    for (int64_t c = 0; c < cols; c++) {
        const float a = rule->span * P[c] + rule->low;
        W[c] = !rule->clips ? P[c] : a < 0.0f ? 0.0f : a > 1.0f ? 1.0f : a;
    }
    if (rule->drops)
        drop_row(rule, at, cols, W);
}

void weigh_row_backward(const WeightRule *rule, WeightPlace at, int64_t cols, const float *P,
                        float *dW)
{
    if (rule->drops)
        drop_row(rule, at, cols, dW);
    for (int64_t c = 0; rule->clips && c < cols; c++) {
        const float a = rule->span * P[c] + rule->low;
        dW[c] = a < 0.0f || a > 1.0f ? 0.0f : rule->span * dW[c];
    }
}
