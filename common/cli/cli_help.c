/* SPDX-License-Identifier: MIT
 *
 * cli_help.c: what is printed from the table of flags and of variants: --help, --list, --version.
 *
 * Interface: cli_print_help, cli_print_list, cli_print_version (cli_internal.h).
 */
#include "cli/cli_internal.h"
#include "report/report.h"
#include "report/source_hash.h"

#include <stdio.h>

void cli_print_help(const Stage *stage)
{
    const char *heading = NULL;
    int i;
    printf("%s: %s\n\nusage: %s [flags]        (--flag VALUE or --flag=VALUE)\n", stage->name,
           stage->question, stage->name);
    for (i = 0; i < FLAG_COUNT; i++) {
        const CliFlag *f = &cli_flags[i];
        char left[128];
        int length;
        heading = f->group ? f->group : heading;
        if (f->feature && !(f->feature & stage->features))
            continue;
        if (heading) /* of the first flag of its group that this stage has */
            printf("\n%s\n", heading);
        heading = NULL;
        length = snprintf(left, sizeof left, "  %s%s%s%s%s", f->alias ? f->alias : "",
                          f->alias ? " " : "", f->name, f->value && f->value[0] != '[' ? " " : "",
                          f->value ? f->value : "");
        printf(length > 27 ? "%s\n%30s%s\n" : "%-30s%s%s\n", left, "", f->help);
    }
    if (stage->features & STAGE_HAS_OFFLINE)
        printf("\nWithout sizes, masks, a window and input files: causal, window 16.\n");
    printf("\nExit status: 0 right, 1 wrong answer or failed --variant-so, 2 bad usage or input,\n"
           "3 failure at run time, 77 hardware asked for is missing; of several cases the worst\n"
           "(2, then 3, then 1, then 77).\n"
           "\nExamples\n"
           "  %s -N 300 --heads 8 --kv-heads 2 --causal --dtype bf16\n"
           "  %s --bundled --bench --json results.jsonl\n",
           stage->name, stage->name);
}

void cli_print_list(const Stage *stage)
{
    int i;
    for (i = 0; i < stage->variant_count; i++) {
        const Variant *v = &stage->variants[i];
        const int ranks = (v->traits & VARIANT_RANKS) != 0;
        const char *passes = variant_has(v, 1) || ranks ? "forward,backward"
                             : variant_has(v, 0)        ? "forward"
                                                        : "(not built)"; /* it needs CUDA */
        const char *dtypes = v->dtypes == DTYPES_ALL     ? "f32,f16,bf16"
                             : v->dtypes == DTYPES_F32   ? "f32"
                             : v->dtypes == DTYPES_16BIT ? "f16,bf16"
                                                         : "other";
        printf("%-20s  %-4s  %-12s  %-16s  %-5s  %s\n", v->name,
               v->device == ON_CPU ? "cpu" : "cuda", dtypes, passes,
               v->traits & VARIANT_PLAIN  ? "plain"
               : v->traits & VARIANT_FULL ? "full"
                                          : "any",
               v->idea);
    }
}

void cli_print_version(const Stage *stage)
{
    printf("%s (Attention Ladder) %s, ABI version %d, JSON schema %d\n", stage->name,
           build_revision(), stage->abi_version, REPORT_SCHEMA);
}
