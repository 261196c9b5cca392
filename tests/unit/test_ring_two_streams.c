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

enum { K0, V0, V1, OWN_K, OWN_V, ROOMS };
enum { BOTH = RING_BOTH_STREAMS };
typedef enum Kind { NOTHING, ZERO, ADD, COPY, USE, TO_BE_IN } Kind;

/* What one stream does from float `at` of a room on, with `size` bytes (ADD: floats; COPY: in each
 * of `rows` rows, 4 bytes apart). */
typedef struct Act {
    Kind kind;
    int stream, to, at, from;
    int64_t size, rows;
} Act;

/* A play of two streams, and what it is told: NULL where nothing is wrong. */
typedef struct Play {
    const char *name, *told;
    int (*scene)(RingRank *r, int stream); /* NULL: the acts */
    int stream;
    Act acts[5];
} Play;

static const Play *on_stage;

static float *room_of(const RingRank *r)
{
    return ((const Rooms *)r->method)->K[0];
}

static int play_act(RingRank *r, const Act *a)
{
    const Rooms *ring = r->method;
    float *const rooms[ROOMS] = {ring->K[0], ring->V[0], ring->V[1], r->K, r->V};
    float *to = rooms[a->to] + a->at, *from = rooms[a->from];
    const size_t size = (size_t)a->size;
    ring_stream(r, a->stream);
    return a->kind == ZERO   ? ring_zero(r, to, size)
           : a->kind == ADD  ? ring_add(r, to, from, a->size)
           : a->kind == COPY ? ring_copy(r, to, 4, from, 4, size, a->rows)
           : a->kind == USE  ? ring_touch(r, to, size, RING_WRITES, "nothing")
           : r->failed       ? -1
                             : 0;
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
    return ring_add(r, ((const Rooms *)r->method)->V[0], room_of(r), 4);
}

/* Trailers of one exchange are freed before those of the next are made, often in the same place:
 * that is no memory of the method's. */
