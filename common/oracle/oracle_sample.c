/* SPDX-License-Identifier: MIT
 *
 * oracle_sample.c: which rows, keys and heads of a big case are looked at.
 *
 * Sampling keeps the check of a big timed run affordable. The shape says some of the rows (ends,
 * tile edges); a hash of the data and of a seed says 64 more. Each run has another seed, so a later
 * run finds what is wrong in a row that this one did not check. Reports name the seed;
 * ATTN_SAMPLE_SEED=<it> looks at the same rows again.
 *
 * Interface: oracle.h (oracle_sample_find), oracle_core.h (oracle_sample_choose,
 * oracle_sample_seed).
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/fill.h"
#include "oracle/oracle_core.h"
#include "tensor.h"

#define SAMPLE_RANDOM 64

/* One step of the generator of the random inputs. */
static uint64_t next_hash(uint64_t x)
{
    return fill_mix(x + FILL_STEP);
}

uint64_t oracle_sample_seed(void)
{
    static uint64_t seed;
    const char *given = getenv("ATTN_SAMPLE_SEED");
    struct timespec now;
    if (given)
        return strtoull(given, NULL, 10);
    while (!seed) { /* once in a process */
        clock_gettime(CLOCK_REALTIME, &now);
        seed = next_hash((uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 30) >> 32;
    }
    return seed;
}

/* From the first row of Q of every head. */
static uint64_t data_hash(const AttnArgs *a, uint64_t seed)
{
    uint64_t hash = next_hash(seed);
    for (int64_t h = 0; h < a->shape.H; h++)
        for (int64_t x = 0; x < a->shape.d; x++) {
            const float value = tensor_get(&a->Q, tensor_offset(&a->Q, 0, 0, h) + x);
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            hash = next_hash(hash ^ bits);
        }
    return hash;
}

static int compare_index(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int sample_all(OracleSample *s, int64_t N)
{
    s->count = N;
    s->index = malloc(sizeof *s->index * (size_t)N);
    for (int64_t i = 0; s->index && i < N; i++)
        s->index[i] = i;
    return s->index ? 0 : -1;
}

/* Ends, the edges of the first tiles, of a middle one and of the last, and random indexes. */
static int sample_some(OracleSample *s, int64_t N, uint64_t hash)
{
    const int64_t edges[] = {0, 64, 128, 256, N / 2 / 64 * 64, (N - 1) / 64 * 64, N};
    const int edge_count = (int)(sizeof edges / sizeof *edges);
    int64_t kept = 0;
    s->count = 0;
    s->index = malloc(sizeof *s->index * (size_t)(3 * edge_count + SAMPLE_RANDOM));
    if (!s->index)
        return -1;
    for (int e = 0; e < edge_count; e++)
        for (int64_t i = edges[e] - 1; i <= edges[e] + 1; i++)
            if (i >= 0 && i < N)
                s->index[s->count++] = i;
    for (uint64_t r = 0; r < SAMPLE_RANDOM; r++)
        s->index[s->count++] = (int64_t)(next_hash(hash + r) % (uint64_t)N);
    qsort(s->index, (size_t)s->count, sizeof *s->index, compare_index);
    for (int64_t t = 0; t < s->count; t++)
        if (t == 0 || s->index[t] != s->index[t - 1])
            s->index[kept++] = s->index[t];
    s->count = kept;
    return 0;
}

/* Which groups get dK and dV: evenly spread, the first place from the hash. */
static int sample_groups(OracleSample *s, int64_t groups, int64_t count, uint64_t hash)
{
    count = count < 1 ? 1 : count > groups ? groups : count;
    if (sample_all(s, groups) != 0)
        return -1;
    for (int64_t t = 0; t < count; t++)
        s->index[t] = (t * groups + (int64_t)(hash % (uint64_t)groups)) / count % groups;
    s->count = count;
    qsort(s->index, (size_t)count, sizeof *s->index, compare_index);
    return 0;
}

int64_t oracle_sample_find(const OracleSample *s, int64_t index)
{
    const int64_t *at = bsearch(&index, s->index, (size_t)s->count, sizeof index, compare_index);
    return at ? at - s->index : -1;
}

/* Pair-channels that are visible, from 64 rows evenly spread: of one kv head and its queries. */
static double group_work(const OraclePlan *p)
{
    const AttnShape *s = &p->args->shape;
    const int64_t rows = s->Nq < 64 ? s->Nq : 64;
    int64_t seen = 0;
    for (int64_t t = 0; t < rows; t++)
        seen += oracle_seen(p, 1, t * (s->Nq - 1) / (rows > 1 ? rows - 1 : 1), NULL);
    return (double)(s->H / s->Hkv) * (double)seen / (double)rows * (double)s->Nq * (double)s->d;
}

int oracle_sample_choose(Oracle *o, const OraclePlan *p, int backward, const OracleLimits *limits)
{
    const AttnShape *s = &o->shape;
    const int64_t groups = s->B * s->Hkv;
    double work, budget = limits->groups;
    uint64_t hash;
    if (o->whole)
        return sample_all(&o->rows, s->Nq) ||
               (backward && (sample_all(&o->keys, s->Nk) || sample_all(&o->kv_heads, groups)));
    o->seed = oracle_sample_seed();
    hash = data_hash(p->args, o->seed);
    work = group_work(p);
    o->streamed = limits->given > 0 && work > limits->groups && !p->options;
    o->given = o->streamed && backward;
    if (sample_some(&o->rows, s->Nq, hash) != 0)
        return -1;
    if (!backward)
        return 0;
    if (sample_some(&o->keys, s->Nk, next_hash(hash)) != 0)
        return -1;
    if (o->given) { /* of a group only the sampled keys */
        work *= (double)o->keys.count / (double)s->Nk;
        budget = limits->given;
    }
    return sample_groups(&o->kv_heads, groups, (int64_t)(budget / (work + 1)), hash);
}
