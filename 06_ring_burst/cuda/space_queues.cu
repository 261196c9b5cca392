/* SPDX-License-Identifier: MIT
 *
 * space_queues.cu: a rank's two queues: when they reach a point, and what waits for what.
 *
 * How long something took is told by events: a mark in a queue, whose time the GPU notes when it
 * gets there. Their clock is the GPU's; the start of each round is noted on both clocks, which
 * makes the times of several GPUs comparable to some microseconds.
 *
 * Messages between threads of this process are copies by the copy engines, which take no
 * multiprocessor from the attention: from one shard's memory to the other's, on one GPU or between
 * two. A copy is queued by the rank that comes second, in its stream of messages, behind what both
 * ranks have asked for before; both ranks' later work is queued behind the copy.
 *
 * Interface: of RingSpace (ring_world.h) finish, mark, mark_ms, forget_marks, ready, carry, follow;
 * cuda_space_event (space_cuda.h).
 */
#include "bench.h"
#include "space_internal.h"

/* Polls instead of blocking: a message that never comes would block for ever. */
int cuda_space_finish(RingRank *r)
{
    CudaSpace *s = cuda_space_of(r);
    if (cuda_space_settle_all(r) != 0)
        return -1;
    const double start = bench_now_ms(), limit = r->plan->setup.timeout_s * 1e3;
    for (;;) {
        const cudaError_t work = cudaStreamQuery(s->work);
        const cudaError_t messages = cudaStreamQuery(s->messages);
        if (work == cudaSuccess && messages == cudaSuccess)
            return 0;
        if (work != cudaSuccess && work != cudaErrorNotReady)
            return cuda_space_try(r, work, "work on the GPU");
        if (messages != cudaSuccess && messages != cudaErrorNotReady)
            return cuda_space_try(r, messages, "messages on the GPU");
        if (bench_now_ms() - start > limit)
            return ring_fail(r, "the GPU's queue of %s is not done after %g s",
                             work == cudaErrorNotReady ? "work" : "messages", limit / 1e3);
    }
}

int cuda_space_event(RingRank *r, cudaEvent_t *event)
{
    CudaSpace *s = cuda_space_of(r);
    const int room = s->event_room;
    if (cuda_space_room(r, (void **)&s->events, s->event_count, &s->event_room,
                        sizeof *s->events) != 0)
        return -1;
    for (int e = room; e < s->event_room; e++)
        s->events[e] = NULL;
    if (!s->events[s->event_count] &&
        cuda_space_try(r, cudaEventCreate(&s->events[s->event_count]), "an event") != 0)
        return -1;
    *event = s->events[s->event_count++];
    return 0;
}

int cuda_space_mark(RingRank *r, int messages)
{
    CudaSpace *s = cuda_space_of(r);
    cudaEvent_t event;
    if (cuda_space_event(r, &event) != 0 ||
        cuda_space_room(r, (void **)&s->marks, s->mark_count, &s->mark_room, sizeof *s->marks) !=
            0 ||
        cuda_space_try(r, cudaEventRecord(event, messages ? s->messages : s->work), "a mark") != 0)
        return -1;
    s->marks[s->mark_count] = s->event_count - 1;
    return s->mark_count++;
}

double cuda_space_mark_ms(RingRank *r, int number)
{
    CudaSpace *s = cuda_space_of(r);
    float ms = 0.0f;
    if (number < 0 || number >= s->mark_count ||
        cudaEventElapsedTime(&ms, s->start, s->events[s->marks[number]]) != cudaSuccess)
        return 0.0;
    return s->start_ms + ms;
}

void cuda_space_forget_marks(RingRank *r)
{
    CudaSpace *s = cuda_space_of(r);
    s->event_count = s->mark_count = 0;
    if (cuda_space_try(r, cudaStreamSynchronize(s->work), "work") == 0 &&
        cuda_space_try(r, cudaEventRecord(s->start, s->work), "the round's start") == 0)
        (void)cuda_space_try(r, cudaEventSynchronize(s->start), "the round's start");
    s->start_ms = bench_now_ms();
}

void *cuda_space_ready(RingRank *r, const void *p, size_t bytes)
{
    cudaEvent_t event;
    if (cuda_space_settle(r, p, bytes) != 0 || cuda_space_event(r, &event) != 0 ||
        cuda_space_try(r, cudaEventRecord(event, cuda_space_of(r)->work), "an event") != 0)
        return NULL;
    return event;
}

/* Unified addresses: the driver knows which GPUs the two pointers belong to. */
void *cuda_space_carry(RingRank *by, void *to, void *to_ready, const void *from, void *from_ready,
                       size_t bytes)
{
    const cudaStream_t messages = cuda_space_of(by)->messages;
    cudaEvent_t arrived;
    if (cuda_space_event(by, &arrived) != 0 ||
        cuda_space_try(by, cudaStreamWaitEvent(messages, (cudaEvent_t)to_ready, 0), "a message") ||
        cuda_space_try(by, cudaStreamWaitEvent(messages, (cudaEvent_t)from_ready, 0),
                       "a message") ||
        cuda_space_try(by, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, messages),
                       "a message") ||
        cuda_space_try(by, cudaEventRecord(arrived, messages), "an event"))
        return NULL;
    return arrived;
}

/* The stream of messages too, so that a mark in it is the time of arrival. */
int cuda_space_follow(RingRank *r, void *arrived)
{
    CudaSpace *s = cuda_space_of(r);
    if (!arrived)
        return ring_fail(r, "a message could not be copied");
    if (cuda_space_try(r, cudaStreamWaitEvent(s->work, (cudaEvent_t)arrived, 0), "a message") != 0)
        return -1;
    return cuda_space_try(r, cudaStreamWaitEvent(s->messages, (cudaEvent_t)arrived, 0),
                          "a message");
}
