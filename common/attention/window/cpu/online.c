/* SPDX-License-Identifier: MIT
 *
 * online.c: one block of attention at a time, in place, in any order.
 *
 * Everything that a row i has learned from the keys S that it has seen fits in two things,
 *
 *     lse = ln sum of exp(s_ij) over j in S,     O = sum of exp(s_ij - lse) V_j over j in S
 *
 * and two such pairs of disjoint S1 and S2 have one sum. With both on the same footing,
 *
 *     exp(lse) = exp(lse1) + exp(lse2)           exp(lse) O = exp(lse1) O1 + exp(lse2) O2
 *
 * that is addition: associative and commutative. Hence any order of blocks. It is only the notation
 * that has to be careful, since exp(lse) overflows from 89 on:
 *
 *     lse = max + log1p(exp(min - max))          O = exp(lse1 - lse) O1 + exp(lse2 - lse) O2
 *
 * of max and min of lse1, lse2. No exponent is positive now. S = {} is lse = -inf, O = 0; where
 * both sides are empty, min - max would be -inf - -inf = NaN, and there is nothing to do.
 *
 * A block's own (O, lse) comes from stage 03's block kernel, started from an empty state. It gets
 * views that end with the last token that exists, so padding is never read. What is kept between
 * steps is rounded to the dtype: float32 inside a step, 16 bits between steps if the tensors have
 * them. That is the price of in place; lesson 05.4 measures it.
 *
 * Interface: sliding_window_online_create, _step, _destroy (sliding_window_module.h);
 * window_online_create_at (online_internal.h).
 */
#include <math.h>
#include <stdlib.h>

#include "alloc.h"
#include "alloc_wanted.h"
#include "attention/forward/flash_library.h"
#include "attention/window/cpu/online_internal.h"
#include "attention/window/window_library.h"
#include "attn_config.h"
#include "attn_pairs.h"
#include "tensor.h"

struct SlidingWindowOnline {
    WindowOnlineConfig config;
    WindowPlace place;
    int64_t Tr, Tc;        /* blocks of queries and of keys */
    void *simd;            /* workspace of stage 03's block kernel */
    float *O_block;        /* [b][bq][hq][d] of one block alone */
    float *lse_block;      /* [b][hq][bq] */
    uint8_t *mask;         /* [bq][bkv], if there is a mask */
    char *Q_norm, *K_norm; /* [b][bq][hq][d], [b][bkv][hkv][d], if Q and K are normalised */
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0); /* a + b may be more than 64 bits hold */
}

/* --- create ------------------------------------------------------------------------------------*/

/* No block is larger than the sequence; what a caller pads beyond that is never looked at. */
static AttnShape largest_block(const WindowOnlineConfig *c)
{
    AttnShape n = {c->batch,        c->base.heads_q,  c->base.heads_kv,
                   c->block_size_q, c->block_size_kv, c->base.head_dim};
    n.Nq = n.Nq < c->seqlen_q ? n.Nq : c->seqlen_q;
    n.Nk = n.Nk < c->seqlen_kv ? n.Nk : c->seqlen_kv;
    return n;
}

/* A step runs on one thread or on all; neither needs the smaller workspace in every case. */
static size_t simd_bytes(const AttnShape *n, int threads)
{
    const size_t one = flash_simd_workspace_bytes(n, 1);
    const size_t all = flash_simd_workspace_bytes(n, threads);
    return one > all ? one : all;
}

static int allocate(SlidingWindowOnline *w)
{
    const AttnShape n = largest_block(&w->config);
    const size_t q = (size_t)(n.B * n.Nq * n.H), k = (size_t)(n.B * n.Nk * n.Hkv);
    const size_t element = dtype_size(w->config.base.dtype), d = (size_t)n.d;
    const int norm = w->config.base.options.norm_group > 0;
    w->simd = workspace_alloc(simd_bytes(&n, w->config.base.threads));
    w->O_block = workspace_alloc(q * d * sizeof(float));
    w->lse_block = workspace_alloc(q * sizeof(float));
    w->mask = w->place.mask ? workspace_alloc((size_t)(n.Nq * n.Nk)) : NULL;
    w->Q_norm = norm ? workspace_alloc(q * d * element) : NULL;
    w->K_norm = norm ? workspace_alloc(k * d * element) : NULL;
    return w->simd && w->O_block && w->lse_block && (!w->place.mask || w->mask) &&
           (!norm || (w->Q_norm && w->K_norm));
}

