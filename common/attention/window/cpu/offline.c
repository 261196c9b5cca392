/* SPDX-License-Identifier: MIT
 *
 * offline.c: the offline module, a whole attention call in the shapes that programs really have.
 *
 * Three layouts, three ways of packing, sequences of any lengths: that sounds like many kernels, or
 * like copying everything into one shape first. It is neither. A kernel finds its rows by strides,
 * so a layout is four numbers:
 *
 *                    batch           token           head    channel
 *     BSHD  stride   N heads d       heads d         d       1
 *     SBHD           heads d         B heads d       d       1
 *     THD            (one batch)     heads d         d       1
 *
 * and `heads` is the number of heads that lie side by side in memory. Packing K and V in one tensor
 * makes that 2 Hkv, and V begins Hkv d elements later; with Q, K and V in one it is H + 2 Hkv.
 * Sequences of THD are segments of the position maps, each aligned by itself: its last query looks
 * at its last key. Gradients go the same way back.
 *
 * sliding_window_library_cpu and its backward pass do the work, with every option.
 *
 * Before that a call is looked at as a whole, and nothing is written before that is done. A module
 * that takes many options can be asked for things that contradict each other. Some of them would
 * even run: a V that is packed inside of K and passed once more, lengths that end before the tensor
 * does. The answer would be wrong, and nobody would know why. A sentence names the field, what was
 * found there and what is accepted.
 *
 * Interface: sliding_window_offline, sliding_window_offline_backward, sliding_window_status_text
 * (sliding_window_module.h).
 */
#include "alloc.h"
#include "attention/window/cpu/online_internal.h"
#include "attention/window/sliding_window_module.h"
#include "attention/window/window_library.h"
#include "attn_pairs.h"
#include "tensor.h"

#include <math.h>
#include <stddef.h>

const char *sliding_window_status_text(WindowStatus status)
{
    switch (status) {
    case WINDOW_OK:
        return "ok";
    case WINDOW_BAD_CONFIG:
        return "options that exclude each other, or a value out of range";
    case WINDOW_BAD_TENSOR:
        return "a tensor that does not fit";
    case WINDOW_BAD_INDEX:
        return "a block index outside of the tensor";
    case WINDOW_NO_MEMORY:
        return "out of memory";
    case WINDOW_NOT_SUPPORTED:
        return "this device or build cannot do it";
    case WINDOW_FAILED:
        return "a CUDA call failed";
    }
    return "unknown status";
}

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

