/* SPDX-License-Identifier: MIT
 *
 * stream.c: tokens arrive one at a time, and the memory stays the same.
 *
 * A causal window of w keys means that token t looks at tokens t-w .. t and will never be asked for
 * anything older again. So w + 1 slots are enough for any number of tokens: token t's key and value
 * go where those of token t - w - 1 were,
 *
 *     slot = t % (w + 1)        8 tokens, w = 2:    slot 0  k0 k3 k6
 *                                                   slot 1  k1 k4 k7
 *                                                   slot 2  k2 k5
 *
 * and since a sum over keys does not ask in which order they come, nothing has to be moved and
 * nobody has to know where the oldest one is. No mask either: what is in a slot is visible. This is
 * the rolling cache of language models with a sliding window.
 *
 * The cache is float32, converted once when a token arrives and read w + 1 times.
 *
 * Interface: window_stream_create, _step, _bytes, _destroy (sliding_window_module.h);
 * window_stream_create_at, window_stream_append (online_internal.h).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "attention/window/cpu/online_internal.h"
#include "attention/window/cpu/stream_simd.h"
#include "attention/window/window_library.h"
#include "attn_config.h"
#include "tensor.h"
#include "units/exp2_negative.h"

struct WindowStream {
    WindowConfig config;
    const StreamSimd *simd;
    int64_t batch, slots;
    int64_t tokens;         /* that have arrived */
    int64_t ld;             /* channels, rounded up to whole vectors */
    int64_t K_head, V_head; /* floats of one head's cache */
    float scale, cap;       /* what q is multiplied with; cap * log2(e) or 0 */
    float *K;               /* [b][hkv][slots / lanes, up][d][lanes] */
    float *V;               /* [b][hkv][slots][ld] */
    float *S, *q, *O;       /* [slots, up], [ld], [ld] of one row */
    char *normed;           /* [b][max(hq, hkv)][d] in the dtype: Q or K of a token, normalised */
    int64_t bytes;
};

static const StreamSimd *choose_simd(void)
{
#ifdef HAVE_ISA_AVX512
    if (strcmp(exp_isa(), "avx512") == 0)
        return &stream_simd_avx512;
#endif
#ifdef HAVE_ISA_AVX2
    if (strcmp(exp_isa(), "portable") != 0)
        return &stream_simd_avx2;
#endif
    return &stream_simd_portable;
}

/* --- create ------------------------------------------------------------------------------------*/

static WindowStatus check_stream(const WindowConfig *c, int64_t batch, char error[WINDOW_ERROR])
{
    WindowStatus status;
    if (!c)
        return window_refuse(error, WINDOW_BAD_CONFIG, "config: found NULL, accepted is a struct");
    status = window_check_config(c, "the stream", error);
    if (status != WINDOW_OK)
        return status;
    if (batch < 1)
        return window_refuse(error, WINDOW_BAD_CONFIG, "batch: found %lld, accepted is 1 or more",
                             (long long)batch);
    if (!window_countable(c, batch, 1))
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "batch: found %lld with these heads, accepted are up to 2^44 elements",
                             (long long)batch);
    if (!c->causal)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "causal: found 0, accepted is 1: a stream has no tokens to come");
    if (c->window == WINDOW_INFINITE)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "window: found none, accepted is 0 or more: the cache has window + 1 "
                             "slots");
    return WINDOW_OK;
}

/* 1: all of it is there. Sizes that no memory has are refused before they are multiplied. */
static int allocate(WindowStream *s)
{
    const WindowConfig *c = &s->config;
    const int64_t lanes = s->simd->lanes, heads = s->batch * c->heads_kv;
    const int64_t wide = c->heads_q > c->heads_kv ? c->heads_q : c->heads_kv;
    int64_t up;
    size_t K, V, row, token;
    if ((double)c->window * (double)heads * (double)s->ld > 0x1p48)
        return 0;
    s->slots = c->window + 1;
    up = (s->slots + lanes - 1) / lanes * lanes;
    s->K_head = up * c->head_dim;
    s->V_head = s->slots * s->ld;
    K = (size_t)(heads * s->K_head) * sizeof(float);
    V = (size_t)(heads * s->V_head) * sizeof(float);
    row = (size_t)(up + 2 * s->ld) * sizeof(float);
    token = (size_t)(s->batch * wide * c->head_dim) * dtype_size(c->dtype);
    s->K = workspace_alloc(K);
    s->V = workspace_alloc(V);
    s->q = workspace_alloc(row);
    s->normed = c->options.norm_group > 0 ? workspace_alloc(token) : NULL;
    s->bytes = (int64_t)(sizeof *s + K + V + row + (s->normed ? token : 0));
    if (!s->K || !s->V || !s->q || (c->options.norm_group > 0 && !s->normed))
        return 0;
    s->O = s->q + s->ld;
    s->S = s->O + s->ld;
    memset(s->K, 0, K); /* the empty slots of a vector that is half full */
    memset(s->V, 0, V); /* and the channels behind d */
    return 1;
}

