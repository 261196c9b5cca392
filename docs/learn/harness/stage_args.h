/* SPDX-License-Identifier: MIT
 *
 * stage_args.h: one head of a learn step as the plain problem that a rung is asked.
 *
 * Interface: make_head: inputs, outputs and mask from the case's flags -N, --keys, -d, --causal,
 * --mask (every fifth row of it is empty), --large (scores in the hundreds). call_rung;
 * tiles of stage 03 have --cols keys (4).
 */
#ifndef LEARN_STAGE_ARGS_H
#define LEARN_STAGE_ARGS_H

#include <math.h>

#include "attention.h"
#include "problem.h"

static inline Head make_head(Output **O, Output **lse)
{
    const long Nq = number("-N", 1), Nk = number("--keys", Nq), d = number("-d", 1);
    float *Q = input("Q", Nq * d), *K = input("K", Nk * d), *V = input("V", Nk * d);
    unsigned char *mask = has_flag("--mask") ? calloc((size_t)(Nq * Nk), 1) : NULL;
    long e;
    *O = output("O", Nq, d, "query", "channel");
    *lse = output("lse", Nq, 1, "query", "");
    fill_normal(Q, Nq * d, 1);
    fill_normal(K, Nk * d, 2);
    fill_normal(V, Nk * d, 3);
    for (e = 0; e < Nq * d && has_flag("--large"); e++)
        Q[e] *= 100.0f;
    (*O)->tolerance = has_flag("--large") ? 3e-3 : 1e-4;
    for (e = 0; mask && e < Nq * Nk; e++)
        mask[e] = e / Nk % 5 == 4 || e * 7 % 3 == 1;
    return (Head){Q, K, V, Nq, Nk, d, has_flag("--causal"), mask};
}

static inline void call_rung(const Head *head, const Rung *rung, float *O, float *lse)
{
    Problem p = {.B = 1, .H = 1, .Hkv = 1, .threads = 1, .dtype = F32};
    p.Nq = (int)head->Nq, p.Nk = (int)head->Nk, p.d = (int)head->d;
    p.scale = 1.0f / sqrtf((float)head->d);
    p.from = -(1 << 30);
    p.to = head->causal ? p.Nk - p.Nq : 1 << 30;
    p.mask = head->mask;
    p.Q = head->Q, p.K = head->K, p.V = head->V;
    p.O = O;
    p.lse = lse;
    p.sram = 4 * head->d * number("--cols", 4);
    p.work = malloc((size_t)(rung->work ? rung->work(&p, 0) : 1));
    rung->forward(&p);
    free(p.work);
}

#endif
