/* SPDX-License-Identifier: MIT
 *
 * backward_steps.h: stage 04's --trace, in one screen or, with --step, a tile a page.
 * Text for report/pages.h: at most 23 lines of 80 characters a page, a form feed ends a page.
 *
 * Interface:
 * - flash_backward_trace: P, dP, dS and the growing dQ, dK, dV, tile by tile of 2 x 2 pairs.
 * - flash_backward_trace_steps: batch 0, head 0 (host tensors), Nq and Nk up to 6, d up to 4.
 */
#ifndef FLASH_BACKWARD_STEPS_H
#define FLASH_BACKWARD_STEPS_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tiny case (host tensors). 0, or -1: memory is short. */
int flash_backward_trace(const AttnArgs *args, FILE *to);
int flash_backward_trace_steps(const AttnArgs *args, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
