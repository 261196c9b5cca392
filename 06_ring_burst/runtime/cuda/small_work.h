/* SPDX-License-Identifier: MIT
 *
 * small_work.h: what happens between the block kernels on a GPU: sums, and changes of type. All of
 * it is one walk over memory; it is queued on `stream` and nothing waits.
 *
 * Interface: launch_empty_rows, launch_cast, launch_add, launch_narrow, launch_widen. Arrays are
 * contiguous device memory of `count` elements; count 0 does nothing.
 */
#ifndef RING_SMALL_WORK_H
#define RING_SMALL_WORK_H

#include <cuda_runtime_api.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* lse of rows that have seen no key: -inf */
AttnStatus launch_empty_rows(float *lse_dev, int64_t count, cudaStream_t stream);
/* to = from, rounded to `dtype` */
AttnStatus launch_cast(void *to_dev, AttnDtype dtype, const float *from_dev, int64_t count,
                       cudaStream_t stream);
/* to += from */
AttnStatus launch_add(float *to_dev, const float *from_dev, int64_t count, cudaStream_t stream);
/* float32 -> dtype in the same place, and back. Nothing to do for ATTN_F32. */
AttnStatus launch_narrow(void *p_dev, int64_t count, AttnDtype dtype, cudaStream_t stream);
AttnStatus launch_widen(void *p_dev, int64_t count, AttnDtype dtype, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
