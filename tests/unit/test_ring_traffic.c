/* SPDX-License-Identifier: MIT
 *
 * test_ring_traffic: what the methods of stage 06 send and hold, and what they leave behind.
 *
 * - All ranks together send what follows from walking over the tokens: each key of a full turn
 *   leaves G-1 times, each dQ of burst G times, a head of Ulysses where it changes its rank; in a
 *   window each key as often as brute force over all pairs says. No formula of the model is used.
 *   (Each rank by the model, to the byte: test_ring_bytes.)
 * - A rank that finds memory short anywhere in a method ends the run for all, and nothing leaks.
 *   (Other faults: test_ring_faults.)
 */
#include "harness/models/model_ring_bytes.h"
#include "ring_method_case.h"

#include "alloc.h"
#include "attn_pairs.h"
#include "planner/cost.h"

/* --- bytes, by walking over the tokens ---------------------------------------------------------*/

typedef struct Totals {
    int64_t sent[RING_PASSES][RING_TENSORS];
} Totals;

static Totals totals_of(const RingReport *report)
{
    Totals t = {{{0}}};
    for (int rank = 0; rank < report->ranks; rank++)
        for (int pass = 0; pass < RING_PASSES; pass++)
            for (int tensor = 0; tensor < RING_TENSORS; tensor++)
                t.sent[pass][tensor] += report->rank[rank].traffic.sent[pass][tensor];
    return t;
}

/* Rank of local order: which rank has token n of `shards`? */
static int owner_of(const RingShard *shards, int ranks, int64_t n)
{
    for (int rank = 0; rank < ranks; rank++)
        for (int64_t p = 0; p < shards[rank].count; p++)
            for (int64_t t = 0; t < shards[rank].pieces[p].length; t++)
                if (shards[rank].pieces[p].global + t * shards[rank].pieces[p].stride == n)
                    return rank;
    fail_msg("token %d has no owner", (int)n);
    return -1;
}

/* The largest distance of two ranks of which one sees the other, by asking every pair of tokens;
 * both directions. */
static void count_hops(const RingPlan *plan, const AttnArgs *a, int *up, int *down)
{
    const int G = plan->setup.ranks;
    *up = *down = 0;
    for (int64_t i = 0; i < a->shape.Nq; i++)
        for (int64_t j = 0; j < a->shape.Nk; j++) {
            const int distance = owner_of(plan->q, G, i) - owner_of(plan->k, G, j);
            if (!attn_visible(a->rule, attn_position(a->positions_q, i),
                              attn_position(a->positions_k, j)))
                continue;
            *up = distance > *up ? distance : *up;
            *down = -distance > *down ? -distance : *down;
        }
    if (*up + *down >= G)
        *up = G - 1, *down = 0;
}

/* Bytes of all tokens: times * their size; K and V alike, and so on. */
static void expect_rings(const RingPlan *plan, int up, int down, Totals *t)
{
    const AttnShape *n = &plan->shape;
    const RingMethod method = plan->setup.method;
    const int64_t b = (int64_t)dtype_size(plan->dtype), b_g = (int64_t)sizeof(float);
    const int64_t q = n->B * n->Nq * n->H * n->d, k = n->B * n->Nk * n->Hkv * n->d;
    const int64_t hops = up + down, home = (up > 0) + (down > 0);
    int64_t *forward = t->sent[RING_FORWARD], *backward = t->sent[RING_BACKWARD];
    forward[RING_K] = forward[RING_V] = hops * k * b;
    if (method == RING_METHOD_BURST || method == RING_METHOD_BURST_DOUBLE) {
        backward[RING_Q] = backward[RING_DO] = hops * q * b;
        backward[RING_LSE] = backward[RING_DELTA] = hops * q / n->d * (int64_t)sizeof(float);
        backward[RING_DQ] = (hops + home) * q * b_g;
        return;
    }
    backward[RING_K] = backward[RING_V] = hops * k * b;
    backward[RING_DK] = backward[RING_DV] =
        (hops + (method == RING_METHOD_RING_MINIMAL && hops)) * k * b_g;
}

/* How often a row of `heads` heads changes its rank: rows of all tokens, one for each head. */
static int64_t changes(const RingShard *shards, int G, int64_t tokens, int64_t heads)
{
    const int64_t share = heads >= G ? heads / G : 1;
    int64_t moved = 0;
    for (int64_t n = 0; n < tokens; n++)
        for (int rank = 0; rank < G; rank++)
            moved += owner_of(shards, G, n) == rank ? 0 : share;
    return moved;
}

