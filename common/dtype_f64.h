/* SPDX-License-Identifier: MIT
 *
 * dtype_f64.h: from float64 to 16 bits, for files and references. Variants compute in float32 and
 * have no use for it.
 *
 * Interface:
 * - dtype_round_f64: dtype_round of tensor.h in one rounding, not by way of a float.
 */
#ifndef ATTN_DTYPE_F64_H
#define ATTN_DTYPE_F64_H

#include "attn.h"

float dtype_round_f64(AttnDtype dtype, double x);
#endif
