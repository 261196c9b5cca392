/* SPDX-License-Identifier: MIT
 *
 * flash_rungs.h: the rungs on a GPU up to v8; from v9 on: hopper_rungs.h.
 *
 * Interface:
 * - flash_forward_v0_fa1 ... flash_forward_v8_schedule: the plain problem, O and lse.
 * - flash_tiles_v0_fa1 ...: the tiles that each kernel works with on this case.
 */
#ifndef FLASH_FORWARD_FLASH_RUNGS_H
#define FLASH_FORWARD_FLASH_RUNGS_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

AttnStatus flash_forward_v0_fa1(const AttnArgs *args);
AttnStatus flash_forward_v1_fa2(const AttnArgs *args);
AttnStatus flash_forward_v2_register_tiles(const AttnArgs *args);
AttnStatus flash_forward_v3_mma(const AttnArgs *args);
AttnStatus flash_forward_v4_ldmatrix(const AttnArgs *args);
AttnStatus flash_forward_v5_cp_async(const AttnArgs *args);
AttnStatus flash_forward_v6_exp2(const AttnArgs *args);
AttnStatus flash_forward_v7_full_tiles(const AttnArgs *args);
AttnStatus flash_forward_v8_schedule(const AttnArgs *args);

FlashTiles flash_tiles_v0_fa1(const AttnArgs *args);
FlashTiles flash_tiles_v1_fa2(const AttnArgs *args);
FlashTiles flash_tiles_v2_register_tiles(const AttnArgs *args);
FlashTiles flash_tiles_v3_mma(const AttnArgs *args);
FlashTiles flash_tiles_v4_ldmatrix(const AttnArgs *args);
FlashTiles flash_tiles_v5_cp_async(const AttnArgs *args);
FlashTiles flash_tiles_v6_exp2(const AttnArgs *args);
FlashTiles flash_tiles_v7_full_tiles(const AttnArgs *args);
FlashTiles flash_tiles_v8_schedule(const AttnArgs *args);

#ifdef __cplusplus
}
#endif
#endif
