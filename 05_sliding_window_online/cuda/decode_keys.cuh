/* SPDX-License-Identifier: MIT
 *
 * decode_keys.cuh: which keys one query sees, and their rows from memory to registers.
 *
 * All rows of a block have the same query, so they see the same keys, and those follow from the
 * position map without asking pair by pair: of each segment of keys with the query's sequence one
 * run of local indexes. A rolling cache has two segments, since its oldest token lies behind its
 * newest:
 *
 *     slot          0   1   2   3   4   5   6   7       8 slots, 13 tokens so far
 *     position      8   9  10  11  12   5   6   7       segments: 0 .. 4 from 8, 5 .. 7 from 5
 *
 * A row of K or V comes as pieces of 8 channels, one for each lane of a group of lanes: 16 bytes
 * of 16-bit elements, the most that one load can fetch, or twice that in float32.
 *
 * Interface:
 * - visible_run: the keys of a segment that a query sees.
 * - Channels<T>, load_channels: eight channels of a row, not yet converted. as_floats.
 */
#ifndef WINDOW_DECODE_KEYS_CUH
#define WINDOW_DECODE_KEYS_CUH

#include "row_mask.cuh" /* limit_of_rule */

#define EIGHT 8 /* channels of a lane */

/* Local indexes begin .. end - 1; none: begin = end. */
struct VisibleRun {
    int begin, end;
};

/* ceil(x / y) for y > 0 and any x */
static __device__ __forceinline__ int64_t divide_up(int64_t x, int64_t y)
{
    return x > 0 ? (x - 1) / y + 1 : x / y;
}

/* Element t of the segment has position g.position + t * g.stride. */
static __device__ __forceinline__ VisibleRun visible_run(const AttnRule &rule, AttnPosition q,
                                                         const AttnSegment &g)
{
    int64_t from = 0, to = g.length; /* t: from <= t < to */
    const int64_t ahead = q.position - g.position, step = g.stride < 0 ? -g.stride : g.stride;
    int64_t left = rule.left < 0 ? -1 : limit_of_rule(rule.left);
    int64_t right = rule.right < 0 ? -1 : limit_of_rule(rule.right);
    VisibleRun run = {(int)g.first, (int)g.first};
    if (g.sequence != q.sequence || g.length == 0)
        return run;
    if (g.stride < 0) { /* positions fall: left and right change places */
        const int64_t swap = left;
        left = right;
        right = swap;
    }
    const int64_t at = g.stride < 0 ? -ahead : ahead;
    if (step == 0) {
        if ((left >= 0 && -at < -left) || (right >= 0 && -at > right))
            to = 0;
    } else {
        if (left >= 0)
            from = max(from, divide_up(at - left, step));
        if (right >= 0)
            to = min(to, divide_up(at + right + 1, step));
    }
    if (from < to) {
        run.begin = (int)(g.first + from);
        run.end = (int)(g.first + to);
    }
    return run;
}

/* Eight channels as they come from memory. */
template <typename T> struct Channels {
    static const int LOADS = (int)sizeof(T) / 2; /* of 16 bytes */
    uint4 raw[LOADS];
};

/* Channels x0 .. x0 + 7 of a row, zeros from d on. wide: rows lie on 16 bytes. */
template <typename T>
static __device__ __forceinline__ void load_channels(Channels<T> &c, const T *row, int x0, int d,
                                                     bool wide)
{
    const int STEP = EIGHT / Channels<T>::LOADS; /* elements of a load */
    if (wide) {
#pragma unroll
        for (int n = 0; n < Channels<T>::LOADS; n++)
            c.raw[n] = x0 + n * STEP < d ? __ldg(reinterpret_cast<const uint4 *>(row + x0) + n)
                                         : make_uint4(0, 0, 0, 0);
    } else {
        alignas(16) T elements[EIGHT];
#pragma unroll
        for (int e = 0; e < EIGHT; e++)
            elements[e] = x0 + e < d ? row[x0 + e] : T(0.0f);
#pragma unroll
        for (int n = 0; n < Channels<T>::LOADS; n++)
            c.raw[n] = reinterpret_cast<const uint4 *>(elements)[n];
    }
}

static __device__ __forceinline__ void as_floats(float (&to)[EIGHT], const Channels<float> &c)
{
#pragma unroll
    for (int n = 0; n < 2; n++) {
        to[4 * n] = __uint_as_float(c.raw[n].x);
        to[4 * n + 1] = __uint_as_float(c.raw[n].y);
        to[4 * n + 2] = __uint_as_float(c.raw[n].z);
        to[4 * n + 3] = __uint_as_float(c.raw[n].w);
    }
}

static __device__ __forceinline__ void as_floats(float (&to)[EIGHT], const Channels<__half> &c)
{
    const uint32_t words[4] = {c.raw[0].x, c.raw[0].y, c.raw[0].z, c.raw[0].w};
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2 *>(&words[n]));
        to[2 * n] = pair.x;
        to[2 * n + 1] = pair.y;
    }
}

/* bf16 is the upper half of a float32. */
static __device__ __forceinline__ void as_floats(float (&to)[EIGHT],
                                                 const Channels<__nv_bfloat16> &c)
{
    const uint32_t words[4] = {c.raw[0].x, c.raw[0].y, c.raw[0].z, c.raw[0].w};
#pragma unroll
    for (int n = 0; n < 4; n++) {
        to[2 * n] = __uint_as_float(words[n] << 16);
        to[2 * n + 1] = __uint_as_float(words[n] & 0xffff0000u);
    }
}

#endif
