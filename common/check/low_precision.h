/* SPDX-License-Identifier: MIT
 *
 * low_precision.h: the plain low-precision implementation of FlashAttention's own accuracy rule: a
 * kernel may err at most twice as much (gradients: three times) as materialised attention that
 * rounds S, P, dP and dS to the dtype. Code of its own: scale first, f32 accumulation. A second,
 * printed figure (flash_ratio); the bound of oracle.h decides.
 *
 * Interface:
 * - low_precision_run: max absolute error of the plain implementation against the oracle, per
 *   quantity.
 */
#ifndef ATTN_LOW_PRECISION_H
#define ATTN_LOW_PRECISION_H

#include "oracle/oracle.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct LowPrecision {
    /* max |plain - oracle| over the oracle's rows and keys; of large samples over some of these
     * rows, NaN for dK and dV, which need all rows, and for all gradients that are given
     * (oracle.h) */
    double O, dQ, dK, dV;
} LowPrecision;

/* 0, or -1 when memory is short (keys and values of one head are needed, and up to 64 rows of
 * scores). The figures do not depend on the number of threads. */
int low_precision_run(LowPrecision *y, const Oracle *o, const AttnArgs *args, int backward,
                      int threads);

#ifdef __cplusplus
}
#endif
#endif
