/* SPDX-License-Identifier: MIT
 *
 * contract_softmax.c: the contracts of the first assignment, softmax of rows and the merge of two
 * partial rows.
 *
 * Bounds (u = 2^-24, c = 4; compare rows_oracle.h of stage 02):
 *     P    c u (|s - m| + E + sqrt(n) + 8) P + 2^-126      E = sum_c P_c |s_c - m|
 *     lse  c u (|lse| + E + sqrt(n) + 8)
 *     m    exact: the larger of two numbers is one of them
 *     l    c u sum over both sides of (|m_x - m| + 4) l_x exp(m_x - m), and 2^-126: the difference
 *          is rounded, exp turns that into a relative error, and a few roundings come on top
 *
 * The inputs are made so that the usual mistakes show: rows and halves without any finite score,
 * scores of several hundred, a maximum in the last place, halves far apart.
 *
 * Interface: contract_softmax_rows, contract_softmax_merge (contract.h).
 */
#include "course/contract_softmax.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDING (4.0 * 0x1p-24) /* c u */
#define FLOOR    0x1p-126
/* Random numbers of a case come from the streams of tensors that it does not have. */
#define PATTERN FILL_MASK
#define SIZES   FILL_WQ

/* inputs: how many arrays; first, second: elements of the results. */
static Softmax *make_softmax(JudgeCase *c, int inputs, int64_t first, int64_t second)
{
    Softmax *s = c->own = case_alloc(1, sizeof *s);
    s->rows = c->flags->rows;
    s->cols = c->flags->cols;
    for (int i = 0; i < inputs; i++)
        s->in[i] = case_alloc(first, sizeof(float));
    for (int i = 0; i < 2; i++) {
        s->value[i] = case_alloc(i ? second : first, sizeof(double));
        s->bound[i] = case_alloc(i ? second : first, sizeof(double));
    }
    return s;
}

static uint64_t draw(const JudgeCase *c, FillTensor which, int64_t index)
{
    return fill_word(fill_stream(c->flags->seed, which, (uint64_t)index), 0);
}

/* --- rows --------------------------------------------------------------------------------------*/

/* Row r: every fifth is masked as a whole, the one after it has its first half masked, the next
 * holds large scores, then one whose maximum comes last; the others hide an eighth of their places,
 * and of a case of large scores all their scores are far below 0. */
static void fill_row(const JudgeCase *c, float *row, int64_t r, int64_t cols)
{
    for (int64_t x = 0; x < cols; x++) {
        const int64_t e = r * cols + x;
        const float s = 3.0f * fill_value(c->flags->seed, FILL_Q, (uint64_t)e, c->flags->dist);
        const int hidden = r % 5 == 4   ? 1
                           : r % 5 == 0 ? r > 0 && x < cols / 2
                                        : r % 5 == 3 && draw(c, PATTERN, e) % 8 == 0;
        row[x] = hidden                                       ? -INFINITY
                 : r % 5 == 1                                 ? s + 300.0f
                 : r % 5 == 2 && x == cols - 1                ? s + 30.0f
                 : r % 5 == 3 && c->flags->dist == FILL_LARGE ? s - 300.0f
                                                              : s;
    }
}

static void judge_row(Softmax *s, int64_t r)
{
    const int64_t cols = s->cols;
    const float *in = s->in[0] + r * cols;
    double m = -INFINITY, l = 0.0, E = 0.0, steady;
    for (int64_t x = 0; x < cols; x++)
        m = fmax(m, (double)in[x]);
    for (int64_t x = 0; m > -INFINITY && x < cols; x++) {
        const double p = exp((double)in[x] - m);
        l += p;
        E += p > 0.0 ? p * (m - (double)in[x]) : 0.0;
    }
    E = l > 0.0 ? E / l : 0.0;
    steady = E + sqrt((double)cols) + 8.0;
    s->value[1][r] = l > 0.0 ? m + log(l) : -INFINITY;
    s->bound[1][r] = l > 0.0 ? ROUNDING * (fabs(s->value[1][r]) + steady) : 0.0;
    for (int64_t x = 0; x < cols; x++) {
        const double p = l > 0.0 ? exp((double)in[x] - m) / l : 0.0;
        s->value[0][r * cols + x] = p;
        s->bound[0][r * cols + x] =
            (p > 0.0 ? ROUNDING * (m - (double)in[x] + steady) * p : 0.0) + FLOOR;
    }
}

static int make_rows(JudgeCase *c)
{
    const int64_t rows = c->flags->rows, cols = c->flags->cols;
    Softmax *s;
    if (!rows || !cols)
        return cli_refuse("--rows, --cols: found %s, accepted are both",
                          rows || cols ? "one of them" : "none");
    if (rows > (1 << 20) || cols > (1 << 20) || rows * cols > (1 << 24))
        return cli_refuse("--rows, --cols: found more than 2^24 places, accepted are fewer");
    s = make_softmax(c, 1, rows * cols, rows);
    for (int64_t r = 0; r < rows; r++) {
        fill_row(c, s->in[0] + r * cols, r, cols);
        judge_row(s, r);
    }
    return EXIT_OK;
}

