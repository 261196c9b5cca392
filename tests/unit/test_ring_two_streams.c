/* SPDX-License-Identifier: MIT
 *
 * test_ring_two_streams: two streams of work that must not meet.
 *
 * - What one stream writes and the other touches is an error, on a CPU as well, where it would do
 *   no harm; so is a message that one stream has waited for and the other uses.
 * - Two that read, two that add to the same dQ, and anything with work in both streams between them
 *   are none.
 */
#include "ring_sim_case.h"

#include "alloc.h"

/* A play of two streams, and what it is told: NULL where nothing is wrong. */
typedef struct Play {
    const char *name, *told;
    int (*scene)(RingRank *r);
} Play;

static const Play *on_stage;

static float *room_of(const RingRank *r)
{
    return ((const PlainRing *)r->method)->K[0];
}

static int write_in(RingRank *r, int stream)
{
    ring_stream(r, stream);
    return ring_zero(r, room_of(r), 16);
}

static float *other_room(RingRank *r)
{
    ring_stream(r, RING_BOTH_STREAMS);
    return ((const PlainRing *)r->method)->V[0];
}

/* What write_in writes, and this, overlap by a float. */
static int write_below_in_1(RingRank *r)
{
    ring_stream(r, 1);
    return ring_zero(r, room_of(r) + 3, 8);
}

/* To be in both streams is no work in both. */
static int write_and_write(RingRank *r)
{
    return write_in(r, 0) || !other_room(r) || write_below_in_1(r) ? -1 : 0;
}

static int write_both_write(RingRank *r)
{
    return write_in(r, 0) || ring_zero(r, other_room(r), 4) || write_below_in_1(r) ? -1 : 0;
}

/* What is over is over in both. */
static int write_1_both_write_0(RingRank *r)
{
    return write_in(r, 1) || ring_zero(r, other_room(r), 4) || write_in(r, 0) ? -1 : 0;
}

static int same_stream(RingRank *r)
{
    ring_stream(r, 1);
    return ring_zero(r, room_of(r), 16) || ring_add(r, room_of(r), r->K, 4) ? -1 : 0;
}

static int read_and_write(RingRank *r)
{
    ring_stream(r, 1);
    if (ring_add(r, room_of(r), r->K, 4))
        return -1;
    ring_stream(r, 0);
    return ring_zero(r, r->K, 4);
}

static int write_and_read(RingRank *r)
{
    if (write_in(r, 0))
        return -1;
    ring_stream(r, 1);
    return ring_add(r, ((const PlainRing *)r->method)->V[0], room_of(r), 4);
}

/* A copy is a use as well, of all of its rows. */
static int copy_over(RingRank *r)
{
    ring_stream(r, 0);
    if (ring_zero(r, room_of(r) + 1, 4))
        return -1;
    ring_stream(r, 1);
    return ring_copy(r, room_of(r), 4, r->K, 4, 4, 2);
}

static int write_1_copy_both_write_0(RingRank *r)
{
    return write_in(r, 1) || ring_copy(r, other_room(r), 4, r->K, 4, 4, 2) || write_in(r, 0) ? -1
                                                                                             : 0;
}

/* Nobody asks a GPU for nothing, so nothing is over. */
static int write_1_nothing_write_0(RingRank *r)
{
    const int nothing = write_in(r, 1) || ring_zero(r, other_room(r), 0) ||
                        ring_copy(r, other_room(r), 4, r->K, 4, 4, 0);
    return nothing || ring_copy(r, r->K, 4, r->V, 4, 0, 2) || write_in(r, 0) ? -1 : 0;
}

/* The second use of the same memory is another one, and so is one of more of it. */
static int read_write_and_read(RingRank *r)
{
    const PlainRing *ring = r->method;
    ring_stream(r, 0);
    if (ring_add(r, ring->V[0], room_of(r), 4) || ring_zero(r, room_of(r), 16))
        return -1;
    ring_stream(r, 1);
    return ring_add(r, ring->V[1], room_of(r), 4);
}

