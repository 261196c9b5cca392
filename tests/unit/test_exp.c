/* SPDX-License-Identifier: MIT
 *
 * test_exp.c: the error of exp_f32 and exp2_f32 over all 2^32 floats, on every instruction set of
 * this CPU. (The row functions are tested in test_exp_rows.c.)
 *
 * 2^32 is not many: the floats are cut into 65536 blocks that share their upper 16 bits. In most
 * blocks the answer is one constant (1 below 2^-26, 0 or infinity far out, NaN). In the rest a
 * polynomial in double stands for the exact value; it is itself compared with libm.
 *
 * ATTN_TEST_QUICK=1 takes every 61st block, 2 (an emulated processor) or a sanitizer build every
 * 241st, and those where results overflow, become subnormal or vanish; the name of the test says
 * whether it was all.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3,no-trapping-math") /* values stay the same; loops become SIMD */
#endif

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "unit.h"

#include "units/exp2.h"
#include "units/exp_isa.h"

#define BLOCK       65536
#define MAX_ISAS    3
#define MAX_THREADS 16

#ifndef __has_feature /* clang has it, gcc has the macros */
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* The judge is no subject: it may use wider registers. The arithmetic is the same, without FMA. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !SANITIZED
#define WIDE __attribute__((target_clones("avx2", "default"), flatten))
#else
#define WIDE
#endif

