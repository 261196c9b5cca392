/* SPDX-License-Identifier: MIT
 *
 * oracle_case.h: small problems for the tests of oracle, checker and model, made without any of the
 * code that inputs.c or fill.c would bring in.
 *
 * Interface:
 * - case_new / case_free: guarded tensors of a shape, filled with multiples of 2^-8 (so that a step
 *   of 2^-10 in a finite difference is exact in float32), masks and position maps.
 * - case_random, case_normal: the generator. case_get, case_set: an element of a tensor.
 * - options, OPTION_COUNT, case_option: a list of options that every test walks through.
 * - oracle_of: the oracle of a case. pairs_seen: visible pairs, by asking each.
 */
#ifndef ORACLE_CASE_H
#define ORACLE_CASE_H

#include <math.h>

#include "unit.h"

#include "attn.h"
#include "attn_pairs.h"
#include "dtype_f64.h"
#include "harness/cli/cli.h"
#include "harness/oracle/oracle.h"
#include "tensor.h"

typedef struct Case {
    AttnArgs args;
    Storage Q, K, V, O, dO, dQ, dK, dV;
    float *lse;
    uint8_t *mask;
    AttnSegment segments_q[16], segments_k[16];
} Case;

static uint64_t case_state = 1;

static inline uint32_t case_random(void)
{
    case_state = case_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(case_state >> 33);
}

/* About normal, a multiple of 2^-8, magnitude below 4. */
static inline float case_normal(void)
{
    int sum = 0;
    for (int n = 0; n < 8; n++)
        sum += (int)(case_random() % 257) - 128;
    return (float)sum / 256;
}

static inline void case_fill(const Tensor *t, float by)
{
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t n = 0; n < t->shape[1]; n++)
            for (int64_t h = 0; h < t->shape[2]; h++)
                for (int64_t x = 0; x < t->shape[3]; x++)
                    tensor_set(t, tensor_offset(t, b, n, h) + x, by * case_normal());
}

/* One segment each: mask type 2 or 3 decides where the queries stand. */
static inline void case_align(Case *c, AttnMask type)
{
    const AttnShape *s = &c->args.shape;
    c->segments_q[0] =
        (AttnSegment){0, s->Nq, 0, type == ATTN_MASK_CAUSAL_UPPER_LEFT ? 0 : s->Nk - s->Nq, 1};
    c->segments_k[0] = (AttnSegment){0, s->Nk, 0, 0, 1};
    c->args.positions_q = attn_positions(c->segments_q, 1);
    c->args.positions_k = attn_positions(c->segments_k, 1);
    if (type == ATTN_MASK_CAUSAL_UPPER_LEFT || type == ATTN_MASK_CAUSAL_LOWER_RIGHT)
        c->args.rule.right = 0;
}

/* Every third pair hidden, and every fifth row empty. */
static inline void case_mask(Case *c)
{
    const AttnShape *s = &c->args.shape;
    c->mask = malloc((size_t)(s->Nq * s->Nk));
    assert_non_null(c->mask);
    for (int64_t i = 0; i < s->Nq; i++)
        for (int64_t j = 0; j < s->Nk; j++)
            c->mask[i * s->Nk + j] = i % 5 == 4 || case_random() % 3 == 0;
    c->args.mask = c->mask;
}

