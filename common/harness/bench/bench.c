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

static double clock_ms(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

double bench_now_ms(void)
{
    return clock_ms(CLOCK_MONOTONIC);
}

double bench_thread_ms(void)
{
    return clock_ms(CLOCK_THREAD_CPUTIME_ID);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(const Samples *s, double sorted[BENCH_MAX_SAMPLES])
{
    memcpy(sorted, s->ms, (size_t)s->count * sizeof *sorted);
    qsort(sorted, (size_t)s->count, sizeof *sorted, compare);
}

double samples_median(const Samples *s)
{
    double sorted[BENCH_MAX_SAMPLES];
    const int n = s->count;
    if (n < 1)
        return NAN;
    sort(s, sorted);
    return n % 2 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]);
}

double samples_spread(const Samples *s)
{
    double sorted[BENCH_MAX_SAMPLES];
    const int n = s->count, quarter = n / 4;
    if (n < 3)
        return NAN;
    sort(s, sorted);
    return (sorted[n - 1 - quarter] - sorted[quarter]) / samples_median(s);
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

int bench_sgemm_open(BenchSgemm *s, int n)
{
    const size_t count = (size_t)n * (size_t)n;
    *s = (BenchSgemm){n, malloc(count * sizeof *s->A), malloc(count * sizeof *s->B),
                      calloc(count, sizeof *s->C)};
#ifndef HAVE_OPENBLAS
    return -1;
#endif
    if (!s->A || !s->B || !s->C)
        return -1;
    for (size_t i = 0; i < count; i++) {
        s->A[i] = (float)(i % 7) - 3.0f;
        s->B[i] = (float)(i % 11) - 5.0f;
    }
    return 0;
}

void bench_sgemm_run(const BenchSgemm *s)
{
#ifdef HAVE_OPENBLAS
    const int n = s->n;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, s->A, n, s->B, n, 0.0f,
                s->C, n);
#else
    (void)s;
#endif
}

void bench_sgemm_close(BenchSgemm *s)
{
    free(s->A);
    free(s->B);
    free(s->C);
}

double bench_sgemm_gflops(int n, int rounds, int threads)
{
    Samples s = {{0}, 0};
    BenchSgemm sgemm;
    const int failed = bench_sgemm_open(&sgemm, n) != 0 || rounds < 1;
    bench_set_threads(threads);
    /* Round -1 warms up: page faults of C, the thread pool, the clock. */
    for (int round = -1; !failed && round < rounds && s.count < BENCH_MAX_SAMPLES; round++) {
        const double start = bench_now_ms();
        bench_sgemm_run(&sgemm);
        if (round >= 0)
            s.ms[s.count++] = bench_now_ms() - start;
    }
    bench_sgemm_close(&sgemm);
    return failed ? 0.0 : 2.0 * n * (double)n * n / (samples_median(&s) * 1e6);
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
