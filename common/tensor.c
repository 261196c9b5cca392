/* SPDX-License-Identifier: MIT
 *
 * tensor.c: rows of strided tensors, and storage in which a stray access shows.
 *
 * Storage of one tensor, from low to high addresses:
 *
 *     | guard page | canary: a page and the rest of one | gap? | elements and gaps | guard page |
 *     | no access  | 0xFF, checked afterwards           ^ base ^ view.data         | no access  |
 *
 * The last element ends where the guard page begins, so reading one element too many is a fault
 * and not a silent number.
 *
 * Interface: tensor.h.
 */
#include "tensor.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc.h"
#include "alloc_wanted.h"

/* Passes over a whole storage go block by block: on several threads where there are so many blocks
 * that starting threads is nothing beside them. A million tokens' Q has 8192. */
#define BLOCK       ((size_t)1 << 20)
#define MANY_BLOCKS 32
/* From here on a storage asks for huge pages. The first touch of a page is work of the kernel's,
 * and so is giving it back: of ordinary ones there are 512 times as many. Smaller storages stay as
 * they are, and so do the times of who reads them. */
#define HUGE_FROM ((size_t)1 << 30)

float tensor_get(const Tensor *t, int64_t element)
{
    if (t->dtype == ATTN_F16)
        return f32_from_f16(((const uint16_t *)t->data)[element]);
    if (t->dtype == ATTN_BF16 || t->dtype == ATTN_E4M3)
        return f32_from_bf16(((const uint16_t *)t->data)[element]);
    return ((const float *)t->data)[element];
}

void tensor_set(const Tensor *t, int64_t element, float value)
{
    if (t->dtype == ATTN_F16)
        ((uint16_t *)t->data)[element] = f16_from_f32(value);
    else if (t->dtype == ATTN_BF16 || t->dtype == ATTN_E4M3)
        ((uint16_t *)t->data)[element] = bf16_from_f32(value);
    else
        ((float *)t->data)[element] = value;
}

void tensor_read_row(const Tensor *t, int64_t b, int64_t n, int64_t h, float *row)
{
    int64_t x, d = t->shape[3], first = tensor_offset(t, b, n, h);
    if (t->dtype == ATTN_F16)
        for (x = 0; x < d; x++)
            row[x] = f32_from_f16(((const uint16_t *)t->data)[first + x]);
    else if (t->dtype == ATTN_BF16 || t->dtype == ATTN_E4M3)
        for (x = 0; x < d; x++)
            row[x] = f32_from_bf16(((const uint16_t *)t->data)[first + x]);
    else
        memcpy(row, (const float *)t->data + first, (size_t)d * sizeof(float));
}

void tensor_write_row(const Tensor *t, int64_t b, int64_t n, int64_t h, const float *row)
{
    int64_t x, d = t->shape[3], first = tensor_offset(t, b, n, h);
    if (t->dtype == ATTN_F16)
        for (x = 0; x < d; x++)
            ((uint16_t *)t->data)[first + x] = f16_from_f32(row[x]);
    else if (t->dtype == ATTN_BF16 || t->dtype == ATTN_E4M3)
        for (x = 0; x < d; x++)
            ((uint16_t *)t->data)[first + x] = bf16_from_f32(row[x]);
    else
        memcpy((float *)t->data + first, row, (size_t)d * sizeof(float));
}

/* A million tokens have 10^10 values in their results, and as many in their inputs. They are looked
 * through as they lie in memory, without a conversion: whether a value is a NaN says its bits.
 *
 * How many of n values are larger than `limit` when the sign is taken away? The sum fits 16 bits: a
 * row has 1024 channels at most. */
static int64_t count_above_16(const uint16_t *row, int64_t n, uint16_t limit)
{
    uint16_t found = 0;
    for (int64_t x = 0; x < n; x++)
        found = (uint16_t)(found + ((row[x] & 0x7FFF) > limit));
    return found;
}

static int64_t count_above_32(const float *row, int64_t n, uint32_t limit)
{
    int64_t found = 0;
    for (int64_t x = 0; x < n; x++) {
        uint32_t bits;
        memcpy(&bits, &row[x], sizeof bits);
        found += (bits & UINT32_C(0x7FFFFFFF)) > limit;
    }
    return found;
}