static WindowStatus check_offline(const WindowConfig *config, const WindowCall *call, int backward,
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

/* --- the call ----------------------------------------------------------------------------------*/

/* --- tensors -----------------------------------------------------------------------------------*/

/* Heads first .. first+count-1 of those `stored` side by side at data: [B][N][count][d] */
static Tensor view_heads(const WindowConfig *c, const void *data, int64_t B, int64_t N,
                         int64_t stored, int64_t first, int64_t count)
{
    const int64_t d = c->head_dim, row = stored * d;
    Tensor t = {(void *)data, c->dtype, {B, N, count, d}, {N * row, row, d, 1}};
    if (c->layout == WINDOW_SBHD) {
        t.stride[0] = row;
        t.stride[1] = B * row;
    }
    if (data)
        t.data = (char *)t.data + first * d * (int64_t)dtype_size(c->dtype);
    return t;
}

/* Three tensors out of one, two or three in memory. */
static void view_packed(const WindowConfig *c, const AttnShape *n, const void *Q, const void *K,
                        const void *V, Tensor view[3])
{
    const int64_t H = n->H, Hkv = n->Hkv;
    switch (c->pack) {
    case WINDOW_Q_K_V:
        view[0] = view_heads(c, Q, n->B, n->Nq, H, 0, H);
        view[1] = view_heads(c, K, n->B, n->Nk, Hkv, 0, Hkv);
        view[2] = view_heads(c, V, n->B, n->Nk, Hkv, 0, Hkv);
        break;
    case WINDOW_Q_KV:
        view[0] = view_heads(c, Q, n->B, n->Nq, H, 0, H);
        view[1] = view_heads(c, K, n->B, n->Nk, 2 * Hkv, 0, Hkv);
        view[2] = view_heads(c, K, n->B, n->Nk, 2 * Hkv, Hkv, Hkv);
        break;
    case WINDOW_QKV:
        view[0] = view_heads(c, Q, n->B, n->Nq, H + 2 * Hkv, 0, H);
        view[1] = view_heads(c, Q, n->B, n->Nk, H + 2 * Hkv, H, Hkv);
        view[2] = view_heads(c, Q, n->B, n->Nk, H + 2 * Hkv, H + Hkv, Hkv);
        break;
    }
}

/* --- sequences ---------------------------------------------------------------------------------*/

/* One segment for each sequence. Lower-right: key j stands at j, query i at i + Nk - Nq. */
static void fill_segments(const WindowConfig *c, const WindowCall *call, AttnSegment *q,
                          AttnSegment *k)
{
    if (c->layout != WINDOW_THD) {
        *q = (AttnSegment){0, call->seqlen_q, 0, call->seqlen_kv - call->seqlen_q, 1};
        *k = (AttnSegment){0, call->seqlen_kv, 0, 0, 1};
        return;
    }
    for (int64_t s = 0; s < call->batch; s++) {
        const int64_t first_q = call->cu_seqlens_q[s], first_k = call->cu_seqlens_kv[s];
        const int64_t Nq = call->cu_seqlens_q[s + 1] - first_q;
        const int64_t Nk = call->cu_seqlens_kv[s + 1] - first_k;
        q[s] = (AttnSegment){first_q, Nq, s, Nk - Nq, 1};
        k[s] = (AttnSegment){first_k, Nk, s, 0, 1};
    }
}

static AttnArgs make_args(const WindowConfig *c, const WindowCall *call, AttnSegment *segments)
{
    const int64_t sequences = c->layout == WINDOW_THD ? call->batch : 1;
    AttnArgs args = {0};
    Tensor inputs[3], gradients[3];
    args.shape = (AttnShape){c->layout == WINDOW_THD ? 1 : call->batch,
                             c->heads_q,
                             c->heads_kv,
                             call->seqlen_q,
                             call->seqlen_kv,
                             c->head_dim};
    args.scale = window_config_scale(c);
    args.softcap = c->cap;
    args.rule = window_config_rule(c);
    fill_segments(c, call, segments, segments + sequences);
    args.positions_q = attn_positions(segments, sequences);
    args.positions_k = attn_positions(segments + sequences, sequences);
    view_packed(c, &args.shape, call->Q, call->K, call->V, inputs);
    view_packed(c, &args.shape, call->dQ, call->dK, call->dV, gradients);
    args.Q = inputs[0], args.K = inputs[1], args.V = inputs[2];
    args.dQ = gradients[0], args.dK = gradients[1], args.dV = gradients[2];
    args.O = view_heads(c, call->O, args.shape.B, args.shape.Nq, c->heads_q, 0, c->heads_q);
    args.dO = view_heads(c, call->dO, args.shape.B, args.shape.Nq, c->heads_q, 0, c->heads_q);
    args.lse = call->lse;
    args.threads = c->threads;
    args.options = &c->options;
    return args;
}

/* --- the calls ---------------------------------------------------------------------------------*/

static WindowStatus run(const WindowConfig *c, const WindowCall *call, int backward,
                        char error[WINDOW_ERROR])
{
    const int64_t sequences = c->layout == WINDOW_THD ? call->batch : 1;
    AttnSegment *segments = workspace_alloc((size_t)(2 * sequences) * sizeof *segments);
    float *lse = NULL; /* for who does not want it: the pass over V still does */
    AttnStatus status = ATTN_NO_MEMORY;
    if (segments) {
        AttnArgs args = make_args(c, call, segments);
        if (!args.lse)
            args.lse = lse = workspace_alloc((size_t)(args.shape.B * args.shape.H * args.shape.Nq) *
                                             sizeof *lse);
        if (args.lse)
            status = backward ? sliding_window_library_cpu_backward(&args)
                              : sliding_window_library_cpu(&args);
    }
    workspace_free(lse);
    workspace_free(segments);
    if (status != ATTN_OK)
        return window_refuse(error, WINDOW_NO_MEMORY,
                             "memory: found too little for %lld queries and %lld keys",
                             (long long)call->seqlen_q, (long long)call->seqlen_kv);
    return WINDOW_OK;
}

WindowStatus sliding_window_offline(const WindowConfig *config, const WindowCall *call,
                                    char error[WINDOW_ERROR])
{
    const WindowStatus status = check_offline(config, call, 0, error);
    return status == WINDOW_OK ? run(config, call, 0, error) : status;
}

WindowStatus sliding_window_offline_backward(const WindowConfig *config, const WindowCall *call,
                                             char error[WINDOW_ERROR])
{
    const WindowStatus status = check_offline(config, call, 1, error);
    return status == WINDOW_OK ? run(config, call, 1, error) : status;
}
