/* SPDX-License-Identifier: MIT
 *
 * model_ring_bytes.h: formulas of attention over several ranks (stage 06): what each method sends
 * and what it keeps in memory, exact to the byte.
 *
 * A rank's share is nq queries and nk keys, whatever the layout: blocks may be ragged or empty, and
 * the formulas are sums over the blocks that really pass through a rank. With
 *
 *     q(j)  = B nq[j] H d b       Q, O or dO of rank j's tokens, b bytes an element
 *     kv(j) = B nk[j] Hkv d b     K or V
 *     row(j) = 4 B nq[j] H        lse or delta
 *     q_g, kv_g                   the same with b_g, the bytes of a travelling sum (4, or 2)
 *
 * and equal blocks these become the closed forms of the table in model_ring.c.
 *
 * Interface:
 * - RingModelCase, model_ring_sent: payload bytes that a rank sends, by tensor and kind of link.
 * - model_ring_memory: peak bytes of a rank's tensors.
 */
#ifndef ATTN_MODEL_RING_BYTES_H
#define ATTN_MODEL_RING_BYTES_H

#include "attn.h"
#include "harness/models/model_ring.h"

/* --- what the formulas need to know ------------------------------------------------------------*/

typedef struct RingModelCase {
    RingMethod method;      /* not AUTO */
    int ranks, nodes;       /* G, M: rank r is on node r / (G/M) */
    int hops_up, hops_down; /* of keys, see RingPlan; only ring and burst make fewer than G-1 */
    AttnShape shape;        /* B H Hkv d */
    AttnDtype dtype, partials;
    const int64_t *nq, *nk; /* [ranks] tokens of each rank */
} RingModelCase;

/* --- bytes -------------------------------------------------------------------------------------*/

typedef struct RingModelBytes {
    int64_t sent[RING_TENSORS];
    int64_t inner, outer; /* of these: to ranks of the same node, of another node */
} RingModelBytes;

/* Payload bytes that `rank` sends in RING_FORWARD or RING_BACKWARD. */
RingModelBytes model_ring_sent(const RingModelCase *c, RingPass pass, int rank);
int64_t model_ring_total(const RingModelBytes *bytes); /* all tensors */

/* --- memory ------------------------------------------------------------------------------------*/

/* Peaks of a rank's tensors (what ring_alloc hands out; the kernels' workspace and a block's part
 * of a full mask are beside these). */
typedef struct RingModelMemory {
    int64_t forward;       /* of a run without a backward pass */
    int64_t backward;      /* of a run with one: the larger of */
    int64_t forward_kept;  /* ... its forward pass, which may keep remote blocks for */
    int64_t backward_pass; /* ... its backward pass */
} RingModelMemory;
RingModelMemory model_ring_memory(const RingModelCase *c, int rank);
#endif