static int write_more_and_write(RingRank *r)
{
    ring_stream(r, 0);
    if (ring_zero(r, room_of(r), 4) || ring_zero(r, room_of(r), 16))
        return -1;
    ring_stream(r, 1);
    return ring_zero(r, room_of(r) + 3, 4);
}

static int write_and_nothing(RingRank *r)
{
    if (write_in(r, 0))
        return -1;
    ring_stream(r, 1);
    return ring_stream_use(r, room_of(r) + 1, 0, RING_WRITES, "nothing");
}

static int read_and_read(RingRank *r)
{
    const PlainRing *ring = r->method;
    ring_stream(r, 0);
    if (ring_add(r, ring->K[0], r->K, 4))
        return -1;
    ring_stream(r, 1);
    return ring_add(r, ring->V[0], r->K, 4);
}

static int neighbours(RingRank *r)
{
    if (write_in(r, 0))
        return -1;
    ring_stream(r, 1);
    return ring_zero(r, room_of(r) + 4, 16);
}

static int neighbours_below(RingRank *r)
{
    ring_stream(r, 0);
    if (ring_zero(r, room_of(r) + 4, 16))
        return -1;
    ring_stream(r, 1);
    return ring_zero(r, room_of(r), 16);
}

/* K of the other rank, waited for in `stream`, used in stream 1. */
static int receive(RingRank *r, int stream)
{
    const size_t bytes = ring_kv_bytes(r, r->rank);
    RingExchange x = {0};
    if (ring_step(r, 0) || ring_send(r, &x, 1 - r->rank, RING_K, r->K, bytes) ||
        ring_receive(r, &x, 1 - r->rank, RING_K, room_of(r), bytes) || ring_start(r, &x))
        return -1;
    ring_stream(r, stream);
    if (ring_wait(r, &x))
        return -1;
    ring_stream(r, 1);
    return ring_add(r, ((const PlainRing *)r->method)->V[0], room_of(r), 4);
}

static int waited_elsewhere(RingRank *r)
{
    return receive(r, 0);
}

static int waited_here(RingRank *r)
{
    return receive(r, 1);
}

static int waited_in_both(RingRank *r)
{
    return receive(r, RING_BOTH_STREAMS);
}

/* Trailers of one exchange are freed before those of the next are made, often in the same place:
 * that is no memory of the method's. */
static int verified_in_turns(RingRank *r)
{
    const PlainRing *ring = r->method;
    for (int turn = 0; turn < 40; turn++) {
        RingExchange x = {0};
        ring_stream(r, turn % 2);
        if (ring_step(r, 0) || ring_send(r, &x, 1 - r->rank, RING_K, r->K, 16) ||
            ring_receive(r, &x, 1 - r->rank, RING_K, turn % 2 ? ring->K[0] : ring->V[0], 16) ||
            ring_start(r, &x) || ring_wait(r, &x))
            return -1;
    }
    return 0;
}

/* What stream 0 computes leaves in stream 1. */
static int sent_elsewhere(RingRank *r)
{
    RingExchange x = {0};
    ring_stream(r, 0);
    if (ring_step(r, 0) || ring_zero(r, room_of(r), 16))
        return -1;
    ring_stream(r, 1);
    return ring_send(r, &x, 1 - r->rank, RING_K, room_of(r), 16) || ring_start(r, &x) ? -1 : 0;
}

static int no_such_stream(RingRank *r)
{
    ring_stream(r, 2);
    return r->failed ? -1 : 0;
}

static int no_stream_below(RingRank *r)
{
    ring_stream(r, RING_BOTH_STREAMS - 1);
    return r->failed ? -1 : 0;
}

