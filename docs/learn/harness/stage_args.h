/* SPDX-License-Identifier: MIT
 *
 * stage_args.h: one head of a learn step as the arguments that a variant of a stage gets.
 *
 * Interface: make_head: inputs, outputs and mask from the case's flags -N, --keys, -d, --causal,
 * --mask (every fifth row of it is empty), --large (scores in the hundreds). call_rung,
 * call_variant.
 */
#ifndef LEARN_STAGE_ARGS_H
#define LEARN_STAGE_ARGS_H

#include <math.h>

#include "attention.h"
#include "attn.h"
#include "attn_pairs.h"
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

static inline Tensor tensor_of(const float *data, long n, long d)
{
    return (Tensor){(void *)data, ATTN_F32, {1, n, 1, d}, {n * d, d, d, 1}};
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
    p.work = malloc((size_t)(rung->work ? rung->work(&p, 0) : 1));
    rung->forward(&p);
    free(p.work);
}

static inline void call_variant(const Head *head, AttnFn variant, float *O, float *lse)
{
    const AttnSegment q = {0, head->Nq, 0, head->Nk - head->Nq, 1}, k = {0, head->Nk, 0, 0, 1};
    AttnArgs args = {.shape = {1, 1, 1, head->Nq, head->Nk, head->d}, .threads = 1};
    args.scale = 1.0f / sqrtf((float)head->d);
    args.rule = (AttnRule){-1, head->causal ? 0 : -1};
    args.positions_q = attn_positions(&q, 1);
    args.positions_k = attn_positions(&k, 1);
    args.mask = head->mask;
    args.Q = tensor_of(head->Q, head->Nq, head->d);
    args.K = tensor_of(head->K, head->Nk, head->d);
    args.V = tensor_of(head->V, head->Nk, head->d);
    args.O = tensor_of(O, head->Nq, head->d);
    args.lse = lse;
    variant(&args);
}

#endif
