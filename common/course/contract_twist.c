/* SPDX-License-Identifier: MIT
 *
 * contract_twist.c: the contract of assignment 1's changes, which differ from year to year: softmax
 * over columns that move along a row (sliding, mean) or that have a label in common (groups).
 *
 * The reference has to be fast, too: a window of thousands of columns starts at each of tens of
 * thousands. So it keeps what the assignment asks for, the merge of partial rows, in float64: a row
 * is cut into pieces of `width` columns, and each window is the end of one piece and the beginning
 * of the next.
 *
 * A partial row here also has what bounds need (s: scores; e = exp(s - m)):
 *     l = sum e        a = sum e s        b = sum e |s|        E = sum e (m - s)
 *     F = sum e |s| (m - s)
 * Bounds with u = 2^-24, c = 4, n columns, as in contract_softmax.c; of the mean each term P s is
 * off by the relative error of P:
 *     sliding  c u (|lse| + E/l + sqrt(n) + 8)
 *     mean     c u (F/l + (E/l + sqrt(n) + 8) b/l) + 2^-126
 *     groups   c u (m - s + E/l + sqrt(n) + 8) P + 2^-126
 *
 * Interface: contract_softmax_twist (contract.h).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "course/contract.h"

#define ROUNDING (4.0 * 0x1p-24) /* c u */
#define FLOOR    0x1p-126

typedef struct Part {
    double m, l, a, b, E, F;
} Part;

typedef struct Twisted {
    int64_t rows, cols;
    float *S;
    int32_t *label;
    double *value, *bound;
} Twisted;

static const Part nothing = {-INFINITY, 0.0, 0.0, 0.0, 0.0, 0.0};

/* The part with the maximum m instead of its own. */
static Part lifted(Part p, double m)
{
    const double up = m - p.m, f = exp(-up);
    return p.l == 0.0
               ? (Part){m, 0.0, 0.0, 0.0, 0.0, 0.0}
               : (Part){m, f * p.l, f * p.a, f * p.b, f * (p.E + up * p.l), f * (p.F + up * p.b)};
}

static Part merged(Part p, Part q)
{
    const double m = fmax(p.m, q.m);
    if (m == -INFINITY)
        return nothing;
    p = lifted(p, m);
    q = lifted(q, m);
    return (Part){m, p.l + q.l, p.a + q.a, p.b + q.b, p.E + q.E, p.F + q.F};
}

static Part single(double s)
{
    return (Part){s, 1.0, s, fabs(s), 0.0, 0.0};
}

static void judge_window(const JudgeCase *c, Part p, int64_t n, double *value, double *bound)
{
    const double steady = p.E / p.l + sqrt((double)n) + 8.0;
    if (c->twist.kind == TWIST_SLIDING) {
        *value = p.m + log(p.l);
        *bound = ROUNDING * (fabs(*value) + steady);
    } else {
        *value = p.a / p.l;
        *bound = ROUNDING * (p.F / p.l + steady * p.b / p.l) + FLOOR;
    }
}

/* Windows of one row. tail [width + 1]: tail[k], of the piece before, is its part from column k on.
 */
static void make_windows(const JudgeCase *c, Twisted *t, int64_t r, Part *tail)
{
    const int64_t width = c->twist.width;
    const float *s = t->S + r * t->cols;
    for (int64_t k = 0; k <= width; k++)
        tail[k] = nothing;
    for (int64_t first = 0; first < t->cols; first += width) {
        Part head = nothing;
        for (int64_t k = 0; k < width && first + k < t->cols; k++) {
            const int64_t at = r * t->cols + first + k;
            head = merged(head, single((double)s[first + k]));
            judge_window(c, merged(tail[k + 1], head),
                         first + k + 1 < width ? first + k + 1 : width, &t->value[at],
                         &t->bound[at]);
        }
        tail[width] = nothing;
        for (int64_t k = width - 1; k >= 0 && first + width <= t->cols; k--)
            tail[k] = merged(single((double)s[first + k]), tail[k + 1]);
    }
}

