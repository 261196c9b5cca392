/* SPDX-License-Identifier: MIT
 *
 * simt_report.h: what a program that judges kernels asks of the runtime, after they have run.
 *
 * Interface:
 * - simt_finding: where the first finding is, a line for each place, and its title; NULL: none.
 * - simt_count: of all kernels: "sectors read", "sectors written" (32 bytes of global memory),
 *   "launches", "blocks", "wavefronts", "ideal wavefronts" (no two in one bank), "shared reads",
 *   "shared writes", "global writes" (a warp's requests), "groups of copies beside reads" (for each
 *   shared read of a warp those that are on their way), "mbarriers in use" (of a block), or
 *   instructions by warps: "mma", "ldmatrix", "cp.async", "shuffles", "atomics", "barriers",
 *   "mbarrier".
 * - simt_kept: bytes that kernels wrote to variables, where the host can read them in the model.
 * - simt_worst: the line that loses most wavefronts, or sectors read or written, and why; or NULL.
 * - simt_at_stop: called where the program cannot go on. simt_no_report: nothing at the end.
 */
#ifndef SIMT_REPORT_H
#define SIMT_REPORT_H

#ifdef __cplusplus
extern "C" {
#endif
const char *simt_finding(const char **title);
long simt_count(const char *what);
long simt_kept(void);
const char *simt_worst(const char *what);
extern void (*simt_at_stop)(void);
void simt_no_report(void);
#ifdef __cplusplus
}
#endif

#endif
