/* SPDX-License-Identifier: MIT
 *
 * exchange.c: messages between ranks, two streams of work, and what may not be touched meanwhile.
 *
 * A message takes time, and a rank wants to compute meanwhile:
 *
 *     ring_send, ring_receive      what shall travel
 *     ring_start                   it sets out; the function returns at once
 *     ring_attend ...              other work
 *     ring_wait                    it has arrived, and what was sent may be overwritten
 *
 * Between start and wait the memory belongs to the message. To write what is being sent, or to read
 * what is being received, is the classic mistake of overlapped communication: it works on Monday,
 * when the network was quick. So the log keeps a list of what is in flight, and every function that
 * works on memory asks it first (ring_touch). A mistake is then an error in every run.
 *
 * So are two streams of work that meet. A GPU's kernel is done when its last block of threads is,
 * and until then more and more multiprocessors have nothing to do. A kernel behind it in the same
 * queue has to wait; one in another queue takes them at once. So each half of a sum that travels
 * (relay.c) has a stream:
 *
 *     one queue     half 0 ======--- half 1 ======---        --- some multiprocessors are idle
 *     stream 0        half 0 ======+
 *     stream 1                half 1 +=====+---
 *     stream 0, next step             half 0 +=====
 *
 * The price: nothing orders one stream and the other. What stream 0 writes stream 1 must not touch,
 * until something is asked for in both. On a GPU a mistake would show now and then, on a CPU never,
 * since there work is done when its function returns. So here every use of memory in a stream is
 * noted, and the other stream's uses are compared with it. (Where a method asks for attention in
 * both streams, a GPU deals out the heads to them by itself, half to each: backend_streams.cu.)
 *
 * Payload bytes are counted here, when they set out.
 *
 * Interface: ring_send, ring_receive, ring_start, ring_wait, ring_stream (rank.h); ring_touch,
 * ring_streams_forget, ring_post, ring_exchange_add, ring_host_send, ring_host_receive
 * (ring_world.h).
 */
#include <string.h>

#include "runtime/ring_world.h"

/* --- streams -----------------------------------------------------------------------------------*/

void ring_stream(RingRank *r, int stream)
{
    if (r->failed)
        return;
    if (stream < RING_BOTH_STREAMS || stream >= RING_STREAMS) {
        ring_fail(r, "there is no stream %d", stream);
        return;
    }
    r->log->stream = stream;
    if (r->backend->stream)
        r->backend->stream(r, stream);
}

static int overlaps(const RingStreamUse *use, const char *from, size_t bytes)
{
    return from < use->data + use->bytes && use->data < from + bytes;
}

/* Notes a use of this stream; a list of some dozen, since work in both streams empties it. */
static int note(RingRank *r, const char *from, size_t bytes, RingUse how)
{
    RingStreamList *list = &r->log->used[r->log->stream];
    for (int n = 0; n < list->count; n++)
        if (list->uses[n].data == from && list->uses[n].bytes == bytes && list->uses[n].how == how)
            return 0;
    if (ring_grow(r, &list->uses, list->count, &list->room, sizeof *list->uses,
                  "what a stream uses") != 0)
        return -1;
    list->uses[list->count++] = (RingStreamUse){from, bytes, how};
    return 0;
}

/* Of work and messages: fails where the other stream uses this memory, and notes the use. A message
 * in both streams comes after both, but does not make one wait for the other. Two that read do not
 * hurt each other, nor do two that add: the GPU adds to dQ atomically, and the
 * sum is the same in any order, but for rounding. */
static int meet_streams(RingRank *r, const void *p, size_t bytes, RingUse how, const char *who)
{
    const RingLog *log = r->log;
    if (log->stream == RING_BOTH_STREAMS || bytes == 0)
        return 0;
    const RingStreamList *other = &log->used[1 - log->stream];
    for (int n = 0; n < other->count; n++)
        if ((how != other->uses[n].how || how == RING_WRITES) &&
            overlaps(&other->uses[n], p, bytes))
            return ring_fail(r, "%s in stream %d %s memory that stream %d %s", who, log->stream,
                             how == RING_READS ? "reads" : "writes", 1 - log->stream,
                             other->uses[n].how == RING_READS ? "reads" : "writes");
    return note(r, p, bytes, how);
}

void ring_streams_forget(RingLog *log)
{
    for (int stream = 0; stream < RING_STREAMS; stream++)
        log->used[stream].count = 0;
}

/* Of work: in both streams, what was noted is over. A use of no bytes ends nothing: a GPU is not
 * asked for it, so its streams do not meet. */
static int use_in_stream(RingRank *r, const void *p, size_t bytes, RingUse how, const char *who)
{
    if (r->log->stream == RING_BOTH_STREAMS && bytes > 0)
        ring_streams_forget(r->log);
    return meet_streams(r, p, bytes, how, who);
}

/* --- what is in flight -------------------------------------------------------------------------*/

/* To read what is only being sent is harmless: keys may be computed on while they leave. So is
 * sending one block to several ranks. Every other use is a mistake. */
