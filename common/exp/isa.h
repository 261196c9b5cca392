/* SPDX-License-Identifier: MIT
 *
 * isa.h: which instruction set this program uses on this processor.
 *
 * Interface:
 * - exp_isa(): "portable", "avx2" or "avx512", found once when the program first asks; the
 *   environment variable ATTN_ISA forces one.
 */
#ifndef ATTN_ISA_H
#define ATTN_ISA_H

#ifdef __cplusplus
extern "C" {
#endif

const char *exp_isa(void);

#ifdef __cplusplus
}
#endif
#endif
