/* SPDX-License-Identifier: MIT
 *
 * test_alloc_gpu.c: workspace on the device is poisoned, counted with the host's, and a write
 * outside it is noticed, also one that a kernel does after the block was freed. A block that was
 * freed is used again without a wait for the GPU.
 */
#include "gpu_main.h"

#include <cuda_runtime_api.h>

#include "alloc.h"

TEST(counted_and_poisoned)
{
    unsigned char back[1000];
    unsigned char *p_dev = workspace_alloc_device(sizeof back);
    void *host = workspace_alloc(24);
    assert_true(p_dev && host && (uintptr_t)p_dev % 256 == 0);
    assert_true(workspace_live() == 1024 && workspace_peak() == 1024);
    assert_true(device_download(back, p_dev, sizeof back) == 0);
    for (size_t t = 0; t < sizeof back; t++)
        assert_true(back[t] == 0xFF);
    assert_true(device_fill_bytes(p_dev, 0, sizeof back) == 0); /* all of it is the caller's */
    workspace_free_device(p_dev);
    workspace_free(host);
    assert_true(workspace_live() == 0 && workspace_intact());
}

/* Writes one byte at this place relative to a block of 1000. */
static void try_stray(int64_t at)
{
    unsigned char *p_dev;
    workspace_reset_peak();
    p_dev = workspace_alloc_device(1000);
    assert_true(p_dev && device_fill_bytes(p_dev + at, 0, 1) == 0);
    workspace_free_device(p_dev);
    assert_true(!workspace_intact() && workspace_live() == 0);
}

TEST(strays_are_seen)
{
    static const int64_t places[] = {1000, 1255, -1, -256};
    for (int n = 0; n < 4; n++)
        try_stray(places[n]);
    workspace_reset_peak();
}

static void all_ones(const unsigned char *p_dev, size_t bytes)
{
    static unsigned char back[4096];
    assert_true(device_download(back, p_dev, bytes) == 0);
    for (size_t t = 0; t < bytes; t++)
        assert_true(back[t] == 0xFF);
}

/* All bytes of a block that another one used before. */
TEST(used_again)
{
    enum { BYTES = 4096 };
    unsigned char *first_dev, *again_dev, *other_dev;
    workspace_reset_peak();
    first_dev = workspace_alloc_device(BYTES);
    assert_true(first_dev && device_fill_bytes(first_dev, 0, BYTES) == 0);
    workspace_free_device(first_dev);
    assert_true(workspace_live() == 0);
    workspace_settle();
    again_dev = workspace_alloc_device(BYTES);
    other_dev = workspace_alloc_device(BYTES); /* live at the same time: another one */
    assert_true(again_dev == first_dev && other_dev && other_dev != again_dev);
    assert_true(workspace_live() == 2 * BYTES && workspace_peak() == 2 * BYTES);
    all_ones(again_dev, BYTES);
    workspace_free_device(again_dev);
    workspace_free_device(other_dev);
    assert_true(workspace_live() == 0 && workspace_intact());
}

/* Many frees that nobody settles: a few blocks serve them all, and each comes filled. */
TEST(without_settling)
{
    enum { BYTES = 2048, TIMES = 40 };
    unsigned char *seen_dev[TIMES];
    int different = 0;
    workspace_reset_peak();
    for (int t = 0; t < TIMES; t++) {
        unsigned char *p_dev = workspace_alloc_device(BYTES);
        int known = 0;
        assert_non_null(p_dev);
        all_ones(p_dev, BYTES);
        for (int s = 0; s < different; s++)
            known |= seen_dev[s] == p_dev;
        if (!known)
            seen_dev[different++] = p_dev;
        assert_true(device_fill_bytes(p_dev, 0, BYTES) == 0);
        workspace_free_device(p_dev);
    }
    assert_true(different < 8 && workspace_live() == 0 && workspace_intact());
}

/* Milliseconds of work on a stream that waits for no other one. */
static void keep_busy(cudaStream_t stream, unsigned char *junk_dev, size_t bytes)
{
    for (int t = 0; t < 200; t++)
        assert_true(cudaMemsetAsync(junk_dev, t, bytes, stream) == cudaSuccess);
}

/* A free and the next request come back while the GPU still works; a fence that is overwritten
 * later than the free is seen all the same. */
TEST(nobody_waits)
{
    const size_t junk_bytes = (size_t)512 << 20, bytes = (size_t)8 << 20;
    unsigned char *junk_dev = device_alloc(junk_bytes), *p_dev, *again_dev;
    cudaStream_t stream;
    workspace_reset_peak();
    p_dev = workspace_alloc_device(bytes);
    again_dev = workspace_alloc_device(bytes);
    workspace_free_device(again_dev);
    workspace_settle();
    assert_true(junk_dev && p_dev &&
                cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == 0);
    keep_busy(stream, junk_dev, junk_bytes);
    assert_true(cudaMemsetAsync(p_dev + bytes, 0, 1, stream) == cudaSuccess);
    workspace_free_device(p_dev);
    assert_true(workspace_alloc_device(bytes) == (void *)again_dev); /* not the one in use */
    assert_true(cudaStreamQuery(stream) == cudaErrorNotReady);
    assert_true(!workspace_intact());
    assert_true(cudaStreamQuery(stream) == cudaSuccess);
    workspace_free_device(again_dev);
    assert_true(cudaStreamDestroy(stream) == cudaSuccess);
    device_free(junk_dev);
}

/* What is kept is not in the way of a larger request. */
TEST(gives_way)
{
    size_t available, all;
    void *p_dev;
    workspace_reset_peak();
    assert_true(cudaMemGetInfo(&available, &all) == cudaSuccess);
    p_dev = workspace_alloc_device(available / 10 * 6);
    workspace_free_device(p_dev);
    assert_true(p_dev && (p_dev = workspace_alloc_device(available / 10 * 7)) != NULL);
    workspace_free_device(p_dev);
    assert_true((p_dev = device_alloc(available / 10 * 8)) != NULL);
    device_free(p_dev);
    assert_true(workspace_intact() && workspace_live() == 0);
    workspace_trim();
}

TEST(what_is_refused)
{
    workspace_reset_peak();
    assert_null(workspace_alloc_device((size_t)1 << 50)); /* and the device still works: */
    assert_null(workspace_alloc_device(SIZE_MAX));
    assert_true(workspace_live() == 0);
    unsigned char *p_dev = workspace_alloc_device(0);
    assert_true(p_dev && workspace_live() == 0);
    workspace_free_device(p_dev);
    assert_true(workspace_intact());
    workspace_free_device(p_dev); /* twice */
    assert_false(workspace_intact());
}
