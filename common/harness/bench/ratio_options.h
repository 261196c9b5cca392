/* SPDX-License-Identifier: MIT
 *
 * ratio_options.h: between the files of ratio_main; nobody else includes it.
 *
 * Interface:
 * - RatioOptions, ratio_read_options: CLI_CONTINUE, or the status to exit with. May start the
 *   program anew with an sgemm that fits the processor. windowed: other lengths by default.
 */
#ifndef ATTN_RATIO_OPTIONS_H
#define ATTN_RATIO_OPTIONS_H

#include <stdint.h>

#define RATIO_MOST_LENGTHS 8

typedef struct RatioOptions {
    int rounds, threads, sgemm_n, check;
    int64_t lengths[RATIO_MOST_LENGTHS];
    int length_count;
    const char *json;
} RatioOptions;

int ratio_read_options(RatioOptions *o, int windowed, int argc, char **argv);

#endif
