/* SPDX-License-Identifier: MIT
 *
 * count_traffic: how many bytes pass between slow and fast memory, and how does that grow?
 *
 *     standard       stage 01's order of work: S and P are written and read
 *     v0_fa1_tiles   FlashAttention: keys outside
 *     v1_fa2_rows    FlashAttention-2: queries outside
 *
 * All three stand in 03_flash_forward/cpu. Two sweeps, one head, d = 64, float32. First N grows and
 * M, the size of fast memory, stays; then M grows and N stays. The papers say Theta(N^2 d^2 / M)
 * for FlashAttention and Theta(N d + N^2) for standard attention: twice the fast memory, half the
 * traffic, and only for the one that has a use for it. Nothing is timed here: a count is the same
 * on every machine.
 *
 * A row is right (pass) when the counters equal harness/models/model.c and the outputs, computed
 * while counting, hold against the float64 oracle.
 *
 *     count_traffic FILE.jsonl [LARGEST_N]        appends the rows; N = 128, 256, ... (1024)
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "count_traffic_rungs.h"
#include "harness/bench/run.h"
#include "harness/check/judge.h"
#include "harness/cli/cli.h"
#include "harness/models/model.h"
#include "harness/report/report.h"
#include "harness/report/source_hash.h"
#include "harness/start.h"
#include "problem_rows.h"
#include "units/fast_memory.h"
#include "variant_so.h"

#define SMALLEST_N 128
#define LARGEST_N  1024 /* unless the user says otherwise */
#define SWEEP_N    1024 /* of the sweep over M */
#define SMALLEST_M 1024
#define LARGEST_M  (1 << 18)

static Variant variants[] = {
    CPU_RUNG(flash_forward, standard),
    CPU_RUNG(flash_forward, v0_fa1_tiles),
    CPU_RUNG(flash_forward, v1_fa2_rows),
};

static const Stage stage = {"flash_forward",
                            "03_flash_forward",
                            "How many bytes pass between slow and fast memory?",
                            FLASH_FORWARD_ABI_VERSION,
                            0,
                            variants,
                            sizeof variants / sizeof *variants};

static ModelTraffic model_of(const Variant *v, const AttnArgs *args, const FastMemory *fast)
{
    if (v == &variants[0])
        return model_standard_traffic(args, fast->Br);
    return v == &variants[1] ? model_fa1_traffic(args, fast->Br, fast->Bc)
                             : model_fa2_traffic(args, fast->Br, fast->Bc, 1);
}

/* Standard attention has a row of S in fast memory beside the tiles. */
static int64_t elements_that_fit(const Variant *v, const AttnArgs *args, const FastMemory *fast)
{
    return fast_elements(fast) + (v == &variants[0] ? args->shape.Nk : 0);
}

/* float32, so an element has 4 bytes. */
static void write_row(FILE *json, const Variant *v, const AttnArgs *args, int64_t M,
                      const FastMemory *fast, AccessCounts counted, ModelTraffic model, int pass)
{
    const AttnShape *n = &args->shape;
    fprintf(json,
            "{\"schema\":%d,\"stage\":\"%s\",\"variant\":\"%s\","
            "\"sha256\":\"%s\",\"device\":\"cpu\",\"dtype\":\"f32\"",
            REPORT_SCHEMA, stage.name, v->name, variant_sha256(stage.folder, v->name, "cpu"));
    fprintf(json, ",\"B\":1,\"H\":1,\"Hkv\":1,\"Nq\":%" PRId64 ",\"Nk\":%" PRId64 ",\"d\":%" PRId64,
            n->Nq, n->Nk, n->d);
    fprintf(json,
            ",\"sram_elements\":%" PRId64 ",\"tile_rows\":%d,\"tile_keys\":%d"
            ",\"fast_elements\":%" PRId64,
            M, fast->Br, fast->Bc, elements_that_fit(v, args, fast));
    fprintf(json,
            ",\"loads\":%" PRId64 ",\"stores\":%" PRId64 ",\"traffic_bytes\":%" PRId64
            ",\"hbm_bytes_model\":%.17g,\"compulsory_bytes_model\":%.17g",
            counted.loads, counted.stores, 4 * (counted.loads + counted.stores),
            model.load_bytes + model.store_bytes, model_compulsory_bytes(args, 0));
    fprintf(json, ",\"pass\":%s,\"revision\":\"%s\"}\n", pass ? "true" : "false", build_revision());
}

