/* SPDX-License-Identifier: MIT
 *
 * test_fill_gpu.c: fill_tensor_device gives the bits of fill_tensor, for every dtype, layout and
 * distribution, and touches nothing else.
 *
 * The whole storage is compared, gaps included: they must still hold the poison.
 */
#include "gpu_main.h"

#include "harness/io/fill.h"
#include "tensor.h"

static void compare(AttnDtype dtype, TensorLayout layout, FillDist dist, const int64_t n[4])
{
    const uint64_t seed = 11 + (uint64_t)layout;
    Storage s;
    assert_int_equal(0, tensor_new(&s, dtype, layout, n[0], n[1], n[2], n[3]));
    unsigned char *back = malloc(s.bytes), *p_dev = device_alloc(s.bytes);
    Tensor view = s.view;
    assert_true(back && p_dev);
    view.data = p_dev + ((unsigned char *)s.view.data - s.base);
    fill_tensor(&s.view, FILL_K, seed, dist);
    assert_int_equal(0, device_fill_bytes(p_dev, 0xFF, s.bytes));
    assert_int_equal(ATTN_OK, fill_tensor_device(&view, FILL_K, seed, dist, NULL));
    assert_int_equal(0, device_synchronize());
    assert_int_equal(0, device_download(back, p_dev, s.bytes));
    assert_memory_equal(s.base, back, s.bytes);
    device_free(p_dev);
    free(back);
    tensor_free(&s);
}

TEST(device_fills_as_the_host)
{
    /* one element; odd sizes; more elements than one pass of the grid holds (65535 * 256) */
    static const int64_t size[][4] = {{1, 1, 1, 1}, {2, 37, 3, 59}, {1, 70000, 4, 64}};
    for (int t = 0; t < 3; t++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
            for (int layout = LAYOUT_BSHD; layout <= LAYOUT_ODD; layout++)
                for (int dist = FILL_NORMAL; dist <= FILL_LARGE; dist++) {
                    if (t == 2 && (layout != LAYOUT_ODD || dist != FILL_OUTLIER))
                        continue; /* the host needs a quarter of a second for one of these */
                    compare((AttnDtype)dtype, (TensorLayout)layout, (FillDist)dist, size[t]);
                }
}