static double double_of(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint64_t bits_of_double(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* 2^x or e^x in double for |x| < 256; relative error below 1e-13. Branch-free like the tested
 * code, but by its own route: Taylor's series, and one scaling. */
static inline double exact(double x, int base2)
{
    const double rounder = 0x1.8p52, ln2 = 0x1.62e42fefa39efp-1;
    const double z = (base2 ? x : x * 0x1.71547652b82fep+0) + rounder, k = z - rounder;
    const double scale = double_of((bits_of_double(z) - bits_of_double(rounder) + 1023) << 52);
    const double r =
        base2 ? (x - k) * ln2 : (x - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;
    double e = 1.0 / 479001600.0;
    e = e * r + 1.0 / 39916800.0;
    e = e * r + 1.0 / 3628800.0;
    e = e * r + 1.0 / 362880.0;
    e = e * r + 1.0 / 40320.0;
    e = e * r + 1.0 / 5040.0;
    e = e * r + 1.0 / 720.0;
    e = e * r + 1.0 / 120.0;
    e = e * r + 1.0 / 24.0;
    e = e * r + 1.0 / 6.0;
    e = e * r + 0.5;
    e = e * r + 1.0;
    e = e * r + 1.0;
    return e * scale;
}

/* |found - exact| in ulps of the exact value. Infinity counts as 2^128, the float that would come
 * next, so the overflow border needs no rule of its own. NaN gives NaN. */
static inline double error_ulps(float found, double y)
{
    const double top = 0x1p128, capped = y < top ? y : top;
    const double binade = double_of(bits_of_double(capped) & UINT64_C(0x7FF0000000000000));
    const double below = binade < 0x1p127 ? binade : 0x1p127;
    const double power =
        below > 0x1p-126 ? below : 0x1p-126; /* ulp = power * 2^-23; 2069 = 2 * 1023 + 23 */
    const double per_ulp = double_of((UINT64_C(2069) << 52) - bits_of_double(power));
    const double value = top < (double)found ? top : (double)found; /* NaN stays */
    return fabs(value - capped) * per_ulp;
}

typedef struct Work {
    int base2, step;
    double bound;
    atomic_int next_block;
    atomic_llong tested, off;
    double worst[MAX_ISAS]; /* under the lock */
    float worst_x[MAX_ISAS];
    double worst_reference; /* relative difference between exact() and libm */
    pthread_mutex_t lock;
} Work;

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Blocks (upper 16 bits) where e^x or 2^x overflows, becomes subnormal, vanishes or is near 1. */
static int is_border(uint32_t block)
{
    static const uint32_t border[] = {0x0000, 0x8000, 0x3380, 0xB380, 0x42B1, 0xC2AE, 0xC2CF,
                                      0xC2D0, 0x4300, 0x42FF, 0xC2FC, 0xC314, 0xC315, 0xC316,
                                      0xC317, 0x7F7F, 0x7F80, 0x7FC0, 0xFF80, 0xFFC0};
    const size_t count = sizeof border / sizeof border[0];
    size_t t = 0;
    while (t < count && border[t] != block)
        t++;
    return t < count;
}

/* Blocks with one answer. 1: found it (in *answer). */
static int constant_block(uint32_t block, float *answer)
{
    const uint32_t magnitude = (block & 0x7FFF) << 16;
    if (magnitude >= 0x43800000) /* |x| >= 256, infinity and NaN included */
        *answer = block & 0x8000 ? 0.0f : INFINITY;
    else if (magnitude < 0x32800000) /* |x| < 2^-26: 1 + x rounds to 1 */
        *answer = 1.0f;
    else
        return 0;
    return 1;
}

static int64_t check_constant(uint32_t block, const float *x, const float *y, float answer)
{
    int32_t off = 0;
    if ((block & 0x7FFF) < 0x7F80) { /* finite x: the loop that runs 2^31 times */
        for (int c = 0; c < BLOCK; c++)
            off += exp_bits_of(y[c]) != exp_bits_of(answer);
        return off;
    }
    for (int c = 0; c < BLOCK; c++)
        off += x[c] != x[c] ? y[c] == y[c] : exp_bits_of(y[c]) != exp_bits_of(answer);
    return off;
}

/* *worst is raised to the largest error of the block, *at is its place. Errors are compared by
 * their bits: non-negative floats are ordered like them and NaN is above all, so none is missed. */
static int64_t check_exact(const float *y, const double *want, float *error, double bound,
                           double *worst, int *at)
{
    int64_t off = 0;
    int32_t most = 0;
    for (int c = 0; c < BLOCK; c++)
        error[c] = (float)error_ulps(y[c], want[c]);
    for (int c = 0; c < BLOCK; c++) {
        const int32_t bits = (int32_t)(exp_bits_of(error[c]) & 0x7FFFFFFF);
        most = bits > most ? bits : most;
    }
    *worst = (double)float_of((uint32_t)most);
    for (*at = 0; (exp_bits_of(error[*at]) & 0x7FFFFFFF) != (uint32_t)most;)
        ++*at;
    if (!(*worst <= bound))
        for (int c = 0; c < BLOCK; c++)
            off += !((double)error[c] <= bound);
    return off;
}

/* Room for one block; y holds the results of this instruction set and of the one before. */
typedef struct Buffers {
    float x[BLOCK], y[2][BLOCK], error[BLOCK];
    double want[BLOCK];
} Buffers;

/* The exact results of a block, and how far they are from libm's at every 997th place. */
static double reference_block(const float *x, double *want, int base2, int first)
{
    double difference = 0.0;
    for (int c = 0; c < BLOCK; c++)
        want[c] = exact((double)x[c], base2);
    for (int c = first; c < BLOCK; c += 997) {
        const double libm = base2 ? exp2((double)x[c]) : exp((double)x[c]);
        const double now = fabs(want[c] / libm - 1.0);
        difference = now <= difference ? difference : now;
    }
    return difference;
}

WIDE static void prove_block(Work *w, uint32_t block, Buffers *room)
{
    float answer = 0.0f;
    const int constant = constant_block(block, &answer);
    double difference = 0.0, worst = 0.0;
    int64_t off = 0;
    int at = 0, done = 0;
    for (int c = 0; c < BLOCK; c++)
        room->x[c] = float_of(block << 16 | (uint32_t)c);
    if (!constant)
        difference = reference_block(room->x, room->want, w->base2, (int)(block % 997));
    for (int t = 0; t < exp_isa_count; t++) {
        float *const y = room->y[done % 2];
        if (!exp_isa_usable(exp_isa_table[t]))
            continue;
        (w->base2 ? exp_isa_table[t]->exp2_all : exp_isa_table[t]->exp_all)(room->x, y, BLOCK);
        /* Equal bits have equal errors: AVX2 and AVX-512 do the same arithmetic. */
        if (done == 0 || memcmp(y, room->y[(done - 1) % 2], sizeof room->y[0]) != 0)
            off = constant ? check_constant(block, room->x, y, answer)
                           : check_exact(y, room->want, room->error, w->bound, &worst, &at);
        done++;
        atomic_fetch_add(&w->off, off);
        atomic_fetch_add(&w->tested, BLOCK);
        pthread_mutex_lock(&w->lock);
        if (worst > w->worst[t]) {
            w->worst[t] = worst;
            w->worst_x[t] = room->x[at];
        }
        if (difference > w->worst_reference)
            w->worst_reference = difference;
        pthread_mutex_unlock(&w->lock);
    }
}

static void *prove_thread(void *arg)
{
    Work *w = arg;
    Buffers *buffers = malloc(sizeof *buffers);
    int block;
    while (buffers && (block = atomic_fetch_add(&w->next_block, 1)) < BLOCK)
        if (block % w->step == 0 || is_border((uint32_t)block))
            prove_block(w, (uint32_t)block, buffers);
    free(buffers);
    return NULL;
}

static int step_wanted(void)
{
    const char *quick = getenv("ATTN_TEST_QUICK");
    const int level = quick ? atoi(quick) : 0;
    return level == 2 || SANITIZED ? 241 : level ? 61 : 1;
}

static void prove(int base2, double bound)
{
    Work w = {.base2 = base2, .step = step_wanted(), .bound = bound};
    pthread_t thread[MAX_THREADS];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int usable = 0, started = 0;
    pthread_mutex_init(&w.lock, NULL);
    cores = cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : cores;
    for (int t = 0; t < cores; t++)
        started += pthread_create(&thread[started], NULL, prove_thread, &w) == 0;
    assert_true(started > 0);
    for (int t = 0; t < started; t++)
        pthread_join(thread[t], NULL);
    pthread_mutex_destroy(&w.lock);
    for (int t = 0; t < exp_isa_count; t++)
        if (exp_isa_usable(exp_isa_table[t])) {
            usable++;
            fprintf(stderr, "# %s %s: worst %.4f ulp at %a (bound %.2f)\n",
                    base2 ? "exp2_f32" : "exp_f32", exp_isa_table[t]->name, w.worst[t],
                    (double)w.worst_x[t], bound);
            assert_true(w.worst[t] > 0.4 && w.worst[t] <= bound); /* 0: nothing was measured */
        }
    fprintf(stderr, "# %lld floats on %d instruction sets, reference within %.1e of libm\n",
            (long long)w.tested / usable, usable, w.worst_reference);
    assert_int_equal(w.off, 0);
    assert_true(w.worst_reference > 0.0 && w.worst_reference < 1e-13);
    assert_true(w.step > 1 || w.tested == (int64_t)usable << 32);
}

TEST(exp_error)
{
    prove(0, EXP_F32_MAX_ULP);
}

TEST(exp2_error)
{
    prove(1, EXP2_F32_MAX_ULP);
}

/* The judge must be able to say no. */
TEST(error_measure_sees_errors)
{
    assert_true(error_ulps(1.0f, 1.0) == 0.0);
    assert_true(fabs(error_ulps(nextafterf(1.5f, 2.0f), 1.5) - 1.0) < 1e-12);
    assert_true(error_ulps(0.0f, 0x1p-149) == 1.0);
    assert_true(error_ulps(INFINITY, 0x1p130) == 0.0 && error_ulps(INFINITY, 0x1p127) > 1e6);
    assert_true(error_ulps(3e38f, 0x1p130) > 1e6);
    assert_false(error_ulps(NAN, 1.0) <= 1e300);
}

TEST(special_values)
{
    assert_true(exp_f32(0.0f) == 1.0f && exp_f32(-0.0f) == 1.0f);
    assert_true(exp2_f32(0.0f) == 1.0f && exp2_f32(10.0f) == 1024.0f);
    assert_true(exp2_f32(-149.0f) == 0x1p-149f && exp2_f32(127.0f) == 0x1p127f);
    assert_true(exp_f32(-INFINITY) == 0.0f && exp2_f32(-INFINITY) == 0.0f);
    assert_true(!signbit(exp_f32(-INFINITY)) && !signbit(exp_f32(-1e30f)));
    assert_true(exp_f32(INFINITY) == INFINITY && exp2_f32(128.0f) == INFINITY);
    assert_true(isnan(exp_f32(NAN)) && isnan(exp_f32(-NAN)) && isnan(exp2_f32(NAN)));
    assert_true(isnan(exp_f32(float_of(0x7F800001)))); /* the smallest signalling one */
}

int main(void)
{
    unit_list[0].name = step_wanted() > 1 ? "exp_error_some_blocks" : "exp_error_all_floats";
    unit_list[1].name = step_wanted() > 1 ? "exp2_error_some_blocks" : "exp2_error_all_floats";
    return unit_tests();
}
