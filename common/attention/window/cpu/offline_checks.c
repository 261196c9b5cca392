/* SPDX-License-Identifier: MIT
 *
 * offline_checks.c: what the offline module refuses, one sentence each.
 *
 * A module that takes many options can be asked for things that contradict each other. Some of them
 * would even run: a V that is packed inside of K and passed once more, lengths that end before the
 * tensor does. The answer would be wrong, and nobody would know why. So every call is looked at as
 * a whole first, and nothing is written before that is done.
 *
 * A sentence names the field, what was found there and what is accepted.
 *
 * Interface: window_check_offline (offline_internal.h).
 */
#include "offline_internal.h"

#include <math.h>
#include <stddef.h>

#include "online_internal.h"

/* --- the config --------------------------------------------------------------------------------*/

static WindowStatus check_config(const WindowConfig *c, char error[WINDOW_ERROR])
{
    const AttnOptions *o = &c->options;
    const WindowStatus status = window_check_values(c, error);
    if (status != WINDOW_OK)
        return status;
    if ((int)c->layout < WINDOW_BSHD || (int)c->layout > WINDOW_THD)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "layout: found %d, accepted are BSHD, SBHD and THD", (int)c->layout);
    if ((int)c->pack < WINDOW_Q_K_V || (int)c->pack > WINDOW_QKV)
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "pack: found %d, accepted are Q_K_V, Q_KV and QKV", (int)c->pack);
    if (!(o->clip_low <= 0.0f) || !isfinite(o->clip_low))
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "clip_low: found %g, accepted is a number of 0 or less",
                             (double)o->clip_low);
    if (!(o->clip_high >= 1.0f) || !isfinite(o->clip_high))
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "clip_high: found %g, accepted is a number of 1 or more",
                             (double)o->clip_high);
    if (!(o->dropout >= 0.0f && o->dropout < 1.0f))
        return window_refuse(error, WINDOW_BAD_CONFIG,
                             "dropout: found %g, accepted is 0 or more and less than 1",
                             (double)o->dropout);
    return WINDOW_OK;
}

/* --- lengths -----------------------------------------------------------------------------------*/

/* Where each sequence begins, and where the last one ends: 0 ... total. */
static WindowStatus check_cu_seqlens(const char *name, const int32_t *cu, int64_t batch,
                                     int64_t total, char error[WINDOW_ERROR])
{
    if (!cu)
        return window_refuse(error, WINDOW_BAD_TENSOR,
                             "%s: found NULL, THD accepts an array of batch + 1 = %lld numbers",
                             name, (long long)batch + 1);
    if (cu[0] != 0)
        return window_refuse(error, WINDOW_BAD_TENSOR, "%s[0]: found %d, accepted is 0", name,
                             cu[0]);
    for (int64_t s = 0; s < batch; s++)
        if (cu[s + 1] < cu[s])
            return window_refuse(error, WINDOW_BAD_TENSOR,
                                 "%s[%lld]: found %d, accepted is %d or more: sequences do not run "
                                 "backwards",
                                 name, (long long)s + 1, cu[s + 1], cu[s]);
    if (cu[batch] != total)
        return window_refuse(error, WINDOW_BAD_TENSOR,
                             "%s[%lld]: found %d, accepted is the number of tokens, %lld", name,
                             (long long)batch, cu[batch], (long long)total);
    return WINDOW_OK;
}

static WindowStatus check_sequences(const WindowConfig *c, const WindowCall *call,
                                    char error[WINDOW_ERROR])
{
    const int32_t *q = call->cu_seqlens_q, *kv = call->cu_seqlens_kv;
    WindowStatus status;
    if (c->layout != WINDOW_THD) {
        if (q || kv)
            return window_refuse(error, WINDOW_BAD_TENSOR,
                                 "%s: found an array, BSHD and SBHD accept NULL",
                                 q ? "cu_seqlens_q" : "cu_seqlens_kv");
        return WINDOW_OK;
    }
    status = check_cu_seqlens("cu_seqlens_q", q, call->batch, call->seqlen_q, error);
    if (status == WINDOW_OK)
        status = check_cu_seqlens("cu_seqlens_kv", kv, call->batch, call->seqlen_kv, error);
    for (int64_t s = 0; status == WINDOW_OK && c->pack == WINDOW_QKV && s < call->batch; s++)
        if (q[s + 1] != kv[s + 1])
            status = window_refuse(error, WINDOW_BAD_TENSOR,
                                   "cu_seqlens_kv[%lld]: found %d, QKV accepts that of "
                                   "cu_seqlens_q, %d",
                                   (long long)s + 1, kv[s + 1], q[s + 1]);
    return status;
}

