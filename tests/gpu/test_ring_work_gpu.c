/* SPDX-License-Identifier: MIT
 *
 * test_ring_work_gpu.c: the small work of stage 06 on a GPU: narrowing and widening in place give
 * the bits of the host's rounding at every length, sums are sums, rows start empty, and nothing
 * behind the end is touched.
 */
#include <math.h>

#include "gpu_main.h"

#include "harness/device/device.h"
#include "tensor.h"

#include "../../06_ring_burst/runtime/cuda/small_work.h"

/* around the first run of 2048 elements, and around its doublings */
static const int64_t lengths[] = {1, 2, 3, 255, 2047, 2048, 2049, 4095, 4096, 4097, 70001};

#define LENGTHS ((int)(sizeof lengths / sizeof *lengths))
#define BEHIND  64 /* bytes of 0xFF behind the end */

static float value_of(int64_t k)
{
    return (float)((k * 2654435761u) % 2000003) / 1e6f - 1.0f;
}

static uint16_t rounded_bits(AttnDtype dtype, float x)
{
    return dtype == ATTN_F16 ? f16_from_f32(x) : bf16_from_f32(x);
}

static unsigned char *upload_floats(const float *from, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof *from;
    unsigned char *p_dev = device_alloc(bytes + BEHIND);
    assert_non_null(p_dev);
    assert_int_equal(0, device_fill_bytes(p_dev, 0xFF, bytes + BEHIND));
    assert_int_equal(0, device_upload(p_dev, from, bytes));
    return p_dev;
}

static void assert_end_untouched(const unsigned char *p_dev, size_t bytes)
{
    unsigned char behind[BEHIND];
    assert_int_equal(0, device_download(behind, p_dev + bytes, BEHIND));
    for (int k = 0; k < BEHIND; k++)
        assert_int_equal(0xFF, behind[k]);
}

TEST(test_narrow_and_widen)
{
    for (int n = 0; n < LENGTHS; n++)
        for (int dtype = ATTN_F16; dtype <= ATTN_BF16; dtype++) {
            const int64_t count = lengths[n];
            const size_t bytes = (size_t)count * sizeof(float);
            float *values = malloc(bytes);
            unsigned char *narrow = malloc(bytes);
            assert_true(values && narrow);
            for (int64_t k = 0; k < count; k++)
                values[k] = value_of(k);
            unsigned char *p_dev = upload_floats(values, count);
            for (int64_t k = 0; k < count; k++) {
                ((uint16_t *)narrow)[k] = rounded_bits((AttnDtype)dtype, values[k]);
                values[k] = dtype_round((AttnDtype)dtype, values[k]);
            }
            assert_int_equal(ATTN_OK, launch_narrow(p_dev, count, (AttnDtype)dtype, NULL));
            assert_int_equal(0, device_synchronize());
            unsigned char *found = malloc(bytes);
            assert_non_null(found);
            assert_int_equal(0, device_download(found, p_dev, bytes / 2));
            assert_memory_equal(narrow, found, bytes / 2);
            assert_int_equal(ATTN_OK, launch_widen(p_dev, count, (AttnDtype)dtype, NULL));
            assert_int_equal(0, device_synchronize());
            assert_int_equal(0, device_download(found, p_dev, bytes));
            assert_memory_equal(values, found, bytes);
            assert_end_untouched(p_dev, bytes);
            device_free(p_dev);
            free(values);
            free(narrow);
            free(found);
        }
}

TEST(test_sums_and_empty_rows)
{
    for (int n = 0; n < LENGTHS; n++) {
        const int64_t count = lengths[n];
        const size_t bytes = (size_t)count * sizeof(float);
        float *values = malloc(bytes), *found = malloc(bytes);
        assert_true(values && found);
        for (int64_t k = 0; k < count; k++)
            values[k] = value_of(k);
        unsigned char *to_dev = upload_floats(values, count),
                      *from_dev = upload_floats(values, count);
        assert_int_equal(ATTN_OK, launch_add((float *)to_dev, (float *)from_dev, count, NULL));
        assert_int_equal(0, device_synchronize());
        assert_int_equal(0, device_download(found, to_dev, bytes));
        for (int64_t k = 0; k < count; k++)
            assert_true(found[k] == values[k] + values[k]);
        assert_int_equal(ATTN_OK, launch_empty_rows((float *)to_dev, count, NULL));
        assert_int_equal(0, device_synchronize());
        assert_int_equal(0, device_download(found, to_dev, bytes));
        for (int64_t k = 0; k < count; k++)
            assert_true(found[k] == -INFINITY);
        assert_end_untouched(to_dev, bytes);
        device_free(to_dev);
        device_free(from_dev);
        free(values);
        free(found);
    }
}
