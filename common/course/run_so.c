/* SPDX-License-Identifier: MIT
 *
 * run_so.c: --variant-so, a user's own implementation of a stage's contract. See run.h.
 *
 * The storages of problem and result are the arrays of an isolated run, as they are: an element
 * behind the end of a tensor is a page without access there, too. Each round is one call, timed
 * from here; what is judged are the outputs of the last one.
 *
 * A method of stage 06 is called by the ring's own code, so its runner is the program itself,
 * started anew: a fork would have the reference in its memory. All others run in attn_runner. Where
 * a stage computes backward passes only, O and lse are inputs: they are computed here, and a
 * submission that writes to them ends.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "course/attn_block.h"
#include "harness/bench/run.h"

static void add(IsolateTask *task, const char *name, void *data, size_t bytes, int written)
{
    if (bytes > 0)
        task->arrays[task->array_count++] = (IsolateArray){name, data, bytes, written};
}

void attn_block_arrays(IsolateTask *task, RunResult *out, const Inputs *p, int alone)
{
    static const char *const in_names[INPUT_STORAGES] = {"Q",        "K",  "V", "dO",
                                                         "the mask", "wq", "wk"};
    static const char *const out_names[RUN_OUTPUTS] = {"O", "lse", "dQ", "dK", "dV", "dwq", "dwk"};
    const Storage *in[INPUT_STORAGES];
    Storage *outputs[RUN_OUTPUTS];
    const int64_t segments = p->args.positions_q.count + p->args.positions_k.count;
    inputs_storages(p, in);
    run_outputs(out, outputs);
    for (int i = 0; i < INPUT_STORAGES; i++)
        add(task, in_names[i], in[i]->base, in[i]->bytes, 0);
    for (int i = 0; i < RUN_OUTPUTS; i++) /* 0 and 1: O and lse */
        add(task, out_names[i], outputs[i]->base, outputs[i]->bytes, !(alone && i < 2));
    add(task, "the positions", p->segments, (size_t)segments * sizeof *p->segments, 0);
}

/* One call of <stage>_<suffix>: its status, or -1 when it did not return. */
static int call(Isolate *s, const IsolateTask *task, RunResult *out, const Stage *stage,
                const char *suffix, const IsolateResult *r)
{
    AttnBlock block;
    char symbol[128];
    attn_block_make(&block, &out->args, task);
    snprintf(symbol, sizeof symbol, "%s_%s", stage->name, suffix);
    if (!isolate_call(s, "attn", symbol, &block, sizeof block))
        return -1;
    out->leaked_bytes += r->workspace.leaked;
    out->storage_intact &= r->workspace.intact;
    if (r->workspace.peak > out->peak_bytes)
        out->peak_bytes = r->workspace.peak;
    return r->status;
}

/* All rounds: the last status, or -1 when one did not return. */
static int rounds(Isolate *s, const IsolateTask *task, RunResult *out, const Stage *stage,
                  const CliCase *c, const IsolateResult *r)
{
    const int alone = (stage->features & STAGE_ALWAYS_BACKWARD) != 0;
    const double start = bench_now_ms();
    Storage *all[RUN_OUTPUTS];
    Samples *const last = alone ? &out->backward : &out->forward;
    int status = ATTN_OK;
    run_outputs(out, all);
    for (int round = 0; status == ATTN_OK && run_keep_going(c, round, last->count, start);
         round++) {
        const int timed = run_is_timed(c, round, start);
        double ms[2];
        for (int i = alone ? 2 : 0; i < RUN_OUTPUTS; i++)
            if (all[i]->mapping)
                tensor_poison(all[i]);
        isolate_put(s);
        status = call(s, task, out, stage, "variant", r);
        ms[0] = r->ms;
        if (status == ATTN_OK && c->backward && !alone)
            status = call(s, task, out, stage, "variant_backward", r);
        ms[1] = r->ms;
        if (status == ATTN_OK && timed && !alone)
            out->forward.ms[out->forward.count++] = ms[0];
        if (status == ATTN_OK && timed && c->backward)
            out->backward.ms[out->backward.count++] = ms[1];
    }
    if (status != ATTN_OK)
        return status;
    if (!isolate_take(s))
        out->storage_intact = 0;
    for (int i = 0; i < RUN_OUTPUTS; i++)
        if (all[i]->mapping && !tensor_intact(all[i]))
            out->storage_intact = 0;
    return status;
}

