/* SPDX-License-Identifier: MIT
 *
 * alloc.c: workspace memory that is counted, poisoned and fenced.
 *
 * A block on the host:
 *
 *     [ header 64 B: size, magic ][ the caller's bytes, all 0xFF ][ fence 64 B, all 0xFF ]
 *                                 ^ returned, 64-byte aligned
 *
 * The magic and the fence are looked at when the block is freed, so a variant that writes outside
 * its workspace is caught even without a sanitizer. On the GPU a fence of 256 bytes stands on
 * either side and the size is kept in a list on the host, because the host cannot read a header
 * through a device pointer.
 *
 * Interface: alloc.h. The counters are C11 atomics, so threads may allocate at the same time.
 */
#include "alloc.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "attn_config.h"

#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>
#include <pthread.h>
#endif

/* Under AddressSanitizer the fence would be memory of our own that an overrun may touch unseen, so
 * it shrinks to nothing and the sanitizer's redzone takes its place. */
#if defined(__SANITIZE_ADDRESS__)
#define FENCE 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FENCE 0
#endif
#endif
#ifndef FENCE
#define FENCE 64
#endif

#define HEADER 64
#define MAGIC  UINT64_C(0x5754544e41704d57)
/* Below this, asking the kernel how much memory is left costs more than it can save. */
#define LARGE ((size_t)64 << 20)

/* Linux's huge page. A matrix of scores spans thousands of ordinary pages; in a virtual machine the
 * misses of their address translation cost a third of the time of the products that walk it. */
#define HUGE_PAGE ((size_t)2 << 20)

static atomic_size_t live, peak;
static atomic_int damaged;

static void count_add(size_t bytes)
{
    size_t now = atomic_fetch_add(&live, bytes) + bytes;
    size_t seen = atomic_load(&peak);
    while (seen < now && !atomic_compare_exchange_weak(&peak, &seen, now))
        ; /* seen was refreshed: another thread moved the peak meanwhile */
}

/* The first number of a one-line file, or SIZE_MAX ("max", no such file). */
static size_t number_in_file(const char *path, const char *format)
{
    char line[128];
    uint64_t value;
    size_t found = SIZE_MAX;
    FILE *f = fopen(path, "r");
    if (!f)
        return SIZE_MAX;
    while (found == SIZE_MAX && fgets(line, sizeof line, f))
        if (sscanf(line, format, &value) == 1 && value < SIZE_MAX)
            found = (size_t)value;
    fclose(f);
    return found;
}

size_t memory_available(void)
{
    size_t kib = number_in_file("/proc/meminfo", "MemAvailable: %" SCNu64);
    size_t host = kib > SIZE_MAX / 1024 ? SIZE_MAX : kib * 1024;
    size_t group = number_in_file("/sys/fs/cgroup/memory.max", "%" SCNu64);
    return host < group ? host : group;
}

int memory_enough_for(size_t bytes)
{
    return bytes < LARGE || bytes <= memory_available();
}

void *workspace_alloc(size_t bytes)
{
    void *block;
    unsigned char *p;
    const uint64_t magic = MAGIC;
    const int huge = bytes >= 2 * HUGE_PAGE;
    if (bytes > SIZE_MAX - HEADER - FENCE || !memory_enough_for(bytes) ||
        posix_memalign(&block, huge ? HUGE_PAGE : HEADER, HEADER + bytes + FENCE) != 0)
        return NULL;
#ifdef MADV_HUGEPAGE
    if (huge) /* a wish: where it is not granted, ordinary pages serve */
        (void)madvise(block, HEADER + bytes + FENCE, MADV_HUGEPAGE);
#endif
    p = (unsigned char *)block + HEADER;
    memset(block, 0xFF, HEADER + bytes + FENCE);
    memcpy(p - 8, &magic, 8); /* next to the caller's bytes, where an underrun lands first */
    memcpy(p - 16, &bytes, sizeof bytes);
    count_add(bytes);
    return p;
}

/* 1 if all bytes are 0xFF. */
static int all_ones(const unsigned char *p, size_t bytes)
{
    size_t t;
    for (t = 0; t < bytes; t++)
        if (p[t] != 0xFF)
            return 0;
    return 1;
}

static void report_damage(const char *where, size_t bytes)
{
    atomic_store(&damaged, 1);
    fprintf(stderr, "workspace of %zu bytes: something wrote %s it\n", bytes, where);
}

