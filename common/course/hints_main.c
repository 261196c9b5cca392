/* SPDX-License-Identifier: MIT
 *
 * attn_hints: which mistake explains these outputs?
 *
 *     attn_hints --cases FILE --found DIR [--found DIR]...     one JSON object a folder
 *
 * A folder holds what a program of the suite, or any program, computed: DIR/<line>/o.npy and
 * lse.npy, with gradients dq.npy, dk.npy and dv.npy (dwq.npy and dwk.npy with --qk-norm), for each
 * line of FILE, as --cases FILE --save DIR writes them. A line whose files are not there (a skipped
 * case, a crash) says nothing. The reference of a line is computed once for all folders. A line or
 * a folder that is refused is left out, with a sentence; the others are judged.
 *
 * Exit status: 0, whatever was found; 2 for bad usage or bad input, such as a folder without any
 * line; 3 when memory is short or nobody takes the answers.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "course/hints.h"
#include "harness/check/judge.h"
#include "harness/cli/cli.h"
#include "harness/io/inputs.h"
#include "harness/io/npy.h"

static const Stage stage = {"attn_hints",
                            "common/course",
                            "Which mistake is it?",
                            0,
                            STAGE_HAS_BACKWARD | STAGE_HAS_SRAM | STAGE_HAS_VARLEN |
                                STAGE_HAS_OFFLINE,
                            NULL,
                            0};

/* A line of the file, with what one folder says about it at a time. */
typedef struct Line {
    const CliCase *flags;
    Inputs problem;
    Reference reference;
    HintCase *hints;
    AttnArgs found;
    AttnOptions options; /* of found, with --qk-norm */
    float *values[7];    /* o lse dq dk dv dwq dwk */
    Check check;
    int present;
} Line;

static int make_line(Line *l, const CliCase *flags)
{
    cli_refuse_context(NULL, flags->cases_file, flags->line);
    int status = inputs_make(&l->problem, flags);
    l->flags = flags;
    if (status != EXIT_OK)
        return status;
    status = reference_make(&l->reference, &l->problem, flags);
    if (status == EXIT_OK)
        l->hints = hint_case_new(&l->problem.args, &l->reference.oracle, flags->backward, 4.0);
    return status;
}

static void free_line(Line *l)
{
    hint_case_free(l->hints);
    reference_free(&l->reference);
    inputs_free(&l->problem);
}

/* --- what was found ----------------------------------------------------------------------------*/

static Tensor plain_tensor(float *data, const Tensor *like)
{
    const int64_t *n = like->shape;
    Tensor t = {
        data, ATTN_F32, {n[0], n[1], n[2], n[3]}, {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1}};
    return t;
}

/* The values of a file as float, NULL without the file. */
static float *read_values(const char *folder, int line, const char *name, int64_t count,
                          int *status)
{
    char path[4096], error[NPY_ERROR_SIZE];
    NpyArray array;
    FILE *there;
    float *values = NULL;
    snprintf(path, sizeof path, "%s/%d/%s.npy", folder, line, name);
    there = fopen(path, "rb");
    if (!there)
        return NULL;
    fclose(there);
    if (npy_read(path, &array, error) != 0) {
        *status = cli_refuse("%s", error);
        return NULL;
    }
    if (array.count != count)
        *status = cli_refuse("--found: found %" PRId64 " values in %s, accepted are %" PRId64,
                             array.count, path, count);
    else
        values = malloc((size_t)count * sizeof *values);
    for (int64_t n = 0; values && n < count; n++)
        values[n] = (float)npy_value(&array, n);
    npy_free(&array);
    return values;
}

static int read_line(Line *l, const char *folder)
{
    static const char *const names[] = {"o", "lse", "dq", "dk", "dv", "dwq", "dwk"};
    const AttnArgs *a = &l->problem.args;
    const int64_t q = tensor_count(&a->Q), k = tensor_count(&a->K);
    const int64_t counts[] = {q,
                              a->shape.B * a->shape.H * a->shape.Nq,
                              q,
                              k,
                              k,
                              a->shape.H * a->shape.d,
                              a->shape.Hkv * a->shape.d};
    const int files = !l->flags->backward ? 2 : l->flags->norm_group ? 7 : 5;
    int status = EXIT_OK, line = l->flags->line;
    l->present = 1;
    l->found = *a;
    for (int n = 0; n < files && status == EXIT_OK; n++) {
        l->values[n] = read_values(folder, line, names[n], counts[n], &status);
        l->present &= l->values[n] != NULL;
    }
    if (!l->present)
        return status;
    l->found.O = plain_tensor(l->values[0], &a->Q);
    l->found.lse = l->values[1];
    l->found.dQ = plain_tensor(l->values[2], &a->Q);
    l->found.dK = plain_tensor(l->values[3], &a->K);
    l->found.dV = plain_tensor(l->values[4], &a->K);
    if (files == 7) {
        l->options = *a->options;
        l->options.dwq = l->values[5];
        l->options.dwk = l->values[6];
        l->found.options = &l->options;
    }
    memset(&l->check, 0, sizeof l->check);
    l->check.inputs_intact = l->check.storage_intact = 1;
    check_outputs(&l->check, &l->reference.oracle, &l->found, l->flags->backward, 4.0);
    return status;
}

