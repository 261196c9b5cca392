/* SPDX-License-Identifier: MIT
 *
 * test_ring_method_faults: faults in the stage's own methods do not end well. Four kinds of them,
 * at ten steps of each method, with --verify-hops and without. And a method that looks at what has
 * not come yet finds NaN.
 */
#include "ring_sim_case.h"

#include <math.h>

#include "alloc.h"

enum { G = 4 };

static void expect(const SimCase *c, const char *text, const char *part)
{
    const RingFault *f = &c->plan.setup.fault;
    if (!strstr(text, part))
        fail_msg("fault %d at rank %d, step %d: expected '%s', found '%s' (run: '%s')", f->kind,
                 f->rank, f->step, part, text, c->report.failure);
}

static int harmless;

/* 1: the fault struck. With checksums it is named; without, the run fails or the result is wrong.
 * Harmless is only what happens to a message that nobody looks at: K and V on their last hop home,
 * backward. */
static int try_method(RingMethod method, RingFault fault, int verify_hops, int adversarial)
{
    const Option o = {"methods", {1, 4, 4, 24, 24, 4}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    char name[32];
    int struck;
    RingSetup setup = sim_setup(G, RING_ZIGZAG);
    SimCase *c;
    setup.method = method;
    setup.nodes = 2;
    setup.fault = fault;
    setup.verify_hops = verify_hops;
    setup.adversarial = adversarial;
    setup.schedule_seed = (uint64_t)fault.step;
    c = sim_case(case_option(&o, ATTN_F32, 1, 1), &setup, NULL);
    struck = sim_run(c) == 0 || !strstr(c->report.failure, "did not happen");
    snprintf(name, sizeof name, "rank %d", fault.rank);
    if (struck && (verify_hops || fault.kind == RING_DROP || fault.kind == RING_EXIT)) {
        assert_true(c->report.failed);
        expect(c, c->report.failure, name);
    } else if (struck && !c->report.failed && sim_right(c, NULL)) {
        harmless++;
    }
    assert_int_equal(0, workspace_live());
    sim_case_free(c);
    return struck;
}

TEST(test_faults_in_all_methods)
{
    const RingFaultKind kinds[] = {RING_DROP, RING_DUPLICATE, RING_CORRUPT, RING_EXIT};
    for (int method = RING_METHOD_RING; method < RING_METHODS; method++) {
        int struck = 0;
        for (int k = 0; k < 4; k++)
            for (int step = 0; step < 10; step++) {
                const RingFault fault = {kinds[k], (step + k) % G, step};
                struck += try_method((RingMethod)method, fault, 0, (step + k) % 2);
                struck += try_method((RingMethod)method, fault, 1, (step + k + 1) % 2);
            }
        if (struck < 16)
            fail_msg("%s: only %d faults struck", ring_method_name((RingMethod)method), struck);
    }
    if (harmless > 4)
        fail_msg("%d faults did no harm", harmless);
}

/* Sends K when rank 1 has said that it has looked. */
static int send_later(RingRank *r)
{
    float data = 7, signal = 0;
    RingExchange x = {0};
    if (ring_receive(r, &x, 1, RING_V, &signal, sizeof signal) || ring_start(r, &x) ||
        ring_wait(r, &x) || ring_send(r, &x, 1, RING_K, &data, sizeof data) || ring_start(r, &x))
        return -1;
    return ring_wait(r, &x);
}

static int look_early(RingRank *r)
{
    float data = 5, signal = 0;
    RingExchange x = {0}, looked = {0};
    if (ring_receive(r, &x, 0, RING_K, &data, sizeof data) || ring_start(r, &x))
        return -1;
    if (!isnan(data))
        return ring_fail(r, "%g is there before it is sent", (double)data);
    if (ring_send(r, &looked, 0, RING_V, &signal, sizeof signal) || ring_start(r, &looked) ||
        ring_wait(r, &looked) || ring_wait(r, &x))
        return -1;
    return data == 7 ? 0 : ring_fail(r, "%g came", (double)data);
}

static int early_forward(RingRank *r)
{
    return r->rank == 0 ? send_later(r) : look_early(r);
}

TEST(test_what_is_on_its_way_is_nan)
{
    const RingMethodTable table = {.forward = early_forward};
    RingSetup setup = sim_setup(2, RING_CONTIGUOUS);
    setup.adversarial = 1;
    for (setup.schedule_seed = 0; setup.schedule_seed < 20; setup.schedule_seed++)
        sim_run_table(&table, setup, NULL);
}
