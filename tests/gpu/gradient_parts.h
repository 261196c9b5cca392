/* SPDX-License-Identifier: MIT
 *
 * gradient_parts.h: flash_backward_cuda_begin, _add and _end in the shape of a block kernel, so
 * that every test of block kernels is one of theirs.
 *
 * The keys of a call are added in two blocks of different length where they can be cut in place
 * (one batch, no mask), and in one block elsewhere.
 *
 * Interface: block_in_parts, a FlashBlockFn on device pointers; block_in_parts_in_turns.
 */
#ifndef GRADIENT_PARTS_H
#define GRADIENT_PARTS_H

#include "../unit/key_blocks.h"

#include "alloc.h"
#include "attention/backward/backward_library.h"
#include "harness/device/device.h"

enum { MOST_PART_SEGMENTS = 64 };

/* Keys first .. first+count-1 of the block. room, room_dev: memory for their position map, on the
 * host and on the device. */
static inline AttnArgs part_of_keys(const AttnArgs *a, int64_t first, int64_t count,
                                    AttnSegment room[MOST_PART_SEGMENTS], AttnSegment *room_dev)
{
    AttnArgs part = *a;
    assert_true(a->positions_k.count <= MOST_PART_SEGMENTS);
    part.positions_k = positions_cut(a->positions_k, first, count, room);
    assert_int_equal(0,
                     device_upload(room_dev, room, sizeof *room * (size_t)part.positions_k.count));
    part.positions_k.segments = room_dev;
    part.shape.Nk = part.K.shape[1] = part.V.shape[1] = count;
    part.K.data = (char *)a->K.data + first * a->K.stride[1] * (int64_t)dtype_size(a->K.dtype);
    part.V.data = (char *)a->V.data + first * a->V.stride[1] * (int64_t)dtype_size(a->V.dtype);
    return part;
}

static inline AttnStatus add_part(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                                  void *workspace_dev, int64_t first, int64_t count)
{
    AttnSegment room[MOST_PART_SEGMENTS];
    AttnSegment *room_dev = device_alloc(sizeof *room_dev * MOST_PART_SEGMENTS);
    const int64_t skipped = first * a->shape.Hkv * a->shape.d;
    const FlashSums sums = {sums_dev.dQ, sums_dev.dK + skipped, sums_dev.dV + skipped};
    assert_non_null(room_dev);
    const AttnArgs part = part_of_keys(a, first, count, room, room_dev);
    AttnStatus status = flash_backward_cuda_add(&part, delta_dev, sums, workspace_dev);
    assert_int_equal(0, device_synchronize());
    device_free(room_dev);
    return status;
}

static inline AttnStatus block_in_parts(const AttnArgs *a, const float *delta_dev,
                                        FlashSums sums_dev)
{
    const int64_t Nk = a->shape.Nk, cut = a->shape.B == 1 && !a->mask && Nk > 1 ? (Nk + 2) / 3 : Nk;
    const size_t bytes = flash_backward_cuda_workspace_bytes(&a->shape, a->Q.dtype);
    void *workspace_dev = bytes ? workspace_alloc_device(bytes) : NULL;
    assert_true(!bytes || workspace_dev);
    AttnStatus status = flash_backward_cuda_begin(a, delta_dev, workspace_dev);
    if (status == ATTN_OK && cut < Nk)
        status = add_part(a, delta_dev, sums_dev, workspace_dev, cut, Nk - cut);
    if (status == ATTN_OK && cut < Nk)
        status = add_part(a, delta_dev, sums_dev, workspace_dev, 0, cut);
    if (status == ATTN_OK && cut == Nk)
        status = flash_backward_cuda_add(a, delta_dev, sums_dev, workspace_dev);
    if (status == ATTN_OK)
        status = flash_backward_cuda_end(a, sums_dev, workspace_dev);
    workspace_free_device(workspace_dev);
    return status;
}

static inline AttnStatus block_in_parts_in_turns(const AttnArgs *a, const float *delta_dev,
                                                 FlashSums sums_dev)
{
    flash_backward_set_deterministic(1);
    const AttnStatus status = block_in_parts(a, delta_dev, sums_dev);
    flash_backward_set_deterministic(0);
    return status;
}

#endif
