/* SPDX-License-Identifier: MIT
 *
 * unit.h: what a unit test starts with: cmocka, the headers that it needs first, and one line each
 * for a test and for the list of them.
 *
 * Interface:
 * - TEST(name) { ... }: a test. RUN_TESTS(one, another): main's result; runs them in this order,
 *   each under its own name. RUN_TESTS_BETWEEN(up, down, ...): with a setup and a teardown.
 * - quick: how much of its list a test may leave out. 0: nothing. 1 (ATTN_TEST_QUICK=1, under
 *   sanitizers): they see nothing new in the same code with another dtype or size. 2 (an emulated
 *   processor): a few of a list show what all would.
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

#define TEST(name) static void name(void **group_state __attribute__((unused)))

typedef void UnitFunction(void **state);
typedef int UnitFixture(void **state);

/* names: as the preprocessor writes the list, separated by ", " */
static inline int unit_run(const char *names, UnitFunction *const *functions, size_t count,
                           UnitFixture *up, UnitFixture *down)
{
    static char text[4096];
    struct CMUnitTest tests[count];
    assert_true(strlen(names) < sizeof text);
    memset(tests, 0, sizeof tests);
    char *name = strtok(strcpy(text, names), ", ");
    for (size_t t = 0; t < count; t++, name = strtok(NULL, ", ")) {
        tests[t].name = name;
        tests[t].test_func = functions[t];
    }
    return cmocka_run_group_tests(tests, up, down);
}

#define RUN_TESTS_BETWEEN(up, down, ...)                                                           \
    unit_run(#__VA_ARGS__, (UnitFunction *const[]){__VA_ARGS__},                                   \
             sizeof((UnitFunction *const[]){__VA_ARGS__}) / sizeof(UnitFunction *), up, down)
#define RUN_TESTS(...) RUN_TESTS_BETWEEN(NULL, NULL, __VA_ARGS__)

static inline int quick(void)
{
    const char *wanted = getenv("ATTN_TEST_QUICK");
    return wanted ? atoi(wanted) : 0;
}

#endif
