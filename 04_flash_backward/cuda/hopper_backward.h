/* SPDX-License-Identifier: MIT
 *
 * hopper_backward.h: the rungs from v10 on, which need sm_90a.
 *
 * Interface:
 * - flash_backward_v10_wgmma ... flash_backward_v13_fused_delta: the plain problem in f16 and bf16,
 *   d = 64 and 128; --deterministic, and any GPU but one of compute capability 9.0, is ATTN_SKIP.
 * - flash_backward_tiles_v10_wgmma ...: their tiles.
 */
#ifndef FLASH_BACKWARD_HOPPER_BACKWARD_H
#define FLASH_BACKWARD_HOPPER_BACKWARD_H

#include "flash_backward.h"

#ifdef __cplusplus
extern "C" {
#endif

AttnStatus flash_backward_v10_wgmma(const AttnArgs *args);
AttnStatus flash_backward_v11_warp_specialised(const AttnArgs *args);
AttnStatus flash_backward_v12_turns(const AttnArgs *args);
AttnStatus flash_backward_v13_fused_delta(const AttnArgs *args);

FlashTiles flash_backward_tiles_v10_wgmma(const AttnArgs *args);
FlashTiles flash_backward_tiles_v11_warp_specialised(const AttnArgs *args);
FlashTiles flash_backward_tiles_v12_turns(const AttnArgs *args);
FlashTiles flash_backward_tiles_v13_fused_delta(const AttnArgs *args);

#ifdef __cplusplus
}
#endif

#endif
