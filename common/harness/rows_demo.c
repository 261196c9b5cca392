/* SPDX-License-Identifier: MIT
 *
 * rows_demo.c: what exp without the maximum costs, as numbers for a figure.
 *
 * The unsafe form is a wrong softmax that everybody writes once:
 *
 *     y_c = exp(x_c) / sum_c exp(x_c)
 *
 * In real numbers this is the same function as v0's, with one pass less. In float32, exp(x)
 * overflows to infinity above x = 88.72, and inf / inf is NaN; below x = -103.97 it is exactly 0,
 * and a row whose scores are all that small divides 0 by 0. Attention scores of trained models
 * reach hundreds.
 *
 * Scores of growing magnitude go through it and through the safe v0 and v1. Printed for
 * each magnitude: rows with a non-finite result, and the worst relative error of the other rows.
 * The unsafe form must be wrong on large scores and is no variant, so nothing fails because of it;
 * the safe forms are judged as always.
 */
#include "harness/rows_mode.h"
#include "harness/rows_oracle.h"

#include <math.h>
#include <stdlib.h>

#define DEMO_ROWS 64
#define DEMO_COLS 1024

/* What one softmax did on scores of one magnitude. */
typedef struct DemoPoint {
    const char *name;
    double score_max;       /* largest |score| */
    double error;           /* worst relative error in rows that stayed finite; NaN: none did */
    int64_t nonfinite_rows; /* rows with a probability that is NaN or infinite */
    int pass;               /* 1 or 0 */
} DemoPoint;

static void unsafe_no_max(const SoftmaxArgs *args)
{
    int64_t cols = args->cols;
    for (int64_t row = 0; row < args->rows; row++) {
        const float *x = args->x + row * cols; /* [cols] */
        float *y = args->y + row * cols;       /* [cols] */
        float sum = 0.0f;
        for (int64_t c = 0; c < cols; c++)
            sum += expf(x[c]);
        for (int64_t c = 0; c < cols; c++)
            y[c] = expf(x[c]) / sum;
        if (args->lse)
            args->lse[row] = logf(sum);
    }
}

enum { UNSAFE, FORMS = 3 };
static const char *const forms[FORMS] = {"unsafe_no_max", "v0_three_pass", "v1_online"};

static DemoPoint demo_point(const RowsTable *table, int form, const float *x, float *y, float *lse)
{
    SoftmaxArgs args = {x, y, lse, DEMO_ROWS, DEMO_COLS, 1, NULL, NULL};
    DemoPoint point = {forms[form], 0.0, NAN, 0, 1};
    if (form == UNSAFE)
        unsafe_no_max(&args);
    else
        rows_find(table, forms[form], ON_CPU)->rung->softmax(&args);
    for (int64_t e = 0; e < DEMO_ROWS * DEMO_COLS; e++)
        if (fabsf(x[e]) > point.score_max)
            point.score_max = fabsf(x[e]);
    for (int64_t row = 0; row < DEMO_ROWS; row++) {
        int64_t at = row * DEMO_COLS;
        RowsVerdict v = rows_judge(x + at, y + at, lse + row, 1, DEMO_COLS, 1);
        point.pass = point.pass && !v.off;
        point.nonfinite_rows += v.nonfinite > 0;
        if (v.nonfinite == 0)
            point.error = fmax(point.error, v.worst_error); /* fmax takes the number, not NaN */
        if (v.off && form != UNSAFE)
            rows_explain(&v, point.name, stderr);
    }
    return point;
}

/* pass is null for the unsafe form: it is an experiment, not an answer. */
static void demo_json(Report *report, const DemoPoint *point, int safe)
{
    FILE *f = report_json_file(report);
    if (!f)
        return;
    fprintf(f,
            "{\"schema\":%d,\"stage\":\"tiled_softmax\",\"experiment\":\"score_range\","
            "\"variant\":\"%s\",\"device\":\"cpu\",\"rows\":%d,\"cols\":%d,\"score_max\":%.6g,",
            REPORT_SCHEMA, point->name, DEMO_ROWS, DEMO_COLS, point->score_max);
    if (isnan(point->error))
        fprintf(f, "\"error\":null,");
    else
        fprintf(f, "\"error\":%.6g,", point->error);
    fprintf(f, "\"nonfinite\":%d,\"pass\":%s", (int)point->nonfinite_rows,
            !safe         ? "null"
            : point->pass ? "true"
                          : "false");
    report_json_end(report);
}

int demo_unsafe(const RowsTable *table, Report *report, const CliCase *c)
{
    static const float magnitudes[] = {1, 3, 10, 20, 25, 30, 50, 100, 1000, 10000};
    float *x = malloc((2 * DEMO_ROWS * DEMO_COLS + DEMO_ROWS) * sizeof *x);
    int status = EXIT_OK;
    if (!x)
        return cli_no_memory("--rows --cols");
    for (size_t i = 0; i < sizeof magnitudes / sizeof *magnitudes; i++) {
        float *y = x + DEMO_ROWS * DEMO_COLS, *lse = y + DEMO_ROWS * DEMO_COLS;
        DemoPoint point[FORMS];
        rows_fill(x, DEMO_ROWS, DEMO_COLS, c->seed, FILL_NORMAL, magnitudes[i], 1);
        for (int form = 0; form < FORMS; form++) {
            point[form] = demo_point(table, form, x, y, lse);
            demo_json(report, &point[form], form != UNSAFE);
            if (form != UNSAFE && !point[form].pass)
                status = EXIT_WRONG;
        }
        if (!report->cli->quiet)
            printf(
                "# unsafe exp without max, |score| up to %8.4g: %2d of %d rows non-finite; worst "
                "error %7.1e, with max %7.1e\n",
                point[0].score_max, (int)point[0].nonfinite_rows, DEMO_ROWS, point[0].error,
                point[1].error);
    }
    free(x);
    return status;
}
