/* SPDX-License-Identifier: MIT
 *
 * 4_sliding_window_online.c: a solution of assignment 4, for the tests of the course kit. It is not
 * part of any handout.
 *
 * A row's old state (O, lse) is the pair m = lse, l = 1. The block gives a second pair and a second
 * row of O; the two are joined with weights exp(lse - lse_new).
 *
 * Interface:
 * - sliding_window_step_variant: docs/course/include/sliding_window_step.h.
 */
#include <math.h>
#include <stdlib.h>

#include "sliding_window_step.h"

static int sees(const SlidingStep *s, int r, int c)
{
    int ahead = s->position_k + c - (s->position_q + r);
    return (s->left < 0 || ahead >= -s->left) && (s->right < 0 || ahead <= s->right);
}

static float score(const SlidingStep *s, int r, int c)
{
    float sum = 0.0f;
    for (int x = 0; x < s->d; x++)
        sum += s->Q_i[r * s->d + x] * s->K_j[c * s->d + x];
    return sum * s->scale;
}

/* Row r over this block's keys alone: o [d], and its lse as the result. */
static float block_row(const SlidingStep *s, int r, float *o)
{
    float m = -INFINITY, l = 0.0f;
    for (int x = 0; x < s->d; x++)
        o[x] = 0.0f;
    for (int c = 0; c < s->rows_k; c++)
        if (sees(s, r, c))
            m = fmaxf(m, score(s, r, c));
    if (m == -INFINITY)
        return m;
    for (int c = 0; c < s->rows_k; c++)
        if (sees(s, r, c)) {
            float p = expf(score(s, r, c) - m);
            l += p;
            for (int x = 0; x < s->d; x++)
                o[x] += p * s->V_j[c * s->d + x];
        }
    for (int x = 0; x < s->d; x++)
        o[x] /= l;
    return m + logf(l);
}

int sliding_window_step_variant(const SlidingStep *s)
{
    float *o = malloc(sizeof(float) * (size_t)s->d);
    if (!o)
        return 1;
    for (int r = 0; r < s->rows_q; r++) {
        float *global_o = s->global_o + (long)(s->first_row + r) * s->d;
        float *global_lse = s->global_lse + s->first_row + r;
        float lse = block_row(s, r, o), larger = fmaxf(lse, *global_lse), lse_new, old, block;
        if (lse == -INFINITY)
            continue;
        lse_new = larger + logf(expf(lse - larger) + expf(*global_lse - larger));
        old = expf(*global_lse - lse_new);
        block = expf(lse - lse_new);
        for (int x = 0; x < s->d; x++)
            global_o[x] = old * global_o[x] + block * o[x];
        *global_lse = lse_new;
    }
    free(o);
    return 0;
}
