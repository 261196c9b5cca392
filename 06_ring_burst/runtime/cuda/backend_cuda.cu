/* SPDX-License-Identifier: MIT
 *
 * backend_cuda.cu: a rank's memory and work on a GPU.
 *
 * A rank has streams, that is, queues of the GPU: two for work, one for messages, and a second one
 * for messages where they are copies, which can go both ways at once. The host only fills them and
 * runs ahead; it waits for the GPU at the end of a round. So whatever a kernel
 * reads must stay as it is until then: position maps are copied to the device once and kept, memory
 * that is freed is given out again only for later work of the same queue.
 *
 * Interface: backend_cuda.h; of RingBackend (ring_world.h) open, close, release.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/backward/backward_library.h" /* --deterministic */
#include "attn_config.h"
#include "runtime/cuda/backend_internal.h"
#include "transports/cuda/share.h"
#include "transports/cuda/transport_nccl.h"

#define LAST_WORK_MS 1000.0 /* after a failure: what was asked for before it comes to an end */

CudaBackend *cuda_backend_of(RingRank *r)
{
    return (CudaBackend *)r->backend_state;
}

int cuda_backend_try(RingRank *r, cudaError_t error, const char *what)
{
    return error == cudaSuccess ? 0 : ring_fail(r, "%s: %s", what, cudaGetErrorString(error));
}

/* What the block kernels answer; CUDA's words are on stderr already. */
int cuda_backend_answer(RingRank *r, AttnStatus status, const char *what)
{
    return status == ATTN_OK ? 0
                             : ring_fail(r, "%s: %s", what,
                                         status == ATTN_NO_MEMORY ? "out of GPU memory"
                                         : status == ATTN_SKIP    ? "no kernel for this case"
                                                                  : "CUDA error");
}

/* --- open, close -------------------------------------------------------------------------------*/

/* Where NCCL's kernels and ours compete for multiprocessors, messages go first: they are short, and
 * others wait for them. */
static int open_queues(RingRank *r, CudaBackend *s)
{
    int lowest = 0, highest = 0;
    if (cuda_backend_try(r, cudaDeviceGetStreamPriorityRange(&lowest, &highest), "priorities") != 0)
        return -1;
    cudaStream_t *const of_messages[] = {&s->messages, &s->inbound};
    for (cudaStream_t *stream : of_messages)
        if (cuda_backend_try(r,
                             cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest),
                             "a stream for messages") != 0)
            return -1;
    cudaStream_t *const of_work[] = {&s->streams[0], &s->streams[1], &s->before, &s->marking};
    for (cudaStream_t *stream : of_work)
        if (cuda_backend_try(r, cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, lowest),
                             "a stream for work") != 0)
            return -1;
    return 0;
}

/* A stream is a queue: what is put into one runs in order, what is put into two may run at the same
 * time. cudaStreamNonBlocking: the default stream, into which careless libraries put things, does
 * not hold these up. */
static int open_on(RingRank *r, int device)
{
    CudaBackend *s = (CudaBackend *)calloc(1, sizeof *s);
    if (!s)
        return ring_fail(r, "out of memory");
    r->backend_state = s;
    s->device = device;
    s->stream = RING_BOTH_STREAMS;
    s->one_stream = r->plan->dtype == ATTN_F32 || r->plan->mask || flash_backward_deterministic();
    /* a thread's current device is its own */
    if (cuda_backend_try(r, cudaSetDevice(device), "cudaSetDevice") != 0 ||
        open_queues(r, s) != 0 || cuda_backend_try(r, cudaEventCreate(&s->start), "an event") != 0)
        return -1;
    return cuda_backend_reserve(r);
}

static int open_first(RingRank *r)
{
    return open_on(r, 0);
}

/* Threads have the GPU of their number. A process started by mpirun counts on its own machine.
 * (Rank 9 of a cluster may be GPU 1 of the second machine.) */
static int device_of(const RingRank *r)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "SLURM_LOCALID"};
    for (const char *name : names)
        if (strcmp(r->transport->name, "mpi") == 0 && getenv(name))
            return atoi(getenv(name));
    return r->rank;
}

static int open_each(RingRank *r)
{
    const int device = device_of(r);
    int count = 0;
    if (cuda_backend_try(r, cudaGetDeviceCount(&count), "cudaGetDeviceCount") != 0)
        return -1;
    if (device >= count)
        return ring_fail(r, "there is no GPU for it: this machine has %d", count);
    if (open_on(r, device) != 0)
        return -1;
    /* it may be there already, from the last run */
    for (int peer = 0; peer < count && peer < r->world; peer++)
        if (peer != device && cudaDeviceEnablePeerAccess(peer, 0) != cudaSuccess)
            (void)cudaGetLastError();
    return 0;
}

