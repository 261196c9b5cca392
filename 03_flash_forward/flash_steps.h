/* SPDX-License-Identifier: MIT
 *
 * flash_steps.h: stage 03's --trace, in one screen or, with --step, a tile a page.
 * Text for report/pages.h: at most 23 lines of 80 characters a page, a form feed ends a page.
 *
 * Interface:
 * - flash_trace: m, l and O of a tiny case, tile by tile.
 * - flash_trace_steps: Algorithm 1 over batch 0, head 0 (host tensors), Nq and Nk up to 6, d up
 *   to 4; the tiles follow from M (0: 8d).
 */
#ifndef FLASH_STEPS_H
#define FLASH_STEPS_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Host tensors; M = 0: 8d. 0, or -1: memory is short. */
int flash_trace(const AttnArgs *args, int64_t M, FILE *to);
int flash_trace_steps(const AttnArgs *args, int64_t M, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
