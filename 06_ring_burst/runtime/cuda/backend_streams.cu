/* SPDX-License-Identifier: MIT
 *
 * backend_streams.cu: a rank's queues: which one gets some work, what waits for what, and when they
 * reach a point.
 *
 * A rank has two streams for work (ring_stream in rank.h). Work that both streams need runs in
 * stream 0 and waits for stream 1; what stream 1 gets afterwards waits for that work. Each wait is
 * one event, and it is recorded only if there is something new to wait for:
 *
 *     stream 0    zeros, delta --+--- half 0 ---------+------ half 0 ---- ... ---+--- dQ
 *     stream 1                   +--- half 1 ----------------- half 1 ---- ... --+
 *
 * Attention in both streams is half of its heads in each. Heads have nothing in common, so the
 * halves of the next step need not wait for each other:
 *
 *     stream 0    state --+--- heads 0-15 ----- heads 0-15 ----- heads 0-15 --+--- O
 *     stream 1            +--- heads 16-31 ---- heads 16-31 ---- heads 16-31 -+
 *
 * How long something took is told by events: the GPU notes the time when a queue gets there. Their
 * clock is the GPU's; the start of each round is noted on both clocks, which makes the times of
 * several GPUs comparable to some microseconds.
 *
 * Messages between threads of this process are copies by the copy engines, which take no
 * multiprocessor from the attention. A copy is queued by the rank that comes second, in a stream of
 * its own, behind what both ranks have asked for before; both ranks' later work is queued behind
 * the copy. Copies into a rank and out of it have different streams: a link carries both ways at
 * once.
 *
 * Interface: of RingBackend (ring_world.h) stream, finish, mark, mark_ms, forget_marks, put_off,
 * ready, carry, follow; cuda_backend_event, cuda_backend_await (backend_cuda.h), cuda_backend_work,
 * cuda_backend_join, cuda_backend_select_half, cuda_backend_drain, cuda_backend_hangs
 * (backend_internal.h).
 */
#include <atomic>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/backend_internal.h"
#include "transports/cuda/share.h"

#define MODESTY_MS 500.0 /* who waits for a peer leaves the first word to one whose work hangs */

/* --- two streams of work -----------------------------------------------------------------------*/

/* Work that `queue` gets from here on waits for all that `stream` has by now. */
static int come_after(RingRank *r, cudaStream_t queue, cudaStream_t stream)
{
    cudaEvent_t now;
    if (cuda_backend_event(r, &now) != 0 ||
        cuda_backend_try(r, cudaEventRecord(now, stream), "an event") != 0)
        return -1;
    return cuda_backend_try(r, cudaStreamWaitEvent(queue, now, 0), "another queue");
}

cudaStream_t cuda_backend_work(RingRank *r)
{
    CudaBackend *s = cuda_backend_of(r);
    if (s->stream == 1) {
        s->apart = 1;
        return s->streams[1];
    }
    if (s->stream == RING_BOTH_STREAMS) {
        if (s->apart)
            (void)come_after(r, s->streams[0], s->streams[1]);
        s->apart = s->halves = 0;
        s->ahead = 1;
    }
    return s->streams[0];
}

void cuda_backend_join(RingRank *r)
{
    (void)cuda_backend_work(r);
}

/* Each stream gets half of the heads. If the step before was cut in the same way, each half follows
 * its own stream only, so neither waits for the other at a step's end. Otherwise both streams wait
 * for all work before, and all later work waits for both. */
void cuda_backend_select_half(RingRank *r, int half, int heads)
{
    CudaBackend *s = cuda_backend_of(r);
    if (half == 0 && s->halves != heads)
        cuda_backend_join(r);
    s->halves = 0;
    cuda_backend_stream(r, half);
    s->halves = half == RING_BOTH_STREAMS ? heads : 0;
}

/* The point for stream 1 to wait for is here, before stream 0 gets work of its own. */
void cuda_backend_stream(RingRank *r, int stream)
{
    CudaBackend *s = cuda_backend_of(r);
    if (s->one_stream)
        return;
    if (stream != RING_BOTH_STREAMS && s->halves)
        cuda_backend_join(r);
    if (stream != RING_BOTH_STREAMS && s->ahead) {
        (void)come_after(r, s->streams[1], s->streams[0]);
        s->ahead = 0;
    }
    s->stream = stream;
}

/* A queue of something else waits for the work asked for so far, in this stream or in both. */
static int come_behind_work(RingRank *r, cudaStream_t queue)
{
    const CudaBackend *s = cuda_backend_of(r);
    if (s->stream != 1 && come_after(r, queue, s->streams[0]) != 0)
        return -1;
    return s->stream == 1 || (s->stream == RING_BOTH_STREAMS && s->apart)
               ? come_after(r, queue, s->streams[1])
               : 0;
}

/* --- waiting -----------------------------------------------------------------------------------*/

/* In the order of asking, nearly that of the queues: everything else waits for the first one that
 * has not come. */
