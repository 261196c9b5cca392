/* SPDX-License-Identifier: MIT
 *
 * softmax_rows.c: judges P = softmax of each row of S, and lse.
 *
 * Interface: --rows, --cols, --growing, --large, --below: around -200, --masked: every third score
 * is -inf, --empty: every second row is, --pages: rows of that many pages of memory, of which one
 * of S and one of P is open at a time.
 */
#include <math.h>

#include "learn.h"
#include "limits.h"

int softmax_rows_variant(const float *S, float *P, float *lse, int rows, int cols);

const Mistake mistakes[] = {
    {"stale_l", "l was not rescaled when the maximum grew."},
    {"lse_without_max", "lse lacks the maximum: it is m + ln l."},
    {"lse_base_2", "lse is the natural logarithm; this is the logarithm to base 2."},
    {"nan_on_empty_row",
     "A row of -inf has m = -inf and l = 0: -inf - (-inf) and 0 / 0 are NaN. Its P is "
     "0 and its lse -inf."},
    {"no_max_subtraction", "exp(s) without subtracting the maximum: it overflows above s = 88."},
    {"not_normalised", "P is not divided by the sum."},
    {"p_without_max",
     "P is exp(S) / l here. l is relative to the maximum, so P is exp(S - m) / l."},
    {"old_maximum", "The new term is exp(s - m_old). Before the first score m is -inf, and it is "
                    "infinite: it is relative to m_new."},
    {NULL, NULL}};

static float *S;
static Output *P, *lse;
static long rows, cols;

void prepare(void)
{
    long e;
    rows = number("--rows", 1), cols = number("--cols", 1);
    cols = has_flag("--pages") ? number("--pages", 1) * page_floats() : cols;
    S = has_flag("--pages") ? paged_input(rows * cols / page_floats()) : input("S", rows * cols);
    P = output("P", rows, cols, "row", "column");
    lse = output("lse", rows, 1, "row", "");
    fill_normal(S, rows * cols, 21);
    for (e = 0; e < rows * cols; e++) {
        if (has_flag("--growing"))
            S[e] = 0.4f * (float)(e % cols);
        if (has_flag("--large"))
            S[e] += 3000.0f;
        if (has_flag("--below"))
            S[e] -= 200.0f;
        if ((has_flag("--masked") && e % 3 == 0) || (has_flag("--empty") && e / cols % 2))
            S[e] = -INFINITY;
    }
}

/* How often the learner went through a row: visits of its pages. */
static double passes(int n)
{
    return (double)page_visits(n) * (double)page_floats() / (double)(rows * cols);
}

static void call_with_pages(void)
{
    float *paged_P = paged_output(rows * cols / page_floats());
    close_pages();
    softmax_rows_variant(S, paged_P, lse->found, (int)rows, (int)cols);
    open_pages();
    memcpy(P->found, paged_P, sizeof(float) * (size_t)(rows * cols));
    if (passes(0) > 2.0)
        refuse(
            "three_passes",
            "A row of %ld pages was read in %.1f passes. Two are enough: maximum and sum in one, "
            "then P.",
            cols / page_floats(), passes(0));
    if (passes(1) > 1.0)
        refuse("p_again",
               "P of a row of %ld pages was gone through %.1f times. Once is enough: maximum and "
               "sum come from S alone, in one pass.",
               cols / page_floats(), passes(1));
}

void call(void)
{
    if (has_flag("--pages"))
        call_with_pages();
    else if (softmax_rows_variant(S, P->found, lse->found, (int)rows, (int)cols) != 0)
        refuse("status", "Your function returned another number than 0.");
}

static void expect_row(int mistake, const float *s, double *p, double *row_lse)
{
    double m = -INFINITY, l = 0.0;
    long c;
    for (c = 0; c < cols; c++) {
        const double m_new = mistake == 5 ? 0.0 : fmax(m, s[c]);
        if (m_new > -INFINITY)
            l = (mistake == 1 || mistake == 5 ? 1.0 : exp(m - m_new)) * l +
                (mistake == 5 ? (double)expf(s[c]) : exp(s[c] - (mistake == 8 ? m : m_new)));
        m = m_new;
    }
    for (c = 0; c < cols; c++) {
        p[c] = mistake == 5 || mistake == 7 ? (double)expf(s[c]) : exp(s[c] - m);
        p[c] = mistake == 6 ? p[c] : p[c] / l;
        if (l == 0.0 && mistake != 4)
            p[c] = 0.0;
    }
    *row_lse = mistake == 2 ? log(l) : m + log(l);
    *row_lse = mistake == 3 ? *row_lse / log(2.0) : *row_lse;
}

void expect(int mistake)
{
    long r;
    for (r = 0; r < rows; r++)
        expect_row(mistake, S + r * cols, P->expected + r * cols, lse->expected + r);
}
