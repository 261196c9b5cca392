/* SPDX-License-Identifier: MIT
 *
 * contract.c: the table of contracts, and what all of them share: a case's flags, its twist, its
 * inputs, and the way from a run to a status. See contract.h.
 *
 * Interface: contract_find, contract_names, case_read, case_make, case_run, run_free, case_flops,
 * case_alloc, case_make_reference, case_is_square, run_outputs_new, run_values_new, run_task,
 * run_add, run_numbers, run_small, judge_floats.
 */
#include "course/contract.h"

#include "harness/bench/run.h"
#include "harness/models/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORDS = 64, MEMORY_TOKENS = 1024, MEMORY_CHANNELS = 16 };
#define MOST_WORK 1e10 /* pair-channels that oracle_run computes whole */

const char *const judge_status_names[] = {"right",  "wrong",   "crashed", "time",
                                          "memory", "refused", "skipped"};

static const Contract *const contracts[] = {
    &contract_naive,          &contract_tiled_softmax,       &contract_flash_forward,
    &contract_flash_backward, &contract_sliding_window,      &contract_softmax_merge,
    &contract_softmax_twist,  &contract_softmax_rows,        &contract_flash_simple,
    &contract_backward_steps, &contract_sliding_window_step, &contract_ring_method,
    &contract_flash_cuda};
enum { CONTRACTS = sizeof contracts / sizeof *contracts };

const Contract *contract_find(const char *name)
{
    for (int i = 0; i < CONTRACTS; i++)
        if (strcmp(contracts[i]->name, name) == 0)
            return contracts[i];
    return NULL;
}

const char *contract_names(void)
{
    static char names[512];
    size_t used = 0;
    for (int i = 0; i < CONTRACTS; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 contracts[i]->name);
    return names;
}

/* cli_refuse says where: it keeps the pointer. */
static const char *refuse_in(const char *suite, int line)
{
    static char where[512];
    snprintf(where, sizeof where, "grade: %s:%d", suite, line);
    cli_refuse_context(where, NULL, 0);
    return where;
}

/* --- flags -------------------------------------------------------------------------------------*/

/* "K,R" or one number, as many as `count`. 1, or 0: something else. */
static int read_numbers(const char *text, int count, int64_t least, int64_t *to)
{
    for (int i = 0; i < count; i++) {
        char *end;
        to[i] = strtoll(text, &end, 10);
        if (end == text || *end != (i + 1 < count ? ',' : 0) || to[i] < least || to[i] > INT32_MAX)
            return 0;
        text = end + 1;
    }
    return 1;
}

/* A finite number, or two of them. */
static int read_reals(const char *text, int count, float *to)
{
    for (int i = 0; i < count; i++) {
        char *end;
        to[i] = strtof(text, &end);
        if (end == text || *end != (i + 1 < count ? ',' : 0) || !isfinite(to[i]))
            return 0;
        text = end + 1;
    }
    return 1;
}

static int read_twist(JudgeTwist *t, const char *text)
{
    const char *value = strchr(text, '=');
    const size_t length = value ? (size_t)(value - text) : strlen(text);
    int64_t n[2] = {0, 0};
    float x[2] = {0.0f, 0.0f};
    int good = 0;
    value = value ? value + 1 : "";
#define IS(name) (length == sizeof name - 1 && memcmp(text, name, length) == 0)
    if (IS("softcap") && (good = read_reals(value, 1, x) && x[0] > 0.0f))
        t->softcap = x[0];
    else if (IS("clip") && (good = read_reals(value, 2, x) && x[0] <= 0.0f && x[1] >= 1.0f))
        t->clip_low = x[0], t->clip_high = x[1];
    else if (IS("window") && (good = read_numbers(value, 2, -1, n)))
        t->window_left = n[0], t->window_right = n[1];
    else if (IS("first") && (good = read_numbers(value, 1, 1, n)))
        t->first_keys = n[0];
    else if (IS("dilation") && (good = read_numbers(value, 1, 2, n)))
        t->dilation = n[0];
#undef IS
    return good ? 0
                : cli_refuse("--twist: found '%s', accepted are softcap=X, clip=L,R with L <= 0 "
                             "and R >= 1, window=L,R, first=S and dilation=K",
                             text);
}

