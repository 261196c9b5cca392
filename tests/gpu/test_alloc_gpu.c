/* SPDX-License-Identifier: MIT
 *
 * test_alloc_gpu.c: workspace on the device is poisoned, counted with the host's, and a write
 * outside it is noticed when it is freed.
 *
 * No cmocka here, GPU machines have none. Exit status: 0 right, 1 wrong, 77 no device.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "device.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("line %d: not true: %s\n", __LINE__, #condition);                               \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static int counted_and_poisoned(void)
{
    unsigned char back[1000];
    unsigned char *p_dev = workspace_alloc_device(sizeof back);
    void *host = workspace_alloc(24);
    size_t t;
    EXPECT(p_dev && host && (uintptr_t)p_dev % 256 == 0);
    EXPECT(workspace_live() == 1024 && workspace_peak() == 1024);
    EXPECT(device_download(back, p_dev, sizeof back) == 0);
    for (t = 0; t < sizeof back; t++)
        EXPECT(back[t] == 0xFF);
    EXPECT(device_fill_bytes(p_dev, 0, sizeof back) == 0); /* all of it is the caller's */
    workspace_free_device(p_dev);
    workspace_free(host);
    EXPECT(workspace_live() == 0 && workspace_intact());
    return 0;
}

/* Writes one byte at this place relative to a block of 1000. */
static int stray_is_seen(int64_t at)
{
    unsigned char *p_dev;
    workspace_reset_peak();
    p_dev = workspace_alloc_device(1000);
    EXPECT(p_dev && device_fill_bytes(p_dev + at, 0, 1) == 0);
    workspace_free_device(p_dev);
    EXPECT(!workspace_intact() && workspace_live() == 0);
    return 0;
}

int main(void)
{
    unsigned char *p_dev;
    if (device_count() == 0) {
        printf("no CUDA device\n");
        return 77;
    }
    workspace_reset_peak();
    if (counted_and_poisoned() || stray_is_seen(1000) || stray_is_seen(1255) || stray_is_seen(-1) ||
        stray_is_seen(-256))
        return 1;
    workspace_reset_peak();
    EXPECT(workspace_alloc_device((size_t)1 << 50) == NULL); /* and the device still works: */
    EXPECT(workspace_alloc_device(SIZE_MAX) == NULL && workspace_live() == 0);
    p_dev = workspace_alloc_device(0);
    EXPECT(p_dev && workspace_live() == 0);
    workspace_free_device(p_dev);
    EXPECT(workspace_intact());
    workspace_free_device(p_dev); /* twice */
    EXPECT(!workspace_intact());
    printf("device workspace: counted, poisoned, fenced\n");
    return 0;
}
