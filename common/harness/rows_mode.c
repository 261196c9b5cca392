/* SPDX-License-Identifier: MIT
 *
 * rows_mode.c: --rows R --cols C, the softmax alone. See rows_mode.h.
 *
 * For each variant: count its accesses with the counted twin, run it on the awkward rows, then on
 * R x C random scores, poisoned and timed like every run of this suite, and judge every element of
 * the last timed run against float64. Wrong counts and wrong edge rows fail like wrong answers.
 */
#include "harness/rows_mode.h"

#include "alloc.h"
#include "alloc_wanted.h"
#include "attn_config.h"
#include "harness/bench/bench.h"
#include "harness/device/device.h"
#include "harness/models/model.h"
#include "harness/rows_matrix.h"
#include "harness/rows_oracle.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNTED_ELEMENTS (1 << 18) /* the twins are slow: so many elements are enough to count */
#define EDGE_COLS        (1 << 20) /* widest edge rows */
#define PART             ((size_t)1 << 30) /* what the driver copies at once */

static void copy_on_host(const SoftmaxArgs *args)
{
    int64_t count = args->rows * args->cols;
    int parts = args->threads;
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int p = 0; p < parts; p++) {
        int64_t first = count * p / parts, last = count * (p + 1) / parts;
        memcpy(args->y + first, args->x + first, (size_t)(last - first) * sizeof(float));
    }
}

/* The rate that no kernel which reads and writes everything once can beat by much. Long pieces:
 * row by row the driver's copy has 0.4 to 0.8 of the rate. */
static void copy_on_device(const SoftmaxArgs *args)
{
    const size_t all = (size_t)(args->rows * args->cols) * sizeof(float);
    for (size_t at = 0; at < all; at += PART) {
        const size_t bytes = all - at < PART ? all - at : PART;
        (void)device_copy_rows((char *)args->y + at, bytes, (const char *)args->x + at, bytes,
                               bytes, 1);
    }
}

static const RowsRung copy_host = {"copy", copy_on_host, NULL, 1, 0};
static const RowsRung copy_device = {"copy", copy_on_device, NULL, 1, 0};

int rows_model_accesses(const RowsRung *rung, int64_t cols)
{
    return (cols <= rung->one_read_cols ? 1 : rung->reads) + 1;
}

const RowsEntry *rows_find(const RowsTable *table, const char *name, AttnDevice device)
{
    for (int i = 0; i < table->count; i++)
        if (table->entries[i].device == device && !strcmp(table->entries[i].name, name))
            return &table->entries[i];
    return NULL;
}

/* Rows that break careless code, and rows of one element. */
static int check_edges(const RowsEntry *v, const CliCase *c)
{
    int64_t widths[2] = {1, c->cols < EDGE_COLS ? c->cols : EDGE_COLS};
    int status = EXIT_OK;
    for (int w = 0; w < 2 && status == EXIT_OK; w++) {
        Matrix m;
        Samples once;
        RowsVerdict verdict;
        char label[96];
        if (matrix_new(&m, EDGE_ROWS, widths[w], v->device == ON_CUDA))
            return cli_no_memory("--rows --cols");
        rows_fill_edges(m.x, m.cols);
        if (matrix_upload(&m) || matrix_run(&m, v, v->rung, 0, 1, c->threads, &once) != ATTN_OK) {
            status = EXIT_RUNTIME;
        } else {
            verdict = rows_judge(m.x, m.y, m.lse, m.rows, m.cols, c->threads);
            snprintf(label, sizeof label, "%s, edge rows of %" PRId64, v->name, m.cols);
            if (verdict.off) {
                rows_explain(&verdict, label, stderr);
                status = EXIT_WRONG;
            }
        }
        matrix_free(&m);
    }
    return status;
}

/* Accesses per element, counted by the twin; compared with the model. */
static int count_accesses(double *accesses, const RowsEntry *v, const CliCase *c)
{
    Matrix m;
    Samples once;
    AccessCounts seen;
    int64_t rows = COUNTED_ELEMENTS / c->cols;
    int model = rows_model_accesses(v->rung, c->cols), status = EXIT_OK;
    rows = rows < 1 ? 1 : rows > c->rows ? c->rows : rows;
    if (matrix_new(&m, rows, c->cols, v->device == ON_CUDA))
        return cli_no_memory("--rows --cols");
    rows_fill(m.x, rows, c->cols, c->seed, c->dist, 1.0f, c->threads);
    access_counts_reset();
    if (matrix_upload(&m) || matrix_run(&m, v, v->counted, 0, 1, c->threads, &once) != ATTN_OK)
        status = EXIT_RUNTIME;
    seen = access_counts();
    *accesses = (double)(seen.loads + seen.stores) / (double)(rows * c->cols);
    if (status == EXIT_OK && seen.loads + seen.stores != model * rows * c->cols) {
        fprintf(stderr,
                "%s: %" PRId64 " loads and %" PRId64 " stores counted on %" PRId64 " x %" PRId64
                " elements, the model says %d accesses each\n",
                v->name, seen.loads, seen.stores, rows, c->cols, model);
        status = EXIT_WRONG;
    }
    matrix_free(&m);
    return status;
}