static int read_softmax_twist(JudgeTwist *t, const char *text)
{
    static const char *const kinds[] = {
        [TWIST_SLIDING] = "sliding=", [TWIST_MEAN] = "mean=", [TWIST_GROUPS] = "groups="};
    for (int kind = TWIST_SLIDING; kind <= TWIST_GROUPS; kind++) {
        const size_t length = strlen(kinds[kind]);
        if (strncmp(text, kinds[kind], length) == 0 &&
            read_numbers(text + length, 1, 1, &t->width)) {
            t->kind = kind;
            return 0;
        }
    }
    return cli_refuse("--twist: found '%s', accepted are sliding=W, mean=W and groups=W", text);
}

static int read_part(JudgeCase *c, const char *text)
{
    static const char *const names[] = {"delta", "dV", "dK", "dQ"};
    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0) {
            c->part = i;
            return 0;
        }
    return cli_refuse("--part: found '%s', accepted is one of delta, dV, dK, dQ", text);
}

static int read_requirement(JudgeCase *c, const char *text)
{
    if (strcmp(text, "memory=N") == 0)
        c->require_memory = 1;
    else if (strcmp(text, "ring") == 0 && c->contract == &contract_ring_method)
        c->require_ring = 1;
    else if (strcmp(text, "blocks") == 0 && c->contract == &contract_ring_method)
        c->require_blocks = 1;
    else if (strcmp(text, "no-blas") == 0)
        c->no_blas = 1; /* which symbols a library needs is grade's to see */
    else
        return cli_refuse("--require: found '%s', accepted are memory=N, no-blas and, of a "
                          "ring_method, ring and blocks",
                          text);
    return 0;
}

static int takes_twists(const Contract *contract)
{
    return contract == &contract_softmax_twist || !(contract->features & STAGE_HAS_ROWS_COLS);
}

static int accepts(const Contract *contract, const char *word)
{
    const size_t length = strcspn(word, "=");
    for (const char *const *f = contract->flags; *f; f++)
        if (strlen(*f) == length && memcmp(*f, word, length) == 0)
            return 1;
    return 0;
}

static int refuse_flag(const Contract *contract, const char *word)
{
    char names[512] = "";
    size_t used = 0;
    for (const char *const *f = contract->flags; *f && used < sizeof names; f++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? " " : "", *f);
    return cli_refuse("%s: found a flag that the contract %s does not have, accepted are %s "
                      "--require%s",
                      word, contract->name, names, takes_twists(contract) ? " --twist" : "");
}

/* Takes what only the judge knows out of the words. Returns how many are left, or -1. */
static int read_own_flags(JudgeCase *c, int count, char **words, char **left)
{
    int n = 0;
    for (int i = 0; i < count; i++) {
        const int twist = strcmp(words[i], "--twist") == 0 && takes_twists(c->contract);
        const int require = strcmp(words[i], "--require") == 0;
        const int part = strcmp(words[i], "--part") == 0 && accepts(c->contract, "--part");
        if (!twist && !require && !part) {
            if (words[i][0] == '-' && words[i][1] && !strchr("0123456789.", words[i][1]) &&
                !accepts(c->contract, words[i])) {
                refuse_flag(c->contract, words[i]);
                return -1;
            }
            left[n++] = words[i];
            continue;
        }
        if (++i >= count) {
            cli_refuse("%s: found no value, accepted is one", words[i - 1]);
            return -1;
        }
        if ((twist  ? c->contract == &contract_softmax_twist
                          ? read_softmax_twist(&c->twist, words[i])
                          : read_twist(&c->twist, words[i])
              : part ? read_part(c, words[i])
                    : read_requirement(c, words[i])) != 0)
            return -1;
    }
    return n;
}

