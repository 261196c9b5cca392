/* SPDX-License-Identifier: MIT
 *
 * test_ring_sim: ranks as threads, and everything between the methods and the memory.
 *
 * - A plain ring over 1 to 5 ranks is right, in all layouts, for every option of oracle_case.h.
 * - Messages of one tensor between two ranks keep their order, free and under 200 schedules. (Fewer
 *   with ATTN_TEST_QUICK.)
 * - A deadlock is told as who waits for whom, a rank that does not come as a time-out.
 * - Bytes are counted, memory is counted and given back.
 */
#include "ring_sim_case.h"

#include <time.h>

#include "alloc.h"

/* --- right -------------------------------------------------------------------------------------*/

TEST(test_a_plain_ring_is_right)
{
    for (int n = 0; n < OPTION_COUNT; n++)
        for (int ranks = 1; ranks <= 5; ranks += ranks < 3 ? 1 : 2) {
            RingSetup setup = sim_setup(ranks, (RingLayout)((n + ranks) % RING_LAYOUTS));
            SimCase *c;
            setup.adversarial = n % 2;
            setup.schedule_seed = (uint64_t)n;
            setup.threads = ranks == 2 ? 4 : 1;
            c = sim_case(case_option(&options[n], (AttnDtype)(n % 3), 1 + n % 4, 1), &setup,
                         &plain_ring);
            c->task.rounds = 1 + n % 2;
            if (sim_run(c) != 0)
                fail_msg("%s, %d ranks: %s", options[n].name, ranks, c->report.failure);
            assert_true(sim_right(c, options[n].name));
            assert_int_equal(0, workspace_live());
            sim_case_free(c);
        }
}

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
    float data[8];
    RingExchange x = {0};
    memset(data, 0, sizeof data);
    if (r->rank == 0 ? ring_send(r, &x, 1, RING_Q, data, 32)
                     : ring_receive(r, &x, 0, RING_Q, data, 28))
        return -1;
    return ring_start(r, &x) ? -1 : ring_wait(r, &x);
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
    RingExchange first = {0}, second = {0};
    const int up = (r->rank + 1) % r->world, down = (r->rank + r->world - 1) % r->world;
    if (ring_step(r, 0) || ring_step(r, 3) ||
        ring_receive(r, &first, down, RING_K, &data[0], sizeof(float)) || ring_start(r, &first) ||
        ring_wait(r, &first) || ring_send(r, &second, up, RING_K, &data[1], sizeof(float)) ||
        ring_start(r, &second))
        return -1;
    return ring_wait(r, &second);
}

/* Rank 1 goes home without the message that rank 2 waits for. */
static int forgotten_forward(RingRank *r)
{
    float data = 0;
    RingExchange x = {0};
    if (r->rank == 2 && ring_receive(r, &x, 1, RING_DV, &data, sizeof data))
        return -1;
    if (r->rank == 0 && ring_send(r, &x, 1, RING_DK, &data, sizeof data))
        return -1;
    if (ring_step(r, 1) || ring_start(r, &x))
        return -1;
    return ring_wait(r, &x);
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

/* One number from rank 0 to rank 1. */
static int late_message(RingRank *r)
{
    float data = 0;
    RingExchange x = {0};
    if (ring_step(r, 9) || (r->rank == 1 && ring_receive(r, &x, 0, RING_LSE, &data, sizeof data)) ||
        (r->rank == 0 && ring_send(r, &x, 1, RING_LSE, &data, sizeof data)) || ring_start(r, &x))
        return -1;
    return ring_wait(r, &x);
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

TEST(test_bytes_and_memory_are_counted)
{
    const int G = 4;
    RingSetup setup = sim_setup(G, RING_CONTIGUOUS);
    SimCase *c;
    double forward_ms[3], backward_ms[3];
    setup.nodes = 2;
    setup.verify_hops = 1;                             /* trailers are no payload */
    c = sim_case(sim_causal(22), &setup, &plain_ring); /* 5 or 6 tokens for a rank */
    c->task.rounds = 3;
    c->task.trace = 1;
    c->task.forward_ms = forward_ms;
    c->task.backward_ms = backward_ms;
    assert_int_equal(0, sim_run(c));
    assert_true(sim_right(c, "counted"));
    for (int rank = 0; rank < G; rank++) {
        const RingTraffic *report = &c->report.rank[rank].traffic;
        const int64_t row = 1 * 4 * 4, kv = c->plan.k[rank].tokens * row; /* Hkv d floats */
        int64_t K = 0, dK = 22 * row, computed = 0;
        for (int t = 0; t + 1 < G; t++) {
            const int64_t remote = c->plan.k[(rank - t + G) % G].tokens * row;
            K += remote;
            assert_int_equal(2 * remote, report->sent_step[RING_FORWARD][t]);
            assert_int_equal(4 * remote, report->sent_step[RING_BACKWARD][t]);
        }
        assert_int_equal(0, report->sent_step[RING_FORWARD][G - 1]);
        assert_int_equal(K, report->sent[RING_FORWARD][RING_K]);
        assert_int_equal(K, report->sent[RING_FORWARD][RING_V]);
        assert_int_equal(0, report->sent[RING_FORWARD][RING_DK]);
        assert_int_equal(K, report->sent[RING_BACKWARD][RING_V]);
        assert_int_equal(dK, report->sent[RING_BACKWARD][RING_DK]);
        assert_int_equal(2 * (G - 1), report->messages[RING_FORWARD]);
        assert_int_equal(2 * (G - 1) + 2 * G, report->messages[RING_BACKWARD]);
        assert_int_equal(rank % 2 ? 2 * K : 0, report->sent_outer[RING_FORWARD]);
        assert_int_equal(rank % 2 ? 0 : 2 * K, report->sent_inner[RING_FORWARD]);
        assert_true(c->report.rank[rank].peak_bytes >
                    8 * (size_t)plain_room(&(RingRank){.world = G, .plan = &c->plan}));
        /* dO, dQ, dK and dV come on top */
        assert_int_equal(c->report.rank[rank].peak_bytes + 4 * (size_t)kv + 2 * (size_t)kv,
                         c->report.rank[rank].peak_backward_bytes);
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
