/* SPDX-License-Identifier: MIT
 *
 * test_ring_touch: every function of rank.h asks for all of the memory that it is given.
 *
 * Each call is made once for each of its arguments with a message on its way in the first bytes of
 * that argument, and once in the last ones: one that is being received must not be touched at all,
 * one that is being sent not be written. With a message right in front of the argument or behind it
 * the call does its work. Two batches and quarters of blocks, whose last token is far from the
 * first.
 */
#include "ring_sim_case.h"

#include <stdarg.h>

typedef struct Argument {
    const char *name;
    const void *data;
    size_t bytes;
    int writes; /* the call writes to it */
} Argument;

/* What the calls are made with; the rank is alone. */
typedef struct Work {
    RingRank *r;
    RingBlock q, k, part_q, part_k;
    float *O_state, *O, *rows, *delta, *dQ, *dK, *dV;
    size_t q_sums, k_sums, row_bytes; /* of whole blocks in float32 */
} Work;

/* As many bytes as a run over both batches has, in the dtype (float32 here). */
static size_t span(const Work *w, const RingBlock *b)
{
    const AttnShape *n = &w->r->plan->shape;
    return (size_t)(((n->B - 1) * b->batch_stride + b->tokens) * b->heads * n->d) * sizeof(float);
}

/* --- the calls ---------------------------------------------------------------------------------*/

#define CALL(name, ...)                                                                            \
    static int name(Work *w)                                                                       \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }
CALL(attend, ring_attend(w->r, &w->q, &w->k, w->O_state, w->r->lse))
CALL(attend_part, ring_attend(w->r, &w->q, &w->part_k, w->O_state, w->r->lse))
CALL(differentiate, ring_differentiate(w->r, &w->part_q, &w->part_k, w->dQ, w->dK, w->dV))
CALL(start_state, ring_start_state(w->r, &w->q, w->O_state, w->r->lse))
CALL(finish_O, ring_finish_O(w->r, &w->q, w->r->O, w->O_state))
CALL(make_delta, ring_delta(w->r, &w->q, w->r->O, w->delta))
CALL(add, ring_add(w->r, w->dK, w->dV, (int64_t)(w->k_sums / sizeof(float))))
CALL(narrow, ring_narrow(w->r, w->dK, (int64_t)(w->k_sums / sizeof(float)), ATTN_BF16))
CALL(widen, ring_widen(w->r, w->dK, (int64_t)(w->k_sums / sizeof(float)), ATTN_BF16))
CALL(split_rows, ring_split_rows(w->r, w->delta, w->r->lse))
CALL(zero, ring_zero(w->r, w->dV, w->k_sums))

/* --- messages in the way -----------------------------------------------------------------------*/

/* The first thing that is wrong. It is told in the end, by the main thread, to which cmocka's
 * checks belong: a rank is another. */
static char fault[200];

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (!fault[0])
        vsnprintf(fault, sizeof fault, format, list);
    va_end(list);
}

/* 1: the call was refused, for memory in flight. The rank goes on after it as if it had not. */
static int refused(Work *w, int (*call)(Work *), const char *at, int sends)
{
    RingLog *log = w->r->log;
    RingFlight *const flights = log->flights, message = {.data = at, .bytes = 1, .sends = sends};
    const int count = log->flight_count;
    RingFlight in_the_way[1] = {message};
    int status;
    log->flights = in_the_way;
    log->flight_count = 1;
    status = call(w);
    log->flights = flights;
    log->flight_count = count;
    if (w->r->failed != (status != 0) || (status && !strstr(w->r->failure, " memory in flight: ")))
        note("another failure than that of a message: %s", w->r->failure);
    w->r->failed = 0;
    return status != 0;
}

static void check_call(Work *w, const char *name, int (*call)(Work *), const Argument *list,
                       int count)
{
    for (int n = 0; n < count; n++) {
        const Argument *a = &list[n];
        const char *first = a->data, *last = first + a->bytes - 1;
        for (int sends = 0; sends < 2; sends++) {
            const int wanted = a->writes || !sends;
            if (refused(w, call, first, sends) != wanted || refused(w, call, last, sends) != wanted)
                note("%s with %s that is being %s: %s", name, a->name, sends ? "sent" : "received",
                     wanted ? "not refused" : "refused");
        }
        if (refused(w, call, first - 1, 0) || refused(w, call, last + 1, 0))
            note("%s is refused for memory beside %s", name, a->name);
    }
}

