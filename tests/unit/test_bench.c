/* SPDX-License-Identifier: MIT
 *
 * test_bench.c: the median, the clock and the sgemm rate.
 */
#include <math.h>
#include <time.h>

#include "unit.h"

#include "attn_config.h"
#include "harness/bench/bench.h"

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

TEST(the_clock_runs)
{
    const struct timespec pause = {0, 50000000};
    const double start = bench_now_ms();
    nanosleep(&pause, NULL);
    assert_true(bench_now_ms() - start >= 50.0);
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
