/* SPDX-License-Identifier: MIT
 *
 * plan.h: which rank gets which tokens, and what a user chooses.
 *
 * The tokens are dealt out to G ranks. Each keeps its own queries; a method (rank.h) says who
 * travels where. Which tokens a rank gets is its layout. A shard is described by a position map
 * (attn.h), from which follows every mask; methods know nothing about layouts.
 *
 * Interface:
 * - RingSetup: what the user chooses. RingPlan: what follows from it for all ranks.
 * - ring_plan_make, ring_plan_free: shards, hops, refusals in one sentence.
 * Sources: Liu et al. 2023 (arXiv 2310.01889), Sun et al. 2024, BurstAttention (2403.09347),
 * Brandon et al. 2023, striped (2311.09431), Jacobs et al. 2023, Ulysses (2309.14509).
 */
#ifndef RING_PLAN_H
#define RING_PLAN_H

#include "attn.h"
#include "harness/models/model_ring.h"
#include "runtime/rank.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum RingFaultKind {
    RING_NO_FAULT,
    RING_DROP,      /* a message is never sent */
    RING_DUPLICATE, /* ... is sent twice */
    RING_CORRUPT,   /* ... arrives with a flipped bit */
    RING_DELAY,     /* ... is sent late */
    RING_EXIT       /* the rank ends without a word */
} RingFaultKind;

/* --inject KIND@rank:step; steps are counted through both passes of a run */
typedef struct RingFault {
    RingFaultKind kind;
    int rank, step;
} RingFault;

typedef struct RingSetup {
    RingMethod method; /* AUTO: the planner has chosen before ring_plan_make */
    RingLayout layout;
    int ranks, nodes;       /* G, M: G % M == 0, node of rank r is r / (G/M) */
    AttnDtype partials;     /* ATTN_F32, or ATTN_BF16: O and travelling gradients are rounded after
                               every step, as public implementations do */
    int deterministic;      /* 1: the block kernels are asked for a fixed order of additions */
    double timeout_s;       /* of one wait */
    int verify_hops;        /* a checksum and a number travel with each message */
    int adversarial;        /* sim: ranks run one at a time, in an order drawn from */
    uint64_t schedule_seed; /* ... this seed, and messages are late in any order */
    RingFault fault;
    int threads; /* CPU threads of all ranks of this process together */
} RingSetup;

/* A run of local tokens with equal steps: local first + t is token global + t * stride of the whole
 * tensor (row n of [B][N][H][d]), for 0 <= t < length. */
typedef struct RingPiece {
    int64_t first, length;
    int64_t global, stride;
} RingPiece;

/* One rank's share of the queries or of the keys. pieces and segments have `count` entries and
 * describe the same runs: where a token comes from, and which position it has. The local order is
 * that of the sequence. A zigzag shard of several sequences has a quarter of all of them, then the
 * next quarter. */
typedef struct RingShard {
    int64_t tokens;
    int64_t cut[5]; /* quarter q: local tokens cut[q] .. cut[q + 1] - 1 (rank.h) */
    int64_t count;
    RingPiece *pieces;
    AttnSegment *segments;
} RingShard;

typedef struct RingPlan {
    RingSetup setup;
    AttnShape shape; /* of the whole attention */
    AttnDtype dtype;
    float scale, softcap;
    AttnRule rule;
    const uint8_t *mask; /* [Nq][Nk] of the whole attention in host memory, or NULL */
    int backward;
    RingShard q[RING_MAX_RANKS], k[RING_MAX_RANKS];
    int64_t nq[RING_MAX_RANKS], nk[RING_MAX_RANKS]; /* their tokens, as the formulas want them */
    /* As in RingRank. Without a window, and in layouts that spread every sequence over all ranks,
     * hops_up = G-1 and hops_down = 0. */
    int hops_up, hops_down;
} RingPlan;

/* args: the whole attention, host pointers (only shape, dtype, scale, cap, rule, positions, mask
 * are read; dO with data asks for a backward pass). 0, or -1 with one sentence in why[256]: heads
 * that Ulysses cannot deal out, ranks that are no multiple of the nodes, more ranks than
 * RING_MAX_RANKS, no memory. */
int ring_plan_make(RingPlan *plan, const AttnArgs *args, const RingSetup *setup, char why[256]);
void ring_plan_free(RingPlan *plan);

#ifdef __cplusplus
}
#endif
#endif