static int meet_flights(RingRank *r, const void *p, size_t bytes, int writes, const char *who)
{
    const char *from = p;
    for (int f = 0; f < r->log->flight_count; f++) {
        const RingFlight *flight = &r->log->flights[f];
        const int apart = from + bytes <= flight->data || flight->data + flight->bytes <= from;
        if (apart || (flight->sends && !writes))
            continue;
        return ring_fail(r, "%s %s memory in flight: %s %s rank %d, on its way since step %d", who,
                         writes ? "writes" : "reads", ring_tensor_name(flight->tensor),
                         flight->sends ? "to" : "from", flight->peer, flight->step);
    }
    return 0;
}

int ring_touch(RingRank *r, const void *p, size_t bytes, RingUse how, const char *who)
{
    return meet_flights(r, p, bytes, how != RING_READS, who) != 0
               ? -1
               : use_in_stream(r, p, bytes, how, who);
}

/* Listed until its exchange has been waited for. The list is short, so a walk through it costs
 * nothing beside a kernel. */
static int take_off(RingRank *r, const RingTransfer *t, int exchange)
{
    RingLog *log = r->log;
    if (ring_grow(r, &log->flights, log->flight_count, &log->flight_room, sizeof *log->flights,
                  "messages") != 0)
        return -1;
    log->flights[log->flight_count++] =
        (RingFlight){t->data, t->bytes, t->sends, t->peer, r->step, t->tensor, exchange};
    return 0;
}

/* All of an exchange lands together, in ring_wait: that is when the method may count on it, in the
 * stream that has waited. */
static int land(RingRank *r, int exchange)
{
    RingLog *log = r->log;
    int left = 0;
    for (int f = 0; f < log->flight_count; f++) {
        const RingFlight *flight = &log->flights[f];
        if (flight->exchange != exchange)
            log->flights[left++] = *flight;
        else if (meet_streams(r, flight->data, flight->bytes,
                              flight->sends ? RING_READS : RING_WRITES, "ring_wait") != 0)
            return -1;
    }
    log->flight_count = left;
    return 0;
}

/* --- messages ----------------------------------------------------------------------------------*/

/* The list of transfers grows by copying and not by realloc: it belongs to the log (ring_keep),
 * which frees it even if the method fails between here and ring_wait. */
int ring_exchange_add(RingRank *r, RingExchange *x, RingTransfer transfer)
{
    if (x->count == x->room) {
        const int room = 2 * x->room + 8;
        RingTransfer *more = ring_keep(r, (size_t)room * sizeof *more);
        if (!more)
            return -1;
        if (x->count)
            memcpy(more, x->list, (size_t)x->count * sizeof *more);
        ring_unkeep(r, x->list);
        x->list = more;
        x->room = room;
    }
    x->list[x->count++] = transfer;
    return 0;
}

/* What nobody has to carry is not carried: an empty shard, or a message to oneself. Both ends know
 * all sizes from the plan, so they agree on what is left out without a word. */
static int add_payload(RingRank *r, RingExchange *x, RingTransfer transfer)
{
    if (r->failed)
        return -1;
    if (x->started)
        return ring_fail(r, "%s is added to an exchange that is under way",
                         ring_tensor_name(transfer.tensor));
    if (transfer.peer < 0 || transfer.peer >= r->world)
        return ring_fail(r, "there is no rank %d", transfer.peer);
    if ((int)transfer.tensor < 0 || transfer.tensor >= RING_TENSORS)
        return ring_fail(r, "there is no tensor number %d", (int)transfer.tensor);
    if (transfer.bytes == 0 || transfer.peer == r->rank)
        return 0;
    return ring_exchange_add(r, x, transfer);
}

/* Nothing sets out yet. Collecting first and starting together is what makes the order of these
 * calls meaningless: a rank may name its sends first or its receives first, and no circle of ranks
 * that all wait for the other's receive can come about. `tensor` is the tag of the message: K and V
 * of one step travel at once, between the same two ranks, and without a tag the receiver could not
 * tell which of the two has come. */
int ring_send(RingRank *r, RingExchange *x, int peer, RingTensor tensor, const void *data,
              size_t bytes)
{
    return add_payload(r, x, (RingTransfer){1, peer, tensor, (void *)data, bytes, 0.0, -1});
}

int ring_receive(RingRank *r, RingExchange *x, int peer, RingTensor tensor, void *data,
                 size_t bytes)
{
    return add_payload(r, x, (RingTransfer){0, peer, tensor, data, bytes, 0.0, -1});
}

/* By pass and tensor, for the formulas; by step, for the picture; inside and between nodes, since
 * a byte between nodes takes longer. */
static void count_message(RingRank *r, const RingTransfer *t)
{
    RingTraffic *traffic = &r->log->traffic;
    const int inner = ring_link(&r->plan->setup, r->rank, t->peer) == RING_INNER;
    const int64_t bytes = (int64_t)t->bytes;
    traffic->sent[r->pass][t->tensor] += bytes;
    traffic->sent_step[r->pass][r->step] += bytes;
    traffic->messages[r->pass]++;
    (inner ? traffic->sent_inner : traffic->sent_outer)[r->pass] += bytes;
}

