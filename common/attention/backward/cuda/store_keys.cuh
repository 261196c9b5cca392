/* SPDX-License-Identifier: MIT
 *
 * store_keys.cuh: dK and dV out of the accumulators.
 *
 * A quad of lanes holds 16 bytes of a row; a store of the warp shall cover whole rows. So rounded
 * rows go through shared memory, in the place of K and V, each warp through rows and channels that
 * are its own, and leave in pieces of 16 bytes. Rows that do not lie on 16 bytes, and float32 sums,
 * take the direct way. The two ways are two loops, each in one piece: a test of every element would
 * have the accumulators' 128 stores jump to and fro over code that does not fit the instruction
 * cache, which took longer than two tiles of queries.
 *
 * Interface:
 * - store_keys: one warp's part of dK or dV, times a factor.
 */
#ifndef FLASH_BACKWARD_STORE_KEYS_CUH
#define FLASH_BACKWARD_STORE_KEYS_CUH

#include "mma_gradients.cuh"

/* A block works on keys j0 .. of kv head h_kv of batch b. */
struct KeyWork {
    int b, h_kv, j0;
};

/* One warp's sums, times factor, to tensor `to` by way of its own rows of a tile in shared memory,
 * or added to `sum`: without atomics, since these keys have no other owner. wide: rows
 * lie on 16 bytes and there are no sums, so the way leads through shared memory. fresh: `sum` has
 * nothing yet and is not read. */
template <typename T, class C>
static __device__ __forceinline__ void
store_keys(const float (&acc)[C::MT][C::WARP_CHANNELS / 8][4], float factor, const Tensor &to,
           float *sum, unsigned char *smem, const AttnArgs &a, KeyWork work, bool wide,
           bool fresh = false)
{
    const int lane = threadIdx.x % 32, t = lane % 4, g = lane / 4, warp = threadIdx.x / 32;
    const int group = warp / C::KEY_WARPS;
    const int Nk = (int)a.shape.Nk, d = (int)a.shape.d, CHUNKS = C::WARP_CHANNELS / 8;
    const int chunk0 = warp % C::KEY_WARPS * CHUNKS;
    T *rows = (T *)to.data + tensor_offset(&to, work.b, work.j0, work.h_kv);
    if (wide) {
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int key = (mt * C::GROUPS + group) * 16 + g + 8 * e;
#pragma unroll
                for (int n = 0; n < CHUNKS; n++)
                    *reinterpret_cast<uint32_t *>(smem + swizzle<C::D>(key, chunk0 + n) + 4 * t) =
                        pack2<T>(acc[mt][n][2 * e] * factor, acc[mt][n][2 * e + 1] * factor);
            }
        __syncwarp();
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
            for (int c = lane; c < 16 * CHUNKS; c += 32) {
                const int key = (mt * C::GROUPS + group) * 16 + c / CHUNKS;
                const int chunk = chunk0 + c % CHUNKS;
                if (work.j0 + key < Nk && chunk * 8 < d)
                    *reinterpret_cast<uint4 *>(rows + key * to.stride[1] + chunk * 8) =
                        *reinterpret_cast<const uint4 *>(smem + swizzle<C::D>(key, chunk));
            }
        return;
    }
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int key = (mt * C::GROUPS + group) * 16 + g + 8 * e;
#pragma unroll
            for (int n = 0; n < CHUNKS; n++) {
                const float low = acc[mt][n][2 * e] * factor, high = acc[mt][n][2 * e + 1] * factor;
                const int x = (chunk0 + n) * 8 + 2 * t;
                if (work.j0 + key < Nk && sum) {
                    float *row =
                        sum + ((work.b * a.shape.Nk + work.j0 + key) * a.shape.Hkv + work.h_kv) * d;
                    if (x < d)
                        row[x] = low + (fresh ? 0.0f : row[x]);
                    if (x + 1 < d)
                        row[x + 1] = high + (fresh ? 0.0f : row[x + 1]);
                } else if (work.j0 + key < Nk) {
                    if (x < d)
                        rows[key * to.stride[1] + x] = T(low);
                    if (x + 1 < d)
                        rows[key * to.stride[1] + x + 1] = T(high);
                }
            }
        }
}

#endif
