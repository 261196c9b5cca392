/* SPDX-License-Identifier: MIT
 *
 * tiled_softmax.h: what a shared object for --variant-so of stage 02 exports:
 * `int tiled_softmax_abi_version = TILED_SOFTMAX_ABI_VERSION;` and
 * `AttnStatus tiled_softmax_variant(const AttnArgs *)`.
 *
 * Interface: TILED_SOFTMAX_ABI_VERSION. softmax_trace, softmax_trace_steps (trace.c).
 */
#ifndef TILED_SOFTMAX_H
#define TILED_SOFTMAX_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TILED_SOFTMAX_ABI_VERSION 2

/* (m, l) filling in for one row of a small problem (host tensors): the last query of head 0. The
 * second one a block of keys a page, Nk and d up to 8. 0, or -1: memory is short. */
int softmax_trace(const AttnArgs *args, FILE *to);
int softmax_trace_steps(const AttnArgs *args, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
