/* SPDX-License-Identifier: MIT
 *
 * traced.c: a right flash forward in tiles that shows its states. Tests exchange lines of it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "attn_pairs.h"
#include "attn_trace.h"
#include "flash_simple.h"

enum { BR = 16, BC = 8, MOST_D = 256 };

/* What is alike in both contracts: where rows come from, and who sees whom. */
typedef struct Head {
    const AttnArgs *args; /* NULL: flash_simple */
    const float *Q, *K, *V;
    int b, h, h_kv, d, Nq, Nk, causal;
} Head;

static void read_row(const Head *w, const Tensor *t, const float *from, int n, int h, float *row)
{
    if (w->args)
        tensor_read_row(t, w->b, n, h, row);
    else
        memcpy(row, from + n * w->d, sizeof *row * (size_t)w->d);
}

static float score(const Head *w, const float *q, const float *k)
{
    float qk = 0.0f;
    for (int x = 0; x < w->d; x++)
        qk += q[x] * k[x];
    return w->args ? attn_score(w->args, qk) : qk / sqrtf((float)w->d);
}

static int sees(const Head *w, int i, int j)
{
    return w->args ? attn_sees(w->args, i, j) : !w->causal || j <= i;
}

static void add_key(const Head *w, int seen, float s, const float *v, float *m, float *l, float *O)
{
    const float m_new = fmaxf(*m, s), alpha = *m == -INFINITY ? 0.0f : expf(*m - m_new);
    if (!seen)
        return;
    *l = alpha * *l + expf(s - m_new);
    for (int x = 0; x < w->d; x++)
        O[x] = alpha * O[x] + expf(s - m_new) * v[x];
    *m = m_new;
}

static void query_tile(const Head *w, int i, float *m, float *l, float *O)
{
    float q[MOST_D], k[MOST_D], v[MOST_D];
    const int rows = w->Nq - i * BR < BR ? w->Nq - i * BR : BR;
    for (int r = 0; r < rows; r++) {
        m[r] = -INFINITY;
        l[r] = 0.0f;
        memset(O + r * w->d, 0, sizeof *O * (size_t)w->d);
    }
    for (int j = 0; j * BC < w->Nk; j++) {
        for (int r = 0; r < rows; r++) {
            read_row(w, w->args ? &w->args->Q : NULL, w->Q, i * BR + r, w->h, q);
            for (int c = j * BC; c < j * BC + BC && c < w->Nk; c++) {
                read_row(w, w->args ? &w->args->K : NULL, w->K, c, w->h_kv, k);
                read_row(w, w->args ? &w->args->V : NULL, w->V, c, w->h_kv, v);
                add_key(w, sees(w, i * BR + r, c), score(w, q, k), v, &m[r], &l[r], O + r * w->d);
            }
        }
        attn_trace(i, j, m, l, O);
    }
    for (int r = 0; r < rows; r++)
        for (int x = 0; x < w->d && l[r] > 0.0f; x++)
            O[r * w->d + x] /= l[r];
}

int flash_simple_variant(const float *Q, const float *K, const float *V, float *O, float *lse,
                         int N, int d, int causal)
{
    const Head w = {NULL, Q, K, V, 0, 0, 0, d, N, N, causal};
    float m[BR], l[BR];
    attn_trace_begin(0, 0, BR, BC);
    for (int i = 0; i * BR < N; i++) {
        query_tile(&w, i, m, l, O + i * BR * d);
        for (int r = 0; r < BR && i * BR + r < N; r++)
            lse[i * BR + r] = m[r] + logf(l[r]);
    }
    return 0;
}

AttnStatus flash_forward_variant(const AttnArgs *a)
{
    const AttnShape *s = &a->shape;
#pragma omp parallel for
    for (int64_t n = 0; n < s->B * s->H; n++) {
        const int b = (int)(n / s->H), h = (int)(n % s->H), h_kv = (int)(h / (s->H / s->Hkv));
        const Head w = {a, 0, 0, 0, b, h, h_kv, (int)s->d, (int)s->Nq, (int)s->Nk, 0};
        float m[BR], l[BR], O[BR * MOST_D];
        attn_trace_begin(b, h, BR, BC);
        for (int i = 0; i * BR < s->Nq; i++) {
            query_tile(&w, i, m, l, O);
            for (int r = 0; r < BR && i * BR + r < s->Nq; r++) {
                tensor_write_row(&a->O, b, i * BR + r, h, O + r * s->d);
                a->lse[n * s->Nq + i * BR + r] = l[r] > 0.0f ? m[r] + logf(l[r]) : -INFINITY;
            }
        }
    }
    return ATTN_OK;
}
