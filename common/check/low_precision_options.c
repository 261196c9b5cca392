/* SPDX-License-Identifier: MIT
 *
 * low_precision_options.c: stage 05's options for the plain low-precision implementation.
 *
 * Interface: low_precision_options.h.
 */
#include "check/low_precision_options.h"

#include <math.h>

#include "io/philox.h"
#include "tensor.h"

LowPrecisionOptions low_precision_options(const AttnArgs *args)
{
    const AttnOptions *o = args->options;
    LowPrecisionOptions y = {.args = args, .dtype = args->Q.dtype, .scale = args->scale};
    if (!o)
        return y;
    if (!(args->softcap > 0))
        y.scale /= o->temperature;
    y.group = o->norm_group;
    y.wq = o->wq;
    y.wk = o->wk;
    y.clips = o->clip_low != 0 || o->clip_high != 1;
    y.drops = o->dropout > 0;
    return y;
}

/* Tokens of the same sequence before local index n. */
static int64_t index_in_sequence(AttnPositions map, int64_t n)
{
    const int64_t sequence = attn_position(map, n).sequence;
    int64_t before = 0;
    for (int64_t s = 0; s < map.count && map.segments[s].first <= n; s++) {
        const AttnSegment *g = &map.segments[s];
        if (g->sequence == sequence)
            before += n - g->first < g->length ? n - g->first : g->length;
    }
    return before;
}

float low_precision_weight(const LowPrecisionOptions *o, int64_t word, int64_t h, int64_t i,
                           int64_t j, float P, float *gain)
{
    const AttnOptions *a = o->args->options;
    float A = P;
    *gain = 1;
    if (o->clips) {
        const float width = a->clip_high - a->clip_low;
        A = dtype_round(o->dtype, width * P + a->clip_low);
        *gain = A < 0 || A > 1 ? 0 : width;
        A = fminf(fmaxf(A, 0), 1);
    }
    if (o->drops) {
        const float factor = attn_keeps(a, attn_dropout_threshold(a->dropout), word, h,
                                        index_in_sequence(o->args->positions_q, i),
                                        index_in_sequence(o->args->positions_k, j))
                                 ? 1 / (1 - a->dropout)
                                 : 0;
        A = dtype_round(o->dtype, A * factor);
        *gain *= factor;
    }
    return A;
}

static float inverse_size(const LowPrecisionOptions *o, const float *group)
{
    float squares = 0;
    for (int64_t x = 0; x < o->group; x++)
        squares += group[x] * group[x];
    return 1 / sqrtf(squares / (float)o->group + o->args->options->norm_eps);
}

void low_precision_normalise(const LowPrecisionOptions *o, const float *w, int64_t d, float *row)
{
    for (int64_t first = 0; first < d; first += o->group) {
        const float r = inverse_size(o, row + first);
        for (int64_t x = first; x < first + o->group; x++)
            row[x] = dtype_round(o->dtype, row[x] * r * w[x]);
    }
}

void low_precision_normalise_gradient(const LowPrecisionOptions *o, const Tensor *X, int64_t b,
                                      int64_t n, int64_t h, const float *w, float *gradient)
{
    const int64_t at = tensor_offset(X, b, n, h);
    for (int64_t first = 0; first < X->shape[3]; first += o->group) {
        float squares = 0, along = 0, r;
        for (int64_t x = first; x < first + o->group; x++) {
            const float value = tensor_get(X, at + x);
            gradient[x] = dtype_round(o->dtype, gradient[x]) * w[x]; /* it was stored, too */
            squares += value * value;
            along += gradient[x] * value;
        }
        r = 1 / sqrtf(squares / (float)o->group + o->args->options->norm_eps);
        for (int64_t x = first; x < first + o->group; x++)
            gradient[x] =
                r * (gradient[x] - tensor_get(X, at + x) * r * r * along / (float)o->group);
    }
}
