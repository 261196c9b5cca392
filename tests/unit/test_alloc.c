/* SPDX-License-Identifier: MIT
 *
 * test_alloc.c: workspace is aligned, poisoned, fenced, and counted to the byte, also by threads.
 */
#include <pthread.h>

#include "unit.h"

#include "alloc.h"

TEST(counts)
{
    void *a, *b, *none;
    workspace_reset_peak();
    assert_true(workspace_live() == 0 && workspace_peak() == 0);
    a = workspace_alloc(1000);
    b = workspace_alloc(24);
    none = workspace_alloc(0);
    assert_true(a && b && none && none != a && none != b);
    assert_true(workspace_live() == 1024 && workspace_peak() == 1024);
    workspace_free(a);
    assert_true(workspace_live() == 24 && workspace_peak() == 1024);
    workspace_reset_peak();
    assert_true(workspace_peak() == 24);
    workspace_free(b);
    workspace_free(none);
    workspace_free(NULL);
    workspace_free_device(NULL);
    assert_true(workspace_live() == 0 && workspace_peak() == 24 && workspace_intact());
}

/* Sizes on both sides of a cache line, a page and the border of the huge pages. */
TEST(aligned_and_poisoned)
{
    static const size_t size[] = {1, 63, 64, 65, 4095, 4097, (4 << 20) - 1, (4 << 20) + 1};
    size_t c;
    for (size_t t = 0; t < sizeof size / sizeof size[0]; t++) {
        unsigned char *p = workspace_alloc(size[t]);
        assert_non_null(p);
        assert_true((uintptr_t)p % 64 == 0);
        for (c = 0; c < size[t] && p[c] == 0xFF;)
            c++;
        assert_true(c == size[t]);
        memset(p, 0, size[t]); /* all of it is the caller's */
        workspace_free(p);
        assert_true(workspace_intact());
    }
    assert_true(workspace_live() == 0);
}

TEST(refused)
{
    workspace_reset_peak();
    assert_null(workspace_alloc(SIZE_MAX));
    assert_null(workspace_alloc(SIZE_MAX - 100));
    assert_null(workspace_alloc(SIZE_MAX / 2));
    assert_null(workspace_alloc((size_t)1 << 46)); /* 64 TiB */
    assert_null(workspace_alloc_device(SIZE_MAX));
    assert_true(workspace_live() == 0 && workspace_peak() == 0);
    assert_true(memory_available() > 0 && memory_enough_for(1));
    assert_false(memory_enough_for((size_t)1 << 46));
}

#if defined(__SANITIZE_ADDRESS__)
#define FENCED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FENCED 0
#endif
#endif
#ifndef FENCED
#define FENCED 1 /* a sanitizer build has redzones in place of fences */
#endif

/* The write behind a block is hidden from the compiler, which would otherwise warn of it. */
TEST(strays_are_seen)
{
    static const int at[] = {0, 1, 63};
    unsigned char *volatile p;
    for (size_t t = 0; FENCED && t < sizeof at / sizeof at[0]; t++) {
        workspace_reset_peak();
        assert_true(workspace_intact());
        p = workspace_alloc(100);
        p[100 + at[t]] = 0;
        workspace_free(p);
        assert_false(workspace_intact());
        assert_true(workspace_live() == 0);
    }
    /* In front: the block cannot be trusted any more and stays live, so a leak is reported too. */
    workspace_reset_peak();
    p = workspace_alloc(100);
    p[-1] ^= 1;
    workspace_free(p);
    assert_true(!workspace_intact() && workspace_live() == 100);
    p[-1] ^= 1;
    workspace_free(p);
    workspace_reset_peak();
    assert_true(workspace_intact() && workspace_live() == 0);
}

#define THREADS 4
#define ROUNDS  2000

static void *allocate_often(void *arg)
{
    const size_t own = *(const size_t *)arg;
    for (int t = 0; t < ROUNDS; t++) {
        void *p = workspace_alloc(own), *q = workspace_alloc(own);
        workspace_free(p);
        workspace_free(q);
    }
    return NULL;
}

TEST(threads_count_together)
{
    pthread_t thread[THREADS];
    size_t own[THREADS];
    workspace_reset_peak();
    for (int t = 0; t < THREADS; t++) {
        own[t] = (size_t)100 << t;
        assert_int_equal(pthread_create(&thread[t], NULL, allocate_often, &own[t]), 0);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(thread[t], NULL);
    /* at least the largest thread's pair, at most everybody's */
    assert_true(workspace_live() == 0 && workspace_intact());
    assert_true(workspace_peak() >= 2 * 800 && workspace_peak() <= 2 * 1500);
}
