/* SPDX-License-Identifier: MIT
 *
 * rows_mode.h: --rows R --cols C, the softmax alone.
 *
 * Interface:
 * - RowsEntry, RowsTable, rows_find: which softmax stands behind a rung's name, and its counted
 *   twin. rows_model_accesses: the accesses it should make.
 * - bench_rows: every selected rung on R x C scores: counted, run, timed, judged, reported.
 */
#ifndef ROWS_MODE_H
#define ROWS_MODE_H

#include "harness/cli/cli.h"
#include "harness/report/report.h"
#include "problem_rows.h"

/* A row of the table that rungs.py makes of the files that register by RUNG_ROWS. */
typedef struct RowsEntry {
    const char *name;
    AttnDevice device;
    const RowsRung *rung, *counted; /* NULL in a build without CUDA */
} RowsEntry;

typedef struct RowsTable {
    const RowsEntry *entries;
    int count;
} RowsTable;

/* Reads plus one write: the model that the counted twin is compared with. */
int rows_model_accesses(const RowsRung *rung, int64_t cols);
const RowsEntry *rows_find(const RowsTable *table, const char *name, AttnDevice device);

/* EXIT_OK, or the worst of what went wrong. */
int bench_rows(const RowsTable *table, Report *report, const Cli *cli, const CliCase *c);

/* rows_demo.c: how exp without the maximum fails. EXIT_OK, or EXIT_WRONG if a safe form did. */
int demo_unsafe(const RowsTable *table, Report *report, const CliCase *c);

#endif
