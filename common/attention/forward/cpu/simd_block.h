/* SPDX-License-Identifier: MIT
 *
 * simd_block.h: one block of queries of the library, against the packed keys that it sees.
 *
 * Interface:
 * - Keys: where a head's packed keys are. NextBlock: which block comes after this one.
 * - flash_attend_block: O and lse of queries i .. i+rows-1 of one head.
 */
#ifndef FLASH_SIMD_BLOCK_H
#define FLASH_SIMD_BLOCK_H

#include "simd_pack.h"

/* A slot of the plan; its first panel begins with key `first`. */
typedef struct Keys {
    const float *K, *V;
    int64_t first;
} Keys;

/* Queries i .. of head h; of their keys first_key .. last_key-1 are not yet packed. */
typedef struct NextBlock {
    int64_t b, h, i, first_key, last_key;
} NextBlock;

/* All keys that the block sees are in `keys`. O_state NULL: O goes to args->O; else the block
 * resumes from (O_state, lse) and leaves both there. next, unless it is NULL, is looked at only in
 * a narrow window. */
void flash_attend_block(const AttnArgs *args, const Plan *p, Block *block, const Keys *keys,
                        float *O_state, int64_t b, int64_t h, int64_t i, const NextBlock *next);

#endif
