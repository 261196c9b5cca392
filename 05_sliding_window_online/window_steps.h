/* SPDX-License-Identifier: MIT
 *
 * window_steps.h: stage 05's --trace --step: a block a page.
 * Text for report/pages.h: at most 23 lines of 80 characters a page, a form feed ends a page.
 *
 * Interface:
 * - sliding_window_trace_steps: head 0 of batch 0, one sequence (host tensors).
 */
#ifndef SLIDING_WINDOW_STEPS_H
#define SLIDING_WINDOW_STEPS_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 0, or -1: no memory. */
int sliding_window_trace_steps(const AttnArgs *args, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
