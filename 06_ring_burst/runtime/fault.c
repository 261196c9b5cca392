/* SPDX-License-Identifier: MIT
 *
 * fault.c: faults on purpose, and the checksums that notice them.
 *
 * A ring is only as reliable as its worst link. What does a lost, doubled or damaged message look
 * like from inside? Try it:
 *
 *     ring_burst --method ring --inject corrupt@1:2                  a wrong answer somewhere
 *     ring_burst --method ring --inject corrupt@1:2 --verify-hops    who, when, which tensor
 *
 * A fault strikes the first message that the rank sends in that step. Steps are counted through
 * both passes. In a benchmark it strikes in every round: so the round whose results are checked has
 * it, and each sample has the time that it costs.
 *
 * With --verify-hops a trailer travels behind each message, in the same channel:
 *
 *     sender    data, trailer {number of the message in its channel, checksum of the data, step}
 *     receiver  data, trailer: is the number the next one? is it the checksum of what arrived?
 *
 * A damaged message shows in the checksum; a doubled one in the number, since the copy comes where
 * the next one is expected. A lost one leaves a gap in the numbers, or nothing comes at all, and
 * the receiver's time-out tells.
 *
 * Interface: ring_fault_step, ring_fault_strike, ring_fault_missed, ring_trailers_add,
 * ring_trailers_check (ring_world.h).
 */

#include "runtime/ring_world.h"
#include <string.h>
#include <time.h>

static const char *const kinds[] = {"none", "drop", "duplicate", "corrupt", "delay", "exit"};

/* 1: the fault belongs to this rank, and its step is the one that has begun last. */
static int due(const RingRank *r)
{
    const RingFault *fault = &r->plan->setup.fault;
    return fault->kind != RING_NO_FAULT && !r->log->fault_struck && fault->rank == r->rank &&
           fault->step == r->log->fault_steps - 1;
}

/* A process really ends in `leave`; a thread cannot be killed, so it fails here and unwinds. */
int ring_fault_step(RingRank *r)
{
    if (!due(r) || r->plan->setup.fault.kind != RING_EXIT)
        return 0;
    r->log->fault_struck = 1;
    r->transport->leave(r);
    return ring_fail(r, "left (--inject exit)");
}

/* Transfer t is not in the list any more; `width` = 2: nor is its trailer. The receiver has started
 * its half and will wait for a message that nobody sends. */
static void drop(RingExchange *x, int t, int width)
{
    memmove(&x->list[t], &x->list[t + width], (size_t)(x->count - t - width) * sizeof x->list[0]);
    x->count -= width;
}

/* Transfer t and its trailer stand twice, one behind the other. The receiver is not told. It takes
 * the copy for the next message of that tensor: the wrong keys, at the right place, of the right
 * size. Nothing but a number or a wrong result can show it. */
static int duplicate(RingRank *r, RingExchange *x, int t, int width)
{
    for (int w = 0; w < width; w++)
        if (ring_exchange_add(r, x, x->list[t]) != 0)
            return -1;
    memmove(&x->list[t + width], &x->list[t], (size_t)(x->count - t - width) * sizeof x->list[0]);
    for (int w = 0; w < width; w++)
        x->list[t + width + w].event = -1;
    return 0;
}

/* The sender's own data stay what they are: a copy with a flipped bit is sent. The bit is one of
 * the exponent (the second highest, in every dtype), or the difference could hide in rounding. */
static int corrupt(RingRank *r, RingExchange *x, int t)
{
    const size_t bytes = x->list[t].bytes;
    unsigned char *copy = ring_keep(r, bytes);
    if (!copy || r->backend->download(r, copy, x->list[t].data, bytes) != 0)
        return -1;
    copy[bytes - 1] ^= 0x40;
    x->damaged = x->list[t].data = copy;
    return 0;
}

/* A quarter of the time-out, and at most 0.2 s. A late message is no error: every method has to be
 * right with it. It costs time, and that is all. */
static void delay(const RingRank *r)
{
    const double quarter = r->plan->setup.timeout_s / 4.0, seconds = quarter < 0.2 ? quarter : 0.2;
    struct timespec time = {0, (long)(seconds * 1e9)};
    nanosleep(&time, NULL);
}

/* The first message that this rank *sends* in the step: receives are skipped. */
int ring_fault_strike(RingRank *r, RingExchange *x)
{
    const int width = x->trailers ? 2 : 1;
    int t = 0;
    if (!due(r))
        return 0;
    while (t < x->count && !x->list[t].sends)
        t += width;
    if (t >= x->count)
        return 0;
    r->log->fault_struck = 1;
    switch (r->plan->setup.fault.kind) {
    case RING_DROP:
        drop(x, t, width);
        return 0;
    case RING_DUPLICATE:
        return duplicate(r, x, t, width);
    case RING_CORRUPT:
        return corrupt(r, x, t);
    case RING_DELAY:
        delay(r);
        return 0;
    default:
        return 0;
    }
}

