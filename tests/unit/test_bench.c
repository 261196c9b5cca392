/* SPDX-License-Identifier: MIT
 *
 * test_bench.c: the median, the two clocks and the sgemm rate; and the rounds of ratio.h. Rates
 * depend on the machine, but what a round says must agree with itself, and rounds that lie far
 * apart must be seen.
 */
#include <math.h>
#include <time.h>

#include "unit.h"

#include "attn_config.h"
#include "harness/bench/bench.h"
#include "harness/bench/fma_isa.h"
#include "harness/bench/ratio.h"
#include "units/exp_isa.h"

TEST(median_of_few)
{
    Samples s = {{5.0, 1.0, 9.0, 2.0}, 0};
    assert_true(isnan(samples_median(&s)));
    s.count = 1;
    assert_true(samples_median(&s) == 5.0);
    s.count = 2;
    assert_true(samples_median(&s) == 3.0);
    s.count = 3;
    assert_true(samples_median(&s) == 5.0);
    s.count = 4;
    assert_true(samples_median(&s) == 3.5);
    /* the samples keep their order: JSON rows show them as they came */
    assert_true(s.ms[0] == 5.0 && s.ms[1] == 1.0 && s.ms[2] == 9.0 && s.ms[3] == 2.0);
}

TEST(median_of_many)
{
    static Samples s;
    for (int i = 0; i < BENCH_MAX_SAMPLES;
         i++) /* 7 is coprime to 1000: a permutation of 0 .. 999 */
        s.ms[i] = i * 7 % BENCH_MAX_SAMPLES;
    s.count = BENCH_MAX_SAMPLES;
    assert_true(samples_median(&s) == (BENCH_MAX_SAMPLES - 1) / 2.0);
}

TEST(clocks)
{
    const struct timespec pause = {0, 50000000};
    const double wall = bench_now_ms(), cpu = bench_thread_ms();
    double slept, worked, end;
    volatile double x = 1.0;
    nanosleep(&pause, NULL);
    slept = bench_now_ms() - wall;
    worked = bench_thread_ms() - cpu;
    assert_true(slept >= 50.0);
    assert_true(worked >= 0.0 && worked < 25.0); /* sleeping costs no CPU time */
    end = bench_thread_ms() + 5.0;
    while (bench_thread_ms() < end)
        x = x * 1.0000001;
    assert_true(bench_now_ms() - wall >= slept + 4.0);
}

TEST(sgemm_rate)
{
    const double gflops = bench_sgemm_gflops(128, 3, 1);
#ifdef HAVE_OPENBLAS
    assert_true(gflops > 0.01 && gflops < 1e5);
#else
    assert_true(gflops == 0.0);
#endif
}

/* --- rounds ------------------------------------------------------------------------------------*/

/* Each of the 12 sums of a lane tends to 0.5 / (1 - 0.75): the loop does what it is counted for. */
static void check_loop(const FmaIsa *isa)
{
    const int lanes = isa->flops_per_turn / (2 * 12 * 4);
    assert_true(lanes == 4 || lanes == 8 || lanes == 16);
    assert_true(fabs((double)isa->run(1000) - 2.0 * 12 * lanes) < 1e-3);
    assert_true(isa->run(0) != isa->run(1));
}

TEST(fma_loops)
{
    check_loop(&fma_isa_portable);
#ifdef HAVE_ISA_AVX2
    if (exp_isa_usable(&exp_isa_avx2))
        check_loop(&fma_isa_avx2);
#endif
#ifdef HAVE_ISA_AVX512
    if (exp_isa_usable(&exp_isa_avx512))
        check_loop(&fma_isa_avx512);
#endif
    for (int threads = 1; threads <= 2; threads++)
        assert_true(ratio_fma_gflops(threads) > 0.01 && ratio_fma_gflops(threads) < 1e5);
}