/* What it printed, apart from what the program says. */
static void show_output(const CliCase *c, const IsolateResult *r)
{
    const char *line = r->output;
    if (*line)
        fprintf(stderr, "%s printed:\n", c->so.name);
    while (*line) {
        const size_t length = strcspn(line, "\n");
        fprintf(stderr, "  | %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    if (r->output_cut)
        fprintf(stderr, "  | [the rest of its output is left out]\n");
}

static int explain(RunResult *out, const Cli *cli, const CliCase *c, const IsolateResult *r,
                   int status)
{
    char *text = out->failure;
    const size_t size = sizeof out->failure;
    if (r->end == ISOLATE_BROKEN) {
        out->status = ATTN_NO_MEMORY;
        snprintf(text, size, "%s", r->sentence);
        cli_refuse("--variant-so: found that %s cannot be run: %s", c->variant_so, text);
        return EXIT_RUNTIME;
    }
    if (r->end == ISOLATE_FINISHED && status == ATTN_SKIP) {
        out->status = ATTN_SKIP;
        snprintf(text, size, "it answers ATTN_SKIP");
        return EXIT_OK;
    }
    if (r->end == ISOLATE_FINISHED)
        snprintf(text, size, "it returned status %d%s, accepted is ATTN_OK", status,
                 status == ATTN_NO_MEMORY    ? " (out of memory)"
                 : status == ATTN_CUDA_ERROR ? " (it has said why)"
                                             : "");
    else if (r->end == ISOLATE_TIME)
        snprintf(text, size, "it did not finish within %g s (--so-time) and was killed",
                 cli->so_seconds);
    else
        snprintf(text, size, "%s%s", r->sentence, r->end == ISOLATE_MEMORY ? " (--so-memory)" : "");
    cli_refuse("%s: %s", c->variant_so, text);
    return EXIT_WRONG;
}

int submission_run(RunResult *out, const Stage *stage, const Inputs *p, const CliCase *c,
                   const Cli *cli, const void *setup, size_t setup_bytes);
int submission_run(RunResult *out, const Stage *stage, const Inputs *p, const CliCase *c,
                   const Cli *cli, const void *setup, size_t setup_bytes)
{
    const int alone = (stage->features & STAGE_ALWAYS_BACKWARD) != 0;
    char abi_symbol[128];
    IsolateResult r = {.end = ISOLATE_BROKEN, .sentence = "there is no memory for its outputs"};
    IsolateTask task = {.library = c->variant_so,
                        .abi_symbol = abi_symbol,
                        .abi_version = stage->abi_version,
                        .seconds = cli->so_seconds,
                        .mebibytes = cli->so_mebibytes,
                        .threads = c->threads,
                        .mode = cli->so_sandbox,
                        .setup = setup,
                        .setup_bytes = setup_bytes};
    Isolate *s = NULL;
    int status = -1;
    snprintf(abi_symbol, sizeof abi_symbol, "%s_abi_version", stage->name);
    if (result_make(out, p, c) == EXIT_OK) {
        double start = bench_now_ms();
        if (alone) {
            run_poison(out);
            status = (int)stage->variants[0].forward(&out->args);
            out->forward.ms[out->forward.count++] = bench_now_ms() - start;
        }
        if (!alone || status == ATTN_OK) {
            attn_block_arrays(&task, out, p, alone);
            s = isolate_open(&task, &r);
        }
    }
    bench_progress("%s", c->so.name);
    status = s ? rounds(s, &task, out, stage, c, &r) : -1;
    if (s)
        isolate_close(s);
    bench_progress_clear();
    show_output(c, &r);
    if (status != ATTN_OK || r.end != ISOLATE_FINISHED)
        return explain(out, cli, c, &r, status);
    out->status = ATTN_OK;
    if (c->backward)
        out->peak_backward = out->peak_bytes;
    run_finished(out);
    return EXIT_OK;
}
