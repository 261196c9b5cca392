/* SPDX-License-Identifier: MIT
 *
 * ring_method_case.h: the problems on which all methods of stage 06 are tried, small, but with
 * everything that a method has to get right: masks, windows, packed sequences, cross attention,
 * grouped heads, batches, odd strides, lengths that no number of ranks divides.
 *
 * Interface:
 * - method_cases, method_case_new: the list. 24 heads, so that Ulysses can deal them out.
 * - method_run, method_close: one of them with one setup; method_setup, is_double. plan_of,
 *   plan_delete.
 * - Bits, bits_of, bits_equal: all results of a run as they are.
 */
#ifndef RING_METHOD_CASE_H
#define RING_METHOD_CASE_H

#include "ring_sim_case.h"

typedef struct MethodCase {
    const char *name;
    AttnShape shape;
    AttnMask mask;
    int64_t left, right;
    float softcap;
    int sequences; /* 0: one; else packed, lengths by packed_lengths */
    TensorLayout layout;
} MethodCase;

/* clang-format off */
static const MethodCase method_cases[] = {
    {"no mask", {1, 24, 24, 33, 33, 4}, ATTN_MASK_NONE, -1, -1, 0, 0, LAYOUT_BSHD},
    {"causal, batches", {2, 24, 6, 29, 29, 5}, ATTN_MASK_CAUSAL_LOWER_RIGHT, -1, 0, 0, 0, 0},
    {"upper-left, more keys",
     {1, 24, 12, 17, 40, 3}, ATTN_MASK_CAUSAL_UPPER_LEFT, -1, 0, 0, 0, LAYOUT_SBHD},
    {"lower-right, empty rows",
     {1, 24, 2, 40, 17, 4}, ATTN_MASK_CAUSAL_LOWER_RIGHT, -1, 0, 0, 0, LAYOUT_BSHD},
    {"window", {1, 24, 3, 41, 41, 4}, ATTN_MASK_NONE, 7, 4, 0, 0, LAYOUT_ODD},
    {"window, batches", {2, 24, 24, 26, 26, 2}, ATTN_MASK_NONE, 3, 9, 0, 0, LAYOUT_BSHD},
    {"causal window", {1, 24, 6, 48, 48, 4}, ATTN_MASK_CAUSAL_LOWER_RIGHT, 9, 0, 0, 0, 0},
    {"right side only", {1, 24, 4, 37, 37, 4}, ATTN_MASK_NONE, 0, 11, 0, 0, LAYOUT_BHSD},
    {"window, no limit left", {1, 24, 8, 30, 35, 3}, ATTN_MASK_NONE, -1, 2, 0, 0, LAYOUT_BSHD},
    {"own position only", {1, 24, 24, 19, 19, 4}, ATTN_MASK_NONE, 0, 0, 0, 0, LAYOUT_BSHD},
    {"full mask, MQA", {1, 24, 1, 22, 31, 4}, ATTN_MASK_FULL, -1, -1, 0, 0, LAYOUT_BSHD},
    {"full mask and window", {2, 24, 6, 27, 27, 4}, ATTN_MASK_FULL, 6, 6, 0, 0, LAYOUT_BSHD},
    {"softcap, causal", {1, 24, 12, 25, 25, 6}, ATTN_MASK_CAUSAL_LOWER_RIGHT, -1, 0, 2, 0, 0},
    {"packed, causal", {1, 24, 6, 40, 47, 4}, ATTN_MASK_CAUSAL_LOWER_RIGHT, -1, 0, 0, 4, 0},
    {"packed, window", {2, 24, 24, 40, 47, 3}, ATTN_MASK_NONE, 3, 2, 0, 4, LAYOUT_BSHD},
    {"fewer tokens than ranks", {1, 24, 2, 3, 3, 4}, ATTN_MASK_CAUSAL_LOWER_RIGHT, -1, 0, 0, 0, 0},
    {"one query", {2, 24, 8, 1, 39, 4}, ATTN_MASK_NONE, -1, -1, 0, 0, LAYOUT_BSHD},
    {"one key", {1, 24, 24, 14, 1, 4}, ATTN_MASK_NONE, -1, -1, 0, 0, LAYOUT_BSHD},
};
/* clang-format on */

