/* SPDX-License-Identifier: MIT
 *
 * decode_keys.cuh: rows of keys and values from memory to registers.
 *
 * A row of K or V comes as pieces of 8 channels, one for each lane of a group of lanes: 16 bytes
 * of 16-bit elements, the most that one load can fetch, or twice that in float32. It waits in
 * shared memory, in a place of its thread's own: what a thread has fetched nobody else reads, so
 * no barrier is needed, only the thread's own wait. (Shared memory serves as registers here. Real
 * ones would have to hold what is under way and what is being multiplied.)
 *
 * Interface:
 * - Channels<T>: eight channels of a row, not yet converted; channel_of: which ones.
 * - fetch_channels: memory to shared memory, in the background; the caller commits. as_floats.
 */
#ifndef WINDOW_DECODE_KEYS_CUH
#define WINDOW_DECODE_KEYS_CUH

#include "mma.cuh" /* copy_async_16 */
#include "row_mask.cuh"

#define EIGHT 8 /* channels of a lane */

/* Eight channels as they come from memory. */
template <typename T> struct Channels {
    static const int LOADS = (int)sizeof(T) / 2; /* of 16 bytes */
    uint4 raw[LOADS];
};

/* 16 bytes, zeros if they are not valid. */
static __device__ __forceinline__ void fetch_16(uint4 *to_smem, const uint4 *from, bool valid)
{
#if __CUDA_ARCH__ >= 800
    copy_async_16((uint32_t)__cvta_generic_to_shared(to_smem), from, valid);
#else
    *to_smem = valid ? *from : make_uint4(0, 0, 0, 0);
#endif
}

/* Which channel the e-th of a lane's eight is. In each load neighbours fetch what lies side by
 * side: in float32 the first half of a row, then the second. LANES * 8 channels in all. */
template <typename T, int LANES> static __device__ __forceinline__ int channel_of(int lane, int e)
{
    const int STEP = EIGHT / Channels<T>::LOADS; /* elements of a load */
    return e / STEP * (LANES * STEP) + lane * STEP + e % STEP;
}

/* This lane's channels of a row to to_smem [LOADS][pitch], zeros from d on and where the row is not
 * valid. wide: rows lie on 16 bytes. `any`: an address that may be named where nothing is read. */
template <typename T, int LANES>
static __device__ __forceinline__ void fetch_channels(uint4 *to_smem, int pitch, const T *row,
                                                      const T *any, int d, bool valid, bool wide)
{
    const int STEP = EIGHT / Channels<T>::LOADS;
#pragma unroll
    for (int n = 0; n < Channels<T>::LOADS; n++) {
        const int x = channel_of<T, LANES>(threadIdx.x % LANES, n * STEP);
        if (wide) {
            const bool inside = valid && x < d;
            fetch_16(to_smem + n * pitch, (const uint4 *)(inside ? row + x : any), inside);
        } else {
            alignas(16) T elements[STEP];
#pragma unroll
            for (int e = 0; e < STEP; e++)
                elements[e] = valid && x + e < d ? row[x + e] : T(0.0f);
            to_smem[n * pitch] = *reinterpret_cast<const uint4 *>(elements);
        }
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
