/* SPDX-License-Identifier: MIT
 *
 * merge.c: judges the merge of two states (m, l).
 *
 * Interface: -N rows, --hand: (2, 3) and (5, 1) in both orders,
 * --empty-a, --empty-b: every second row, or with both
 * flags each row.
 */
#include <math.h>

#include "learn.h"

int softmax_merge_variant(const float *m_a, const float *l_a, const float *m_b, const float *l_b,
                          float *m, float *l, int n);

float exp_counted(float x);

const Mistake mistakes[] = {
    {"merge_without_weights",
     "The sums are added as they are; each has to be brought to the common "
     "maximum first."},
    {"one_side_rescaled",
     "It is always l_b that is multiplied by the factor. When b has the larger maximum, l_a is "
     "the one that shrinks."},
    {"nan_on_empty_row",
     "Two empty parts have m = -inf, and -inf - (-inf) is NaN. They give l = 0."},
    {"max_of_one", "m is m_a here; it is the larger one of the two."},
    {"smaller_maximum", "m is the smaller one of the two here; it is the larger one."},
    {"wrong_one_rescaled", "l_a belongs to m_a and l_b to m_b; the factors are exchanged here."},
    {"alpha_inverted", "The factors are exp(m_a - m) and exp(m_b - m), at most 1; these are their "
                       "inverses."},
    {NULL, NULL}};

static float *m_a, *l_a, *m_b, *l_b;
static Output *m, *l;
static long n, exponentials;

float exp_counted(float x)
{
    exponentials++;
    return expf(x);
}

void prepare(void)
{
    const int both = has_flag("--empty-a") && has_flag("--empty-b");
    long i;
    n = case_size("-N", 1, 2);
    m_a = normal_input("m_a", n, 1, NULL), l_a = normal_input("l_a", n, 3, NULL);
    m_b = normal_input("m_b", n, 2, NULL), l_b = normal_input("l_b", n, 4, NULL);
    m = output("m", n, 1, "row", "");
    l = output("l", n, 1, "row", "");
    for (i = 0; i < n; i++) {
        l_a[i] = 1.0f + l_a[i] * l_a[i];
        l_b[i] = 1.0f + l_b[i] * l_b[i];
        if (has_flag("--empty-a") && (both || i % 2))
            m_a[i] = -INFINITY, l_a[i] = 0.0f;
        if (has_flag("--empty-b") && (both || i % 2))
            m_b[i] = -INFINITY, l_b[i] = 0.0f;
    }
    if (has_flag("--hand")) {
        m_a[0] = m_b[1] = 2.0f, l_a[0] = l_b[1] = 3.0f;
        m_b[0] = m_a[1] = 5.0f, l_b[0] = l_a[1] = 1.0f;
    }
}

void call(void)
{
    if (softmax_merge_variant(m_a, l_a, m_b, l_b, m->found, l->found, (int)n) != 0)
        refuse("status", "Your function returned another number than 0.");
    if (exponentials > n)
        refuse("two_exponentials",
               "%ld calls of exp_counted for %ld rows. The part with the larger maximum has the "
               "factor exp(0) = 1.",
               exponentials, n);
}

void expect(int mistake)
{
    long i;
    for (i = 0; i < n; i++) {
        const double most = mistake == 4   ? m_a[i]
                            : mistake == 5 ? fmin(m_a[i], m_b[i])
                                           : fmax(m_a[i], m_b[i]);
        const double shift = most == -INFINITY && mistake != 3 ? 0.0 : most;
        const double alpha = mistake == 1 || mistake == 2 ? 1.0 : exp(m_a[i] - shift);
        const double beta = mistake == 1                       ? 1.0
                            : mistake == 2 && m_a[i] != m_b[i] ? exp(-fabs((double)m_a[i] - m_b[i]))
                                                               : exp(m_b[i] - shift);
        m->expected[i] = most;
        l->expected[i] = mistake == 6   ? l_a[i] * beta + l_b[i] * alpha
                         : mistake == 7 ? l_a[i] / alpha + l_b[i] / beta
                                        : l_a[i] * alpha + l_b[i] * beta;
    }
}