static int check_memory_case(const JudgeCase *c)
{
    const AttnShape s = {c->flags->B,  c->flags->H,  c->flags->Hkv,
                         c->flags->Nq, c->flags->Nk, c->flags->d};
    if (!c->require_memory)
        return EXIT_OK;
    if ((c->contract->features & STAGE_HAS_ROWS_COLS) || s.Nq != s.Nk || s.Nq < MEMORY_TOKENS ||
        s.Nq < MEMORY_CHANNELS * s.d)
        return cli_refuse("--require memory=N: found %" PRId64 " queries, %" PRId64
                          " keys and %" PRId64 " channels, accepted are as many keys as queries, "
                          "at least %d and %d times the channels: below that a matrix of scores "
                          "does not stand out",
                          s.Nq, s.Nk, s.d, MEMORY_TOKENS, MEMORY_CHANNELS);
    return EXIT_OK;
}

/* One set of flags. */
static int read_case(JudgeCase *c, const Contract *contract, const char *suite, int line, int count,
                     char **words)
{
    static Stage stage;
    const int rows = (contract->features & STAGE_HAS_ROWS_COLS) != 0;
    char *argv[MAX_WORDS + 6] = {"grade"};
    int given = 1; /* words in front: what the flags cannot say */
    int left, status;
    memset(c, 0, sizeof *c);
    c->contract = contract;
    c->suite = suite;
    c->line = line;
    c->part = -1;
    c->twist = (JudgeTwist){.clip_high = 1.0f, .window_left = -1, .window_right = -1};
    stage = (Stage){.name = refuse_in(suite, line), .features = contract->features};
    if (!rows && !accepts(contract, "--batch")) {
        argv[given++] = "-B";
        argv[given++] = "1";
    }
    if (!rows && !accepts(contract, "--heads")) {
        argv[given++] = "-H";
        argv[given++] = "1";
    }
    if (count > MAX_WORDS)
        return cli_refuse("found %d words of flags, accepted are %d", count, MAX_WORDS);
    left = read_own_flags(c, count, words, argv + given);
    if (left < 0)
        return EXIT_USAGE;
    argv[given + left] = NULL;
    status = cli_parse(&c->cli, &stage, given + left, argv);
    if (status != CLI_CONTINUE)
        return status == EXIT_RUNTIME ? EXIT_RUNTIME : EXIT_USAGE;
    c->flags = &c->cli.cases[0];
    c->flags->threads = 1;
    return check_memory_case(c);
}

int case_read(JudgeCase *c, const Contract *contract, const char *suite, int line, int count,
              char **words)
{
    int status = read_case(c, contract, suite, line, count, words);
    if (status != EXIT_OK || !c->require_memory)
        return status;
    c->larger = case_alloc(1, sizeof *c->larger);
    status = read_case(c->larger, contract, suite, line, count, words);
    if (status == EXIT_OK) {
        c->larger->only_run = 1;
        c->larger->flags->Nq *= 2;
        c->larger->flags->Nk *= 2;
    }
    return status;
}

/* --- inputs ------------------------------------------------------------------------------------*/

static int twist_hides(const JudgeCase *c)
{
    const JudgeTwist *t = &c->twist;
    return t->window_left >= 0 || t->window_right >= 0 || t->dilation;
}

/* 1: the twist lets query i see key j, the case's own mask apart. */
static int twist_shows(const JudgeCase *c, int64_t i, int64_t j)
{
    const JudgeTwist *t = &c->twist;
    const AttnArgs *a = &c->problem.args;
    const int64_t q = attn_position(a->positions_q, i).position;
    const int64_t k = attn_position(a->positions_k, j).position;
    const int in_window = (t->window_left < 0 || k >= q - t->window_left) &&
                          (t->window_right < 0 || k <= q + t->window_right);
    return (in_window || k < t->first_keys) && !(t->dilation && (q - k) % t->dilation != 0);
}

/* truth = what the submission is told, and the twist. */
static void make_truth(JudgeCase *c)
{
    const AttnShape *s = &c->problem.args.shape;
    uint8_t *mask;
    c->truth = c->problem.args;
    if (c->twist.softcap > 0.0f)
        c->truth.softcap = c->twist.softcap;
    if (c->twist.clip_low != 0.0f || c->twist.clip_high != 1.0f) {
        c->options = c->problem.options;
        c->options.clip_low = c->twist.clip_low;
        c->options.clip_high = c->twist.clip_high;
        c->truth.options = &c->options;
    }
    if (!twist_hides(c))
        return;
    c->truth.mask = mask = case_alloc(s->Nq * s->Nk, 1);
    for (int64_t i = 0; i < s->Nq; i++)
        for (int64_t j = 0; j < s->Nk; j++)
            mask[i * s->Nk + j] = (c->problem.args.mask && c->problem.args.mask[i * s->Nk + j]) ||
                                  !twist_shows(c, i, j);
}

