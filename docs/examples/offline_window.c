/* SPDX-License-Identifier: MIT
 *
 * offline_window.c: a solution of exercise 4 of docs/lab/05_exercises.md, the offline module:
 * windowed attention with every option, a row at a time, as a shared object for `sliding_window
 * --variant-so`.
 *
 * Clipping and dropout need the finished P. There is no matrix to look it up in, so each row goes
 * through its keys twice: once for lse, once for the weights. Window, alignment, several sequences
 * and the full mask are one question, attn_sees. Normalisation of Q and K and the temperature are
 * done by window_plain_run before attend() sees anything.
 *
 * Interface: sliding_window_variant, sliding_window_abi_version.
 */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "attention/window/cpu/weights.h" /* window_index */
#include "attention/window/window_library.h"
#include "attn_options.h"
#include "attn_pairs.h"
#include "harness/io/philox.h"
#include "tensor.h"
#include "variant_so.h"

int sliding_window_abi_version = SLIDING_WINDOW_ABI_VERSION;

typedef struct Rows {
    float *Q_i, *K_j, *V_j, *O_i; /* [d] */
} Rows;

static float score(const AttnArgs *a, const Rows *t, int64_t b, int64_t h_kv, int64_t j)
{
    float sum = 0.0f;
    tensor_read_row(&a->K, b, j, h_kv, t->K_j);
    for (int64_t x = 0; x < a->shape.d; x++)
        sum += t->Q_i[x] * t->K_j[x];
    return attn_score(a, sum); /* scale, then cap */
}

/* First pass: m and l of the online softmax, one key at a time. */
static float lse_of_row(const AttnArgs *a, const Rows *t, int64_t b, int64_t h_kv, int64_t i)
{
    float m = -INFINITY, l = 0.0f;
    for (int64_t j = 0; j < a->shape.Nk; j++) {
        if (!attn_sees(a, i, j))
            continue;
        const float s = score(a, t, b, h_kv, j), m_new = s > m ? s : m;
        l = l * expf(m - m_new) + expf(s - m_new);
        m = m_new;
    }
    return l == 0.0f ? -INFINITY : m + logf(l); /* no key: not -inf + log(0), it is -inf too */
}

/* P -> clip -> dropout, in this order. The generator counts tokens within their sequence. */
static float weight(const AttnArgs *a, float P, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const AttnOptions *o = a->options;
    int64_t sequence;
    i = window_index(a->positions_q, i, &sequence);
    j = window_index(a->positions_k, j, &sequence); /* that of i, or it would not be seen */
    b += sequence;                                  /* one of the two is 0 */
    if (attn_clips(a)) {
        P = (o->clip_high - o->clip_low) * P + o->clip_low;
        P = P < 0.0f ? 0.0f : P > 1.0f ? 1.0f : P;
    }
    if (attn_drops(a))
        P = attn_keeps(o, attn_dropout_threshold(o->dropout), b, h, i, j) ? P / (1.0f - o->dropout)
                                                                          : 0.0f;
    return P;
}

static void attend_row(const AttnArgs *a, const Rows *t, int64_t b, int64_t h, int64_t i)
{
    const int64_t h_kv = h / (a->shape.H / a->shape.Hkv), d = a->shape.d;
    tensor_read_row(&a->Q, b, i, h, t->Q_i);
    memset(t->O_i, 0, (size_t)d * sizeof *t->O_i);
    const float lse = lse_of_row(a, t, b, h_kv, i);
    for (int64_t j = 0; j < a->shape.Nk; j++) {
        if (!attn_sees(a, i, j))
            continue; /* a hidden key has the weight 0, not clip(0) */
        const float w = weight(a, expf(score(a, t, b, h_kv, j) - lse), b, h, i, j);
        tensor_read_row(&a->V, b, j, h_kv, t->V_j);
        for (int64_t x = 0; x < d; x++)
            t->O_i[x] += w * t->V_j[x];
    }
    tensor_write_row(&a->O, b, i, h, t->O_i);
    a->lse[(b * a->shape.H + h) * a->shape.Nq + i] = lse;
}

static AttnStatus attend(const AttnArgs *a)
{
    const AttnShape *n = &a->shape;
    float *memory = workspace_alloc((size_t)(4 * n->d) * sizeof *memory);
    if (!memory)
        return ATTN_NO_MEMORY;
    const Rows rows = {memory, memory + n->d, memory + 2 * n->d, memory + 3 * n->d};
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t i = 0; i < n->Nq; i++)
                attend_row(a, &rows, b, h, i);
    workspace_free(memory);
    return ATTN_OK;
}

AttnStatus sliding_window_variant(const AttnArgs *args)
{
    return window_plain_run(args, attend);
}
