/* SPDX-License-Identifier: MIT
 *
 * block.cuh: the kernels that resume from (O, lse), by their own names. O_state_dev NULL: the plain
 * forward pass into args->O. rows_dev.m not NULL: the state is undivided (FlashRows).
 *
 * Interface:
 * - flash_block_f32 (v2_register_tiles.cu), flash_block_v3_mma, flash_block_v4_cp_async.
 * - flash_block_16_bit (v5_clean_tiles.cu) with a workspace of flash_16_bit_workspace_bytes, and
 *   flash_block_16_bit_heads.
 */
#ifndef FLASH_FORWARD_BLOCK_CUH
#define FLASH_FORWARD_BLOCK_CUH

#include "block_resume.h"

#ifdef __cplusplus
extern "C" { /* a test in C calls them */
#endif

AttnStatus flash_block_f32(const AttnArgs *args, float *O_state_dev, FlashRows rows_dev);
AttnStatus flash_block_v3_mma(const AttnArgs *args, float *O_state_dev);
AttnStatus flash_block_v4_cp_async(const AttnArgs *args, float *O_state_dev);
AttnStatus flash_block_16_bit(const AttnArgs *args, float *O_state_dev, FlashRows rows_dev,
                              void *workspace_dev);
AttnStatus flash_block_16_bit_heads(const AttnArgs *args, float *O_state_dev, FlashRows rows_dev,
                                    FlashHeads heads, int last);
size_t flash_16_bit_workspace_bytes(const AttnShape *shape);

#ifdef __cplusplus
}
#endif

#endif