int case_make(JudgeCase *c, int check_only)
{
    int status = EXIT_OK;
    c->check_only = check_only;
    refuse_in(c->suite, c->line);
    if (!(c->contract->features & STAGE_HAS_ROWS_COLS)) {
        status = inputs_make(&c->problem, c->flags);
        if (status == EXIT_OK)
            make_truth(c);
    }
    if (status == EXIT_OK)
        status = c->contract->make(c);
    if (status == CASE_CHECKED)
        status = EXIT_OK;
    if (status == EXIT_OK && c->larger)
        status = case_make(c->larger, check_only);
    return status;
}

void *case_alloc(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count, size);
    if (!memory)
        exit(cli_no_memory("the reference"));
    return memory;
}

int case_make_reference(JudgeCase *c)
{
    const AttnShape *s = &c->truth.shape;
    const int backward = c->flags->backward && !c->only_run; /* a backward pass gets O and lse */
    if (c->only_run && c->contract->runs_on_inputs)
        return CASE_CHECKED;
    if ((double)(s->B * s->H) * (double)s->Nq * (double)s->Nk * (double)s->d > MOST_WORK)
        return cli_refuse("found a case with more than 10^10 pair-channels, accepted are smaller "
                          "ones");
    if (c->check_only)
        return CASE_CHECKED;
    if (oracle_run(&c->oracle, &c->truth, backward, 1) != 0)
        return cli_no_memory("the reference");
    if (backward && c->oracle.beyond)
        return cli_refuse("found scores that are too large for their gradients to be judged in "
                          "float32, accepted is another --dist");
    return EXIT_OK;
}

int case_is_square(const JudgeCase *c)
{
    const CliCase *f = c->flags;
    if (f->Nq != f->Nk)
        return cli_refuse("found %" PRId64 " queries and %" PRId64 " keys, accepted are as many of "
                          "both: the contract %s has one N",
                          f->Nq, f->Nk, c->contract->name);
    return EXIT_OK;
}

/* One product of N x N x d costs half of a forward pass. */
double case_flops(const JudgeCase *c)
{
    static const double products[] = {
        [PART_DELTA] = 0.0, [PART_DV] = 2.0, [PART_DK] = 3.0, [PART_DQ] = 3.0};
    if (c->contract->features & STAGE_HAS_ROWS_COLS)
        return 0.0;
    if (c->part >= 0)
        return products[c->part] / 2.0 * model_flops(&c->truth, 0);
    if (c->contract->features & STAGE_ALWAYS_BACKWARD)
        return model_flops(&c->truth, 1);
    return model_flops(&c->truth, 0) + (c->flags->backward ? model_flops(&c->truth, 1) : 0.0);
}

/* --- runs --------------------------------------------------------------------------------------*/

IsolateTask run_task(const JudgeLimits *limits, const char *library)
{
    IsolateTask task;
    memset(&task, 0, sizeof task);
    task.library = library;
    task.seconds = limits->seconds;
    task.mebibytes = limits->mebibytes;
    task.threads = limits->threads;
    task.mode = limits->mode;
    task.no_blas = limits->no_blas;
    return task;
}

void run_add(IsolateTask *task, const char *name, const void *data, size_t bytes, int written)
{
    IsolateArray *a = &task->arrays[task->array_count++];
    a->name = name;
    a->data = (void *)(uintptr_t)data;
    a->bytes = bytes;
    a->written = written;
}

void run_add_trace(IsolateTask *task, const JudgeRun *run)
{
    if (!run->trace_memory)
        return;
    run_add(task, "attn_trace", run->trace_memory, TRACE_BYTES, 1);
    task->trace = task->array_count;
}

int run_outputs_new(const JudgeCase *c, JudgeRun *run)
{
    if (result_make(&run->out, &c->problem, c->flags) == EXIT_OK) {
        run_poison(&run->out);
        return 0;
    }
    run->end.end = ISOLATE_BROKEN;
    snprintf(run->end.sentence, sizeof run->end.sentence, "no memory for the outputs");
    return -1;
}

