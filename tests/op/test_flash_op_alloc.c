/* SPDX-License-Identifier: MIT
 *
 * test_flash_op_alloc.c: nothing is allocated inside run, by anyone.
 *
 * This program brings its own malloc family (GNU libc lets a program do that, and then the OpenMP
 * runtime and libc itself call it as well), which counts while it is told to. The first test proves
 * that it does count. With several threads OpenMP may set up its team in the first run of a thread;
 * from the second run on there must be nothing.
 */
#include <pthread.h>

#include "op_case.h"

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static volatile int counting;
static volatile int calls;

static void count_call(void)
{
    if (counting)
        __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);
}

void *malloc(size_t bytes)
{
    count_call();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    count_call();
    return __libc_calloc(count, bytes);
}

void *realloc(void *p, size_t bytes)
{
    count_call();
    return __libc_realloc(p, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    count_call();
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

int posix_memalign(void **p, size_t alignment, size_t bytes)
{
    *p = memalign(alignment, bytes);
    return *p ? 0 : 12;
}

TEST(test_the_counter_counts)
{
    void *volatile p;
    void *q = NULL;
    calls = 0;
    counting = 1;
    p = malloc(10);
    p = realloc(p, 20);
    free(p);
    p = calloc(2, 8);
    free(p);
    p = aligned_alloc(64, 64);
    free(p);
    counting = 0;
    assert_int_equal(4, calls);
    counting = 1;
    p = strdup("inside libc");
    counting = 0;
    free(p);
    assert_int_equal(5, calls);
    assert_int_equal(0, posix_memalign(&q, 64, 64));
    free(q);
    assert_int_equal(5, calls);
}

static int calls_of_run(const FlashAttention *op, Case *c, const Scratch *s, float *lse)
{
    FlashAttentionStatus status;
    calls = 0;
    counting = 1;
    status = case_run(op, c, s, c->mask, lse);
    counting = 0;
    assert_int_equal(SUCCESS, status);
    return calls;
}

TEST(test_run_allocates_nothing)
{
    for (int threads = 1; threads <= 3; threads++)
        for (int type = 0; type < 4; type++)
            for (int dtype = 0; dtype < 3; dtype++) {
                Case *c =
                    case_new((AttnShape){1, 3, 3, 150, 140, 24}, (AttnDtype)dtype, LAYOUT_SBHD, 1);
                const FlashAttentionTensor spread = {
                    FLASH_ATTENTION_U8, 2, {150, 140, 0, 0}, {0, 1, 0, 0}};
                FlashAttentionHandle *handle;
                case_mask(c);
                assert_int_equal(SUCCESS,
                                 flash_attention_create_handle(&handle, FLASH_ATTENTION_CPU, 0));
                assert_int_equal(SUCCESS, flash_attention_set_threads(handle, threads));
                FlashAttention *op = op_like(handle, c, 4, (FlashAttentionMask)type, &spread);
                Scratch scratch = op_scratch(op);
                if (threads > 1) /* OpenMP's team */
                    (void)calls_of_run(op, c, &scratch, c->lse);
                for (int n = 0; n < 3; n++)
                    assert_int_equal(0, calls_of_run(op, c, &scratch, n == 1 ? NULL : c->lse));
                assert_int_equal(SUCCESS, flash_attention_destroy(op));
                assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
                workspace_free(scratch.memory);
                case_free(c);
            }
}
