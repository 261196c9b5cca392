/* SPDX-License-Identifier: MIT
 *
 * cli.c: from argv to cases. A set of flags (the command line, or one line of --cases) is read by
 * cli_read_set; cli_finish.c then checks what holds between flags. See cli.h.
 */
#include "bench.h"
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */
#include "cli_internal.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    c->variant = "all";
    c->threads = default_threads();
    c->check = 1;
    c->warmup = 3;
    c->iters = 20;
}

static int apply_size(CliCase *c, FlagId id, const char *flag, const char *text)
{
    const int64_t max = id == FLAG_D ? CLI_MAX_D : (int64_t)1 << 40;
    int64_t value = 0;
    int status = cli_read_int(flag, text, 1, max, &value);
    switch (id) {
    case FLAG_B:
        c->B = value;
        break;
    case FLAG_H:
        c->H = value;
        break;
    case FLAG_KV_HEADS:
        c->Hkv = value;
        break;
    case FLAG_SEQ:
        c->Nq = c->Nk = value;
        break;
    case FLAG_SEQ_Q:
        c->Nq = value;
        break;
    case FLAG_SEQ_KV:
        c->Nk = value;
        break;
    case FLAG_ROWS:
        c->rows = value;
        break;
    case FLAG_COLS:
        c->cols = value;
        break;
    default:
        c->d = value;
        break;
    }
    return status;
}

static int apply_name(CliCase *c, FlagId id, const char *flag, const char *text)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16", NULL};
    static const char *const masks[] = {"none", "full", "causal-upper-left", "causal-lower-right",
                                        NULL};
    static const char *const dists[] = {"normal", "outlier", "large", NULL};
    static const char *const layouts[] = {"bshd", "sbhd", "bhsd", "odd", NULL};
    static const char *const devices[] = {"auto", "cpu", "cuda", NULL};
    static const char *const bundles[] = {"encoder", NULL};
    int i = 0, status;
    switch (id) {
    case FLAG_DTYPE:
        status = cli_read_name(flag, text, dtypes, &i);
        c->dtype = (AttnDtype)i;
        break;
    case FLAG_MASK:
        status = cli_read_name(flag, text, masks, &i);
        c->mask = (AttnMask)i;
        break;
    case FLAG_DIST:
        status = cli_read_name(flag, text, dists, &i);
        c->dist = (FillDist)i;
        break;
    case FLAG_STRIDES:
        status = cli_read_name(flag, text, layouts, &i);
        c->layout = (TensorLayout)i;
        break;
    case FLAG_DEVICE:
        status = cli_read_name(flag, text, devices, &i);
        c->device = (CliDevice)i;
        break;
    default:
        status = cli_read_name(flag, text ? text : "encoder", bundles, &i);
        c->bundled = CLI_BUNDLED_ENCODER;
        break;
    }
    return status;
}

static int apply_file(Cli *cli, CliCase *c, FlagId id, const char *flag, const char *text)
{
    if (text[0] == '\0' || strncmp(text, "--", 2) == 0)
        return cli_refuse("%s: found '%s', accepted is a path", flag, text);
    switch (id) {
    case FLAG_Q:
        c->q_file = text;
        break;
    case FLAG_K:
        c->k_file = text;
        break;
    case FLAG_V:
        c->v_file = text;
        break;
    case FLAG_DO:
        c->do_file = text;
        break;
    case FLAG_MASK_FILE:
        c->mask_file = text;
        break;
    case FLAG_SAVE:
        c->save_dir = text;
        break;
    case FLAG_VARIANT_SO:
        c->variant_so = text;
        break;
    case FLAG_CASES:
        cli->cases_file = text;
        break;
    default:
        cli->json_file = text;
        break;
    }
    return 0;
}

static int apply_number(Cli *cli, CliCase *c, FlagId id, const char *flag, const char *text)
{
    int64_t value = 0;
    float real = 0.0f;
    int status = 0;
    switch (id) {
    case FLAG_WINDOW:
        c->window_given = 1;
        return cli_read_window(flag, text, &c->window_left, &c->window_right);
    case FLAG_SCALE:
        return cli_read_float(flag, text, 0, &c->scale);
    case FLAG_SOFTCAP:
        return cli_read_float(flag, text, 1, &c->softcap);
    case FLAG_SEED:
        return cli_read_u64(flag, text, &c->seed);
    case FLAG_THREADS:
        status = cli_read_int(flag, text, 1, CLI_MAX_THREADS, &value);
        c->threads = (int)value;
        return status;
    case FLAG_WARMUP:
        status = cli_read_int(flag, text, 0, BENCH_MAX_SAMPLES, &value);
        c->warmup = (int)value;
        return status;
    case FLAG_ITERS:
        status = cli_read_int(flag, text, 1, BENCH_MAX_SAMPLES, &value);
        c->iters = (int)value;
        return status;
    case FLAG_SO_MEMORY:
        return cli_read_int(flag, text, 1, (int64_t)1 << 30, &cli->so_mebibytes);
    default:
        status = cli_read_float(flag, text, 1, &real);
        if (status == 0 && !(real <= 86400.0f))
            return cli_refuse("%s: found '%s', accepted are seconds up to 86400", flag, text);
        cli->so_seconds = real;
        return status;
    }
}

