/* SPDX-License-Identifier: MIT
 *
 * unit.h: unit tests in one header: tests that list themselves, so that none can be forgotten,
 * assertions under the names of cmocka, and a run that speaks TAP. Nothing has to be installed for
 * it: emulated processors and GPU machines, which have nothing, are where these tests are worth
 * most. An assertion that fails ends its test (longjmp), and the next one begins.
 * tests/text/test_unit_header.py proves that a failure is seen.
 *
 * Interface:
 * - TEST(name) { ... }: a test. A program runs its tests in the order in which they stand, each
 *   under its own name. TEST_BETWEEN(name, up, down): one with a setup and a teardown.
 * - BETWEEN(up, down): a setup before all tests and a teardown behind them.
 * - assert_*, fail, fail_msg: in the main thread only. print_message: a comment of the stream.
 * - unit_tests: runs them; main's result. A program without a main gets unit_main.c's.
 * - quick: how much of its list a test may leave out. 0: nothing. 1 (ATTN_TEST_QUICK=1, under
 *   sanitizers): they see nothing new in the same code with another dtype or size. 2 (an emulated
 *   processor): a few of a list show what all would.
 */
#ifndef UNIT_H
#define UNIT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- assertions --------------------------------------------------------------------------------*/

static jmp_buf unit_end_of_test;

__attribute__((noreturn, format(printf, 3, 4))) static inline void
unit_fail(const char *file, int line, const char *format, ...)
{
    va_list list;
    printf("# %s:%d: ", file, line);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    longjmp(unit_end_of_test, 1);
}

/* Comments of a TAP stream, so that Meson does not take a message for a malformed result. */
__attribute__((format(printf, 1, 2))) static inline void print_message(const char *format, ...)
{
    va_list list;
    printf("# ");
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
}

#define UNIT_ASSERT(condition, ...)                                                                \
    do {                                                                                           \
        if (!(condition))                                                                          \
            unit_fail(__FILE__, __LINE__, __VA_ARGS__);                                            \
    } while (0)
#define fail_msg(...) unit_fail(__FILE__, __LINE__, __VA_ARGS__)
#define fail()        fail_msg("fail()")

#define assert_true(c)     UNIT_ASSERT(c, "not true: %s", #c)
#define assert_false(c)    UNIT_ASSERT(!(c), "not false: %s", #c)
#define assert_null(p)     UNIT_ASSERT(!(p), "not NULL: %s", #p)
#define assert_non_null(p) UNIT_ASSERT(p, "NULL: %s", #p)
#define assert_ptr_equal(a, b)                                                                     \
    UNIT_ASSERT((const void *)(a) == (const void *)(b), "pointers differ: %s, %s", #a, #b)

/* Integers are compared as the widest unsigned type. */
#define UNIT_INT(x) ((uintmax_t)(x))
#define assert_int_equal(a, b)                                                                     \
    UNIT_ASSERT(UNIT_INT(a) == UNIT_INT(b), "%s = %jd, %s = %jd", #a, (intmax_t)(a), #b,           \
                (intmax_t)(b))
#define assert_int_not_equal(a, b)                                                                 \
    UNIT_ASSERT(UNIT_INT(a) != UNIT_INT(b), "both are %jd: %s, %s", (intmax_t)(a), #a, #b)
#define assert_in_range(x, low, high)                                                              \
    UNIT_ASSERT(UNIT_INT(x) >= UNIT_INT(low) && UNIT_INT(x) <= UNIT_INT(high),                     \
                "%s = %jd is not in %s .. %s", #x, (intmax_t)(x), #low, #high)
#define assert_not_in_range(x, low, high)                                                          \
    UNIT_ASSERT(UNIT_INT(x) < UNIT_INT(low) || UNIT_INT(x) > UNIT_INT(high),                       \
                "%s = %jd is in %s .. %s", #x, (intmax_t)(x), #low, #high)
#define assert_string_equal(a, b)                                                                  \
    UNIT_ASSERT(strcmp(a, b) == 0, "\"%s\" is not \"%s\"", (const char *)(a), (const char *)(b))
#define assert_string_not_equal(a, b)                                                              \
    UNIT_ASSERT(strcmp(a, b) != 0, "both are \"%s\"", (const char *)(a))
#define assert_memory_equal(a, b, n)                                                               \
    UNIT_ASSERT(memcmp(a, b, n) == 0, "bytes differ: %s, %s", #a, #b)
#define assert_memory_not_equal(a, b, n)                                                           \
    UNIT_ASSERT(memcmp(a, b, n) != 0, "the same bytes: %s, %s", #a, #b)
/* Written so that a NaN fails. */
#define assert_float_equal(a, b, epsilon)                                                          \
    UNIT_ASSERT(fabs((double)(a) - (double)(b)) <= (double)(epsilon), "%s = %g, %s = %g", #a,      \
                (double)(a), #b, (double)(b))

/* --- tests -------------------------------------------------------------------------------------*/

typedef int UnitFixture(void **state);

typedef struct UnitTest {
    const char *name;
    void (*run)(void **state);
    UnitFixture *up, *down;
} UnitTest;

enum { UNIT_TESTS = 64 };
static UnitTest unit_list[UNIT_TESTS];
static size_t unit_count;
static UnitFixture *unit_up, *unit_down;

/* Constructors run by priority; those up to 100 are the compiler's. */
#define TEST_BETWEEN(name, up, down)                                                               \
    static void name(void **state);                                                                \
    __attribute__((constructor(101 + __LINE__))) static void name##_is_a_test(void)                \
    {                                                                                              \
        if (unit_count++ < UNIT_TESTS)                                                             \
            unit_list[unit_count - 1] = (UnitTest){#name, name, up, down};                         \
    }                                                                                              \
    static void name(void **group_state __attribute__((unused)))
#define TEST(name) TEST_BETWEEN(name, NULL, NULL)

#define BETWEEN(up, down)                                                                          \
    __attribute__((constructor)) static void unit_between(void)                                    \
    {                                                                                              \
        unit_up = up, unit_down = down;                                                            \
    }

static inline int unit_run_one(const UnitTest *test, void *group_state)
{
    void *state = group_state;
    if (test->up && test->up(&state) != 0)
        return 0;
    volatile int good = 0;
    if (setjmp(unit_end_of_test) == 0) {
        test->run(&state);
        good = 1;
    }
    if (test->down && test->down(&state) != 0)
        good = 0;
    return good;
}

int unit_tests(void);

/* How many failed. No test at all is a failure. */
int unit_tests(void)
{
    void *state = NULL;
    int failed = 0;
    if (unit_count == 0 || unit_count > UNIT_TESTS)
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0); /* a crash must not swallow the results before it */
    printf("1..%zu\n", unit_count);
    const int ready = !unit_up || unit_up(&state) == 0;
    for (size_t t = 0; t < unit_count; t++) {
        const int good = ready && unit_run_one(&unit_list[t], state);
        failed += !good;
        printf("%sok %zu - %s\n", good ? "" : "not ", t + 1, unit_list[t].name);
    }
    if (ready && unit_down && unit_down(&state) != 0)
        failed++;
    return failed;
}

static inline int quick(void)
{
    const char *wanted = getenv("ATTN_TEST_QUICK");
    return wanted ? atoi(wanted) : 0;
}

#endif
