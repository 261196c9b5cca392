/* SPDX-License-Identifier: MIT
 *
 * yardstick_options.h: stage 05's options as a framework computes them in low precision, one
 * element or row at a time: each stored value is rounded to the dtype. For yardstick.c alone.
 *
 * Interface:
 * - YardstickOptions, yardstick_options: what args->options ask for; without any, nothing.
 * - yardstick_weight: clip and dropout. yardstick_normalise, yardstick_normalise_gradient.
 */
#ifndef ATTN_YARDSTICK_OPTIONS_H
#define ATTN_YARDSTICK_OPTIONS_H

#include "attn.h"

typedef struct YardstickOptions {
    const AttnArgs *args;
    AttnDtype dtype;
    float scale;   /* with the temperature in it */
    int64_t group; /* 0 = no normalisation */
    const float *wq, *wk;
    int clips, drops;
} YardstickOptions;

YardstickOptions yardstick_options(const AttnArgs *args);
/* What multiplies V_j in row i (local indexes; word: the batch word of the generator), and its
 * derivative by P. */
float yardstick_weight(const YardstickOptions *o, int64_t word, int64_t h, int64_t i, int64_t j,
                       float P, float *gain);
/* row [d], w [d] in place */
void yardstick_normalise(const YardstickOptions *o, const float *w, int64_t d, float *row);
/* gradient [d] of the normalised token n becomes that of the token. */
void yardstick_normalise_gradient(const YardstickOptions *o, const Tensor *X, int64_t b, int64_t n,
                                  int64_t h, const float *w, float *gradient);

#endif