/* A peer may still be copying out of this rank's memory when this rank has failed. */
static void close_backend(RingRank *r)
{
    (void)r;
}

/* 1: all queues are empty. A GPU that hangs is not waited for, and its memory is not freed. */
int cuda_backend_is_idle(const CudaBackend *s)
{
    const cudaStream_t streams[] = {s->streams[0], s->streams[1], s->messages, s->inbound,
                                    s->marking};
    const double start = ring_now_ms();
    for (cudaStream_t stream : streams)
        while (stream && cudaStreamQuery(stream) == cudaErrorNotReady) {
            if (ring_now_ms() - start > LAST_WORK_MS)
                return 0;
            sched_yield();
        }
    return 1;
}

/* Errors do not matter any more: whatever failed has been told. All ranks' threads have ended, and
 * this is the one that started them. */
static void release_backend(RingRank *r)
{
    CudaBackend *s = cuda_backend_of(r);
    if (!s)
        return;
    r->backend_state = NULL;
    (void)cudaSetDevice(s->device);
    if (cuda_backend_hangs() || !cuda_backend_is_idle(s))
        return;
    for (int m = 0; m < s->map_count; m++) {
        free(s->maps[m].host);
        (void)cudaFree(s->maps[m].dev);
    }
    for (int p = 0; p < s->piece_count; p++)
        (void)cudaFree(s->pieces[p].p_dev);
    for (int e = 0; e < s->event_room; e++)
        if (s->events[e])
            (void)cudaEventDestroy(s->events[e]);
    (void)cudaFree(s->workspace_dev);
    (void)cudaFree(s->tables_dev);
    (void)cudaFree(s->mask_dev);
    if (s->start)
        (void)cudaEventDestroy(s->start);
    const cudaStream_t streams[] = {s->streams[0], s->streams[1], s->before,
                                    s->messages,   s->inbound,    s->marking};
    for (cudaStream_t stream : streams)
        if (stream)
            (void)cudaStreamDestroy(stream);
    (void)cudaGetLastError();
    free(s->awaited);
    free(s->maps);
    free(s->pieces);
    free(s->events);
    free(s->marks);
    free(s);
}

#define BACKEND_CUDA(name, open, close, release)                                                   \
    {                                                                                              \
        name, open, close, release, cuda_backend_alloc, cuda_backend_free, cuda_backend_upload,    \
            cuda_backend_download, cuda_backend_zero, cuda_backend_poison, cuda_backend_copy,      \
            cuda_backend_start_state, cuda_backend_attend, cuda_backend_differentiate,             \
            cuda_backend_delta_of, cuda_backend_finish_O, cuda_backend_add, cuda_backend_narrow,   \
            cuda_backend_widen, cuda_backend_baseline, cuda_backend_finish, cuda_backend_mark,     \
            cuda_backend_mark_ms, cuda_backend_forget_marks, cuda_backend_put_off,                 \
            cuda_backend_ready, cuda_backend_carry, cuda_backend_follow, cuda_backend_stream       \
    }

extern "C" const RingBackend ring_backend_cuda =
    BACKEND_CUDA("cuda", open_first, close_backend, release_backend);
extern "C" const RingBackend ring_backend_gpus =
    BACKEND_CUDA("cuda", open_each, close_backend, release_backend);

#ifdef HAVE_MPI
static int open_shared(RingRank *r)
{
    return open_each(r) == 0 && cuda_share_open(r) == 0 ? ring_copy_join(r) : -1;
}

static void release_shared(RingRank *r)
{
    cuda_share_release(r);
    release_backend(r);
}

extern "C" const RingBackend ring_backend_shared =
    BACKEND_CUDA("cuda", open_shared, cuda_share_close, release_shared);
#endif

#ifdef HAVE_NCCL
static int open_joined(RingRank *r)
{
    return open_each(r) == 0 ? ring_nccl_join(r) : -1;
}

static void close_joined(RingRank *r)
{
    ring_nccl_part(r);
    close_backend(r);
}

extern "C" const RingBackend ring_backend_nccl =
    BACKEND_CUDA("cuda", open_joined, close_joined, release_backend);
#endif

int ring_gpus_reach_each_other(int ranks, char why[256])
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess)
        count = 0;
    if (count < ranks) {
        snprintf(why, 256, "%d ranks need %d GPUs, this machine has %d", ranks, ranks, count);
        return 0;
    }
    for (int from = 0; from < ranks; from++)
        for (int to = 0; to < ranks; to++) {
            int can = from == to;
            if (!can && (cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess || !can)) {
                snprintf(why, 256,
                         "GPU %d cannot reach the memory of GPU %d (neither NVLink nor "
                         "peer access over PCIe)",
                         from, to);
                return 0;
            }
        }
    return 1;
}