#define METHOD_CASES ((int)(sizeof method_cases / sizeof *method_cases))

/* Four sequences; the second has no query, the third no key. Lower-right in each. */
static inline void pack_sequences(Case *c)
{
    const int64_t nq[4] = {11, 0, 5, 24}, nk[4] = {13, 4, 0, 30};
    int64_t first_q = 0, first_k = 0;
    for (int s = 0; s < 4; s++) {
        c->segments_q[s] = (AttnSegment){first_q, nq[s], s, nk[s] - nq[s], 1};
        c->segments_k[s] = (AttnSegment){first_k, nk[s], s, 0, 1};
        first_q += nq[s], first_k += nk[s];
    }
    assert_int_equal(c->args.shape.Nq, first_q);
    assert_int_equal(c->args.shape.Nk, first_k);
    c->args.positions_q.count = c->args.positions_k.count = 4;
}

static inline Case *method_case_new(const MethodCase *m, AttnDtype dtype)
{
    Case *c = case_new(m->shape, dtype, m->layout, 1);
    c->args.softcap = m->softcap;
    c->args.rule = (AttnRule){m->left, m->right};
    case_align(c, m->mask);
    if (m->mask == ATTN_MASK_FULL)
        case_mask(c);
    if (m->sequences)
        pack_sequences(c);
    return c;
}

static inline RingSetup method_setup(RingMethod method, RingLayout layout, int ranks, int nodes)
{
    RingSetup setup = sim_setup(ranks, layout);
    setup.method = method;
    setup.nodes = nodes;
    return setup;
}

static inline int is_double(int method)
{
    return method == RING_METHOD_RING_DOUBLE || method == RING_METHOD_BURST_DOUBLE;
}

static inline RingPlan *plan_of(const Case *c, const RingSetup *setup)
{
    RingPlan *plan = malloc(sizeof *plan);
    char why[256];
    assert_non_null(plan);
    assert_int_equal(0, ring_plan_make(plan, &c->args, setup, why));
    return plan;
}

static inline void plan_delete(RingPlan *plan)
{
    ring_plan_free(plan);
    free(plan);
}

typedef struct MethodRun {
    RingPlan plan;
    RingReport report; /* with events */
} MethodRun;

static inline void method_close(MethodRun *run)
{
    ring_report_free(&run->report);
    ring_plan_free(&run->plan);
}

/* 1: done, to be closed. 0: the method cannot do it (heads of Ulysses). */
static inline int method_run(MethodRun *run, Case *c, const RingSetup *setup, int rounds)
{
    char why[256];
    memset(run, 0, sizeof *run);
    if (ring_plan_make(&run->plan, &c->args, setup, why)) {
        assert_int_equal(RING_METHOD_ULYSSES, setup->method);
        assert_non_null(strstr(why, "heads"));
        return 0;
    }
    const RingTask task = {
        .plan = &run->plan, .args = &c->args, .warmup = rounds - 1, .rounds = 1, .trace = 1};
    Storage *results[] = {&c->O, &c->dQ, &c->dK, &c->dV};
    for (int n = 0; n < 4; n++)
        tensor_poison(results[n]);
    if (ring_world_sim(&task, &ring_backend_cpu, &run->report))
        fail_msg("%s, %s, %d ranks, %d nodes: %s", ring_method_name(setup->method),
                 ring_layout_name(setup->layout), setup->ranks, setup->nodes, run->report.failure);
    return 1;
}

/* --- results, bit by bit -----------------------------------------------------------------------*/

typedef struct Bits {
    uint64_t O, lse, dQ, dK, dV;
} Bits;

static inline Bits bits_of(const Case *c)
{
    const AttnShape *n = &c->args.shape;
    Bits bits = {tensor_fingerprint(&c->O), 0, tensor_fingerprint(&c->dQ),
                 tensor_fingerprint(&c->dK), tensor_fingerprint(&c->dV)};
    for (int64_t e = 0; e < n->B * n->H * n->Nq; e++) {
        uint32_t word;
        memcpy(&word, &c->args.lse[e], sizeof word);
        bits.lse = (bits.lse ^ word) * UINT64_C(1099511628211);
    }
    return bits;
}

static inline int bits_equal(Bits a, Bits b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

#endif
