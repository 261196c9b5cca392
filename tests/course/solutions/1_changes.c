/* SPDX-License-Identifier: MIT
 *
 * 1_changes.c: solutions of the changes of assignment 1, for the tests of the course kit: compile
 * with -DSLIDING, -DMEAN or -DGROUPS. It is not part of any handout.
 *
 * A window that moves consists of the end of one piece of `width` columns and the beginning of the
 * next. Pairs over all ends and all beginnings take one merge for each column, a window one more.
 *
 * Interface:
 * - softmax_twist_variant: docs/course/include/softmax_twist.h.
 */
#include <math.h>
#include <stdlib.h>

#include "softmax_twist.h"

#ifdef GROUPS

/* One score more for (m, l). */
static void push(float s, float *m, float *l)
{
    float m_new = fmaxf(*m, s);
    *l = (*m == -INFINITY ? 0.0f : *l * expf(*m - m_new)) + expf(s - m_new);
    *m = m_new;
}

int softmax_twist_variant(const float *S, const int *label, float *out, int rows, int cols,
                          int width)
{
    float *m = malloc(sizeof(float) * 2 * (size_t)width), *l = m + width;
    if (!m)
        return 1;
    for (int r = 0; r < rows; r++) {
        const float *s = S + (long)r * cols;
        for (int g = 0; g < width; g++) {
            m[g] = -INFINITY;
            l[g] = 0.0f;
        }
        for (int c = 0; c < cols; c++)
            push(s[c], m + label[c], l + label[c]);
        for (int c = 0; c < cols; c++)
            out[(long)r * cols + c] = expf(s[c] - m[label[c]]) / l[label[c]];
    }
    free(m);
    return 0;
}

#else

/* total: the sum of exp(s - m) s, for the mean. */
typedef struct State {
    float m, l, total;
} State;

static State one(float s)
{
    return (State){s, 1.0f, s};
}

static State joined(State a, State b)
{
    State c = {fmaxf(a.m, b.m), 0.0f, 0.0f};
    float up_a = expf(a.m - c.m), up_b = expf(b.m - c.m);
    c.l = a.l * up_a + b.l * up_b;
    c.total = a.total * up_a + b.total * up_b;
    return c;
}

static float result(State a)
{
#ifdef MEAN
    return a.total / a.l;
#else
    return a.m + logf(a.l);
#endif
}

int softmax_twist_variant(const float *S, const int *label, float *out, int rows, int cols,
                          int width)
{
    State *end = malloc(sizeof(State) * (size_t)cols), begin;
    (void)label;
    if (!end)
        return 1;
    for (int r = 0; r < rows; r++) {
        const float *s = S + (long)r * cols;
        for (int c = cols - 1; c >= 0; c--)
            end[c] =
                c == cols - 1 || (c + 1) % width == 0 ? one(s[c]) : joined(one(s[c]), end[c + 1]);
        for (int c = 0; c < cols; c++) {
            int first = c - width + 1;
            begin = c % width == 0 ? one(s[c]) : joined(begin, one(s[c]));
            out[(long)r * cols + c] =
                result(first > 0 && first % width ? joined(end[first], begin) : begin);
        }
    }
    free(end);
    return 0;
}

#endif
