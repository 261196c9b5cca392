/* SPDX-License-Identifier: MIT
 *
 * gradient_blocks.h: a backward pass in blocks of keys or of queries, for the tests of kernels that
 * add to gradients.
 *
 * Interface:
 * - sums_new, sums_free: float32 gradients, zeros. query_floats, key_floats: how many.
 * - run_forward: O and lse by stage 03, and delta.
 * - add_keys, add_queries: what some keys with all queries give, or some queries with all keys.
 * - expect_a_call_adds, expect_nothing_added: what every block kernel has to do.
 */
#ifndef GRADIENT_BLOCKS_H
#define GRADIENT_BLOCKS_H

#include <math.h>

#include "attention/backward/backward_library.h"
#include "attention/forward/flash_library.h"
#include "attn_pairs.h"
#include "key_blocks.h"

static inline float *floats_new(int64_t count)
{
    float *p = malloc(sizeof *p * (size_t)count);
    assert_non_null(p);
    return p;
}

static inline int64_t query_floats(const AttnShape *n)
{
    return n->B * n->Nq * n->H * n->d;
}

static inline int64_t key_floats(const AttnShape *n)
{
    return n->B * n->Nk * n->Hkv * n->d;
}

/* Zeros. */
static inline FlashSums sums_new(const AttnShape *n)
{
    const FlashSums sums = {floats_new(query_floats(n)), floats_new(key_floats(n)),
                            floats_new(key_floats(n))};
    flash_sums_start(n, sums);
    return sums;
}

static inline void sums_free(FlashSums sums)
{
    free(sums.dQ);
    free(sums.dK);
    free(sums.dV);
}

/* O and lse by stage 03, and delta. */
static inline float *run_forward(const Case *c)
{
    float *delta = floats_new(c->args.shape.B * c->args.shape.H * c->args.shape.Nq);
    assert_int_equal(ATTN_OK, flash_forward_library_cpu(&c->args));
    flash_backward_delta(&c->args, delta);
    return delta;
}

/* Rows first .. of whole [B][N][row] += part [B][count][row] */
static inline void scatter(float *whole, const float *part, int64_t B, int64_t N, int64_t first,
                           int64_t count, int64_t row)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t e = 0; e < count * row; e++)
            whole[(b * N + first) * row + e] += part[b * count * row + e];
}

static inline void add_keys(const Case *c, FlashBlockFn function, const float *delta, int64_t first,
                            int64_t count, FlashSums sums)
{
    const AttnShape *n = &c->args.shape;
    KeyBlock block;
    key_block_cut(&block, c, first, count);
    FlashSums part = sums_new(&block.args.shape);
    free(part.dQ);
    part.dQ = sums.dQ; /* of all queries: every block adds to it */
    assert_int_equal(ATTN_OK, function(&block.args, delta, part));
    scatter(sums.dK, part.dK, n->B, n->Nk, first, count, n->Hkv * n->d);
    scatter(sums.dV, part.dV, n->B, n->Nk, first, count, n->Hkv * n->d);
    free(part.dK);
    free(part.dV);
    key_block_free(&block);
}

/* Some queries with all keys: the other side that may travel in a ring. */
static inline void add_queries(const Case *c, FlashBlockFn function, const float *delta,
                               int64_t first, int64_t count, FlashSums sums)
{
    const AttnShape *n = &c->args.shape;
    AttnArgs part = c->args;
    AttnSegment segments[16];
    float *numbers = floats_new(2 * n->B * n->H * count), *part_delta;
    FlashSums part_sums = sums;
    part.shape.Nq = part.Q.shape[1] = part.dO.shape[1] = count;
    part.Q.data = (char *)part.Q.data + dtype_size(part.Q.dtype) * first * part.Q.stride[1];
    part.dO.data = (char *)part.dO.data + dtype_size(part.dO.dtype) * first * part.dO.stride[1];
    part.O.data = NULL;
    part.mask = part.mask ? part.mask + first * n->Nk : NULL;
    part.lse = numbers;
    part_delta = numbers + n->B * n->H * count;
    for (int64_t bh = 0; bh < n->B * n->H; bh++)
        for (int64_t i = 0; i < count; i++) {
            part.lse[bh * count + i] = c->args.lse[bh * n->Nq + first + i];
            part_delta[bh * count + i] = delta[bh * n->Nq + first + i];
        }
    part.positions_q = positions_cut(c->args.positions_q, first, count, segments);
    part_sums.dQ = floats_new(query_floats(&part.shape));
    memset(part_sums.dQ, 0, sizeof(float) * (size_t)query_floats(&part.shape));
    assert_int_equal(ATTN_OK, function(&part, part_delta, part_sums));
    scatter(sums.dQ, part_sums.dQ, n->B, n->Nq, first, count, n->H * n->d);
    free(part_sums.dQ);
    free(numbers);
}

/* The same keys twice: twice the gradients. */
static inline void expect_a_call_adds(FlashBlockFn function, AttnDtype dtype, int64_t Nk,
                                      float tolerance)
{
    Case *c = case_new((AttnShape){2, 4, 2, 70, Nk, 24}, dtype, LAYOUT_BSHD, 1);
    const AttnShape *n = &c->args.shape;
    const FlashSums once = sums_new(n), twice = sums_new(n);
    float *delta = run_forward(c);
    assert_int_equal(ATTN_OK, function(&c->args, delta, once));
    for (int round = 0; round < 2; round++)
        assert_int_equal(ATTN_OK, function(&c->args, delta, twice));
    for (int64_t e = 0; e < query_floats(n); e++)
        assert_true(fabsf(twice.dQ[e] - 2 * once.dQ[e]) <= tolerance);
    for (int64_t e = 0; e < key_floats(n); e++) /* one addend a call: doubling is exact */
        assert_true(twice.dK[e] == 2 * once.dK[e] && twice.dV[e] == 2 * once.dV[e]);
    sums_free(once);
    sums_free(twice);
    free(delta);
    case_free(c);
}

/* Keys of another sequence, or behind the mask: the sums stay exactly, and rows that see no key at
 * all are no NaN. */
static inline void expect_nothing_added(FlashBlockFn function, AttnDtype dtype, int masked)
{
    Case *c = case_new((AttnShape){1, 2, 1, 70, 210, 20}, dtype, LAYOUT_BSHD, 1);
    const AttnShape *n = &c->args.shape;
    const FlashSums sums = sums_new(n);
    if (masked) {
        case_mask(c);
        memset(c->mask, 1, 70 * 210);
    } else {
        c->segments_k[0].sequence = 7;
    }
    float *delta = run_forward(c);
    assert_int_equal(ATTN_OK, function(&c->args, delta, sums));
    for (int64_t e = 0; e < query_floats(n); e++)
        assert_true(sums.dQ[e] == 0.0f);
    for (int64_t e = 0; e < key_floats(n); e++)
        assert_true(sums.dK[e] == 0.0f && sums.dV[e] == 0.0f);
    sums_free(sums);
    free(delta);
    case_free(c);
}

#endif
