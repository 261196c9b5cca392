/* SPDX-License-Identifier: MIT
 *
 * flash_forward.h: the contract of stage 03. How can exact attention never write the N x N matrix,
 * and why is that faster although it computes more?
 *
 *     for each tile i of Br queries, for each tile j of Bc keys:
 *         S_ij  = scale * Q_i K_j^T                   [Br][Bc], lives in fast memory only
 *         m_new = max(m_i, rowmax(S_ij))              alpha = exp(m_i - m_new)
 *         P_ij  = exp(S_ij - m_new)
 *         l_i   = alpha * l_i + rowsum(P_ij)          O_i   = alpha * O_i + P_ij V_j
 *     O_i = O_i / l_i                                 lse_i = m_i + ln l_i
 *
 * Fast memory is what a tile fits in: registers and L1 on a CPU, registers and shared memory on a
 * GPU. Slow memory is the rest. The variants differ in which loop is outside, that is, in which
 * tiles travel between the two again and again.
 *
 * Interface:
 * - FLASH_FORWARD_ABI_VERSION.
 * - flash_trace, flash_trace_steps: --trace (trace.c).
 * The rungs are named in main.c. All of attention, fast, blocks of keys, memory of the caller:
 * attention/forward/flash_library.h.
 */
#ifndef FLASH_FORWARD_H
#define FLASH_FORWARD_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A shared object for --variant-so exports `int flash_forward_abi_version =
 * FLASH_FORWARD_ABI_VERSION;` and `AttnStatus flash_forward_variant(const AttnArgs *)`. */
#define FLASH_FORWARD_ABI_VERSION 2

/* All variants are deterministic: the same arguments give the same bits, run after run; the CPU
 * library with any number of threads too. (v0_fa1_tiles and v1_fa2_rows leave a large product to
 * OpenBLAS, which may cut it for its threads. The GPU's library: on GPUs with equally many
 * multiprocessors.) */

/* m, l and O of a tiny case (host tensors), tile by tile, on one screen. The second one Algorithm 1
 * over batch 0, head 0, a tile a page (report/pages.h), Nq and Nk up to 6, d up to 4. M: elements
 * of fast memory; 0: 8d. 0, or -1: no memory. */
int flash_trace(const AttnArgs *args, int64_t M, FILE *to);
int flash_trace_steps(const AttnArgs *args, int64_t M, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