int cuda_backend_await(RingRank *r, const RingTransfer *t, cudaEvent_t ready, cudaEvent_t arrived)
{
    CudaBackend *s = cuda_backend_of(r);
    if (ring_grow(r, &s->awaited, s->awaited_count, &s->awaited_room, sizeof *s->awaited,
                  "messages") != 0)
        return -1;
    s->awaited[s->awaited_count++] = (CudaAwaited){ready, arrived, r->pass, r->step, *t};
    for (int stream = 0; stream < (s->one_stream ? 1 : RING_STREAMS); stream++)
        if ((s->stream == RING_BOTH_STREAMS || s->stream == stream) &&
            cuda_backend_try(r, cudaStreamWaitEvent(s->streams[stream], arrived, 0), "a message") !=
                0)
            return -1;
    if (s->stream == 1) /* what comes after both streams comes after this, work or not */
        s->apart = 1;
    return 0;
}

/* Of all ranks: cudaFree waits for the whole GPU, and would wait for ever for a queue that
 * hangs. */
static std::atomic<int> gpu_hangs;

int cuda_backend_hangs(void)
{
    return gpu_hangs;
}

/* The first message that has not come, or NULL. */
static const CudaAwaited *first_missing(CudaBackend *s)
{
    while (s->awaited_done < s->awaited_count &&
           cudaEventQuery(s->awaited[s->awaited_done].arrived) == cudaSuccess)
        s->awaited_done++;
    return s->awaited_done < s->awaited_count ? &s->awaited[s->awaited_done] : NULL;
}

/* The host is far ahead of the GPU, at the end of the pass: the step that is told is that of the
 * message, not the host's. */
static int too_late(RingRank *r, const CudaAwaited *missing, double seconds)
{
    char words[80];
    gpu_hangs = 1;
    if (!missing)
        return ring_fail(r, "the GPU has not done its work in %g s", seconds);
    r->pass = missing->pass;
    r->step = missing->step;
    if (missing->ready && cudaEventQuery(missing->ready) == cudaErrorNotReady)
        return ring_fail(r, "the GPU has not done its work before %s in %g s",
                         ring_tensor_name(missing->transfer.tensor), seconds);
    return ring_fail(r, "%s: nothing in %g s", ring_transfer_words(&missing->transfer, words),
                     seconds);
}

/* 0, 1 while something is to be done, -1 after a failure. cudaStreamQuery asks whether a queue is
 * empty, and does not wait for it. Errors of kernels show here for the first time: their launch has
 * long returned. */
static int look_at_queues(RingRank *r, int work_only)
{
    const CudaBackend *s = cuda_backend_of(r);
    const cudaStream_t streams[] = {s->streams[0], s->streams[1], s->messages, s->inbound,
                                    s->marking};
    int busy = 0;
    for (int n = 0; n < (work_only ? 2 : 5); n++) {
        const cudaError_t error = cudaStreamQuery(streams[n]);
        busy |= error == cudaErrorNotReady;
        if (error != cudaErrorNotReady && cuda_backend_try(r, error, "work on the GPU") != 0)
            return -1;
    }
    return busy;
}

/* Polls: a missing message would block for ever. Time counts from the last one that came. */
int cuda_backend_drain(RingRank *r, int work_only)
{
    CudaBackend *s = cuda_backend_of(r);
    const double limit = r->plan->setup.timeout_s * 1e3;
    double start = ring_now_ms();
    int busy, done = s->awaited_done;
    while ((busy = look_at_queues(r, work_only)) > 0) {
        const CudaAwaited *missing = first_missing(s);
        if (s->awaited_done > done)
            start = ring_now_ms();
        done = s->awaited_done;
        if (r->transport->look && r->transport->look(r) != 0)
            return -1;
        const int waits =
            missing && (!missing->ready || cudaEventQuery(missing->ready) != cudaErrorNotReady);
        if (ring_now_ms() - start > limit + (waits ? MODESTY_MS : 0.0))
            return too_late(r, missing, limit / 1e3);
        sched_yield();
    }
    return busy;
}

/* All that was asked for is done, and dQ, if the workspace still has it, is in its sums. */
int cuda_backend_finish(RingRank *r)
{
    return cuda_backend_settle_all(r) != 0 ? -1 : cuda_backend_drain(r, 0);
}

/* To make an event takes some microseconds; those of the last round are used again. */
static cudaError_t next_event(CudaBackend *s, cudaEvent_t *event)
{
    if (s->event_count == s->event_room) {
        const int old = s->event_room, room = old ? 2 * old : 64;
        cudaEvent_t *more = (cudaEvent_t *)realloc(s->events, (size_t)room * sizeof *more);
        if (!more)
            return cudaErrorMemoryAllocation;
        memset(more + old, 0, (size_t)(room - old) * sizeof *more);
        s->events = more;
        s->event_room = room;
    }
    cudaEvent_t *next = &s->events[s->event_count];
    if (!*next) {
        const cudaError_t error = cudaEventCreate(next);
        if (error != cudaSuccess)
            return error;
    }
    *event = *next;
    s->event_count++;
    return cudaSuccess;
}

