/* SPDX-License-Identifier: MIT
 *
 * hopper_rungs.h: the rungs from v9 on, which need sm_90a.
 *
 * Interface:
 * - flash_forward_v9_wgmma ... flash_forward_v14_persistent: the plain problem in f16 and bf16, d =
 *   64 and 128; anything else, and any GPU but one of compute capability 9.0, is ATTN_SKIP.
 * - flash_tiles_v9_wgmma ...: their tiles.
 */
#ifndef FLASH_FORWARD_HOPPER_RUNGS_H
#define FLASH_FORWARD_HOPPER_RUNGS_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

AttnStatus flash_forward_v9_wgmma(const AttnArgs *args);
AttnStatus flash_forward_v10_warp_specialised(const AttnArgs *args);
AttnStatus flash_forward_v11_overlapped_softmax(const AttnArgs *args);
AttnStatus flash_forward_v12_lazy_rescale(const AttnArgs *args);
AttnStatus flash_forward_v13_more_warpgroups(const AttnArgs *args);
AttnStatus flash_forward_v14_persistent(const AttnArgs *args);

FlashTiles flash_tiles_v9_wgmma(const AttnArgs *args);
FlashTiles flash_tiles_v10_warp_specialised(const AttnArgs *args);
FlashTiles flash_tiles_v11_overlapped_softmax(const AttnArgs *args);
FlashTiles flash_tiles_v12_lazy_rescale(const AttnArgs *args);
FlashTiles flash_tiles_v13_more_warpgroups(const AttnArgs *args);
FlashTiles flash_tiles_v14_persistent(const AttnArgs *args);

#ifdef __cplusplus
}
#endif

#endif