WindowStatus window_online_create_at(SlidingWindowOnline **out, const WindowOnlineConfig *config,
                                     const WindowPlace *place, char error[WINDOW_ERROR])
{
    WindowStatus status;
    SlidingWindowOnline *w;
    if (!out)
        return window_refuse(error, WINDOW_BAD_CONFIG, "out: found NULL, accepted is an address");
    *out = NULL;
    status = window_check_online(config, error);
#ifdef HAVE_CUDA
    if (status == WINDOW_OK && config->on_cuda)
        status = window_online_cuda_refuses(config, error);
#else
    if (status == WINDOW_OK && config->on_cuda)
        status = window_refuse(error, WINDOW_NOT_SUPPORTED,
                               "on_cuda: found %d in a build without CUDA, accepted is 0",
                               config->on_cuda);
#endif
    if (status != WINDOW_OK)
        return status;
    w = calloc(1, sizeof *w);
    if (w) {
        w->config = *config;
        w->place = *place;
        w->Tr = ceil_div(config->seqlen_q, config->block_size_q);
        w->Tc = ceil_div(config->seqlen_kv, config->block_size_kv);
    } else
        workspace_refuse(sizeof *w);
    if (!w || (!config->on_cuda && !allocate(w))) {
        sliding_window_online_destroy(w);
        return window_refuse(error, WINDOW_NO_MEMORY,
                             "found too little memory for blocks of %lld queries and %lld keys",
                             (long long)config->block_size_q, (long long)config->block_size_kv);
    }
    *out = w;
    return WINDOW_OK;
}

WindowStatus sliding_window_online_create(SlidingWindowOnline **out,
                                          const WindowOnlineConfig *config,
                                          char error[WINDOW_ERROR])
{
    if (!out || window_check_online(config, error) != WINDOW_OK) /* _at refuses it */
        return window_online_create_at(out, config, NULL, error);
    const WindowConfig *base = &config->base;
    const WindowPlace place = {window_config_rule(base),
                               config->seqlen_kv - config->seqlen_q, /* lower-right */
                               window_config_scale(base), config->mask, config->seqlen_kv};
    return window_online_create_at(out, config, &place, error);
}

void sliding_window_online_destroy(SlidingWindowOnline *w)
{
    if (!w)
        return;
    workspace_free(w->simd);
    workspace_free(w->O_block);
    workspace_free(w->lse_block);
    workspace_free(w->mask);
    workspace_free(w->Q_norm);
    workspace_free(w->K_norm);
    free(w);
}

/* --- one step ----------------------------------------------------------------------------------*/

/* The first `count` tokens of data [b][tokens][heads][d]. */
static Tensor view_of(const WindowOnlineConfig *c, const void *data, int64_t tokens, int64_t heads,
                      int64_t count)
{
    const int64_t d = c->base.head_dim;
    return (Tensor){(void *)data,
                    c->base.dtype,
                    {c->batch, count, heads, d},
                    {tokens * heads * d, heads * d, d, 1}};
}

/* Block (i, j), cut to the queries and keys that exist. O, lse and the tensors are still
 * missing. */
