/* SPDX-License-Identifier: MIT
 *
 * show.c: what the program shows beside its table. What is shown is decided elsewhere: the planner,
 * the cost model and the traces have files of their own; here is when, for which case, and what
 * becomes of failures.
 *
 * stdout has what the user asked for, stderr what went wrong, files what programs read. Nothing
 * here computes: a mistake in this file is a wrong word and not a wrong number.
 *
 * Interface: see show.h.
 */
#include "show/show.h"

#include "harness/report/pages.h"
#include "planner/cost.h"
#include "show/trace.h"

#include <stdlib.h>
#include <string.h>

/* The speeds that the planner and the model reckon with: those of the file that the environment
 * names, else recorded ones. */
static int rates_of(const CliCase *c, RingRates *rates)
{
    static const char *const transports[] = {"sim", "mpi", "nccl"};
    const CliRing *r = &c->ring;
    const int copies = r->transport == CLI_NCCL && r->link == CLI_LINK_COPY;
    const char *path = getenv("ATTN_RING_RATES");
    char why[256];
    *rates = ring_rates_default(copies ? "copy" : transports[r->transport], c->dtype);
    if (path && ring_rates_read(rates, path, why) != 0)
        return cli_refuse("ATTN_RING_RATES: %s", why);
    return EXIT_OK;
}

/* The case is changed in place: from here on it looks as if the user had asked for this method and
 * this layout. */
int ring_show_choice(CliCase *c, const Inputs *p, int quiet)
{
    RingSetup setup = ring_setup_of(c, RING_METHOD_AUTO);
    RingRates rates;
    char why[RING_WHY];
    int chosen;
    if (rates_of(c, &rates) != EXIT_OK)
        return EXIT_USAGE;
    chosen = ring_choose(&setup, !c->ring.layout_given, &p->args, &rates, why);
    if (chosen == -2)
        return cli_no_memory("--method auto");
    if (chosen != 0)
        return cli_refuse("--method auto: %s", why);
    c->variant = ring_method_name(setup.method);
    c->ring.layout = setup.layout;
    for (const char *line = why; !quiet && *line; line = strchr(line, '\n') + 1)
        printf("# %.*s\n", (int)strcspn(line, "\n"), line);
    return EXIT_OK;
}

int ring_show_screen(const CliCase *c, const Inputs *p, const Variant *v)
{
    const RingSetup setup = ring_setup_of(c, (RingMethod)ring_method_from_name(v->name));
    RingPlan plan;
    char why[256];
    int failed;
    if (ring_plan_make(&plan, &p->args, &setup, why) != 0)
        return EXIT_OK; /* the run says why */
    if (c->step) {
        Pages pages;
        FILE *to = pages_open(&pages);
        failed = !to || ring_trace_steps(to, &plan) | pages_play(&pages, stdin, stdout);
    } else
        failed = ring_trace_screen(stdout, &plan);
    ring_plan_free(&plan);
    if (failed)
        cli_refuse("--trace: out of memory for %s", v->name);
    return failed ? EXIT_RUNTIME : EXIT_OK;
}

/* Before hours of computing, not after them. */
int ring_show_probe(const char *path)
{
    const char *why;
    return report_probe(path, &why) == 0
               ? EXIT_OK
               : cli_refuse(
                     "--trace-json: found that '%s' cannot be written to (%s), accepted is a "
                     "file that can",
                     path, why);
}

/* What was measured and what the model expects, in one file, so that they stand below each
 * other. */
int ring_show_events(const CliCase *c, const RingRun *run)
{
    RingRates rates;
    static RingPrediction model; /* too large for a small stack */
    char why[256];
    int failed;
    if (rates_of(c, &rates) != EXIT_OK)
        return EXIT_USAGE;
    if (ring_predict(&model, &run->plan, &rates) != 0) {
        cli_refuse("--trace-json: out of memory for the model's run");
        return EXIT_RUNTIME;
    }
    failed = ring_trace_json(c->ring.trace_json, &run->plan, &run->report, &model.report, why);
    ring_prediction_free(&model);
    if (!failed)
        return EXIT_OK;
    cli_refuse("--trace-json: %s", why);
    return EXIT_RUNTIME; /* as --json: the disk, not the command line */
}
