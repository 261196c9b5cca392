/* SPDX-License-Identifier: MIT
 *
 * contract.h: what a submission may be asked to compute, and how the judge makes inputs for it and
 * compares what came back.
 *
 * A contract is one row of a table: a name, the flags that its cases may have, and four functions.
 * The judge makes a case once (inputs and float64 reference) and then runs any number of
 * submissions on it. A submission is only ever called in another process (isolate.h); what is said
 * here about outputs is said about the judge's own copies of them.
 *
 *     case_make     flags -> inputs, reference, bounds                    once for each case
 *     case_run      library -> outputs, time, memory, how it ended        once for each submission
 *     case_judge    outputs -> a verdict for each array                   likewise
 *
 * A twist (--twist NAME=VALUE) changes what is right without a word to the submission: a handout
 * announces it. So a solution that computes ordinary attention, whoever wrote it, is wrong.
 *
 * Interface:
 * - contract_find, contract_names. case_read: the flags of a case. case_make: all else of it. A
 *   case stays as long as the process.
 * - case_run, case_judge, run_free.
 * - JudgeCase, JudgeRun, JudgeLimits, JudgeTwist.
 * - attention_contract ...: the rows' functions, by file.
 */
#ifndef ATTN_CONTRACT_H
#define ATTN_CONTRACT_H

#include "course/isolate.h"
#include "course/runner_contracts.h"
#include "harness/bench/run.h"
#include "harness/check/check.h"

enum { TWIST_NONE, TWIST_SLIDING, TWIST_MEAN, TWIST_GROUPS }; /* softmax_twist.h */

/* What a handout asks for beyond attention; no value: 0, sequences and windows: -1. */
typedef struct JudgeTwist {
    float softcap;                     /* softcap=X */
    float clip_low, clip_high;         /* clip=L,R: weights, as in stage 05; none: 0, 1 */
    int64_t window_left, window_right; /* window=L,R */
    int64_t first_keys;                /* first=S: keys 0 .. S-1 are seen whatever the window is */
    int64_t dilation;                  /* dilation=K: only keys a multiple of K away */
    int kind;                          /* softmax_twist: TWIST_..., and how wide */
    int64_t width;
} JudgeTwist;

typedef struct JudgeLimits {
    double seconds;
    int64_t mebibytes;
    int threads;
    IsolateMode mode;
    int no_blas; /* of a case */
} JudgeLimits;

enum { TRACE_BYTES = 8 << 20 };                 /* JudgeRun.trace_memory */
enum { PART_DELTA, PART_DV, PART_DK, PART_DQ }; /* --part of backward_steps */

typedef struct Contract Contract;

/* A case with its reference. Everything is the judge's own memory. */
typedef struct JudgeCase {
    const Contract *contract;
    const char *suite; /* with `line` for messages */
    int line;
    Cli cli; /* owns flags */
    CliCase *flags;
    JudgeTwist twist;
    int part;           /* backward_steps */
    int no_blas;        /* --require no-blas */
    int require_memory; /* --require memory=N: `larger` has twice the tokens; see check_memory */
    int require_ring, require_blocks; /* ring_method: neighbours only; no rank holds all keys */
    int threads;                      /* 0: those of the limits */
    Inputs problem;
    AttnArgs truth;      /* problem.args with the twist: what the reference computes */
    AttnOptions options; /* truth.options, when the twist needs them */
    Oracle oracle;
    int check_only, only_run; /* only_run: of `larger`, whose results nobody compares */
    void *own;                /* the contract's */
    struct JudgeCase *larger;
} JudgeCase;

typedef enum JudgeStatus {
    JUDGE_RIGHT,
    JUDGE_WRONG,
    JUDGE_CRASHED,
    JUDGE_TIME,
    JUDGE_MEMORY,
    JUDGE_REFUSED,
    JUDGE_SKIPPED
} JudgeStatus;
extern const char *const judge_status_names[]; /* "right" ... */

/* What one submission made of one case. */
typedef struct JudgeRun {
    JudgeStatus status;
    char message[768]; /* one or two sentences for the student, "" when it is right */
    IsolateResult end;
    double ms;                    /* of the call, or of all calls together */
    RunResult out;                /* attention: the outputs, and args, what check and hints take */
    float *values[2];             /* softmax: the two results; backward_steps: delta */
    Check check;                  /* array[] of a contract of another kind has names of its own */
    int has_hint_data;            /* 1: check and out.args are those of an attention pass */
    int64_t messages, sent_bytes; /* ring_method */
    double sectors, banks; /* flash_cuda: traffic that is necessary over that found, 0 to 1 */
    const char *code;      /* ring_method: what went wrong; NULL: it has no name */
    char trace[320];       /* the first state that is wrong (judge.h), or "" */
    void *trace_memory;    /* TRACE_BYTES for states of attn_trace.h; NULL: none kept */
} JudgeRun;