static WindowStatus check_lengths(const WindowConfig *c, const WindowCall *call,
                                  char error[WINDOW_ERROR])
{
    const int64_t batch = c->layout == WINDOW_THD ? 1 : call->batch;
    if (call->batch < 1 || (c->layout == WINDOW_THD && call->batch > INT32_MAX))
        return window_refuse(error, WINDOW_BAD_TENSOR,
                             "batch: found %lld, accepted is 1 or more (THD: up to 2^31 - 1)",
                             (long long)call->batch);
    if (call->seqlen_q < 1 || call->seqlen_kv < 1)
        return window_refuse(error, WINDOW_BAD_TENSOR, "%s: found %lld, accepted is 1 or more",
                             call->seqlen_q < 1 ? "seqlen_q" : "seqlen_kv",
                             (long long)(call->seqlen_q < 1 ? call->seqlen_q : call->seqlen_kv));
    if (c->pack == WINDOW_QKV && call->seqlen_q != call->seqlen_kv)
        return window_refuse(error, WINDOW_BAD_TENSOR,
                             "seqlen_kv: found %lld, QKV accepts that of the queries, %lld",
                             (long long)call->seqlen_kv, (long long)call->seqlen_q);
    if (!window_countable(c, batch, call->seqlen_q) || !window_countable(c, batch, call->seqlen_kv))
        return window_refuse(
            error, WINDOW_BAD_TENSOR,
            "batch and seqlen: found %lld and %lld with these heads and channels, accepted are up "
            "to 2^44 elements",
            (long long)batch,
            (long long)(call->seqlen_q > call->seqlen_kv ? call->seqlen_q : call->seqlen_kv));
    return check_sequences(c, call, error);
}

/* --- pointers ----------------------------------------------------------------------------------*/

/* A pointer of the call and whether it has to be there: 1 yes, 0 it must be NULL. */
typedef struct Needed {
    const char *name;
    const void *pointer;
    int wanted;
} Needed;

static WindowStatus check_pointers(const WindowConfig *c, const WindowCall *call, int backward,
                                   char error[WINDOW_ERROR])
{
    const int separate_K = c->pack != WINDOW_QKV, separate_V = c->pack == WINDOW_Q_K_V;
    const Needed needed[] = {
        {"Q", call->Q, 1},   {"K", call->K, separate_K},   {"V", call->V, separate_V},
        {"O", call->O, 1},   {"lse", call->lse, 1},        {"dO", call->dO, 1},
        {"dQ", call->dQ, 1}, {"dK", call->dK, separate_K}, {"dV", call->dV, separate_V},
    };
    const size_t count = backward ? sizeof needed / sizeof *needed : 4; /* forward: Q to O */
    const char *const packs[] = {"Q_K_V", "Q_KV", "QKV"};
    for (size_t n = 0; n < count; n++) {
        if (needed[n].wanted && !needed[n].pointer)
            return window_refuse(error, WINDOW_BAD_TENSOR,
                                 "%s: found NULL, accepted is a tensor (pack %s)", needed[n].name,
                                 packs[c->pack]);
        if (!needed[n].wanted && needed[n].pointer)
            return window_refuse(error, WINDOW_BAD_TENSOR,
                                 "%s: found a tensor, pack %s accepts NULL: it is packed with "
                                 "another one",
                                 needed[n].name, packs[c->pack]);
    }
    return WINDOW_OK;
}

WindowStatus window_check_offline(const WindowConfig *config, const WindowCall *call, int backward,
                                  char error[WINDOW_ERROR])
{
    WindowStatus status;
    if (!config || !call)
        return window_refuse(error, WINDOW_BAD_CONFIG, "%s: found NULL, accepted is a struct",
                             config ? "call" : "config");
    status = check_config(config, error);
    if (status == WINDOW_OK)
        status = check_lengths(config, call, error);
    if (status == WINDOW_OK)
        status = check_pointers(config, call, backward, error);
    return status;
}
