/* SPDX-License-Identifier: MIT
 *
 * model_internal.h: what model.c and model_backward.c share; nobody else includes it.
 *
 * Interface: VisibleTiles, model_visible_tiles, model_heads_traffic.
 */
#ifndef ATTN_MODEL_INTERNAL_H
#define ATTN_MODEL_INTERNAL_H

#include "harness/models/model.h"

/* The visible ones of the Tr x Tc tiles of one head: how many there are, how many rows and columns
 * they have in all, and how many keys are in a visible tile at all. */
typedef struct VisibleTiles {
    double tiles, rows, cols, keys;
} VisibleTiles;

VisibleTiles model_visible_tiles(const AttnArgs *args, int64_t Br, int64_t Bc);
/* elements: of the tensors' type. floats: 4 bytes each. All for one query head. */
ModelTraffic model_heads_traffic(const AttnArgs *args, double element_loads, double float_loads,
                                 double element_stores, double float_stores);

#endif