static void make_groups(const JudgeCase *c, Twisted *t, int64_t r, Part *group, int64_t *size)
{
    const int64_t width = c->twist.width;
    for (int64_t g = 0; g < width; g++) {
        group[g] = nothing;
        size[g] = 0;
    }
    for (int64_t x = 0; x < t->cols; x++) {
        Part *g = &group[t->label[x]];
        *g = merged(*g, single((double)t->S[r * t->cols + x]));
        size[t->label[x]]++;
    }
    for (int64_t x = 0; x < t->cols; x++) {
        const Part *g = &group[t->label[x]];
        const int64_t at = r * t->cols + x;
        const double s = (double)t->S[at], p = exp(s - g->m) / g->l;
        t->value[at] = p;
        t->bound[at] =
            ROUNDING * p * (g->m - s + g->E / g->l + sqrt((double)size[t->label[x]]) + 8.0) + FLOOR;
    }
}

/* Rows of small scores, of large ones, and of scores that rise, all of them finite. */
static void fill_inputs(const JudgeCase *c, Twisted *t)
{
    for (int64_t e = 0; e < t->rows * t->cols; e++) {
        const int64_t r = e / t->cols, x = e % t->cols;
        const float s = fill_value(c->flags->seed, FILL_Q, (uint64_t)e, c->flags->dist);
        t->S[e] = 3.0f * s + (r % 3 == 1   ? 300.0f
                              : r % 3 == 2 ? 100.0f * (float)x / (float)t->cols
                                           : 0.0f);
    }
    for (int64_t x = 0; x < t->cols; x++)
        t->label[x] = (int32_t)(fill_word(fill_stream(c->flags->seed, FILL_MASK, (uint64_t)x), 0) %
                                (uint64_t)c->twist.width);
}

static int make_twist(JudgeCase *c)
{
    const int64_t rows = c->flags->rows, cols = c->flags->cols, width = c->twist.width;
    const int64_t count = rows * cols;
    Twisted *t;
    Part *parts;
    int64_t *sizes;
    if (!rows || !cols || c->twist.kind == TWIST_NONE)
        return cli_refuse("--rows, --cols, --twist: found not all of them, accepted are all, and "
                          "a twist of sliding=W, mean=W, groups=W");
    if (rows > (1 << 20) || cols > (1 << 24) || count > (1 << 24) || width > (1 << 24))
        return cli_refuse("--rows, --cols: found more than 2^24 places, accepted are fewer");
    parts = case_alloc(width + 1, sizeof *parts);
    sizes = case_alloc(width, sizeof *sizes);
    c->own = t = case_alloc(1, sizeof *t);
    t->rows = rows;
    t->cols = cols;
    t->S = case_alloc(count, sizeof *t->S);
    t->label = case_alloc(cols, sizeof *t->label);
    t->value = case_alloc(count, sizeof *t->value);
    t->bound = case_alloc(count, sizeof *t->bound);
    fill_inputs(c, t);
    for (int64_t r = 0; r < rows; r++)
        if (c->twist.kind == TWIST_GROUPS)
            make_groups(c, t, r, parts, sizes);
        else
            make_windows(c, t, r, parts);
    free(parts);
    free(sizes);
    return EXIT_OK;
}

static void run_twist(const JudgeCase *c, const JudgeLimits *limits, const char *library,
                      JudgeRun *run)
{
    const Twisted *t = c->own;
    const size_t bytes = (size_t)(t->rows * t->cols) * sizeof(float);
    IsolateTask task = run_task(limits, library);
    if (!run_values_new(run, 0, t->rows * t->cols))
        return;
    run_add(&task, "S", t->S, bytes, 0);
    run_add(&task, "label", t->label, (size_t)t->cols * sizeof *t->label, 0);
    run_add(&task, "out", run->values[0], bytes, 1);
    run_small(&task, "softmax_twist", c->contract->symbol,
              run_numbers(&task, t->rows, t->cols, c->twist.width), run);
}

static void judge_twist(const JudgeCase *c, JudgeRun *run)
{
    const Twisted *t = c->own;
    judge_floats(&run->check.array[0], "out", run->values[0], t->value, t->bound, t->rows, t->cols);
    run->check.pass = run->check.array[0].off == 0;
}

static const char *const twist_flags[] = {"--rows", "--cols", "--seed", "--dist", NULL};
const Contract contract_softmax_twist = {.name = "softmax_twist",
                                         .symbol = "softmax_twist_variant",
                                         .features = STAGE_HAS_ROWS_COLS,
                                         .flags = twist_flags,
                                         .make = make_twist,
                                         .run = run_twist,
                                         .judge = judge_twist};