static inline Case *case_new(AttnShape s, AttnDtype dtype, TensorLayout layout, float by)
{
    Case *c = calloc(1, sizeof *c);
    assert_non_null(c);
    AttnArgs *a = &c->args;
    const struct {
        Storage *storage;
        Tensor *view;
        int keys, filled;
        float by;
    } all[] = {{&c->Q, &a->Q, 0, 1, by},  {&c->K, &a->K, 1, 1, by},  {&c->V, &a->V, 1, 1, 1},
               {&c->O, &a->O, 0, 0, 0},   {&c->dO, &a->dO, 0, 1, 1}, {&c->dQ, &a->dQ, 0, 0, 0},
               {&c->dK, &a->dK, 1, 0, 0}, {&c->dV, &a->dV, 1, 0, 0}};
    for (int n = 0; n < 8; n++) {
        const int keys = all[n].keys;
        assert_int_equal(0, tensor_new(all[n].storage, dtype, layout, s.B, keys ? s.Nk : s.Nq,
                                       keys ? s.Hkv : s.H, s.d));
        *all[n].view = all[n].storage->view;
        if (all[n].filled)
            case_fill(all[n].view, all[n].by);
    }
    c->lse = malloc(sizeof(float) * (size_t)(s.B * s.H * s.Nq));
    assert_non_null(c->lse);
    memset(c->lse, 0xFF, sizeof(float) * (size_t)(s.B * s.H * s.Nq));
    a->shape = s;
    a->scale = 1 / sqrtf((float)s.d);
    a->rule = (AttnRule){-1, -1};
    a->lse = c->lse;
    a->threads = 1;
    case_align(c, ATTN_MASK_NONE);
    return c;
}

static inline void case_free(Case *c)
{
    Storage *all[] = {&c->Q, &c->K, &c->V, &c->O, &c->dO, &c->dQ, &c->dK, &c->dV};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        tensor_free(all[n]);
    free(c->lse);
    free(c->mask);
    free(c);
}

static inline float case_get(const Tensor *t, int64_t b, int64_t n, int64_t h, int64_t x)
{
    return tensor_get(t, tensor_offset(t, b, n, h) + x);
}

static inline void case_set(const Tensor *t, int64_t b, int64_t n, int64_t h, int64_t x, float to)
{
    tensor_set(t, tensor_offset(t, b, n, h) + x, to);
}

static inline Oracle oracle_of(const AttnArgs *args, int backward, int threads)
{
    Oracle oracle;
    assert_int_equal(0, oracle_run(&oracle, args, backward, threads));
    return oracle;
}

static inline int64_t pairs_seen(const AttnArgs *a)
{
    int64_t pairs = 0;
    for (int64_t i = 0; i < a->shape.Nq; i++)
        for (int64_t j = 0; j < a->shape.Nk; j++)
            pairs += attn_sees(a, i, j);
    return pairs;
}

/* The options of a test case, by name, so that every test walks through the same list. */
typedef struct Option {
    const char *name;
    AttnShape shape;
    AttnMask mask;
    int64_t left, right;
    float softcap;
    int varlen; /* 1: three sequences, one of them empty; 2: zigzag halves of one sequence */
    TensorLayout layout;
} Option;