static const Play plays[] = {
    {"write, write", "ring_zero in stream 1 writes memory that stream 0 writes", write_and_write},
    {"write, both, write", NULL, write_both_write},
    {"write in 1, both, write in 0", NULL, write_1_both_write_0},
    {"write, copy", "ring_copy in stream 1 writes memory that stream 0 writes", copy_over},
    {"write in 1, copy in both, write in 0", NULL, write_1_copy_both_write_0},
    {"write in 1, nothing in both, write in 0",
     "ring_zero in stream 0 writes memory that stream 1 writes", write_1_nothing_write_0},
    {"one stream", NULL, same_stream},
    {"read, write", "ring_zero in stream 0 writes memory that stream 1 reads", read_and_write},
    {"write, read", "ring_add in stream 1 reads memory that stream 0 writes", write_and_read},
    {"read, write, read", "ring_add in stream 1 reads memory that stream 0 writes",
     read_write_and_read},
    {"write, write more, write", "ring_zero in stream 1 writes memory that stream 0 writes",
     write_more_and_write},
    {"write, nothing", NULL, write_and_nothing},
    {"read, read", NULL, read_and_read},
    {"neighbours", NULL, neighbours},
    {"neighbours below", NULL, neighbours_below},
    {"waited elsewhere", "ring_add in stream 1 reads memory that stream 0 writes",
     waited_elsewhere},
    {"waited here", NULL, waited_here},
    {"waited in both", NULL, waited_in_both},
    {"sent elsewhere", "ring_start in stream 1 reads memory that stream 0 writes", sent_elsewhere},
    {"no such stream", "there is no stream 2", no_such_stream},
    {"no stream below", "there is no stream -2", no_stream_below},
    {"verified", NULL, verified_in_turns},
};

/* The results are not looked at. */
static int play_forward(RingRank *r)
{
    const int status = on_stage->scene(r);
    ring_stream(r, RING_BOTH_STREAMS);
    return status;
}

TEST(test_streams_must_not_meet)
{
    const RingMethodTable table = {plain_open, play_forward, NULL, plain_close};
    for (size_t n = 0; n < sizeof plays / sizeof *plays; n++) {
        RingSetup setup = sim_setup(2, RING_CONTIGUOUS);
        on_stage = &plays[n];
        setup.verify_hops = on_stage->scene == verified_in_turns;
        sim_run_table(&table, setup, on_stage->told);
    }
}

/* Halves of the own keys, each in its stream: dQ is the same sum, dK and dV are two. same: both
 * halves add to the first one's. What is computed does not matter, so Q stands for dO. */
static int differentiate_halves(RingRank *r, int same)
{
    const PlainRing *ring = r->method;
    const RingBlock own = ring_own_keys(r);
    RingBlock q = ring_own_queries(r);
    q.b = r->Q;
    q.delta = ring->delta;
    for (int half = 0; half < RING_HALVES; half++) {
        const RingBlock keys = ring_block_half(r, &own, half);
        const int64_t skip = same ? 0 : half * ring_kv_count(r, own.tokens / 2);
        ring_stream(r, half);
        if (ring_differentiate(r, &q, &keys, ring->O_state, ring->dK[0] + skip, ring->dV[0] + skip))
            return -1;
    }
    ring_stream(r, RING_BOTH_STREAMS);
    return 0;
}

static int apart_forward(RingRank *r)
{
    return differentiate_halves(r, 0);
}

static int together_forward(RingRank *r)
{
    return differentiate_halves(r, 1);
}

TEST(test_two_streams_may_add_to_one_dQ)
{
    const RingMethodTable apart = {plain_open, apart_forward, NULL, plain_close};
    const RingMethodTable together = {plain_open, together_forward, NULL, plain_close};
    sim_run_table(&apart, sim_setup(1, RING_CONTIGUOUS), NULL);
    sim_run_table(&together, sim_setup(1, RING_CONTIGUOUS),
                  "ring_differentiate in stream 1 writes memory that stream 0 writes");
}