static int judge_rows(ReportSoftmax *row, const RowsEntry *v, const Matrix *m, uint64_t before,
                      const CliCase *c)
{
    RowsVerdict verdict = rows_judge(m->x, m->y, m->lse, m->rows, m->cols, c->threads);
    int intact =
        matrix_canary_intact(m->y + m->rows * m->cols) && matrix_canary_intact(m->lse + m->rows);
    row->bound_ratio = verdict.worst_ratio;
    row->nonfinite = verdict.nonfinite;
    if (verdict.off)
        rows_explain(&verdict, v->name, stderr);
    if (!intact)
        fprintf(stderr, "%s: wrote behind the end of its outputs\n", v->name);
    if (!matrix_input_intact(m, v, before, c->threads)) {
        fprintf(stderr, "%s: wrote into its input\n", v->name);
        intact = 0;
    }
    row->pass = !verdict.off && intact;
    return row->pass ? EXIT_OK : EXIT_WRONG;
}

static int run_softmax(Report *report, const RowsEntry *v, const Matrix *m, uint64_t before,
                       double copy_gbps, const CliCase *c)
{
    Samples samples;
    ReportSoftmax row = {c, v->name, v->device, &samples, 0, 0, copy_gbps, 0, NAN, 0, 0, -1};
    int status = count_accesses(&row.accesses, v, c);
    if (status != EXIT_RUNTIME)
        status = exit_worst(status, check_edges(v, c));
    bench_progress("%s", v->name);
    workspace_reset_peak();
    if (status == EXIT_RUNTIME ||
        matrix_run(m, v, v->rung, c->bench ? c->warmup : 0, c->bench ? c->iters : 1, c->threads,
                   &samples) != ATTN_OK) {
        char wanted[64];
        bench_progress_clear();
        cli_refuse("%s: failed at run time (memory or CUDA)%s", v->name, workspace_wanted(wanted));
        return EXIT_RUNTIME;
    }
    row.peak_bytes = workspace_peak();
    row.bytes = model_softmax_bytes(m->rows, m->cols, (int)(row.accesses + 0.5), sizeof(float));
    row.l2_flushed = v->device == ON_CUDA;
    if (c->check)
        status = exit_worst(status, judge_rows(&row, v, m, before, c));
    if (c->check && status != EXIT_OK)
        row.pass = 0;
    bench_progress_clear();
    report_softmax_row(report, &row);
    return status;
}

/* GB/s of a copy of the same matrix, read and write both counted; 0 when not benchmarking. */
static double copy_rate(const Matrix *m, AttnDevice device, const CliCase *c)
{
    Samples samples;
    const RowsEntry copy = {"copy", device, device == ON_CUDA ? &copy_device : &copy_host, NULL};
    if (!c->bench ||
        matrix_run(m, &copy, copy.rung, c->warmup, c->iters, c->threads, &samples) != ATTN_OK)
        return 0.0;
    return 2e-6 * (double)matrix_x_bytes(m) / samples_median(&samples);
}

int bench_rows(const RowsTable *table, Report *report, const Cli *cli, const CliCase *c)
{
    const Variant *listed = NULL;
    double copy_gbps[2] = {-1.0, -1.0}; /* by AttnDevice; measured before its first variant */
    int status = EXIT_OK, any_cpu = 0, device = 0, ready;
    uint64_t before;
    Matrix m;

    if (cli_check_device(c) != EXIT_OK)
        return EXIT_NO_DEVICE;
    while ((listed = cli_next_variant(cli, c, listed)) != NULL) {
        device |= listed->device == ON_CUDA;
        any_cpu |= listed->device == ON_CPU;
    }
    if (matrix_new(&m, c->rows, c->cols, device)) {
        cli_refuse("out of memory: --rows %" PRId64 " --cols %" PRId64 " needs two matrices of %.3g"
                   " GB",
                   c->rows, c->cols, 4e-9 * (double)c->rows * (double)c->cols);
        return EXIT_RUNTIME;
    }
    rows_fill(m.x, m.rows, m.cols, c->seed, c->dist, 1.0f, c->threads);
    before = matrix_fingerprint(m.x, m.rows * m.cols, c->threads);
    if (matrix_upload(&m))
        status = EXIT_RUNTIME;
    if (any_cpu && !strcmp(c->variant, "all") && report->rows == 0) /* once in a --cases file */
        status = exit_worst(status, demo_unsafe(table, report, c));
    ready = status != EXIT_RUNTIME;

    while (ready && (listed = cli_next_variant(cli, c, listed)) != NULL) {
        const RowsEntry *v = rows_find(table, listed->name, listed->device);
        if (!v) {
            status = exit_worst(
                status, report_skip(report, c, listed, "it has no softmax alone, only attention"));
            continue;
        }
        if (copy_gbps[v->device] < 0.0)
            copy_gbps[v->device] = copy_rate(&m, v->device, c);
        status = exit_worst(status, run_softmax(report, v, &m, before, copy_gbps[v->device], c));
    }
    matrix_free(&m);
    return status;
}
