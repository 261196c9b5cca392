/* SPDX-License-Identifier: MIT
 *
 * alloc_device.c: workspace on the GPU. A fence of 256 bytes stands on either side of a block:
 *
 *     [ fence 256 B ][ the caller's bytes, all 0xFF ][ fence 256 B ]
 *                    ^ returned, aligned as cudaMalloc aligns
 *
 * The size is kept in a list on the host, because the host cannot read a header through a device
 * pointer. cudaMalloc, cudaFree, the fill and a look at the fences take hundreds of microseconds
 * and wait for the GPU, inside a variant's timed run. So they do not happen there. A block that is
 * freed moves to a second list and stays there, perhaps with kernels still at work in it. Between
 * the runs workspace_settle waits for those, looks at the fences and fills the block again; then
 * the next run may have it.
 *
 *     live --free--> freed --settle--> settled --alloc--> live
 *
 * Interface: alloc.h.
 */
#include "alloc_internal.h"
#include "alloc_wanted.h"

#include "attn_config.h"
#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>
#else
#include "harness/device/no_cuda.h"
#endif

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#define FENCE_DEV 256 /* keeps the alignment that cudaMalloc gives */
/* A pass may free a block and ask for one like it: so many are kept before it has to wait. */
#define KEPT_OF_A_SIZE 4

typedef struct DeviceBlock {
    unsigned char *base_dev;
    size_t bytes;
    int device;
    int settled; /* in kept_blocks: nothing uses it any more, and it is all 0xFF */
    struct DeviceBlock *next;
} DeviceBlock;

static DeviceBlock *live_blocks, *kept_blocks;
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;

static cudaError_t fill_block(const DeviceBlock *block)
{
#ifdef HAVE_SIMT /* which sees a read of it */
    const cudaError_t error = simtPoison(block->base_dev, block->bytes + 2 * FENCE_DEV);
#else
    const cudaError_t error = cudaMemset(block->base_dev, 0xFF, block->bytes + 2 * FENCE_DEV);
#endif
    return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

/* If a kernel failed, the copy fails too; the harness reports that error, and the fences prove
 * nothing then. */
static void look_at_fence(const DeviceBlock *block, size_t at, const char *what)
{
    unsigned char fence[FENCE_DEV];
    if (cudaMemcpy(fence, block->base_dev + at, FENCE_DEV, cudaMemcpyDeviceToHost) == cudaSuccess &&
        !workspace_all_ones(fence, FENCE_DEV))
        workspace_damaged(what, block->bytes);
}

/* device_lock is held. A block whose fill fails stays as it is and is not given out. */
static void settle_block(DeviceBlock *block)
{
    int before = block->device;
    if (block->settled || cudaGetDevice(&before) != cudaSuccess ||
        cudaSetDevice(block->device) != cudaSuccess)
        return;
    if (cudaDeviceSynchronize() == cudaSuccess) { /* streams of all kinds */
        look_at_fence(block, 0, "something wrote before it on the GPU");
        look_at_fence(block, FENCE_DEV + block->bytes, "something wrote behind it on the GPU");
        block->settled = fill_block(block) == cudaSuccess;
    }
    (void)cudaSetDevice(before);
}

void workspace_settle(void)
{
    pthread_mutex_lock(&device_lock);
    for (DeviceBlock *block = kept_blocks; block; block = block->next)
        settle_block(block);
    pthread_mutex_unlock(&device_lock);
}

void workspace_trim(void)
{
    DeviceBlock *block, *next;
    pthread_mutex_lock(&device_lock);
    for (block = kept_blocks; block; block = next) {
        next = block->next;
        settle_block(block);
        (void)cudaFree(block->base_dev);
        free(block);
    }
    kept_blocks = NULL;
    pthread_mutex_unlock(&device_lock);
}

/* A kept block of this size, taken out of the list; NULL if a new one is better. */
static DeviceBlock *take_kept(size_t bytes, int device)
{
    DeviceBlock **link, **best = NULL, *found = NULL;
    int count = 0;
    pthread_mutex_lock(&device_lock);
    for (link = &kept_blocks; *link; link = &(*link)->next)
        if ((*link)->bytes == bytes && (*link)->device == device) {
            best = !best || !(*best)->settled ? link : best;
            count++;
        }
    if (count >= KEPT_OF_A_SIZE)
        settle_block(*best);
    if (best && (*best)->settled) {
        found = *best;
        *best = found->next;
    }
    pthread_mutex_unlock(&device_lock);
    return found;
}

static DeviceBlock *new_block(size_t bytes, int device)
{
    DeviceBlock *block = calloc(1, sizeof *block);
    void *base_dev = NULL;
    cudaError_t error;
    if (!block)
        return NULL;
    error = cudaMalloc(&base_dev, bytes + 2 * FENCE_DEV);
    if (error == cudaErrorMemoryAllocation) {
        workspace_trim();
        (void)cudaGetLastError(); /* "out of memory" is answered by NULL, not by the next launch */
        error = cudaMalloc(&base_dev, bytes + 2 * FENCE_DEV);
    }
    block->base_dev = base_dev;
    block->bytes = bytes;
    block->device = device;
    if (error == cudaSuccess && fill_block(block) == cudaSuccess)
        return block;
    (void)cudaGetLastError();
    (void)cudaFree(base_dev);
    free(block);
    return NULL;
}

void *workspace_alloc_device(size_t bytes)
{
    DeviceBlock *block = NULL;
    int device = 0;
    if (bytes > SIZE_MAX - 2 * FENCE_DEV || cudaGetDevice(&device) != cudaSuccess)
        return NULL;
    block = take_kept(bytes, device);
    if (!block)
        block = new_block(bytes, device);
    if (!block) {
        workspace_refuse(bytes);
        return NULL;
    }
    pthread_mutex_lock(&device_lock);
    block->next = live_blocks;
    live_blocks = block;
    pthread_mutex_unlock(&device_lock);
    workspace_count_add(bytes);
    return block->base_dev + FENCE_DEV;
}

void workspace_free_device(void *p_dev)
{
    DeviceBlock **link, *block;
    if (!p_dev)
        return;
    pthread_mutex_lock(&device_lock);
    for (link = &live_blocks; *link && (void *)((*link)->base_dev + FENCE_DEV) != p_dev;)
        link = &(*link)->next;
    block = *link;
    if (block) {
        *link = block->next;
        block->settled = 0;
        block->next = kept_blocks;
        kept_blocks = block;
        workspace_count_sub(block->bytes);
    }
    pthread_mutex_unlock(&device_lock);
    if (!block)
        workspace_damaged("freed on the GPU, but no live block begins there", 0);
}
