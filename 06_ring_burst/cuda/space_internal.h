/* SPDX-License-Identifier: MIT
 *
 * space_internal.h: what the files of the GPU's space share; nobody else includes it.
 *
 * Interface:
 * - cuda_space_of, cuda_space_answer, cuda_space_room: a rank's space, an answer as a failure,
 *   lists. cuda_space_work: the queue of work.
 * - The functions of RingSpace (ring_world.h) that stand in other files than its table.
 */
#ifndef RING_SPACE_INTERNAL_H
#define RING_SPACE_INTERNAL_H

#include "../../03_flash_forward/cuda/block_resume.h"
#include "space_cuda.h"

CudaSpace *cuda_space_of(RingRank *r);
/* What the block kernels answer; CUDA's words are on stderr already. */
int cuda_space_answer(RingRank *r, AttnStatus status, const char *what);
/* Room for one more in a list that doubles. */
int cuda_space_room(RingRank *r, void **list, int count, int *room, size_t size);
/* Is p in memory of this rank? */
int cuda_space_owns(const CudaSpace *s, const void *p);
int cuda_space_piece_has(const DevicePiece *piece, const void *p);
/* 1: all queues are empty, if need be after a second. */
int cuda_space_is_idle(const CudaSpace *s);
/* dQ from the workspace to its sums, if it is there. */
int cuda_space_settle_all(RingRank *r);

void *cuda_space_alloc(RingRank *r, size_t bytes);
void cuda_space_free(RingRank *r, void *p_dev);
int cuda_space_upload(RingRank *r, void *to, const void *from_host, size_t bytes);
int cuda_space_download(RingRank *r, void *to_host, const void *from, size_t bytes);
int cuda_space_spoil(RingRank *r, void *p, size_t bytes);
int cuda_space_copy(RingRank *r, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                    size_t width, int64_t height);

int cuda_space_zero(RingRank *r, void *p, size_t bytes);
int cuda_space_start_state(RingRank *r, float *O_state, int64_t count, float *lse, int64_t rows);
/* 1: exactly this memory was asked to be zero, and nobody has touched it since. */
int cuda_space_is_zero(const CudaSpace *s, const void *p, size_t bytes);
/* In front of a kernel that continues this state; *first: it has seen no key. */
int cuda_space_begin_O(RingRank *r, const float *O_state, const AttnShape *n, int rows_only,
                       int *first);
void cuda_space_forget_zeros(CudaSpace *s, const void *p, size_t bytes);
/* Zeros that were asked for there and not written are written now. */
int cuda_space_touch(RingRank *r, const void *p, size_t bytes);

int cuda_space_reserve(RingRank *r);
/* [B][tokens][heads][d] in the dtype, contiguous. */
Tensor cuda_space_whole(const RingRank *r, void *data, int64_t tokens, int64_t heads);
int cuda_space_alone(RingRank *r, RingPass pass);
int cuda_space_attend(RingRank *r, const AttnArgs *args, float *O_state, FlashRows rows);
int cuda_space_differentiate(RingRank *r, const AttnArgs *args, const float *delta, FlashSums sums);
int cuda_space_delta_of(RingRank *r, const AttnArgs *args, float *delta);
int cuda_space_finish_O(RingRank *r, const AttnArgs *args, float *O_state, FlashRows rows);
int cuda_space_add(RingRank *r, float *to, const void *from, AttnDtype from_dtype, int64_t count);
int cuda_space_narrow(RingRank *r, void *to, void *p, int64_t count, AttnDtype dtype);
int cuda_space_widen(RingRank *r, void *p, int64_t count, AttnDtype dtype);

/* The queue for what is asked for next: that of the lane, or for both lanes the first one, behind
 * everything. */
cudaStream_t cuda_space_work(RingRank *r);
/* In both lanes: what comes later in either comes after all that both have by now, as if work had
 * been asked for here. */
void cuda_space_join(RingRank *r);
/* Work for both lanes on `heads` that have nothing in common: half 0 of them, half 1, and then
 * RING_BOTH_LANES. Halves of as many heads may follow at once, if they use what those before have
 * written head by head: the same rows of the same state. */
void cuda_space_half(RingRank *r, int half, int heads);
/* A queue of something else waits for the work asked for so far, in this lane or in both. */
int cuda_space_behind_work(RingRank *r, cudaStream_t queue);
void cuda_space_lane(RingRank *r, int lane);
/* Until the queues of work, or all of them, are empty: every wait of the host for the GPU. */
int cuda_space_drain(RingRank *r, int work_only);
int cuda_space_finish(RingRank *r);
int cuda_space_hangs(void); /* 1: some rank's queue did not end in time; cudaFree would wait */
int cuda_space_mark(RingRank *r, int messages);
double cuda_space_mark_ms(RingRank *r, int number);
void cuda_space_forget_marks(RingRank *r);
int cuda_space_put_off(RingRank *r, const RingExchange *x);
void *cuda_space_ready(RingRank *r, const void *p, size_t bytes);
void *cuda_space_carry(RingRank *by, void *to, void *to_ready, const void *from, void *from_ready,
                       size_t bytes);
int cuda_space_follow(RingRank *r, const RingTransfer *t, void *ready, void *arrived);

#endif
