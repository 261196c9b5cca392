/* SPDX-License-Identifier: MIT
 *
 * cli.c: from argv to cases. A set of flags (the command line, or one line of --cases) is read by
 * cli_read_set; cli_finish.c then checks what holds between flags. See cli.h.
 */
#include "bench/bench.h"
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */
#include "cli/cli_internal.h"

#include <fcntl.h>
#include <float.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *refuse_program = "";
static const char *refuse_file;
static int refuse_line;

void cli_refuse_context(const char *program, const char *file, int line)
{
    if (program)
        refuse_program = program;
    refuse_file = line > 0 ? file : NULL;
    refuse_line = line;
}

int cli_refuse(const char *format, ...)
{
    char text[2048], *p;
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    /* One sentence is one line, whatever a file name holds. */
    for (p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?';
    bench_progress_clear();
    if (refuse_file)
        fprintf(stderr, "%s: %s:%d: %s\n", refuse_program, refuse_file, refuse_line, text);
    else
        fprintf(stderr, "%s: %s\n", refuse_program, text);
    return EXIT_USAGE;
}

int cli_no_memory(const char *what)
{
    cli_refuse("%s: found that memory is short, accepted are smaller sizes", what);
    return EXIT_RUNTIME;
}

int exit_worst(int a, int b)
{
    static const int order[] = {EXIT_USAGE, EXIT_RUNTIME, EXIT_WRONG, EXIT_NO_DEVICE};
    size_t i;
    for (i = 0; i < sizeof order / sizeof *order; i++)
        if (a == order[i] || b == order[i])
            return order[i];
    return EXIT_OK;
}

static int default_threads(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < 1 ? 1 : count > CLI_MAX_THREADS ? CLI_MAX_THREADS : count;
}

void cli_case_defaults(CliCase *c)
{
    memset(c, 0, sizeof *c);
    c->window_left = c->window_right = -1;
    c->temperature = c->clip_high = 1.0f;
    c->block_q = c->block_kv = 64;
    c->ring.ranks = 4;
    c->ring.timeout_s = 60.0;
    c->variant = "all";
    c->variant_flag = "--variant";
    c->threads = default_threads();
    c->check = 1;
    c->warmup = 3;
    c->iters = 20;
}

static int refuse_unknown(const Stage *stage, const char *word, size_t length, const CliFlag *f)
{
    const CliFlag *nearest = cli_nearest_flag(stage, word, length);
    if (f)
        return cli_refuse("%.*s: found a flag that %s does not have, accepted are those of --help",
                          (int)length, word, stage->name);
    if (word[0] != '-' || length < 2)
        return cli_refuse("found '%s', accepted are flags: see --help", word);
    if (nearest)
        return cli_refuse("%.*s: found an unknown flag, did you mean %s?", (int)length, word,
                          nearest->name);
    return cli_refuse("%.*s: found an unknown flag, accepted are those of --help", (int)length,
                      word);
}

int cli_read_set(Cli *cli, CliCase *c, CliGiven *given, int count, char **words, int in_cases)
{
    int i, status;
    for (i = 0; i < count; i++) {
        const char *word = words[i], *equals = strchr(word, '='), *value = NULL;
        size_t length = equals ? (size_t)(equals - word) : strlen(word);
        const CliFlag *f = cli_find_flag(word, length);
        char flag[32];
        if (!f || (f->feature && !(f->feature & cli->stage->features)))
            return refuse_unknown(cli->stage, word, length, f);
        snprintf(flag, sizeof flag, "%.*s", (int)length, word);
        if (in_cases && f->per_program)
            return cli_refuse(
                "%s: found in a line of --cases, accepted is on the command line only", flag);
        if (equals && !f->value)
            return cli_refuse("%s: found the value '%s', accepted is none", flag, equals + 1);
        if (equals)
            value = equals + 1;
        else if (f->value && f->value[0] != '[') {
            if (i + 1 >= count)
                return cli_refuse("%s: found no value, accepted is %s %s", flag, flag, f->value);
            value = words[++i];
        }
        if (f->id == FLAG_HELP || f->id == FLAG_LIST || f->id == FLAG_VERSION) {
            (f->id == FLAG_HELP   ? cli_print_help
             : f->id == FLAG_LIST ? cli_print_list
                                  : cli_print_version)(cli->stage);
            if (fflush(stdout) == 0 && !ferror(stdout))
                return EXIT_OK;
            cli_refuse("%s: found that the standard output did not take the page, accepted is one "
                       "that does",
                       flag);
            return EXIT_RUNTIME;
        }
        status = cli_apply(cli, c, given, f, flag, value);
        if (status != 0)
            return status;
    }
    return CLI_CONTINUE;
}

/* Of an absolute path only the file's name: a row says nothing about the folders of a machine. */
void cli_keep_command(Cli *cli, const char *program, int argc, char **argv)
{
    size_t used = (size_t)snprintf(cli->command, sizeof cli->command, "%s", program);
    for (int i = 1; i < argc && used < sizeof cli->command; i++) {
        const char *equals = argv[i][0] == '-' ? strchr(argv[i], '=') : NULL;
        const char *value = equals ? equals + 1 : argv[i];
        const char *name = value[0] == '/' ? strrchr(value, '/') + 1 : value;
        used += (size_t)snprintf(cli->command + used, sizeof cli->command - used, " %.*s%s",
                                 (int)(value - argv[i]), argv[i], name);
    }
}

/* A program that was started with a closed standard output (`>&-`) would give its number to the
 * first file that it opens, and the table would be written into the rows of --json. So what is
 * closed becomes a file that takes nothing (a standard input: that gives nothing). */
static void hold_standard_files(void)
{
    for (int number = 0; number < 3; number++)
        if (fcntl(number, F_GETFD) < 0 && open("/dev/null", number ? O_RDONLY : O_WRONLY) < 0)
            break;
}

int cli_parse(Cli *cli, const Stage *stage, int argc, char **argv)
{
    CliCase base;
    CliGiven given = {{0}, NULL, NULL};
    volatile float least = FLT_MIN; /* is half of it 0? Nothing that the oracle says holds then. */
    int status;
    hold_standard_files();
    signal(SIGXFSZ, SIG_IGN); /* a write over the limit then fails like one on a full disk */
    memset(cli, 0, sizeof *cli);
    cli->stage = stage;
    cli->so_seconds = 60.0;
    cli->so_mebibytes = 4096;
    cli->so_sandbox = CLI_SANDBOX_BEST;
    cli_refuse_context(stage->name, NULL, 0);
    cli_case_defaults(&base);
    base.backward = (stage->features & STAGE_ALWAYS_BACKWARD) != 0;
    cli_keep_command(cli, stage->name, argc, argv);
    status = cli_read_set(cli, &base, &given, argc > 1 ? argc - 1 : 0, argv + 1, 0);
    if (status == CLI_CONTINUE && least * 0.5f == 0.0f) {
        cli_refuse("found a processor that takes numbers below 2^-126 for zero, accepted is a "
                   "start without the library (LD_PRELOAD, or linked fast math) that set this");
        status = EXIT_RUNTIME;
    }
    if (status == CLI_CONTINUE && cli->cases_file)
        status = cli_read_cases(cli, &base, &given);
    else if (status == CLI_CONTINUE) {
        cli->cases = malloc(sizeof *cli->cases);
        if (!cli->cases)
            return cli_no_memory("the command line");
        cli->cases[0] = base;
        cli->case_count = 1;
        status = cli_finish(cli, &cli->cases[0], &given);
        status = status == 0 ? CLI_CONTINUE : status;
    }
    for (int i = 0; i < cli->case_count && cli->cases; i++)
        cli->quiet |= cli->cases[i].step; /* the table would push the last page off the screen */
    if (status != CLI_CONTINUE)
        cli_free(cli);
    return status;
}

void cli_free(Cli *cli)
{
    free(cli->cases);
    free(cli->storage);
    cli->cases = NULL;
    cli->storage = NULL;
    cli->case_count = 0;
}
