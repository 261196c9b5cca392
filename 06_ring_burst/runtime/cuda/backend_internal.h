/* SPDX-License-Identifier: MIT
 *
 * backend_internal.h: what the files of the GPU's backend share; nobody else includes it.
 *
 * Interface:
 * - cuda_backend_of, cuda_backend_answer: a rank's backend, an answer as a failure.
 *   cuda_backend_work: the queue of work.
 * - The functions of RingBackend (ring_world.h) that stand in other files than its table.
 */
#ifndef RING_BACKEND_INTERNAL_H
#define RING_BACKEND_INTERNAL_H

#include "attention/forward/cuda/block_resume.h"
#include "runtime/cuda/backend_cuda.h"

CudaBackend *cuda_backend_of(RingRank *r);
/* What the block kernels answer; CUDA's words are on stderr already. */
int cuda_backend_answer(RingRank *r, AttnStatus status, const char *what);
/* Is p in memory of this rank? */
int cuda_backend_owns(const CudaBackend *s, const void *p);
int cuda_backend_piece_has(const DevicePiece *piece, const void *p);
/* 1: all queues are empty, if need be after a second. */
int cuda_backend_is_idle(const CudaBackend *s);
/* dQ from the workspace to its sums, if it is there. */
int cuda_backend_settle_all(RingRank *r);

void *cuda_backend_alloc(RingRank *r, size_t bytes);
void cuda_backend_free(RingRank *r, void *p_dev);
int cuda_backend_upload(RingRank *r, void *to, const void *from_host, size_t bytes);
int cuda_backend_download(RingRank *r, void *to_host, const void *from, size_t bytes);
int cuda_backend_poison(RingRank *r, void *p, size_t bytes);
int cuda_backend_copy(RingRank *r, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                      size_t width, int64_t height);

int cuda_backend_zero(RingRank *r, void *p, size_t bytes);
int cuda_backend_start_state(RingRank *r, float *O_state, int64_t count, float *lse, int64_t rows);
/* 1: exactly this memory was asked to be zero, and nobody has touched it since. */
int cuda_backend_is_zero(const CudaBackend *s, const void *p, size_t bytes);
/* In front of a kernel that continues this state; *first: it has seen no key. */
int cuda_backend_begin_O(RingRank *r, const float *O_state, const AttnShape *n, int rows_only,
                         int *first);
void cuda_backend_forget_zeros(CudaBackend *s, const void *p, size_t bytes);
/* Zeros that were asked for there and not written are written now. */
int cuda_backend_touch(RingRank *r, const void *p, size_t bytes);

int cuda_backend_reserve(RingRank *r);
/* [B][tokens][heads][d] in the dtype, contiguous. */
Tensor cuda_backend_whole(const RingRank *r, void *data, int64_t tokens, int64_t heads);
int cuda_backend_baseline(RingRank *r, RingPass pass);
int cuda_backend_attend(RingRank *r, const AttnArgs *args, float *O_state, FlashRows rows);
int cuda_backend_differentiate(RingRank *r, const AttnArgs *args, const float *delta,
                               FlashSums sums);
int cuda_backend_delta_of(RingRank *r, const AttnArgs *args, float *delta);
int cuda_backend_finish_O(RingRank *r, const AttnArgs *args, float *O_state, FlashRows rows);
int cuda_backend_add(RingRank *r, float *to, const float *from, int64_t count);
int cuda_backend_narrow(RingRank *r, void *to, void *p, int64_t count, AttnDtype dtype);
int cuda_backend_widen(RingRank *r, void *p, int64_t count, AttnDtype dtype);

/* The queue for what is asked for next: that of the stream, or for both streams the first one,
 * behind everything. */
cudaStream_t cuda_backend_work(RingRank *r);
/* In both streams: what comes later in either comes after all that both have by now, as if work had
 * been asked for here. */
void cuda_backend_join(RingRank *r);
/* Work for both streams on `heads` that have nothing in common: half 0 of them, half 1, and then
 * RING_BOTH_STREAMS. Halves of as many heads may follow at once, if they use what those before have
 * written head by head: the same rows of the same state. */
void cuda_backend_select_half(RingRank *r, int half, int heads);
void cuda_backend_stream(RingRank *r, int stream);
/* Until the queues of work, or all of them, are empty: every wait of the host for the GPU. */
int cuda_backend_drain(RingRank *r, int work_only);
int cuda_backend_finish(RingRank *r);
int cuda_backend_hangs(void); /* 1: some rank's queue did not end in time; cudaFree would wait */
int cuda_backend_mark(RingRank *r, int messages);
double cuda_backend_mark_ms(RingRank *r, int number);
void cuda_backend_forget_marks(RingRank *r);
int cuda_backend_put_off(RingRank *r, const RingExchange *x);
void *cuda_backend_ready(RingRank *r, const void *p, size_t bytes);
void *cuda_backend_carry(RingRank *by, void *to, void *to_ready, const void *from, void *from_ready,
                         size_t bytes);
int cuda_backend_follow(RingRank *r, const RingTransfer *t, void *ready, void *arrived);

#endif
