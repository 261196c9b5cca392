/* SPDX-License-Identifier: MIT
 *
 * backward_library.h: stage 04's library: the backward pass of all of attention, fast, and what it
 * is made of: what a block of keys adds to the gradients, and memory of the caller.
 *
 * Interface:
 * - flash_backward_library_cpu, flash_backward_library_cuda: the whole pass, `library` of --list.
 * - flash_backward_set_deterministic: --deterministic. flash_backward_tiles_library_*: tiles.
 * - flash_backward_delta: delta of all rows.
 * - FlashSums, flash_sums_start, flash_sums_store: gradients in float32 that several calls add to.
 * - flash_backward_block_cpu: adds what some keys give.
 * - flash_backward_simd_run, flash_backward_simd_workspace_bytes: the CPU library without an
 *   allocation.
 * - flash_backward_delta_cuda, flash_sums_start_cuda, flash_sums_store_cuda,
 *   flash_backward_block_cuda, flash_backward_cuda_run: the same on the GPU;
 *   flash_backward_cuda_begin, _add, _end: for several blocks of keys.
 */
#ifndef FLASH_BACKWARD_LIBRARY_H
#define FLASH_BACKWARD_LIBRARY_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

AttnStatus flash_backward_library_cpu(const AttnArgs *args);
AttnStatus flash_backward_library_cuda(const AttnArgs *args);

/* --deterministic: what adds to dQ atomically and has another way takes it. Set it before any pass
 * runs. (On a CPU every sum has one order that follows from the shape alone, with any number of
 * threads.) */
void flash_backward_set_deterministic(int yes);
int flash_backward_deterministic(void);

/* The tiles that the library works with on this case, for the byte model. splits: parts of the keys
 * with a dQ of their own, 1 on a GPU. */
FlashTiles flash_backward_tiles_library_cpu(const AttnArgs *args);
FlashTiles flash_backward_tiles_library_cuda(const AttnArgs *args);

/* delta [B][H][Nq] float32 = rowsum(dO * O). It needs the whole, finished O: with several blocks of
 * keys it is computed once, before the first. */
void flash_backward_delta(const AttnArgs *args, float *delta);

/* Gradients as float32, contiguous, whatever the dtype and the strides of the tensors. */
typedef struct FlashSums {
    float *dQ; /* [B][Nq][H][d] */
    float *dK; /* [B][Nk][Hkv][d], Nk = keys of the block */
    float *dV; /* [B][Nk][Hkv][d] */
} FlashSums;

/* Zeros; the sums, rounded to dQ, dK and dV of args. */
void flash_sums_start(const AttnShape *shape, FlashSums sums);
void flash_sums_store(const AttnArgs *args, FlashSums sums);

/* args->Q, dO, positions_q and lse describe all queries; args->K, V and positions_k the block's
 * keys only, and args->mask, if any, is [Nq][Nk] of the block. lse [B][H][Nq] and delta [B][H][Nq]
 * belong to the attention over ALL keys. What these pairs of queries and keys give is added to
 * `sums`; O, dQ, dK and dV of args are not touched. One block or many, in any order: the same
 * gradients but for rounding. */
AttnStatus flash_backward_block_cpu(const AttnArgs *args, const float *delta, FlashSums sums);

typedef AttnStatus (*FlashBlockFn)(const AttnArgs *args, const float *delta, FlashSums sums);

/* flash_backward_block_cpu in memory that the caller owns, 64-byte aligned. With
 * sums.dQ = NULL the whole pass: delta is computed here (that argument is not read) and the
 * gradients go straight to dQ, dK and dV of args. */
size_t flash_backward_simd_workspace_bytes(const AttnShape *shape, int threads);
AttnStatus flash_backward_simd_run(const AttnArgs *args, const float *delta, FlashSums sums,
                                   void *workspace);

/* --- the same on the GPU: device pointers, queued on args->stream, nothing waits ---------------*/

AttnStatus flash_backward_delta_cuda(const AttnArgs *args, float *delta_dev);
AttnStatus flash_sums_start_cuda(const AttnShape *shape, FlashSums sums_dev, void *stream);
AttnStatus flash_sums_store_cuda(const AttnArgs *args, FlashSums sums_dev);

/* Adds a block of keys to `sums_dev` with the library's kernel for the dtype. */
AttnStatus flash_backward_block_cuda(const AttnArgs *args, const float *delta_dev,
                                     FlashSums sums_dev);

/* The same in memory that the caller owns (256-byte aligned; 0 bytes: NULL will do). With
 * sums_dev.dQ = NULL the whole pass: delta is computed here (delta_dev is not read) and the
 * gradients go to dQ, dK and dV of args. */
size_t flash_backward_cuda_workspace_bytes(const AttnShape *shape, AttnDtype dtype);
AttnStatus flash_backward_cuda_run(const AttnArgs *args, const float *delta_dev, FlashSums sums_dev,
                                   void *workspace_dev);

/* The same for several blocks of keys that meet the same queries, one after the other. What
 * concerns the queries alone, before the first block and after the last, is done once: begin; add
 * for each block (in float32 to sums_dev.dQ at once, else dQ stays in the workspace); end adds dQ
 * to sums_dev.dQ. The workspace has flash_backward_cuda_workspace_bytes of the largest block.
 * Between the calls only K, V, positions_k, mask and shape.Nk of args may change; all blocks have
 * a mask, or none has. */
AttnStatus flash_backward_cuda_begin(const AttnArgs *args, const float *delta_dev,
                                     void *workspace_dev);
AttnStatus flash_backward_cuda_add(const AttnArgs *args, const float *delta_dev, FlashSums sums_dev,
                                   void *workspace_dev);
AttnStatus flash_backward_cuda_end(const AttnArgs *args, FlashSums sums_dev, void *workspace_dev);

#ifdef __cplusplus
}
#endif
#endif
