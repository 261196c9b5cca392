/* SPDX-License-Identifier: MIT
 *
 * alloc.h: the allocator that variants use for their workspace, because it counts.
 *
 * The memory a variant needs beside its inputs and outputs is a result of this suite (the N x N
 * wall of stage 01, the O(N d) of stage 03), so it is counted in bytes, not guessed from the
 * process size.
 *
 * Interface:
 * - workspace_alloc_device / workspace_free_device: workspace_alloc (attn.h) on the GPU; NULL
 *   without CUDA.
 * - workspace_settle, workspace_trim: freed device blocks are kept; this is what to do with them
 *   outside of timed code.
 * - workspace_reset_peak, workspace_lower_peak, workspace_peak, workspace_live: bytes. Safe to call
 *   from any thread.
 * - workspace_intact: has a variant written outside a block? Fences are looked at in the free,
 *   on the GPU in workspace_settle.
 * - memory_available: Linux promises memory that it does not have and kills the process that then
 *   touches it; memory_enough_for (attn.h) asks first, so that "out of memory" is an answer.
 */
#ifndef ATTN_ALLOC_H
#define ATTN_ALLOC_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* On the current device. The first block of a size costs a cudaMalloc. A freed one is kept, fenced
 * and counted as freed, for the next request of that size; the free does not wait for the kernels
 * that still use it. */
void *workspace_alloc_device(size_t bytes);
void workspace_free_device(void *p_dev);
/* Waits for the GPU, looks at the fences of the device blocks that were freed and fills them with
 * 0xFF again. Between timed runs: without it, requests take new blocks for a while and then wait.
 */
void workspace_settle(void);
/* The same, and the freed blocks go back to the driver. A request that finds the memory short does
 * it before it gives up. */
void workspace_trim(void);

void workspace_reset_peak(void); /* peak = live, and nothing is damaged so far */
void workspace_lower_peak(void); /* peak = live, between two passes */
size_t workspace_peak(void);     /* most bytes live at once since the reset, host + device */
size_t workspace_live(void);     /* a test asserts 0 after each run: nothing leaks */
/* 1: no block freed since workspace_reset_peak was written outside its bytes (host or device). */
int workspace_intact(void);

size_t memory_available(void); /* bytes that can be touched now; SIZE_MAX when unknown */

#ifdef __cplusplus
}
#endif
#endif
