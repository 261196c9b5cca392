/* SPDX-License-Identifier: MIT
 *
 * test_ring_method_faults: faults in the stage's own methods do not end well. Four kinds of them,
 * at ten steps of each method, with --verify-hops and without.
 */
#include "ring_sim_case.h"

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

static void test_faults_in_all_methods(void **unused)
{
    const RingFaultKind kinds[] = {RING_DROP, RING_DUPLICATE, RING_CORRUPT, RING_EXIT};
    (void)unused;
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults_in_all_methods)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
