/* SPDX-License-Identifier: MIT
 *
 * gpu_columns.c: Y[c] = sum over the rows of X [rows][cols], by several blocks that own rows.
 */
#include "gpu.h"

void sum_columns(const float *X, float *Y, float *part, int rows, int cols);

const Mistake mistakes[] = {
    {"one_block", "Only the rows of one block are in the sum."},
    {NULL, NULL},
};

static int rows, cols;
static float *X;
static Output *Y;

void prepare(void)
{
    rows = (int)number("--rows", 64);
    cols = (int)number("--cols", 64);
    X = normal_input("X", (long)rows * cols, 1, NULL);
    Y = output("Y", cols, 1, "column", "");
}

void call(void)
{
    float *part = calloc((size_t)(rows * cols), sizeof(float));
    memset(Y->found, 0, sizeof(float) * (size_t)cols);
    sum_columns(on_device(X, (long)rows * cols), back(Y), on_device(part, (long)rows * cols), rows,
                cols);
    end_kernels();
    free(part);
}

void expect(int mistake)
{
    int r, c;
    for (c = 0; c < cols; c++) {
        Y->expected[c] = 0.0;
        for (r = 0; r < (mistake ? 16 : rows); r++)
            Y->expected[c] += X[r * cols + c];
    }
}
