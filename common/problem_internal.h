/* SPDX-License-Identifier: MIT
 *
 * problem_internal.h: between problem.c and problem_files.c; nobody else includes it.
 *
 * Interface:
 * - files_open: reads Q, K, V, dO and the mask of a case, as far as it names files, and settles the
 *   sizes; files_fill copies a tensor into its storage, rounded to the dtype.
 */
#ifndef ATTN_PROBLEM_INTERNAL_H
#define ATTN_PROBLEM_INTERNAL_H

#include "npy.h"
#include "problem.h"

typedef struct ProblemFiles {
    NpyArray Q, K, V, dO, mask; /* data NULL: no such file */
} ProblemFiles;

/* EXIT_OK or EXIT_USAGE (sentence printed). Without files shape comes from the flags. */
int files_open(ProblemFiles *f, const CliCase *c, AttnShape *shape);
void files_fill(const NpyArray *a, const Tensor *t);
void files_close(ProblemFiles *f);

#endif
