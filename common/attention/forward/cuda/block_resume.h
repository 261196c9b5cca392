/* SPDX-License-Identifier: MIT
 *
 * block_resume.h: the block kernels of the GPU with a state that is not divided (FlashRows,
 * flash_library.h), for a ring that adds many blocks of keys: O and lse are rounded once, at the
 * end, and not with every block. In a header of its own, since only stage 06 asks for it.
 *
 * All of it is queued on args->stream in device memory that the caller owns. m and l [B][H][Nq] are
 * those of FlashRows; l_rest is not used: a kernel rounds l with each of its tiles anyway.
 *
 * Interface: flash_cuda_resume, flash_cuda_resume_heads, flash_cuda_rows_store.
 */
#ifndef FLASH_FORWARD_BLOCK_RESUME_H
#define FLASH_FORWARD_BLOCK_RESUME_H

#include "attention/forward/flash_library.h"

#ifdef __cplusplus
extern "C" {
#endif

/* flash_cuda_run from an unnormalised state to an unnormalised state. args->lse [B][H][Nq] is a
 * result, that of the keys so far. Before the first block m = -inf, l = 0, and lse = -inf, which
 * stays right if no block comes. O_state_dev may hold anything then: rows with l = 0 have no O. */
AttnStatus flash_cuda_resume(const AttnArgs *args, float *O_state_dev, FlashRows rows_dev,
                             void *workspace_dev);

/* Heads `first` to first + count - 1 of all B*H, the ones of the first sequence first. */
typedef struct FlashHeads {
    int first, count;
} FlashHeads;

/* The same for some heads. Heads have nothing in common, so others of them may be computed in
 * another stream at the same time. last: these are the last keys; O of all keys goes to args->O,
 * rounded, and the state is only read, which spares a pass that writes it and one that reads it
 * again. ATTN_SKIP, and nothing has been done: no kernel for it (float32, or so few queries that
 * the keys are split). */
AttnStatus flash_cuda_resume_heads(const AttnArgs *args, float *O_state_dev, FlashRows rows_dev,
                                   FlashHeads heads, int last);

/* args->O = O_state_dev / l, rounded once; 0 where l = 0. For those who have no last block, or were
 * told ATTN_SKIP. */
AttnStatus flash_cuda_rows_store(const AttnArgs *args, const float *O_state_dev,
                                 FlashRows rows_dev);

#ifdef __cplusplus
}
#endif

#endif
