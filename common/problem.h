/* SPDX-License-Identifier: MIT
 *
 * problem.h: the inputs of one case, from seed, files or the bundled real activations.
 *
 * Interface:
 * - problem_make: CliCase -> Problem; prints one sentence and returns EXIT_USAGE for bad input.
 * - problem_args: the host-side AttnArgs of a problem, outputs left empty.
 * - Problem.inputs are guarded storage and are never written after problem_make.
 */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H

#include "cli.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Problem {
    AttnArgs args; /* host pointers; O, lse, dQ, dK, dV empty */
    AttnMask mask_type;
    Storage Q, K, V, dO; /* dO only with a backward */
    uint8_t *mask;       /* [Nq][Nk] or NULL */
    AttnSegment segment_q, segment_k;
    TensorLayout layout;
    int backward;
} Problem;

/* EXIT_OK, EXIT_USAGE (sentence printed) or EXIT_RUNTIME (memory). */
int problem_make(Problem *p, const CliCase *c);
void problem_free(Problem *p);

#ifdef __cplusplus
}
#endif
#endif