/* clang-format off */
static const Option options[] = {
    {"plain", {1, 1, 1, 5, 5, 3}, ATTN_MASK_NONE, -1, -1, 0, 0, LAYOUT_BSHD},
    {"odd strides", {2, 2, 2, 4, 7, 5}, ATTN_MASK_NONE, -1, -1, 0, 0, LAYOUT_ODD},
    {"SBHD, batch", {3, 2, 1, 3, 4, 2}, ATTN_MASK_NONE, -1, -1, 0, 0, LAYOUT_SBHD},
    {"full mask", {1, 2, 2, 6, 9, 4}, ATTN_MASK_FULL, -1, -1, 0, 0, LAYOUT_BHSD},
    {"causal upper-left", {1, 1, 1, 6, 4, 3}, ATTN_MASK_CAUSAL_UPPER_LEFT, -1, -1, 0, 0, 0},
    {"causal upper-left, more keys",
     {1, 1, 1, 4, 7, 3}, ATTN_MASK_CAUSAL_UPPER_LEFT, -1, -1, 0, 0, 0},
    {"causal lower-right", {1, 2, 1, 4, 7, 3}, ATTN_MASK_CAUSAL_LOWER_RIGHT, -1, -1, 0, 0, 0},
    {"lower-right, empty rows", {1, 1, 1, 7, 4, 3}, ATTN_MASK_CAUSAL_LOWER_RIGHT, -1, -1, 0, 0, 0},
    {"window", {1, 1, 1, 8, 8, 3}, ATTN_MASK_NONE, 2, 1, 0, 0, LAYOUT_BSHD},
    {"window 0,0", {1, 1, 1, 5, 8, 3}, ATTN_MASK_NONE, 0, 0, 0, 0, LAYOUT_BSHD},
    {"causal window", {1, 1, 1, 8, 6, 3}, ATTN_MASK_CAUSAL_LOWER_RIGHT, 2, -1, 0, 0, 0},
    {"window and full mask", {1, 1, 1, 8, 8, 3}, ATTN_MASK_FULL, 3, 2, 0, 0, LAYOUT_BSHD},
    {"softcap", {1, 1, 1, 5, 6, 4}, ATTN_MASK_NONE, -1, -1, 1.5f, 0, LAYOUT_BSHD},
    {"softcap, causal, GQA", {1, 4, 2, 6, 6, 4}, ATTN_MASK_CAUSAL_LOWER_RIGHT, -1, -1, 2, 0, 0},
    {"GQA", {2, 4, 2, 3, 5, 2}, ATTN_MASK_NONE, -1, -1, 0, 0, LAYOUT_BSHD},
    {"MQA", {1, 4, 1, 3, 5, 2}, ATTN_MASK_NONE, -1, -1, 0, 0, LAYOUT_ODD},
    {"varlen", {1, 2, 1, 10, 11, 3}, ATTN_MASK_NONE, -1, -1, 0, 1, LAYOUT_BSHD},
    {"varlen, causal", {1, 2, 2, 10, 11, 3}, ATTN_MASK_CAUSAL_UPPER_LEFT, -1, -1, 0, 1, 0},
    {"zigzag, causal window", {1, 1, 1, 8, 8, 3}, ATTN_MASK_CAUSAL_LOWER_RIGHT, 5, -1, 0, 2, 0},
    {"one key", {1, 1, 1, 3, 1, 2}, ATTN_MASK_NONE, -1, -1, 0, 0, LAYOUT_BSHD},
};
/* clang-format on */

#define OPTION_COUNT ((int)(sizeof options / sizeof *options))

/* larger: multiplies Nq, Nk and d, so that rounding has something to work on. */
static inline Case *case_option(const Option *o, AttnDtype dtype, int larger, float by)
{
    AttnShape s = o->shape;
    Case *c;
    s.Nq *= larger, s.Nk *= larger, s.d *= larger;
    c = case_new(s, dtype, o->layout, by);
    c->args.softcap = o->softcap;
    c->args.rule =
        (AttnRule){o->left < 0 ? -1 : o->left * larger, o->right < 0 ? -1 : o->right * larger};
    case_align(c, o->mask);
    if (o->mask == ATTN_MASK_FULL)
        case_mask(c);
    if (o->varlen == 1) { /* lengths 4 0 6 and 5 2 4: the middle sequence has no query */
        const int64_t m = larger;
        AttnSegment q[] = {{0, 4 * m, 0, 0, 1}, {4 * m, 0, 1, 0, 1}, {4 * m, 6 * m, 2, 0, 1}};
        AttnSegment k[] = {{0, 5 * m, 0, 0, 1}, {5 * m, 2 * m, 1, 0, 1}, {7 * m, 4 * m, 2, 0, 1}};
        memcpy(c->segments_q, q, sizeof q);
        memcpy(c->segments_k, k, sizeof k);
        c->args.positions_q.count = c->args.positions_k.count = 3;
    } else if (o->varlen == 2) { /* keys 0..7 in order, queries as halves 12..15 and 0..3 */
        const int64_t m = larger;
        AttnSegment q[] = {{0, 4 * m, 0, 12 * m, 1}, {4 * m, 4 * m, 0, 0, 1}};
        AttnSegment k[] = {{0, 8 * m, 0, 8 * m - 1, -1}};
        memcpy(c->segments_q, q, sizeof q);
        memcpy(c->segments_k, k, sizeof k);
        c->args.positions_q.count = 2;
        c->args.positions_k.count = 1;
    }
    return c;
}

#endif
