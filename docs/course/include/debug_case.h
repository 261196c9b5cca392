/* SPDX-License-Identifier: MIT
 *
 * debug_case.h: what the debug.c of all assignments share: the sizes of a case, its inputs, and
 * memory for results. They call the student's code in a program of its own, for gdb and for the
 * checks of gcc, and know no result.
 *
 * Interface:
 * - DebugCase, debug_read: CASE of the Makefile; it is what the report shows as `flags`.
 * - debug_inputs: an array as the judge fills it. debug_results: as in the judge, what is never
 *   written is NaN. debug_show: its first three rows.
 */
#ifndef COURSE_DEBUG_CASE_H
#define COURSE_DEBUG_CASE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/io/fill.h"

#ifndef CODE /* CODE of the Makefile: whose functions are called */
#define CODE "mine.c"
#endif

typedef struct DebugCase {
    int N, Nk, d, H, Hkv, rows, cols, causal, left, right, Br, Bc, ranks;
    uint64_t seed;
    FillDist dist;
} DebugCase;

static inline int debug_number(const char *flag, const char *value)
{
    const int number = atoi(value);
    if (number < 1) {
        fprintf(stderr, "CASE: found %s %s, accepted is a number from 1 on\n", flag, value);
        exit(2);
    }
    return number;
}

static inline DebugCase debug_read(int count, char *words[])
{
    DebugCase c;
    const struct {
        const char *flag;
        int *to;
    } numbers[] = {{"-N", &c.N},          {"--seq-q", &c.N},    {"--seq-kv", &c.Nk},
                   {"-d", &c.d},          {"-H", &c.H},         {"--kv-heads", &c.Hkv},
                   {"--rows", &c.rows},   {"--cols", &c.cols},  {"--block-q", &c.Br},
                   {"--block-kv", &c.Bc}, {"--ranks", &c.ranks}};
    memset(&c, 0, sizeof c);
    c.N = c.rows = 3;
    c.d = c.ranks = 2;
    c.H = 1;
    c.cols = 5;
    c.left = c.right = -1;
    c.Br = c.Bc = 64;
    for (int n = 1; n < count; n++) {
        const char *value = n + 1 < count ? words[n + 1] : "";
        for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++)
            if (strcmp(words[n], numbers[at].flag) == 0)
                *numbers[at].to = debug_number(words[n], value);
        if (strcmp(words[n], "--twist") == 0 && strcmp(CODE, "mine_twist.c") != 0) {
            fprintf(stderr, "CASE: found --twist, accepted with CODE=mine_twist.c\n");
            exit(2);
        }
        if (strcmp(words[n], "--seed") == 0)
            c.seed = strtoull(value, NULL, 10);
        if (strcmp(words[n], "--causal") == 0)
            c.causal = 1;
        if (strcmp(words[n], "--window") == 0)
            sscanf(value, "%d,%d", &c.left, &c.right);
        if (strcmp(words[n], "large") == 0)
            c.dist = FILL_LARGE;
    }
    c.right = c.causal ? 0 : c.right;
    c.Nk = c.Nk ? c.Nk : c.N;
    c.Hkv = c.Hkv ? c.Hkv : c.H;
    if (c.H % c.Hkv != 0) {
        fprintf(stderr, "CASE: found -H %d, accepted is a multiple of --kv-heads %d\n", c.H, c.Hkv);
        exit(2);
    }
    return c;
}

static inline float *debug_memory(int count)
{
    float *values = (float *)malloc(sizeof(float) * (size_t)count);
    if (!values)
        exit(3);
    return values;
}

static inline float *debug_inputs(const DebugCase *c, FillTensor which, int count)
{
    float *values = debug_memory(count);
    for (int at = 0; at < count; at++)
        values[at] = fill_value(c->seed, which, (uint64_t)at, c->dist);
    return values;
}

static inline float *debug_results(int count)
{
    return (float *)memset(debug_memory(count), 0xFF, sizeof(float) * (size_t)count);
}

static inline void debug_show(const char *name, const float *values, int rows, int width)
{
    for (int row = 0; row < rows && row < 3; row++) {
        printf("%s[%d] =", name, row);
        for (int x = 0; x < width; x++)
            printf(" %.6g", values[row * width + x]);
        printf("\n");
    }
}

#endif
