/* SPDX-License-Identifier: MIT
 *
 * share.cu: memory and events of a rank's GPU, told to a rank that is another process.
 *
 * Two GPUs, two processes, and a copy that no host waits for:
 *
 *     sender    work     ... K computed | ready ----+                     +-> K may be overwritten
 *     receiver  inbound                 ready here -+-> copy K | arrived -+
 *               work     ... room is free | ready here                    +-> K may be read
 *
 * Both events are flags that the other process's GPU can see (cudaEventInterprocess), so streams of
 * two processes wait for each other as two streams of one process do. To wait for an event means:
 * for its last recording before that call. So the call must come after the recording, and before
 * the next one. After: the handle is sent when the event has been recorded. Before: an event is
 * recorded once in a round, and between two rounds all ranks meet.
 *
 * To open a handle takes as long as many a copy, so what was opened stays open until the run ends.
 * Memory must be closed by those who opened it before its owner frees it: the world's ranks meet
 * between their backends' close and release.
 *
 * Interface: share.h.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/backend_internal.h"
#include "transports/cuda/share.h"

static_assert(sizeof(cudaIpcMemHandle_t) == SHARE_HANDLE_BYTES, "a handle of memory");
static_assert(sizeof(cudaIpcEventHandle_t) == SHARE_HANDLE_BYTES, "a handle of an event");

typedef struct OwnEvent {
    cudaEvent_t event;
    cudaIpcEventHandle_t handle;
} OwnEvent;

typedef struct Opened { /* of another process */
    int peer, number;   /* of its event, or of its piece of memory */
    cudaEvent_t event;
    void *memory_dev;
} Opened;

struct CudaShare {
    OwnEvent *own;
    int own_count, own_room, own_used; /* used: in this round */
    Opened *events, *memory;
    int event_count, event_room, memory_count, memory_room;
};

static int try_ipc(RingRank *r, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return 0;
    (void)cudaGetLastError(); /* told here, not once more behind the next kernel */
    return ring_fail(r,
                     "%s: %s (--link copy between processes needs CUDA IPC: one machine, peer "
                     "access, no walls between containers)",
                     what, cudaGetErrorString(error));
}

/* --- what this rank tells ----------------------------------------------------------------------*/

int cuda_share_open(RingRank *r)
{
    CudaBackend *s = cuda_backend_of(r);
    s->share = (CudaShare *)calloc(1, sizeof *s->share);
    return s->share ? 0 : ring_fail(r, "out of memory");
}

/* Without timing: an event that two processes see has no time. */
static int make_event(RingRank *r, OwnEvent *e)
{
    const unsigned flags = cudaEventDisableTiming | cudaEventInterprocess;
    if (try_ipc(r, cudaEventCreateWithFlags(&e->event, flags), "an event for others") != 0)
        return -1;
    if (try_ipc(r, cudaIpcGetEventHandle(&e->handle, e->event), "an event for others") == 0)
        return 0;
    (void)cudaEventDestroy(e->event);
    return -1;
}

/* The next one of this round, recorded in a stream: its number. */
static int record(RingRank *r, cudaStream_t stream)
{
    CudaShare *share = cuda_backend_of(r)->share;
    if (share->own_used == share->own_count) {
        OwnEvent e;
        if (ring_grow(r, &share->own, share->own_count, &share->own_room, sizeof *share->own,
                      "events") != 0 ||
            make_event(r, &e) != 0)
            return -1;
        share->own[share->own_count++] = e;
    }
    if (cuda_backend_try(r, cudaEventRecord(share->own[share->own_used].event, stream),
                         "an event for others") != 0)
        return -1;
    return share->own_used++;
}

int cuda_share_ready(RingRank *r, const RingTransfer *list, int count)
{
    for (int i = 0; i < count; i++)
        if (cuda_backend_settle(r, list[i].data, list[i].bytes) != 0)
            return -1;
    return record(r, cuda_backend_of(r)->before);
}

void *cuda_share_event(RingRank *r, int number)
{
    return cuda_backend_of(r)->share->own[number].event;
}

/* A handle is that of a whole piece of memory; the rest is told as an offset. */
int cuda_share_announce(RingRank *r, const void *p, size_t bytes, int ready, ShareNotice *notice)
{
    CudaBackend *s = cuda_backend_of(r);
    int n = 0;
    while (n < s->piece_count && !cuda_backend_piece_has(&s->pieces[n], p))
        n++;
    if (n == s->piece_count)
        return ring_fail(r, "a message is not in memory of this rank");
    DevicePiece *piece = &s->pieces[n];
    if (!piece->shared &&
        try_ipc(r, cudaIpcGetMemHandle(&piece->handle, piece->p_dev), "memory for others") != 0)
        return -1;
    piece->shared = 1;
    memcpy(notice->memory, &piece->handle, sizeof notice->memory);
    memcpy(notice->ready, &s->share->own[ready].handle, sizeof notice->ready);
    notice->piece = n;
    notice->event = ready;
    notice->offset = (uint64_t)((const char *)p - (const char *)piece->p_dev);
    notice->bytes = bytes;
    return 0;
}

