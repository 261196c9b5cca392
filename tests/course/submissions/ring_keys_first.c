/* SPDX-License-Identifier: MIT
 *
 * ring_keys_first.c: right numbers, and no ring method: all keys go round the ring and stay, then
 * all values do. A rank holds half of the whole sequence. --require blocks finds it.
 *
 * Interface: ring_method_variant (docs/course/include/ring_method.h).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ring_method.h"

/* K or V of all ranks, one after the other: [world][most][Hkv][d]. */
static void collect(const RingPart *p, const float *own, float *all, size_t block, size_t row)
{
    const int left = (p->rank + p->world - 1) % p->world, right = (p->rank + 1) % p->world;
    memcpy(all + block * (size_t)p->rank, own, sizeof(float) * row * (size_t)p->tokens[p->rank]);
    for (int step = 1; step < p->world; step++) {
        const int here = (p->rank - step + 1 + p->world) % p->world;
        const int next = (p->rank - step + p->world) % p->world;
        p->send(p, right, all + block * (size_t)here,
                sizeof(float) * row * (size_t)p->tokens[here]);
        p->receive(p, left, all + block * (size_t)next,
                   sizeof(float) * row * (size_t)p->tokens[next]);
    }
}

static int sees(const RingPart *p, int i, int owner, int j)
{
    const int ahead = p->position[owner][j] - p->position[p->rank][i];
    return (p->left < 0 || ahead >= -p->left) && (p->right < 0 || ahead <= p->right);
}

/* All scores of one query, and their lse. */
static float scores(const RingPart *p, int i, int h, const float *K, size_t block, float *s)
{
    const size_t row = (size_t)(p->Hkv * p->d);
    const float *q = p->Q + ((size_t)i * (size_t)p->H + (size_t)h) * (size_t)p->d;
    double sum = 0.0;
    float most = -INFINITY;
    size_t at = 0;
    for (int r = 0; r < p->world; r++)
        for (int j = 0; j < p->tokens[r]; j++, at++) {
            const float *k = K + block * (size_t)r + row * (size_t)j + h / (p->H / p->Hkv) * p->d;
            double dot = 0.0;
            for (int x = 0; x < p->d; x++)
                dot += (double)q[x] * k[x];
            s[at] = sees(p, i, r, j) ? (float)dot * p->scale : -INFINITY;
            most = fmaxf(most, s[at]);
        }
    for (size_t j = 0; j < at && most > -INFINITY; j++)
        sum += exp((double)s[j] - most);
    return most > -INFINITY ? most + (float)log(sum) : -INFINITY;
}

static void weigh(const RingPart *p, int i, int h, const float *V, size_t block, const float *s)
{
    const size_t row = (size_t)(p->Hkv * p->d);
    const float lse = p->lse[h * p->tokens[p->rank] + i];
    float *o = p->O + ((size_t)i * (size_t)p->H + (size_t)h) * (size_t)p->d;
    memset(o, 0, sizeof(float) * (size_t)p->d);
    for (int r = 0; r < p->world; r++)
        for (int j = 0; j < p->tokens[r]; j++, s++) {
            const float *v = V + block * (size_t)r + row * (size_t)j + h / (p->H / p->Hkv) * p->d;
            for (int x = 0; x<p->d && * s> - INFINITY; x++)
                o[x] += expf(*s - lse) * v[x];
        }
}

int ring_method_variant(const RingPart *p)
{
    const size_t row = (size_t)(p->Hkv * p->d);
    const int n = p->tokens[p->rank];
    size_t most = 0, N = 0;
    float *all, *s;
    for (int r = 0; r < p->world; r++) {
        N += (size_t)p->tokens[r];
        most = (size_t)p->tokens[r] > most ? (size_t)p->tokens[r] : most;
    }
    all = malloc(sizeof(float) * (size_t)p->world * most * row);
    s = malloc(sizeof(float) * (size_t)(n * p->H + 1) * N);
    if (!all || !s)
        return 1;
    collect(p, p->K, all, most * row, row);
    for (int h = 0; h < p->H; h++)
        for (int i = 0; i < n; i++)
            p->lse[h * n + i] = scores(p, i, h, all, most * row, s + (size_t)(h * n + i) * N);
    collect(p, p->V, all, most * row, row);
    for (int h = 0; h < p->H; h++)
        for (int i = 0; i < n; i++)
            weigh(p, i, h, all, most * row, s + (size_t)(h * n + i) * N);
    free(all);
    free(s);
    return 0;
}
