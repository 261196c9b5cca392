/* SPDX-License-Identifier: MIT
 *
 * bench.h: time something several times and keep all samples.
 *
 * Interface:
 * - Samples: milliseconds of every repetition; the median is what tables show, the spread says what
 *   it is worth.
 * - bench_now_ms: the wall clock.
 * - bench_set_threads: for OpenMP loops and OpenBLAS.
 * - bench_sgemm_gflops: OpenBLAS sgemm n^3 on this machine now. CPU rows are compared with
 *   it.
 * - bench_progress: one line on stderr when that is a terminal.
 */
#ifndef ATTN_BENCH_H
#define ATTN_BENCH_H

#define BENCH_MAX_SAMPLES 1000

typedef struct Samples {
    double ms[BENCH_MAX_SAMPLES];
    int count;
} Samples;

double bench_now_ms(void);
double samples_median(const Samples *s); /* NaN when empty */
void bench_set_threads(int threads);

/* C = A B, n x n, float32. Median of `rounds` runs; 0 without OpenBLAS, or when memory is short. */
double bench_sgemm_gflops(int n, int rounds, int threads);
void bench_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void bench_progress_clear(void);
#endif
