/* SPDX-License-Identifier: MIT
 *
 * runner.h: the process in which a submission runs: what the judge and it say to each other, and
 * how a function of a submission is called.
 *
 * Interface:
 * - RunnerCall, runner_pointer: what a contract's runner side gets.
 * - runner_contract: the row of runner_contracts.c with this name.
 * - RunnerOpen, RunnerRequest, RunnerReply: the messages, one datagram each.
 * - runner_wanted: was this program started to be a runner?
 * - runner_serve: the runner's life; it does not return.
 * - runner_supervise: without a sandbox, a process between judge and runner.
 */
#ifndef ATTN_RUNNER_H
#define ATTN_RUNNER_H

#include <stddef.h>
#include <stdint.h>

enum { RUNNER_ARRAYS = 24, RUNNER_NUMBERS = 4096, RUNNER_SETUP = 256 };
#define RUNNER_NAME "attn_runner" /* argv[0] of each */
/* What the runner inherits, beside an empty stdin and the pipe at stdout and stderr. */
enum { RUNNER_UNHEARD = 70 }; /* exit status when the judge's socket is closed */
enum { RUNNER_CONTROL = 3, RUNNER_INPUTS, RUNNER_OUTPUTS, RUNNER_LIBRARY, RUNNER_FILES };

/* An address inside an array, the same in both processes: array + 1 in the upper 16 bits, offset
 * below. 0: NULL. */
typedef uint64_t RunnerPointer;

/* What a contract's runner side knows of one call. */
typedef struct RunnerCall {
    void *function;      /* the submission's */
    const void *numbers; /* as the judge's side of the contract wrote them */
    size_t bytes;
    void *const *arrays; /* first byte of each */
    int array_count;
} RunnerCall;

typedef struct RunnerContract {
    const char *name;
    int (*call)(const RunnerCall *call); /* returns the submission's status */
} RunnerContract;

const RunnerContract *runner_contract(const char *name); /* NULL: no such row */
void *runner_pointer(const RunnerCall *call, RunnerPointer p);

/* What the submission used: memory by workspace_alloc, calls of attn_trace.h. */
typedef struct RunnerUsed {
    size_t peak, leaked;
    int intact; /* 0: it wrote outside a block */
    int traced; /* 1: it called attn_trace */
} RunnerUsed;

typedef struct RunnerArray {
    size_t offset, span; /* in its memory file: whole pages, the array at their end */
    size_t bytes;
    int written;
} RunnerArray;

typedef struct RunnerOpen {
    int strict, threads, no_blas;
    double seconds;
    int64_t mebibytes;
    int array_count;
    int trace; /* as in IsolateTask */
    RunnerArray arrays[RUNNER_ARRAYS];
    char library[4096]; /* without a sandbox: its path, which debuggers show */
    char abi_symbol[128];
    int abi_version;
    size_t setup_bytes; /* as in IsolateTask */
    unsigned char setup[RUNNER_SETUP] __attribute__((aligned(16)));
} RunnerOpen;

/* bytes < 0: load the library. Otherwise call a function. */
typedef struct RunnerRequest {
    int64_t bytes;
    char contract[64], symbol[128];
    unsigned char numbers[RUNNER_NUMBERS] __attribute__((aligned(16)));
} RunnerRequest;

typedef enum RunnerSays {
    RUNNER_READY = 1, /* arrays mapped, limits set, sandbox entered; number: its process */
    RUNNER_LOADED,
    RUNNER_DONE,    /* number: what the function returned */
    RUNNER_REFUSES, /* text: why */
    RUNNER_BROKEN,  /* text: why; no fault of the submission's */
    RUNNER_FAULT,   /* number: signal; address, array, place, no_memory */
    RUNNER_DENIED,  /* text: name of the system call */
    RUNNER_ENDED,   /* from runner_supervise. number: as waitpid has it */
    RUNNER_SENDS,   /* number: to which rank; address: bytes, in the mailbox */
    RUNNER_RECEIVES /* likewise from which rank. Both are answered by one byte */
} RunnerSays;

typedef struct RunnerReply {
    int says, number;
    int no_memory; /* 1: an allocation was refused before */
    uint64_t address;
    int array, place; /* of the address; -1: in no array. 0 inside, 1 behind, 2 before it */
    RunnerUsed used;
    char text[512];
} RunnerReply;

/* argv[0] of main() */
int runner_wanted(const char *name);
/* take_setup: gets RunnerOpen.setup before the library is loaded; NULL where there is none. */
void runner_serve(void (*take_setup)(const void *setup, size_t bytes)) __attribute__((noreturn));
void runner_supervise(void);

#endif