float *run_values_new(JudgeRun *run, int n, int64_t count)
{
    run->values[n] = malloc((size_t)count * sizeof(float));
    if (run->values[n])
        memset(run->values[n], 0xFF, (size_t)count * sizeof(float));
    else
        run->end.end = ISOLATE_BROKEN;
    return run->values[n];
}

SmallNumbers run_numbers(const IsolateTask *task, int64_t a, int64_t b, int64_t c)
{
    SmallNumbers n = {.integer = {(int32_t)a, (int32_t)b, (int32_t)c}};
    for (int i = 0; i < task->array_count; i++)
        n.pointer[i] = isolate_pointer(task, task->arrays[i].data);
    return n;
}

void run_small(const IsolateTask *task, const char *row, const char *symbol, SmallNumbers numbers,
               JudgeRun *run)
{
    isolate_run(task, row, symbol, &numbers, sizeof numbers, &run->end);
    run->ms = run->end.ms;
}

void run_take_truth(const JudgeCase *c, JudgeRun *run)
{
    const AttnArgs found = run->out.args;
    run->out.args = c->truth;
    run->out.args.O = found.O;
    run->out.args.lse = found.lse;
    run->out.args.dQ = found.dQ;
    run->out.args.dK = found.dK;
    run->out.args.dV = found.dV;
    run->has_hint_data = 1;
}

void judge_floats(CheckArray *a, const char *name, const float *found, const double *expected,
                  const double *bound, int64_t rows, int64_t width)
{
    uint32_t bits, unwritten = UINT32_MAX; /* ones alone: the NaN that fills memory before a run */
    memset(a, 0, sizeof *a);
    a->name = name;
    a->checked = 1;
    for (int64_t n = 0; n < rows * width; n++) {
        double ratio;
        memcpy(&bits, &found[n], sizeof bits);
        unwritten &= bits;
        const CheckVerdict v = check_value(expected[n], bound[n], found[n], INFINITY, 0, &ratio);
        a->nonfinite += v == CHECK_OFF_NONFINITE;
        if (v != CHECK_GOOD) {
            a->off_rows += a->off == 0 || a->last_off_row != n / width;
            a->first_off_row = a->off == 0 ? n / width : a->first_off_row;
            a->last_off_row = n / width;
            a->off_heads = 1;
            a->off++;
        }
        if (a->compared++ == 0 || ratio > a->worst_ratio) {
            a->worst_ratio = ratio;
            a->i = n / width, a->x = n % width;
            a->expected = expected[n], a->found = found[n], a->bound = bound[n];
        }
    }
    if (unwritten == UINT32_MAX && a->off == a->compared)
        snprintf(a->hint, sizeof a->hint, "nothing was written");
}

static const JudgeStatus status_of_end[] = {
    [ISOLATE_FINISHED] = JUDGE_RIGHT,  [ISOLATE_CRASHED] = JUDGE_CRASHED,
    [ISOLATE_TIME] = JUDGE_TIME,       [ISOLATE_MEMORY] = JUDGE_MEMORY,
    [ISOLATE_REFUSED] = JUDGE_REFUSED, [ISOLATE_BROKEN] = JUDGE_SKIPPED};

/* How many times N^2 bytes the memory may grow by from N to 2N tokens: half a matrix of floats. A
 * whole one grows by 12, half of one, under a causal mask, by 6. */
#define MEMORY_GROWTH 2.0
/* A block of constant size grows by nothing, so what 2N tokens take has a limit, too. MEMORY_FIXED:
 * an empty submission takes 0.1 MiB, one with the C library and mathematics 0.6, with OpenMP 1.7,
 * with OpenBLAS 3.1. MEMORY_THREAD: one thread's tiles and stack. MEMORY_ARRAYS: copies of the
 * arrays, but no more than (2N)^2 bytes, a quarter of a matrix: many heads and a mask have large
 * arrays. */
#define MEMORY_FIXED  (4.0 * 0x1p20)
#define MEMORY_THREAD (0.25 * 0x1p20)
#define MEMORY_ARRAYS 2.0

