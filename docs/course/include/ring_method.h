/* SPDX-License-Identifier: MIT
 *
 * ring_method.h: attention over a sequence that no rank holds as a whole.
 *
 * The tokens are dealt out to `world` ranks. Every rank is a process of its own and runs the same
 * function. It has its own queries, keys and values, and nothing else: keys of other ranks come in
 * messages. Each rank computes O and lse of its own queries over the keys of all ranks.
 *
 * Messages. send copies the data and returns at once, before anybody receives it. receive waits
 * for the oldest message from that rank that was not received yet. Its size has to be the one that
 * was sent. If all ranks wait for messages that nobody has sent, the run is over, and the report
 * says who waited for whom. The harness counts messages and bytes. `--require ring` in a suite asks
 * that a rank only sends to the next and the previous rank of the ring.
 *
 * Positions. Token t of rank r has the position position[r][t] in the sequence. In the layout
 * `contiguous` that is position[r][0] + t; in `zigzag` a rank has a piece of the beginning and the
 * piece opposite of it at the end; the numbers of tokens may differ by rank. Query p_q sees key p_k
 * if
 *     left  < 0 or p_k >= p_q - left        and
 *     right < 0 or p_k <= p_q + right       both ends inclusive; causal is right = 0
 * A row that sees no key has O = 0 and lse = -inf.
 *
 * Heads. Query head h reads key/value head h / (H / Hkv).
 *
 * Interface:
 * - RingPart: what one rank gets.
 * - ring_method_variant: the forward pass.
 * - ring_method_variant_backward: the gradients; only suites with --backward ask for it.
 */
#ifndef COURSE_RING_METHOD_H
#define COURSE_RING_METHOD_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct RingPart RingPart;
struct RingPart {
    int rank, world;            /* this rank, 0 .. world-1, and how many there are */
    int H, Hkv, d;              /* query heads, key/value heads, channels */
    const int *tokens;          /* [world]: tokens[r] belong to rank r */
    const int *const *position; /* position[r][t], 0 <= t < tokens[r] */
    int left, right;            /* the window; -1: no limit on that side */
    float scale;                /* multiplies q.k */

    /* n = tokens[rank] */
    const float *Q;     /* [n][H][d] */
    const float *K, *V; /* [n][Hkv][d] */
    float *O;           /* [n][H][d]: result; in the backward pass a correct one, to be read */
    float *lse;         /* [H][n], natural logarithm: likewise */
    const float *dO;    /* [n][H][d]: backward only, else NULL */
    float *dQ;          /* [n][H][d]: backward only, result */
    float *dK, *dV;     /* [n][Hkv][d]: backward only, results: from the queries of all ranks */

    /* Pass `part` itself as the first argument. */
    void (*send)(const RingPart *part, int to, const void *data, size_t bytes);
    void (*receive)(const RingPart *part, int from, void *data, size_t bytes);
    void *harness; /* not yours */
};

/* Both return 0 when they are done. */
int ring_method_variant(const RingPart *part);
int ring_method_variant_backward(const RingPart *part);

#ifdef __cplusplus
}
#endif
#endif