int cuda_backend_event(RingRank *r, cudaEvent_t *event)
{
    return cuda_backend_try(r, next_event(cuda_backend_of(r), event), "an event");
}

/* A mark does not make halves in the two streams meet. */
int cuda_backend_mark(RingRank *r, int messages)
{
    CudaBackend *s = cuda_backend_of(r);
    const int apart = s->stream == RING_BOTH_STREAMS && s->apart;
    cudaEvent_t event;
    if ((messages == 2 && come_behind_work(r, s->messages) != 0) ||
        (!messages && apart && come_behind_work(r, s->marking) != 0))
        return -1;
    const cudaStream_t queue = messages ? s->messages : apart ? s->marking : cuda_backend_work(r);
    if (cuda_backend_event(r, &event) != 0 ||
        ring_grow(r, &s->marks, s->mark_count, &s->mark_room, sizeof *s->marks, "marks") != 0 ||
        cuda_backend_try(r, cudaEventRecord(event, queue), "a mark") != 0)
        return -1;
    s->marks[s->mark_count] = s->event_count - 1;
    return s->mark_count++;
}

/* The GPU has noted when each event was reached; elapsed time is the difference of two such
 * notes. */
double cuda_backend_mark_ms(RingRank *r, int number)
{
    CudaBackend *s = cuda_backend_of(r);
    float ms = 0.0f;
    if (number < 0 || number >= s->mark_count ||
        cudaEventElapsedTime(&ms, s->start, s->events[s->marks[number]]) != cudaSuccess)
        return 0.0;
    return s->start_ms + ms;
}

/* The host's clock and the GPU's, read at (nearly) the same moment. */
void cuda_backend_forget_marks(RingRank *r)
{
    CudaBackend *s = cuda_backend_of(r);
    s->event_count = s->mark_count = s->awaited_count = s->awaited_done = 0;
    cuda_share_forget(r);
    if (cuda_backend_try(r, cudaEventRecord(s->start, s->streams[0]), "the round's start") == 0)
        (void)cuda_backend_try(r, cudaEventSynchronize(s->start), "the round's start");
    s->start_ms = ring_now_ms();
}

/* To hand a message to NCCL, or to a peer's thread, keeps the host busy for a tenth of a
 * millisecond or two, in which the GPU would have nothing to do. So the method's next work is asked
 * for first; the message waits for a point in the queue in front of that. */
int cuda_backend_put_off(RingRank *r, const RingExchange *x)
{
    for (int i = 0; i < x->count; i++)
        if (cuda_backend_settle(r, x->list[i].data, x->list[i].bytes) != 0)
            return -1;
    return come_behind_work(r, cuda_backend_of(r)->before);
}

/* The sender's event says "computed", the receiver's "nobody reads this room any more". Without the
 * second a fast neighbour overwrites keys that the kernel still works on: the race of the chapter,
 * on a GPU. */
void *cuda_backend_ready(RingRank *r, const void *p, size_t bytes)
{
    cudaEvent_t event;
    if (cuda_backend_settle(r, p, bytes) != 0 || cuda_backend_event(r, &event) != 0 ||
        cuda_backend_try(r, cudaEventRecord(event, cuda_backend_of(r)->before), "an event") != 0)
        return NULL;
    return event;
}

/* The driver knows which GPUs the pointers belong to. An error is told when the message is waited
 * for: here the peer may hold on to this rank. */
void *cuda_backend_carry(RingRank *by, void *to, void *to_ready, const void *from, void *from_ready,
                         size_t bytes)
{
    CudaBackend *s = cuda_backend_of(by);
    const cudaStream_t messages = cuda_backend_owns(s, from) ? s->messages : s->inbound;
    cudaEvent_t arrived;
    cudaError_t e = next_event(s, &arrived);
    if (e == cudaSuccess)
        e = cudaStreamWaitEvent(messages, (cudaEvent_t)to_ready, 0);
    if (e == cudaSuccess)
        e = cudaStreamWaitEvent(messages, (cudaEvent_t)from_ready, 0);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, messages);
    if (e == cudaSuccess)
        e = cudaEventRecord(arrived, messages);
    s->carry_error = e;
    return e == cudaSuccess ? arrived : NULL;
}

/* The stream of messages too, so that a mark in it is the time of arrival. */
int cuda_backend_follow(RingRank *r, const RingTransfer *t, void *ready, void *arrived)
{
    CudaBackend *s = cuda_backend_of(r);
    if (!arrived)
        return ring_fail(r, "%s could not be copied: %s", ring_tensor_name(t->tensor),
                         s->carry_error != cudaSuccess ? cudaGetErrorString(s->carry_error)
                                                       : "the other rank's GPU refused");
    if (cuda_backend_await(r, t, (cudaEvent_t)ready, (cudaEvent_t)arrived) != 0)
        return -1;
    return cuda_backend_try(r, cudaStreamWaitEvent(s->messages, (cudaEvent_t)arrived, 0),
                            "a message");
}
