/* SPDX-License-Identifier: MIT
 *
 * backend_cuda.h: a rank's memory and work on a GPU.
 *
 * Interface:
 * - ring_backend_cuda: every rank on GPU 0, in streams of its own: the lesson for one card.
 * - ring_backend_gpus: rank r on GPU r, messages by copy engines (--link copy).
 * - ring_backend_shared: likewise, ranks that are processes. Only in a build with MPI.
 * - ring_backend_nccl: likewise, messages by NCCL. Only in a build with NCCL.
 * - ring_gpus_reach_each_other: can ranks be GPUs here?
 * - CudaBackend: what transports for GPUs need of a rank: its device and its streams.
 * - cuda_backend_event: an event that lives until the next round. cuda_backend_await,
 *   cuda_backend_settle: see there.
 */
#ifndef RING_BACKEND_CUDA_H
#define RING_BACKEND_CUDA_H

#include <cuda_runtime_api.h>

#include "runtime/ring_world.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const RingBackend ring_backend_cuda, ring_backend_gpus, ring_backend_shared,
    ring_backend_nccl;

/* 1, or 0 with one sentence: fewer GPUs than ranks, or no way between two of them. */
int ring_gpus_reach_each_other(int ranks, char why[256]);

/* A position map that lies on the device already. */
typedef struct DeviceMap {
    AttnSegment *host, *dev;
    int64_t count;
} DeviceMap;

/* Device memory that is kept when it is freed: cudaMalloc takes hundreds of microseconds and waits
 * for the GPU. */
typedef struct DevicePiece {
    void *p_dev;
    size_t bytes;
    int used;
    int shared; /* other processes have been told its handle */
    cudaIpcMemHandle_t handle;
} DevicePiece;

/* Messages that the queue of work waits for, in this order: if one never comes, this says which. */
typedef struct CudaAwaited {
    cudaEvent_t ready, arrived; /* ready NULL: not known */
    RingPass pass;
    int step;
    RingTransfer transfer;
} CudaAwaited;

typedef struct CudaShare CudaShare;

typedef struct CudaZeros {
    const void *p; /* NULL: nothing */
    size_t bytes;
    int stream; /* in which they were asked for */
} CudaZeros;

#define CUDA_ZEROS 17 /* notes: dQ, and four quarters of dK and dV in two rooms; or O */

typedef struct CudaBackend {
    int device;
    cudaStream_t streams[RING_STREAMS]; /* work: through cuda_backend_work */
    int stream;                         /* RING_BOTH_STREAMS, or the one that work is put into */
    int apart;                          /* stream 1 has work that stream 0 does not wait for yet */
    int ahead;                          /* and the other way round, asked for in both */
    int halves; /* the last work for both streams: half of so many heads in each; 0: other work */
    int one_stream; /* all work is put into stream 0 */
    cudaStream_t messages;
    cudaStream_t before; /* no work in it: it reaches the point where an exchange was put off */
    cudaStream_t
        marking; /* nor in this one: marks behind both streams, which it does not hold up */
    cudaStream_t inbound; /* copies into this rank's memory, beside those out of it in `messages` */
    DeviceMap *maps;
    int map_count, map_room;
    DevicePiece *pieces;
    int piece_count, piece_room;
    cudaEvent_t *events; /* those of this round first */
    int event_count, event_room;
    int *marks; /* indexes of events */
    int mark_count, mark_room;
    cudaEvent_t start; /* of the round */
    double start_ms;   /* the same moment on the host's clock */
    CudaAwaited *awaited;
    int awaited_count, awaited_room;
    int awaited_done; /* the first ones have come */
    cudaError_t carry_error;
    CudaShare *share;                 /* with ranks that are processes: share.cu; else NULL */
    void *workspace_dev, *tables_dev; /* tables_dev: of stream 1 (block_add.h) */
    size_t workspace_bytes, tables_bytes;
    uint8_t *mask_dev;
    size_t mask_bytes;
    /* Gradients of queries that were begun: dQ is in the workspace. sums.dQ NULL: none. */
    AttnArgs begun;
    const float *delta;
    FlashSums sums;
    CudaZeros zeros[CUDA_ZEROS]; /* asked for and not written: nobody has touched them since */
    int zero_next;
    const void *finished; /* O in the dtype that the last kernel has written already; NULL: none */
} CudaBackend;

/* -1, after ring_fail, when it cannot be made. */
int cuda_backend_event(RingRank *r, cudaEvent_t *event);
/* Work asked for from here on, in this stream or in both, comes after `arrived`, at which transfer
 * t is complete. */
int cuda_backend_await(RingRank *r, const RingTransfer *t, cudaEvent_t ready, cudaEvent_t arrived);
/* Before [p, p + bytes) is read or written by anything but `differentiate`: dQ that the workspace
 * still has is added to it. Transports call it for what they send. */
int cuda_backend_settle(RingRank *r, const void *p, size_t bytes);
/* ring_fail with CUDA's own words; 0 if there was no error. */
int cuda_backend_try(RingRank *r, cudaError_t error, const char *what);

#ifdef __cplusplus
}
#endif
#endif
