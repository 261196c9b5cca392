/* SPDX-License-Identifier: MIT
 *
 * block_beside.h: v4_clean_tiles for two blocks of keys at the same time.
 *
 * A kernel is done when its last block of threads is, and until then multiprocessors have nothing
 * to do. A second kernel, on another stream, takes those: here one that adds other keys' gradients
 * of the same queries. dQ is added to atomically, dK and dV belong to different keys; but what a
 * call notes about its keys, the walk tables (row_walk.cuh), has to lie somewhere else.
 *
 * Interface:
 * - flash_backward_v4_add_beside, flash_backward_v4_tables_bytes.
 */
#ifndef FLASH_BACKWARD_BLOCK_BESIDE_H
#define FLASH_BACKWARD_BLOCK_BESIDE_H

#include "../flash_backward.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of tables_dev below, for blocks of keys of at most this shape. */
size_t flash_backward_v4_tables_bytes(const AttnShape *shape);

/* flash_backward_cuda_add (flash_backward.h) for f16 and bf16, in the workspace of a pass that was
 * begun; another such call, with other tables or none, may run meanwhile on another stream. Both
 * come after flash_backward_cuda_begin and before flash_backward_cuda_end. tables_dev: 256-byte
 * aligned; its former use is over. ATTN_SKIP: float32, or --deterministic, whose order of additions
 * is that of one call. */
AttnStatus flash_backward_v4_add_beside(const AttnArgs *args, const float *delta_dev,
                                        FlashSums sums_dev, void *workspace_dev, void *tables_dev);

#ifdef __cplusplus
}
#endif

#endif
