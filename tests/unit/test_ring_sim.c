/* SPDX-License-Identifier: MIT
 *
 * test_ring_sim: ranks as threads, and everything between the methods and the memory.
 *
 * - Messages of one tensor between two ranks keep their order, free and under 200 schedules. (Fewer
 *   with ATTN_TEST_QUICK.)
 * - A deadlock is told as who waits for whom, a rank that does not come as a time-out.
 * - Bytes and events are counted.
 */
#include "ring_sim_case.h"

#include <time.h>

#include "alloc.h"

/* --- messages ----------------------------------------------------------------------------------*/

enum { MAIL_COUNT = 24, MAIL_SIZE = 5 };

/* Rank 0 sends numbered K and V messages of several sizes; the others read them, V first in places.
 * 0 if every one came in its turn. */
static int mail_forward(RingRank *r)
{
    int data[2][MAIL_COUNT][MAIL_SIZE];
    RingExchange x[MAIL_COUNT] = {0};
    for (int n = 0; n < MAIL_COUNT; n++) {
        const size_t bytes = (size_t)(1 + n % MAIL_SIZE) * sizeof(int);
        for (int peer = 1; r->rank == 0 && peer < r->world; peer++)
            for (int tensor = 0; tensor < 2; tensor++) {
                for (int e = 0; e < MAIL_SIZE; e++)
                    data[tensor][n][e] = 100 * n + 10 * tensor + e;
                if (ring_send(r, &x[n], peer, tensor ? RING_V : RING_K, data[tensor][n], bytes))
                    return -1;
            }
        if (r->rank > 0 &&
            (ring_receive(r, &x[n], 0, n % 3 ? RING_K : RING_V, data[!(n % 3)][n], bytes) ||
             ring_receive(r, &x[n], 0, n % 3 ? RING_V : RING_K, data[n % 3 != 0][n], bytes)))
            return -1;
        if (ring_step(r, n) || ring_start(r, &x[n]))
            return -1;
    }
    for (int n = MAIL_COUNT - 1; n >= 0; n--)
        if (ring_wait(r, &x[n]) != 0)
            return -1;
    for (int n = 0; n < MAIL_COUNT; n++)
        for (int tensor = 0; tensor < 2; tensor++)
            for (int e = 0; e < 1 + n % MAIL_SIZE; e++)
                if (data[tensor][n][e] != 100 * n + 10 * tensor + e)
                    return ring_fail(r, "message %d of tensor %d is another one", n, tensor);
    return 0;
}

TEST(test_messages_keep_their_order)
{
    const RingMethodTable table = {.forward = mail_forward};
    RingSetup setup = sim_setup(3, RING_CONTIGUOUS);
    sim_run_table(&table, setup, NULL);
    setup.adversarial = 1;
    for (setup.schedule_seed = 0; setup.schedule_seed < (quick() ? 20 : 200); setup.schedule_seed++)
        sim_run_table(&table, setup, NULL);
    setup.verify_hops = 1;
    sim_run_table(&table, setup, NULL);
}

static int wrong_size_forward(RingRank *r)
{
    float data[8] = {0};
    return sim_message(r, 0, 1, RING_Q, data, r->rank == 0 ? 32 : 28);
}

/* Results go beside the tensors, and are measured as well. */
static int wrong_result_forward(RingRank *r)
{
    float data[8] = {0};
    return r->rank == 0 ? ring_host_receive(r, 1, data, 28) : ring_host_send(r, 0, data, 32);
}

TEST(test_a_wrong_size_is_told)
{
    const RingMethodTable table = {.forward = wrong_size_forward};
    const RingMethodTable results = {.forward = wrong_result_forward};
    RingSetup setup = sim_setup(2, RING_CONTIGUOUS);
    for (setup.adversarial = 0; setup.adversarial < 2; setup.adversarial++) {
        sim_run_table(&table, setup,
                      "rank 1, forward step 0: Q from rank 0: found 32 bytes, expected");
        sim_run_table(&results, setup, "results from rank 1: found 32 bytes, expected");
    }
}

/* --- waiting for ever --------------------------------------------------------------------------*/

/* Everybody waits for the next rank and sends only then. */
static int circle_forward(RingRank *r)
{
    float data[2] = {0};
    return ring_step(r, 0) || ring_step(r, 3) ||
                   sim_message(r, ring_at(r, -1), r->rank, RING_K, &data[0], sizeof(float)) ||
                   sim_message(r, r->rank, ring_at(r, +1), RING_K, &data[1], sizeof(float))
               ? -1
               : 0;
}

/* Rank 1 goes home without the message that rank 2 waits for, and without rank 0's. */
static int forgotten_forward(RingRank *r)
{
    float data = 0;
    if (ring_step(r, 1) || (r->rank == 2 && sim_message(r, 1, 2, RING_DV, &data, sizeof data)) ||
        (r->rank == 0 && sim_message(r, 0, 1, RING_DK, &data, sizeof data)))
        return -1;
    return 0;
}