void cuda_share_forget(RingRank *r)
{
    CudaShare *share = cuda_backend_of(r)->share;
    if (share)
        share->own_used = 0;
}

/* --- what others have told ---------------------------------------------------------------------*/

static Opened *find(Opened *list, int count, int peer, int number)
{
    for (int n = 0; n < count; n++)
        if (list[n].peer == peer && list[n].number == number)
            return &list[n];
    return NULL;
}

static cudaEvent_t event_of(RingRank *r, int peer, int number, const char *handle)
{
    CudaShare *share = cuda_backend_of(r)->share;
    Opened *known = find(share->events, share->event_count, peer, number),
           opened = {peer, number, NULL, NULL};
    cudaIpcEventHandle_t its;
    if (known)
        return known->event;
    memcpy(&its, handle, sizeof its);
    if (ring_grow(r, &share->events, share->event_count, &share->event_room, sizeof *share->events,
                  "events") != 0 ||
        try_ipc(r, cudaIpcOpenEventHandle(&opened.event, its), "an event of another rank") != 0)
        return NULL;
    share->events[share->event_count++] = opened;
    return opened.event;
}

static char *memory_of(RingRank *r, int peer, const ShareNotice *notice)
{
    CudaShare *share = cuda_backend_of(r)->share;
    Opened *known = find(share->memory, share->memory_count, peer, notice->piece);
    Opened opened = {peer, notice->piece, NULL, NULL};
    cudaIpcMemHandle_t its;
    if (known)
        return (char *)known->memory_dev;
    memcpy(&its, notice->memory, sizeof its);
    if (ring_grow(r, &share->memory, share->memory_count, &share->memory_room,
                  sizeof *share->memory, "the list of others' memory") != 0 ||
        try_ipc(r, cudaIpcOpenMemHandle(&opened.memory_dev, its, cudaIpcMemLazyEnablePeerAccess),
                "memory of another rank's GPU") != 0)
        return NULL;
    share->memory[share->memory_count++] = opened;
    return (char *)opened.memory_dev;
}

/* The receiver's stream and its copy engine: it reads from the sender's memory. */
void *cuda_share_take(RingRank *r, int peer, const ShareNotice *notice, void *to, int ready,
                      ShareReceipt *receipt)
{
    CudaBackend *s = cuda_backend_of(r);
    const char *from = memory_of(r, peer, notice);
    const cudaEvent_t its = from ? event_of(r, peer, notice->event, notice->ready) : NULL;
    if (!its ||
        cuda_backend_try(r, cudaStreamWaitEvent(s->inbound, s->share->own[ready].event, 0),
                         "a message") != 0 ||
        cuda_backend_try(r, cudaStreamWaitEvent(s->inbound, its, 0), "a message") != 0 ||
        cuda_backend_try(r,
                         cudaMemcpyAsync(to, from + notice->offset, notice->bytes,
                                         cudaMemcpyDefault, s->inbound),
                         "a copy between GPUs") != 0)
        return NULL;
    const int arrived = record(r, s->inbound);
    if (arrived < 0)
        return NULL;
    memcpy(receipt->arrived, &s->share->own[arrived].handle, sizeof receipt->arrived);
    receipt->event = arrived;
    return s->share->own[arrived].event;
}

void *cuda_share_arrived(RingRank *r, int peer, const ShareReceipt *receipt)
{
    return event_of(r, peer, receipt->event, receipt->arrived);
}

/* --- the end -----------------------------------------------------------------------------------*/

/* With a queue that hangs nothing is closed: a copy from that memory may be in it. */
void cuda_share_close(RingRank *r)
{
    CudaBackend *s = cuda_backend_of(r);
    CudaShare *share = s ? s->share : NULL;
    if (!share || !cuda_backend_is_idle(s))
        return;
    for (int n = 0; n < share->memory_count; n++)
        (void)cudaIpcCloseMemHandle(share->memory[n].memory_dev);
    for (int n = 0; n < share->event_count; n++)
        (void)cudaEventDestroy(share->events[n].event);
    share->memory_count = share->event_count = 0;
    (void)cudaGetLastError();
}

/* After a failure somebody may not have closed: then what was told stays, until the process
 * ends. */
void cuda_share_release(RingRank *r)
{
    CudaBackend *s = cuda_backend_of(r);
    CudaShare *share = s ? s->share : NULL;
    if (!share)
        return;
    for (int n = 0; !r->failed && n < share->own_count; n++)
        (void)cudaEventDestroy(share->own[n].event);
    for (int n = 0; r->failed && n < s->piece_count; n++)
        if (s->pieces[n].shared)
            s->pieces[n].p_dev = NULL; /* cudaFree takes it */
    free(share->own);
    free(share->events);
    free(share->memory);
    free(share);
    s->share = NULL;
}
