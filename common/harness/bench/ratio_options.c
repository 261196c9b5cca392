/* SPDX-License-Identifier: MIT
 *
 * ratio_options.c: the few flags of a bench_ratio program, and which sgemm it runs against.
 *
 * Interface: ratio_read_options (ratio_options.h).
 */
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */
#include "harness/bench/ratio_options.h"

#include "attn_config.h"
#include "harness/bench/ratio.h"
#include "harness/cli/cli.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const usage =
    "usage: bench_ratio [--rounds R] [--threads T] [--seq N,N,...] [--sgemm N] [--no-check] "
    "[--json FILE]\n"
    "Ratio of this stage's fastest CPU variant to OpenBLAS sgemm, f32, B=1 H=8, d=64 and 128, "
    "full\n"
    "and causal (stage 05: a causal window), with one thread; then with T threads (default 2, if "
    "the\n"
    "machine has them), H=1 too: speed-up over one thread, as a share of sgemm's speed-up. Medians "
    "of\n"
    "R rounds (default 7).\n";

/* A measure that runs at a quarter of the processor's speed is none: start once more with the sgemm
 * that fits. Where the user has chosen one, it stays. */
static void choose_sgemm(char **argv)
{
    const char *core, *best = ratio_best_isa(&core);
    if (strcmp(best, ratio_isa()) == 0 || getenv("OPENBLAS_CORETYPE"))
        return;
    fprintf(stderr, "OpenBLAS does not know this processor: OPENBLAS_CORETYPE=%s\n", core);
    setenv("OPENBLAS_CORETYPE", core, 1);
    execv("/proc/self/exe", argv);
}

static int64_t read_number(const char *text, const char **end)
{
    char *behind;
    long long value = strtoll(text, &behind, 10);
    *end = behind;
    return behind != text && value >= 1 && value <= 1000000 ? value : 0;
}

static int read_lengths(RatioOptions *o, const char *text)
{
    o->length_count = 0;
    do {
        const int64_t N = read_number(text, &text);
        if (N == 0 || o->length_count == 8)
            return -1;
        o->lengths[o->length_count++] = N;
    } while (*text++ == ',');
    return text[-1] == '\0' ? 0 : -1;
}

static int read_option(RatioOptions *o, const char *flag, const char *value)
{
    struct {
        const char *flag;
        int *to;
        int most;
    } const numbers[] = {{"--rounds", &o->rounds, 100},
                         {"--threads", &o->threads, 1024},
                         {"--sgemm", &o->sgemm_n, 8192}};
    const char *end;
    for (int i = 0; i < 3; i++)
        if (strcmp(flag, numbers[i].flag) == 0) {
            const int64_t number = read_number(value, &end);
            if (number == 0 || *end || number > numbers[i].most)
                return cli_refuse("%s: found '%s', accepted is 1 to %d", flag, value,
                                  numbers[i].most);
            *numbers[i].to = (int)number;
            return EXIT_OK;
        }
    if (strcmp(flag, "--seq") == 0)
        return read_lengths(o, value) == 0
                   ? EXIT_OK
                   : cli_refuse("--seq: found '%s', accepted are up to 8 lengths N,N,...", value);
    if (strcmp(flag, "--json") == 0) {
        o->json = value;
        return EXIT_OK;
    }
    return cli_refuse("found '%s', accepted are the flags of --help", flag);
}

int ratio_read_options(RatioOptions *o, int windowed, int argc, char **argv)
{
    cpu_set_t set;
    const int two = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 1;
    *o = (RatioOptions){7, two ? 2 : 1, 2048, 1, {1024, 2048, 4096}, 3, NULL};
    if (windowed) {
        o->lengths[0] = 8192;
        o->lengths[1] = 65536;
        o->length_count = 2;
    }
    cli_refuse_context("bench_ratio", NULL, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return EXIT_OK;
        }
        if (strcmp(argv[i], "--no-check") == 0)
            o->check = 0;
        else if (i + 1 == argc)
            return cli_refuse("'%s': found no value, accepted are the flags of --help", argv[i]);
        else if (read_option(o, argv[i], argv[i + 1]) != EXIT_OK)
            return EXIT_USAGE;
        else
            i++;
    }
#ifdef HAVE_OPENBLAS
    choose_sgemm(argv);
    return CLI_CONTINUE;
#else
    cli_refuse(
        "found a build without OpenBLAS, accepted is one that has something to compare with");
    return EXIT_NO_DEVICE;
#endif
}
