/* SPDX-License-Identifier: MIT
 *
 * gradient_launch.cuh: which of its two sizes of tiles the 16-bit kernel takes.
 *
 * Interface: with_tile.
 */
#ifndef FLASH_BACKWARD_GRADIENT_LAUNCH_CUH
#define FLASH_BACKWARD_GRADIENT_LAUNCH_CUH

#include "attention/forward/cuda/dispatch.cuh"
#include "key_sums.cuh"

/* The bytes of shared memory that a block may have: --smem-limit, or what the device offers. */
static AttnStatus smem_of_block(int64_t *bytes)
{
    int device = 0, offered = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&offered, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    *bytes = offered;
    if (device_smem_limit() > 0 && device_smem_limit() < offered)
        *bytes = device_smem_limit();
    return ATTN_OK;
}

/* Where a block of keys is seen by few queries, its start and its end are what takes the time, and
 * a tile is partly outside the window: smaller tiles, of which several blocks fit an SM, so that
 * one works while another starts. Found by measurement. */
#define NARROW_WINDOW 512 /* on either side */

/* run(C()), C the tile that is launched for this case. */
template <int D, class Run> static AttnStatus with_tile(const AttnArgs *a, Run run)
{
    typedef typename TileFor<D, false>::C C;
    int64_t bytes = 0;
    const AttnStatus status = smem_of_block(&bytes);
    const int64_t left = a->rule.left, right = a->rule.right;
    const bool narrow = left >= 0 && right >= 0 && left <= NARROW_WINDOW && right <= NARROW_WINDOW;
    if (status != ATTN_OK)
        return status;
    if (bytes < GradientBytes<C>::ALL + STATIC_SMEM || ((D == 64 || D == 128) && narrow))
        return run(typename TileFor<D, true>::C());
    return run(C());
}

#endif
