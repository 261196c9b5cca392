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
#include "harness/rows_oracle.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNTED_ELEMENTS (1 << 18) /* the twins are slow: so many elements are enough to count */
#define EDGE_COLS        (1 << 20) /* widest edge rows */
#define PART             ((size_t)1 << 30) /* what the driver copies at once */

/* --- a matrix of scores and its softmax --------------------------------------------------------*/

#define CANARY_FLOATS 64

/* A matrix of scores with room for its softmax, on the host and, for CUDA, on the device. y and
 * lse have canaries behind them. */
enum { X, Y, LSE, ARRAYS };
typedef struct Matrix {
    int64_t rows, cols;
    size_t bytes[ARRAYS];
    float *host[ARRAYS], *dev[ARRAYS]; /* dev: NULL without a device */
} Matrix;

static void matrix_free(Matrix *m)
{
    for (int a = 0; a < ARRAYS; a++) {
        free(m->host[a]);
        device_free(m->dev[a]);
    }
    memset(m, 0, sizeof *m);
}

/* 0, or -1: no memory. The caller fills x. */
static int matrix_new(Matrix *m, int64_t rows, int64_t cols, int on_device)
{
    int64_t count;
    memset(m, 0, sizeof *m);
    if (__builtin_mul_overflow(rows, cols, &count) || count > INT64_MAX / 64)
        return -1;
    m->rows = rows;
    m->cols = cols;
    m->bytes[X] = (size_t)count * sizeof(float);
    m->bytes[Y] = (size_t)(count + CANARY_FLOATS) * sizeof(float);
    m->bytes[LSE] = (size_t)(rows + CANARY_FLOATS) * sizeof(float);
    for (int a = 0; a < ARRAYS; a++) {
        m->host[a] = malloc(m->bytes[a]);
        if (m->host[a] && on_device)
            m->dev[a] = device_alloc(m->bytes[a]);
        if (!m->host[a] || (on_device && !m->dev[a])) {
            matrix_free(m);
            return -1;
        }
    }
    return 0;
}

static SoftmaxArgs matrix_args(const Matrix *m, const RowsEntry *v, int threads)
{
    float *const *at = v->device == ON_CUDA ? m->dev : m->host;
    return (SoftmaxArgs){at[X], at[Y], at[LSE], m->rows, m->cols, threads, NULL, NULL};
}

static int matrix_poison(const Matrix *m, const RowsEntry *v)
{
    if (v->device == ON_CUDA)
        return device_fill_bytes(m->dev[Y], 0xFF, m->bytes[Y]) ||
               device_fill_bytes(m->dev[LSE], 0xFF, m->bytes[LSE]);
    memset(m->host[Y], 0xFF, m->bytes[Y]);
    memset(m->host[LSE], 0xFF, m->bytes[LSE]);
    return 0;
}

static int matrix_upload(const Matrix *m)
{
    return m->dev[X] ? device_upload(m->dev[X], m->host[X], m->bytes[X]) : 0;
}

/* from: the first byte behind y or lse */
static int matrix_canary_intact(const float *from)
{
    for (size_t i = 0; i < CANARY_FLOATS * sizeof(float); i++)
        if (((const unsigned char *)from)[i] != 0xFF)
            return 0;
    return 1;
}

/* Poisoned outputs, warm-up and timed runs, as strict as those of attention (bench/run.c); the last
 * output lies in y and lse. */
static AttnStatus matrix_run(const Matrix *m, const RowsEntry *v, const RowsRung *rung, int warmup,
                             int iters, int threads, Samples *samples)
{
    SoftmaxArgs args = matrix_args(m, v, threads);
    DeviceTimer *timer = v->device == ON_CUDA ? device_timer_new() : NULL;
    AttnStatus status = ATTN_OK;
    const size_t bytes = rung->work ? (size_t)rung->work(m->rows, m->cols) : 0;
    samples->count = 0;
    if (bytes > 0)
        args.work = timer ? workspace_alloc_device(bytes) : workspace_alloc(bytes);
    if ((v->device == ON_CUDA && !timer) || (bytes > 0 && !args.work))
        status = ATTN_NO_MEMORY;
    for (int i = -warmup; i < iters && status == ATTN_OK; i++) {
        double start, ms;
        if (matrix_poison(m, v) || (timer && device_flush_l2())) {
            status = ATTN_CUDA_ERROR;
            break;
        }
        start = bench_now_ms();
        if (timer)
            device_timer_start(timer);
        rung->softmax(&args);
        if (timer && device_launched() != 0)
            status = ATTN_CUDA_ERROR;
        ms = timer ? device_timer_stop_ms(timer) : bench_now_ms() - start;
        if (i >= 0 && samples->count < BENCH_MAX_SAMPLES)
            samples->ms[samples->count++] = ms;
    }
    if (timer && status == ATTN_OK &&
        (device_synchronize() || device_download(m->host[Y], m->dev[Y], m->bytes[Y]) ||
         device_download(m->host[LSE], m->dev[LSE], m->bytes[LSE])))
        status = ATTN_CUDA_ERROR;
    timer ? workspace_free_device(args.work) : workspace_free(args.work);
    device_timer_free(timer);
    return status;
}

/* Depends on the bits and the place of every element: a change anywhere changes it. */
static uint64_t matrix_fingerprint(const float *x, int64_t count, int threads)
{
    uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(static)
    for (int64_t e = 0; e < count; e++) {
        uint32_t bits;
        memcpy(&bits, &x[e], sizeof bits);
        sum += (bits + UINT64_C(0x9E3779B97F4A7C15)) * (2 * (uint64_t)e + 1);
    }
    return sum;
}

/* The input again, after the runs: 1 when nobody wrote into it. y is scratch from here on. */
static int matrix_input_intact(const Matrix *m, const RowsEntry *v, uint64_t before, int threads)
{
    const float *x = m->host[X];
    if (v->device == ON_CUDA) {
        if (device_download(m->host[Y], m->dev[X], m->bytes[X]))
            return 0;
        x = m->host[Y];
    }
    return matrix_fingerprint(x, m->rows * m->cols, threads) == before;
}

/* --- the mode ----------------------------------------------------------------------------------*/

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
        rows_fill_edges(m.host[X], m.cols);
        if (matrix_upload(&m) || matrix_run(&m, v, v->rung, 0, 1, c->threads, &once) != ATTN_OK) {
            status = EXIT_RUNTIME;
        } else {
            verdict = rows_judge(m.host[X], m.host[Y], m.host[LSE], m.rows, m.cols, c->threads);
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
    rows_fill(m.host[X], rows, c->cols, c->seed, c->dist, 1.0f, c->threads);
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
    RowsVerdict verdict =
        rows_judge(m->host[X], m->host[Y], m->host[LSE], m->rows, m->cols, c->threads);
    int intact = matrix_canary_intact(m->host[Y] + m->rows * m->cols) &&
                 matrix_canary_intact(m->host[LSE] + m->rows);
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
    return 2e-6 * (double)m->bytes[X] / samples_median(&samples);
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
    rows_fill(m.host[X], m.rows, m.cols, c->seed, c->dist, 1.0f, c->threads);
    before = matrix_fingerprint(m.host[X], m.rows * m.cols, c->threads);
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