static void apply_switch(Cli *cli, CliCase *c, FlagId id)
{
    switch (id) {
    case FLAG_CAUSAL:
        c->mask = ATTN_MASK_CAUSAL_LOWER_RIGHT;
        break;
    case FLAG_BACKWARD:
        c->backward = 1;
        break;
    case FLAG_CHECK:
        c->check = 1;
        break;
    case FLAG_NO_CHECK:
        c->check = 0;
        break;
    case FLAG_BENCH:
        c->bench = 1;
        break;
    case FLAG_TRACE:
        c->trace = 1;
        break;
    default:
        cli->quiet = 1;
        break;
    }
}

/* One flag; `flag` is how the user wrote it, text its value or NULL. */
static int apply(Cli *cli, CliCase *c, CliGiven *given, const CliFlag *f, const char *flag,
                 const char *text)
{
    /* The order of --causal and --mask must not decide which one wins. */
    if (f->id == FLAG_CAUSAL && GIVEN(given, FLAG_MASK) && c->mask != ATTN_MASK_CAUSAL_LOWER_RIGHT)
        return cli_refuse("--causal: found beside --mask %s, accepted is one of the two",
                          given->mask_text);
    given->bits |= (uint64_t)1 << f->id;
    switch (f->id) {
    case FLAG_B:
    case FLAG_H:
    case FLAG_KV_HEADS:
    case FLAG_SEQ:
    case FLAG_SEQ_Q:
    case FLAG_SEQ_KV:
    case FLAG_D:
    case FLAG_ROWS:
    case FLAG_COLS:
        return apply_size(c, f->id, flag, text);
    case FLAG_MASK:
        given->mask_text = text;
        if (GIVEN(given, FLAG_CAUSAL) && strcmp(text, "causal-lower-right") != 0)
            return cli_refuse("--causal: found beside --mask %s, accepted is one of the two", text);
        return apply_name(c, f->id, flag, text);
    case FLAG_DTYPE:
    case FLAG_DIST:
    case FLAG_STRIDES:
    case FLAG_DEVICE:
    case FLAG_BUNDLED:
        return apply_name(c, f->id, flag, text);
    case FLAG_VARIANT:
        c->variant = text;
        return 0;
    case FLAG_Q:
    case FLAG_K:
    case FLAG_V:
    case FLAG_DO:
    case FLAG_MASK_FILE:
    case FLAG_SAVE:
    case FLAG_VARIANT_SO:
    case FLAG_CASES:
    case FLAG_JSON:
        return apply_file(cli, c, f->id, flag, text);
    default:
        if (f->value)
            return apply_number(cli, c, f->id, flag, text);
        apply_switch(cli, c, f->id);
        return 0;
    }
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
            return EXIT_OK;
        }
        status = apply(cli, c, given, f, flag, value);
        if (status != 0)
            return status;
    }
    return CLI_CONTINUE;
}

int cli_parse(Cli *cli, const Stage *stage, int argc, char **argv)
{
    CliCase base;
    CliGiven given = {0, NULL};
    int status;
    memset(cli, 0, sizeof *cli);
    cli->stage = stage;
    cli->so_seconds = 60.0;
    cli->so_mebibytes = 4096;
    cli_refuse_context(stage->name, NULL, 0);
    cli_case_defaults(&base);
    status = cli_read_set(cli, &base, &given, argc > 1 ? argc - 1 : 0, argv + 1, 0);
    if (status == CLI_CONTINUE && cli->cases_file)
        status = cli_read_cases(cli, &base, &given);
    else if (status == CLI_CONTINUE) {
        cli->cases = malloc(sizeof *cli->cases);
        if (!cli->cases)
            return EXIT_RUNTIME;
        cli->cases[0] = base;
        cli->case_count = 1;
        status = cli_finish(cli, &cli->cases[0], &given);
        status = status == 0 ? CLI_CONTINUE : status;
    }
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
