/* SPDX-License-Identifier: MIT
 *
 * key_plan.cuh: from positions to local indexes: which keys of a segment a query sees.
 *
 * They follow from the position map without asking pair by pair: of each segment of keys with the
 * query's sequence one run of local indexes. All plans of tiles are made of such runs: those of
 * blocks of rows (row_mask.cuh), of blocks of keys (stage 04's row_walk.cuh), of a rolling cache
 * (stage 05). Such a cache has two segments, since its oldest token lies behind its newest:
 *
 *     slot          0   1   2   3   4   5   6   7       8 slots, 13 tokens so far
 *     position      8   9  10  11  12   5   6   7       segments: 0 .. 4 from 8, 5 .. 7 from 5
 *
 * Interface, in the namespace plan:
 * - seen_run: the run, for a stride of any sign;
 *   bits_of_run: as a word of 32 keys.
 * - first_key_from, last_key_to: its two ends where positions rise.
 * - limit_of_rule, clamp_to_int, divide_up.
 * any_lane_bits: the OR of such words over the warp.
 */
#ifndef FLASH_FORWARD_KEY_PLAN_CUH
#define FLASH_FORWARD_KEY_PLAN_CUH

#include <cuda_runtime.h>

#include "attn.h"

/* Bit i of the result: does any lane of the warp have bit i set? */
__device__ __forceinline__ uint32_t any_lane_bits(uint32_t bits)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_or_sync(0xffffffffu, bits);
#else
    return bits;
#endif
}

namespace plan
{

/* A limit near INT64_MAX means "none". Cut to 2^62 it cannot overflow when a position is added. */
static __device__ __forceinline__ int64_t limit_of_rule(int64_t limit)
{
    return min(limit, (int64_t)1 << 62);
}

static __device__ __forceinline__ int clamp_to_int(int64_t x, int low, int high)
{
    return (int)max((int64_t)low, min(x, (int64_t)high));
}

/* Of `count` keys that stand at 0, stride, 2 stride, ...: the first at `position` or behind it
 * (count: none), the last at `position` or before it (-1: none). stride > 0. */
static __device__ __forceinline__ int first_key_from(int64_t position, int64_t stride, int count)
{
    const int64_t from = max((int64_t)0, min(position, count * stride));
    return (int)(stride == 1 ? from : (from + stride - 1) / stride);
}

static __device__ __forceinline__ int last_key_to(int64_t position, int64_t stride, int count)
{
    const int64_t to = max((int64_t)-1, min(position, (count - 1) * stride));
    return (int)(stride == 1 || to < 0 ? to : to / stride);
}

/* Bit c: is c0 + c one of first .. last? */
static __device__ __forceinline__ uint32_t bits_of_run(int first, int last, int c0)
{
    const int from = max(first - c0, 0);
    const int count = min(last - c0, 31) + 1 - from;
    return count > 0 ? 0xffffffffu >> (32 - count) << from : 0;
}

/* Rounded up, b > 0. */
static __device__ __forceinline__ int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b > 0);
}

/* First and last key of a segment, of any stride, that a query at `q` sees; none: last < first. */
static __device__ __forceinline__ int2 seen_run(const AttnRule &rule, const AttnSegment &keys,
                                                AttnPosition q)
{
    const int first = (int)keys.first, length = (int)keys.length;
    const int64_t far = (int64_t)1 << 62, stride = keys.stride < 0 ? -keys.stride : keys.stride;
    int64_t from = -far, to = far; /* keys seen stand `from` .. `to` behind the first key */
    if (rule.left >= 0)
        from = q.position - limit_of_rule(rule.left) - keys.position;
    if (rule.right >= 0)
        to = q.position + limit_of_rule(rule.right) - keys.position;
    if (keys.stride < 0) {
        const int64_t swap = from;
        from = -to;
        to = -swap;
    }
    if (stride == 0 && (from > 0 || to < 0))
        from = far;
    if (stride > 1) {
        from = divide_up(from, stride);
        to = -divide_up(-to, stride);
    }
    if (q.sequence != keys.sequence)
        from = far;
    if (stride == 0 && from < far)
        from = 0;
    return make_int2(first + clamp_to_int(from, 0, length),
                     first + clamp_to_int(stride ? to : length - 1, -1, length - 1));
}

} // namespace plan

#endif
