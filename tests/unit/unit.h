/* SPDX-License-Identifier: MIT
 *
 * unit.h: what a unit test starts with: cmocka, the headers that it needs first, and tests that
 * list themselves, so that none can be forgotten.
 *
 * Interface:
 * - TEST(name) { ... }: a test. A program runs its tests in the order in which they stand, each
 *   under its own name. TEST_BETWEEN(name, up, down): one with a setup and a teardown.
 * - BETWEEN(up, down): a setup before all tests and a teardown behind them.
 * - unit_tests: runs them; main's result. A program without a main gets unit_main.c's.
 * - quick: how much of its list a test may leave out. 0: nothing. 1 (ATTN_TEST_QUICK=1, under
 *   sanitizers): they see nothing new in the same code with another dtype or size. 2 (an emulated
 *   processor): a few of a list show what all would.
 * - assert_repeats: the same bits as the first time.
 */
#ifndef UNIT_H
#define UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int UnitFixture(void **state);

enum { UNIT_TESTS = 64 };
static struct CMUnitTest unit_list[UNIT_TESTS];
static size_t unit_count;
static UnitFixture *unit_up, *unit_down;

/* Constructors run by priority; those up to 100 are the compiler's. */
#define TEST_BETWEEN(name, up, down)                                                               \
    static void name(void **state);                                                                \
    __attribute__((constructor(101 + __LINE__))) static void name##_is_a_test(void)                \
    {                                                                                              \
        if (unit_count++ < UNIT_TESTS)                                                             \
            unit_list[unit_count - 1] = (struct CMUnitTest){#name, name, up, down, NULL};          \
    }                                                                                              \
    static void name(void **group_state __attribute__((unused)))
#define TEST(name) TEST_BETWEEN(name, NULL, NULL)

#define BETWEEN(up, down)                                                                          \
    __attribute__((constructor)) static void unit_between(void)                                    \
    {                                                                                              \
        unit_up = up, unit_down = down;                                                            \
    }

int unit_tests(void);

/* A VLA, for cmocka counts with sizeof. No test at all is a failure. */
int unit_tests(void)
{
    if (unit_count == 0 || unit_count > UNIT_TESTS)
        return 1;
    struct CMUnitTest tests[unit_count];
    memcpy(tests, unit_list, sizeof tests);
    return cmocka_run_group_tests(tests, unit_up, unit_down);
}

static inline int quick(void)
{
    const char *wanted = getenv("ATTN_TEST_QUICK");
    return wanted ? atoi(wanted) : 0;
}

/* *first is NULL at first, then a copy of these bytes, with which later calls compare. The caller
 * frees it. */
static inline void assert_repeats(void **first, const void *now, size_t bytes)
{
    if (*first) {
        assert_memory_equal(*first, now, bytes);
        return;
    }
    *first = malloc(bytes);
    assert_non_null(*first);
    memcpy(*first, now, bytes);
}

#endif