/* A message begins, for the picture, where the rank has asked for it and all earlier work is done.
 * Its end is written when it has been waited for. */
static int start_event(RingRank *r, const RingTransfer *t, int mark)
{
    return ring_log_event(r, &(RingEvent){.kind = t->sends ? RING_EVENT_SEND : RING_EVENT_RECEIVE,
                                          .peer = t->peer,
                                          .tensor = t->tensor,
                                          .start_mark = mark,
                                          .end_mark = mark,
                                          .bytes = (int64_t)t->bytes});
}

static int hand_over(RingRank *r, RingExchange *x)
{
    return (r->carrier ? r->carrier->start : r->transport->start)(r, x);
}

/* Checks, counts and lists all transfers, and hands them to the transport. Trailers and faults come
 * after the counting: they are no payload. */
int ring_start(RingRank *r, RingExchange *x)
{
    int mark = 0;
    if (r->failed)
        return -1;
    if (x->started)
        return ring_fail(r, "an exchange of step %d is started twice", x->step);
    if (x->count == 0)
        return 0;
    x->started = ++r->log->exchanges;
    x->step = r->step;
    if (r->log->trace && (mark = r->backend->mark(r, 2)) < 0)
        return -1;
    for (int i = 0; i < x->count; i++) {
        RingTransfer *t = &x->list[i];
        if (meet_flights(r, t->data, t->bytes, !t->sends, "ring_start") != 0 ||
            meet_streams(r, t->data, t->bytes, t->sends ? RING_READS : RING_WRITES, "ring_start") !=
                0 ||
            take_off(r, t, x->started) != 0)
            return -1;
        if (t->sends)
            count_message(r, t);
        t->event = start_event(r, t, mark);
    }
    if (r->plan->setup.verify_hops && ring_trailers_add(r, x) != 0)
        return -1;
    if (ring_fault_strike(r, x) != 0)
        return -1;
    if (x->count == 0)
        return 0;
    if (!r->backend->put_off)
        return hand_over(r, x);
    if (ring_post(r) != 0 || r->backend->put_off(r, x) != 0)
        return -1;
    r->log->put_off = x;
    return 0;
}

/* In the order of ring_start, on all ranks alike: so no circle can come about here either. */
int ring_post(RingRank *r)
{
    RingExchange *x = r->log->put_off;
    r->log->put_off = NULL;
    if (r->failed)
        return -1;
    return x ? hand_over(r, x) : 0;
}

/* A transport that knows when a transfer was complete says so in milliseconds; otherwise the mark
 * behind the wait is the time. */
static int end_events(RingRank *r, RingExchange *x)
{
    const int mark = r->backend->mark(r, 1);
    if (mark < 0)
        return -1;
    for (int i = 0; i < x->count; i++) {
        const RingTransfer *t = &x->list[i];
        if (t->event < 0 || t->event >= r->log->event_count)
            continue;
        r->log->events[t->event].end_mark = t->end_ms > 0.0 ? -1 : mark;
        r->log->events[t->event].end_ms = t->end_ms;
    }
    return 0;
}

/* A method may wait for an exchange that was never filled: then its first and last steps look like
 * the others. */
int ring_wait(RingRank *r, RingExchange *x)
{
    if (ring_post(r) != 0)
        return -1;
    if (x->started && x->count > 0 &&
        (r->carrier ? r->carrier->wait : r->transport->wait)(r, x) != 0)
        return -1;
    if (x->started && land(r, x->started) != 0)
        return -1;
    if (x->trailers && ring_trailers_check(r, x) != 0)
        return -1;
    if (x->started && r->log->trace && end_events(r, x) != 0)
        return -1;
    ring_unkeep(r, x->damaged);
    ring_unkeep(r, x->list);
    ring_unkeep(r, x->trailers);
    memset(x, 0, sizeof *x);
    return 0;
}

/* --- results -----------------------------------------------------------------------------------*/

/* No payload of a pass: not counted, not checked against other work, never carried by NCCL. Started
 * and waited for at once, since after a pass nothing is left to be hidden. */
static int host_message(RingRank *r, RingTransfer transfer)
{
    RingExchange x = {.list = &transfer, .count = 1};
    if (r->failed)
        return -1;
    if (transfer.bytes == 0)
        return 0;
    return r->transport->start(r, &x) != 0 ? -1 : r->transport->wait(r, &x);
}

int ring_host_send(RingRank *r, int peer, const void *data, size_t bytes)
{
    return host_message(r, (RingTransfer){1, peer, RING_TENSORS, (void *)data, bytes, 0.0, -1});
}

int ring_host_receive(RingRank *r, int peer, void *data, size_t bytes)
{
    return host_message(r, (RingTransfer){0, peer, RING_TENSORS, data, bytes, 0.0, -1});
}