/* Infinity has the largest exponent and no fraction: a NaN is above it, what is finite below. */
static int64_t count_above(const Tensor *t, int64_t b, int64_t n, int64_t h, int finite)
{
    const int64_t at = tensor_offset(t, b, n, h), d = t->shape[3];
    const uint16_t infinity = t->dtype == ATTN_F16 ? 0x7C00 : 0x7F80;
    if (t->dtype == ATTN_F32)
        return count_above_32((const float *)t->data + at, d,
                              UINT32_C(0x7F800000) - (uint32_t)(finite != 0));
    return count_above_16((const uint16_t *)t->data + at, d, (uint16_t)(infinity - (finite != 0)));
}

int64_t row_nonfinite(const Tensor *t, int64_t b, int64_t n, int64_t h)
{
    return count_above(t, b, n, h, 1);
}

int64_t row_nan(const Tensor *t, int64_t b, int64_t n, int64_t h)
{
    return count_above(t, b, n, h, 0);
}

Tensor tensor_heads(const Tensor *t, int64_t first, int64_t count)
{
    Tensor heads = *t;
    heads.data = (unsigned char *)t->data + (size_t)(first * t->stride[2]) * dtype_size(t->dtype);
    heads.shape[2] = count;
    return heads;
}

int64_t tensor_count(const Tensor *t)
{
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

/* Dimensions 0 1 2 from the slowest (largest stride) to the fastest, for each layout. */
static const int layout_order[4][3] = {
    [LAYOUT_BSHD] = {0, 1, 2}, /* B N H */
    [LAYOUT_SBHD] = {1, 0, 2}, /* N B H */
    [LAYOUT_BHSD] = {0, 2, 1}, /* B H N */
    [LAYOUT_ODD] = {0, 1, 2},
};

/* Fills shape and stride; *span = elements from the first to the last one. -1 on overflow. */
static int view_set(Tensor *view, TensorLayout layout, const int64_t shape[4], int64_t *span)
{
    int64_t stride = shape[3];
    int t;
    if (layout == LAYOUT_ODD) { /* an odd pitch with a gap of 2 or 3 elements */
        if (__builtin_add_overflow(stride, 2, &stride))
            return -1;
        stride |= 1;
    }
    memcpy(view->shape, shape, sizeof view->shape);
    view->stride[3] = 1;
    for (t = 2; t >= 0; t--) {
        int dim = layout_order[layout][t];
        view->stride[dim] = stride;
        if (__builtin_mul_overflow(stride, shape[dim], &stride))
            return -1;
    }
    /* stride now is rows * pitch; the last row has no gap behind it */
    *span = stride - (view->stride[layout_order[layout][2]] - shape[3]);
    return 0;
}

int tensor_new(Storage *s, AttnDtype dtype, TensorLayout layout, int64_t B, int64_t N, int64_t H,
               int64_t d)
{
    const int64_t shape[4] = {B, N, H, d};
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = dtype_size(dtype);
    const size_t room = (size_t)INT64_MAX / 2; /* so that the sums below cannot overflow */
    int64_t span;
    size_t lead = layout == LAYOUT_ODD ? size : 0; /* odd offset from base, as on the device */
    unsigned char *end;
    memset(s, 0, sizeof *s);
    if (B < 1 || N < 1 || H < 1 || d < 1 || view_set(&s->view, layout, shape, &span) != 0)
        goto refused;
    /* The address counts back from a page border: an odd span gives an odd element address. */
    if (layout == LAYOUT_ODD)
        span |= 1;
    if ((size_t)span > room / size)
        goto refused;
    s->bytes = lead + (size_t)span * size;
    s->mapping_bytes = (s->bytes + page - 1) / page * page + 3 * page;
    if (!memory_enough_for(s->mapping_bytes))
        goto refused;
    s->mapping =
        mmap(NULL, s->mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->mapping == MAP_FAILED)
        goto refused;
#ifdef MADV_HUGEPAGE
    if (s->mapping_bytes >= HUGE_FROM) /* a wish: where it is not granted, ordinary pages serve */
        (void)madvise(s->mapping, s->mapping_bytes, MADV_HUGEPAGE);
#endif
    end = (unsigned char *)s->mapping + s->mapping_bytes - page;
    if (mprotect(s->mapping, page, PROT_NONE) != 0 || mprotect(end, page, PROT_NONE) != 0) {
        munmap(s->mapping, s->mapping_bytes);
        goto refused;
    }
    s->base = end - s->bytes;
    s->view.data = s->base + lead;
    s->view.dtype = dtype;
    tensor_poison(s);
    return 0;
refused:
    workspace_refuse(s->mapping_bytes);
    memset(s, 0, sizeof *s);
    return -1;
}

/* First byte that may be written: behind the guard page in front. */
static unsigned char *writable(const Storage *s)
{
    return (unsigned char *)s->mapping + sysconf(_SC_PAGESIZE);
}

/* Bytes from there to the guard page behind. */
static size_t writable_bytes(const Storage *s)
{
    return (size_t)(s->base + s->bytes - writable(s));
}

static size_t block_bytes(size_t all, size_t block)
{
    return all - block * BLOCK < BLOCK ? all - block * BLOCK : BLOCK;
}

/* The first one touches the memory: with several threads its pages also come from several nodes of
 * a machine that has them. */
void tensor_poison(const Storage *s)
{
    unsigned char *const p = writable(s);
    const size_t all = writable_bytes(s), blocks = (all + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) if (blocks >= MANY_BLOCKS)
    for (size_t n = 0; n < blocks; n++)
        memset(p + n * BLOCK, 0xFF, block_bytes(all, n));
}

/* 1 if every byte from..to-1 is 0xFF. */
static int still_poisoned(const unsigned char *from, const unsigned char *to)
{
    while (from < to)
        if (*from++ != 0xFF)
            return 0;
    return 1;
}

/* Walks the rows in the order of their addresses; whatever lies between two rows, before the first
 * or behind the last one belongs to nobody. */
int tensor_intact(const Storage *s)
{
    const Tensor *t = &s->view;
    const unsigned char *seen = writable(s);
    const size_t size = dtype_size(t->dtype);
    int slow = 0, mid = 1, fast = 2, swap;
    int64_t a, b, c;
    if (t->stride[slow] < t->stride[mid]) /* SBHD: stride[0] < stride[1] */
        swap = slow, slow = mid, mid = swap;
    else if (t->stride[mid] < t->stride[fast]) /* BHSD: stride[1] < stride[2] */
        swap = mid, mid = fast, fast = swap;
    for (a = 0; a < t->shape[slow]; a++)
        for (b = 0; b < t->shape[mid]; b++)
            for (c = 0; c < t->shape[fast]; c++) {
                const int64_t first =
                    a * t->stride[slow] + b * t->stride[mid] + c * t->stride[fast];
                const unsigned char *row = (const unsigned char *)t->data + (size_t)first * size;
                if (!still_poisoned(seen, row))
                    return 0;
                seen = row + (size_t)t->shape[3] * size;
            }
    return still_poisoned(seen, s->base + s->bytes);
}

/* Every step is a bijection of the hash for a given word, so one changed word always shows. */
static uint64_t fingerprint_of(uint64_t hash, const unsigned char *p, size_t bytes)
{
    uint64_t word;
    for (size_t at = 0; at + 8 <= bytes; at += 8) {
        memcpy(&word, p + at, 8);
        hash = (hash ^ word) * UINT64_C(0xD6E8FEB86659FD93);
        hash ^= hash >> 32;
    }
    return hash; /* a page border in front and behind: no rest */
}

/* The sum over blocks, each of which begins with a number of its own: whatever the threads, and two
 * blocks that change places show. One word is a part of one term, so it still shows always. */
uint64_t tensor_fingerprint(const Storage *s)
{
    const unsigned char *const p = writable(s);
    const size_t all = writable_bytes(s), blocks = (all + BLOCK - 1) / BLOCK;
    uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum) if (blocks >= MANY_BLOCKS)
    for (size_t n = 0; n < blocks; n++)
        sum += fingerprint_of(UINT64_C(0x9E3779B97F4A7C15) * (n + 1), p + n * BLOCK,
                              block_bytes(all, n));
    return sum;
}

void tensor_free(Storage *s)
{
    if (s->mapping)
        munmap(s->mapping, s->mapping_bytes);
    memset(s, 0, sizeof *s);
}
