/* SPDX-License-Identifier: MIT
 *
 * run_so_internal.h: between parent (run_so.c) and child (run_so_child.c); nobody else includes it.
 *
 * Interface:
 * - so_child_main: what the child does; it does not return.
 * - so_outputs, so_inputs: all storages of an outcome and of a problem, in one order.
 */
#ifndef ATTN_RUN_SO_INTERNAL_H
#define ATTN_RUN_SO_INTERNAL_H

#include "run_internal.h"

enum { SO_OUTPUTS = 5, SO_INPUTS = 5 };

/* Shared by parent and child; the outputs' bytes follow. */
typedef struct SoRecord {
    volatile int finished; /* the child's last word */
    AttnStatus status;
    Samples forward, backward;
    size_t peak_bytes, leaked_bytes;
    int storage_intact;
    char failure[512];
    void *volatile fault; /* address of a SIGSEGV or SIGBUS */
} SoRecord;

typedef struct SoChild {
    const char *path, *stage;
    int abi_version;
    const CliCase *c;
    Outcome *out;
    SoRecord *record;
} SoChild;

void so_outputs(Outcome *out, Storage *all[SO_OUTPUTS]);
void so_inputs(const Problem *p, const Storage *all[SO_INPUTS]);
void so_child_main(SoChild *k, const Problem *p, double seconds, int64_t mebibytes);

#endif
