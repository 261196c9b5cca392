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
 * its workspace is caught even without a sanitizer. Blocks on the GPU: alloc_device.c.
 *
 * Interface: alloc.h, alloc_wanted.h; alloc_internal.h for alloc_device.c. The counters are C11
 * atomics, so threads may allocate at the same time.
 */
#include "alloc_internal.h"
#include "alloc_wanted.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

static atomic_size_t live, peak, wanted;
static atomic_int damaged;

void workspace_count_add(size_t bytes)
{
    size_t now = atomic_fetch_add(&live, bytes) + bytes;
    size_t seen = atomic_load(&peak);
    while (seen < now && !atomic_compare_exchange_weak(&peak, &seen, now))
        ; /* seen was refreshed: another thread moved the peak meanwhile */
}

void workspace_count_sub(size_t bytes)
{
    atomic_fetch_sub(&live, bytes);
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
    const int enough = bytes < LARGE || bytes <= memory_available();
    if (!enough)
        workspace_refuse(bytes);
    return enough;
}

void workspace_refuse(size_t bytes)
{
    atomic_store(&wanted, bytes);
}

const char *workspace_wanted(char text[64])
{
    const size_t bytes = atomic_load(&wanted);
    text[0] = '\0';
    if (bytes > 0 && bytes < 1 << 20)
        snprintf(text, 64, ", it asked for %zu bytes", bytes);
    else if (bytes > 0)
        snprintf(text, 64, ", it asked for %.1f MiB", (double)bytes / (1 << 20));
    return text;
}

void *workspace_alloc(size_t bytes)
{
    void *block;
    unsigned char *p;
    const uint64_t magic = MAGIC;
    const int huge = bytes >= 2 * HUGE_PAGE;
    if (bytes > SIZE_MAX - HEADER - FENCE || !memory_enough_for(bytes) ||
        posix_memalign(&block, huge ? HUGE_PAGE : HEADER, HEADER + bytes + FENCE) != 0) {
        workspace_refuse(bytes);
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    if (huge) /* a wish: where it is not granted, ordinary pages serve */
        (void)madvise(block, HEADER + bytes + FENCE, MADV_HUGEPAGE);
#endif
    p = (unsigned char *)block + HEADER;
    memset(block, 0xFF, HEADER + bytes + FENCE);
    memcpy(p - 8, &magic, 8); /* next to the caller's bytes, where an underrun lands first */
    memcpy(p - 16, &bytes, sizeof bytes);
    workspace_count_add(bytes);
    return p;
}

int workspace_all_ones(const unsigned char *p, size_t bytes)
{
    size_t t;
    for (t = 0; t < bytes; t++)
        if (p[t] != 0xFF)
            return 0;
    return 1;
}

void workspace_damaged(const char *what, size_t bytes)
{
    atomic_store(&damaged, 1);
    fprintf(stderr, "workspace of %zu bytes: %s\n", bytes, what);
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
    if (magic != MAGIC || !workspace_all_ones(block, HEADER - 16)) {
        /* The size may be overwritten too: not to be used as an address. The block stays live. */
        workspace_damaged("something wrote before it", bytes);
        return;
    }
    if (!workspace_all_ones((unsigned char *)p + bytes, FENCE))
        workspace_damaged("something wrote behind it", bytes);
    workspace_count_sub(bytes);
    memset(block, 0, HEADER); /* a second free of the same pointer finds no magic */
    free(block);
}

void workspace_reset_peak(void)
{
    workspace_settle(); /* what earlier blocks have to say belongs to the time before */
    atomic_store(&peak, atomic_load(&live));
    atomic_store(&damaged, 0);
    atomic_store(&wanted, 0);
}

void workspace_lower_peak(void)
{
    atomic_store(&peak, atomic_load(&live));
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
    workspace_settle();
    return !atomic_load(&damaged);
}
