/* SPDX-License-Identifier: MIT
 *
 * block.cuh: the kernels that add what a block of keys gives, by their own names, and the whole
 * pass around such a kernel. All pointers are device pointers.
 *
 * Interface:
 * - flash_backward_block_v0_atomics, _v1_two_kernels, _v2_mma, _v3_cp_async: add to sums_dev.
 * - flash_backward_v4_run, flash_backward_v4_workspace_bytes: v4.
 * - flash_backward_two_kernels_run: v1, which can also write the tensors themselves.
 * - flash_backward_by_block_cuda: delta, zeros, one block with all keys, the sums into the tensors.
 */
#ifndef FLASH_BACKWARD_BLOCK_CUH
#define FLASH_BACKWARD_BLOCK_CUH

#include "../flash_backward.h"

#ifdef __cplusplus
extern "C" { /* a test in C calls them */
#endif

AttnStatus flash_backward_block_v0_atomics(const AttnArgs *args, const float *delta_dev,
                                           FlashSums sums_dev);
AttnStatus flash_backward_block_v1_two_kernels(const AttnArgs *args, const float *delta_dev,
                                               FlashSums sums_dev);
AttnStatus flash_backward_block_v2_mma(const AttnArgs *args, const float *delta_dev,
                                       FlashSums sums_dev);
AttnStatus flash_backward_block_v3_cp_async(const AttnArgs *args, const float *delta_dev,
                                            FlashSums sums_dev);

/* v4_clean_tiles in memory that the caller owns: the contract of flash_backward_cuda_run. parts:
 * those of a pass over several blocks of keys (flash_backward_cuda_begin), or all. */
enum { GRADIENTS_BEGIN = 1, GRADIENTS_ADD = 2, GRADIENTS_END = 4, GRADIENTS_ALL = 7 };
size_t flash_backward_v4_workspace_bytes(const AttnShape *shape);
AttnStatus flash_backward_v4_run(const AttnArgs *args, const float *delta_dev, FlashSums sums_dev,
                                 void *workspace_dev, int parts);

/* sums_dev.dQ = NULL: the gradients go to dQ, dK and dV of args, without a detour by sums. */
AttnStatus flash_backward_two_kernels_run(const AttnArgs *args, const float *delta_dev,
                                          FlashSums sums_dev);

AttnStatus flash_backward_by_block_cuda(const AttnArgs *args, FlashBlockFn add_block);

#ifdef __cplusplus
}
#endif

#endif
