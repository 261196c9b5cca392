/* SPDX-License-Identifier: MIT
 *
 * window_run.h: a Plain (window_plain.h) taken through the online module, block by block.
 *
 * The padding of the last blocks is NaN here, although the contract says zeros: it is never read.
 *
 * Interface:
 * - Run, run_new, run_free, clear_state: the module and its global state. step, traverse: one
 *   block, all blocks in the order that was set.
 * - config_of: a WindowConfig of a few numbers; option_config: one with options.
 * - random_state, mask_for: what steps may begin with, and a full mask.
 */
#ifndef WINDOW_RUN_H
#define WINDOW_RUN_H

#include <math.h>

#include "window_plain.h"

typedef struct Run {
    Plain *p;
    int64_t bq, bkv, Tr, Tc;
    SlidingWindowOnline *w;
    Storage O; /* global_o, a guard page behind it */
    float *lse;
    char *q, *k, *v; /* one padded block each */
} Run;

static inline void clear_state(Run *r)
{
    memset(r->O.view.data, 0, (size_t)tensor_count(&r->O.view) * dtype_size(r->O.view.dtype));
    for (int64_t row = 0; row < r->p->B * r->p->c.heads_q * r->p->sq; row++)
        r->lse[row] = -INFINITY;
}

static inline char *block_memory(const Plain *p, int64_t tokens, int64_t heads)
{
    return plain_zeros(p->B * tokens * heads * p->c.head_dim, dtype_size(p->c.dtype));
}

static inline Run run_new(Plain *p, int64_t bq, int64_t bkv)
{
    Run r = {.p = p, .bq = bq, .bkv = bkv};
    WindowOnlineConfig c = {p->c, p->B, p->sq, p->skv, bq, bkv, p->mask, 0, NULL};
    char error[WINDOW_ERROR] = "";
    r.Tr = (p->sq + bq - 1) / bq;
    r.Tc = (p->skv + bkv - 1) / bkv;
    assert_int_equal(WINDOW_OK, sliding_window_online_create(&r.w, &c, error));
    assert_int_equal(
        0, tensor_new(&r.O, p->c.dtype, LAYOUT_BSHD, p->B, p->sq, p->c.heads_q, p->c.head_dim));
    r.lse = plain_zeros(p->B * p->c.heads_q * p->sq, sizeof *r.lse);
    r.q = block_memory(p, bq, p->c.heads_q);
    r.k = block_memory(p, bkv, p->c.heads_kv);
    r.v = block_memory(p, bkv, p->c.heads_kv);
    clear_state(&r);
    return r;
}

static inline void run_free(Run *r)
{
    sliding_window_online_destroy(r->w);
    tensor_free(&r->O);
    free(r->lse);
    free(r->q);
    free(r->k);
    free(r->v);
}

/* Tokens block*size .. of t; what is not there is NaN (all bits set). */
static inline void cut(const Tensor *t, int64_t block, int64_t size, char *to)
{
    const size_t row = (size_t)(t->shape[2] * t->shape[3]) * dtype_size(t->dtype);
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t n = 0; n < size; n++, to += row)
            if (block * size + n < t->shape[1])
                memcpy(to, (char *)t->data + (size_t)(b * t->shape[1] + block * size + n) * row,
                       row);
            else
                memset(to, 0xFF, row);
}

static inline void step(Run *r, int64_t i, int64_t j)
{
    char error[WINDOW_ERROR] = "";
    cut(&r->p->Q, i, r->bq, r->q);
    cut(&r->p->K, j, r->bkv, r->k);
    cut(&r->p->V, j, r->bkv, r->v);
    assert_int_equal(WINDOW_OK, sliding_window_online_step(r->w, r->q, r->k, r->v, r->O.view.data,
                                                           r->lse, i, j, error));
}

static inline void traverse(Run *r)
{
    int64_t *visits = plain_zeros(r->Tr * r->Tc, sizeof *visits);
    visits_fill(r->Tr, r->Tc, visits);
    for (int64_t t = 0; t < r->Tr * r->Tc; t++)
        step(r, visits[t] / r->Tc, visits[t] % r->Tc);
    free(visits);
}

static inline WindowConfig config_of(AttnDtype dtype, int64_t hq, int64_t hkv, int64_t d,
                                     int causal, int64_t window)
{
    WindowConfig c = WINDOW_CONFIG_DEFAULT;
    c.dtype = dtype;
    c.heads_q = hq, c.heads_kv = hkv, c.head_dim = d;
    c.causal = causal;
    c.window = window;
    return c;
}

/* A random state, every fourth row of it empty. */
static inline void random_state(Run *r)
{
    Plain *p = r->p;
    plain_start(p);
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t h = 0; h < p->c.heads_q; h++)
            for (int64_t i = 0; i < p->sq; i++) {
                const int64_t row = (b * p->c.heads_q + h) * p->sq + i;
                const int empty = row % 4 == 3;
                const float lse = 2 * case_normal();
                r->lse[row] = empty ? -INFINITY : lse;
                p->lse[row] = empty ? -INFINITY : (double)lse;
                for (int64_t x = 0; x < p->c.head_dim; x++) {
                    const int64_t at = ((b * p->sq + i) * p->c.heads_q + h) * p->c.head_dim + x;
                    case_set(&r->O.view, b, i, h, x, empty ? 0 : case_normal());
                    p->O[at] = (double)case_get(&r->O.view, b, i, h, x);
                    p->W[at] = fabs(p->O[at]);
                }
            }
}

enum { OPTION_CONFIGS = 24 };

/* Every option of the module, alone and with others. */
static inline WindowConfig option_config(int n)
{
    WindowConfig c = config_of((AttnDtype)(n % 3), 6, n % 2 ? 2 : 1, 16, n / 2 % 2, 11);
    if (n & 4)
        c.cap = n < 12 ? 2.5f : 0.25f;
    if (n & 8)
        c.options.temperature = 1.75f; /* with a cap it must not count */
    if (n >= 12)
        c.options.norm_group = n % 3 ? 4 : 16;
    if (n % 5 == 4)
        c.scale = -0.6f;
    return c;
}

/* A third of the pairs, every fifth row, all of a band of keys are hidden; the caller's to free. */
static inline uint8_t *mask_for(Plain *p)
{
    uint8_t *mask = malloc((size_t)(p->sq * p->skv));
    assert_non_null(mask);
    for (int64_t e = 0; e < p->sq * p->skv; e++) {
        const int64_t i = e / p->skv, j = e % p->skv;
        mask[e] = i % 5 == 4 || (j >= 16 && j < 32) || case_random() % 3 == 0;
    }
    p->mask = mask;
    return mask;
}

#endif
