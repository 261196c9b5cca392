/* SPDX-License-Identifier: MIT
 *
 * simd_pack.h: what the library works in, and how rows of the caller's tensors get there.
 *
 * Interface:
 * - Plan: sizes that follow from the shape, and where things lie in the workspace. flash_make_plan.
 * - Block: what one thread works in. flash_place_block.
 * - flash_pack_panel: K and V of one panel of keys. flash_pack_queries: Q of a block.
 * - flash_move_panels: makes room behind packed keys.
 * - flash_describe_panels: positions of each panel's tokens, for the masks.
 * - flash_find_rows: rows of a tensor as float32. flash_fetch_row, flash_fetch_rows: tell the
 *   processor which rows will be asked for soon. flash_score_factor: what is multiplied into Q (or
 *   K) once. Stage 04 uses these too.
 */
#ifndef FLASH_SIMD_PACK_H
#define FLASH_SIMD_PACK_H

#include "attention/forward/flash_library.h"
#include "attn_pairs.h"
#include "simd.h"
#include "sizes.h"

#define BLOCK_ROWS 112 /* at most: as many whole strips as fit */
#define MAX_STRIPS 18
#define ROWS_AHEAD 16
/* Packed keys that a block of queries meets in a window, at most: half of a core's L2 cache. */
#define WINDOW_BYTES (1 << 20)
/* An O of so many bytes has left the L2 cache before anybody reads it. */
#define PAST_CACHES (4 << 20)

typedef struct Plan {
    const FlashSimd *simd;
    int64_t rows;      /* of a block of queries: whole strips */
    int64_t keys;      /* Nk, rounded up to whole panels */
    int64_t channels;  /* d, rounded up to whole panels */
    int narrow;        /* 1: a window of few keys, which stay in L2 for all strips of a block */
    int rolls;         /* 1: only the keys of a window are packed at a time, for each thread */
    int O_past_caches; /* 1: rows of O go to memory, not to the caches */
    int64_t slots;     /* packed heads, or pieces of them, that exist at a time */
    int64_t capacity;  /* packed keys that a slot has room for: `keys`, or less if they roll */
    int64_t K_floats, V_floats, thread_floats;
    float *K_packed;   /* [slots][capacity / panel][d][panel] */
    float *V_packed;   /* [slots][channels / panel][capacity][panel] */
    AttnRange *ranges; /* [keys / panel] positions of a panel's keys */
    uint8_t *straight; /* [keys / panel] 1: one sequence, positions rise by 1 from key to key */
    float *thread;     /* [threads][thread_floats] */
    FlashRows earlier; /* m NULL: what is resumed is (O, lse), if anything */
} Plan;

/* rows = plan->rows */
typedef struct Block {
    float *Q_i;                         /* [rows / strip][d][strip], times scale * log2(e) */
    float *O_i;                         /* [rows][channels], not yet divided */
    float *S;                           /* [strip][SIMD_ROW], then P */
    float *l_i;                         /* [rows][lanes] parts of the sum */
    float *m_i;                         /* [rows], base 2 */
    float *alpha;                       /* [strip] */
    float *copy;                        /* [panel][d] rows that are not float32, converted */
    AttnPosition positions[BLOCK_ROWS]; /* of the queries */
    AttnRange ranges[MAX_STRIPS];       /* of each strip's queries */
} Block;

/* Bytes of the workspace; its parts are placed in it unless it is NULL. Reads shape, rule,
 * positions and threads; no rule needs more than {-1, -1} does. */
size_t flash_make_plan(Plan *p, const FlashSimd *simd, const AttnArgs *args, char *workspace);
void flash_place_block(Block *block, const Plan *p, int64_t d, float *at);

void flash_fetch_row(const Tensor *t, int64_t b, int64_t h, int64_t row);
void flash_fetch_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count);
/* Panel `panel` of kv head kv (b * Hkv + head) becomes panel `place` of a slot. */
void flash_pack_panel(const AttnArgs *args, const Plan *p, float *copy, int64_t kv, int64_t slot,
                      int64_t panel, int64_t place);
/* Panels from .. from+count-1 of a slot become its first ones. */
void flash_move_panels(const Plan *p, int64_t d, int64_t slot, int64_t from, int64_t count);
void flash_pack_queries(const AttnArgs *args, const Plan *p, Block *block, int64_t b, int64_t h,
                        int64_t i, int64_t rows);
void flash_describe_panels(AttnPositions map, int64_t N, int64_t width, AttnRange *ranges,
                           uint8_t *straight);

/* Tokens first .. of head h as float rows, *ld apart: where they are, or converted in copy. */
const float *flash_find_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                             float *copy, int64_t *ld);
float flash_score_factor(const AttnArgs *args);

#endif
