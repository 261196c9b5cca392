/* SPDX-License-Identifier: MIT
 *
 * naive_steps.h: stage 01's --trace --step: a query a page.
 * Text for report/pages.h: at most 23 lines of 80 characters a page, a form feed ends a page.
 *
 * Interface:
 * - naive_trace_steps: batch 0, head 0 (host tensors), Nq and Nk up to 6, d up to 4.
 */
#ifndef NAIVE_STEPS_H
#define NAIVE_STEPS_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 0, or -1: no memory. */
int naive_trace_steps(const AttnArgs *args, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
