/* SPDX-License-Identifier: MIT
 *
 * cmocka.h: the few calls of cmocka that our unit tests use, for machines without cmocka.
 *
 * Cross builds (aarch64 under qemu-user) and the GPU machines have no cmocka, and the unit tests
 * are worth most exactly there: another instruction set, AVX-512. So Meson takes this header where
 * the real one is missing. Output is TAP; an assertion that fails ends its test with longjmp, as in
 * cmocka. tests/text/test_fallback.py proves that a failure is seen.
 *
 * Interface: assert_*, fail, fail_msg, print_message, print_error, cmocka_unit_test,
 * cmocka_run_group_tests. One group per program.
 */
#ifndef ATTN_FALLBACK_CMOCKA_H
#define ATTN_FALLBACK_CMOCKA_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    int (*setup_func)(void **state);
    int (*teardown_func)(void **state);
    void *initial_state;
};

static jmp_buf fallback_end_of_test;

__attribute__((noreturn, format(printf, 3, 4))) static inline void
fallback_fail(const char *file, int line, const char *format, ...)
{
    va_list list;
    printf("# %s:%d: ", file, line);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    longjmp(fallback_end_of_test, 1);
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
#define print_error print_message

#define FALLBACK_ASSERT(condition, ...)                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fallback_fail(__FILE__, __LINE__, __VA_ARGS__);                                        \
    } while (0)
#define fail_msg(...) fallback_fail(__FILE__, __LINE__, __VA_ARGS__)
#define fail()        fail_msg("fail()")

#define assert_true(c)     FALLBACK_ASSERT(c, "not true: %s", #c)
#define assert_false(c)    FALLBACK_ASSERT(!(c), "not false: %s", #c)
#define assert_null(p)     FALLBACK_ASSERT(!(p), "not NULL: %s", #p)
#define assert_non_null(p) FALLBACK_ASSERT(p, "NULL: %s", #p)
#define assert_ptr_equal(a, b)                                                                     \
    FALLBACK_ASSERT((const void *)(a) == (const void *)(b), "pointers differ: %s, %s", #a, #b)

/* As cmocka does it, integers are compared as the widest unsigned type. */
#define FALLBACK_INT(x) ((uintmax_t)(x))
#define assert_int_equal(a, b)                                                                     \
    FALLBACK_ASSERT(FALLBACK_INT(a) == FALLBACK_INT(b), "%s = %jd, %s = %jd", #a, (intmax_t)(a),   \
                    #b, (intmax_t)(b))
#define assert_int_not_equal(a, b)                                                                 \
    FALLBACK_ASSERT(FALLBACK_INT(a) != FALLBACK_INT(b), "both are %jd: %s, %s", (intmax_t)(a), #a, \
                    #b)
#define assert_in_range(x, low, high)                                                              \
    FALLBACK_ASSERT(FALLBACK_INT(x) >= FALLBACK_INT(low) && FALLBACK_INT(x) <= FALLBACK_INT(high), \
                    "%s = %jd is not in %s .. %s", #x, (intmax_t)(x), #low, #high)
#define assert_not_in_range(x, low, high)                                                          \
    FALLBACK_ASSERT(FALLBACK_INT(x) < FALLBACK_INT(low) || FALLBACK_INT(x) > FALLBACK_INT(high),   \
                    "%s = %jd is in %s .. %s", #x, (intmax_t)(x), #low, #high)
#define assert_string_equal(a, b)                                                                  \
    FALLBACK_ASSERT(strcmp(a, b) == 0, "\"%s\" is not \"%s\"", (const char *)(a), (const char *)(b))
#define assert_string_not_equal(a, b)                                                              \
    FALLBACK_ASSERT(strcmp(a, b) != 0, "both are \"%s\"", (const char *)(a))
#define assert_memory_equal(a, b, n)                                                               \
    FALLBACK_ASSERT(memcmp(a, b, n) == 0, "bytes differ: %s, %s", #a, #b)
#define assert_memory_not_equal(a, b, n)                                                           \
    FALLBACK_ASSERT(memcmp(a, b, n) != 0, "the same bytes: %s, %s", #a, #b)
/* Written so that a NaN fails. */
#define assert_float_equal(a, b, epsilon)                                                          \
    FALLBACK_ASSERT(fabs((double)(a) - (double)(b)) <= (double)(epsilon), "%s = %g, %s = %g", #a,  \
                    (double)(a), #b, (double)(b))

#define cmocka_unit_test(f)                                                                        \
    {                                                                                              \
#f, f, NULL, NULL, NULL                                                                    \
    }
#define cmocka_run_group_tests(tests, up, down)                                                    \
    fallback_run_group(tests, sizeof(tests) / sizeof(tests)[0], up, down)

static inline int fallback_run_one(const struct CMUnitTest *test, void *group_state)
{
    void *state = group_state;
    if (test->setup_func && test->setup_func(&state) != 0)
        return 0;
    volatile int good = 0;
    if (setjmp(fallback_end_of_test) == 0) {
        test->test_func(&state);
        good = 1;
    }
    if (test->teardown_func && test->teardown_func(&state) != 0)
        good = 0;
    return good;
}

static inline int fallback_run_group(const struct CMUnitTest *tests, size_t count,
                                     int (*up)(void **state), int (*down)(void **state))
{
    void *state = NULL;
    int failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0); /* a crash must not swallow the results before it */
    printf("1..%zu\n", count);
    int ready = !up || up(&state) == 0;
    for (size_t t = 0; t < count; t++) {
        int good = ready && fallback_run_one(&tests[t], state);
        failed += !good;
        printf("%sok %zu - %s\n", good ? "" : "not ", t + 1, tests[t].name);
    }
    if (ready && down && down(&state) != 0)
        failed++;
    return count ? failed : 1;
}

#endif
