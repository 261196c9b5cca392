/* SPDX-License-Identifier: MIT
 *
 * window_run.h: a case for stage 05's online module and its stream, taken through the module block
 * by block, and judged by the oracle.
 *
 * The padding of the last blocks is NaN here, although the contract says zeros: it is never read.
 *
 * Interface:
 * - WindowCase, window_case, window_case_free: a WindowConfig and the same as AttnArgs, filled.
 * - config_of: a WindowConfig of a few numbers; option_config: one with options. mask_for: a full
 *   mask.
 * - Run, run_new, run_free, clear_state: the module, and its global state, which is the O and lse
 *   of the case. step, traverse: one block, all blocks in the order that was set.
 * - assert_run_right: the state is what the oracle expects. random_state: what steps may begin
 *   with, for the oracle too.
 * - Traversal: traverse, or the same on a device. try_order, try_orders, try_blocks,
 *   try_option_configs, try_full_masks, try_states: what any of them has to pass.
 */
#ifndef WINDOW_RUN_H
#define WINDOW_RUN_H

#include <math.h>

#include "attention/window/sliding_window_module.h"
#include "harness/visits.h"
#include "judge_case.h"
#include "plain_options.h"

typedef struct WindowCase {
    OptionCase of;       /* what the oracle is asked; NULL would be no options */
    WindowConfig config; /* what the module is made with */
} WindowCase;

static inline WindowCase *window_case(const WindowConfig *config, int64_t B, int64_t Nq, int64_t Nk)
{
    const Option like = {"window",
                         {B, config->heads_q, config->heads_kv, Nq, Nk, config->head_dim},
                         config->causal ? ATTN_MASK_CAUSAL_LOWER_RIGHT : ATTN_MASK_NONE,
                         config->window,
                         config->window,
                         config->cap,
                         0,
                         LAYOUT_BSHD};
    WindowCase *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->of = option_case_new(&like, config->dtype, 1, 1.5f);
    w->config = *config;
    w->config.options.wq = w->of.wq, w->config.options.wk = w->of.wk;
    w->of.options = w->config.options;
    w->of.c->args.options = &w->of.options;
    if (config->scale != 0)
        w->of.c->args.scale = config->scale;
    return w;
}

