/* SPDX-License-Identifier: MIT
 *
 * run_so_internal.h: between parent (run_so.c) and child (run_so_child.c); nobody else includes it.
 *
 * Interface:
 * - so_child_main: what the child does; it does not return.
 * - SoLeash and so_leash_*: what the child prints, and what it started (run_so_leash.c).
 */
#ifndef ATTN_RUN_SO_INTERNAL_H
#define ATTN_RUN_SO_INTERNAL_H

#include <sys/types.h>

#include "run_internal.h"

enum { SO_OLDER = 64, SO_FINISHED = 0x50f17e5d };

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
    Outcome *out;
    SoRecord *record;
    int output; /* the child's stdout and stderr: the write end of the parent's pipe */
} SoChild;

/* How the parent holds its child: output comes through a pipe of its own, and orphans of the child
 * become children of this process, whatever session they moved to. */
typedef struct SoLeash {
    int read_end, write_end;
    int was_subreaper;
    size_t relayed;
    char last;               /* the last byte that was relayed */
    unsigned long long born; /* start time of the child, in clock ticks */
    long older[SO_OLDER];    /* children that this process had before: inherited through exec */
    int older_count;
} SoLeash;

/* Before fork: 0, or -1 without a pipe. */
int so_leash_make(SoLeash *l);
/* After fork, in the parent; pid < 0: fork failed. */
void so_leash_take(SoLeash *l, pid_t pid);
/* Waits up to `ms` for output and relays to stderr what came. */
void so_leash_relay(SoLeash *l, double ms);
/* After the child was reaped: ends what it left, relays the rest. */
void so_leash_end(SoLeash *l);

void so_child_main(SoChild *k, const Problem *p, double seconds, int64_t mebibytes);

#endif
