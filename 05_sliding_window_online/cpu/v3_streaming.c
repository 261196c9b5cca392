/* SPDX-License-Identifier: MIT
 *
 * v3_streaming: a whole attention call, one token at a time against a rolling cache.
 *
 *     for each token t:
 *         the cache forgets token t - w - 1 and learns K_t, V_t
 *         O_t, lse_t = attention of Q_t over what is in the cache
 *
 * This is how a language model writes: the key of the next token does not exist before the last
 * token is out. Here all tokens are there from the start, and the variant behaves as if they were
 * not. It can do so only where each query sees nothing behind its own key (causal) and little
 * before it (a window); other cases are skipped.
 *
 * Keys before the first query are a prompt: they enter the cache without a query. Each kv head has
 * a stream of its own with the query heads that read it, so threads share the kv heads.
 *
 * Interface: sliding_window_v3_streaming (sliding_window.h).
 */
#include <math.h>
#include <string.h>

#include "attention/window/cpu/online_internal.h"
#include "attn_options.h"
#include "sliding_window.h"
#include "tensor.h"

/* --- which cases -------------------------------------------------------------------------------*/

/* The segment of keys of a sequence, or NULL: there is none, or *several. */
static const AttnSegment *find_keys(AttnPositions map, int64_t sequence, int *several)
{
    const AttnSegment *found = NULL;
    for (int64_t s = 0; s < map.count; s++)
        if (map.segments[s].sequence == sequence && map.segments[s].length > 0) {
            *several = found != NULL;
            found = &map.segments[s];
        }
    return found;
}

/* Has each query a key at its own position, and do both run upwards without gaps? */
static const char *why_not_segment(const AttnArgs *args, const AttnSegment *q)
{
    int several = 0;
    const AttnSegment *k = find_keys(args->positions_k, q->sequence, &several);
    if (several || (k && k->stride != 1) || q->stride != 1)
        return "a stream takes the tokens of a sequence in one piece, one after the other";
    if (!k || q->position < k->position || q->position + q->length > k->position + k->length)
        return "a stream needs a key at the position of each query (causal lower-right, and not "
               "more queries than keys)";
    return NULL;
}

static const char *why_not(const AttnArgs *args)
{
    const char *reason = NULL;
    if (args->rule.right != 0)
        return "a stream has no tokens to come: it needs a causal mask";
    if (args->rule.left < 0)
        return "a rolling cache is as long as the window: it needs a finite one";
    if (args->mask)
        return "a stream sees all that is in its cache: it knows no full mask";
    if (attn_clips(args) || attn_drops(args))
        return "clipping and dropout change finished weights; the stream refuses them by contract";
    for (int64_t s = 0; s < args->positions_q.count && !reason; s++)
        if (args->positions_q.segments[s].length > 0)
            reason = why_not_segment(args, &args->positions_q.segments[s]);
    return reason;
}

/* --- one stream --------------------------------------------------------------------------------*/

/* Of kv head `head` alone: the query heads that read it, and their weights of the normalisation. A
 * window that is longer than the sequence needs no more slots than the sequence has keys. */
static WindowConfig head_config(const AttnArgs *args, int64_t head, int64_t keys)
{
    const AttnShape *n = &args->shape;
    WindowConfig c = WINDOW_CONFIG_DEFAULT;
    c.dtype = args->Q.dtype;
    c.heads_q = n->H / n->Hkv;
    c.heads_kv = 1;
    c.head_dim = n->d;
    c.causal = 1;
    c.window = args->rule.left < keys ? args->rule.left : keys - 1;
    c.cap = args->softcap;
    if (args->options) {
        c.options = *args->options;
        if (c.options.norm_group > 0) {
            c.options.wq += head * c.heads_q * n->d;
            c.options.wk += head * n->d;
        }
    }
    return c;
}

static const char *row_of(const Tensor *t, int64_t b, int64_t token, int64_t h)
{
    return (const char *)t->data + tensor_offset(t, b, token, h) * (int64_t)dtype_size(t->dtype);
}

/* Memory of one thread: a token's queries and outputs, [group][d] each in the dtype, and its
 * lse. */
typedef struct TokenRows {
    char *Q, *O;
    float *lse;
} TokenRows;

static WindowStatus stream_queries(const AttnArgs *args, WindowStream *s, const AttnSegment *q,
                                   const AttnSegment *k, int64_t b, int64_t head, TokenRows rows)
{
    const AttnShape *n = &args->shape;
    const int64_t group = n->H / n->Hkv, prompt = q->position - k->position;
    const size_t row = (size_t)n->d * dtype_size(args->Q.dtype);
    WindowStatus status = WINDOW_OK;
    for (int64_t t = 0; t < prompt + q->length && status == WINDOW_OK; t++) {
        const char *K_t = row_of(&args->K, b, k->first + t, head);
        const char *V_t = row_of(&args->V, b, k->first + t, head);
        const int64_t i = q->first + t - prompt;
        if (t < prompt) {
            status = window_stream_append(s, K_t, V_t);
            continue;
        }
        for (int64_t g = 0; g < group; g++)
            memcpy(rows.Q + (size_t)g * row, row_of(&args->Q, b, i, head * group + g), row);
        status = window_stream_step(s, rows.Q, K_t, V_t, rows.O, rows.lse);
        for (int64_t g = 0; g < group; g++) {
            memcpy((char *)row_of(&args->O, b, i, head * group + g), rows.O + (size_t)g * row, row);
            args->lse[(b * n->H + head * group + g) * n->Nq + i] = rows.lse[g];
        }
    }
    return status;
}

/* All sequences of one kv head, one after the other: a stream for each. */
static WindowStatus stream_head(const AttnArgs *args, int64_t b, int64_t head)
{
    const int64_t group = args->shape.H / args->shape.Hkv;
    const size_t bytes = (size_t)(group * args->shape.d) * dtype_size(args->Q.dtype);
    TokenRows rows = {workspace_alloc(bytes), workspace_alloc(bytes),
                      workspace_alloc((size_t)group * sizeof(float))};
    WindowStatus status = rows.Q && rows.O && rows.lse ? WINDOW_OK : WINDOW_NO_MEMORY;
    for (int64_t n = 0; n < args->positions_q.count && status == WINDOW_OK; n++) {
        const AttnSegment *q = &args->positions_q.segments[n];
        int several;
        const AttnSegment *k = find_keys(args->positions_k, q->sequence, &several);
        if (q->length == 0)
            continue;
        const WindowConfig config = head_config(args, head, k->length);
        WindowStream *s;
        status = window_stream_create_at(&s, &config, 1, args->scale, NULL);
        if (status == WINDOW_OK)
            status = stream_queries(args, s, q, k, b, head, rows);
        window_stream_destroy(s);
    }
    workspace_free(rows.Q);
    workspace_free(rows.O);
    workspace_free(rows.lse);
    return status;
}

AttnStatus sliding_window_v3_streaming(const AttnArgs *args)
{
    const int64_t heads = args->shape.B * args->shape.Hkv;
    const int threads = heads < args->threads ? (int)heads : args->threads;
    const char *reason = why_not(args);
    int failed = 0;
    if (reason) {
        window_set_skip_reason(reason);
        return ATTN_SKIP;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
    for (int64_t t = 0; t < heads; t++)
        if (stream_head(args, t / args->shape.Hkv, t % args->shape.Hkv) != WINDOW_OK) {
#pragma omp atomic write
            failed = 1;
        }
    return failed ? ATTN_NO_MEMORY : ATTN_OK;
}
