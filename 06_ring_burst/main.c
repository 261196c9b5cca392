/* SPDX-License-Identifier: MIT
 *
 * ring_burst: how can one attention span more tokens than one GPU can hold, and when is the
 * communication free?
 *
 *     method        forward                     backward
 *     ring-minimal  K, V in a ring              K, V and dK, dV in a ring; nothing overlaps
 *     ring          K, V in a ring              K, V and dK, dV in a ring, the other way round
 *     burst         K, V in a ring              Q, dO, lse, delta in a ring, dQ one step behind
 *     allgather     everybody gets all K, V     the same; dK, dV are reduce-scattered
 *     ulysses       from all heads of some tokens to all tokens of some heads, and back
 *     ring-double   ring in two levels, inside a node and between nodes
 *     burst-double  burst likewise
 *
 * The answer: softmax over parts is a sum weighted by exp(lse), so a rank can see the keys of all
 * others one block after the other, and never holds more than two of them. While it computes on
 * one, the next is under way: free as long as a block's computation, which grows with the square
 * of its tokens, takes longer than its journey, which grows with their number.
 *
 *     ring_burst                                   small: 4 ranks, all methods, checked
 *     ring_burst -N 4096 --causal --ranks 8 --backward
 *     ring_burst --trace --causal --method ring    who holds what at which step, one screen
 *     ring_burst --method auto --kv-heads 1 --causal --backward
 *     ring_burst --inject corrupt@1:2 --verify-hops
 *     mpirun -n 4 ring_burst --transport mpi
 */
#include <stdio.h>
#include <string.h>

#include "check/judge.h"
#include "judge/runner.h"
#include "methods/simulate.h"
#include "show/show.h"
#include "transports/mpi/processes.h"

static const Variant variants[] = {
    {"ring-minimal", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS,
     "the plain ring, to be read first: compute, then pass keys and values on"},
    {"ring", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS,
     "keys and values in a ring; their gradients travel home with them"},
    {"burst", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS,
     "backward the queries' side travels, the gradients of keys stay"},
    {"allgather", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS,
     "every rank gets all keys at once; dK, dV are reduce-scattered"},
    {"ulysses", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS | VARIANT_COPIES,
     "all-to-all: all tokens of some heads instead of some tokens of all heads"},
    {"ring-double", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS,
     "ring in two levels: slow links between nodes hide behind a turn inside"},
    {"burst-double", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS, "burst in two levels"},
    {"ring", ON_CUDA, DTYPES_ALL, NULL, NULL, VARIANT_RANKS | VARIANT_TENSOR_CORES,
     "keys and values in a ring; their gradients travel home with them"},
    {"burst", ON_CUDA, DTYPES_ALL, NULL, NULL, VARIANT_RANKS | VARIANT_TENSOR_CORES,
     "backward the queries' side travels, the gradients of keys stay"},
    {"allgather", ON_CUDA, DTYPES_ALL, NULL, NULL, VARIANT_RANKS | VARIANT_TENSOR_CORES,
     "every rank gets all keys at once; dK, dV are reduce-scattered"},
    {"ulysses", ON_CUDA, DTYPES_ALL, NULL, NULL,
     VARIANT_RANKS | VARIANT_TENSOR_CORES | VARIANT_COPIES,
     "all-to-all: all tokens of some heads instead of some tokens of all heads"},
    {"ring-double", ON_CUDA, DTYPES_ALL, NULL, NULL, VARIANT_RANKS | VARIANT_TENSOR_CORES,
     "ring in two levels: slow links between nodes hide behind a turn inside"},
    {"burst-double", ON_CUDA, DTYPES_ALL, NULL, NULL, VARIANT_RANKS | VARIANT_TENSOR_CORES,
     "burst in two levels"},
};

static const Stage stage = {
    "ring_burst",
    "06_ring_burst",
    "How can one attention span more tokens than one GPU can hold, and when is the communication "
    "free?",
    RING_BURST_ABI_VERSION,
    STAGE_HAS_BACKWARD | STAGE_HAS_TRACE | STAGE_HAS_DETERMINISTIC | STAGE_HAS_VARLEN |
        STAGE_HAS_RANKS,
    variants,
    sizeof variants / sizeof *variants};

/* Judge what a method computed, and show its row. */
static int show(Report *report, const CliCase *c, const Inputs *problem, const Reference *reference,
                const Variant *v, const RunResult *out, int status)
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
        status = show(report, c, problem, reference, v, &run.out, status);
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
    status = run_variant_so_here(&out, &stage, problem, c, cli, &setup, sizeof setup);
    status = show(report, c, problem, reference, v, &out, status);
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

int main(int argc, char **argv)
{
    Cli cli;
    int status;
    if (argc > 0 && runner_wanted(argv[0]))
        runner_serve(take_setup);
    ring_mpi_hush(); /* of several processes only rank 0 speaks */
    status = cli_parse(&cli, &stage, argc, argv);
    if (status == CLI_CONTINUE)
        status = ring_mpi_enter(&cli, argc, argv); /* starts mpirun, or is one of its ranks */
    if (status != CLI_CONTINUE)
        return ring_mpi_status(status);
    status = report_cases(&cli, run_case);
    cli_free(&cli);
    return ring_mpi_leave(status);
}
