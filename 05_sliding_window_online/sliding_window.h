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
 * A --variant-so takes AttnArgs with AttnOptions. What is the same for all of them is done once, in
 * front and behind: QK normalisation, and the temperature, which is part of the scale. Packed
 * tensors and layouts are strides, several sequences are segments of the position maps.
 *
 * Interface:
 * - SLIDING_WINDOW_ABI_VERSION. The rungs are named in main.c.
 * - sliding_window_trace, sliding_window_trace_steps: --trace.
 * Whole calls with every option: attention/window/window_library.h. The modules as a library, with
 * their own errors: attention/window/sliding_window_module.h.
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

/* The (i, j) block matrix of a tiny case being visited, with lse filling in: one screen. 0, or -1:
 * memory is short. */
int sliding_window_trace(const AttnArgs *args, FILE *to);
/* A block a page (report/pages.h): head 0 of batch 0, one sequence. */
int sliding_window_trace_steps(const AttnArgs *args, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
