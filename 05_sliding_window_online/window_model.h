/* SPDX-License-Identifier: MIT
 *
 * window_model.h: tiles and bytes of a variant with two kernels, told by the one that takes a case.
 *
 * Interface: window_tiles_v2_mma, window_traffic_v2_mma (builds with CUDA).
 */
#ifndef WINDOW_MODEL_H
#define WINDOW_MODEL_H

#include "attn.h"
#include "flash_forward.h" /* FlashTiles */
#include "models/model.h"  /* ModelTraffic */

#ifdef __cplusplus
extern "C" {
#endif

/* The forward pass of v2_mma_window has two kernels: one for narrow windows, stage 03's for the
 * rest. Tiles and traffic of the one that takes this case on the current device; nothing is
 * launched and no data read. Of the kernel for narrow windows a tile is what one warp decides
 * about, since each skips and masks for itself. `tiles`: what window_tiles_v2_mma said. */
FlashTiles window_tiles_v2_mma(const AttnArgs *args);
ModelTraffic window_traffic_v2_mma(const AttnArgs *args, FlashTiles tiles);

#ifdef __cplusplus
}
#endif
#endif
