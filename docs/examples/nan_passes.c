/* SPDX-License-Identifier: MIT
 *
 * nan_passes: why a checker must ask "is it small?" and never "is it large?".
 *
 * A comparison with NaN is false, whichever way round. The first check below therefore accepts a
 * result of NaN.
 *
 *     cc nan_passes.c -o nan_passes -lm && ./nan_passes
 *
 * Interface: none, it prints.
 */
#include <math.h>
#include <stdio.h>

/* [compare] */
static int is_wrong(float found, float expected, float bound)
{
    return fabsf(found - expected) > bound; /* NaN > bound is false: NaN is "not wrong" */
}

static int is_right(float found, float expected, float bound)
{
    return fabsf(found - expected) <= bound; /* NaN <= bound is false: NaN is not right */
}
/* [/compare] */

int main(void)
{
    printf("NaN is wrong: %d   NaN is right: %d\n", is_wrong(NAN, 1, 0.1f), is_right(NAN, 1, 0.1f));
    return 0;
}
