/* SPDX-License-Identifier: MIT
 *
 * block.cuh: the two kernels behind flash_block_cuda. O_state_dev NULL: the plain forward pass.
 *
 * Interface: flash_block_f32 (v2_register_tiles.cu), flash_block_16_bit (v5_clean_tiles.cu).
 */
#ifndef FLASH_FORWARD_BLOCK_CUH
#define FLASH_FORWARD_BLOCK_CUH

#include "../flash_forward.h"

AttnStatus flash_block_f32(const AttnArgs *args, float *O_state_dev);
AttnStatus flash_block_16_bit(const AttnArgs *args, float *O_state_dev);

#endif