struct Contract {
    const char *name;
    const char *symbol;       /* with --part or --backward: the first that is asked for */
    unsigned features;        /* STAGE_HAS_... of the flags */
    const char *const *flags; /* long names that a case may have, NULL at the end */
    int runs_on_inputs;       /* 1: run needs nothing of the reference */
    int (*make)(
        JudgeCase *c); /* reference: EXIT_OK, or EXIT_USAGE or EXIT_RUNTIME with a message */
    void (*run)(const JudgeCase *c, const JudgeLimits *limits, const char *library, JudgeRun *run);
    void (*judge)(const JudgeCase *c, JudgeRun *run); /* fills run->check */
};

const Contract *contract_find(const char *name); /* NULL: there is none */
const char *contract_names(void);                /* with commas */

/* The flags of one case of `suite` (a name for messages). EXIT_OK, or EXIT_USAGE with the sentence
 * printed. words must stay. */
int case_read(JudgeCase *c, const Contract *contract, const char *suite, int line, int count,
              char **words);
/* Inputs and reference; check_only: no reference that takes time, which may find another fault of a
 * case. EXIT_OK, EXIT_USAGE or EXIT_RUNTIME (sentence printed). */
int case_make(JudgeCase *c, int check_only);

/* Runs the submission and sets everything but the verdict; then judges. */
void case_run(const JudgeCase *c, const JudgeLimits *limits, const char *library, JudgeRun *run);
void run_free(JudgeRun *run);
/* Operations of a case, by harness/models; 0: the contract has no such number. */
double case_flops(const JudgeCase *c);

/* --- for the files of the contracts ------------------------------------------------------------*/

extern const Contract contract_naive, contract_tiled_softmax, contract_flash_forward,
    contract_flash_backward, contract_sliding_window, contract_softmax_merge, contract_softmax_rows,
    contract_softmax_twist, contract_flash_simple, contract_backward_steps,
    contract_sliding_window_step, contract_ring_method, contract_flash_cuda;

/* Outputs of the problem's shape, poisoned. 0, or -1 with run->end broken. */
int run_outputs_new(const JudgeCase *c, JudgeRun *run);
/* A task with the limits, without arrays. */
IsolateTask run_task(const JudgeLimits *limits, const char *library);
void run_add(IsolateTask *task, const char *name, const void *data, size_t bytes, int written);
/* The last array: states of attn_trace.h, if the run has memory for them. */
void run_add_trace(IsolateTask *task, const JudgeRun *run);
/* Zeroed memory of a case that is made. It is never NULL: where there is none the process ends. */
void *case_alloc(int64_t count, size_t size);
/* c->oracle of c->truth. EXIT_OK, or EXIT_USAGE or EXIT_RUNTIME (sentence printed), or
 * CASE_CHECKED: nobody wants the reference, and there is none. */
enum { CASE_CHECKED = -1 };
int case_make_reference(JudgeCase *c);
/* run->values[n]: that many floats, poisoned. NULL with run->end broken. */
float *run_values_new(JudgeRun *run, int n, int64_t count);
/* What a small contract's function gets: the task's arrays in their order, and three numbers. */
SmallNumbers run_numbers(const IsolateTask *task, int64_t a, int64_t b, int64_t c);
/* One call of a function with these. row: of runner_contracts.c. */
void run_small(const IsolateTask *task, const char *row, const char *symbol, SmallNumbers numbers,
               JudgeRun *run);
/* EXIT_OK, or EXIT_USAGE (sentence printed): the contract knows one N only. */
int case_is_square(const JudgeCase *c);
/* run->out.args becomes the case with its twist and the outputs: what check and hints compare. */
void run_take_truth(const JudgeCase *c, JudgeRun *run);
/* Names a mistake of a ring in run->message and run->code, if one explains a rank's rows.
 * positions: rank after rank. */
void ring_hints_find(const JudgeCase *c, int world, const int32_t *tokens, const int32_t *positions,
                     JudgeRun *run);
/* Code number n of those mistakes, with an example of its sentence; NULL behind the last. */
const char *ring_hint_code(int n, const char **sentence);
/* One float array, expected in float64: into a. Rows of `width` elements are what it counts. */
void judge_floats(CheckArray *a, const char *name, const float *found, const double *expected,
                  const double *bound, int64_t rows, int64_t width);

#endif