void workspace_free(void *p)
{
    unsigned char *block;
    uint64_t magic;
    size_t bytes;
    if (!p)
        return;
    block = (unsigned char *)p - HEADER;
    memcpy(&magic, block + HEADER - 8, 8);
    memcpy(&bytes, block + HEADER - 16, sizeof bytes);
    if (magic != MAGIC || !all_ones(block, HEADER - 16)) {
        /* The size may be overwritten too: not to be used as an address. The block stays live. */
        report_damage("before", bytes);
        return;
    }
    if (!all_ones((unsigned char *)p + bytes, FENCE))
        report_damage("behind", bytes);
    atomic_fetch_sub(&live, bytes);
    memset(block, 0, HEADER); /* a second free of the same pointer finds no magic */
    free(block);
}

#ifdef HAVE_CUDA

#define FENCE_DEV 256 /* keeps the alignment that cudaMalloc gives */

typedef struct DeviceBlock {
    unsigned char *base_dev;
    size_t bytes;
    struct DeviceBlock *next;
} DeviceBlock;

static DeviceBlock *device_blocks;
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;

void *workspace_alloc_device(size_t bytes)
{
    void *base_dev = NULL;
    DeviceBlock *block;
    if (bytes > SIZE_MAX - 2 * FENCE_DEV || !(block = malloc(sizeof *block)))
        return NULL;
    if (cudaMalloc(&base_dev, bytes + 2 * FENCE_DEV) != cudaSuccess) {
        (void)cudaGetLastError(); /* "out of memory" is answered by NULL, not by the next launch */
        free(block);
        return NULL;
    }
    if (cudaMemset(base_dev, 0xFF, bytes + 2 * FENCE_DEV) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess) {
        (void)cudaFree(base_dev);
        free(block);
        return NULL;
    }
    block->base_dev = base_dev;
    block->bytes = bytes;
    pthread_mutex_lock(&device_lock);
    block->next = device_blocks;
    device_blocks = block;
    pthread_mutex_unlock(&device_lock);
    count_add(bytes);
    return block->base_dev + FENCE_DEV;
}

/* Takes the block with this pointer out of the list; NULL if there is none. */
static DeviceBlock *device_block_take(const unsigned char *p_dev)
{
    DeviceBlock **link, *found;
    pthread_mutex_lock(&device_lock);
    for (link = &device_blocks; *link && (*link)->base_dev + FENCE_DEV != p_dev;)
        link = &(*link)->next;
    found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&device_lock);
    return found;
}

void workspace_free_device(void *p_dev)
{
    unsigned char fence[FENCE_DEV];
    DeviceBlock *block;
    if (!p_dev)
        return;
    block = device_block_take(p_dev);
    if (!block) {
        atomic_store(&damaged, 1);
        fprintf(stderr, "workspace_free_device: %p is not a live device workspace\n", p_dev);
        return;
    }
    /* cudaMemcpy waits for the kernels that use the block. If one of them failed, the copy fails
     * too; the harness reports that error, and the fences prove nothing then. */
    if (cudaMemcpy(fence, block->base_dev, FENCE_DEV, cudaMemcpyDeviceToHost) == cudaSuccess &&
        !all_ones(fence, FENCE_DEV))
        report_damage("before", block->bytes);
    if (cudaMemcpy(fence, block->base_dev + FENCE_DEV + block->bytes, FENCE_DEV,
                   cudaMemcpyDeviceToHost) == cudaSuccess &&
        !all_ones(fence, FENCE_DEV))
        report_damage("behind", block->bytes);
    (void)cudaFree(block->base_dev);
    atomic_fetch_sub(&live, block->bytes);
    free(block);
}

#else

void *workspace_alloc_device(size_t bytes)
{
    (void)bytes;
    return NULL;
}

void workspace_free_device(void *p_dev)
{
    (void)p_dev; /* only NULL exists without CUDA */
}

#endif

void workspace_reset_peak(void)
{
    atomic_store(&peak, atomic_load(&live));
    atomic_store(&damaged, 0);
}

size_t workspace_peak(void)
{
    return atomic_load(&peak);
}

size_t workspace_live(void)
{
    return atomic_load(&live);
}

int workspace_intact(void)
{
    return !atomic_load(&damaged);
}
