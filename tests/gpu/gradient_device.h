/* SPDX-License-Identifier: MIT
 *
 * gradient_device.h: a block kernel of stage 04 on the GPU, to be called as one on the host: what
 * gradient_blocks.h does there serves here too.
 *
 * on_device() uploads whatever the arguments point to, runs `kernel_under_test` and brings the sums
 * back. A tensor keeps its strides, its place relative to 16 bytes and the NaN in its gaps; around
 * it lies NaN. What a block kernel has no business with (O, dQ, dK, dV) is not there at all.
 *
 * Interface:
 * - BlockKernel, block_kernels, block_kernel_takes: everything that adds to gradients on a GPU.
 * - kernel_under_test, on_device: a FlashBlockFn.
 * - floats_up, tensor_up: single arrays.
 */
#ifndef GRADIENT_DEVICE_H
#define GRADIENT_DEVICE_H

#include "../unit/gradient_blocks.h"

#include "harness/device/device.h"

#include "attention/backward/cuda/block.cuh"
#include "gradient_parts.h"

/* The 16-bit block kernel as --deterministic and --smem-limit make it: its turns, its tiles for
 * GPUs with 99 KiB of shared memory a block, and, with all of a Hopper card's, the portable kernel
 * in place of that card's own. */
static inline AttnStatus block_as_told(const AttnArgs *a, const float *delta_dev,
                                       FlashSums sums_dev, int in_turns, int64_t smem_limit)
{
    flash_backward_set_deterministic(in_turns);
    device_set_smem_limit(smem_limit);
    const AttnStatus status = flash_backward_block_cuda(a, delta_dev, sums_dev);
    flash_backward_set_deterministic(0);
    device_set_smem_limit(0);
    return status;
}

#define KIB_99  (99 * 1024)
#define KIB_227 (227 * 1024)

static inline AttnStatus block_in_turns(const AttnArgs *a, const float *delta_dev,
                                        FlashSums sums_dev)
{
    return block_as_told(a, delta_dev, sums_dev, 1, 0);
}

static inline AttnStatus block_portable(const AttnArgs *a, const float *delta_dev,
                                        FlashSums sums_dev)
{
    return block_as_told(a, delta_dev, sums_dev, 0, KIB_227);
}

static inline AttnStatus block_small(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev)
{
    return block_as_told(a, delta_dev, sums_dev, 0, KIB_99);
}

static inline AttnStatus block_small_in_turns(const AttnArgs *a, const float *delta_dev,
                                              FlashSums sums_dev)
{
    return block_as_told(a, delta_dev, sums_dev, 1, KIB_99);
}

typedef struct BlockKernel {
    const char *name;
    FlashBlockFn function;
    unsigned dtypes; /* bits 1 << AttnDtype */
    double c;        /* of the bound (oracle.h): 16 on tensor cores */
} BlockKernel;

static const BlockKernel block_kernels[] = {
    {"flash_backward_block_cuda, f32", flash_backward_block_cuda, 1, 4},
    {"flash_backward_block_cuda, 16 bit", flash_backward_block_cuda, 6, 16},
    {"flash_backward_block_cuda, in turns", block_in_turns, 6, 16},
    {"flash_backward_block_cuda, portable", block_portable, 6, 16},
    {"flash_backward_block_cuda, 99 KiB", block_small, 6, 16},
    {"flash_backward_block_cuda, 99 KiB, in turns", block_small_in_turns, 6, 16},
    {"begin, add, end, f32", block_in_parts, 1, 4},
    {"begin, add, end, 16 bit", block_in_parts, 6, 16},
    {"begin, add, end, in turns", block_in_parts_in_turns, 6, 16},
};

#define BLOCK_KERNEL_COUNT ((int)(sizeof block_kernels / sizeof *block_kernels))

/* Tensor cores need sm_80. */
static inline int block_kernel_takes(const BlockKernel *kernel, AttnDtype dtype)
{
    return kernel->dtypes >> dtype & 1 && (dtype == ATTN_F32 || device_arch() >= 80);
}

