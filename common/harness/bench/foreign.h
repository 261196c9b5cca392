/* SPDX-License-Identifier: MIT
 *
 * foreign.h: what --variant-so and --judge need of common/course.
 *
 * A submission runs in a process of its own, and what watches it and names a student's mistake is
 * the course. No stage program contains it: attn_course.so lies beside the program or in the build
 * folder, and is loaded when somebody asks for such a thing. Its functions stand in one struct,
 * under the name attn_course; what they call of this program, the dynamic linker finds here.
 *
 * Interface:
 * - Foreign: the functions.    - foreign_load: the module's; NULL: none, and `why` says it.
 */
#ifndef ATTN_FOREIGN_H
#define ATTN_FOREIGN_H

#include "harness/bench/run.h"
#include "harness/check/check.h"

typedef struct Foreign {
    /* Can this machine shut a submission in a sandbox? 1, or 0 with the reason in `why`. */
    int (*strict_here)(char *why, size_t size);
    /* run_variant_so, without --judge */
    int (*run)(RunResult *out, const Stage *stage, const Inputs *p, const CliCase *c,
               const Cli *cli, const void *setup, size_t setup_bytes);
    /* What ./ladder grade would say of this one case, on stderr. */
    void (*hint)(const Check *check, const Oracle *oracle, const RunResult *out, const CliCase *c);
    /* The life of a submission's process, if this is one by its name and what it inherits. */
    void (*serve)(const char *name, void (*take_setup)(const void *setup, size_t bytes));
} Foreign;

const Foreign *foreign_load(char *why, size_t size);

#endif
