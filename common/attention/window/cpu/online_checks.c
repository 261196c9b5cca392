/* SPDX-License-Identifier: MIT
 *
 * online_checks.c: what the online module and the stream refuse, one sentence each.
 *
 * Clipping and dropout act on the weights P of a whole row. A module that sees a row in pieces
 * never holds them: what it multiplies V with is exp(s - lse of the piece), and by how much that is
 * too large it learns from the pieces to come. So both are refused, and not approximated.
 *
 * Interface: window_refuse, window_check_values, window_countable, window_check_config,
 * window_check_online, window_config_scale, window_config_rule (online_internal.h).
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "online_internal.h"

enum { MAX_THREADS = 1024 };

/* Whatever is computed from it, padding, float32 copies and tiles included, fits in 64 bits. */
#define MAX_ELEMENTS (INT64_C(1) << 44)

WindowStatus window_refuse(char error[WINDOW_ERROR], WindowStatus status, const char *format, ...)
{
    va_list list;
    if (!error)
        return status;
    va_start(list, format);
    vsnprintf(error, WINDOW_ERROR, format, list);
    va_end(list);
    return status;
}

float window_config_scale(const WindowConfig *config)
{
    return config->scale != 0.0f ? config->scale : 1.0f / sqrtf((float)config->head_dim);
}

AttnRule window_config_rule(const WindowConfig *config)
{
    const int64_t most = INT64_MAX / 4; /* no sequence is as long, and sums of two fit in 64 bits */
    const int64_t window = config->window < most ? config->window : most; /* infinite: -1 */
    return (AttnRule){window, config->causal ? 0 : window};
}

static WindowStatus check_sizes(const WindowConfig *c, char error[WINDOW_ERROR])
{
    if ((int)c->dtype < ATTN_F32 || (int)c->dtype > ATTN_BF16)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "dtype: found %d, accepted are f32, f16 and bf16", (int)c->dtype);
    if (c->heads_q < 1)
        return window_refuse(error, WINDOW_BAD_CONFIG, "heads_q: found %lld, accepted is 1 or more",
                             (long long)c->heads_q);
    if (c->heads_kv < 1 || c->heads_q % c->heads_kv != 0)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "heads_kv: found %lld, accepted is a divisor of heads_q = %lld",
                             (long long)c->heads_kv, (long long)c->heads_q);
    if (c->head_dim < 1 || c->head_dim > WINDOW_MAX_DIM)
        return window_refuse(error, WINDOW_BAD_CONFIG, "head_dim: found %lld, accepted is 1 to %d",
                             (long long)c->head_dim, WINDOW_MAX_DIM);
    if (c->window < WINDOW_INFINITE)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "window: found %lld, accepted is 0 or more, or WINDOW_INFINITE",
                             (long long)c->window);
    if (c->threads < 1 || c->threads > MAX_THREADS)
        return window_refuse(error, WINDOW_BAD_CONFIG, "threads: found %d, accepted is 1 to %d",
                             c->threads, MAX_THREADS);
    return WINDOW_OK;
}

static WindowStatus check_numbers(const WindowConfig *c, char error[WINDOW_ERROR])
{
    const AttnOptions *o = &c->options;
    if (!isfinite(c->scale))
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "scale: found %g, accepted is a finite number (0: 1/sqrt(head_dim))",
                             (double)c->scale);
    if (!isfinite(c->cap) || c->cap < 0.0f)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "cap: found %g, accepted is a positive number, or 0 for none",
                             (double)c->cap);
    if (!isfinite(o->temperature) || o->temperature <= 0.0f)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "temperature: found %g, accepted is a positive number",
                             (double)o->temperature);
    if (o->norm_group < 0 || (o->norm_group > 0 && c->head_dim % o->norm_group != 0))
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "norm_group: found %lld, accepted is a divisor of head_dim = %lld, or "
                             "0 for no normalisation",
                             (long long)o->norm_group, (long long)c->head_dim);
    if (o->norm_group > 0 && (!o->wq || !o->wk))
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "%s: found NULL, accepted are weights of every channel of every head",
                             o->wq ? "wk" : "wq");
    if (o->norm_group > 0 && !(o->norm_eps > 0.0f && isfinite(o->norm_eps)))
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "norm_eps: found %g, accepted is a positive number",
                             (double)o->norm_eps);
    return WINDOW_OK;
}

WindowStatus window_check_values(const WindowConfig *c, char error[WINDOW_ERROR])
{
    const WindowStatus status = check_sizes(c, error);
    return status == WINDOW_OK ? check_numbers(c, error) : status;
}

int window_countable(const WindowConfig *c, int64_t batch, int64_t tokens)
{
    int64_t count = c->heads_kv;
    return !__builtin_mul_overflow(count, 2, &count) &&
           !__builtin_add_overflow(count, c->heads_q, &count) &&
           !__builtin_mul_overflow(count, c->head_dim, &count) &&
           !__builtin_mul_overflow(count, batch, &count) &&
           !__builtin_mul_overflow(count, tokens, &count) && count <= MAX_ELEMENTS;
}

WindowStatus window_check_config(const WindowConfig *c, const char *module,
                                 char error[WINDOW_ERROR])
{
    const AttnOptions *o = &c->options;
    const WindowStatus status = window_check_values(c, error);
    if (status != WINDOW_OK)
        return status;
    if (c->layout != WINDOW_BSHD || c->pack != WINDOW_Q_K_V)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "%s: found layout %d and pack %d, accepted are BSHD and Q_K_V", module,
                             (int)c->layout, (int)c->pack);
    if (o->clip_low != 0.0f || o->clip_high != 1.0f)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "clip: found %g to %g, accepted is none (0 to 1): %s never holds the "
                             "weights of a whole row",
                             (double)o->clip_low, (double)o->clip_high, module);
    if (o->dropout != 0.0f)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "dropout: found %g, accepted is none (0): %s never holds the weights "
                             "of a whole row",
                             (double)o->dropout, module);
    return WINDOW_OK;
}

WindowStatus window_check_online(const WindowOnlineConfig *c, char error[WINDOW_ERROR])
{
    WindowStatus status;
    if (!c)
        return window_refuse(error, WINDOW_BAD_CONFIG, "config: found NULL, accepted is a struct");
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"batch", c->batch},
                 {"seqlen_q", c->seqlen_q},
                 {"seqlen_kv", c->seqlen_kv},
                 {"block_size_q", c->block_size_q},
                 {"block_size_kv", c->block_size_kv}};
    for (int n = 0; n < 5; n++)
        if (sizes[n].value < 1)
            return window_refuse(error, WINDOW_BAD_CONFIG, "%s: found %lld, accepted is 1 or more",
                                 sizes[n].name, (long long)sizes[n].value);
    status = window_check_config(&c->base, "the online module", error);
    for (int n = 1; n < 5 && status == WINDOW_OK; n++) /* block sizes too: strides of a block */
        if (!window_countable(&c->base, c->batch, sizes[n].value))
            status = window_refuse(error, WINDOW_BAD_CONFIG,
                                   "batch and %s: found %lld and %lld with these heads and "
                                   "channels, accepted are up to 2^44 elements",
                                   sizes[n].name, (long long)c->batch, (long long)sizes[n].value);
    if (status == WINDOW_OK && c->mask && c->seqlen_q > MAX_ELEMENTS / c->seqlen_kv)
        status = window_refuse(error, WINDOW_BAD_CONFIG,
                               "mask: found one of %lld x %lld, accepted are up to 2^44 elements",
                               (long long)c->seqlen_q, (long long)c->seqlen_kv);
    return status;
}
