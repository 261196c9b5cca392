/* SPDX-License-Identifier: MIT
 *
 * ratio_main.c: the program behind every stage's bench_ratio.c: cases, table, JSON rows. Each case
 * is run and checked like a row of the stage's own program; the output that is checked is that of
 * the last timed run.
 *
 * Interface: ratio_main (ratio.h).
 */
#include "harness/bench/ratio.h"

#include "alloc.h"
#include "harness/bench/ratio_options.h"
#include "harness/check/judge.h"
#include "harness/models/model.h"
#include "harness/report/report.h"
#include "harness/start.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCALING_FLOOR 0.95

/* One case while it is measured: what RatioPiece's context points to. */
typedef struct Timed {
    const RatioStage *stage;
    RunResult result;
    void *workspace;
    AttnStatus status;
} Timed;

static void poison_outputs(void *context)
{
    const Timed *t = context;
    const Storage *all[] = {&t->result.O, &t->result.lse, &t->result.dQ, &t->result.dK,
                            &t->result.dV};
    for (int i = t->stage->backward ? 2 : 0; i < (t->stage->backward ? 5 : 2); i++)
        tensor_poison(all[i]);
}

static void run_timed(void *context, int threads)
{
    Timed *t = context;
    AttnStatus status;
    t->result.args.threads = threads;
    status = t->stage->run(&t->result.args, t->workspace);
    t->status = status == ATTN_OK ? t->status : status;
}

/* --- the table ---------------------------------------------------------------------------------*/

static double extreme(const Samples *s, int sign)
{
    double worst = NAN;
    for (int i = 0; i < s->count; i++)
        if (isnan(worst) || sign * s->ms[i] > sign * worst)
            worst = s->ms[i];
    return worst;
}

static void print_head(const RatioOptions *o, int threads)
{
    printf("\n%s sgemm %d^3 (%s), %d thread%s, %d rounds\n",
           threads > 1 ? "speed-up as a share of that of" : "ratio to", o->sgemm_n, ratio_isa(),
           threads, threads > 1 ? "s" : "", o->rounds);
    printf("%-25s %7s %14s %6s %6s %8s %7s %7s\n", "case", "median", "least..most", "floor", "aim",
           "GFLOP/s", "sgemm", "of FMA");
}

/* What the figure is worth beside what is asked of it. */
static void print_verdict(double median, double spread, double floor, double aim)
{
    if (isnan(spread))
        printf("too few rounds to compare");
    else if (spread > RATIO_SPREAD)
        printf("spread of %.0f %%: compare nothing", 100.0 * spread);
    else if (floor > 0.0)
        printf("%s", median < floor ? "below floor" : median < aim ? "above floor" : "reaches aim");
    printf("\n");
}

/* With several threads the figure is the scaling; its floor is the same for all cases. */
static void print_line(const CliCase *c, const RatioResult *r, int threads,
                       const RatioTarget *target, double flops)
{
    const Samples *figure = threads > 1 ? &r->scaling : &r->ratio;
    const double median = samples_median(figure);
    const double floor = threads > 1 && c->Nq >= 1024 ? SCALING_FLOOR : target ? target->floor : 0;
    const double aim = target ? target->aim : floor;
    char name[64], span[32];
    snprintf(name, sizeof name, "%s H=%d N=%d d=%d",
             c->mask == ATTN_MASK_NONE ? "full"
             : c->window_left >= 0     ? "window"
                                       : "causal",
             (int)c->H, (int)c->Nq, (int)c->d);
    snprintf(span, sizeof span, "%.3f..%.3f", extreme(figure, -1), extreme(figure, 1));
    printf("%-25s %7.3f %14s ", name, median, span);
    if (floor > 0.0)
        printf("%6.2f %6.2f ", floor, aim);
    else
        printf("%6s %6s ", "-", "-");
    printf("%8.1f %7.1f %7.2f  ", flops / (samples_median(&r->ms) * 1e6), samples_median(&r->sgemm),
           samples_median(&r->sgemm_of_fma));
    print_verdict(median, samples_spread(figure), floor, aim);
    fflush(stdout);
}

/* --- cases -------------------------------------------------------------------------------------*/

static const RatioTarget *find_target(const RatioStage *stage, const CliCase *c)
{
    const RatioTarget *found = NULL;
    for (int i = 0; i < stage->target_count; i++) {
        const RatioTarget *t = &stage->targets[i];
        if (t->d == c->d && t->causal == (c->mask != ATTN_MASK_NONE) && c->Nq >= t->from_N)
            found = t;
    }
    return found;
}

/* For both numbers of threads that it is used with. */
static void *alloc_workspace(const RatioStage *stage, const AttnShape *shape, int threads)
{
    const size_t one = stage->workspace_bytes(shape, 1);
    const size_t all = stage->workspace_bytes(shape, threads);
    return workspace_alloc(one > all ? one : all);
}

