/* SPDX-License-Identifier: MIT
 *
 * large_case.h: tensors of more than 2^31 elements on the device, and what of them a host can look
 * at: some rows of each, downloaded into a small case. Two problems for the tests of both passes:
 *
 *     many queries   Q [1][524388][32][128], 65 keys: rows on both sides of element 2^30, of 2^31,
 *                    at the ends and at random
 *     many keys      K and V of that size, heads outermost; queries at positions all along the
 *                    keys, each with a window, so that every key that counts is known
 *
 * Interface:
 * - TOKENS x HEADS x 128 channels pass 2^31. Large: the arguments; large_new fills Q, K and V.
 * - large_tensor, large_bytes, large_positions, large_free. fetch_rows: rows to the host.
 * - Sample, sample_add, sample_tokens: which rows. large_places: queries far apart, and their keys.
 * - large_small_case: sampled queries and keys with their positions, for the oracle.
 * - large_main: runs what it is given on both problems, in f16 and f32. Exit status: 0 right, 1
 *   wrong, 77 no device, or less than so many GiB on it.
 */
#ifndef LARGE_CASE_H
#define LARGE_CASE_H

#include <cuda_runtime_api.h>
#include <math.h>

#include "../unit/key_blocks.h"

#include "harness/device/device.h"
#include "harness/io/fill.h"

#define TOKENS INT64_C(524388) /* x 32 heads x 128 channels = 2^31 + 2^18.6 */
#define HEADS  INT64_C(32)

typedef struct Large {
    AttnArgs args;             /* device pointers */
    AttnSegment segments[16];  /* of the queries, on the host */
    AttnSegment keys;          /* the one of the keys, likewise */
    AttnSegment *segments_dev; /* of the keys, then of the queries */
} Large;

static inline Tensor large_tensor(AttnDtype dtype, int64_t N, int64_t H, int64_t d,
                                  int heads_outside)
{
    Tensor t = {.dtype = dtype, .shape = {1, N, H, d}, .stride = {N * H * d, H * d, d, 1}};
    if (heads_outside)
        t.stride[1] = d, t.stride[2] = N * d;
    t.data = device_alloc((size_t)(N * H * d) * dtype_size(dtype));
    assert_non_null(t.data);
    return t;
}

static inline size_t large_bytes(const Tensor *t)
{
    return (size_t)tensor_count(t) * dtype_size(t->dtype);
}

static inline void large_new(Large *g, AttnDtype dtype, int64_t Nq, int64_t Nk, int heads_outside)
{
    AttnArgs *a = &g->args;
    memset(g, 0, sizeof *g);
    a->shape = (AttnShape){1, HEADS, HEADS, Nq, Nk, 128};
    a->scale = 1 / sqrtf(128.0f);
    a->rule = (AttnRule){-1, -1};
    a->Q = large_tensor(dtype, Nq, HEADS, 128, 0);
    a->K = large_tensor(dtype, Nk, HEADS, 128, heads_outside);
    a->V = large_tensor(dtype, Nk, HEADS, 128, heads_outside);
    a->O = large_tensor(dtype, Nq, HEADS, 128, 0);
    a->lse = device_alloc((size_t)(HEADS * Nq) * sizeof(float));
    g->segments_dev = device_alloc(17 * sizeof *g->segments_dev);
    assert_true(a->lse && g->segments_dev);
    assert_int_equal(ATTN_OK, fill_tensor_device(&a->Q, FILL_Q, 3, FILL_NORMAL, NULL));
    assert_int_equal(ATTN_OK, fill_tensor_device(&a->K, FILL_K, 3, FILL_NORMAL, NULL));
    assert_int_equal(ATTN_OK, fill_tensor_device(&a->V, FILL_V, 3, FILL_NORMAL, NULL));
}

static inline void large_positions(Large *g, int64_t count)
{
    const AttnSegment keys = {0, g->args.shape.Nk, 0, 0, 1};
    assert_int_equal(0, device_upload(g->segments_dev, &keys, sizeof keys));
    assert_int_equal(0,
                     device_upload(g->segments_dev + 1, g->segments, sizeof keys * (size_t)count));
    g->keys = keys;
    g->args.positions_k = (AttnPositions){g->segments_dev, 1, &g->keys};
    g->args.positions_q = (AttnPositions){g->segments_dev + 1, count, g->segments};
}

static inline void large_free(Large *g)
{
    device_free(g->args.Q.data);
    device_free(g->args.K.data);
    device_free(g->args.V.data);
    device_free(g->args.O.data);
    device_free(g->args.lse);
    device_free(g->segments_dev);
}

/* Rows first .. first+count-1 of all heads of a large tensor become rows at .. of a host tensor. */
static inline void fetch_rows(const Tensor *large, int64_t first, const Tensor *host, int64_t at,
                              int64_t count)
{
    const size_t size = dtype_size(large->dtype), row = (size_t)large->shape[3] * size;
    for (int64_t h = 0; h < large->shape[2]; h++)
        assert_int_equal(
            cudaSuccess,
            cudaMemcpy2D(
                (char *)host->data + tensor_offset(host, 0, at, h) * (int64_t)size,
                (size_t)host->stride[1] * size,
                (const char *)large->data + tensor_offset(large, 0, first, h) * (int64_t)size,
                (size_t)large->stride[1] * size, row, (size_t)count, cudaMemcpyDeviceToHost));
}

/* Runs of rows or keys that the oracle looks at. */
typedef struct Sample {
    int64_t first[80], length[80];
    int64_t runs, count; /* runs; rows in all of them */
} Sample;

