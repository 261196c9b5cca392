/* SPDX-License-Identifier: MIT
 *
 * cuda_pipeline.h: cp.async under the names of CUDA's C interface.
 *
 * Interface: __pipeline_memcpy_async, __pipeline_commit, __pipeline_wait_prior.
 */
#pragma once
#ifdef __cplusplus
#include "simt.h"

/* The last zfill of the size bytes are not read, but zeroed. */
static inline SIMT_QUIET void __pipeline_memcpy_async(void *to, const void *from, size_t size,
                                                      size_t zfill = 0)
{
    simt_ptx::cp_async_issue(simt::shared_address((uintptr_t)to), from, (int)size,
                             (int)(size - zfill));
}
static inline SIMT_QUIET void __pipeline_commit(void)
{
    simt_ptx::cp_commit();
}
static inline SIMT_QUIET void __pipeline_wait_prior(int n)
{
    simt_ptx::cp_wait(n);
}
#endif
