/* SPDX-License-Identifier: MIT
 *
 * gpu_fragments.c: O = scale * X, X [rows][d], by way of a workspace W in an order of one's own.
 */
#include "gpu.h"

void scale_rows(const float *X, float *W, float *O, float scale, int rows, int d);

const Mistake mistakes[] = {
    {"rows_exchanged", "Rows r and r + 8 of each tile are exchanged."},
    {"columns_exchanged", "Neighbouring columns are exchanged."},
    {NULL, NULL},
};

static int rows, d;
static float *X;
static Output *O;

void prepare(void)
{
    rows = (int)number("--rows", 16);
    d = (int)number("-d", 64);
    X = normal_input("X", (long)rows * d, 1, NULL);
    O = output("O", rows, d, "row", "channel");
}

void call(void)
{
    float *W = calloc((size_t)(rows * d), sizeof(float));
    scale_rows(on_device(X, (long)rows * d), on_device(W, (long)rows * d), back(O), 0.125f, rows,
               d);
    end_kernels();
    free(W);
}

void expect(int mistake)
{
    int r, x;
    for (r = 0; r < rows; r++)
        for (x = 0; x < d; x++)
            O->expected[r * d + x] =
                0.125 * X[(mistake == 1 ? r ^ 8 : r) * d + (mistake == 2 ? x ^ 1 : x)];
}

const Mistake *diagnose(void)
{
    static const Mistake place = {
        "another_place",
        "where() does not ask for the place at which store_tile has put a number. Take lane 6 of a "
        "tile: which r and x has its c[1], where is it stored, and what is where(r, x)?"};
    return &place;
}
