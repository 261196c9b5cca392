/* SPDX-License-Identifier: MIT
 *
 * rows_mode.h: --rows R --cols C, the softmax alone.
 *
 * Interface:
 * - SoftmaxVariant, softmax_variants: which softmax stands behind a variant's name, its counted
 *   twin and the accesses it should make.
 * - bench_rows: every selected variant on R x C scores: counted, run, timed, judged, reported.
 */
#ifndef ROWS_MODE_H
#define ROWS_MODE_H

#include "cli/cli.h"
#include "report/report.h"
#include "tiled_softmax.h"

typedef struct SoftmaxVariant {
    const char *name;
    AttnDevice device;
    SoftmaxFn run, run_counted; /* NULL in a build without CUDA */
    int reads;                  /* of each element in a row that does not stay on chip */
    int64_t one_read_cols;      /* rows up to this width are read once; 0: never */
} SoftmaxVariant;

extern const SoftmaxVariant softmax_variants[];
extern const int softmax_variant_count;

/* Reads plus one write: the model that the counted twin is compared with. */
int softmax_model_accesses(const SoftmaxVariant *v, int64_t cols);
const SoftmaxVariant *softmax_find(const char *name, AttnDevice device); /* NULL: none */

/* EXIT_OK, or the worst of what went wrong. */
int bench_rows(Report *report, const Cli *cli, const CliCase *c);

/* rows_demo.c: how exp without the maximum fails. EXIT_OK, or EXIT_WRONG if a safe form did. */
int demo_unsafe(Report *report, const CliCase *c);

#endif
