/* SPDX-License-Identifier: MIT
 *
 * naive_steps.h: stage 01's --trace, in one screen or, with --step, a query a page.
 * Text for report/pages.h: at most 23 lines of 80 characters a page, a form feed ends a page.
 *
 * Interface:
 * - naive_trace: S, P and O of one small head.
 * - naive_trace_steps: batch 0, head 0 (host tensors), Nq and Nk up to 6, d up to 4.
 */
#ifndef NAIVE_STEPS_H
#define NAIVE_STEPS_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Prints Q, K, V, S, P, O and lse of batch 0, head 0 (host tensors; O is recomputed, not read). 0,
 * or -1: no memory. */
int naive_trace(const AttnArgs *args, FILE *to);
int naive_trace_steps(const AttnArgs *args, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
