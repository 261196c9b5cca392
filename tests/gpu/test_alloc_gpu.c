/* SPDX-License-Identifier: MIT
 *
 * test_alloc_gpu.c: workspace on the device is poisoned, counted with the host's, and a write
 * outside it is noticed, also one that a kernel does after the block was freed. A block that was
 * freed is used again without a wait for the GPU.
 *
 * No cmocka here, GPU machines have none. Exit status: 0 right, 1 wrong, 77 no device.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "alloc.h"
#include "harness/device/device.h"

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
    EXPECT(p_dev && host && (uintptr_t)p_dev % 256 == 0);
    EXPECT(workspace_live() == 1024 && workspace_peak() == 1024);
    EXPECT(device_download(back, p_dev, sizeof back) == 0);
    for (size_t t = 0; t < sizeof back; t++)
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

static int all_ones(const unsigned char *p_dev, size_t bytes)
{
    static unsigned char back[4096];
    EXPECT(device_download(back, p_dev, bytes) == 0);
    for (size_t t = 0; t < bytes; t++)
        EXPECT(back[t] == 0xFF);
    return 0;
}

/* All bytes of a block that another one used before. */
static int used_again(void)
{
    enum { BYTES = 4096 };
    unsigned char *first_dev, *again_dev, *other_dev;
    workspace_reset_peak();
    first_dev = workspace_alloc_device(BYTES);
    EXPECT(first_dev && device_fill_bytes(first_dev, 0, BYTES) == 0);
    workspace_free_device(first_dev);
    EXPECT(workspace_live() == 0);
    workspace_settle();
    again_dev = workspace_alloc_device(BYTES);
    other_dev = workspace_alloc_device(BYTES); /* live at the same time: another one */
    EXPECT(again_dev == first_dev && other_dev && other_dev != again_dev);
    EXPECT(workspace_live() == 2 * BYTES && workspace_peak() == 2 * BYTES);
    EXPECT(all_ones(again_dev, BYTES) == 0);
    workspace_free_device(again_dev);
    workspace_free_device(other_dev);
    EXPECT(workspace_live() == 0 && workspace_intact());
    return 0;
}

/* Many frees that nobody settles: a few blocks serve them all, and each comes filled. */
static int without_settling(void)
{
    enum { BYTES = 2048, TIMES = 40 };
    unsigned char *seen_dev[TIMES];
    int different = 0;
    workspace_reset_peak();
    for (int t = 0; t < TIMES; t++) {
        unsigned char *p_dev = workspace_alloc_device(BYTES);
        int known = 0;
        EXPECT(p_dev && all_ones(p_dev, BYTES) == 0);
        for (int s = 0; s < different; s++)
            known |= seen_dev[s] == p_dev;
        if (!known)
            seen_dev[different++] = p_dev;
        EXPECT(device_fill_bytes(p_dev, 0, BYTES) == 0);
        workspace_free_device(p_dev);
    }
    EXPECT(different < 8 && workspace_live() == 0 && workspace_intact());
    return 0;
}

/* Milliseconds of work on a stream that waits for no other one. */
static int keep_busy(cudaStream_t stream, unsigned char *junk_dev, size_t bytes)
{
    for (int t = 0; t < 200; t++)
        EXPECT(cudaMemsetAsync(junk_dev, t, bytes, stream) == cudaSuccess);
    return 0;
}

/* A free and the next request come back while the GPU still works; a fence that is overwritten
 * later than the free is seen all the same. */
static int nobody_waits(void)
{
    const size_t junk_bytes = (size_t)512 << 20, bytes = (size_t)8 << 20;
    unsigned char *junk_dev = device_alloc(junk_bytes), *p_dev, *again_dev;
    cudaStream_t stream;
    workspace_reset_peak();
    p_dev = workspace_alloc_device(bytes);
    again_dev = workspace_alloc_device(bytes);
    workspace_free_device(again_dev);
    workspace_settle();
    EXPECT(junk_dev && p_dev && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == 0);
    EXPECT(keep_busy(stream, junk_dev, junk_bytes) == 0);
    EXPECT(cudaMemsetAsync(p_dev + bytes, 0, 1, stream) == cudaSuccess);
    workspace_free_device(p_dev);
    EXPECT(workspace_alloc_device(bytes) == (void *)again_dev); /* not the one in use */
    EXPECT(cudaStreamQuery(stream) == cudaErrorNotReady);
    EXPECT(!workspace_intact());
    EXPECT(cudaStreamQuery(stream) == cudaSuccess);
    workspace_free_device(again_dev);
    EXPECT(cudaStreamDestroy(stream) == cudaSuccess);
    device_free(junk_dev);
    return 0;
}

/* What is kept is not in the way of a larger request. */
static int gives_way(void)
{
    size_t available, all;
    void *p_dev;
    workspace_reset_peak();
    EXPECT(cudaMemGetInfo(&available, &all) == cudaSuccess);
    p_dev = workspace_alloc_device(available / 10 * 6);
    workspace_free_device(p_dev);
    EXPECT(p_dev && (p_dev = workspace_alloc_device(available / 10 * 7)) != NULL);
    workspace_free_device(p_dev);
    EXPECT((p_dev = device_alloc(available / 10 * 8)) != NULL);
    device_free(p_dev);
    EXPECT(workspace_intact() && workspace_live() == 0);
    workspace_trim();
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
        stray_is_seen(-256) || used_again() || without_settling() || nobody_waits() || gives_way())
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
    printf("device workspace: counted, poisoned, fenced, used again\n");
    return 0;
}