#define CHECK(call, ...)                                                                           \
    do {                                                                                           \
        const Argument list[] = {__VA_ARGS__};                                                     \
        check_call(w, #call, call, list, (int)(sizeof list / sizeof *list));                       \
    } while (0)

static void check_queries(Work *w)
{
    const RingRank *r = w->r;
    const size_t q = w->q_sums, row = w->row_bytes;
    CHECK(start_state, {"O_state", w->O_state, q, 1}, {"lse", r->lse, row, 1},
          {"rows", w->rows, 3 * row, 1});
    CHECK(attend, {"Q", w->q.a, q, 0}, {"K", w->k.a, w->k_sums, 0}, {"V", w->k.b, w->k_sums, 0},
          {"O_state", w->O_state, q, 1}, {"lse", r->lse, row, 1}, {"rows", w->rows, 3 * row, 1},
          {"O", w->O, q, 1});
    CHECK(attend_part, {"a quarter of K", w->part_k.a, span(w, &w->part_k), 0},
          {"a quarter of V", w->part_k.b, span(w, &w->part_k), 0});
    CHECK(finish_O, {"O", r->O, q, 1}, {"O_state", w->O_state, q, 1},
          {"rows", w->rows, 3 * row, 0});
    CHECK(make_delta, {"dO", r->dO, q, 0}, {"O", r->O, q, 0}, {"delta", w->delta, row, 1});
    CHECK(split_rows, {"lse", r->lse, row, 0}, {"halves", w->delta, row, 1});
}

static void check_gradients(Work *w)
{
    const RingBlock *q = &w->part_q, *k = &w->part_k;
    const size_t rows = (size_t)(w->r->plan->shape.B * q->tokens * q->heads) * sizeof(float);
    const size_t q_part = rows * (size_t)w->r->plan->shape.d;
    const size_t k_part = (size_t)ring_kv_count(w->r, k->tokens) * sizeof(float);
    CHECK(differentiate, {"a quarter of Q", q->a, span(w, q), 0},
          {"a quarter of dO", q->b, span(w, q), 0}, {"a quarter of K", k->a, span(w, k), 0},
          {"a quarter of V", k->b, span(w, k), 0}, {"lse", q->lse, rows, 0},
          {"delta", q->delta, rows, 0}, {"dQ", w->dQ, q_part, 1}, {"dK", w->dK, k_part, 1},
          {"dV", w->dV, k_part, 1});
    CHECK(add, {"to", w->dK, w->k_sums, 1}, {"from", w->dV, w->k_sums, 0});
    CHECK(narrow, {"sums", w->dK, w->k_sums, 1});
    CHECK(widen, {"sums", w->dK, w->k_sums, 1});
    CHECK(zero, {"memory", w->dV, w->k_sums, 1});
}

/* --- a rank ------------------------------------------------------------------------------------*/

static float *new_floats(RingRank *r, size_t bytes)
{
    float *p = ring_alloc(r, bytes, "a test's memory");
    ring_zero(r, p, bytes);
    return p;
}

/* As a method's backward pass: then dO is there too. */
static int touching_backward(RingRank *r)
{
    Work work = {.r = r}, *w = &work;
    const RingTransport *const transport = r->transport;
    static const RingTransport silent = {.name = "silent"}; /* a refusal is no failure here */
    w->q_sums = ring_q_bytes(r, 0), w->k_sums = ring_kv_bytes(r, 0),
    w->row_bytes = ring_row_bytes(r, 0);
    w->O_state = new_floats(r, w->q_sums), w->O = new_floats(r, w->q_sums);
    w->rows = new_floats(r, 3 * w->row_bytes), w->delta = new_floats(r, w->row_bytes);
    r->dQ = w->dQ = new_floats(r, r->dQ_bytes = w->q_sums);
    r->dK = w->dK = new_floats(r, r->dK_bytes = w->k_sums);
    r->dV = w->dV = new_floats(r, r->dV_bytes = w->k_sums);
    r->dQ_whole = r->dKV_whole = 1;
    w->q = ring_own_queries(r), w->k = ring_own_keys(r);
    w->q.delta = w->delta, w->q.rows = w->rows, w->q.O = w->O;
    w->part_q = ring_block_quarter(r, &r->plan->q[0], &w->q, 1);
    w->part_k = ring_block_quarter(r, &r->plan->k[0], &w->k, 0);
    w->part_q.rows = NULL, w->part_q.O = NULL;
    r->transport = &silent;
    check_queries(w);
    check_gradients(w);
    r->transport = transport;
    ring_free(r, w->O_state, w->q_sums);
    ring_free(r, w->O, w->q_sums);
    ring_free(r, w->rows, 3 * w->row_bytes);
    ring_free(r, w->delta, w->row_bytes);
    return 0;
}

static int empty_forward(RingRank *r)
{
    ring_zero(r, r->O, ring_q_bytes(r, 0));
    return ring_zero(r, r->lse, ring_row_bytes(r, 0));
}

TEST(all_memory_is_asked_for)
{
    const RingMethodTable table = {NULL, empty_forward, touching_backward, NULL};
    const RingSetup setup = sim_setup(1, RING_CONTIGUOUS);
    const Option o = {"two batches", {2, 2, 1, 9, 7, 4}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    SimCase *c = sim_case(case_option(&o, ATTN_F32, 1, 1), &setup, &table);
    assert_true(c->plan.backward);
    if (sim_run(c) != 0)
        fail_msg("%s", c->report.failure);
    if (fault[0])
        fail_msg("%s", fault);
    sim_case_free(c);
}
