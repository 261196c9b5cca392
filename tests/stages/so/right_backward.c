/* SPDX-License-Identifier: MIT
 *
 * right_backward.c: right.c for a stage whose variants are backward passes: O and lse are there,
 * dQ, dK and dV are wanted. One thread takes a kv head with the query heads of its group, so nobody
 * shares a sum. -DWRITES_O: it also changes an O that is none of its business.
 *
 * Compile with -DSTAGE=flash_backward, -fPIC -shared and common/ as include folder.
 */
#include <math.h>
#include <string.h>

#include "abi.h"
#include "alloc.h"
#include "attn_pairs.h"
#include "tensor.h"

#define JOIN2(a, b) a##_##b
#define JOIN(a, b)  JOIN2(a, b)
#define EXPORT(x)   JOIN(STAGE, x)

int EXPORT(abi_version) = ABI_OF(STAGE);

static float dot(const float *a, const float *b, int64_t d)
{
    float sum = 0.0f;
    int64_t x;
    for (x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

static void add(float *to, float weight, const float *row, int64_t d)
{
    int64_t x;
    for (x = 0; x < d; x++)
        to[x] += weight * row[x];
}

/* Query i of head h. rows: room for Q_i, O_i, dO_i, dQ_i, K_j, V_j. Adds to dK and dV [Nk][d]. */
static void query(const AttnArgs *a, int64_t b, int64_t h, int64_t i, float *rows, float *dK,
                  float *dV)
{
    const AttnShape *s = &a->shape;
    const int64_t d = s->d, h_kv = h / (s->H / s->Hkv);
    float *Q = rows, *O = Q + d, *dO = O + d, *dQ = dO + d, *K = dQ + d, *V = K + d;
    const float lse = a->lse[(b * s->H + h) * s->Nq + i];
    float delta;
    int64_t j;
    tensor_read_row(&a->Q, b, i, h, Q);
    tensor_read_row(&a->O, b, i, h, O);
    tensor_read_row(&a->dO, b, i, h, dO);
    delta = dot(dO, O, d);
    memset(dQ, 0, (size_t)d * sizeof *dQ);
    for (j = 0; j < s->Nk; j++) {
        float S, P, dS;
        if (!attn_sees(a, i, j))
            continue;
        tensor_read_row(&a->K, b, j, h_kv, K);
        tensor_read_row(&a->V, b, j, h_kv, V);
        S = attn_score(a, dot(Q, K, d));
        P = expf(S - lse);
        dS = P * (dot(dO, V, d) - delta);
        if (a->softcap > 0.0f)
            dS *= 1.0f - (S / a->softcap) * (S / a->softcap);
        add(dQ, a->scale * dS, K, d);
        add(dK + j * d, a->scale * dS, Q, d);
        add(dV + j * d, P, dO, d);
    }
    tensor_write_row(&a->dQ, b, i, h, dQ);
}

AttnStatus EXPORT(variant)(const AttnArgs *a)
{
    const AttnShape *s = &a->shape;
    const int64_t group = s->H / s->Hkv;
    int64_t head;
#pragma omp parallel for num_threads(a->threads)
    for (head = 0; head < s->B * s->Hkv; head++) {
        const size_t bytes = (size_t)((6 + 2 * s->Nk) * s->d) * sizeof(float);
        float *rows = workspace_alloc(bytes);
        float *dK = rows + 6 * s->d, *dV = dK + s->Nk * s->d;
        const int64_t b = head / s->Hkv, h_kv = head % s->Hkv;
        int64_t h, i, j;
        memset(rows, 0, bytes);
        for (h = h_kv * group; h < (h_kv + 1) * group; h++)
            for (i = 0; i < s->Nq; i++)
                query(a, b, h, i, rows, dK, dV);
        for (j = 0; j < s->Nk; j++) {
            tensor_write_row(&a->dK, b, j, h_kv, dK + j * s->d);
            tensor_write_row(&a->dV, b, j, h_kv, dV + j * s->d);
        }
        workspace_free(rows);
    }
#ifdef WRITES_O
    tensor_set(&a->O, 0, 1.0f + tensor_get(&a->O, 0));
#endif
    return ATTN_OK;
}