static int verified_in_turns(RingRank *r, int unused)
{
    const Rooms *ring = r->method;
    (void)unused;
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
static int sent_elsewhere(RingRank *r, int stream)
{
    RingExchange x = {0};
    ring_stream(r, 0);
    if (ring_step(r, 0) || ring_zero(r, room_of(r), 16))
        return -1;
    ring_stream(r, stream);
    return ring_send(r, &x, 1 - r->rank, RING_K, room_of(r), 16) || ring_start(r, &x) ? -1 : 0;
}

#define WRITE_IN(stream)                                                                           \
    {                                                                                              \
        ZERO, stream, K0, 0, 0, 16, 0                                                              \
    }

/* clang-format off */
static const Play plays[] = {
    /* to be in both streams is no work in both */
    {"write, write", "ring_zero in stream 1 writes memory that stream 0 writes", NULL, 0,
     {WRITE_IN(0), {TO_BE_IN, BOTH, 0, 0, 0, 0, 0}, {ZERO, 1, K0, 3, 0, 8, 0}}},
    {"write, both, write", NULL, NULL, 0,
     {WRITE_IN(0), {ZERO, BOTH, V0, 0, 0, 4, 0}, {ZERO, 1, K0, 3, 0, 8, 0}}},
    /* what is over is over in both */
    {"write in 1, both, write in 0", NULL, NULL, 0,
     {WRITE_IN(1), {ZERO, BOTH, V0, 0, 0, 4, 0}, WRITE_IN(0)}},
    /* a copy is a use as well, of all of its rows */
    {"write, copy", "ring_copy in stream 1 writes memory that stream 0 writes", NULL, 0,
     {{ZERO, 0, K0, 1, 0, 4, 0}, {COPY, 1, K0, 0, OWN_K, 4, 2}}},
    {"write in 1, copy in both, write in 0", NULL, NULL, 0,
     {WRITE_IN(1), {COPY, BOTH, V0, 0, OWN_K, 4, 2}, WRITE_IN(0)}},
    /* nobody asks a GPU for nothing, so nothing is over */
    {"write in 1, nothing in both, write in 0",
     "ring_zero in stream 0 writes memory that stream 1 writes", NULL, 0,
     {WRITE_IN(1), {ZERO, BOTH, V0, 0, 0, 0, 0}, {COPY, BOTH, V0, 0, OWN_K, 4, 0},
      {COPY, BOTH, OWN_K, 0, OWN_V, 0, 2}, WRITE_IN(0)}},
    {"one stream", NULL, NULL, 0, {WRITE_IN(1), {ADD, 1, K0, 0, OWN_K, 4, 0}}},
    {"read, write", "ring_zero in stream 0 writes memory that stream 1 reads", NULL, 0,
     {{ADD, 1, K0, 0, OWN_K, 4, 0}, {ZERO, 0, OWN_K, 0, 0, 4, 0}}},
    {"write, read", "ring_add in stream 1 reads memory that stream 0 writes", NULL, 0,
     {WRITE_IN(0), {ADD, 1, V0, 0, K0, 4, 0}}},
    /* the second use of the same memory is another one, and so is one of more of it */
    {"read, write, read", "ring_add in stream 1 reads memory that stream 0 writes", NULL, 0,
     {{ADD, 0, V0, 0, K0, 4, 0}, WRITE_IN(0), {ADD, 1, V1, 0, K0, 4, 0}}},
    {"write, write more, write", "ring_zero in stream 1 writes memory that stream 0 writes", NULL,
     0, {{ZERO, 0, K0, 0, 0, 4, 0}, WRITE_IN(0), {ZERO, 1, K0, 3, 0, 4, 0}}},
    {"write, nothing", NULL, NULL, 0, {WRITE_IN(0), {USE, 1, K0, 1, 0, 0, 0}}},
    {"read, read", NULL, NULL, 0, {{ADD, 0, K0, 0, OWN_K, 4, 0}, {ADD, 1, V0, 0, OWN_K, 4, 0}}},
    {"neighbours", NULL, NULL, 0, {WRITE_IN(0), {ZERO, 1, K0, 4, 0, 16, 0}}},
    {"neighbours below", NULL, NULL, 0, {{ZERO, 0, K0, 4, 0, 16, 0}, WRITE_IN(1)}},
    {"waited elsewhere", "ring_add in stream 1 reads memory that stream 0 writes", receive, 0,
     {{0}}},
    {"waited here", NULL, receive, 1, {{0}}},
    {"waited in both", NULL, receive, BOTH, {{0}}},
    {"sent elsewhere", "ring_start in stream 1 reads memory that stream 0 writes", sent_elsewhere,
     1, {{0}}},
    {"no such stream", "there is no stream 2", NULL, 0, {{TO_BE_IN, 2, 0, 0, 0, 0, 0}}},
    {"no stream below", "there is no stream -2", NULL, 0, {{TO_BE_IN, BOTH - 1, 0, 0, 0, 0, 0}}},
    {"verified", NULL, verified_in_turns, 0, {{0}}},
};
/* clang-format on */

/* The results are not looked at. */
static int play_forward(RingRank *r)
{
    int status = on_stage->scene ? on_stage->scene(r, on_stage->stream) : 0;
    for (int n = 0; n < 5 && on_stage->acts[n].kind != NOTHING && status == 0; n++)
        status = play_act(r, &on_stage->acts[n]);
    ring_stream(r, RING_BOTH_STREAMS);
    return status;
}

TEST(test_streams_must_not_meet)
{
    const RingMethodTable table = {rooms_open, play_forward, NULL, NULL};
    for (size_t n = 0; n < sizeof plays / sizeof *plays; n++) {
        RingSetup setup = sim_setup(2, RING_CONTIGUOUS);
        on_stage = &plays[n];
        setup.verify_hops = on_stage->scene == verified_in_turns;
        sim_run_table(&table, setup, on_stage->told);
    }
}

/* Two quarters of the own keys, each in its stream: dQ is the same sum, dK and dV are two. same:
 * both add to the first one's. What is computed does not matter, so Q stands for dO. */
static int differentiate_quarters(RingRank *r, int same)
{
    const Rooms *ring = r->method;
    const RingBlock own = ring_own_keys(r);
    RingBlock q = ring_own_queries(r);
    q.b = r->Q;
    q.delta = ring->delta;
    for (int stream = 0; stream < RING_STREAMS; stream++) {
        const RingBlock keys = ring_block_quarter(r, &r->plan->k[r->rank], &own, stream);
        const int64_t skip = same ? 0 : stream * ring_kv_count(r, own.tokens / 2);
        ring_stream(r, stream);
        if (ring_differentiate(r, &q, &keys, ring->O_state, ring->dK[0] + skip, ring->dV[0] + skip))
            return -1;
    }
    ring_stream(r, RING_BOTH_STREAMS);
    return 0;
}

static int apart_forward(RingRank *r)
{
    return differentiate_quarters(r, 0);
}

static int together_forward(RingRank *r)
{
    return differentiate_quarters(r, 1);
}

TEST(test_two_streams_may_add_to_one_dQ)
{
    const RingMethodTable apart = {rooms_open, apart_forward, NULL, NULL};
    const RingMethodTable together = {rooms_open, together_forward, NULL, NULL};
    sim_run_table(&apart, sim_setup(1, RING_CONTIGUOUS), NULL);
    sim_run_table(&together, sim_setup(1, RING_CONTIGUOUS),
                  "ring_differentiate in stream 1 writes memory that stream 0 writes");
}
