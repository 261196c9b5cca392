/* SPDX-License-Identifier: MIT
 *
 * online.c: judges the state (m, l) of a row that was read once, with any number of exponentials,
 * or with one for each score (--one-exp).
 *
 * The learner calls exp_counted, which is expf and counts.
 *
 * Interface: -N scores, --hand: row q3 of the lessons, --growing, --falling, --masked: it
 * begins with -inf, --empty: all are -inf.
 */
#include <math.h>

#include "learn.h"

void online(const float *x, int n, float *m, float *l);
float exp_counted(float x);

const Mistake mistakes[] = {
    {"stale_l",
     "l keeps its old terms when the maximum grows: alpha is missing there, or it is taken after m "
     "became m_new and is exp(0) = 1. First alpha = exp(m_old - m_new), then m = m_new."},
    {"alpha_inverted", "The factor is exp(m_old - m_new), at most 1; this is its inverse."},
    {"nothing_rescaled",
     "The new maximum is stored before alpha is computed from the old one, or the new "
     "term is relative to the old maximum."},
    {"nan_on_minus_inf",
     "While only -inf was seen m is -inf, and -inf - (-inf) is NaN. Such a score "
     "adds nothing."},
    {"new_term_forgotten",
     "When the new score is the maximum its own term is exp(0) = 1; it is not "
     "added."},
    {"alpha_inverted",
     "alpha has to be exp(m_old - m_new), from 0 to 1. Its inverse, or m_old - m_new itself, is "
     "infinite at the first score, and 0 * inf is NaN."},
    {"stale_m", "m stays -inf: it has to become m_new when the element is done."},
    {"new_term_rescaled", "alpha belongs to the old sum alone; the new term exp(x - m_new) is "
                          "relative to m_new already."},
    {"last_score_for_the_maximum",
     "m is the last score here. It is the largest: m_new = max(m_i, x[j])."},
    {"no_new_term", "Nothing is added to l: each score brings the term exp(x - m_new)."},
    {"empty_row_counts", "A score of -inf adds nothing: l of a row of them is 0."},
    {"alpha_on_the_new_term", "alpha multiplies the new term here. It belongs to the old sum: l = "
                              "alpha l + exp(x - m_new)."},
    {"old_maximum", "The new term is exp(x - m_old). Before the first score m is -inf, and it is "
                    "infinite: it is relative to m_new."},
    {"stops_at_hidden", "The loop ends at the first score of -inf; the scores behind it count."},
    {NULL, NULL}};

static float *x;
static Output *m, *l;
static long n, exponentials;

float exp_counted(float value)
{
    exponentials++;
    return expf(value);
}

void prepare(void)
{
    long j;
    n = case_size("-N", 1, 4);
    x = normal_input("x", n, 7, hand_s);
    m = output("m", 1, 1, "row", "");
    l = output("l", 1, 1, "row", "");
    for (j = 0; j < n; j++) {
        if (has_flag("--growing"))
            x[j] = 0.3f * (float)j;
        if (has_flag("--falling"))
            x[j] = 100.0f - 0.3f * (float)j;
        if (has_flag("--empty") || (has_flag("--masked") && (j < 3 || j % 4 == 0)))
            x[j] = -INFINITY;
    }
}

void call(void)
{
    online(x, (int)n, m->found, l->found);
    if (has_flag("--one-exp") && exponentials > n)
        refuse("two_exponentials",
               "%ld calls of exp_counted for %ld scores. Either m or x is the new "
               "maximum: one of the two factors is 1.",
               exponentials, n);
    if (has_flag("--one-exp") && exponentials == 0 && !has_flag("--empty"))
        refuse("not_counted", "exp_counted was never called: take it in the place of expf.");
}

void expect(int mistake)
{
    double most = -INFINITY, sum = 0.0;
    long j;
    for (j = 0; j < n; j++) {
        const double m_new = x[j] > most || mistake == 9 ? x[j] : most;
        double alpha = exp(most - m_new), term = exp(x[j] - m_new);
        if (m_new == -INFINITY && mistake == 11)
            sum = 1.0;
        if (m_new == -INFINITY && mistake == 14)
            break;
        if (m_new == -INFINITY && mistake != 4)
            continue;
        if (mistake == 1 || (mistake == 3 && j))
            alpha = 1.0;
        if ((mistake == 2 && most > -INFINITY) || mistake == 6)
            alpha = 1.0 / alpha;
        if (mistake == 5 && x[j] > most)
            term = 0.0;
        if (mistake == 10)
            term = 0.0;
        if (mistake == 13)
            term = exp(x[j] - most);
        if (mistake == 14 && x[j] == -INFINITY)
            break;
        sum = mistake == 8    ? alpha * (sum + term)
              : mistake == 12 ? sum + alpha * term
                              : alpha * sum + term;
        most = mistake == 7 ? most : m_new;
    }
    m->expected[0] = most;
    l->expected[0] = sum;
}