/* One variant on the problem: 1 when counters and outputs are right. */
static int count_one(FILE *json, const CliCase *c, const Inputs *problem,
                     const Reference *reference, const Variant *v)
{
    const AttnShape *n = &problem->args.shape;
    const FastMemory fast = fast_memory(c->sram, (int)n->Nq, (int)n->Nk, (int)n->d);
    const ModelTraffic model = model_of(v, &problem->args, &fast);
    AccessCounts counted;
    RunResult out;
    Check check;
    int right;
    access_counts_reset();
    right = run_variant(&out, v, problem, c) == EXIT_OK;
    counted = access_counts();
    right = right && judge_result(&check, reference, &out, c, v) == EXIT_OK;
    if ((double)counted.loads != model.loads || (double)counted.stores != model.stores ||
        4.0 * (double)counted.loads != model.load_bytes ||
        4.0 * (double)counted.stores != model.store_bytes) {
        fprintf(stderr,
                "%s: counted %" PRId64 " loads and %" PRId64 " stores, the model says %.0f"
                " and %.0f\n",
                v->name, counted.loads, counted.stores, model.loads, model.stores);
        right = 0;
    }
    if (out.ran) {
        write_row(json, v, &problem->args, c->sram, &fast, counted, model, right);
        printf("%-13s %6" PRId64 " %7" PRId64 " %4d %4d %8" PRId64 " %11" PRId64 " %11" PRId64
               "  %s\n",
               v->name, n->Nq, c->sram, fast.Br, fast.Bc,
               elements_that_fit(v, &problem->args, &fast), counted.loads, counted.stores,
               right ? "ok" : "WRONG");
    }
    result_free(&out);
    return right;
}

/* All three with the fast memories from M_first to M_last, each twice the one before. */
static int count_case(FILE *json, int64_t N, int64_t M_first, int64_t M_last)
{
    char length[24];
    char *argv[] = {"count_traffic", "-H", "1", "-d", "64", "-N", length};
    Inputs problem;
    Reference reference;
    Cli cli;
    int status;
    snprintf(length, sizeof length, "%" PRId64, N);
    status = cli_parse(&cli, &stage, sizeof argv / sizeof *argv, argv);
    cli_refuse_context("count_traffic", NULL, 0);
    if (status != CLI_CONTINUE)
        return status;
    start_threads(cli.cases->threads);
    status = inputs_make(&problem, cli.cases);
    if (status == EXIT_OK) {
        status = reference_make(&reference, &problem, cli.cases);
        CliCase c = cli.cases[0];
        for (c.sram = M_first; status != EXIT_RUNTIME && c.sram <= M_last; c.sram *= 2)
            for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
                if (!count_one(json, &c, &problem, &reference, &variants[v]))
                    status = EXIT_WRONG;
        reference_free(&reference);
        inputs_free(&problem);
    }
    cli_free(&cli);
    return status;
}

int main(int argc, char **argv)
{
    char *end = NULL;
    int64_t largest = argc == 3 ? strtoll(argv[2], &end, 10) : LARGEST_N;
    int status = EXIT_OK;
    FILE *json;
    cli_refuse_context("count_traffic", NULL, 0);
    if (argc < 2 || argc > 3 || argv[1][0] == '-' || (end && *end) || largest < SMALLEST_N ||
        largest > 1 << 16) {
        fprintf(stderr, "usage: count_traffic FILE.jsonl [LARGEST_N from %d to 65536]\n",
                SMALLEST_N);
        return EXIT_USAGE;
    }
    json = fopen(argv[1], "a");
    if (!json)
        return cli_refuse("found that '%s' cannot be written to (%s), accepted is a file of JSON "
                          "rows or a new one",
                          argv[1], strerror(errno));
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
        variant_of_rung(&variants[v]);
    printf("variant            N       M   Br   Bc     fits       loads      stores\n");
    for (int64_t N = SMALLEST_N; N <= largest && status != EXIT_RUNTIME; N *= 2)
        if (N != SWEEP_N)
            status = exit_worst(status, count_case(json, N, FAST_ELEMENTS, FAST_ELEMENTS));
    if (status != EXIT_RUNTIME)
        status = exit_worst(status, count_case(json, SWEEP_N, SMALLEST_M, LARGEST_M));
    if (fclose(json) != 0) {
        cli_refuse("found that '%s' did not take the rows (%s), accepted is a file that does",
                   argv[1], strerror(errno));
        status = exit_worst(status, EXIT_RUNTIME);
    }
    start_ended();
    return status;
}
