/* SPDX-License-Identifier: MIT
 *
 * debug.c: calls your part A on the inputs of a case, in a program of its own: for gdb and for the
 * checks of gcc. It knows no result.
 *
 *     make debug CASE="-N 3 -d 2 --causal"      make asan CASE="-N 333 -d 64"
 *
 * CASE is what the report shows as `flags`: -N, -d, --causal, --seed, --dist large.
 *
 * Interface: none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flash_simple.h"
#include "io/fill.h"
#include "tensor.h"

static float *filled(FillTensor which, int count, uint64_t seed, FillDist dist)
{
    float *values = malloc(sizeof(float) * (size_t)count);
    for (int at = 0; values && at < count; at++)
        values[at] = fill_value(seed, which, (uint64_t)at, dist);
    return values;
}

/* Part B calls these, which are the judge's; here nobody calls part B. */
void tensor_read_row(const Tensor *t, int64_t b, int64_t n, int64_t h, float *row)
{
    (void)t, (void)b, (void)n, (void)h, (void)row;
    abort();
}

void tensor_write_row(const Tensor *t, int64_t b, int64_t n, int64_t h, const float *row)
{
    (void)t, (void)b, (void)n, (void)h, (void)row;
    abort();
}

/* At most the first three rows. */
static void show(const char *name, const float *values, int rows, int width)
{
    for (int row = 0; row < rows && row < 3; row++) {
        printf("%s[%d] =", name, row);
        for (int x = 0; x < width; x++)
            printf(" %.6g", values[row * width + x]);
        printf("\n");
    }
}

int main(int count, char *words[])
{
    int N = 3, d = 2, causal = 0, status;
    uint64_t seed = 0;
    FillDist dist = FILL_NORMAL;
    float *Q, *K, *V, *O, *lse;
    for (int n = 1; n < count; n++) {
        const char *value = n + 1 < count ? words[n + 1] : "";
        if (strcmp(words[n], "-N") == 0)
            N = atoi(value);
        else if (strcmp(words[n], "-d") == 0)
            d = atoi(value);
        else if (strcmp(words[n], "--seed") == 0)
            seed = strtoull(value, NULL, 10);
        causal |= strcmp(words[n], "--causal") == 0;
        if (strcmp(words[n], "large") == 0)
            dist = FILL_LARGE;
    }
    if (N < 1 || d < 1)
        return 2;
    Q = filled(FILL_Q, N * d, seed, dist);
    K = filled(FILL_K, N * d, seed, dist);
    V = filled(FILL_V, N * d, seed, dist);
    O = malloc(sizeof(float) * (size_t)(N * d));
    lse = malloc(sizeof(float) * (size_t)N);
    if (!Q || !K || !V || !O || !lse)
        return 3;
    /* as in the judge: what is never written is NaN */
    memset(O, 0xFF, sizeof(float) * (size_t)(N * d));
    memset(lse, 0xFF, sizeof(float) * (size_t)N);
    show("Q", Q, N, d);
    show("K", K, N, d);
    show("V", V, N, d);
    status = flash_simple_variant(Q, K, V, O, lse, N, d, causal);
    show("O", O, N, d);
    show("lse", lse, N, 1);
    free(lse);
    free(O);
    free(V);
    free(K);
    free(Q);
    return status;
}
