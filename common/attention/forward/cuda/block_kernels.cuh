/* SPDX-License-Identifier: MIT
 *
 * block_kernels.cuh: the kernels that resume from (O, lse), by their own names. O_state_dev NULL:
 * the plain forward pass into args->O. rows_dev.m not NULL: the state is unnormalised (FlashRows).
 *
 * Interface:
 * - flash_block_f32 (attention_f32.cu).
 * - flash_block_16_bit (attention_16bit.cu) with a workspace of flash_16_bit_workspace_bytes, and
 *   flash_block_16_bit_heads.
 * - flash_block_hopper (hopper_16bit.cu): what attention_16bit.cu asks first.
 * - flash_tiles_f32, flash_tiles_16_bit, flash_tiles_hopper: the tiles that they work with.
 */
#ifndef FLASH_FORWARD_BLOCK_CUH
#define FLASH_FORWARD_BLOCK_CUH

#include "attn_config.h"
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

/* ATTN_SKIP, 0, and nothing has been done: not a case for it. */
#ifdef HAVE_SM90A
AttnStatus flash_block_hopper(const AttnArgs *args, float *O_state_dev, FlashRows rows_dev,
                              FlashHeads heads, int last);
int flash_tiles_hopper(const AttnArgs *args, FlashTiles *tiles);
#else
static inline AttnStatus flash_block_hopper(const AttnArgs *args, float *O_state_dev,
                                            FlashRows rows_dev, FlashHeads heads, int last)
{
    (void)args, (void)O_state_dev, (void)rows_dev, (void)heads, (void)last;
    return ATTN_SKIP;
}

static inline int flash_tiles_hopper(const AttnArgs *args, FlashTiles *tiles)
{
    (void)args, (void)tiles;
    return 0;
}
#endif

#ifdef __cplusplus
}
#endif

#endif
