/* SPDX-License-Identifier: MIT
 *
 * when_free.c: from how many tokens on each rank a ring's messages hide behind its computations.
 * The calculator of lesson 06.8.
 *
 *     when_free TFLOPS GBS [H HKV D]     the kernel's rate, one direction of one rank's link
 *
 * A step computes with n queries and n keys and sends a block of n tokens meanwhile:
 *
 *     forward     4 n^2 H d a / F  >=  2 n Hkv d b / BW          a: visible share of the pairs,
 *     ring       10 n^2 H d a / F  >=  2 n Hkv d (b + b_g) / BW     1, or 1/2 for causal zigzag
 *     burst      10 n^2 H d a / F  >=  n H (2 d b + 8 + d b_g) / BW
 *
 * b = 2 bytes (16 bits), b_g = 4 (float32 sums). Latency is left out, and the smaller rate of a
 * small block too.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    const double F = argc > 2 ? atof(argv[1]) * 1e12 : 0, BW = argc > 2 ? atof(argv[2]) * 1e9 : 0;
    const double H = argc > 5 ? atof(argv[3]) : 32, Hkv = argc > 5 ? atof(argv[4]) : 8;
    const double d = argc > 5 ? atof(argv[5]) : 128, b = 2, b_g = 4;
    if (!(F > 0 && BW > 0 && H >= Hkv && Hkv > 0 && d > 0)) {
        fprintf(stderr, "usage: when_free TFLOPS GBS [H HKV D]\n");
        return 2;
    }
    const struct {
        const char *pass;
        double flops, bytes; /* of a step: flops n^2 and bytes n */
    } rows[] = {{"forward", 4 * H * d, 2 * Hkv * d * b},
                {"ring backward", 10 * H * d, 2 * Hkv * d * (b + b_g)},
                {"burst backward", 10 * H * d, H * (2 * d * b + 8 + d * b_g)}};
    printf("%g TFLOP/s, %g GB/s, %g heads, %g kv heads, d = %g, 16 bits, sums in float32\n",
           F / 1e12, BW / 1e9, H, Hkv, d);
    printf("tokens per rank      no mask   causal zigzag\n");
    for (int i = 0; i < 3; i++) {
        const double n = rows[i].bytes / rows[i].flops * F / BW;
        printf("%-16s %11.0f %15.0f\n", rows[i].pass, ceil(n), ceil(2 * n));
    }
    return 0;
}