static void expect_ulysses(const RingPlan *plan, Totals *t)
{
    const AttnShape *n = &plan->shape;
    const int G = plan->setup.ranks;
    const int64_t row = n->B * n->d * (int64_t)dtype_size(plan->dtype);
    const int64_t q = changes(plan->q, G, n->Nq, n->H), k = changes(plan->k, G, n->Nk, n->Hkv);
    int64_t *forward = t->sent[RING_FORWARD], *backward = t->sent[RING_BACKWARD];
    forward[RING_Q] = forward[RING_O] = backward[RING_DO] = backward[RING_DQ] = q * row;
    forward[RING_K] = forward[RING_V] = backward[RING_DK] = backward[RING_DV] = k * row;
    forward[RING_LSE] = n->B * q * (int64_t)sizeof(float);
}

static Totals expected(const RingPlan *plan, const AttnArgs *args)
{
    const RingMethod method = plan->setup.method;
    const int rings = method == RING_METHOD_RING || method == RING_METHOD_BURST;
    const int window = args->rule.left >= 0 || args->rule.right > 0;
    Totals t = {{{0}}};
    int up = plan->setup.ranks - 1, down = 0;
    if (rings && window && plan->setup.layout == RING_CONTIGUOUS)
        count_hops(plan, args, &up, &down);
    if (method == RING_METHOD_ULYSSES)
        expect_ulysses(plan, &t);
    else
        expect_rings(plan, up, down, &t);
    return t;
}

static void try_traffic(const MethodCase *m, AttnDtype dtype, const RingSetup *setup)
{
    static RingReport report;
    Case *c = method_case_new(m, dtype);
    if (method_run(c, setup, 1, &report)) {
        RingPlan *plan = plan_of(c, setup);
        const Totals counted = totals_of(&report), by_hand = expected(plan, &c->args);
        for (int pass = 0; pass < RING_PASSES; pass++)
            for (int tensor = 0; tensor < RING_TENSORS; tensor++)
                if (counted.sent[pass][tensor] != by_hand.sent[pass][tensor])
                    fail_msg("%s: %s, %s, %d ranks: %s: %lld bytes, expected %lld", m->name,
                             ring_method_name(setup->method), ring_layout_name(setup->layout),
                             setup->ranks, ring_tensor_name((RingTensor)tensor),
                             (long long)counted.sent[pass][tensor],
                             (long long)by_hand.sent[pass][tensor]);
        plan_delete(plan);
    }
    ring_report_free(&report);
    case_free(c);
}

TEST(test_bytes_and_memory)
{
    static const int ranks[] = {2, 3, 4, 8}, nodes[] = {2, 3, 2, 4};
    for (int n = 0; n < METHOD_CASES; n += quick() ? 3 : 1)
        for (int method = RING_METHOD_RING; method < RING_METHODS; method++)
            for (int g = 0; g < 4; g++) {
                const RingLayout layout = (RingLayout)((n + g) % 2 ? 0 : (n + method) % 3);
                const int doubled = is_double(method);
                const RingSetup setup =
                    method_setup((RingMethod)method, layout, ranks[g], doubled ? nodes[g] : 1);
                try_traffic(&method_cases[n], (AttnDtype)((n + method + g) % 3), &setup);
            }
}

/* --- failures ----------------------------------------------------------------------------------*/

/* A host whose memory is short from a certain allocation on, whichever rank asks. */
static _Atomic int allocations_left;

static void *alloc_while_there_is(RingRank *r, size_t bytes)
{
    return allocations_left-- > 0 ? ring_backend_cpu.alloc(r, bytes) : NULL;
}

TEST(test_short_memory_ends_every_method)
{
    static RingReport report;
    RingBackend backend = ring_backend_cpu;
    Case *c = method_case_new(&method_cases[5], ATTN_F32);
    backend.alloc = alloc_while_there_is;
    for (int method = RING_METHOD_RING; method < RING_METHODS; method++) {
        RingSetup setup =
            method_setup((RingMethod)method, RING_CONTIGUOUS, 4, is_double(method) ? 2 : 1);
        int there = 0, status = -1;
        setup.adversarial = 1;
        RingPlan *plan = plan_of(c, &setup);
        const RingTask task = {.plan = plan, .args = &c->args, .rounds = 1};
        for (; status != 0; there += quick() ? 11 : 3) {
            allocations_left = there;
            status = ring_world_sim(&task, &backend, &report);
            assert_true(status == 0 || strstr(report.failure, "memory is short"));
            assert_int_equal(0, workspace_live());
            ring_report_free(&report);
        }
        assert_true(there > 4 * 10); /* Q K V lse O dO, and what the method needs, of 4 ranks */
        plan_delete(plan);
    }
    case_free(c);
}
