/* SPDX-License-Identifier: MIT
 *
 * report.h: the table on stdout and the JSON lines in a file.
 *
 * Interface:
 * - report_open / report_close: header with the machine's facts; JSON file opened for appending, so
 *   that an unwritable path is refused before any work.
 * - report_row: one line of the table and one JSON object (schema in docs/json_schema.md).
 * - report_save: o.npy lse.npy (dq dk dv) of one outcome into --save's folder.
 * A row that is not pass:true is never plotted; pass is null when nothing was checked.
 */
#ifndef ATTN_REPORT_H
#define ATTN_REPORT_H

#include <stdio.h>

#include "check.h"
#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Report {
    const Cli *cli;
    FILE *json; /* NULL without --json */
    int rows;
    double sgemm_gflops; /* 0 = unknown; measured once when --bench runs CPU variants */
} Report;

/* check is NULL when --no-check. model_bytes: the variant's modelled traffic, from common/model. */
typedef struct ReportRow {
    const CliCase *c;
    const Problem *problem;
    const Variant *variant;
    const Outcome *outcome;
    const Check *check;
    double model_bytes;
} ReportRow;

int report_open(Report *r, const Cli *cli); /* EXIT_OK or EXIT_USAGE */
void report_row(Report *r, const ReportRow *row);
void report_skip(Report *r, const Variant *v, const char *why);
int report_save(const CliCase *c, const Outcome *outcome); /* EXIT_OK or EXIT_USAGE/EXIT_RUNTIME */
void report_close(Report *r);

#ifdef __cplusplus
}
#endif
#endif