/* *ratio: the median, NaN if nothing was measured. */
static int measure_case(Report *report, const RatioStage *stage, const RatioOptions *o, CliCase *c,
                        int threads, double *ratio)
{
    const RatioTarget *target = threads == 1 ? find_target(stage, c) : NULL;
    const Variant *v = &stage->stage->variants[0];
    Inputs problem;
    Reference reference;
    Check check;
    RatioResult *result = calloc(1, sizeof *result);
    Timed t = {stage, .status = ATTN_OK};
    RatioPiece piece = {poison_outputs, run_timed, &t, 0.0};
    int status = inputs_make(&problem, c);
    *ratio = NAN;
    if (status != EXIT_OK || !result) {
        free(result);
        return status != EXIT_OK ? status : EXIT_RUNTIME;
    }
    piece.flops = model_flops(&problem.args, stage->backward);
    status = reference_make(&reference, &problem, c);
    if (status == EXIT_OK)
        status = run_variant(&t.result, v, &problem, c); /* makes the outputs, forward included */
    t.workspace = alloc_workspace(stage, &problem.args.shape, threads);
    if (status == EXIT_OK &&
        (!t.workspace || ratio_measure(result, &piece, o->sgemm_n, o->rounds, threads) != 0 ||
         t.status != ATTN_OK)) {
        cli_refuse("found too little memory for a case, accepted is a machine with more");
        status = EXIT_RUNTIME;
    }
    if (status == EXIT_OK) {
        ReportRow row = {.c = c, .problem = &problem, .variant = v, .result = &t.result};
        *(stage->backward ? &t.result.backward : &t.result.forward) = result->ms;
        if (c->check) {
            status = judge_result(&check, &reference, &t.result, c, v);
            row.check = &check;
        }
        print_line(c, result, threads, target, piece.flops);
        report_ratio_row(report, &row, result, target);
        *ratio = samples_median(&result->ratio);
    }
    workspace_free(t.workspace);
    result_free(&t.result);
    reference_free(&reference);
    inputs_free(&problem);
    free(result);
    return status;
}

/* The flags of the stage's own program give everything but the sizes. */
static int start_cli(Cli *cli, const RatioStage *stage, const RatioOptions *o, int argc,
                     char **argv)
{
    const char *words[12] = {stage->stage->name, "--device", "cpu",      "--bench",
                             "--iters",          "1",        "--warmup", "0"};
    int count = 8, status;
    if (stage->backward && !(stage->stage->features & STAGE_ALWAYS_BACKWARD))
        words[count++] = "--backward";
    if (!o->check)
        words[count++] = "--no-check";
    status = cli_parse(cli, stage->stage, count, (char **)words);
    if (status != CLI_CONTINUE)
        return status;
    cli_refuse_context("bench_ratio", NULL, 0);
    cli->json_file = o->json;
    cli_keep_command(cli, "bench_ratio", argc, argv);
    return EXIT_OK;
}

/* d = 64 and 128, then with a causal mask; with a window the latter alone. */
static CliCase case_of(const RatioStage *stage, const CliCase *base, int64_t H, int64_t N, int kind)
{
    CliCase c = *base;
    const int causal = stage->window > 0 || kind / 2;
    c.B = 1;
    c.H = c.Hkv = H;
    c.Nq = c.Nk = N;
    c.d = kind % 2 ? 128 : 64;
    c.mask = causal ? ATTN_MASK_CAUSAL_LOWER_RIGHT : ATTN_MASK_NONE;
    c.window_left = stage->window > 0 ? stage->window : -1;
    c.window_right = causal ? 0 : -1;
    return c;
}

/* A cost of N times the window: the rate does not depend on N. */
static void print_growth(const RatioOptions *o, int64_t H, double first[2], double last[2])
{
    for (int kind = 0; kind < 2 && o->length_count > 1; kind++)
        printf("# H=%d d=%d: ratio at N=%d over that at N=%d: %.3f\n", (int)H, kind ? 128 : 64,
               (int)o->lengths[o->length_count - 1], (int)o->lengths[0], last[kind] / first[kind]);
}

static int measure_all(Report *report, const RatioStage *stage, const RatioOptions *o, CliCase base,
                       int threads)
{
    const int kinds = stage->window > 0 ? 2 : 4;
    int status = EXIT_OK;
    print_head(o, threads);
    for (int64_t H = 8; H >= (threads > 1 ? 1 : 8); H -= 7) {
        double first[2] = {NAN, NAN}, last[2] = {NAN, NAN}, ratio;
        for (int i = 0; i < o->length_count; i++)
            for (int kind = 0; kind < kinds; kind++) {
                CliCase c = case_of(stage, &base, H, o->lengths[i], kind);
                c.threads = threads;
                status = exit_worst(status, measure_case(report, stage, o, &c, threads, &ratio));
                if (status == EXIT_RUNTIME)
                    return status;
                first[kind % 2] = i == 0 ? ratio : first[kind % 2];
                last[kind % 2] = ratio;
            }
        if (stage->window > 0 && threads == 1)
            print_growth(o, H, first, last);
    }
    return status;
}

int ratio_main(const RatioStage *stage, int argc, char **argv)
{
    RatioOptions o;
    Cli cli;
    Report report;
    int status = ratio_read_options(&o, stage->window > 0, argc, argv);
    if (status != CLI_CONTINUE)
        return status;
    status = start_cli(&cli, stage, &o, argc, argv);
    if (status != EXIT_OK)
        return status;
    status = report_open(&report, &cli);
    if (status == EXIT_OK) {
        start_threads(o.threads);
        status = measure_all(&report, stage, &o, cli.cases[0], 1);
    }
    if (o.threads > 1 && status != EXIT_USAGE && status != EXIT_RUNTIME)
        status = exit_worst(status, measure_all(&report, stage, &o, cli.cases[0], o.threads));
    status = exit_worst(status, report_close(&report));
    cli_free(&cli);
    return status;
}
