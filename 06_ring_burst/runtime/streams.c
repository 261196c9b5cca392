/* SPDX-License-Identifier: MIT
 *
 * streams.c: two queues of work for one rank, and what must not meet in them.
 *
 * A GPU's kernel is done when its last block of threads is, and until then more and more
 * multiprocessors have nothing to do. A kernel behind it in the same queue has to wait; one in
 * another queue takes them at once. So each half of a sum that travels (relay.c) has a stream:
 *
 *     one queue     half 0 ======--- half 1 ======---        --- some multiprocessors are idle
 *     stream 0        half 0 ======+
 *     stream 1                half 1 +=====+---
 *     stream 0, next step             half 0 +=====
 *
 * (Where a method asks for attention in both streams, a GPU deals out the heads to them by itself,
 * half to each: backend_streams.cu. This file is about streams that a method asks for.)
 *
 * The price: nothing orders one stream and the other. What stream 0 writes stream 1 must not touch,
 * until something is asked for in both. On a GPU a mistake would show now and then, on a CPU never,
 * since there work is done when its function returns. So here every use of memory in a stream is
 * noted, and the other stream's uses are compared with it: a mistake is an error in every run on a
 * CPU.
 *
 * Interface: ring_stream (rank.h), ring_stream_use, ring_stream_meet, ring_streams_forget
 * (ring_world.h).
 */
#include "runtime/ring_world.h"

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

/* Two that read do not hurt each other, nor do two that add: the GPU adds to dQ atomically, and the
 * sum is the same in any order, but for rounding. */
int ring_stream_meet(RingRank *r, const void *p, size_t bytes, RingUse how, const char *who)
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

/* A use of no bytes ends nothing: a GPU is not asked for it, so its streams do not meet. */
int ring_stream_use(RingRank *r, const void *p, size_t bytes, RingUse how, const char *who)
{
    if (r->log->stream == RING_BOTH_STREAMS && bytes > 0)
        ring_streams_forget(r->log);
    return ring_stream_meet(r, p, bytes, how, who);
}

void ring_streams_forget(RingLog *log)
{
    for (int stream = 0; stream < RING_STREAMS; stream++)
        log->used[stream].count = 0;
}