/* Of 8 rounds the two least and the two most do not count; fewer than three say nothing. */
TEST(spread)
{
    Samples s = {{5.0, 1.0, 4.0, 9.0, 2.0, 8.0, 3.0, 6.0}, 8};
    assert_true(fabs(samples_spread(&s) - (6.0 - 3.0) / 4.5) < 1e-12);
    assert_true(s.ms[0] == 5.0 && s.ms[7] == 6.0); /* left as they are */
    s.count = 3;
    assert_true(fabs(samples_spread(&s) - (5.0 - 1.0) / 4.0) < 1e-12);
    s.count = 2;
    assert_true(isnan(samples_spread(&s)));
    s = (Samples){{7.0, 7.0, 7.0}, 3};
    assert_true(samples_spread(&s) == 0.0);
}

/* Half as much again for two threads, where sgemm gains all: three quarters of its scaling. */
TEST(scaling)
{
    assert_true(fabs(ratio_scaling(150.0, 100.0, 400.0, 200.0) - 0.75) < 1e-12);
    assert_true(fabs(ratio_scaling(200.0, 100.0, 300.0, 200.0) - 4.0 / 3.0) < 1e-12);
}

typedef struct Work {
    int prepared, runs, most_threads;
    volatile float x;
} Work;

static void prepare(void *context)
{
    ((Work *)context)->prepared++;
}

static void work(void *context, int threads)
{
    Work *w = context;
    w->runs++;
    w->most_threads = threads > w->most_threads ? threads : w->most_threads;
    for (int i = 0; i < 100000; i++)
        w->x = w->x * 0.5f + 1.0f;
}

#ifdef HAVE_OPENBLAS
static void check_rounds(const RatioResult *r, double flops, int threads, int n)
{
    assert_int_equal(n, r->ratio.count);
    assert_true(r->ms.count == n && r->sgemm.count == n && r->fma.count == n);
    assert_int_equal(threads > 1 ? n : 0, r->scaling.count);
    for (int i = 0; i < n; i++) {
        const double piece = r->ratio.ms[i] * r->sgemm.ms[i]; /* GFLOP/s */
        assert_true(fabs(piece * r->ms.ms[i] * 1e6 / flops - 1.0) < 1e-9);
        assert_true(threads == 1 || (r->scaling.ms[i] > 0.0 && isfinite(r->scaling.ms[i])));
        assert_true(fabs(r->sgemm_of_fma.ms[i] * r->fma.ms[i] / r->sgemm.ms[i] - 1.0) < 1e-9);
    }
}
#endif

#ifdef HAVE_OPENBLAS
static void one_millisecond(void *context, int threads)
{
    const double start = bench_thread_ms();
    (void)context, (void)threads;
    while (bench_thread_ms() - start < 1.0) {
    }
}

/* However often it runs in a row to be long enough, the time is that of one run. */
TEST(time_of_one_run)
{
    static RatioResult result;
    const RatioPiece piece = {NULL, one_millisecond, NULL, 2e4}; /* 23 times in a row */
    assert_int_equal(0, ratio_measure(&result, &piece, 96, 2, 1));
    for (int i = 0; i < 2; i++)
        assert_true(result.ms.ms[i] >= 1.0 && result.ms.ms[i] < 3.0);
}
#endif

TEST(rounds)
{
    static RatioResult result;
    Work w = {0, 0, 0, 1.0f};
    const RatioPiece piece = {prepare, work, &w, 2e5};
#ifdef HAVE_OPENBLAS
    for (int threads = 1; threads <= 2; threads++) {
        const int before = w.prepared;
        assert_int_equal(0, ratio_measure(&result, &piece, 96, 2, threads));
        assert_int_equal(2 * threads + 1, w.prepared - before); /* one round warms up */
        check_rounds(&result, piece.flops, threads, 2);
        assert_int_equal(threads, w.most_threads);
    }
    /* a piece of 2e5 operations runs until a quarter of sgemm's 2 * 96^3 is reached */
    assert_int_equal(3 * w.prepared, w.runs);
#else
    assert_int_equal(-1, ratio_measure(&result, &piece, 96, 2, 1));
    assert_int_equal(0, w.runs);
#endif
}
