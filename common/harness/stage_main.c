/* SPDX-License-Identifier: MIT
 *
 * stage_main.c: the order of events in a stage. See stage_main.h.
 */
#include "harness/stage_main.h"

#include "harness/check/judge.h"
#include "harness/device/device.h"
#include "harness/rung.h"

#include <stdio.h>
#include <string.h>

/* Run one variant, compare its last timed output with the oracle, show the row. */
static int run_one(const StageMain *s, Report *report, const Cli *cli, const CliCase *c,
                   const Inputs *inputs, const Reference *reference, const Variant *v)
{
    RunResult out;
    Check check;
    int judged, status;
    device_set_smem_limit(c->smem_limit);
    if (v == &c->so) /* a user's own shared object: in a child process with limits */
        status = run_variant_so(&out, cli->stage, inputs, c, cli, NULL, 0);
    else
        status = run_variant(&out, v, inputs, c);
    if (out.status == ATTN_SKIP && out.answered &&
        !device_smem_explain(out.failure, sizeof out.failure) && s->explain_skip)
        s->explain_skip(&out, c);
    judged = out.ran && c->check;
    if (judged)
        status = exit_worst(status, judge_result(&check, reference, &out, c, v));
    if (status == EXIT_OK && out.status == ATTN_SKIP) {
        status = report_skip(report, c, v, out.failure);
    } else {
        ReportRow row = {c, inputs, v, &out, judged ? &check : NULL, 0.0, {0}};
        if (s->model && v != &c->so)
            s->model(&row);
        report_row(report, &row);
        if (out.ran)
            status = exit_worst(status, report_save(report, c, &out));
    }
    result_free(&out);
    return status;
}

/* Inputs and their oracle, which may take longer than all variants: kept as long as the next line
 * of a --cases file asks for the same ones, say with --deterministic. */
typedef struct Prepared {
    CliCase of;
    int ready;
    Inputs inputs;
    Reference reference;
} Prepared;

/* Bytes, so that a flag counts as part of the inputs unless it is named here. */
static int same_inputs(const CliCase *a, const CliCase *b)
{
    CliCase x = *a;
    x.line = b->line;
    x.variant = b->variant;
    x.own_variants = b->own_variants;
    x.needs_cuda = b->needs_cuda;
    x.deterministic = b->deterministic;
    x.smem_limit = b->smem_limit;
    x.warmup = b->warmup;
    x.iters = b->iters;
    return memcmp(&x, b, sizeof x) == 0;
}

static void prepared_free(Prepared *p)
{
    if (p->ready) {
        reference_free(&p->reference);
        inputs_free(&p->inputs);
    }
    p->ready = 0;
}

static int prepare(Prepared *p, const CliCase *c)
{
    int status;
    if (p->ready && same_inputs(&p->of, c))
        return EXIT_OK;
    prepared_free(p);
    status = inputs_make(&p->inputs, c); /* Q K V (dO) from the seed, files or the bundle */
    if (status != EXIT_OK)
        return status;
    /* the oracle's O, lse (dQ, dK, dV) and the bound of each element: once for all variants */
    status = reference_make(&p->reference, &p->inputs, c);
    p->of = *c;
    p->ready = 1;
    if (status != EXIT_OK)
        prepared_free(p);
    return status;
}

static int run_case(const StageMain *s, Report *report, const Cli *cli, const CliCase *c,
                    Prepared *p)
{
    const Variant *v = NULL;
    int status = prepare(p, c);
    if (status != EXIT_OK)
        return status;
    if (s->begin)
        s->begin(c, &p->inputs.args.shape, cli->quiet);
    if (s->deterministic)
        s->deterministic(c->deterministic);
    if (c->trace && pages_trace(c, &p->inputs.args, s->trace, s->trace_steps) != 0)
        status = cli_no_memory("--trace");
    const int ready = status != EXIT_RUNTIME; /* a variant that fails does not stop the others */
    while (ready && status != EXIT_USAGE && (v = cli_next_variant(cli, c, v)) != NULL)
        status = exit_worst(status, run_one(s, report, cli, c, &p->inputs, &p->reference, v));
    return status;
}

/* For run_any_case: a program has one stage. */
static const StageMain *this_stage;
static Prepared prepared;

static int run_any_case(Report *report, const Cli *cli, CliCase *c)
{
    int status = EXIT_OK;
    if (this_stage->other_case && this_stage->other_case(report, cli, c, &status))
        return status;
    return run_case(this_stage, report, cli, c, &prepared);
}

/* Takes what its rung says, and for a rung with a backward pass only the stage's forward pass. */
static void fill_in(const StageMain *s, Variant *v)
{
    variant_of_rung(v);
    if (!v->forward && v->rung && v->rung->backward && !v->rung->forward)
        v->forward = s->forward[v->device];
}

int stage_main(const Stage *stage, const StageMain *s, int argc, char **argv)
{
    Cli cli;
    int status;
    this_stage = s;
    for (int i = 0; i < stage->variant_count; i++)
        fill_in(s, &s->variants[i]);
    status = cli_parse(&cli, stage, argc, argv);
    if (status == CLI_CONTINUE && s->enter)
        status = s->enter(&cli, argc, argv);
    if (status != CLI_CONTINUE)
        return status;
    status = report_cases(&cli, run_any_case);
    prepared_free(&prepared);
    cli_free(&cli);
    return s->leave ? s->leave(status) : status;
}

Tiles stage_tiles(const ReportRow *row)
{
    RungRun r;
    Tiles tiles = {0, 0};
    const Rung *rung = row->variant->rung;
    if (rung && rung->tiles) {
        rung_describe(&r, rung, row->variant->device, &row->problem->args);
        r.p.sram = row->c->sram;
        tiles = rung->tiles(&r.p);
    }
    return tiles;
}