static void cut_block(const SlidingWindowOnline *w, OnlineStep *step, int64_t i, int64_t j)
{
    const WindowOnlineConfig *c = &w->config;
    const int64_t row = i * c->block_size_q, col = j * c->block_size_kv;
    AttnShape n = {c->batch,          c->base.heads_q,    c->base.heads_kv,
                   c->seqlen_q - row, c->seqlen_kv - col, c->base.head_dim};
    n.Nq = n.Nq < c->block_size_q ? n.Nq : c->block_size_q;
    n.Nk = n.Nk < c->block_size_kv ? n.Nk : c->block_size_kv;
    *step = (OnlineStep){.lse_ld = c->seqlen_q, .mask_ld = w->place.mask_ld};
    step->q = (AttnSegment){0, n.Nq, 0, row + w->place.shift, 1};
    step->k = (AttnSegment){0, n.Nk, 0, col, 1};
    step->mask = w->place.mask ? w->place.mask + row * w->place.mask_ld + col : NULL;
    step->args = (AttnArgs){.shape = n,
                            .scale = w->place.scale,
                            .softcap = c->base.cap,
                            .rule = w->place.rule,
                            .positions_q = attn_positions(&step->q, 1),
                            .positions_k = attn_positions(&step->k, 1),
                            .threads = c->base.threads,
                            .stream = c->stream};
    if (!(c->base.cap > 0.0f)) /* a cap wins over the temperature */
        step->args.scale /= c->base.options.temperature;
}

/* Waking a team costs tens of microseconds, more on a busy machine: a step of a millisecond. */
static int worth_threads(const AttnArgs *args)
{
    const AttnShape *n = &args->shape;
    return (double)(n->B * n->H) * (double)(n->Nq * n->Nk) * (double)n->d > 2e7;
}

/* (O, lse) of the block alone: an empty state, to which stage 03's kernel adds the block's keys. */
static WindowStatus attend_block(SlidingWindowOnline *w, const OnlineStep *step)
{
    AttnArgs args = step->args;
    const AttnShape *n = &args.shape;
    const AttnOptions *o = &w->config.base.options;
    if (args.options) {
        Tensor Qn = view_of(&w->config, w->Q_norm, n->Nq, n->H, n->Nq);
        Tensor Kn = view_of(&w->config, w->K_norm, n->Nk, n->Hkv, n->Nk);
        if (window_normalise(&args.Q, o->wq, o->norm_group, o->norm_eps, 1, &Qn) != ATTN_OK ||
            window_normalise(&args.K, o->wk, o->norm_group, o->norm_eps, 1, &Kn) != ATTN_OK)
            return WINDOW_NO_MEMORY;
        args.Q = Qn;
        args.K = Kn;
        args.options = NULL;
    }
    for (int64_t r = 0; step->mask && r < n->Nq; r++)
        for (int64_t c = 0; c < n->Nk; c++)
            w->mask[r * n->Nk + c] = step->mask[r * step->mask_ld + c];
    args.mask = step->mask ? w->mask : NULL;
    args.lse = w->lse_block;
    args.threads = worth_threads(&args) ? args.threads : 1;
    flash_state_start(&args, w->O_block);
    return flash_simd_run(&args, w->O_block, w->simd) == ATTN_OK ? WINDOW_OK : WINDOW_NO_MEMORY;
}

/* One row: its state (O, lse) gains the block's. What it sees of this block may be nothing; then it
 * stays as it is, to the bit. */
static void merge_row(float *O, float *lse, const float *O_block, float lse_block, int64_t d)
{
    const float max = *lse > lse_block ? *lse : lse_block;
    const float min = *lse > lse_block ? lse_block : *lse;
    const float together = max + log1pf(expf(min - max));
    /* exp(*lse - together) and the other, not from a rounded `together`: their sum is 1 */
    const float weight = 1.0f / (1.0f + expf(lse_block - *lse));
    const float weight_block = 1.0f / (1.0f + expf(*lse - lse_block));
    for (int64_t x = 0; x < d; x++)
        O[x] = weight * O[x] + weight_block * O_block[x];
    *lse = together;
}

