/* SPDX-License-Identifier: MIT
 *
 * bench.c: clocks, the median, this machine's sgemm rate and a progress line. See bench.h.
 */
#include "harness/bench/bench.h"

#include "attn_config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef HAVE_OPENMP
#include <omp.h>
#endif
#ifdef HAVE_OPENBLAS
#include <cblas.h>
#endif

double bench_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double samples_median(const Samples *s)
{
    double sorted[BENCH_MAX_SAMPLES];
    const int n = s->count;
    if (n < 1)
        return NAN;
    memcpy(sorted, s->ms, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    return n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

/* OpenBLAS waits for ever for threads that OpenMP may not start: OMP_THREAD_LIMIT. */
void bench_set_threads(int threads)
{
#ifdef HAVE_OPENMP
    const int most = omp_get_thread_limit();
    omp_set_num_threads(threads);
    threads = threads < most ? threads : most;
#endif
#ifdef HAVE_OPENBLAS
    openblas_set_num_threads(threads);
#endif
    (void)threads;
}

double bench_sgemm_gflops(int n, int rounds, int threads)
{
#ifdef HAVE_OPENBLAS
    const size_t count = (size_t)n * (size_t)n;
    Samples s = {{0}, 0};
    float *A = malloc(count * sizeof *A), *B = malloc(count * sizeof *B);
    float *C = calloc(count, sizeof *C);
    const int failed = !A || !B || !C || rounds < 1;
    for (size_t i = 0; !failed && i < count; i++) {
        A[i] = (float)(i % 7) - 3.0f;
        B[i] = (float)(i % 11) - 5.0f;
    }
    bench_set_threads(threads);
    /* Round -1 warms up: page faults of C, the thread pool, the clock. */
    for (int round = -1; !failed && round < rounds && s.count < BENCH_MAX_SAMPLES; round++) {
        const double start = bench_now_ms();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, A, n, B, n, 0.0f, C,
                    n);
        if (round >= 0)
            s.ms[s.count++] = bench_now_ms() - start;
    }
    free(A);
    free(B);
    free(C);
    return failed ? 0.0 : 2.0 * n * (double)n * n / (samples_median(&s) * 1e6);
#else
    (void)n, (void)rounds, (void)threads;
    return 0.0;
#endif
}

static int progress_shown;

void bench_progress(const char *format, ...)
{
    va_list list;
    if (!isatty(STDERR_FILENO))
        return;
    va_start(list, format);
    fputs("\r\033[K", stderr);
    vfprintf(stderr, format, list);
    va_end(list);
    fflush(stderr);
    progress_shown = 1;
}

void bench_progress_clear(void)
{
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = 0;
}
