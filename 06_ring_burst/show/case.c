/* SPDX-License-Identifier: MIT
 *
 * case.c: one case of the command line: inputs, oracle, and a row for each method.
 *
 * Interface: ring_show_case, ring_show_serve (show.h).
 */
#include <stdio.h>
#include <string.h>

#include "harness/check/judge.h"
#include "runtime/simulate.h"
#include "show/show.h"
#include "transports/mpi/processes.h"

/* Judge what a method computed, and show its row. */
static int show_row(Report *report, const CliCase *c, const Inputs *problem,
                    const Reference *reference, const Variant *v, const RunResult *out, int status)
{
    const int judged = out->ran && c->check, wrong_bytes = status == EXIT_WRONG;
    Check check;
    if (status == EXIT_OK && out->status == ATTN_SKIP)
        return report_skip(report, c, v, out->failure);
    if (status == EXIT_NO_DEVICE)
        return status; /* no such row on this machine */
    if (judged) {
        status = exit_worst(status, judge_result(&check, reference, out, c, v));
        if (wrong_bytes)
            check.pass = 0;
    }
    ReportRow row = {c, problem, v, out, judged ? &check : NULL, 0.0, {0}};
    report_row(report, &row);
    if (out->ran)
        status = exit_worst(status, report_save(report, c, out));
    return status;
}

/* Run a method over its ranks, compare its output with the oracle and its bytes with the model. */
static int run_method(Report *report, const CliCase *c, const Inputs *problem,
                      const Reference *reference, const Variant *v)
{
    static RingRun run; /* too large for a small stack (ulimit -s 512) */
    int status = ring_run(&run, v, problem, c, c->ring.trace_json != NULL || c->bench);
    if (ring_mpi_rank() == 0) {
        status = show_row(report, c, problem, reference, v, &run.out, status);
        if (run.out.ran && !report->cli->quiet)
            ring_show_efficiency(&run);
        if (run.out.ran && c->ring.trace_json)
            status = exit_worst(status, ring_show_events(c, &run));
    }
    ring_run_free(&run);
    return status;
}

/* In the process of a shared object: the ranks that it may ask for. */
static void take_setup(const void *setup, size_t bytes)
{
    if (bytes == sizeof(RingSetup))
        ring_simulate_setup(setup);
}

/* A user's own shared object, in a process of its own with limits: whole attention, or a method. */
static int run_so(Report *report, const Cli *cli, const CliCase *c, const Inputs *problem,
                  const Reference *reference, const Variant *v)
{
    const RingSetup setup = ring_setup_of(c, RING_METHOD_RING);
    RunResult out;
    int status;
    status = run_variant_so(&out, cli->stage, problem, c, cli, &setup, sizeof setup);
    status = show_row(report, c, problem, reference, v, &out, status);
    result_free(&out);
    return status;
}

static int run_case(Report *report, const Cli *cli, CliCase *c)
{
    Inputs problem;
    Reference reference;
    const Variant *v = NULL;
    int status, ready;
    ring_mpi_case(cli, c);
    status = inputs_make(&problem, c); /* Q K V (dO) from the seed, files or the bundle */
    if (status != EXIT_OK)
        return status;
    if (c->ring.trace_json)
        status = ring_show_probe(c->ring.trace_json);
    if (status == EXIT_OK && strcmp(c->variant, "auto") == 0)
        status = ring_show_choice(c, &problem, cli->quiet);
    if (status == EXIT_OK && c->trace && (v = cli_next_variant(cli, c, NULL)) != &c->so)
        status = ring_show_screen(c, &problem, v);
    if (status != EXIT_OK) {
        inputs_free(&problem);
        return status;
    }
    v = NULL;
    /* the oracle's O, lse (dQ, dK, dV) and the bound of each element: once for all methods */
    status = reference_make(&reference, &problem, c);
    ready = status != EXIT_RUNTIME; /* a method that fails does not stop the others */
    while (ready && status != EXIT_USAGE && status != EXIT_NO_DEVICE &&
           (v = cli_next_variant(cli, c, v)) != NULL)
        status = exit_worst(status, v == &c->so ? run_so(report, cli, c, &problem, &reference, v)
                                                : run_method(report, c, &problem, &reference, v));
    reference_free(&reference);
    inputs_free(&problem);
    return status;
}

int ring_show_case(Report *report, const Cli *cli, CliCase *c, int *status)
{
    *status = run_case(report, cli, c);
    return 1;
}

void ring_show_serve(int argc, char **argv)
{
    run_serve(argc > 0 ? argv[0] : NULL, take_setup);
}
