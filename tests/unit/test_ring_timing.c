/* SPDX-License-Identifier: MIT
 *
 * test_ring_timing: rounds of a run. Results are those of the last round, which is timed; rounds to
 * warm up come before it and are not; none finds what another has left; and a pass is timed from a
 * common start, whoever was late, to the end of the slowest rank.
 */
#include "ring_sim_case.h"

#include <math.h>
#include <time.h>

enum { WARMUP = 2, ROUNDS = 3 };

static void sleep_ms(long ms)
{
    const struct timespec time = {0, ms * 1000000};
    nanosleep(&time, NULL);
}

/* --- rounds ------------------------------------------------------------------------------------*/

static int begun;     /* rounds */
static int left_over; /* elements of results that were a number when a pass had got their memory */

/* A piece that is freed is given out again as it is, like a GPU's. */
static struct {
    void *p;
    size_t bytes;
    int used;
} pieces[32];

static void *kept_alloc(RingRank *r, size_t bytes)
{
    for (int n = 0; n < 32; n++) {
        if (pieces[n].used || (pieces[n].p && pieces[n].bytes != bytes))
            continue;
        pieces[n].used = 1;
        pieces[n].bytes = bytes;
        return pieces[n].p = pieces[n].p ? pieces[n].p : ring_backend_cpu.alloc(r, bytes);
    }
    return NULL;
}

static void kept_free(RingRank *r, void *p)
{
    (void)r;
    for (int n = 0; n < 32; n++)
        pieces[n].used &= pieces[n].p != p;
}

static void give_up_pieces(void)
{
    for (int n = 0; n < 32; n++)
        workspace_free(pieces[n].p);
    memset(pieces, 0, sizeof pieces);
}

static void write_all(float *results, int64_t count, int value)
{
    for (int64_t e = 0; e < count; e++) {
        left_over += !isnan(results[e]);
        results[e] = (float)value;
    }
}

/* O and lse are the number of the round; a round to warm up takes its time. */
static int numbered_forward(RingRank *r)
{
    begun++;
    if (begun <= WARMUP)
        sleep_ms(150);
    write_all(r->O, ring_q_count(r, r->nq), begun);
    write_all(r->lse, r->B * r->H * r->nq, begun);
    return 0;
}

static int numbered_backward(RingRank *r)
{
    const int64_t q = ring_q_count(r, r->nq), k = ring_kv_count(r, r->nk);
    r->dQ_whole = r->dKV_whole = 1;
    r->dQ = ring_alloc(r, r->dQ_bytes = (size_t)q * sizeof(float), "dQ");
    r->dK = ring_alloc(r, r->dK_bytes = (size_t)k * sizeof(float), "dK");
    r->dV = ring_alloc(r, r->dV_bytes = (size_t)k * sizeof(float), "dV");
    if (r->failed)
        return -1;
    write_all(r->dQ, q, 10 * begun);
    write_all(r->dK, k, 10 * begun + 1);
    write_all(r->dV, k, 10 * begun + 2);
    return 0;
}

/* The local baseline leaves results, too. */
static int written_alone(RingRank *r, RingPass pass)
{
    const int counted = left_over;
    write_all(pass == RING_FORWARD ? r->O : r->dQ, ring_q_count(r, r->nq), 1);
    left_over = counted;
    return 0;
}

/* And no round finds results of another. */
TEST(results_are_those_of_the_last_round)
{
    const RingMethodTable table = {.forward = numbered_forward, .backward = numbered_backward};
    const RingSetup setup = sim_setup(1, RING_CONTIGUOUS);
    RingBackend keeping = ring_backend_cpu;
    SimCase *c = sim_case(sim_causal(6), &setup, &table);
    const AttnArgs *args = &c->problem->args;
    double forward_ms[ROUNDS], backward_ms[ROUNDS];
    keeping.alloc = kept_alloc;
    keeping.free = kept_free;
    keeping.baseline = written_alone;
    c->task.warmup = WARMUP;
    c->task.rounds = ROUNDS;
    c->task.forward_ms = forward_ms;
    c->task.backward_ms = backward_ms;
    c->task.baseline_calls = 1;
    if (ring_world_sim(&c->task, &keeping, &c->report) != 0)
        fail_msg("%s", c->report.failure);
    give_up_pieces();
    assert_int_equal(WARMUP + ROUNDS, begun);
    assert_int_equal(0, left_over);
    assert_true(case_get(&args->O, 0, 5, 0, 3) == begun);
    assert_true(case_get(&args->dQ, 0, 5, 0, 3) == 10 * begun);
    assert_true(case_get(&args->dK, 0, 5, 0, 3) == 10 * begun + 1);
    assert_true(case_get(&args->dV, 0, 5, 0, 3) == 10 * begun + 2);
    for (int round = 0; round < ROUNDS; round++)
        assert_true(forward_ms[round] < 120);
    sim_case_free(c);
}

/* --- a common start ----------------------------------------------------------------------------*/

static int late_open(RingRank *r)
{
    if (r->rank == 1)
        sleep_ms(400);
    return 0;
}

/* One word from rank 1, for which rank 0 waits. */
static int word_forward(RingRank *r)
{
    float word = 1;
    return sim_message(r, 1, 0, RING_K, &word, sizeof word);
}

TEST(nobody_is_timed_before_all_are_there)
{
    const RingMethodTable table = {.open = late_open, .forward = word_forward};
    const RingSetup setup = sim_setup(2, RING_CONTIGUOUS);
    SimCase *c = sim_case(sim_causal(6), &setup, &table);
    double forward_ms[1];
    c->plan.backward = 0;
    c->task.forward_ms = forward_ms;
    assert_int_equal(0, sim_run(c));
    assert_true(forward_ms[0] < 300);
    sim_case_free(c);
}

/* --- the slowest -------------------------------------------------------------------------------*/

static int slow_rank;

static int slow_forward(RingRank *r)
{
    if (r->rank == slow_rank)
        sleep_ms(60);
    return 0;
}

TEST(the_time_is_that_of_the_slowest)
{
    const RingMethodTable table = {.forward = slow_forward};
    const RingSetup setup = sim_setup(3, RING_CONTIGUOUS);
    SimCase *c = sim_case(sim_causal(6), &setup, &table);
    double forward_ms[1];
    c->plan.backward = 0;
    c->task.forward_ms = forward_ms;
    for (slow_rank = 0; slow_rank < 3; slow_rank++) {
        assert_int_equal(0, sim_run(c));
        assert_true(forward_ms[0] >= 60);
    }
    sim_case_free(c);
}