static void forget_line(Line *l)
{
    for (int n = 0; n < 7; n++) {
        free(l->values[n]);
        l->values[n] = NULL;
    }
    l->present = 0;
}

/* --- what is said ------------------------------------------------------------------------------*/

static void print_string(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
    putchar('"');
}

static void print_line(const Line *l)
{
    int first = 1;
    const HintRun run = {l->hints, &l->found, &l->check, 0, 0};
    printf("{\"line\": %d, \"pass\": %s, \"errors\": [", l->flags->line,
           l->check.pass ? "true" : "false");
    for (int a = 0; a < CHECK_COUNT; a++) {
        HintSymptom symptom;
        const CheckArray *array = &l->check.array[a];
        if (!array->checked || !array->off)
            continue;
        hint_symptom(&symptom, &run, a);
        printf("%s{\"array\": \"%s\", \"off\": %" PRId64 ", \"of\": %" PRId64
               ", \"code\": \"%s\", ",
               first ? "" : ", ", array->name, array->off, array->compared, symptom.code);
        printf("\"hint\": ");
        print_string(symptom.sentence);
        printf("}");
        first = 0;
    }
    printf("]}");
}

static int judge_folder(Line *lines, int count, const char *folder)
{
    HintRun *runs = calloc((size_t)count + 1, sizeof *runs);
    HintVerdict verdict;
    int present = 0, first = 1, status = runs ? EXIT_OK : cli_no_memory("--found");
    for (int n = 0; n < count && status == EXIT_OK; n++) {
        status = read_line(&lines[n], folder);
        if (lines[n].present)
            runs[present++] = (HintRun){lines[n].hints, &lines[n].found, &lines[n].check, 0, 0};
    }
    if (status == EXIT_OK && !present)
        status = cli_refuse("--found: found no outputs of any line in %s, accepted is a folder "
                            "with <line>/o.npy and the others",
                            folder);
    if (status == EXIT_OK && hint_submission(&verdict, runs, present) != 0)
        status = cli_no_memory("--found");
    if (status == EXIT_OK) {
        printf("{\"submission\": ");
        print_string(folder);
        printf(", \"code\": \"%s\", \"hint\": ", verdict.code);
        print_string(verdict.sentence);
        printf(", \"cases\": [");
        for (int n = 0; n < count; n++) {
            if (!lines[n].present)
                continue;
            printf("%s", first ? "" : ", ");
            print_line(&lines[n]);
            first = 0;
        }
        printf("]}\n");
    }
    for (int n = 0; n < count; n++)
        forget_line(&lines[n]);
    free(runs);
    return status;
}

static int judge_all(const Cli *cli, const char *const *folders, int count)
{
    Line *lines = calloc((size_t)cli->case_count, sizeof *lines);
    int status = lines ? EXIT_OK : cli_no_memory("--cases"), made = 0;
    if (status == EXIT_OK && count == 0)
        status = cli_refuse("--found: found none, accepted is a folder with outputs");
    for (int n = 0; status != EXIT_RUNTIME && count > 0 && n < cli->case_count; n++) {
        const int failed = make_line(&lines[made], &cli->cases[n]);
        status = exit_worst(status, failed);
        if (failed)
            free_line(&lines[made--]);
        made++;
    }
    cli_refuse_context(NULL, NULL, 0);
    for (int n = 0; n < count && made > 0; n++)
        status = exit_worst(status, judge_folder(lines, made, folders[n]));
    for (int n = 0; n < made; n++)
        free_line(&lines[n]);
    free(lines);
    return status;
}

int main(int argc, char **argv)
{
    const char **folders = calloc((size_t)argc + 1, sizeof *folders);
    char **words = calloc((size_t)argc + 1, sizeof *words);
    int folder_count = 0, word_count = 0, status = EXIT_RUNTIME;
    Cli cli;
    if (folders && words) {
        for (int n = 0; n < argc; n++)
            if (strcmp(argv[n], "--found") == 0 && n + 1 < argc)
                folders[folder_count++] = argv[++n];
            else
                words[word_count++] = argv[n];
        status = cli_parse(&cli, &stage, word_count, words);
        if (status == CLI_CONTINUE) {
            status = judge_all(&cli, folders, folder_count);
            cli_free(&cli);
            if (fflush(stdout) != 0 || ferror(stdout)) {
                cli_refuse("the answers could not be written to the standard output");
                status = EXIT_RUNTIME;
            }
        }
    }
    free(folders);
    free(words);
    return status;
}