/* Row by row through float32; each row that gained something is rounded to the dtype again. */
static void merge_block(const SlidingWindowOnline *w, const OnlineStep *step)
{
    const AttnShape *n = &step->args.shape;
    const Tensor *O = &step->args.O;
    float O_row[WINDOW_MAX_DIM];
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t r = 0; r < n->Nq; r++) {
                const float lse_block = w->lse_block[(b * n->H + h) * n->Nq + r];
                if (lse_block == -INFINITY)
                    continue;
                tensor_read_row(O, b, r, h, O_row);
                merge_row(O_row, step->lse + (b * n->H + h) * step->lse_ld + r,
                          w->O_block + ((b * n->Nq + r) * n->H + h) * n->d, lse_block, n->d);
                tensor_write_row(O, b, r, h, O_row);
            }
}

static WindowStatus check_step(const SlidingWindowOnline *w, const void *const pointers[5],
                               int64_t i, int64_t j, char error[WINDOW_ERROR])
{
    static const char *const names[5] = {"q_block", "k_block", "v_block", "global_o", "global_lse"};
    for (int n = 0; n < 5; n++)
        if (!pointers[n])
            return window_refuse(error, WINDOW_BAD_TENSOR,
                                 "%s: found NULL, accepted is the address of a tensor", names[n]);
    if (i < 0 || i >= w->Tr)
        return window_refuse(error, WINDOW_BAD_INDEX,
                             "block_idx_q: found %lld, accepted is 0 to %lld", (long long)i,
                             (long long)(w->Tr - 1));
    if (j < 0 || j >= w->Tc)
        return window_refuse(error, WINDOW_BAD_INDEX,
                             "block_idx_kv: found %lld, accepted is 0 to %lld", (long long)j,
                             (long long)(w->Tc - 1));
    return WINDOW_OK;
}

WindowStatus sliding_window_online_step(SlidingWindowOnline *w, const void *q_block,
                                        const void *k_block, const void *v_block, void *global_o,
                                        float *global_lse, int64_t block_idx_q,
                                        int64_t block_idx_kv, char error[WINDOW_ERROR])
{
    const void *const pointers[5] = {q_block, k_block, v_block, global_o, global_lse};
    OnlineStep step;
    WindowStatus status;
    if (!w)
        return window_refuse(
            error, WINDOW_BAD_TENSOR,
            "w: found NULL, accepted is an object of sliding_window_online_create");
    const WindowOnlineConfig *c = &w->config;
    status = check_step(w, pointers, block_idx_q, block_idx_kv, error);
    if (status != WINDOW_OK)
        return status;
    cut_block(w, &step, block_idx_q, block_idx_kv);
    const AttnShape *n = &step.args.shape;
    /* Nobody sees anything: four comparisons, nothing is read. */
    if (attn_tile_class(step.args.rule, attn_range(step.args.positions_q, 0, n->Nq),
                        attn_range(step.args.positions_k, 0, n->Nk)) == ATTN_TILE_SKIP)
        return WINDOW_OK;
    step.args.options = c->base.options.norm_group > 0 ? &c->base.options : NULL;
    step.args.Q = view_of(c, q_block, c->block_size_q, n->H, n->Nq);
    step.args.K = view_of(c, k_block, c->block_size_kv, n->Hkv, n->Nk);
    step.args.V = view_of(c, v_block, c->block_size_kv, n->Hkv, n->Nk);
    step.args.O = view_of(c, global_o, c->seqlen_q, n->H, n->Nq);
    const int64_t row = block_idx_q * c->block_size_q;
    step.args.O.data = (char *)global_o + row * n->H * n->d * (int64_t)dtype_size(c->base.dtype);
    step.lse = global_lse + row;
#ifdef HAVE_CUDA
    if (c->on_cuda)
        status = window_online_step_cuda(&step);
    else
#endif
        status = attend_block(w, &step);
    if (status != WINDOW_OK)
        return window_refuse(error, status, "block (%lld, %lld): found %s", (long long)block_idx_q,
                             (long long)block_idx_kv,
                             status == WINDOW_NO_MEMORY ? "too little memory"
                                                        : "that a CUDA call failed");
    if (!c->on_cuda)
        merge_block(w, &step);
    return WINDOW_OK;
}
