/* SPDX-License-Identifier: MIT
 *
 * test_ring_schedules: memory that is on its way, and orders of ranks.
 *
 * - Touching memory in flight is an error; doing it behind the back of the library is found by the
 *   adversarial schedules. The same seed gives the same order of events.
 * (Each function that touches memory: test_ring_touch. The stage's methods under 200 schedules:
 * test_ring_methods.)
 */
#include "ring_sim_case.h"

#include "alloc.h"

/* --- memory in flight --------------------------------------------------------------------------*/

static int sin_number; /* which of the sins below is committed */

static const char *const sins[] = {
    "ring_zero writes memory in flight: K to rank 1",
    "ring_copy reads memory in flight: V from rank 1",
    "ring_free writes memory in flight: V from rank 1",
    "ring_start reads memory in flight: V from rank 1",
    "ring_start writes memory in flight: K to rank 1",
    "an exchange of step 5 is started twice",
    "ring_zero writes memory in flight: V from rank 1",
    "Q is added to an exchange that is under way",
    "there is no rank 7",
};
enum { MEETS_TWICE = 6 };

/* A second exchange, begun and waited for while the first one is under way. */
static int meet_meanwhile(RingRank *r)
{
    Rooms *rooms = r->method;
    return sim_message(r, 0, 1, RING_Q, r->rank ? rooms->dK[0] : r->Q, 4);
}

/* K of this rank goes to the other one, whose K comes into `remote block`. */
static int sin_now(RingRank *r, RingExchange *x, float *remote)
{
    const size_t bytes = ring_kv_bytes(r, r->rank);
    Rooms *ring = r->method;
    RingExchange other = {0};
    switch (sin_number) {
    case 0:
        return ring_zero(r, r->K, bytes);
    case 1:
        return ring_copy(r, ring->dK[0], bytes, remote, bytes, bytes, 1);
    case 2:
        ring_close_buffer(r, &(RingBuffer){remote, room_bytes(r)});
        return ring_status(r);
    case 3:
        return ring_send(r, &other, 1, RING_Q, remote, 4) || ring_start(r, &other);
    case 4:
        return ring_receive(r, &other, 1, RING_Q, r->K, 4) || ring_start(r, &other);
    case 5:
        return ring_start(r, x);
    case MEETS_TWICE: /* its wait is not the first one's */
        return meet_meanwhile(r) || ring_zero(r, remote, 4);
    case 7:
        return ring_send(r, x, 1, RING_Q, r->Q, 4);
    default:
        return ring_send(r, &other, 7, RING_Q, r->Q, 4);
    }
}

static int sinful_forward(RingRank *r)
{
    const size_t bytes = ring_kv_bytes(r, r->rank);
    float *remote = ((Rooms *)r->method)->V[0];
    RingExchange x = {0};
    if (ring_step(r, 5) || ring_send(r, &x, 1 - r->rank, RING_K, r->K, bytes) ||
        ring_receive(r, &x, 1 - r->rank, r->rank ? RING_K : RING_V, remote, bytes))
        return -1;
    if (r->rank == 1) /* what rank 0 receives is called V, so that both ends show in the sentence */
        x.list[0].tensor = RING_V;
    if (ring_start(r, &x) || (r->rank == 0 && sin_now(r, &x, remote) != 0) ||
        (r->rank == 1 && sin_number == MEETS_TWICE && meet_meanwhile(r) != 0))
        return -1;
    return ring_wait(r, &x);
}

TEST(test_memory_in_flight_is_not_touched)
{
    const RingMethodTable table = {rooms_open, sinful_forward, NULL, NULL};
    RingSetup setup = sim_setup(2, RING_CONTIGUOUS);
    for (setup.adversarial = 0; setup.adversarial < 2; setup.adversarial++)
        for (sin_number = 0; sin_number < (int)(sizeof sins / sizeof *sins); sin_number++)
            sim_run_table(&table, setup, sins[sin_number]);
}

/* Overwrites what it sends, without asking, before the wait. */
static int impatient_forward(RingRank *r)
{
    const size_t bytes = ring_kv_bytes(r, r->rank);
    Rooms *ring = r->method;
    RingExchange x = {0};
    float *out = ring->K[0], *in = ring->V[0];
    const RingBlock q = ring_own_queries(r);
    memcpy(out, r->K, bytes);
    if (ring_step(r, 0) || ring_send(r, &x, 1 - r->rank, RING_K, out, bytes) ||
        ring_receive(r, &x, 1 - r->rank, RING_K, in, ring_kv_bytes(r, 1 - r->rank)) ||
        ring_start(r, &x))
        return -1;
    memset(out, 0, bytes);
    if (ring_wait(r, &x) || ring_start_state(r, &q, ring->O_state, r->lse))
        return -1;
    return ring_finish_O(r, &q, r->O, in);
}

/* Every result is a K that came from the other rank: is each of its numbers one of K's? */
static int copied(const SimCase *c)
{
    const AttnArgs *args = &c->problem->args;
    for (int64_t n = 0; n < args->shape.Nq; n++)
        for (int64_t x = 0; x < args->shape.d; x++)
            if (case_get(&args->O, 0, n, 0, x) !=
                case_get(&args->K, 0, (n + args->shape.Nk / 2) % args->shape.Nk, 0, x))
                return 0;
    return 1;
}

TEST(test_schedules_find_a_buffer_written_too_early)
{
    const RingMethodTable table = {rooms_open, impatient_forward, NULL, NULL};
    const Option o = {"square", {1, 1, 1, 8, 8, 4}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    RingSetup setup = sim_setup(2, RING_CONTIGUOUS);
    int found = 0;
    setup.adversarial = 1;
    for (setup.schedule_seed = 0; setup.schedule_seed < 20; setup.schedule_seed++) {
        SimCase *c = sim_case(case_option(&o, ATTN_F32, 1, 1), &setup, &table);
        c->plan.backward = 0;
        assert_int_equal(0, sim_run(c));
        found += !copied(c);
        sim_case_free(c);
    }
    assert_true(found > 10);
}

/* --- schedules ---------------------------------------------------------------------------------*/

TEST(test_schedules_can_be_repeated)
{
    RingSetup setup = sim_setup(4, RING_ZIGZAG);
    uint64_t seen[40];
    int different = 0;
    setup.adversarial = 1;
    for (int seed = 0; seed < (quick() ? 8 : 40); seed++) {
        uint64_t first = 0;
        int known = 0;
        for (int again = 0; again < 2; again++) {
            SimCase *c;
            setup.schedule_seed = (uint64_t)seed;
            c = sim_case(sim_causal(13), &setup, NULL);
            assert_int_equal(0, sim_run(c));
            assert_true(again == 0 || c->report.schedule == first);
            assert_true(again == 1 || sim_right(c, "a schedule"));
            first = c->report.schedule;
            sim_case_free(c);
        }
        for (int s = 0; s < different; s++)
            known |= seen[s] == first;
        if (!known)
            seen[different++] = first;
    }
    assert_int_equal(quick() ? 8 : 40, different);
}
