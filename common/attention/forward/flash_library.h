/* SPDX-License-Identifier: MIT
 *
 * flash_library.h: stage 03's library: all of attention, fast, and what is more than a whole pass:
 * blocks of keys, and memory of the caller.
 *
 * A pair (O, lse) sums up all keys seen so far: m = lse, l = 1 is a valid state with that O. So a
 * block of keys can be added later, by another thread, kernel or rank, and a finished result is the
 * start of a longer one. The block functions below do that.
 *
 * Interface:
 * - flash_forward_library_cpu, flash_forward_library_cuda: the whole pass, `library` of --list.
 * - flash_tiles_library_cpu, flash_tiles_library_cuda: its tiles, for the byte model.
 * - flash_block_cpu, flash_block_cuda: resume from (O, lse).
 * - flash_state_start, flash_state_store: an empty state; a state as a tensor of any dtype.
 * - flash_simd_run with flash_simd_workspace_bytes: the CPU library without an allocation inside;
 *   flash_simd_resume, flash_rows_store: from a state that has lost nothing.
 * - flash_cuda_run with flash_cuda_workspace_bytes: the same on the GPU; cuda/block_resume.h: from
 *   a state that has lost nothing, there.
 */
#ifndef FLASH_LIBRARY_H
#define FLASH_LIBRARY_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

AttnStatus flash_forward_library_cpu(const AttnArgs *args);
AttnStatus flash_forward_library_cuda(const AttnArgs *args);

/* The tiles that the library works with on this case. On a CPU: rows of a block of queries, keys of
 * a panel. */
FlashTiles flash_tiles_library_cpu(const AttnArgs *args);
FlashTiles flash_tiles_library_cuda(const AttnArgs *args);

/* args->K, V and positions_k describe the block's keys only; args->mask, if any, is [Nq][Nk] of the
 * block. On entry and on return
 *   O_state    [B][Nq][H][d] float32, contiguous: attention over the keys seen so far
 *   args->lse  [B][H][Nq]
 * A row that has seen no key has O_state = 0, lse = -inf. args->O is not touched. */
AttnStatus flash_block_cpu(const AttnArgs *args, float *O_state);
AttnStatus flash_block_cuda(const AttnArgs *args, float *O_state_dev); /* device pointers */

/* The state before the first block; O = the state, rounded to O's dtype. Host pointers. */
void flash_state_start(const AttnArgs *args, float *O_state);
void flash_state_store(const AttnArgs *args, const float *O_state);

/* The same in memory that the caller owns (64-byte aligned). O_state NULL: the plain forward pass
 * into args->O; otherwise flash_block_cpu. */
size_t flash_simd_workspace_bytes(const AttnShape *shape, int threads);
AttnStatus flash_simd_run(const AttnArgs *args, float *O_state, void *workspace);

/* (O, lse) is rounded whenever a block is done: O by its division, lse by adding ln l. Who adds
 * many blocks keeps what the kernel had before: O_state unnormalised, the sum of exp(s - m) v, and
 * of each row [B][H][Nq]
 *   m          the largest score so far, times log2(e); -inf: none
 *   l, l_rest  the sum of exp(s - m), in two floats, of which l_rest is what l is short of
 * args->lse is written only, and is that of the keys so far. Otherwise as flash_simd_run. */
typedef struct FlashRows {
    float *m, *l, *l_rest;
} FlashRows;

AttnStatus flash_simd_resume(const AttnArgs *args, float *O_state, FlashRows rows, void *workspace);
/* args->O = O_state / l, rounded once; O_state is divided too. */
void flash_rows_store(const AttnArgs *args, float *O_state, FlashRows rows);

/* The same on the GPU: the fastest kernel for args->Q.dtype, in device memory that the caller owns
 * (256-byte aligned; 0 bytes: workspace_dev may be NULL). Nothing is allocated and nothing waits:
 * the work is queued on args->stream. */
size_t flash_cuda_workspace_bytes(const AttnShape *shape, AttnDtype dtype);
AttnStatus flash_cuda_run(const AttnArgs *args, float *O_state_dev, void *workspace_dev);

#ifdef __cplusplus
}
#endif
#endif
