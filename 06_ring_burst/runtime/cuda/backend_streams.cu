/* SPDX-License-Identifier: MIT
 *
 * backend_streams.cu: which of a rank's two streams gets some work, and what waits for what.
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
 * Interface: of RingBackend (ring_world.h) stream; cuda_backend_work, cuda_backend_join,
 * cuda_backend_half, cuda_backend_behind_work (backend_internal.h).
 */
#include "runtime/cuda/backend_internal.h"

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
void cuda_backend_half(RingRank *r, int half, int heads)
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

int cuda_backend_behind_work(RingRank *r, cudaStream_t queue)
{
    const CudaBackend *s = cuda_backend_of(r);
    if (s->stream != 1 && come_after(r, queue, s->streams[0]) != 0)
        return -1;
    return s->stream == 1 || (s->stream == RING_BOTH_STREAMS && s->apart)
               ? come_after(r, queue, s->streams[1])
               : 0;
}
