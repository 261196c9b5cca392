/* SPDX-License-Identifier: MIT
 *
 * attn_options.h: what stage 05's offline module knows beyond scale, cap, window and mask.
 *
 *     Qn = round(wq * Q / sqrt(mean(Q^2) + eps))   over groups of norm_group channels; Kn likewise
 *     s  = scale * Qn.Kn                           then cap * tanh(s / cap), or without a cap
 *                                                  s / temperature; then the mask
 *     P  = exp(s - lse)
 *     A  = clip((clip_high - clip_low) P + clip_low, 0, 1)
 *     O  = sum_j keep_ij A_ij V_j / (1 - dropout)  keep_ij: attn_keeps() in philox.h
 *
 * Interface:
 * - AttnOptions, to which AttnArgs points.
 * - attn_clips, attn_drops: do the options ask for weights that are not P?
 */
#ifndef ATTN_OPTIONS_H
#define ATTN_OPTIONS_H

#include "attn.h"

/* In a kernel's arguments the arrays are device pointers; the struct itself stays on the host. */
typedef struct AttnOptions {
    float temperature;         /* 1 = none; a cap wins over it */
    float clip_low, clip_high; /* low <= 0, high >= 1; 0, 1 = none */
    float dropout;             /* probability of a zero, in [0, 1); 0 = none */
    uint64_t dropout_seed;     /* key of the generator */
    int64_t norm_group;        /* channels of a group, a divisor of d; 0 = no QK normalisation */
    float norm_eps;            /* 1e-5 */
    const float *wq, *wk;      /* [H*d], [Hkv*d]: weights of the normalisation */
    float *dwq, *dwk;          /* their gradients, written by a backward pass */
} AttnOptions;

/* 1: the options ask for weights that are not P itself. */
static inline int attn_clips(const AttnArgs *a)
{
    return a->options && (a->options->clip_low != 0.0f || a->options->clip_high != 1.0f);
}

static inline int attn_drops(const AttnArgs *a)
{
    return a->options && a->options->dropout > 0.0f;
}

#endif
