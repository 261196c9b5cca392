/* SPDX-License-Identifier: MIT
 *
 * isolate.h: run a submission (a shared object with C functions) where it can neither read nor
 * change what judges it.
 *
 *     judge                                    attn_runner: a program of its own, one for each case
 *       inputs  -> sealed memory file     ->     pages that nobody can write to; they are filled
 *                                                when the library is loaded
 *       outputs <- memory file            <-     pages that end at a page without access
 *       control <-> socket                <->    ready, loaded, done
 *       output  <- pipe                   <-     stdout and stderr
 *
 * The judge trusts nothing that comes back. It takes the outputs' bytes and compares them; it
 * measures the time from the call to its answer; it asks the kernel for the memory while the runner
 * waits; and a runner that ends without the answer "done" has not finished, whatever its exit
 * status is. With ISOLATE_STRICT the runner enters a sandbox before the submission is loaded
 * (sandbox.h), and once it has answered it is stopped until the next call: no thread of it uses
 * time or memory, or writes to outputs, when nobody measures. With ISOLATE_OFF it is another
 * process with limits and no more than that.
 *
 * Interface:
 * - isolate_run: one call of one function.
 * - isolate_open, isolate_put, isolate_call, isolate_take, isolate_close: several calls in one
 *   runner, the outputs' contents changed or looked at between them.
 * - isolate_pointer: an address inside an array, as the runner's side can read it.
 * - isolate_strict_here: can this machine and this build do ISOLATE_STRICT?
 */
#ifndef ATTN_ISOLATE_H
#define ATTN_ISOLATE_H

#include <stddef.h>
#include <stdint.h>

#include "course/runner.h"

typedef enum IsolateMode { ISOLATE_OFF, ISOLATE_STRICT } IsolateMode;

typedef enum IsolateEnd {
    ISOLATE_FINISHED, /* it returned; IsolateResult.status is what it returned */
    ISOLATE_CRASHED,  /* a signal, or an exit instead of a return */
    ISOLATE_TIME,
    ISOLATE_MEMORY,
    ISOLATE_REFUSED, /* it cannot be loaded, lacks the function, or did what it may not do */
    ISOLATE_BROKEN   /* this machine could not run it: no memory, no process, no sandbox */
} IsolateEnd;

/* Its last byte lies before a page without access; in front of it is a margin of at least a page
 * that a right submission leaves as it is (0xFF). */
typedef struct IsolateArray {
    const char *name; /* for sentences: "Q" */
    void *data;
    size_t bytes;
    int written; /* 0: an input. 1: an output; what it holds goes there, too */
} IsolateArray;

/* A runner of a ring sends or wants to receive. data lies in the task's array `mailbox`: what it
 * sends, or where what it receives has to go. */
typedef struct IsolateMessage {
    int is_send, peer;
    void *data;
    size_t bytes;
} IsolateMessage;

typedef struct IsolateTask {
    const char *library;    /* path of the shared object */
    const char *abi_symbol; /* int that, if exported, must be abi_version; NULL: none */
    int abi_version;
    IsolateArray arrays[RUNNER_ARRAYS];
    int array_count;
    double seconds;    /* for loading it and for all calls together */
    int64_t mebibytes; /* beside the arrays; half of the cgroup's limit when that is less */
    int threads;
    IsolateMode mode;
    int no_blas; /* ISOLATE_STRICT: 1, it can load no library that might be a BLAS */
    /* Messages of a ring: 1 the runner may go on, 0 it is ended. NULL: there are none. */
    int (*relay)(void *context, const IsolateMessage *message);
    void *context;
    int mailbox; /* number of an array that is written; its `data` is only its address */
    int trace;   /* 1 + number of an array for states of attn_trace.h, which is written; 0: none */
    const void *setup; /* Not NULL: its runner is this program, started anew, whose functions the
                        * submission may call (stage 06); main() gives these bytes to its own */
    size_t setup_bytes;
} IsolateTask;

typedef struct IsolateResult {
    IsolateEnd end;
    int status;
    char sentence[512];   /* "" or why it did not finish: "it crashed with SIGSEGV ..." */
    double ms;            /* the last call */
    double processor_ms;  /* all threads together, from the loaded library to the last call's end */
    double waited_ms;     /* beyond its limit of time: others had its processor */
    size_t peak_bytes;    /* memory beside the arrays: most at once, from the kernel */
    size_t array_bytes;   /* the arrays */
    RunnerUsed workspace; /* the runner's word, which the submission could change; sane */
    char output[4097];    /* what it wrote to stdout and stderr: its first 4 kB, printable */
    int output_cut;       /* 1: there was more */
} IsolateResult;

typedef struct Isolate Isolate;

/* 1: all went well and result->end is ISOLATE_FINISHED; the outputs are in the arrays. */
int isolate_run(const IsolateTask *task, const char *contract, const char *symbol,
                const void *numbers, size_t bytes, IsolateResult *result);

/* NULL: result says why. Otherwise the library is loaded, and isolate_close must follow. The task
 * and its arrays must stay. result is complete after isolate_close. */
Isolate *isolate_open(const IsolateTask *task, IsolateResult *result);
/* The outputs' present contents go to the runner, and their margins are filled again. */
void isolate_put(Isolate *s);
/* Calls a function by a row of runner_contracts.c. 1: it returned. 0: result says why not, and only
 * isolate_close can follow. */
int isolate_call(Isolate *s, const char *contract, const char *symbol, const void *numbers,
                 size_t bytes);
/* The runner's outputs into the arrays. 0: a margin was written to. */
int isolate_take(Isolate *s);
void isolate_close(Isolate *s);

/* 0 for NULL, and for an address that lies in none of the task's arrays. */
static inline RunnerPointer isolate_pointer(const IsolateTask *task, const void *address)
{
    const unsigned char *p = (const unsigned char *)address;
    for (int i = 0; p && i < task->array_count; i++) {
        const unsigned char *first = (const unsigned char *)task->arrays[i].data;
        if (p >= first && p < first + task->arrays[i].bytes)
            return (RunnerPointer)(i + 1) << 48 | (RunnerPointer)(p - first);
    }
    return 0;
}

/* 1, or 0 with the reason in `why`. */
int isolate_strict_here(char *why, size_t size);

#endif
