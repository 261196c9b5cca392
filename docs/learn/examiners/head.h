/* SPDX-License-Identifier: MIT
 *
 * head.h: inputs and outputs of one head of attention, as a case's flags ask for them.
 *
 * Interface:
 * - Head: inputs, sizes and mask. head_O, head_lse: the outputs.
 * - head_of_flags: by -N, --keys, -d, --causal, --hand (the four tokens), --large, --below, and
 *   --pages: rows of K and V have a page each.
 */
#ifndef LEARN_HEAD_H
#define LEARN_HEAD_H

#include "limits.h"

typedef struct Head {
    float *Q, *K, *V; /* [Nq][d] [Nk][d] [Nk][d] */
    long Nq, Nk, d;
    int causal;                /* aligned with the lower-right corner */
    const unsigned char *mask; /* [Nq][Nk], 1 = masked out; NULL = none */
} Head;

static Output *head_O, *head_lse;

/* Random inputs, or those that the case's flags ask for. */
static inline Head head_of_flags(void)
{
    const int pages = has_flag("--pages");
    const long Nq = case_size("-N", 1, 4), Nk = case_size("--keys", Nq, 4);
    const long d = pages ? page_floats() : case_size("-d", 1, 2);
    float *Q = normal_input("Q", Nq * d, 1, hand_Q);
    float *K = pages ? paged_input(Nk) : normal_input("K", Nk * d, 2, hand_K);
    float *V = pages ? paged_input(Nk) : normal_input("V", Nk * d, 3, hand_V);
    if (pages)
        fill_normal(K, Nk * d, 2), fill_normal(V, Nk * d, 3);
    head_O = output("O", Nq, d, "query", "channel");
    head_lse = output("lse", Nq, 1, "query", "");
    head_O->tolerance = move_scores(Q, Nq, K, Nk, d);
    return (Head){Q, K, V, Nq, Nk, d, has_flag("--causal"), NULL};
}

#endif
