/* SPDX-License-Identifier: MIT
 *
 * backward_steps.h: stage 04's --trace --step: a tile a page.
 * Text for report/pages.h: at most 23 lines of 80 characters a page, a form feed ends a page.
 *
 * Interface:
 * - flash_backward_trace_steps: batch 0, head 0 (host tensors), Nq and Nk up to 6, d up to 4.
 */
#ifndef FLASH_BACKWARD_STEPS_H
#define FLASH_BACKWARD_STEPS_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 0, or -1: no memory. */
int flash_backward_trace_steps(const AttnArgs *args, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