static void run_rows(const JudgeCase *c, const JudgeLimits *limits, const char *library,
                     JudgeRun *run)
{
    const Softmax *s = c->own;
    const size_t row = (size_t)s->rows * sizeof(float), all = row * (size_t)s->cols;
    IsolateTask task = run_task(limits, library);
    if (!run_values_new(run, 0, s->rows * s->cols) || !run_values_new(run, 1, s->rows))
        return;
    run_add(&task, "S", s->in[0], all, 0);
    run_add(&task, "P", run->values[0], all, 1);
    run_add(&task, "lse", run->values[1], row, 1);
    run_small(&task, "softmax_rows", c->contract->symbol, run_numbers(&task, s->rows, s->cols, 0),
              run);
}

static void judge_two(const JudgeCase *c, JudgeRun *run, const char *first, const char *second,
                      int64_t width)
{
    const Softmax *s = c->own;
    CheckArray *a = run->check.array;
    judge_floats(&a[0], first, run->values[0], s->value[0], s->bound[0], s->rows, width);
    judge_floats(&a[1], second, run->values[1], s->value[1], s->bound[1], s->rows, 1);
    run->check.pass = a[0].off == 0 && a[1].off == 0;
}

static void judge_rows(const JudgeCase *c, JudgeRun *run)
{
    judge_two(c, run, "P", "lse", ((const Softmax *)c->own)->cols);
}

static const char *const rows_flags[] = {"--rows", "--cols", "--seed", "--dist", NULL};
const Contract contract_softmax_rows = {.name = "softmax_rows",
                                        .symbol = "softmax_rows_variant",
                                        .features = STAGE_HAS_ROWS_COLS,
                                        .flags = rows_flags,
                                        .make = make_rows,
                                        .run = run_rows,
                                        .judge = judge_rows};

/* --- merge -------------------------------------------------------------------------------------*/

/* m and l of a random set of up to `most` scores around `middle`; every sixth set is empty. */
static void fill_half(const JudgeCase *c, int64_t half, int64_t most, float *m, float *l)
{
    const uint64_t size = draw(c, SIZES, half);
    const int64_t count = size % 6 == 0 ? 0 : 1 + (int64_t)(size / 6 % (uint64_t)most);
    const float middle = (float)((int64_t)(size >> 32) % 3 - 1) * 150.0f;
    double sum = 0.0;
    *m = -INFINITY;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t t = 0; t < count; t++) {
            const uint64_t index = (uint64_t)(half * most + t);
            const float s = middle + fill_value(c->flags->seed, FILL_K, index, c->flags->dist);
            if (pass == 0)
                *m = s > *m ? s : *m;
            else
                sum += exp((double)s - (double)*m);
        }
    *l = (float)sum;
}

static void judge_pair(Softmax *s, int64_t k)
{
    const double m[2] = {s->in[0][k], s->in[2][k]}, l[2] = {s->in[1][k], s->in[3][k]};
    const double most = fmax(m[0], m[1]);
    double sum = 0.0, bound = FLOOR;
    for (int side = 0; side < 2; side++)
        if (m[side] > -INFINITY) {
            const double part = l[side] * exp(m[side] - most);
            sum += part;
            bound += ROUNDING * (most - m[side] + 4.0) * part;
        }
    s->value[0][k] = most;
    s->bound[0][k] = 0.0;
    s->value[1][k] = sum;
    s->bound[1][k] = bound;
}

static int make_merge(JudgeCase *c)
{
    const int64_t n = c->flags->rows, most = c->flags->cols;
    Softmax *s;
    if (!n || !most)
        return cli_refuse(
            "--rows, --cols: found %s, accepted are both: pairs, and scores of a half "
            "at most",
            n || most ? "one of them" : "none");
    if (n > (1 << 20) || most > (1 << 16) || n * most > (1 << 24))
        return cli_refuse("--rows, --cols: found more than 2^24 scores, accepted are fewer");
    s = make_softmax(c, 4, n, n);
    for (int64_t k = 0; k < n; k++) {
        fill_half(c, 2 * k, most, &s->in[0][k], &s->in[1][k]);
        fill_half(c, 2 * k + 1, most, &s->in[2][k], &s->in[3][k]);
        judge_pair(s, k);
    }
    return EXIT_OK;
}

static void run_merge(const JudgeCase *c, const JudgeLimits *limits, const char *library,
                      JudgeRun *run)
{
    static const char *const names[] = {"m_a", "l_a", "m_b", "l_b"};
    const Softmax *s = c->own;
    const size_t bytes = (size_t)s->rows * sizeof(float);
    IsolateTask task = run_task(limits, library);
    if (!run_values_new(run, 0, s->rows) || !run_values_new(run, 1, s->rows))
        return;
    for (int i = 0; i < 4; i++)
        run_add(&task, names[i], s->in[i], bytes, 0);
    run_add(&task, "m", run->values[0], bytes, 1);
    run_add(&task, "l", run->values[1], bytes, 1);
    run_small(&task, "softmax_merge", c->contract->symbol, run_numbers(&task, s->rows, 0, 0), run);
}

static void judge_merge(const JudgeCase *c, JudgeRun *run)
{
    judge_two(c, run, "m", "l", 1);
}

const Contract contract_softmax_merge = {.name = "softmax_merge",
                                         .symbol = "softmax_merge_variant",
                                         .features = STAGE_HAS_ROWS_COLS,
                                         .flags = rows_flags,
                                         .make = make_merge,
                                         .run = run_merge,
                                         .judge = judge_merge};
