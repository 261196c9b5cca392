/* SPDX-License-Identifier: MIT
 *
 * exp.c: which compiled copy of the row functions this CPU runs.
 *
 * A binary that must start on any x86-64 may use no AVX outside code that was asked for by a check
 * at run time. The check is made once; after that a call is one indirect jump.
 * ATTN_ISA=portable|avx2|avx512 forces a copy, so that a test can run each; what this CPU or this
 * build does not have is replaced by the best one below it, with a word on stderr.
 *
 * Interface: exp_rows.h, exp_isa.h, and exp_isa of vector.h.
 */
#include "units/exp_rows.h"
#include "units/vector.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "attn_config.h"
#include "exp_isa.c" /* the portable copy, compiled with this file's flags */
#include "units/exp_isa.h"

const ExpIsa *const exp_isa_table[] = {
    &exp_isa_portable,
#ifdef HAVE_ISA_AVX2
    &exp_isa_avx2,
#endif
#ifdef HAVE_ISA_AVX512
    &exp_isa_avx512,
#endif
};
const int exp_isa_count = sizeof exp_isa_table / sizeof exp_isa_table[0];

int exp_isa_usable(const ExpIsa *isa)
{
#ifdef __x86_64__
    if (strcmp(isa->name, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (strcmp(isa->name, "avx512") == 0) /* the four that the file is compiled for */
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
    return strcmp(isa->name, "portable") == 0;
}

/* Names in rising order, whether or not this build has the copy. */
static int isa_rank(const char *name)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};
    int t;
    for (t = 0; t < 3; t++)
        if (strcmp(name, names[t]) == 0)
            return t;
    return -1;
}

const ExpIsa *exp_isa_choose(const char *name)
{
    const ExpIsa *best = &exp_isa_portable;
    const int wanted = name && *name ? isa_rank(name) : 2;
    int t;
    for (t = 0; t < exp_isa_count; t++)
        if (exp_isa_usable(exp_isa_table[t]) &&
            (wanted < 0 || isa_rank(exp_isa_table[t]->name) <= wanted))
            best = exp_isa_table[t];
    if (name && *name && strcmp(name, best->name) != 0)
        fprintf(stderr, "ATTN_ISA=%s: accepted are portable, avx2 and avx512%s; using %s\n", name,
                wanted < 0 ? "" : " where CPU and build have them", best->name);
    return best;
}

static const ExpIsa *chosen(void)
{
    static _Atomic(const ExpIsa *) once;
    const ExpIsa *isa = atomic_load_explicit(&once, memory_order_acquire);
    if (!isa) { /* two threads may both get here: they find the same answer */
        isa = exp_isa_choose(getenv("ATTN_ISA"));
        atomic_store_explicit(&once, isa, memory_order_release);
    }
    return isa;
}

float row_max(const float *s, int64_t n)
{
    return chosen()->max(s, n);
}

float softmax_exp_row(const float *s, float *p, int64_t n, float max)
{
    return chosen()->exp_row(s, p, n, max);
}

const char *exp_isa(void)
{
    return chosen()->name;
}
