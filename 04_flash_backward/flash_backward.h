/* SPDX-License-Identifier: MIT
 *
 * flash_backward.h: the contract of stage 04. How can gradients be computed when P was never
 * stored?
 *
 *     delta_i = rowsum(dO_i * O_i)                    once for each query
 *     for each tile j of Bc keys, for each tile i of Br queries:
 *         S     = scale * Q_i K_j^T                   recomputed: it was never stored
 *         P     = exp(S - lse_i)                      no maximum, no sum: the forward kept lse
 *         dP    = dO_i V_j^T
 *         dS    = P * (dP - delta_i)                  times 1 - (S / cap)^2 with a softcap
 *         dV_j += P^T dO_i
 *         dK_j += scale * dS^T Q_i
 *         dQ_i += scale * dS K_j
 *
 * Five products instead of the forward's two. In this loop order dK_j and dV_j stay in fast memory,
 * and every tile of keys adds to dQ; with the loops swapped it is the other way round. Somebody has
 * to add up what many tiles give, and how that is done tells the variants apart.
 *
 * lse is rounded to a float32, and P with it: at scores of 10^5 by a hundredth, and from 10^8 on P
 * says nothing. It stays at most 1 all the same and the gradients finite, but in the kernels with
 * tensor cores, where the comparison would cost time for each pair: there they may be infinite.
 *
 * With grouped heads the query heads of a group add to the same dK and dV.
 *
 * Interface:
 * - FLASH_BACKWARD_ABI_VERSION. flash_backward_trace, flash_backward_trace_steps (trace.c).
 * The rungs are named in main.c. All of attention, fast, what some keys add, memory of the caller:
 * attention/backward/backward_library.h.
 */
#ifndef FLASH_BACKWARD_H
#define FLASH_BACKWARD_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A shared object for --variant-so exports `int flash_backward_abi_version =
 * FLASH_BACKWARD_ABI_VERSION;` and `AttnStatus flash_backward_variant(const AttnArgs *)`, which is
 * the backward pass: O and lse are there already, from stage 03. */
#define FLASH_BACKWARD_ABI_VERSION 2

/* P, dP, dS and the growing dQ, dK, dV of a tiny case (host tensors), by tiles of 2 x 2 pairs, on
 * one screen. The second one batch 0, head 0, a tile a page (report/pages.h), Nq and Nk up to 6, d
 * up to 4. 0, or -1: memory is short. */
int flash_backward_trace(const AttnArgs *args, FILE *to);
int flash_backward_trace_steps(const AttnArgs *args, FILE *to);

/* On a CPU every variant is deterministic: the same arguments give the same bits, run after run,
 * because every sum has one order that follows from the shape alone; the library with any number of
 * threads too. (v0_fa1_backward and v1_fa2_backward leave their products to OpenBLAS, which may cut
 * a large one for its threads where ours have only one task.)
 *
 * On the GPU a tile of keys adds to dQ by atomics, in an order that is a matter of luck: dQ may
 * differ in the last bits from run to run. dK and dV do not, nor does anything of v1_two_kernels.
 * The library adds in a fixed order with --deterministic. */

#ifdef __cplusplus
}
#endif
#endif