static inline void sample_add(Sample *s, int64_t first, int64_t length, int64_t N)
{
    const int64_t end = first + length < N ? first + length : N;
    const int64_t last =
        s->runs ? s->first[s->runs - 1] + s->length[s->runs - 1] : 0; /* runs ascend */
    first = first > last ? first : last;
    if (first >= end)
        return;
    assert_true(s->runs < 80);
    s->first[s->runs] = first;
    s->length[s->runs++] = end - first;
    s->count += end - first;
}

/* Of [1][TOKENS][HEADS][128]: both ends, both sides of elements 2^30 and 2^31, and between. */
static inline void sample_tokens(Sample *s)
{
    const int64_t border = (INT64_C(1) << 31) / (HEADS * 128);
    sample_add(s, 0, 4, TOKENS);
    for (int64_t n = 0; n < 20; n++)
        sample_add(s, n * border / 40 + case_random() % 10000, 1, TOKENS);
    sample_add(s, border / 2 - 2, 4, TOKENS);
    for (int64_t n = 20; n < 38; n++)
        sample_add(s, border / 2 + 2 + (n - 20) * border / 40 + case_random() % 10000, 1, TOKENS);
    sample_add(s, border - 3, 6, TOKENS);
    sample_add(s, TOKENS - 4, 4, TOKENS);
}

/* Seven times 32 queries along TOKENS keys, and the keys that they see 40 to the left and 24 to the
 * right. Heads outside: head 31 passes element 2^31 at its token 521188, head 15 passes 2^30 at
 * 522788. */
static inline void large_places(Large *g, Sample *keys)
{
    const int64_t places[] = {0,           TOKENS / 4,  TOKENS / 2 - 16, TOKENS * 3 / 4,
                              521188 - 16, 522788 - 16, TOKENS - 32};
    for (int64_t n = 0; n < 7; n++) {
        const int64_t from = places[n] > 40 ? places[n] - 40 : 0;
        g->segments[n] = (AttnSegment){n * 32, 32, 0, places[n], 1};
        sample_add(keys, from, places[n] + 32 + 24 - from, TOKENS);
    }
}

/* The small case: sampled queries, sampled keys, their positions. */
static inline Case *large_small_case(const Large *g, const Sample *queries, const Sample *keys)
{
    const AttnArgs *a = &g->args;
    const AttnShape shape = {1, HEADS, HEADS, queries->count, keys->count, 128};
    Case *c = case_new(shape, a->Q.dtype, LAYOUT_BSHD, 1);
    c->args.rule = a->rule;
    c->args.positions_k.count = keys->runs;
    assert_true(keys->runs <= 16);
    for (int64_t r = 0, at = 0; r < keys->runs; at += keys->length[r++]) {
        c->segments_k[r] = (AttnSegment){at, keys->length[r], 0, keys->first[r], 1};
        fetch_rows(&a->K, keys->first[r], &c->args.K, at, keys->length[r]);
        fetch_rows(&a->V, keys->first[r], &c->args.V, at, keys->length[r]);
    }
    for (int64_t r = 0, at = 0; r < queries->runs; at += queries->length[r++])
        fetch_rows(&a->Q, queries->first[r], &c->args.Q, at, queries->length[r]);
    if (a->rule.left >= 0) { /* the queries are all there, in their segments */
        c->args.positions_q.count = a->positions_q.count;
        memcpy(c->segments_q, g->segments, sizeof(AttnSegment) * (size_t)a->positions_q.count);
    }
    return c;
}

/* --- the two problems --------------------------------------------------------------------------*/

typedef void (*LargeRun)(Large *g, const Sample *queries, const Sample *keys);

static LargeRun large_run; /* what is under test */

static inline void many_queries(AttnDtype dtype)
{
    Sample queries = {.runs = 0}, keys = {.runs = 0};
    Large g;
    large_new(&g, dtype, TOKENS, 65, 0);
    g.segments[0] = (AttnSegment){0, TOKENS, 0, 0, 1};
    large_positions(&g, 1);
    sample_tokens(&queries);
    sample_add(&keys, 0, 65, 65);
    large_run(&g, &queries, &keys);
    large_free(&g);
}

static inline void many_keys(AttnDtype dtype)
{
    Sample queries = {.runs = 0}, keys = {.runs = 0};
    Large g;
    large_new(&g, dtype, 7 * 32, TOKENS, 1);
    g.args.rule = (AttnRule){40, 24};
    large_places(&g, &keys);
    large_positions(&g, 7);
    sample_add(&queries, 0, 7 * 32, 7 * 32);
    large_run(&g, &queries, &keys);
    large_free(&g);
}

TEST(test_many_queries_f16)
{
    many_queries(ATTN_F16);
}

TEST(test_many_keys_f16)
{
    many_keys(ATTN_F16);
}

TEST(test_many_queries_f32)
{
    many_queries(ATTN_F32);
}

TEST(test_many_keys_f32)
{
    many_keys(ATTN_F32);
}

static inline int large_main(LargeRun run, int gib)
{
    size_t available = 0, all = 0;
    if (device_count() == 0) {
        printf("no CUDA device\n");
        return 77;
    }
    if (cudaMemGetInfo(&available, &all) != cudaSuccess || available >> 30 < (size_t)gib) {
        printf("less than %d GiB of device memory are free\n", gib);
        return 77;
    }
    large_run = run;
    return unit_tests();
}

#endif
