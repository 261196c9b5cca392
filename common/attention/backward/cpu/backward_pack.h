/* SPDX-License-Identifier: MIT
 *
 * backward_pack.h: what the library works in, and how rows of the caller's tensors get there.
 *
 * Interface:
 * - BackwardPlan: sizes that follow from the shape, and where things lie in the workspace.
 *   backward_make_plan.
 * - KeyBlock: what one thread works in. backward_place_block.
 * - backward_pack_queries: a panel of Q and dO, with lse and delta.
 * - backward_pack_keys: a block of K and V. backward_query_head: where a head's operands lie.
 * - backward_part_dQ: where a part of the keys adds up the dQ of a query head.
 */
#ifndef BACKWARD_PACK_H
#define BACKWARD_PACK_H

#include "attention/backward/backward_library.h"
#include "attention/forward/cpu/simd_pack.h"
#include "attn_pairs.h"
#include "backward_simd.h"

#define MOST_KEYS    252 /* of a block: whole strips of 14 and of 6, also by half */
#define MOST_STRIPS  42
#define WANTED_TASKS 8 /* (batch, kv head, part): for so many threads there is work */

typedef struct BackwardPlan {
    const FlashSimd *simd;
    const BackwardSimd *backward;
    int64_t keys;         /* of a block: whole strips */
    int64_t queries;      /* of a block: whole strips and whole panels, at most SIMD_KEYS */
    int64_t rows;         /* Nq, rounded up to whole strips and panels */
    int64_t channels;     /* d, rounded up to whole panels */
    int64_t group;        /* query heads that share a kv head */
    int64_t parts;        /* the keys of a head are dealt out to so many dQ */
    int64_t slots;        /* kv heads whose query heads exist as packed copies at a time */
    int64_t head_floats;  /* a packed query head */
    int64_t block_floats; /* a KeyBlock */
    float *heads;         /* [slots][group][head_floats] */
    float *parts_dQ;      /* [slots][parts][group][rows][channels], without the scale */
    AttnRange *ranges;    /* [rows / panel] positions of a panel's queries */
    uint8_t *straight;    /* [rows / panel] 1: one sequence, positions rise by 1 */
    float *blocks;        /* [threads][block_floats] */
} BackwardPlan;

/* A query head, packed; panels for products along d, pieces for products along queries. */
typedef struct QueryHead {
    float *Q_panels, *dO_panels; /* [rows / panel][d][panel] */
    float *Q_pieces, *dO_pieces; /* [channels / panel][rows][panel] */
    float *lse;                  /* [rows] base 2; +inf where a row sees no key, so that P = 0 */
    float *delta;                /* [rows] */
} QueryHead;

typedef struct KeyBlock {
    int64_t j, count;           /* first key, number of keys */
    float *K_strips, *V_strips; /* [strips][d][strip]; K times scale * log2(e) */
    float *K_pieces;            /* [channels / panel][keys][panel] */
    float *dK, *dV;             /* [keys][channels]; dK without the scale */
    float *S;                   /* [strip][SIMD_ROW], then P: rows are keys */
    float *dS;                  /* [keys][SIMD_ROW] dP, then dS */
    float *slope;               /* [strip][SIMD_ROW] of the softcap */
    float *copy;                /* [2][panel][d] rows that are not float32, converted */
    AttnPosition positions[MOST_KEYS];
    AttnRange ranges[MOST_STRIPS];                 /* of each strip's keys */
    int64_t first[MOST_STRIPS], last[MOST_STRIPS]; /* columns that a strip sees: [first, last) */
    uint8_t begun[MOST_STRIPS];                    /* 0: nothing stands in the strip's dK, dV yet */
} KeyBlock;

/* Bytes of the workspace; its parts are placed in it unless it is NULL. */
size_t backward_make_plan(BackwardPlan *p, const AttnShape *n, int threads, char *workspace);
void backward_place_block(KeyBlock *block, const BackwardPlan *p, int64_t d, int thread);
/* Query head g of the group in a slot. */
QueryHead backward_query_head(const BackwardPlan *p, const AttnShape *n, int64_t slot, int64_t g);
float *backward_part_dQ(const BackwardPlan *p, int64_t slot, int64_t part, int64_t g);

/* Queries i .. of head h; delta [B][H][Nq], or NULL: then it is made of O and dO. */
void backward_pack_queries(const AttnArgs *args, const BackwardPlan *p, const float *delta,
                           float *copy, const QueryHead *head, int64_t b, int64_t h, int64_t i);
void backward_pack_keys(const AttnArgs *args, const BackwardPlan *p, KeyBlock *block, int64_t b,
                        int64_t h_kv, int64_t j);

#endif
