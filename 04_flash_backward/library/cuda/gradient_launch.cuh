/* SPDX-License-Identifier: MIT
 *
 * gradient_launch.cuh: which of its two sizes of tiles the 16-bit kernel takes.
 *
 * Interface: choose_tiles.
 */
#ifndef FLASH_BACKWARD_GRADIENT_LAUNCH_CUH
#define FLASH_BACKWARD_GRADIENT_LAUNCH_CUH

#include "dispatch.cuh"
#include "key_sums.cuh"

/* The bytes of shared memory that a block may have: --smem-limit, or what the device offers. */
static AttnStatus smem_of_block(int64_t *bytes)
{
    int device = 0, offered = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&offered, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    *bytes = offered;
    if (flash_smem_limit() > 0 && flash_smem_limit() < offered)
        *bytes = flash_smem_limit();
    return ATTN_OK;
}

/* Where a block of keys is seen by few queries, its start and its end are what takes the time, and
 * a tile is partly outside the window: smaller tiles, of which several blocks fit an SM, so that
 * one works while another starts. Found by measurement. */
#define NARROW_WINDOW 512 /* on either side */

/* Which of the two sizes of tiles is launched for this case. */
template <int D> static AttnStatus choose_tiles(const AttnArgs *a, bool *small)
{
    int64_t bytes = 0;
    const AttnStatus status = smem_of_block(&bytes);
    const int64_t left = a->rule.left, right = a->rule.right;
    const bool narrow = left >= 0 && right >= 0 && left <= NARROW_WINDOW && right <= NARROW_WINDOW;
    *small = bytes < GradientBytes<typename TileFor<D, false>::C>::ALL + STATIC_SMEM ||
             ((D == 64 || D == 128) && narrow);
    return status;
}

#endif
