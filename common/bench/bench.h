/* SPDX-License-Identifier: MIT
 *
 * bench.h: time something several times and keep all samples.
 *
 * Interface:
 * - Samples: milliseconds of every repetition; the median is what tables show.
 * - bench_now_ms / bench_thread_ms: wall clock and this thread's CPU time.
 * - bench_set_threads: for OpenMP loops and OpenBLAS.
 * - bench_sgemm_gflops: OpenBLAS sgemm n^3 on this machine now, which CPU rows are compared with.
 * - bench_progress: one line on stderr when that is a terminal.
 */
#ifndef ATTN_BENCH_H
#define ATTN_BENCH_H

#ifdef __cplusplus
extern "C" {
#endif

#define BENCH_MAX_SAMPLES 1000

typedef struct Samples {
    double ms[BENCH_MAX_SAMPLES];
    int count;
} Samples;

double bench_now_ms(void);
double bench_thread_ms(void);
double samples_median(const Samples *s); /* NaN when empty */
/* Median of `rounds` runs of C = A B, n x n, float32; 0 without OpenBLAS. */
void bench_set_threads(int threads);
double bench_sgemm_gflops(int n, int rounds, int threads);
void bench_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void bench_progress_clear(void);

#ifdef __cplusplus
}
#endif
#endif
