/* SPDX-License-Identifier: MIT
 *
 * gpu_rows.c: of each row of X [rows][cols] its maximum m and l = sum of exp(x - m), on the GPU.
 */
#include "gpu.h"

void reduce_rows(const float *X, float *m, float *l, int rows, int cols);

const Mistake mistakes[] = {
    {"half_warp", "Only lanes 0 to 15 are merged: the distances are 16, 8, 4, 2 and 1."},
    {"stale_l", "l is wrong where the maximum grew: what was summed before has to be multiplied by "
                "exp(m_old - m_new)."},
    {"one_of_a_warp", "This is the pair of lane 0 alone. Four or five shuffles are missing."},
    {"one_quad_lane", "l of one lane only is counted: four lanes hold a row."},
    {"added_twice",
     "l is four times too large: in the loop it is added up over the four lanes of a "
     "row, and behind the loop again."},
    {NULL, NULL},
};

static int rows, cols;
static float *X;
static Output *m, *l;

void prepare(void)
{
    int r, c;
    rows = (int)number("--rows", 4);
    cols = (int)number("--cols", 32);
    X = normal_input("X", (long)rows * cols, 1, NULL);
    m = output("m", rows, 1, "row", "");
    l = output("l", rows, 1, "row", "");
    for (r = 0; r < rows; r++)
        for (c = 0; c < cols; c++)
            X[r * cols + c] += has_flag("--growing")   ? 0.1f * (float)c
                               : has_flag("--falling") ? -0.1f * (float)c
                                                       : -20.0f;
}

void call(void)
{
    reduce_rows(on_device(X, (long)rows * cols), back(m), back(l), rows, cols);
    end_kernels();
}

static int is_counted(int mistake, int c)
{
    return mistake == 1 ? c % 32 < 16 : mistake == 3 ? c % 32 == 0 : 1;
}

/* A sum to which nothing is done when the maximum grows: each number counts by the maximum that its
 * own lane, or its tile of 32 columns, had. */
static double stale_sum(const float *row)
{
    double sum = 0.0, so_far = -INFINITY;
    int c, k;
    for (c = 0; c < cols; c += 32) {
        for (k = c; k < c + 32 && k < cols; k++)
            so_far = fmax(so_far, row[k]);
        for (k = c; k < c + 32 && k < cols; k++)
            sum += exp(row[k] - so_far);
    }
    return sum;
}

void expect(int mistake)
{
    int r, c;
    for (r = 0; r < rows; r++) {
        double most = -INFINITY, sum = 0.0;
        for (c = 0; c < cols; c++)
            if (is_counted(mistake, c))
                most = fmax(most, X[r * cols + c]);
        for (c = 0; c < cols; c++)
            if (is_counted(mistake, c) && (mistake != 4 || c % 8 < 2))
                sum += exp(X[r * cols + c] - most);
        m->expected[r] = most;
        l->expected[r] = mistake == 2 ? stale_sum(X + r * cols) : mistake == 5 ? 4.0 * sum : sum;
    }
}

const Mistake *diagnose(void)
{
    static const Mistake empty = {
        "empty_lane", "l is NaN: a lane without a column has m = -inf, and -inf - (-inf) is NaN. "
                      "Where m_new is -inf, nothing was summed yet."};
    static const Mistake half = {
        "second_half", "Rows 8 to 15 are wrong: a lane holds two rows, g and g + 8, and each has a "
                       "pair (m, l) of its own."};
    static const Mistake lost = {"stale_l",
                                 "m is right, l is not: a sum that is relative to an old "
                                 "maximum counts exp(m_old - m_new) of what it is."};
    static const Mistake quad = {
        "wrong_lanes", "m is not the maximum of its row: the lanes that hold a row differ in other "
                       "bits of their number."};
    static const Mistake down = {
        "lane_0_only", "The pair of row 0 is right, and lane 0 writes that one. Lane r writes row "
                       "r: every lane has to end with the pair of its whole row, as with xor."};
    const long first = first_wrong(is_right(m) ? l : m);
    if (isnan(l->found[0]) || isnan(l->found[rows - 1]))
        return &empty;
    if (rows == 16 && first >= 8)
        return &half;
    if (rows < 16 && first > 0)
        return &down;
    return is_right(m) ? &lost : &quad;
}
