/* SPDX-License-Identifier: MIT
 *
 * stage_main.h: the program of a stage: flags to cases, each case to its inputs, the oracle
 * and a row for every variant. A stage's main.c says its question and lists its rungs.
 *
 * Interface:
 * - StageMain, stage_main.
 */
#ifndef ATTN_STAGE_MAIN_H
#define ATTN_STAGE_MAIN_H

#include "harness/report/pages.h"
#include "harness/report/report.h"
#include "problem.h"

/* What a stage may add; all but `variants` may be NULL. */
typedef struct StageMain {
    Variant *variants; /* those of the stage: rows of rungs are filled in */
    AttnFn forward[2]; /* on a CPU and a GPU: O and lse for rungs that have a backward pass only */
    PagesWriter trace, trace_steps;
    /* Inputs are made, traces and variants not yet run: what the stage keeps by itself. */
    void (*begin)(const CliCase *c, const AttnShape *shape, int quiet);
    void (*deterministic)(int yes); /* --deterministic, to the library */
    /* The row's model_bytes and tiles. Not called for a user's shared object. */
    void (*model)(ReportRow *row);
    /* Why a variant skipped the case itself, into out->failure. */
    void (*explain_skip)(RunResult *out, const CliCase *c);
    /* 1: the stage has run this case by itself; *status is what became of it. */
    int (*other_case)(Report *report, const Cli *cli, CliCase *c, int *status);
    /* Behind the command line: CLI_CONTINUE, or the process ends with what it returns. */
    int (*enter)(Cli *cli, int argc, char **argv);
    int (*leave)(int status); /* at the end: what the process exits with */
} StageMain;

/* What the process exits with. */
int stage_main(const Stage *stage, const StageMain *s, int argc, char **argv);

/* The tiles of a rung's row on this case. */
Tiles stage_tiles(const ReportRow *row);
#endif
