/* SPDX-License-Identifier: MIT
 *
 * test_fill_gpu.c: fill_tensor_device gives the bits of fill_tensor, for every dtype, layout and
 * distribution, and touches nothing else.
 *
 * The whole storage is compared, gaps included: they must still hold the poison. No cmocka here,
 * GPU machines have none. Exit status: 0 equal, 1 different, 3 a CUDA call failed, 77 no device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/device/device.h"
#include "harness/io/fill.h"
#include "tensor.h"

/* Poisons a device copy of s, fills it there and brings it back. 0, or 3. */
static int fill_on_device(const Storage *s, uint64_t seed, FillDist dist, unsigned char *back)
{
    const size_t lead = (size_t)((unsigned char *)s->view.data - s->base);
    unsigned char *p_dev = device_alloc(s->bytes);
    Tensor view = s->view;
    int failed;
    if (!p_dev)
        return 3;
    view.data = p_dev + lead;
    failed = device_fill_bytes(p_dev, 0xFF, s->bytes) != 0 ||
             fill_tensor_device(&view, FILL_K, seed, dist, NULL) != ATTN_OK ||
             device_synchronize() != 0 || device_download(back, p_dev, s->bytes) != 0;
    device_free(p_dev);
    return failed ? 3 : 0;
}

static int compare(AttnDtype dtype, TensorLayout layout, FillDist dist, const int64_t n[4])
{
    const uint64_t seed = 11 + (uint64_t)layout;
    unsigned char *back;
    Storage s;
    size_t t = 0;
    int failed;
    if (tensor_new(&s, dtype, layout, n[0], n[1], n[2], n[3]) != 0 || !(back = malloc(s.bytes))) {
        fprintf(stderr, "no memory\n");
        return 3;
    }
    fill_tensor(&s.view, FILL_K, seed, dist);
    failed = fill_on_device(&s, seed, dist, back);
    while (!failed && t < s.bytes && s.base[t] == back[t])
        t++;
    if (!failed && t < s.bytes) {
        printf("%s layout %d dist %d: byte %zu of %zu is %02x, not %02x\n", dtype_name(dtype),
               (int)layout, (int)dist, t, s.bytes, back[t], s.base[t]);
        failed = 1;
    }
    free(back);
    tensor_free(&s);
    return failed;
}

int main(void)
{
    /* one element; odd sizes; more elements than one pass of the grid holds (65535 * 256) */
    static const int64_t size[][4] = {{1, 1, 1, 1}, {2, 37, 3, 59}, {1, 70000, 4, 64}};
    int failed, compared = 0;
    if (device_count() == 0) {
        printf("no CUDA device\n");
        return 77;
    }
    for (int t = 0; t < 3; t++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
            for (int layout = LAYOUT_BSHD; layout <= LAYOUT_ODD; layout++)
                for (int dist = FILL_NORMAL; dist <= FILL_LARGE; dist++) {
                    if (t == 2 && (layout != LAYOUT_ODD || dist != FILL_OUTLIER))
                        continue; /* the host needs a quarter of a second for one of these */
                    failed =
                        compare((AttnDtype)dtype, (TensorLayout)layout, (FillDist)dist, size[t]);
                    if (failed)
                        return failed;
                    compared++;
                }
    printf("%d tensors equal bit for bit\n", compared);
    return 0;
}
