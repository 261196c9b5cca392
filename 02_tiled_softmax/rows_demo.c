/* SPDX-License-Identifier: MIT
 *
 * rows_demo.c: what exp without the maximum costs, as numbers for a figure.
 *
 * Scores of growing magnitude go through unsafe_no_max and through the safe v0 and v1. Printed for
 * each magnitude: rows with a non-finite result, and the worst relative error of the other rows.
 * The unsafe form must be wrong on large scores and is no variant, so nothing fails because of it;
 * the safe forms are judged as always.
 */
#include "rows_mode.h"
#include "rows_oracle.h"

#include <stdlib.h>

#define DEMO_ROWS 64
#define DEMO_COLS 1024

typedef struct DemoLine {
    float magnitude;      /* factor on N(0,1) scores */
    int64_t unsafe_rows;  /* rows with a non-finite probability */
    double unsafe_error;  /* worst relative error over the finite rows */
    double safe_error[2]; /* of v0_three_pass and v1_online */
    int safe_pass;
} DemoLine;

static DemoLine demo_line(float magnitude, const CliCase *c, float *x, float *y, float *lse)
{
    static const SoftmaxFn safe[2] = {softmax_v0_three_pass, softmax_v1_online};
    SoftmaxArgs args = {x, y, lse, DEMO_ROWS, DEMO_COLS, 1, NULL, NULL};
    DemoLine line = {magnitude, 0, 0.0, {0.0, 0.0}, 1};
    rows_fill(x, DEMO_ROWS, DEMO_COLS, c->seed, FILL_NORMAL, magnitude, 1);
    for (int i = 0; i < 2; i++) {
        safe[i](&args);
        RowsVerdict v = rows_judge(x, y, lse, DEMO_ROWS, DEMO_COLS, 1);
        line.safe_error[i] = v.worst_error;
        line.safe_pass = line.safe_pass && !v.off;
        if (v.off)
            rows_explain(&v, i ? "v1_online" : "v0_three_pass", stderr);
    }
    softmax_unsafe_no_max(&args);
    for (int64_t row = 0; row < DEMO_ROWS; row++) {
        int64_t at = row * DEMO_COLS;
        RowsVerdict v = rows_judge(x + at, y + at, lse + row, 1, DEMO_COLS, 1);
        line.unsafe_rows += v.nonfinite > 0;
        if (v.nonfinite == 0 && v.worst_error > line.unsafe_error)
            line.unsafe_error = v.worst_error;
    }
    return line;
}

static void demo_print(const Report *report, const DemoLine *line)
{
    if (!report->cli->quiet)
        printf("# unsafe exp without max: scores %7g * N(0,1): %2d of %d rows non-finite, worst "
               "error of the others %8.1e; with max %8.1e\n",
               (double)line->magnitude, (int)line->unsafe_rows, DEMO_ROWS, line->unsafe_error,
               line->safe_error[0]);
    if (report->json)
        fprintf(report->json,
                "{\"schema\":%d,\"stage\":\"tiled_softmax\",\"kind\":\"unsafe_demo\","
                "\"rows\":%d,\"cols\":%d,\"magnitude\":%g,\"unsafe_nonfinite_rows\":%d,"
                "\"unsafe_worst_error\":%.6g,\"three_pass_worst_error\":%.6g,"
                "\"online_worst_error\":%.6g,\"pass\":%s}\n",
                REPORT_SCHEMA, DEMO_ROWS, DEMO_COLS, (double)line->magnitude,
                (int)line->unsafe_rows, line->unsafe_error, line->safe_error[0],
                line->safe_error[1], line->safe_pass ? "true" : "false");
}

int demo_unsafe(Report *report, const CliCase *c)
{
    static const float magnitudes[] = {1, 3, 10, 20, 25, 30, 50, 100, 1000, 10000};
    float *x = malloc((2 * DEMO_ROWS * DEMO_COLS + DEMO_ROWS) * sizeof *x);
    int status = EXIT_OK;
    if (!x)
        return EXIT_RUNTIME;
    for (size_t i = 0; i < sizeof magnitudes / sizeof *magnitudes; i++) {
        float *y = x + DEMO_ROWS * DEMO_COLS, *lse = y + DEMO_ROWS * DEMO_COLS;
        DemoLine line = demo_line(magnitudes[i], c, x, y, lse);
        demo_print(report, &line);
        if (!line.safe_pass)
            status = EXIT_WRONG;
    }
    free(x);
    return status;
}
