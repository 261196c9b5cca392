/* SPDX-License-Identifier: MIT
 *
 * problem.h: the inputs of one case, from seed, files or the bundled real activations.
 *
 * Interface:
 * - problem_make: CliCase -> Problem; prints one sentence and returns EXIT_USAGE for bad input.
 * - problem_fingerprint: of everything that a variant may read but not write.
 * - problem_free.
 * The inputs lie in guarded storage; nobody writes to them after problem_make.
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
    Storage mask;        /* bytes [Nq][Nk] at args.mask, up to the guard page; unused without one */
    AttnSegment segment_q, segment_k;
    TensorLayout layout;
    int backward;
    uint64_t serial; /* no two problems of a process have the same: device copies are kept by it */
} Problem;

/* EXIT_OK, EXIT_USAGE or EXIT_NO_DEVICE (sentence printed), or EXIT_RUNTIME (memory). The problem
 * must not move afterwards: args points into it. */
int problem_make(Problem *p, const CliCase *c);
void problem_free(Problem *p);
uint64_t problem_fingerprint(const Problem *p);

#ifdef __cplusplus
}
#endif
#endif