TEST(test_a_deadlock_is_told)
{
    const RingMethodTable circle = {.forward = circle_forward};
    const RingMethodTable forgotten = {.forward = forgotten_forward};
    RingSetup setup = sim_setup(4, RING_CONTIGUOUS);
    for (setup.adversarial = 0; setup.adversarial < 2; setup.adversarial++) {
        const double begin = ring_now_ms();
        sim_run_table(&circle, setup,
                      "deadlock; rank 0 is waiting for K from rank 3 (forward step 3)");
        sim_run_table(&circle, setup, "; rank 3 is waiting for K from rank 2 (forward step 3)");
        sim_run_table(&forgotten, setup, "rank 2 is waiting for dV from rank 1 (forward step 1)");
        sim_run_table(&forgotten, setup,
                      "rank 0 is waiting until rank 1 takes dK (forward step 1)");
        sim_run_table(&forgotten, setup, "rank 1 is waiting until rank 0 takes results");
        assert_true(ring_now_ms() - begin < 0.5 * 1e3 * setup.timeout_s); /* no time-out */
    }
}

static int late_message(RingRank *r)
{
    float data = 0;
    return ring_step(r, 9) ? -1 : sim_message(r, 0, 1, RING_LSE, &data, sizeof data);
}

static int late_forward(RingRank *r)
{
    const struct timespec time = {1, 800000000};
    if (ring_step(r, 2) || (r->rank == 0 && nanosleep(&time, NULL)))
        return -1;
    return late_message(r);
}

TEST(test_a_time_out_is_told)
{
    const RingMethodTable table = {.forward = late_forward};
    RingSetup setup = sim_setup(2, RING_CONTIGUOUS);
    setup.timeout_s = 0.6;
    sim_run_table(
        &table, setup,
        "rank 1, forward step 9: waiting for lse from rank 0: nothing within 0.6 s; rank 0 was "
        "last seen in forward step 2");
}

/* Rank 1 waits for a rank that works for long, but step by step. */
static int slow_forward(RingRank *r)
{
    const struct timespec time = {0, 120000000};
    for (int step = 0; r->rank == 0 && step < 16; step++)
        if (ring_step(r, step) || nanosleep(&time, NULL))
            return -1;
    return late_message(r);
}

TEST(test_a_slow_rank_is_no_time_out)
{
    const RingMethodTable table = {.forward = slow_forward};
    RingSetup setup = sim_setup(2, RING_CONTIGUOUS);
    setup.timeout_s = 1.6; /* less than all steps together, much more than one of them */
    sim_run_table(&table, setup, NULL);
}

/* --- what is counted ---------------------------------------------------------------------------*/

/* Step by step, in every round. (By tensor and link, and memory: test_ring_bytes.) */
TEST(test_bytes_and_events_are_counted)
{
    const int G = 4;
    RingSetup setup = sim_setup(G, RING_CONTIGUOUS);
    double forward_ms[3], backward_ms[3];
    setup.verify_hops = 1;                               /* trailers are no payload */
    SimCase *c = sim_case(sim_causal(22), &setup, NULL); /* 5 or 6 tokens for a rank */
    c->task.rounds = 3;
    c->task.trace = 1;
    c->task.forward_ms = forward_ms;
    c->task.backward_ms = backward_ms;
    assert_int_equal(0, sim_run(c));
    assert_true(sim_right(c, "counted"));
    for (int rank = 0; rank < G; rank++) {
        const RingTraffic *report = &c->report.rank[rank].traffic;
        int64_t computed = 0;
        for (int t = 0; t < G; t++) {
            const int64_t remote = c->plan.k[(rank - t + G) % G].tokens * 4 * 4; /* Hkv d floats */
            const int64_t keys = t + 1 < G ? 2 * remote : 0;
            assert_int_equal(keys, report->sent_step[RING_FORWARD][t]);
            assert_int_equal(keys + 2 * remote, report->sent_step[RING_BACKWARD][t]);
        }
        assert_int_equal(2 * (G - 1), report->messages[RING_FORWARD]);
        assert_int_equal(2 * (G - 1) + 2 * G, report->messages[RING_BACKWARD]);
        for (int64_t e = 0; e < c->report.event_count[rank]; e++) {
            const RingEvent *event = &c->report.events[rank][e];
            assert_true(event->end_ms >= event->start_ms);
            computed += event->kind == RING_EVENT_COMPUTE;
        }
        assert_int_equal(2 * (rank + 1), computed); /* causal: earlier ranks only, both passes */
    }
    for (int round = 0; round < 3; round++)
        assert_true(forward_ms[round] > 0 && backward_ms[round] > 0);
    sim_case_free(c);
}
