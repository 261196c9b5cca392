/* SPDX-License-Identifier: MIT
 *
 * block.cuh: the library's two kernels that give what a block of keys adds to the gradients. All
 * pointers are device pointers.
 *
 * Interface:
 * - flash_gradients_run, flash_gradients_workspace_bytes, flash_gradients_tiles: f16 and bf16.
 * - flash_gradients_hopper, _bytes, _tiles: on Hopper (hopper_gradients.cu).
 * - flash_gradients_portable, _bytes.
 * - flash_gradients_f32_run, flash_gradients_f32_tiles: float32.
 */
#ifndef FLASH_BACKWARD_BLOCK_CUH
#define FLASH_BACKWARD_BLOCK_CUH

#include "attention/backward/backward_library.h"
#include "attn_config.h"

#ifdef __cplusplus
extern "C" { /* a test in C calls them */
#endif

/* In memory that the caller owns: the contract of flash_backward_cuda_run. parts: those of a pass
 * over several blocks of keys (flash_backward_cuda_begin), or all. */
enum { GRADIENTS_BEGIN = 1, GRADIENTS_ADD = 2, GRADIENTS_END = 4, GRADIENTS_ALL = 7 };
size_t flash_gradients_workspace_bytes(const AttnShape *shape);
AttnStatus flash_gradients_run(const AttnArgs *args, const float *delta_dev, FlashSums sums_dev,
                               void *workspace_dev, int parts);

FlashTiles flash_gradients_tiles(const AttnArgs *args);

/* flash_gradients_run by the portable kernel alone. */
AttnStatus flash_gradients_portable(const AttnArgs *args, const float *delta_dev,
                                    FlashSums sums_dev, void *workspace_dev, int parts, int fresh);
size_t flash_gradients_portable_bytes(const AttnShape *shape);

/* ATTN_SKIP, 0, and nothing is lost: not a case for it. fresh: sums of keys are written, whatever
 * they were. */
#ifdef HAVE_SM90A
AttnStatus flash_gradients_hopper(const AttnArgs *args, const float *delta_dev, FlashSums sums_dev,
                                  void *workspace_dev, int parts, int fresh);
size_t flash_gradients_hopper_bytes(const AttnShape *shape);
int flash_gradients_hopper_tiles(const AttnArgs *args, FlashTiles *tiles);
#else
static inline AttnStatus flash_gradients_hopper(const AttnArgs *args, const float *delta_dev,
                                                FlashSums sums_dev, void *workspace_dev, int parts,
                                                int fresh)
{
    (void)args, (void)delta_dev, (void)sums_dev, (void)workspace_dev, (void)parts, (void)fresh;
    return ATTN_SKIP;
}

static inline size_t flash_gradients_hopper_bytes(const AttnShape *shape)
{
    (void)shape;
    return 0;
}

static inline int flash_gradients_hopper_tiles(const AttnArgs *args, FlashTiles *tiles)
{
    (void)args, (void)tiles;
    return 0;
}
#endif

/* sums_dev.dQ = NULL: the gradients go to dQ, dK and dV of args, without a detour by sums. */
AttnStatus flash_gradients_f32_run(const AttnArgs *args, const float *delta_dev,
                                   FlashSums sums_dev);
FlashTiles flash_gradients_f32_tiles(const AttnArgs *args);

#ifdef __cplusplus
}
#endif

#endif
