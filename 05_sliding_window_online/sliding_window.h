/* SPDX-License-Identifier: MIT
 *
 * sliding_window.h: the contract of stage 05. If attention is a sum that can be merged, how small
 * can one step be, and what does a window save?
 *
 *     for each block i of queries, for each block j of keys that the window lets it see:
 *         (O_ij, lse_ij) = attention of Q_i over the keys of block j alone
 *         lse = max + log1p(exp(min - max))        of lse_i and lse_ij; -inf where both are
 *         O_i = exp(lse_i - lse) O_i + exp(lse_ij - lse) O_ij,   lse_i = lse
 *
 * The merge is associative and commutative: blocks may come in any order, from anywhere. A window
 * (left, right) leaves about N (left + right + 1) of the N^2 pairs; a variant that only visits the
 * tiles in which there are some costs N times the window.
 *
 * Weights that a clip or dropout changes are exp(s - m) / l with the maximum and the sum of the
 * whole row. Not exp(s - lse): lse is rounded, at scores of 10^5 by a hundredth of a weight.
 *
 * Every variant takes AttnArgs with AttnOptions. What is the same for all of them is done once, in
 * front and behind: QK normalisation, and the temperature, which is part of the scale. Packed
 * tensors and layouts are strides, several sequences are segments of the position maps.
 *
 * Interface:
 * - sliding_window_v*: the variants (CPU: v0_offline_mask, v1_online_block, v2_window_tiles,
 *   v3_streaming, v4_window_backward; CUDA: v0_online_block, v1_window_tiles, v2_mma_window,
 *   v3_decode_window).
 * - WindowTiles, window_count_tiles: what the walk over tiles of a kernel visits.
 * - window_set_blocks, window_set_order: --block-q, --block-kv, --order.
 * - sliding_window_trace: --trace.
 * What surrounds a variant: attention/window/window_library.h. The modules as a library, with their
 * own errors: attention/window/sliding_window_module.h.
 */
#ifndef SLIDING_WINDOW_H
#define SLIDING_WINDOW_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A shared object for --variant-so exports `int sliding_window_abi_version =
 * SLIDING_WINDOW_ABI_VERSION;`, `AttnStatus sliding_window_variant(const AttnArgs *)` and, for
 * --backward, `sliding_window_variant_backward`. */
#define SLIDING_WINDOW_ABI_VERSION 2

/* --- variants ----------------------------------------------------------------------------------*/

/* ATTN_SKIP where a variant cannot compute a case by what it is; window_skip_reason() then tells
 * why in one sentence. */
AttnStatus sliding_window_v0_offline_mask(const AttnArgs *args);
AttnStatus sliding_window_v0_offline_mask_backward(const AttnArgs *args);
AttnStatus sliding_window_v1_online_block(const AttnArgs *args);
AttnStatus sliding_window_v2_window_tiles(const AttnArgs *args);
AttnStatus sliding_window_v3_streaming(const AttnArgs *args);
AttnStatus sliding_window_v4_window_backward(const AttnArgs *args); /* the backward pass of v2 */

AttnStatus sliding_window_v0_online_block(const AttnArgs *args);
AttnStatus sliding_window_v1_window_tiles(const AttnArgs *args);
AttnStatus sliding_window_v1_window_tiles_backward(const AttnArgs *args);
AttnStatus sliding_window_v2_mma_window(const AttnArgs *args);
AttnStatus sliding_window_v2_mma_window_backward(const AttnArgs *args);
AttnStatus sliding_window_v3_decode_window(const AttnArgs *args);

/* Why a variant answered ATTN_SKIP last: "" or a sentence. Variants set it before they do. */
void window_set_skip_reason(const char *sentence);
const char *window_skip_reason(void);

/* --- tiles -------------------------------------------------------------------------------------*/

/* Tiles of Br x Bc of all heads and batches: never looked at, asked pair by pair, seen in full. */
typedef struct WindowTiles {
    int64_t Br, Bc;
    int64_t skipped, masked, clean;
} WindowTiles;

/* Counted in the walk that the CPU variants use: several sequences have tiles of their own, and a
 * full mask makes clean tiles masked ones. */
WindowTiles window_count_tiles(const AttnArgs *args, int64_t Br, int64_t Bc);

/* Blocks of a step of the online variants, and the order in which they visit them. */
typedef enum WindowOrder {
    WINDOW_ROWS,
    WINDOW_COLUMNS,
    WINDOW_DIAGONAL,
    WINDOW_RANDOM
} WindowOrder;
void window_set_blocks(int64_t block_q, int64_t block_kv); /* 64, 64 unless told otherwise */
void window_set_order(WindowOrder order, uint64_t seed);
int64_t window_block_q(void);
int64_t window_block_kv(void);
/* visits [Tr*Tc]: visit t is block (visits[t] / Tc, visits[t] % Tc), in the order that was set. */
void window_order_blocks(int64_t Tr, int64_t Tc, int64_t *visits);

/* The (i, j) block matrix of a tiny case being visited, with lse filling in: one screen. 0, or -1:
 * memory is short. */
int sliding_window_trace(const AttnArgs *args, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