static double memory_allowed(const IsolateResult *end, int threads, double tokens)
{
    const double copies = MEMORY_ARRAYS * (double)end->array_bytes;
    return MEMORY_FIXED + MEMORY_THREAD * threads +
           (copies < tokens * tokens ? copies : tokens * tokens);
}

/* Runs the same with twice the tokens: neither growth nor size may be that of a matrix. */
static void check_memory(const JudgeCase *c, const JudgeLimits *limits, const char *library,
                         JudgeRun *run)
{
    const double N = (double)c->flags->Nq;
    JudgeRun twice;
    memset(&twice, 0, sizeof twice);
    c->contract->run(c->larger, limits, library, &twice);
    if (twice.end.end != ISOLATE_FINISHED) {
        run->status = status_of_end[twice.end.end];
        snprintf(run->message, sizeof run->message, "with twice the tokens (%.0f) %s", 2.0 * N,
                 twice.end.sentence);
    } else {
        const double grown = (double)twice.end.peak_bytes - (double)run->end.peak_bytes;
        const double allowed = memory_allowed(&twice.end, limits->threads, 2.0 * N);
        if (grown > MEMORY_GROWTH * N * N) {
            run->status = JUDGE_MEMORY;
            snprintf(run->message, sizeof run->message,
                     "it took %.1f MiB for %.0f tokens and %.1f MiB for %.0f: that grows like a "
                     "matrix of scores, accepted is memory that grows with N (--require memory=N)",
                     (double)run->end.peak_bytes / 0x1p20, N, (double)twice.end.peak_bytes / 0x1p20,
                     2.0 * N);
        } else if ((double)twice.end.peak_bytes > allowed) {
            run->status = JUDGE_MEMORY;
            snprintf(run->message, sizeof run->message,
                     "it took %.1f MiB for %.0f tokens, accepted are %.1f MiB: %.0f MiB, %.2f MiB "
                     "for each thread and %.0f times the arrays, of these at most a quarter of a "
                     "matrix of scores (--require memory=N)",
                     (double)twice.end.peak_bytes / 0x1p20, 2.0 * N, allowed / 0x1p20,
                     MEMORY_FIXED / 0x1p20, MEMORY_THREAD / 0x1p20, MEMORY_ARRAYS);
        }
    }
    run_free(&twice);
}

/* One sentence: which arrays are wrong. */
static void explain_wrong(JudgeRun *run)
{
    size_t used = 0;
    if (run->message[0])
        return;
    for (int n = 0; n < CHECK_COUNT; n++) {
        const CheckArray *a = &run->check.array[n];
        if (a->checked && a->off > 0 && used < sizeof run->message)
            used +=
                (size_t)snprintf(run->message + used, sizeof run->message - used,
                                 "%s%s is wrong: %" PRId64 " of %" PRId64 " values are off",
                                 used > 0 ? "; " : "", a->name, a->off, a->compared + a->off_nan);
    }
    if (!run->check.storage_intact && used < sizeof run->message)
        snprintf(run->message + used, sizeof run->message - used,
                 "%smemory outside the outputs was written to", used ? "; " : "");
}

void case_run(const JudgeCase *c, const JudgeLimits *limits, const char *library, JudgeRun *run)
{
    memset(run, 0, sizeof *run);
    run->check.inputs_intact = run->check.storage_intact = 1;
    c->contract->run(c, limits, library, run);
    run->status = status_of_end[run->end.end];
    if (run->status != JUDGE_RIGHT) {
        snprintf(run->message, sizeof run->message, "%s", run->end.sentence);
        return;
    }
    if (run->end.status != 0) {
        run->status = JUDGE_WRONG;
        run->code = "returned_an_error";
        snprintf(run->message, sizeof run->message, "it returned %d, accepted is 0",
                 run->end.status);
        return;
    }
    c->contract->judge(c, run);
    if (!run->check.pass) {
        run->status = JUDGE_WRONG;
        explain_wrong(run);
    } else if (c->larger)
        check_memory(c, limits, library, run);
}

void run_free(JudgeRun *run)
{
    result_free(&run->out);
    free(run->values[0]);
    free(run->values[1]);
    memset(run, 0, sizeof *run);
}
