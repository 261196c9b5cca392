/* SPDX-License-Identifier: MIT
 *
 * block.cuh: the kernels that resume from (O, lse), by their own names. O_state_dev NULL: the plain
 * forward pass into args->O. rows_dev.m not NULL: the state is undivided (FlashRows).
 *
 * Interface:
 * - flash_block_f32 (attention_f32.cu).
 * - flash_block_16_bit (attention_16bit.cu) with a workspace of flash_16_bit_workspace_bytes, and
 *   flash_block_16_bit_heads.
 * - flash_tiles_f32, flash_tiles_16_bit: the tiles that they work with.
 */
#ifndef FLASH_FORWARD_BLOCK_CUH
#define FLASH_FORWARD_BLOCK_CUH

#include "block_resume.h"

#ifdef __cplusplus
extern "C" { /* a test in C calls them */
#endif

AttnStatus flash_block_f32(const AttnArgs *args, float *O_state_dev, FlashRows rows_dev);
AttnStatus flash_block_16_bit(const AttnArgs *args, float *O_state_dev, FlashRows rows_dev,
                              void *workspace_dev);
AttnStatus flash_block_16_bit_heads(const AttnArgs *args, float *O_state_dev, FlashRows rows_dev,
                                    FlashHeads heads, int last);
size_t flash_16_bit_workspace_bytes(const AttnShape *shape);
FlashTiles flash_tiles_f32(const AttnArgs *args);
FlashTiles flash_tiles_16_bit(const AttnArgs *args);

#ifdef __cplusplus
}
#endif

#endif
