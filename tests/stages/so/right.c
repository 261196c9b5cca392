/* SPDX-License-Identifier: MIT
 *
 * right.c: what a student hands in for --variant-so, done right, with OpenMP threads: those of the
 * checking program do not exist in its child, so this also proves that new ones can be started.
 *
 * Compile with -DSTAGE=naive (or another stage), -fPIC -shared and common/ as include folder; the
 * functions of common/ are those of the program that loads it.
 */
#include <math.h>

#include "abi.h"
#include "alloc.h"
#include "attn_pairs.h"
#include "tensor.h"

#define JOIN2(a, b) a##_##b
#define JOIN(a, b)  JOIN2(a, b)
#define EXPORT(x)   JOIN(STAGE, x)

int EXPORT(abi_version) = ABI_OF(STAGE);

/* p [Nk] = probabilities of query i of head h, or zeros; returns lse */
static float probabilities(const AttnArgs *a, int64_t b, int64_t h, int64_t i, const float *q,
                           float *k, float *p)
{
    const AttnShape *s = &a->shape;
    float m = -INFINITY, sum = 0.0f;
    int64_t j, x;
    for (j = 0; j < s->Nk; j++) {
        float dot = 0.0f;
        tensor_read_row(&a->K, b, j, h / (s->H / s->Hkv), k);
        for (x = 0; x < s->d; x++)
            dot += q[x] * k[x];
        p[j] = attn_sees(a, i, j) ? attn_score(a, dot) : -INFINITY;
        m = p[j] > m ? p[j] : m;
    }
    for (j = 0; j < s->Nk; j++) {
        p[j] = m == -INFINITY ? 0.0f : expf(p[j] - m);
        sum += p[j];
    }
    for (j = 0; j < s->Nk && sum > 0.0f; j++)
        p[j] /= sum;
    return sum > 0.0f ? m + logf(sum) : -INFINITY;
}

AttnStatus EXPORT(variant)(const AttnArgs *a)
{
    const AttnShape *s = &a->shape;
    int64_t bh;
#pragma omp parallel for num_threads(a->threads)
    for (bh = 0; bh < s->B * s->H; bh++) {
        float *q = workspace_alloc((size_t)(3 * s->d + s->Nk) * sizeof *q);
        float *k = q + s->d, *o = k + s->d, *p = o + s->d;
        const int64_t b = bh / s->H, h = bh % s->H;
        int64_t i, j, x;
        for (i = 0; i < s->Nq; i++) {
            tensor_read_row(&a->Q, b, i, h, q);
            a->lse[bh * s->Nq + i] = probabilities(a, b, h, i, q, k, p);
            for (x = 0; x < s->d; x++)
                o[x] = 0.0f;
            for (j = 0; j < s->Nk; j++) {
                tensor_read_row(&a->V, b, j, h / (s->H / s->Hkv), k);
                for (x = 0; x < s->d; x++)
                    o[x] += p[j] * k[x];
            }
            tensor_write_row(&a->O, b, i, h, o);
        }
        workspace_free(q);
    }
    return ATTN_OK;
}
