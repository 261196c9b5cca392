/* SPDX-License-Identifier: MIT
 *
 * offline_case.h: a line of flags of stage 05 becomes a problem; files for it. For the tests of
 * flags and inputs.
 *
 * Interface:
 * - Made, make, expect_made, expect_refused, drop: parse a line and make its problem.
 * - write_tensors, value_at: Q, K and V in a layout and packing. write_integers: cu_seqlens.
 * - enter_folder, leave_folder: group setup and teardown.
 */
#ifndef OFFLINE_CASE_H
#define OFFLINE_CASE_H

#include <fcntl.h>
#include <unistd.h>

#include "unit.h"

#include "bench/run_internal.h"
#include "io/npy.h"

static inline AttnStatus nothing(const AttnArgs *args)
{
    (void)args;
    return ATTN_OK;
}

static const Variant variants[] = {{"v0_plain", ON_CPU, DTYPES_ALL, nothing, nothing, 0, "plain"}};
static const Stage stage = {"unit",
                            "00_unit",
                            "?",
                            1,
                            STAGE_HAS_BACKWARD | STAGE_HAS_VARLEN | STAGE_HAS_OFFLINE |
                                STAGE_HAS_TRACE,
                            variants,
                            1};

static char folder[64];

static inline int enter_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "test_problem.XXXXXX");
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static inline int leave_folder(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return chdir("..") == 0 && system(command) == 0 ? 0 : -1;
}

/* --- a case ------------------------------------------------------------------------------------*/

typedef struct Made {
    Cli cli;
    Problem problem;
} Made;

/* Parses a line of flags and makes its problem, with stderr closed: EXIT_OK, or the status that it
 * ended with. */
static inline int make(Made *m, const char *line)
{
    static char text[4096];
    char *argv[64] = {"unit"}, *rest = NULL;
    const int null = open("/dev/null", O_WRONLY), saved = dup(2);
    int argc = 1, status;
    snprintf(text, sizeof text, "%s", line);
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    fflush(NULL);
    dup2(null, 2);
    status = cli_parse(&m->cli, &stage, argc, argv);
    if (status == CLI_CONTINUE) {
        status = problem_make(&m->problem, &m->cli.cases[0]);
        if (status != EXIT_OK)
            cli_free(&m->cli);
    }
    fflush(NULL);
    dup2(saved, 2);
    close(saved);
    close(null);
    return status;
}

static inline void expect_made(Made *m, const char *line)
{
    if (make(m, line) != EXIT_OK)
        fail_msg("refused: %s", line);
}

static inline void expect_refused(const char *line)
{
    Made m;
    const int status = make(&m, line);
    if (status != EXIT_USAGE)
        fail_msg("status %d: %s", status, line);
}

static inline void drop(Made *m)
{
    problem_free(&m->problem);
    cli_free(&m->cli);
}

/* --- files: value (b, n, h, x) of tensor t is 1000 t + 100 b + 10 n + h + x / 8 ----------------*/

enum { B = 2, N = 3, H = 4, HKV = 2, D = 8 };

static inline float value_at(int t, int b, int n, int h, int x)
{
    return (float)(1000 * t + 100 * b + 10 * n + h) + (float)x / 8.0f;
}

/* Tensors `first` .. `last` (0 Q, 1 K, 2 V) side by side on the heads axis. */
static inline void write_tensors(const char *path, CliTensors layout, int first, int last)
{
    static float data[B * N * (H + 2 * HKV) * D];
    char error[NPY_ERROR_SIZE];
    int64_t shape[4] = {B, N, 0, D};
    float *to = data;
    for (int t = first; t <= last; t++)
        shape[2] += t == 0 ? H : HKV;
    for (int outer = 0; outer < (layout == CLI_SBHD ? N : B); outer++)
        for (int inner = 0; inner < (layout == CLI_SBHD ? B : N); inner++)
            for (int t = first; t <= last; t++)
                for (int h = 0; h < (t == 0 ? H : HKV); h++)
                    for (int x = 0; x < D; x++)
                        *to++ = layout == CLI_SBHD ? value_at(t, inner, outer, h, x)
                                                   : value_at(t, outer, inner, h, x);
    if (layout == CLI_SBHD) {
        shape[0] = N;
        shape[1] = B;
    } else if (layout == CLI_THD) { /* two sequences of three tokens each */
        shape[0] = B * N;
        shape[1] = shape[2];
        shape[2] = D;
    }
    assert_int_equal(npy_write_f32(path, data, layout == CLI_THD ? 3 : 4, shape, error), 0);
}

static inline void write_integers(const char *path, int wide, int count, const int64_t *values)
{
    char head[128];
    FILE *f = fopen(path, "wb");
    int length =
        snprintf(head, sizeof head, "{'descr': '<i%d', 'fortran_order': False, 'shape': (%d,), }",
                 wide ? 8 : 4, count);
    assert_non_null(f);
    fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, f); /* 118 bytes: the data begin at 128 */
    fprintf(f, "%-117.*s\n", length, head);
    for (int i = 0; i < count; i++) {
        const int32_t narrow = (int32_t)values[i];
        fwrite(wide ? (const void *)&values[i] : (const void *)&narrow, wide ? 8 : 4, 1, f);
    }
    fclose(f);
}

#endif
