/* SPDX-License-Identifier: MIT
 *
 * low_precision_options.h: stage 05's options as a framework computes them in low precision, one
 * element or row at a time: each stored value is rounded to the dtype. For low_precision.c alone.
 *
 * Interface:
 * - LowPrecisionOptions, low_precision_options: what args->options ask for; without any, nothing.
 * - low_precision_weight: clip and dropout. low_precision_normalise,
 *   low_precision_normalise_gradient.
 */
#ifndef ATTN_LOW_PRECISION_OPTIONS_H
#define ATTN_LOW_PRECISION_OPTIONS_H

#include "attn.h"

typedef struct LowPrecisionOptions {
    const AttnArgs *args;
    AttnDtype dtype;
    float scale;   /* with the temperature in it */
    int64_t group; /* 0 = no normalisation */
    const float *wq, *wk;
    int clips, drops;
} LowPrecisionOptions;

LowPrecisionOptions low_precision_options(const AttnArgs *args);
/* What multiplies V_j in row i (local indexes; word: the batch word of the generator), and its
 * derivative by P. */
float low_precision_weight(const LowPrecisionOptions *o, int64_t word, int64_t h, int64_t i,
                           int64_t j, float P, float *gain);
/* row [d], w [d] in place */
void low_precision_normalise(const LowPrecisionOptions *o, const float *w, int64_t d, float *row);
/* gradient [d] of the normalised token n becomes that of the token. */
void low_precision_normalise_gradient(const LowPrecisionOptions *o, const Tensor *X, int64_t b,
                                      int64_t n, int64_t h, const float *w, float *gradient);

#endif