static inline void window_case_free(WindowCase *w)
{
    option_case_free(&w->of);
    free(w);
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

/* A third of the pairs, every fifth row, all of a band of keys are hidden. */
static inline void mask_for(WindowCase *w)
{
    const AttnShape *n = &w->of.c->args.shape;
    case_mask(w->of.c);
    for (int64_t i = 0; i < n->Nq; i++)
        memset(w->of.c->mask + i * n->Nk + 16, 1, 16);
}

/* --- the module --------------------------------------------------------------------------------*/

typedef struct Run {
    const WindowConfig *config;
    Case *c; /* its O, a guard page behind it, and lse are the global state */
    int64_t bq, bkv, Tr, Tc;
    SlidingWindowOnline *w;
    char *q, *k, *v; /* one padded block each */
} Run;

static inline size_t rows_bytes(const Run *r)
{
    const AttnShape *n = &r->c->args.shape;
    return (size_t)(n->B * n->H * n->Nq) * sizeof(float);
}

/* Nothing seen yet: O = 0, lse = -inf. */
static inline void clear_state(Run *r)
{
    const Tensor *O = &r->c->args.O;
    memset(O->data, 0, (size_t)tensor_count(O) * dtype_size(O->dtype));
    for (size_t row = 0; row < rows_bytes(r) / sizeof(float); row++)
        r->c->lse[row] = -INFINITY;
}

/* Bytes of a block of so many tokens of t. */
static inline size_t block_bytes(const Tensor *t, int64_t tokens)
{
    return (size_t)(t->shape[0] * tokens * t->shape[2] * t->shape[3]) * dtype_size(t->dtype);
}

static inline Run run_new(const WindowCase *w, int64_t bq, int64_t bkv)
{
    const AttnArgs *a = &w->of.c->args;
    const AttnShape *n = &a->shape;
    Run r = {.config = &w->config, .c = w->of.c, .bq = bq, .bkv = bkv};
    WindowOnlineConfig c = {w->config, n->B, n->Nq, n->Nk, bq, bkv, a->mask, 0, NULL};
    char error[WINDOW_ERROR] = "";
    r.Tr = (n->Nq + bq - 1) / bq;
    r.Tc = (n->Nk + bkv - 1) / bkv;
    assert_int_equal(WINDOW_OK, sliding_window_online_create(&r.w, &c, error));
    r.q = malloc(block_bytes(&a->Q, bq));
    r.k = malloc(block_bytes(&a->K, bkv));
    r.v = malloc(block_bytes(&a->V, bkv));
    assert_true(r.q && r.k && r.v);
    clear_state(&r);
    return r;
}

static inline void run_free(Run *r)
{
    sliding_window_online_destroy(r->w);
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

static inline void cut_blocks(Run *r, int64_t i, int64_t j)
{
    cut(&r->c->args.Q, i, r->bq, r->q);
    cut(&r->c->args.K, j, r->bkv, r->k);
    cut(&r->c->args.V, j, r->bkv, r->v);
}

static inline void step(Run *r, int64_t i, int64_t j)
{
    char error[WINDOW_ERROR] = "";
    cut_blocks(r, i, j);
    assert_int_equal(WINDOW_OK,
                     sliding_window_online_step(r->w, r->q, r->k, r->v, r->c->args.O.data,
                                                r->c->lse, i, j, error));
}

static inline void traverse(Run *r)
{
    int64_t *visits = malloc((size_t)(r->Tr * r->Tc) * sizeof *visits);
    assert_non_null(visits);
    visits_fill(r->Tr, r->Tc, visits);
    for (int64_t t = 0; t < r->Tr * r->Tc; t++)
        step(r, visits[t] / r->Tc, visits[t] % r->Tc);
    free(visits);
}

/* Every step that a row took part in may have rounded its O. */
static inline void assert_run_right(const Run *r, const Oracle *oracle, const char *label)
{
    Check check = {.inputs_intact = 1, .storage_intact = 1, .online_block = r->bkv};
    check_outputs(&check, oracle, &r->c->args, 0, 4);
    assert_pass(&check, &r->c->args, label);
    assert_true(tensor_intact(&r->c->O));
}

/* The oracle's row of `keys` becomes that of the keys after a state. Steps round O, and its weights
 * are off by what their lse is off. */
static inline void add_state(const Run *r, Oracle *o, int64_t row, float lse, const float *O)
{
    const double u16 = r->c->args.O.dtype == ATTN_F32   ? 0
                       : r->c->args.O.dtype == ATTN_F16 ? 0x1p-11
                                                        : 0x1p-8;
    const double keys = o->lse.value[row], most = fmax(keys, (double)lse);
    const double both = most + log(exp(keys - most) + exp((double)lse - most));
    const int64_t d = r->c->args.shape.d;
    double largest = 0;
    for (int64_t x = 0; x < d; x++)
        largest = fmax(largest, fabs((double)O[x]));
    o->lse.value[row] = both;
    o->lse.per_c[row] += 0x1p-24 * (fabs(both) + 8);
    for (int64_t e = row * d; e < (row + 1) * d; e++) {
        o->O.value[e] = exp(keys - both) * o->O.value[e] + exp((double)lse - both) * O[e - row * d];
        o->O.fixed[e] += u16 * (double)(r->Tc + 2) * largest;
        o->O.per_c[e] += 0x1p-24 * (fabs(both) + 8) * largest;
    }
}

/* A random state, every fourth row of it empty. o: what is expected of the keys alone, and then of
 * the state and the keys; or NULL. */
static inline void random_state(Run *r, Oracle *o)
{
    const AttnShape *n = &r->c->args.shape;
    for (int64_t row = 0; row < n->B * n->H * n->Nq; row++) {
        const int64_t b = row / (n->H * n->Nq), h = row / n->Nq % n->H, i = row % n->Nq;
        const int empty = row % 4 == 3;
        float O[64];
        r->c->lse[row] = empty ? -INFINITY : 2 * case_normal();
        for (int64_t x = 0; x < n->d; x++) {
            case_set(&r->c->args.O, b, i, h, x, empty ? 0 : case_normal());
            O[x] = case_get(&r->c->args.O, b, i, h, x);
        }
        if (o && !empty)
            add_state(r, o, row, r->c->lse[row], O);
    }
}

/* --- traversals --------------------------------------------------------------------------------*/

typedef void Traversal(Run *r); /* all blocks in the order that was set, from the state on */

static inline void try_order(Run *r, Traversal *way, VisitOrder order, uint64_t seed,
                             const Oracle *oracle, const char *label)
{
    visits_set_order(order, seed);
    way(r);
    visits_set_order(VISIT_ROWS, 1);
    assert_run_right(r, oracle, label);
}

/* The three fixed orders and random ones. */
static inline void try_orders(Traversal *way, int orders)
{
    for (int n = 0; n < 6; n++) {
        const WindowConfig c = config_of((AttnDtype)(n % 3), 4, 2, 12, n < 3, n < 3 ? 17 : 9);
        WindowCase *w = window_case(&c, 2, 37, 53);
        Oracle oracle = oracle_of(&w->of.c->args, 0, 1);
        Run r = run_new(w, 8, 7 + n % 2);
        for (int t = 0; t < orders; t++) {
            clear_state(&r);
            try_order(&r, way, t < 3 ? (VisitOrder)t : VISIT_RANDOM, (uint64_t)t, &oracle,
                      "an order");
        }
        run_free(&r);
        oracle_free(&oracle);
        window_case_free(w);
    }
}

/* A case in blocks of several sizes, in a random order each. Frees it. */
static inline void try_blocks(WindowCase *w, Traversal *way, int sizes, const int64_t blocks[][2],
                              const char *label)
{
    Oracle oracle = oracle_of(&w->of.c->args, 0, 1);
    for (int size = 0; size < sizes; size++) {
        Run r = run_new(w, blocks[size][0], blocks[size][1]);
        try_order(&r, way, VISIT_RANDOM, (uint64_t)(r.bq * r.bkv), &oracle, label);
        run_free(&r);
    }
    oracle_free(&oracle);
    window_case_free(w);
}

static inline void try_option_configs(Traversal *way)
{
    static const int64_t block[][2] = {{8, 12}};
    for (int n = 0; n < OPTION_CONFIGS; n++) {
        const WindowConfig c = option_config(n);
        try_blocks(window_case(&c, 1, 30, 41), way, 1, block, "an option");
    }
}

/* With blocks and rows that see nothing. */
static inline void try_full_masks(Traversal *way)
{
    static const int64_t block[][2] = {{8, 8}};
    for (int n = 0; n < 6; n++) {
        const WindowConfig c = config_of((AttnDtype)(n % 3), 2, 2, 20, n / 3, n % 2 ? 15 : -1);
        WindowCase *w = window_case(&c, 2, 43, 50);
        mask_for(w);
        try_blocks(w, way, 1, block, "a full mask");
    }
}

/* From a random state with empty rows in it. */
static inline void try_states(Traversal *way)
{
    for (int n = 0; n < 9; n++) {
        const WindowConfig c = config_of((AttnDtype)(n % 3), 2, 1, 11, n % 2, n < 6 ? 8 : -1);
        WindowCase *w = window_case(&c, 2, 45, 30);
        Oracle oracle = oracle_of(&w->of.c->args, 0, 1);
        Run r = run_new(w, 16, 8);
        random_state(&r, &oracle);
        try_order(&r, way, VISIT_RANDOM, (uint64_t)n, &oracle, "a partial state");
        run_free(&r);
        oracle_free(&oracle);
        window_case_free(w);
    }
}

#endif
