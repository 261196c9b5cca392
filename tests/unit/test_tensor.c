/* SPDX-License-Identifier: MIT
 *
 * test_tensor.c: storage of tensors must notice a stray access, in every layout.
 *
 * (The conversions to 16 bits are tested in test_dtype.c.)
 */
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit.h"

#include "harness/bench/bench.h"
#include "tensor.h"

/* Writes every row, reads it back, and looks at what lies around. */
static void exercise_storage(AttnDtype dtype, TensorLayout layout, const int64_t n[4])
{
    Storage s;
    float row[8], back[8];
    int64_t written = 0, largest = 0, end;
    uint64_t before;
    assert_int_equal(tensor_new(&s, dtype, layout, n[0], n[1], n[2], n[3]), 0);
    assert_true(tensor_count(&s.view) == n[0] * n[1] * n[2] * n[3] && s.view.stride[3] == 1);
    assert_true(((uintptr_t)s.base + s.bytes) % (uintptr_t)sysconf(_SC_PAGESIZE) == 0);
    if (layout == LAYOUT_ODD) /* on the host and, from a well aligned base, on the device */
        assert_true((uintptr_t)s.view.data / dtype_size(dtype) % 2 == 1 &&
                    (size_t)((unsigned char *)s.view.data - s.base) == dtype_size(dtype));
    before = tensor_fingerprint(&s);
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t i = 0; i < n[1]; i++)
            for (int64_t h = 0; h < n[2]; h++) {
                const int64_t first = tensor_offset(&s.view, b, i, h);
                largest = first > largest ? first : largest;
                tensor_read_row(&s.view, b, i, h, back);
                for (int64_t x = 0; x < n[3]; x++) {
                    assert_true(isnan(back[x])); /* nobody wrote here before: rows are disjoint */
                    row[x] = (float)(++written % 2048);
                }
                tensor_write_row(&s.view, b, i, h, row);
                tensor_read_row(&s.view, b, i, h, back);
                for (int64_t x = 0; x < n[3]; x++) {
                    assert_true(back[x] == dtype_round(dtype, row[x]));
                    assert_true(tensor_get(&s.view, first + x) == back[x]);
                    tensor_set(&s.view, first + x, back[x]);
                }
            }
    assert_true(tensor_intact(&s) && tensor_fingerprint(&s) != before);
    /* the last element ends at the guard page; ODD may leave one */
    end = (int64_t)(s.base + s.bytes - (unsigned char *)s.view.data) -
          (largest + n[3]) * (int64_t)dtype_size(dtype);
    assert_true(end >= 0 && end <= (layout == LAYOUT_ODD ? (int64_t)dtype_size(dtype) : 0));
    s.base[-1] = 0; /* a byte in front of everything */
    assert_false(tensor_intact(&s));
    tensor_poison(&s);
    assert_true(tensor_intact(&s) && tensor_fingerprint(&s) == before);
    tensor_free(&s);
    assert_null(s.mapping);
}

TEST(storage_of_all_layouts)
{
    static const int64_t size[3] = {1, 2, 5};
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
        for (int layout = LAYOUT_BSHD; layout <= LAYOUT_ODD; layout++)
            for (int t = 0; t < 81; t++) {
                const int64_t n[4] = {size[t % 3], size[t / 3 % 3], size[t / 9 % 3],
                                      size[t / 27] + t % 4};
                exercise_storage((AttnDtype)dtype, (TensorLayout)layout, n);
            }
}

TEST(strides_of_layouts)
{
    static const int64_t stride[4][3] = {
        [LAYOUT_BSHD] = {3 * 4 * 8, 4 * 8, 8}, /* B=2 N=3 H=4 d=8 */
        [LAYOUT_SBHD] = {4 * 8, 2 * 4 * 8, 8},
        [LAYOUT_BHSD] = {4 * 3 * 8, 8, 3 * 8},
        [LAYOUT_ODD] = {3 * 4 * 11, 4 * 11, 11},
    };
    for (int layout = LAYOUT_BSHD; layout <= LAYOUT_ODD; layout++) {
        Storage s;
        assert_int_equal(tensor_new(&s, ATTN_F32, (TensorLayout)layout, 2, 3, 4, 8), 0);
        assert_memory_equal(s.view.stride, stride[layout], sizeof stride[layout]);
        tensor_free(&s);
    }
}

/* Any one byte that belongs to no element must be missed; any byte at all changes the print. */
TEST(every_byte_is_watched)
{
    Storage s;
    size_t gaps = 0;
    uint64_t print;
    assert_int_equal(tensor_new(&s, ATTN_F16, LAYOUT_ODD, 2, 3, 2, 6), 0);
    print = tensor_fingerprint(&s);
    for (size_t at = 0; at < s.bytes; at++) {
        s.base[at] ^= 0x10;
        gaps += (size_t)!tensor_intact(&s);
        assert_true(tensor_fingerprint(&s) != print);
        s.base[at] ^= 0x10;
    }
    assert_true(tensor_intact(&s) && tensor_fingerprint(&s) == print);
    assert_int_equal(gaps, s.bytes - (size_t)tensor_count(&s.view) * 2);
    tensor_free(&s);
}

