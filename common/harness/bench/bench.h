/* SPDX-License-Identifier: MIT
 *
 * bench.h: time something several times and keep all samples.
 *
 * Interface:
 * - Samples: milliseconds of every repetition; the median is what tables show, the spread says what
 *   it is worth.
 * - bench_now_ms / bench_thread_ms: wall clock and this thread's CPU time.
 * - bench_set_threads: for OpenMP loops and OpenBLAS.
 * - BenchSgemm, bench_sgemm_...: OpenBLAS sgemm n^3 on this machine now. CPU rows are compared with
 *   it.
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
/* How far the middle half of the samples lies apart, as a share of their median; NaN for fewer than
 * three. */
double samples_spread(const Samples *s);
void bench_set_threads(int threads);

/* C = A B, n x n, float32, on the threads set last. */
typedef struct BenchSgemm {
    int n;
    float *A, *B, *C;
} BenchSgemm;

int bench_sgemm_open(BenchSgemm *s, int n); /* -1: without OpenBLAS, or memory is short */
void bench_sgemm_run(const BenchSgemm *s);
void bench_sgemm_close(BenchSgemm *s); /* also of one that did not open */
/* Median of `rounds` runs; 0 where it does not open. */
double bench_sgemm_gflops(int n, int rounds, int threads);
void bench_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void bench_progress_clear(void);

#ifdef __cplusplus
}
#endif
#endif
