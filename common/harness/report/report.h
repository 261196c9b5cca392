/* SPDX-License-Identifier: MIT
 *
 * report.h: the table on stdout and the JSON lines in a file.
 *
 * Interface:
 * - report_open / report_close: --json and --save are tried before any work, so that an unwritable
 *   path is refused early; nothing is left behind when no row comes.
 * - report_row: one line of the table and one JSON object (schema in docs/json_schema.md).
 * - report_softmax_row: the same for the softmax alone (stage 02, --rows --cols).
 * - report_skip: a variant that cannot compute this case by what it is: no row.
 * - report_save: o.npy lse.npy (dq dk dv) of one result into --save's folder.
 * - report_json_file, report_json_end: around a row of another kind in what --json names.
 * - report_probe: can a file be written to?
 * - machine_*: facts about this computer.
 * A row that is not pass:true is never plotted; pass is null when nothing was checked.
 */
#ifndef ATTN_REPORT_H
#define ATTN_REPORT_H

#include <stdio.h>

#include "harness/bench/run.h"
#include "harness/bench/variant.h"
#include "harness/check/check.h"

#define REPORT_SCHEMA 1

typedef struct Report {
    const Cli *cli;
    FILE *json;              /* NULL without --json, and before its first row */
    int json_failed;         /* it cannot be opened any more, or took no row: no further one */
    int64_t json_end;        /* its length before the row that is being written */
    int rows;                /* shown so far */
    const CliCase *saved;    /* the case whose outputs are saved already */
    const CliCase *baseline; /* the case that baseline_ms belongs to */
    double baseline_ms;      /* its first row */
    double sgemm_gflops;     /* 0 = unknown; measured once when --bench runs CPU variants */
    int sgemm_threads;       /* threads it was measured with, 0 = not yet */
} Report;

/* What a variant's byte model was made from, 0 = has no meaning for it. */
typedef struct ReportTiles {
    int64_t sram_elements;          /* the fast memory M of the papers */
    int64_t Br, Bc;                 /* rows and keys of a tile */
    int64_t splits;                 /* blocks that share the keys of a row tile */
    int64_t skipped, masked, clean; /* stage 05: tiles of all heads, by what the window leaves */
} ReportTiles;

/* check is NULL when --no-check or when the run failed (result->failure says why). model_bytes:
 * the variant's modelled traffic, from common/model; 0 = unknown. */
typedef struct ReportRow {
    const CliCase *c;
    const Inputs *problem;
    const Variant *variant;
    const RunResult *result;
    const Check *check;
    double model_bytes;
    ReportTiles tiles;
} ReportRow;

/* The softmax of R rows of C columns. */
typedef struct ReportSoftmax {
    const CliCase *c; /* rows, cols, dtype, threads, seed, dist */
    const char *variant;
    AttnDevice device;
    const Samples *ms;
    double accesses;  /* reads + writes of an element, from the model */
    double bytes;     /* rows * cols * accesses * element size */
    double copy_gbps; /* this device's copy rate, measured in the same run; 0 = unknown */
    size_t peak_bytes;
    double bound_ratio; /* worst error over its bound; NaN = unknown */
    int64_t nonfinite;
    int l2_flushed;
    int pass; /* 1, 0, or -1 = not checked */
} ReportSoftmax;

/* Opens the report, runs all cases, closes it: the worst status. A case that is refused or fails
 * ends nothing but itself, and its sentences name its line. */
typedef int ReportCase(Report *r, const Cli *cli, CliCase *c);
int report_cases(Cli *cli, ReportCase *run);
int report_open(Report *r, const Cli *cli); /* EXIT_OK or EXIT_USAGE */
void report_row(Report *r, const ReportRow *row);
void report_softmax_row(Report *r, const ReportSoftmax *row);
/* EXIT_OK with a note on stderr, or EXIT_USAGE when the variant was asked for by name. */
int report_skip(Report *r, const CliCase *c, const Variant *v, const char *why);
/* The first result of a case that is offered is saved, the others not. EXIT_OK or EXIT_RUNTIME. */
int report_save(Report *r, const CliCase *c, const RunResult *result);
/* Before a row. NULL: no --json, or a file that cannot be written to any more. */
FILE *report_json_file(Report *r);
/* After it: all of the row is in the file, or nothing of it. */
void report_json_end(Report *r);
/* EXIT_OK, or EXIT_RUNTIME when rows could not be written. */
int report_close(Report *r);
/* Before any work: can this file be written to? 0, and a file that was not there is taken away
 * again; or -1 and *why. */
int report_probe(const char *path, const char **why);

const char *machine_name(void);
const char *machine_cpu(void);
int64_t machine_ram_bytes(void); /* physical memory */
const char *machine_blas(void);  /* OpenBLAS's configuration string, "none" without it */
#endif