#define PADDING     ((size_t)256) /* of NaN before and behind what is uploaded */
#define MOST_COPIES 16

/* Device memory of one call. */
typedef struct Copies {
    unsigned char *all_dev[MOST_COPIES];
    int count;
} Copies;

static inline void *bytes_up(Copies *copies, const void *from, size_t bytes)
{
    const size_t before = PADDING + (uintptr_t)from % 16;
    unsigned char *all_dev = device_alloc(before + bytes + PADDING);
    assert_non_null(all_dev);
    assert_true(copies->count < MOST_COPIES);
    copies->all_dev[copies->count++] = all_dev;
    assert_int_equal(0, device_fill_bytes(all_dev, 0xFF, before + bytes + PADDING));
    assert_int_equal(0, device_upload(all_dev + before, from, bytes));
    return all_dev + before;
}

static inline float *floats_up(Copies *copies, const float *from, int64_t count)
{
    return bytes_up(copies, from, sizeof *from * (size_t)count);
}

/* From its first element to its last, gaps included. */
static inline Tensor tensor_up(Copies *copies, const Tensor *t)
{
    Tensor up = *t;
    const int64_t last = tensor_offset(t, t->shape[0] - 1, t->shape[1] - 1, t->shape[2] - 1);
    up.data = bytes_up(copies, t->data, (size_t)(last + t->shape[3]) * dtype_size(t->dtype));
    return up;
}

static inline AttnPositions positions_up(Copies *copies, AttnPositions map)
{
    map.segments = bytes_up(copies, map.segments, sizeof *map.segments * (size_t)map.count);
    return map;
}

static inline void copies_free(Copies *copies)
{
    for (int n = 0; n < copies->count; n++)
        device_free(copies->all_dev[n]);
    copies->count = 0;
}

/* The inputs of a backward block kernel; outputs point nowhere. */
static inline AttnArgs args_up(Copies *copies, const AttnArgs *host)
{
    const AttnShape *n = &host->shape;
    AttnArgs a = *host;
    a.Q = tensor_up(copies, &host->Q);
    a.K = tensor_up(copies, &host->K);
    a.V = tensor_up(copies, &host->V);
    a.dO = tensor_up(copies, &host->dO);
    a.O.data = a.dQ.data = a.dK.data = a.dV.data = NULL;
    a.lse = floats_up(copies, host->lse, n->B * n->H * n->Nq);
    a.positions_q = positions_up(copies, host->positions_q);
    a.positions_k = positions_up(copies, host->positions_k);
    if (host->mask)
        a.mask = bytes_up(copies, host->mask, (size_t)(n->Nq * n->Nk));
    return a;
}

static FlashBlockFn kernel_under_test;

static inline AttnStatus on_device(const AttnArgs *host, const float *delta, FlashSums sums)
{
    const AttnShape *n = &host->shape;
    Copies copies = {.count = 0};
    const AttnArgs a = args_up(&copies, host);
    const float *delta_dev = floats_up(&copies, delta, n->B * n->H * n->Nq);
    const FlashSums sums_dev = {floats_up(&copies, sums.dQ, query_floats(n)),
                                floats_up(&copies, sums.dK, key_floats(n)),
                                floats_up(&copies, sums.dV, key_floats(n))};
    const AttnStatus status = kernel_under_test(&a, delta_dev, sums_dev);
    const size_t key_bytes = sizeof(float) * (size_t)key_floats(n);
    assert_int_equal(0, device_synchronize());
    assert_int_equal(
        0, device_download(sums.dQ, sums_dev.dQ, sizeof(float) * (size_t)query_floats(n)));
    assert_int_equal(0, device_download(sums.dK, sums_dev.dK, key_bytes));
    assert_int_equal(0, device_download(sums.dV, sums_dev.dV, key_bytes));
    copies_free(&copies);
    return status;
}

#endif
