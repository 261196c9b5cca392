/* SPDX-License-Identifier: MIT
 *
 * v3_streaming: a whole attention call, one token at a time against a rolling cache.
 *
 *     for each token t:
 *         the cache forgets token t - w - 1 and learns K_t, V_t
 *         O_t, lse_t = attention of Q_t over what is in the cache
 *
 * This is how a language model writes: the key of the next token does not exist before the last
 * token is out. Here all tokens are there from the start, and the rung behaves as if they were not.
 * It can do so only where each query sees nothing behind its own key (causal) and little before it
 * (a window); the harness skips other cases (STREAM).
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
 * nobody has to know where the oldest one is. No mask either: what is in a slot is visible. Memory
 * does not depend on the number of tokens.
 *
 * Keys before the first query are a prompt: they enter the cache without a query. Each kv head has
 * a stream of its own with the query heads that read it, so threads share the kv heads.
 *
 * Instruction sets: Meson compiles this file once for each (units/vector.h). The copy for any
 * processor holds the choice (EACH_ISA) and registers the rung.
 *
 * Interface: the rung of stage 05 that sees one token at a time; float32.
 */
#include <math.h>
#include <string.h>

#include "problem.h"
#include "units/stream_row.h"

static int64_t round_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b * b;
}

/* w + 1. A window that is longer than the sequence needs no more slots than the sequence has
 * keys. */
static int64_t count_slots(const Problem *p)
{
    const int64_t window = (int64_t)p->to - p->from + 1;
    return window < p->Nk ? window : p->Nk;
}

/* The stream of one kv head, in the memory of one thread. */
typedef struct Stream {
    KeyCache cache;
    int64_t slots;
    float *S, *q, *O; /* [slots, up to whole vectors], [ld], [ld] of one row */
} Stream;

static int64_t stream_floats(const Problem *p)
{
    const int64_t slots = count_slots(p), ld = round_up(p->d, MOST_LANES);
    return round_up(slots, MOST_LANES) * (p->d + 1) + (slots + 2) * ld;
}

/* Empty. */
static Stream open_stream(const Problem *p, int thread)
{
    const int64_t up = round_up(count_slots(p), MOST_LANES);
    Stream s = {.slots = count_slots(p)};
    s.cache.d = p->d;
    s.cache.ld = round_up(p->d, MOST_LANES);
    s.cache.K = (float *)p->work + thread * stream_floats(p);
    s.cache.V = s.cache.K + up * p->d;
    s.S = s.cache.V + s.slots * s.cache.ld;
    s.q = s.S + up;
    s.O = s.q + s.cache.ld;
    memset(s.cache.K, 0, (size_t)stream_floats(p) * sizeof(float)); /* a half full vector */
    return s;
}

/* Token t arrives: its key and value take the place of the oldest. */
static void append_token(const Problem *p, Stream *s, int b, int h_kv, int t)
{
    const int64_t slot = t % s->slots;
    const float *K_t = (const float *)p->K + key_row(p, b, h_kv, t);
    float *K_slot = s->cache.K + slot / LANES * LANES * p->d + slot % LANES;
    for (int x = 0; x < p->d; x++)
        K_slot[x * LANES] = K_t[x];
    memcpy(s->cache.V + slot * s->cache.ld, (const float *)p->V + key_row(p, b, h_kv, t),
           (size_t)p->d * sizeof(float));
    s->cache.count = t + 1 < s->slots ? t + 1 : s->slots;
}

/* Query i of head h over all that is in the cache. */
static void attend_row(const Problem *p, const Stream *s, int b, int h, int i)
{
    const float *Q_i = (const float *)p->Q + query_row(p, b, h, i);
    float *O_i = (float *)p->O + query_row(p, b, h, i), m, l, inverse;
    Vector most = (Vector){0} - INFINITY;
    for (int x = 0; x < p->d; x++)
        s->q[x] = p->scale * (float)M_LOG2E * Q_i[x];
    for (int64_t t = 0; t < s->cache.count; t += LANES) {
        Vector S = score_keys(&s->cache, s->q, t);
        for (int64_t lane = s->cache.count - t; lane < LANES; lane++)
            S[lane] = -INFINITY; /* empty slots of the last vector */
        store(s->S + t, S);
        most = larger(most, S);
    }
    m = largest_lane(most);
    l = weigh_values(&s->cache, s->S, m, s->O);
    inverse = l == 0.0f ? 0.0f : 1.0f / l;
    for (int x = 0; x < p->d; x++)
        O_i[x] = inverse * s->O[x];
    p->lse[lse_row(p, b, h, i)] = l == 0.0f ? -INFINITY : m * (float)M_LN2 + logf(l);
}

/* All tokens of one kv head. Query i comes with key i + to. */
static void stream_head(const Problem *p, int b, int h_kv, int thread)
{
    const int group = p->H / p->Hkv;
    Stream s = open_stream(p, thread);
    for (int t = 0; t < p->Nq + p->to; t++) {
        append_token(p, &s, b, h_kv, t);
        for (int h = h_kv * group; t >= p->to && h < (h_kv + 1) * group; h++)
            attend_row(p, &s, b, h, t - p->to);
    }
}

static int count_threads(const Problem *p)
{
    return p->B * p->Hkv < p->threads ? p->B * p->Hkv : p->threads;
}

/* Each thread takes the next head when it is free. */
static void attend(const Problem *p)
{
    const int threads = count_threads(p);
    int next = 0;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++)
        for (;;) {
            int head;
#pragma omp atomic capture
            head = next++;
            if (head >= p->B * p->Hkv)
                break;
            stream_head(p, head / p->Hkv, head % p->Hkv, thread);
        }
}

static int64_t work(const Problem *p, int backward)
{
    (void)backward;
    return (int64_t)sizeof(float) * count_threads(p) * stream_floats(p);
}

EACH_ISA(sliding_window_v3_streaming, attend, forward)

RUNG(sliding_window, v3_streaming, "a token at a time against a rolling cache of window + 1 keys",
     F32, forward, NULL, work, NULL, STREAM);
