/* SPDX-License-Identifier: MIT
 *
 * inputs_internal.h: between inputs.c, inputs_files.c and inputs_sequences.c; nobody else
 * includes it.
 *
 * Interface:
 * - files_open: reads Q, K, V, dO and the mask of a case, as far as it names files, and settles the
 *   sizes; files_fill copies a tensor into its storage, rounded to the dtype.
 * - inputs_read: one file, with the sentence when it cannot be read or has another type.
 * - sequences_open, weights_open: the files of --cu-seqlens-* and of --wq, --wk.
 * - sequences_make: the segments of the position maps.
 */
#ifndef ATTN_INPUTS_INTERNAL_H
#define ATTN_INPUTS_INTERNAL_H

#include "harness/io/inputs.h"
#include "harness/io/npy.h"

/* A tensor in a file, in logical order [B][N][H][d] whatever --tensor-layout and --pack make of
 * it: channel x of (b, n, h) is element first + b*stride[0] + n*stride[1] + h*stride[2] + x. */
typedef struct FileTensor {
    const NpyArray *file; /* NULL: no such file */
    const char *flag;     /* by which the user asked for it */
    int64_t first, shape[4], stride[3];
} FileTensor;

typedef struct ProblemFiles {
    FileTensor Q, K, V, dO;
    NpyArray q, k, v, d_o, mask; /* data NULL: no such file */
    NpyArray cu_q, cu_kv;        /* [n+1] */
    NpyArray wq, wk;
} ProblemFiles;

typedef enum ProblemTypes { TYPES_REAL, TYPES_MASK, TYPES_INTEGER } ProblemTypes;
/* npy_read for a flag that takes these types: EXIT_OK, EXIT_USAGE or, when memory is short,
 * EXIT_RUNTIME (sentence printed). */
int inputs_read(const char *flag, ProblemTypes types, const char *path, NpyArray *a);
/* The same for all files. Without files shape comes from the flags. */
int files_open(ProblemFiles *f, const CliCase *c, AttnShape *shape);
void files_fill(const FileTensor *from, const Tensor *t);
void files_close(ProblemFiles *f);

/* s->Nq and s->Nk are the tokens of the files, or 0: then they come from cu_seqlens. */
int sequences_open(ProblemFiles *f, const CliCase *c, AttnShape *s);
int weights_open(ProblemFiles *f, const CliCase *c, const AttnShape *s);
/* One segment for each sequence and side, or one a side without cu_seqlens. EXIT_RUNTIME: memory */
int sequences_make(Inputs *p, const CliCase *c, const ProblemFiles *f);

#endif