/* Blocks of a MiB, on threads from 32 of them on: any byte at a border is watched, two blocks that
 * change places show, and the print is the same one whatever the threads. */
TEST(every_block_is_watched)
{
    static const int64_t mebi = INT64_C(1) << 20;
    static const int64_t size[] = {1, 4096, mebi - 4096, mebi, mebi + 1, 31 * mebi, 33 * mebi + 8};
    static const int threads[] = {1, 2, 7};
    for (size_t n = 0; n < sizeof size / sizeof *size; n++) {
        uint64_t first = 0;
        for (int t = 0; t < 3; t++) {
            Storage s;
            uint64_t print;
            bench_set_threads(threads[t]);
            assert_int_equal(tensor_new(&s, ATTN_BF16, LAYOUT_BSHD, 1, 1, 1, size[n] / 2 + 1), 0);
            for (size_t at = 0; at < s.bytes; at += s.bytes / 5 + 1)
                assert_int_equal(s.base[at], 0xFF); /* poisoned everywhere */
            for (size_t at = 0; at < s.bytes; at += 1021)
                s.base[at] = (unsigned char)at;
            print = tensor_fingerprint(&s);
            first = t == 0 ? print : first;
            assert_true(print == first);
            for (int64_t back = 0; back < (int64_t)s.bytes; back += mebi / 2) {
                s.base[s.bytes - 1 - (size_t)back] ^= 1;
                assert_true(tensor_fingerprint(&s) != print);
                s.base[s.bytes - 1 - (size_t)back] ^= 1;
                if (back > 4 * mebi) /* the larger ones only at some borders */
                    back += 9 * mebi;
            }
            tensor_poison(&s);
            for (size_t at = 0; at < s.bytes; at++)
                if (s.base[at] != 0xFF)
                    fail_msg("byte %zu of %zu is not poison", at, s.bytes);
            tensor_free(&s);
        }
    }
    bench_set_threads(1);
}

TEST(blocks_in_order)
{
    const size_t mebi = (size_t)1 << 20;
    Storage s;
    uint64_t print;
    assert_int_equal(tensor_new(&s, ATTN_BF16, LAYOUT_BSHD, 1, 1, 1, (int64_t)(3 * mebi / 2)), 0);
    /* the first block begins a page before s.base */
    unsigned char *second = s.base + mebi - (size_t)sysconf(_SC_PAGESIZE);
    memset(second, 1, mebi);
    print = tensor_fingerprint(&s);
    memset(second, 0xFF, mebi);
    memset(second + mebi, 1, mebi);
    assert_true(tensor_fingerprint(&s) != print);
    tensor_free(&s);
}

/* Does reading or writing this byte kill the process? Asked of a child. */
static int touch_faults(volatile unsigned char *p, int write_it)
{
    const struct rlimit no_core = {0, 0};
    int status = 0;
    pid_t child;
    fflush(NULL);
    child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* neither cmocka nor a sanitizer may catch it */
        signal(SIGBUS, SIG_DFL);
        setrlimit(RLIMIT_CORE, &no_core);
        if (write_it)
            *p = 1;
        else
            (void)*p;
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : WIFSIGNALED(status) ? 1 : -1;
}

TEST(guard_pages)
{
    Storage s;
    assert_int_equal(tensor_new(&s, ATTN_BF16, LAYOUT_BSHD, 1, 7, 1, 3), 0);
    assert_int_equal(touch_faults(s.base + s.bytes - 1, 1), 0);
    assert_int_equal(touch_faults(s.base + s.bytes, 0), 1);
    assert_int_equal(touch_faults(s.base + s.bytes, 1), 1);
    assert_int_equal(touch_faults(s.base - 1, 0), 0); /* the canary may be read; writing shows */
    assert_int_equal(touch_faults(s.mapping, 0), 1);
    tensor_free(&s);
}

TEST(impossible_sizes)
{
    static const int64_t big = INT64_MAX, half = INT64_C(1) << 62, root = INT64_C(1) << 32;
    const int64_t size[][4] = {
        {0, 1, 1, 1},         {1, 0, 1, 1},
        {1, 1, -1, 1},        {1, 1, 1, 0},
        {big, 1, 1, 1},       {1, 1, 1, big},
        {big, big, big, big}, {root, root, 1, 1},
        {1, root, 1, root},   {half, 2, 1, 1},
        {1, 1, 2, half},      {1, 1, half, 1},
        {1, big / 4, 1, 1},   {1, 1, 1, big - 1},
        {-1, -1, 1, 1},       {half, 4, 1, 1},
        {INT64_MIN, 1, 1, 1}, {1 << 20, 1 << 20, 64, 1}, /* 2^46 elements: no such memory */
    };
    for (size_t t = 0; t < sizeof size / sizeof size[0]; t++)
        for (int layout = LAYOUT_BSHD; layout <= LAYOUT_ODD; layout++) {
            Storage s;
            assert_int_equal(tensor_new(&s, ATTN_F32, (TensorLayout)layout, size[t][0], size[t][1],
                                        size[t][2], size[t][3]),
                             -1);
            assert_true(s.mapping == NULL && s.view.data == NULL);
            tensor_free(&s); /* harmless */
        }
}
