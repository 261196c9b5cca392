/* SPDX-License-Identifier: MIT
 *
 * test_ring_faults: what goes wrong between ranks is noticed, named and over soon.
 *
 * Each fault is injected at every rank and step of ring-minimal over four ranks, free and under an
 * adversarial schedule, with --verify-hops and without:
 *
 *                with --verify-hops                      without
 *     drop       the receiver, its step, the sender      the receiver and the sender, sooner or
 *                                                        later: the next message comes instead
 *     duplicate  the message's number, both steps        an error, or a wrong answer
 *     corrupt    the checksum, both steps                a wrong answer
 *     delay      a right answer                          a right answer
 *     exit       the ranks that miss it, and the step    the same
 *
 * And: a fault that cannot strike is an error, one rank's failure ends all, and nothing leaks.
 *
 * Faults in the stage's own methods do not end well: four kinds of them, at ten steps of each
 * method, with --verify-hops and without. And a method that looks at what has not come yet finds
 * NaN. A rank that finds memory short anywhere in a method ends the run for all.
 */
#include "ring_method_case.h"

#include <math.h>
#include <time.h>

#include "alloc.h"

enum { G = 4, STEPS = 2 * G }; /* G steps forward, G backward */

static SimCase *faulty(RingFault fault, int verify_hops, int adversarial)
{
    const Option o = {"ring", {1, 2, 1, 16, 16, 4}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    RingSetup setup = sim_setup(G, RING_ZIGZAG);
    setup.fault = fault;
    setup.verify_hops = verify_hops;
    setup.adversarial = adversarial;
    setup.schedule_seed = (uint64_t)(10 * fault.rank + fault.step);
    return sim_case(case_option(&o, ATTN_F32, 1, 1), &setup, NULL);
}

/* The rank that misses the message, and its report. */
static const RingRankReport *victim(const SimCase *c, const RingFault *fault)
{
    return &c->report.rank[(fault->rank + 1) % G];
}

static void expect(const SimCase *c, const char *text, const char *part)
{
    const RingFault *f = &c->plan.setup.fault;
    if (!strstr(text, part))
        fail_msg("fault %d at rank %d, step %d: expected '%s', found '%s' (run: '%s')", f->kind,
                 f->rank, f->step, part, text, c->report.failure);
}

/* "forward step 2", of steps that are counted through both passes. */
static const char *step_words(int step, char text[32])
{
    snprintf(text, 32, "%s step %d", step < G ? "forward" : "backward", step % G);
    return text;
}

/* That a sentence names the receiver and its step, and then says this of the message. */
static void expect_receiver(const SimCase *c, const RingFault *fault, const char *text, int step,
                            const char *message)
{
    char words[32], part[160];
    snprintf(part, sizeof part, "rank %d, %s: %s", (fault->rank + 1) % G, step_words(step, words),
             message);
    expect(c, text, part);
}

static void expect_sent_in(const SimCase *c, const RingFault *fault)
{
    char words[32], part[64];
    snprintf(part, sizeof part, "(sent in its %s)", step_words(fault->step, words));
    expect(c, c->report.failure, part);
}

/* Steps in which a rank sends: the last of the forward pass is a quiet one. */
static int sends_in(int step)
{
    return step != G - 1;
}

/* Calls `judge` for the fault at each rank and step. */
static void everywhere(RingFaultKind kind, int verify_hops,
                       void (*judge)(const SimCase *c, const RingFault *fault, int status))
{
    for (int adversarial = 0; adversarial < 2; adversarial++)
        for (int rank = 0; rank < G; rank++)
            for (int step = 0; step < STEPS; step++) {
                const RingFault fault = {kind, rank, step};
                SimCase *c;
                if (kind != RING_EXIT && !sends_in(step))
                    continue;
                c = faulty(fault, verify_hops, adversarial);
                judge(c, &fault, sim_run(c));
                assert_int_equal(0, workspace_live());
                sim_case_free(c);
            }
}

/* --- drop --------------------------------------------------------------------------------------*/

static int losses_seen; /* by a gap in the numbers */

/* In the last step the first message is K no more, but dK, and the ring never sends another. */
static const char *first_tensor(const RingFault *fault)
{
    return fault->step == STEPS - 1 ? "dK" : "K";
}

/* The next message of that tensor comes instead, until in the end there is none. */
static void judge_drop(const SimCase *c, const RingFault *fault, int status)
{
    char part[64];
    assert_int_equal(-1, status);
    snprintf(part, sizeof part, "%s from rank %d", first_tensor(fault), fault->rank);
    expect(c, victim(c, fault)->failure, part);
    expect(c, c->report.failure, part);
}

/* Either it is followed by another one, which has the wrong number or size, or nothing comes. */
static void judge_verified_drop(const SimCase *c, const RingFault *fault, int status)
{
    const char *failure = victim(c, fault)->failure;
    char part[64];
    assert_int_equal(-1, status);
    expect_receiver(c, fault, failure, fault->step, "");
    snprintf(part, sizeof part, "%s from rank %d", first_tensor(fault), fault->rank);
    expect(c, failure, part);
    assert_true(strstr(failure, "one is lost") || strstr(failure, "waiting for") ||
                strstr(failure, "expected were"));
    losses_seen += strstr(failure, "one is lost") != NULL;
}

TEST(test_a_lost_message)
{
    everywhere(RING_DROP, 0, judge_drop);
    everywhere(RING_DROP, 1, judge_verified_drop);
    assert_true(losses_seen > STEPS);
}

/* --- duplicate ---------------------------------------------------------------------------------*/

static int wrong_answers, copies_seen;

static void judge_duplicate(const SimCase *c, const RingFault *fault, int status)
{
    (void)fault;
    wrong_answers += status == 0;
    assert_true(status != 0 || !sim_right(c, NULL));
}

/* The copy comes where the next message of the tensor is expected. If the pass has none, its sender
 * waits for ever. */
static void judge_verified_duplicate(const SimCase *c, const RingFault *fault, int status)
{
    const int last = fault->step % G >= G - 2;
    char part[64];
    assert_int_equal(-1, status);
    if (last) {
        snprintf(part, sizeof part, "rank %d is waiting until rank %d takes", fault->rank,
                 (fault->rank + 1) % G);
        expect(c, c->report.failure, part);
        return;
    }
    snprintf(part, sizeof part, "K from rank %d ", fault->rank);
    expect_receiver(c, fault, c->report.failure, fault->step + 1, part);
    expect_sent_in(c, fault);
    copies_seen += strstr(c->report.failure, "it came twice") != NULL;
    assert_true(strstr(c->report.failure, "it came twice") ||
                strstr(c->report.failure, "expected were"));
}

TEST(test_a_doubled_message)
{
    everywhere(RING_DUPLICATE, 0, judge_duplicate);
    everywhere(RING_DUPLICATE, 1, judge_verified_duplicate);
    assert_true(copies_seen >= 2 * G);
}

/* --- corrupt -----------------------------------------------------------------------------------*/

/* One flipped bit of an exponent: some result is far off, and nobody but the checker sees it. */
static void judge_corrupt(const SimCase *c, const RingFault *fault, int status)
{
    (void)fault;
    assert_int_equal(0, status);
    assert_false(sim_right(c, NULL));
}

static void judge_verified_corrupt(const SimCase *c, const RingFault *fault, int status)
{
    char part[64];
    assert_int_equal(-1, status);
    snprintf(part, sizeof part, "%s from rank %d is damaged", first_tensor(fault), fault->rank);
    expect_receiver(c, fault, c->report.failure, fault->step, part);
    expect_sent_in(c, fault);
}

TEST(test_a_damaged_message)
{
    everywhere(RING_CORRUPT, 0, judge_corrupt);
    everywhere(RING_CORRUPT, 1, judge_verified_corrupt);
}

/* --- delay and exit ----------------------------------------------------------------------------*/

TEST(test_a_late_message)
{
    for (int n = 0; n < 4; n++) {
        const RingFault fault = {RING_DELAY, n, 2 * n};
        SimCase *c = faulty(fault, n % 2, n / 2);
        const double begin = ring_now_ms();
        assert_int_equal(0, sim_run(c));
        assert_true(ring_now_ms() - begin > 150);
        assert_true(sim_right(c, "a late message"));
        sim_case_free(c);
    }
}

static void judge_exit(const SimCase *c, const RingFault *fault, int status)
{
    char words[32], part[64];
    assert_int_equal(-1, status);
    snprintf(part, sizeof part, "rank %d is gone, last seen in %s", fault->rank,
             step_words(fault->step, words));
    expect(c, c->report.failure, part);
    assert_false(strncmp(c->report.failure, "rank ", 5));
    assert_true(atoi(c->report.failure + 5) != fault->rank); /* it is the others who tell */
    for (int rank = 0; rank < G; rank++)
        assert_true(c->report.rank[rank].failed);
}

TEST(test_a_rank_that_leaves)
{
    everywhere(RING_EXIT, 0, judge_exit);
    everywhere(RING_EXIT, 1, judge_exit);
}

/* --- and ---------------------------------------------------------------------------------------*/

TEST(test_a_fault_that_cannot_strike)
{
    const RingFault faults[] = {{RING_DROP, 1, G - 1}, {RING_CORRUPT, 2, 999}, {RING_EXIT, 3, 999}};
    const char *const parts[] = {
        "rank 1, outside of a pass: --inject drop@1:3 did not happen: rank 1 sends nothing "
        "in step 3",
        "--inject corrupt@2:999 did not happen",
        "--inject exit@3:999 did not happen: rank 3 never came to step"};
    for (int n = 0; n < 3; n++) {
        SimCase *c = faulty(faults[n], 0, n % 2);
        assert_int_equal(-1, sim_run(c));
        expect(c, c->report.failure, parts[n]);
        sim_case_free(c);
    }
}

/* Rank 2 has no memory left in the middle of the run. The others learn it and give up. */
static int poor_forward(RingRank *r)
{
    if (r->rank == 2 && (ring_step(r, 1) || !ring_alloc(r, SIZE_MAX / 4, "a wish")))
        return -1;
    return ring_method(RING_METHOD_RING_MINIMAL)->forward(r);
}

TEST(test_one_failure_ends_all)
{
    const RingMethodTable table = {.forward = poor_forward};
    for (int adversarial = 0; adversarial < 2; adversarial++) {
        SimCase *c = faulty((RingFault){0}, 0, adversarial);
        c->task.method = &table;
        c->plan.backward = 0;
        assert_int_equal(-1, sim_run(c));
        expect(c, c->report.failure, "rank 2, forward step 1: memory is short");
        for (int rank = 0; rank < G; rank++)
            if (rank != 2)
                expect(c, c->report.rank[rank].failure, "another rank has failed");
        assert_int_equal(0, workspace_live());
        sim_case_free(c);
    }
}

/* A benchmark: each round has the fault, the last one as well, whose results are looked at, and no
 * later round has the steps that a round does not have. */
TEST(test_faults_in_every_round)
{
    SimCase *c = faulty((RingFault){RING_CORRUPT, 1, G + 1}, 0, 0);
    double ms[2];
    c->task.warmup = 1;
    c->task.rounds = 2;
    assert_int_equal(0, sim_run(c));
    assert_false(sim_right(c, NULL));
    c->plan.setup.fault = (RingFault){RING_DELAY, 2, 1};
    c->task.forward_ms = ms;
    assert_int_equal(0, sim_run(c));
    assert_true(sim_right(c, "a late message in each round"));
    assert_true(ms[0] > 150 && ms[1] > 150);
    c->plan.setup.fault = (RingFault){RING_CORRUPT, 1, STEPS + 1};
    assert_int_equal(-1, sim_run(c));
    expect(c, c->report.failure,
           "corrupt@1:9 did not happen: rank 1 sends nothing in step 9 (it "
           "began 8 steps)");
    sim_case_free(c);
}

/* --- the stage's methods -----------------------------------------------------------------------*/

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
    return sim_message(r, 1, 0, RING_V, &signal, sizeof signal) ||
                   sim_message(r, 0, 1, RING_K, &data, sizeof data)
               ? -1
               : 0;
}

static int look_early(RingRank *r)
{
    float data = 5, signal = 0;
    RingExchange x = {0};
    if (ring_receive(r, &x, 0, RING_K, &data, sizeof data) || ring_start(r, &x))
        return -1;
    if (!isnan(data))
        return ring_fail(r, "%g is there before it is sent", (double)data);
    if (sim_message(r, 1, 0, RING_V, &signal, sizeof signal) || ring_wait(r, &x))
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

/* --- short memory ------------------------------------------------------------------------------*/

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
