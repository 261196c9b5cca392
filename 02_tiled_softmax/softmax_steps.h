/* SPDX-License-Identifier: MIT
 *
 * softmax_steps.h: stage 02's --trace --step: a block of keys a page.
 * Text for report/pages.h: at most 23 lines of 80 characters a page, a form feed ends a page.
 *
 * Interface:
 * - softmax_trace_steps: the last query of head 0 (host tensors), Nk and d up to 8.
 */
#ifndef SOFTMAX_STEPS_H
#define SOFTMAX_STEPS_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 0, or -1: no memory. */
int softmax_trace_steps(const AttnArgs *args, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
