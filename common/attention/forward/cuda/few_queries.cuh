/* SPDX-License-Identifier: MIT
 *
 * few_queries.cuh: the kernel for few queries and many keys, as attention_16bit.cu calls it.
 *
 * Interface:
 * - few_queries_takes: is it a case for it? Few rows (queries times heads of a group), f16 or bf16,
 *   rows on 16 bytes, every row sees one range of keys; any scale and softcap.
 * - few_queries_splits: in how many parts the keys are cut on this GPU.
 * - few_queries_bytes: room for the states of the parts; few_queries_tiles: for the byte model.
 * - few_queries_run: forward from nothing, or from a state and to it; workspace: few_queries_bytes.
 * - few_hopper_run (few_hopper.cu): the states of the parts, on Hopper; without memory for them
 *   (parts.O NULL) O and lse. ATTN_SKIP: not its case.
 */
#ifndef FLASH_FORWARD_FEW_QUERIES_CUH
#define FLASH_FORWARD_FEW_QUERIES_CUH

#include "attn_band.h"
#include "attn_config.h"
#include "dispatch.cuh"
#include "split_states.cuh"

bool few_queries_takes(const AttnArgs *args);
AttnStatus few_queries_splits(const AttnShape *shape, AttnRule rule, int *splits);
size_t few_queries_bytes(const AttnShape *shape, int splits);
FlashTiles few_queries_tiles(const AttnArgs *args, int splits);
AttnStatus few_queries_run(const AttnArgs *args, float *O_state_dev, FlashRows rows_dev,
                           void *workspace_dev, int splits);

#ifdef HAVE_SM90A
AttnStatus few_hopper_run(const AttnArgs *args, SplitStates parts, AttnBand band);
#else
static inline AttnStatus few_hopper_run(const AttnArgs *, SplitStates, AttnBand)
{
    return ATTN_SKIP;
}
#endif

#endif
