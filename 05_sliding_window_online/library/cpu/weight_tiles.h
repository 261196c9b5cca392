/* SPDX-License-Identifier: MIT
 *
 * weight_tiles.h: the passes over visible tiles that clipping and dropout need.
 *
 * Interface:
 * - window_weigh_tiles: O from lse. window_weigh_tiles_backward: gradients, added to sums.
 */
#ifndef WINDOW_WEIGHT_TILES_H
#define WINDOW_WEIGHT_TILES_H

#include "sliding_window.h"

/* args->lse [B][H][Nq] is given, O is written: the sum of clipped and dropped weights times V. */
AttnStatus window_weigh_tiles(const AttnArgs *args);

/* Adds dQ, dK and dV to `sums`. Reads Q, K, V, O, lse and dO of args. */
AttnStatus window_weigh_tiles_backward(const AttnArgs *args, FlashSums sums);

#endif
