/* SPDX-License-Identifier: MIT
 *
 * reach.c: how far back can the last token look through several layers with a window, and how much
 * of its attention comes from there? For lesson 05.7; it needs nothing but this file.
 *
 * Every layer spreads its attention evenly over the query's own key and the `window` keys before
 * it. Then the weight of distance t after one layer more is the mean of the weights of the
 * distances t, t - 1, ..., t - window before it.
 *
 *     cc -O2 docs/examples/reach.c -o reach -lm && ./reach WINDOW
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* [layer] One layer more: weight[t] of the tokens t back. */
static void add_layer(double *weight, int length, int window)
{
    double sum = 0;
    double *before = malloc((size_t)length * sizeof *before);
    for (int t = 0; before && t < length; t++)
        before[t] = weight[t];
    for (int t = 0; before && t < length; t++) {
        sum += before[t] - (t > window ? before[t - window - 1] : 0);
        weight[t] = sum / (window + 1);
    }
    free(before);
}
/* [/layer] */

int main(int argc, char **argv)
{
    const int window = argc > 1 ? atoi(argv[1]) : 4095, most = 32;
    const int length = most * window + 1;
    double *weight = calloc((size_t)length, sizeof *weight);
    int layers = 0;
    if (!weight)
        return 3;
    weight[0] = 1; /* no layer: the token itself */
    printf("window %d\nlayers    can reach   mean distance   weight in the last quarter\n", window);
    for (int n = 1; n <= most; n *= 2) {
        double mean = 0, far = 0;
        for (; layers < n; layers++)
            add_layer(weight, length, window);
        for (int t = 0; t < length; t++) {
            mean += t * weight[t];
            far += 4 * (long)t > 3 * (long)n * window ? weight[t] : 0;
        }
        printf("%6d %12d %15.0f   %10.4f %%\n", n, n * window, mean, 100 * far);
    }
    free(weight);
    return 0;
}
