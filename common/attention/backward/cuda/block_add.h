/* SPDX-License-Identifier: MIT
 *
 * block_add.h: the kernel for 16 bits, for one of several blocks of keys, as stage 06 has them.
 *
 * Beside another call. A kernel is done when its last block of threads is, and until then more and
 * more multiprocessors have nothing to do. A second kernel, on another stream, takes those: here
 * one that adds other keys' gradients of the same queries. dQ is added to atomically, dK and dV
 * belong to different keys; but what a call notes about its keys, the walk tables (row_walk.cuh),
 * has to lie somewhere else.
 *
 * Interface:
 * - FlashKeysOptions, flash_gradients_add, flash_gradients_tables_bytes.
 */
#ifndef FLASH_BACKWARD_BLOCK_ADD_H
#define FLASH_BACKWARD_BLOCK_ADD_H

#include "attention/backward/backward_library.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct FlashKeysOptions {
    void *tables_dev; /* NULL: those of the workspace. 256-byte aligned; its former use is over */
    int fresh;        /* 1: sums.dK and sums.dV are written, whatever they were */
} FlashKeysOptions;

/* Of tables_dev, for blocks of keys of at most this shape. */
size_t flash_gradients_tables_bytes(const AttnShape *shape);

/* flash_backward_cuda_add (backward_library.h) for f16 and bf16. Calls with different tables may
 * run at the same time on different streams, behind one flash_backward_cuda_begin and before its
 * flash_backward_cuda_end. ATTN_SKIP: float32; or tables_dev with --deterministic, whose order of
 * additions is that of one call. */
AttnStatus flash_gradients_add(const AttnArgs *args, const float *delta_dev, FlashSums sums_dev,
                               void *workspace_dev, FlashKeysOptions keys);

#ifdef __cplusplus
}
#endif

#endif