/* A test that injects nothing passes for the wrong reason, so a fault that never struck is a
 * failure. */
int ring_fault_missed(RingRank *r)
{
    const RingFault *fault = &r->plan->setup.fault;
    if (fault->kind == RING_NO_FAULT || fault->rank != r->rank || r->log->fault_struck)
        return 0;
    return ring_fail(r, "--inject %s@%d:%d did not happen: rank %d %s %d (it began %d steps)",
                     kinds[fault->kind], fault->rank, fault->step, fault->rank,
                     fault->kind == RING_EXIT ? "never came to step" : "sends nothing in step",
                     fault->step, r->log->fault_steps);
}

/* --- checksums ---------------------------------------------------------------------------------*/

/* FNV-1a over 8 bytes at a time. Each round is a bijection of the sum, so that one wrong word can
 * not cancel out. The data may lie on a GPU: they come by pieces. */
static int checksum(RingRank *r, const void *data, size_t bytes, uint64_t *sum)
{
    uint64_t piece[512];
    *sum = UINT64_C(0xCBF29CE484222325);
    for (size_t at = 0; at < bytes; at += sizeof piece) {
        const size_t size = bytes - at < sizeof piece ? bytes - at : sizeof piece;
        memset(piece, 0, sizeof piece);
        if (r->backend->download(r, piece, (const char *)data + at, size) != 0)
            return -1;
        for (size_t w = 0; w < (size + 7) / 8; w++)
            *sum = (*sum ^ piece[w]) * UINT64_C(0x100000001B3);
    }
    return 0;
}

/* The list grows from d d d to d t d t d t. */
int ring_trailers_add(RingRank *r, RingExchange *x)
{
    const int count = x->count;
    x->trailers = ring_keep(r, 2 * (size_t)count * sizeof *x->trailers);
    if (!x->trailers)
        return -1;
    x->expected = count;
    for (int i = 0; i < count; i++)
        if (ring_exchange_add(r, x, x->list[i]) != 0)
            return -1;
    for (int i = count - 1; i >= 0; i--) {
        RingTrailer *trailer = &x->trailers[i];
        RingTransfer *t = &x->list[2 * i];
        *t = x->list[i];
        t[1] = (RingTransfer){t->sends, t->peer, t->tensor, trailer, sizeof *trailer, 0.0, -1};
    }
    for (int i = 0; i < count; i++) {
        const RingTransfer *t = &x->list[2 * i];
        RingTrailer *trailer = &x->trailers[i];
        if (!t->sends) { /* what is expected stands beside the trailers that will come */
            trailer[count].number = r->log->hop_number[t->peer][0][t->tensor]++;
            continue;
        }
        trailer->number = r->log->hop_number[t->peer][1][t->tensor]++;
        trailer->bytes = t->bytes;
        trailer->pass = (int32_t)r->pass;
        trailer->step = r->step;
        if (checksum(r, t->data, t->bytes, &trailer->checksum) != 0)
            return -1;
    }
    return 0;
}

/* First the number, then the sum: of a message that came twice the sum is right. */
static int check_one(RingRank *r, const RingTransfer *t, const RingTrailer *trailer,
                     int64_t expected)
{
    const char *name = ring_tensor_name(t->tensor);
    uint64_t sum;
    if (trailer->number != expected)
        return ring_fail(
            r,
            "%s from rank %d is its message %lld, number %lld was due: %s (sent in its "
            "%s step %d)",
            name, t->peer, (long long)trailer->number, (long long)expected,
            trailer->number < expected ? "it came twice" : "one is lost",
            ring_pass_name((RingPass)trailer->pass), (int)trailer->step);
    if (checksum(r, t->data, t->bytes, &sum) != 0)
        return -1;
    if (sum != trailer->checksum || trailer->bytes != t->bytes)
        return ring_fail(r,
                         "%s from rank %d is damaged: checksum %016llx, sent was %016llx (sent in "
                         "its %s step %d)",
                         name, t->peer, (unsigned long long)sum,
                         (unsigned long long)trailer->checksum,
                         ring_pass_name((RingPass)trailer->pass), (int)trailer->step);
    return 0;
}

/* After the wait: data and trailer of each message are there. */
int ring_trailers_check(RingRank *r, RingExchange *x)
{
    for (int i = 0; i + 1 < x->count; i += 2)
        if (!x->list[i].sends) {
            const RingTrailer *trailer = x->list[i + 1].data;
            if (check_one(r, &x->list[i], trailer, trailer[x->expected].number) != 0)
                return -1;
        }
    return 0;
}
