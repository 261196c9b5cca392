/* SPDX-License-Identifier: MIT
 *
 * run_so_internal.h: between parent (run_so.c) and child (run_so_child.c); nobody else includes it.
 *
 * Interface:
 * - so_child_main: what the child does; it does not return.
 * - so_supervise: the child's life, from a process between (run_so_supervisor.c).
 */
#ifndef ATTN_RUN_SO_INTERNAL_H
#define ATTN_RUN_SO_INTERNAL_H

#include <sys/types.h>

#include "bench/run_internal.h"

enum { SO_FINISHED = 0x50f17e5d };

/* Shared by parent and child; the outputs' bytes follow. The user's code can write here: the parent
 * believes nothing of it unseen. */
typedef struct SoRecord {
    volatile int finished; /* the child's last word: SO_FINISHED */
    AttnStatus status;
    Samples forward, backward;
    size_t peak_bytes, peak_backward, leaked_bytes;
    int storage_intact;
    char failure[512];
    void *volatile fault; /* address of a SIGSEGV or SIGBUS */
} SoRecord;

typedef struct SoChild {
    const char *path, *stage;
    int abi_version;
    AttnFn given_forward; /* NULL: the object brings its own */
    const CliCase *c;
    RunResult *out;
    SoRecord *record;
    int output; /* the child's stdout and stderr: the write end of the parent's pipe */
} SoChild;

typedef struct SoLimits {
    double seconds;
    int64_t mebibytes;
} SoLimits;

typedef struct SoEnd {
    int in_time; /* 0: the time was over, and it was killed */
    int how;     /* as waitpid has it */
} SoEnd;

/* Runs the child and waits for its end; relays what it prints to stderr. After that nothing is left
 * of what it started. 0, or -1 without pipe or process. */
int so_supervise(const SoLimits *limits, SoChild *k, const Problem *p, SoEnd *end);

void so_child_main(SoChild *k, const Problem *p, double seconds, int64_t mebibytes);

#endif
