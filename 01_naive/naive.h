/* SPDX-License-Identifier: MIT
 *
 * naive.h: what a shared object for --variant-so of stage 01 exports:
 * `int naive_abi_version = NAIVE_ABI_VERSION;`, `AttnStatus naive_variant(const AttnArgs *)` and,
 * for --backward, `naive_variant_backward`.
 *
 * Interface: NAIVE_ABI_VERSION. naive_trace, naive_trace_steps (trace.c).
 */
#ifndef NAIVE_H
#define NAIVE_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NAIVE_ABI_VERSION 2

/* Q, K, V, S, P, O and lse of batch 0, head 0 (host tensors; O is computed again, not read), in one
 * screen. The second one a query a page, Nq and Nk up to 6, d up to 4. Pages: report/pages.h. 0, or
 * -1: no memory. */
int naive_trace(const AttnArgs *args, FILE *to);
int naive_trace_steps(const AttnArgs *args, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