WindowStatus window_stream_create_at(WindowStream **out, const WindowConfig *config, int64_t batch,
                                     float scale, char error[WINDOW_ERROR])
{
    WindowStatus status;
    WindowStream *s;
    if (!out)
        return window_refuse(error, WINDOW_BAD_CONFIG, "out: found NULL, accepted is an address");
    *out = NULL;
    status = check_stream(config, batch, error);
    if (status != WINDOW_OK)
        return status;
    s = calloc(1, sizeof *s);
    if (s) {
        s->config = *config;
        s->simd = choose_simd();
        s->batch = batch;
        s->ld = (config->head_dim + STREAM_MAX_LANES - 1) / STREAM_MAX_LANES * STREAM_MAX_LANES;
        s->cap = config->cap * (float)M_LOG2E;
        if (config->cap > 0.0f) /* the cap wins; a tiny one must not give 0 * inf */
            s->scale = fmaxf(-1e25f, fminf(scale / config->cap, 1e25f));
        else
            s->scale = scale / config->options.temperature * (float)M_LOG2E;
    }
    if (!s || !allocate(s)) {
        window_stream_destroy(s);
        return window_refuse(
            error, WINDOW_NO_MEMORY,
            "window: found %lld, with %lld batches too much for this memory, accepted is less",
            (long long)config->window, (long long)batch);
    }
    *out = s;
    return WINDOW_OK;
}

WindowStatus window_stream_create(WindowStream **out, const WindowConfig *config, int64_t batch,
                                  char error[WINDOW_ERROR])
{
    /* NULL: _at refuses it */
    return window_stream_create_at(out, config, batch, config ? window_config_scale(config) : 1.0f,
                                   error);
}

int64_t window_stream_bytes(const WindowStream *s)
{
    return s ? s->bytes : 0;
}

void window_stream_destroy(WindowStream *s)
{
    if (!s)
        return;
    workspace_free(s->K);
    workspace_free(s->V);
    workspace_free(s->q);
    workspace_free(s->normed);
    free(s);
}

/* --- a token -----------------------------------------------------------------------------------*/

/* One token of all heads [b][heads][d] as a tensor with one row. */
static Tensor token_view(const WindowStream *s, const void *data, int64_t heads)
{
    const int64_t d = s->config.head_dim;
    return (Tensor){
        (void *)data, s->config.dtype, {s->batch, 1, heads, d}, {heads * d, heads * d, d, 1}};
}

/* token: data itself, or normalised by weights w [heads*d]. */
static WindowStatus take_token(WindowStream *s, const void *data, int64_t heads, const float *w,
                               Tensor *token)
{
    const AttnOptions *o = &s->config.options;
    const Tensor given = token_view(s, data, heads);
    *token = given;
    if (o->norm_group == 0)
        return WINDOW_OK;
    *token = token_view(s, s->normed, heads);
    return window_normalise(&given, w, o->norm_group, o->norm_eps, 1, token) == ATTN_OK
               ? WINDOW_OK
               : WINDOW_NO_MEMORY;
}

WindowStatus window_stream_append(WindowStream *s, const void *k, const void *v)
{
    const WindowConfig *c = &s->config;
    const int64_t lanes = s->simd->lanes, d = c->head_dim, slot = s->tokens % s->slots;
    const Tensor V = token_view(s, v, c->heads_kv);
    Tensor K;
    const WindowStatus status = take_token(s, k, c->heads_kv, c->options.wk, &K);
    if (status != WINDOW_OK)
        return status;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < c->heads_kv; h++) {
            const int64_t head = b * c->heads_kv + h;
            float *K_slot = s->K + head * s->K_head + slot / lanes * lanes * d + slot % lanes;
            tensor_read_row(&K, b, 0, h, s->q);
            for (int64_t x = 0; x < d; x++)
                K_slot[x * lanes] = s->q[x];
            tensor_read_row(&V, b, 0, h, s->V + head * s->V_head + slot * s->ld);
        }
    s->tokens++;
    return WINDOW_OK;
}

/* Query head h of batch b: O and lse of one row. */
static void attend_row(WindowStream *s, const Tensor *Q, const Tensor *O, int64_t b, int64_t h,
                       float *lse)
{
    const WindowConfig *c = &s->config;
    const int64_t head = b * c->heads_kv + h / (c->heads_q / c->heads_kv);
    StreamRow row = {.q = s->q,
                     .K = s->K + head * s->K_head,
                     .V = s->V + head * s->V_head,
                     .count = s->tokens < s->slots ? s->tokens : s->slots,
                     .d = c->head_dim,
                     .ld = s->ld,
                     .cap = s->cap,
                     .S = s->S,
                     .O = s->O};
    tensor_read_row(Q, b, 0, h, s->q);
    for (int64_t x = 0; x < c->head_dim; x++)
        s->q[x] *= s->scale;
    s->simd->attend(&row);
    const float inverse = row.l == 0.0f ? 0.0f : 1.0f / row.l;
    for (int64_t x = 0; x < c->head_dim; x++)
        row.O[x] *= inverse;
    tensor_write_row(O, b, 0, h, row.O);
    *lse = row.l == 0.0f ? -INFINITY : row.m * (float)M_LN2 + logf(row.l);
}

WindowStatus window_stream_step(WindowStream *s, const void *q, const void *k, const void *v,
                                void *o, float *lse)
{
    WindowStatus status;
    Tensor Q;
    if (!s || !q || !k || !v || !o || !lse)
        return WINDOW_BAD_TENSOR;
    const WindowConfig *c = &s->config;
    const Tensor O = token_view(s, o, c->heads_q);
    status = window_stream_append(s, k, v);
    if (status == WINDOW_OK)
        status = take_token(s, q, c->heads_q, c->options.wq, &Q);
    if (status != WINDOW_OK)
        return status;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < c->heads_q; h++)
            attend_row(s, &Q, &O, b, h, lse + b * c->heads_q + h);
    return WINDOW_OK;
}
