/* SPDX-License-Identifier: MIT
 *
 * hopper_keys.cuh: the kernel of rung v13 for all that the library is asked: positions that grow
 * (row_rule.cuh), head dimensions below that of the tile, dK and dV as sums in float32, a fixed
 * order of sums (ordered_dq.cuh).
 *
 * Head dimensions. The copy engine fills channels from d on with zeros, and leaves them out on the
 * way back, 16 bytes at a time: d is a multiple of 8. For that a map has the channels of a head as
 * one dimension, and a box takes one copy for each 64 of them.
 *
 * Interface:
 * - KeysWork: what a launch works on. make_maps (host). readable (host): by the copy engine.
 * - add_keys: dK and dV to the sums. keys_kernel: d up to 64 and 128.
 */
#ifndef FLASH_BACKWARD_HOPPER_KEYS_CUH
#define FLASH_BACKWARD_HOPPER_KEYS_CUH

#include "../../cuda/hopper_pass.cuh"
#include "../../cuda/wgmma_turns.cuh"
#include "library/backward_library.h"
#include "row_rule.cuh"

namespace rung
{

struct KeysWork {
    RowRule rule;
    FlashSums sums; /* dK NULL: into the tensors */
    bool fresh;     /* the sums have nothing yet and are not read */
};

/* Steps are multiples of 16 bytes. Nobody steps in a dimension of size 1. */
static bool readable(const Tensor *t)
{
    const int64_t limit = (int64_t)1 << 39;
    for (int n = 0; n < 3; n++)
        if (t->shape[n] > 1 &&
            (t->stride[n] % 8 != 0 || t->stride[n] <= 0 || t->stride[n] >= limit))
            return false;
    return (uintptr_t)t->data % 16 == 0;
}

/* Boxes of 64 rows. Where a head has all D channels as make_tile_map; else [channels], row, 1,
 * head, batch, and a box for each panel. */
static AttnStatus make_map(CUtensorMap *map, Tensor t, int D)
{
    for (int n = 0; n < 3; n++)
        if (t.shape[n] == 1)
            t.stride[n] = 8;
    if (t.shape[3] == D)
        return make_tile_map(map, &t, 64);
    EncodeTiled encode = NULL;
    const cuuint64_t sizes[5] = {(cuuint64_t)t.shape[3], (cuuint64_t)t.shape[1], 1,
                                 (cuuint64_t)t.shape[2], (cuuint64_t)t.shape[0]};
    const cuuint64_t bytes[4] = {(cuuint64_t)t.stride[1] * 2, 16, (cuuint64_t)t.stride[2] * 2,
                                 (cuuint64_t)t.stride[0] * 2};
    const cuuint32_t box[5] = {PANEL, 64, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    const AttnStatus status = find_encoder(&encode);
    if (status != ATTN_OK)
        return status;
    const CUresult error = encode(
        map,
        t.dtype == ATTN_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        5, t.data, sizes, bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error != CUDA_SUCCESS) {
        fprintf(stderr, "cuTensorMapEncodeTiled: error %d\n", (int)error);
        return ATTN_CUDA_ERROR;
    }
    return ATTN_OK;
}

static AttnStatus make_maps(KeyMaps *maps, const AttnArgs *a, int D, bool sums)
{
    const Tensor *tensors[6] = {&a->Q, &a->K, &a->V, &a->dO, &a->dK, &a->dV};
    CUtensorMap *map[6] = {&maps->Q, &maps->K, &maps->V, &maps->dO, &maps->dK, &maps->dV};
    AttnStatus status = ATTN_OK;
    maps->copies = a->shape.d == D ? 1 : D / PANEL;
    for (int t = 0; t < (sums ? 4 : 6) && status == ATTN_OK; t++)
        status = make_map(map[t], *tensors[t], D);
    return status;
}

/* Two neighbouring channels of a row of the sums. */
static __device__ __forceinline__ void add_pair(float *to, float low, float high, bool fresh)
{
    float2 *pair = reinterpret_cast<float2 *>(to);
    const float2 old = fresh ? make_float2(0.0f, 0.0f) : *pair;
    *pair = make_float2(old.x + low, old.y + high);
}

/* dK and dV of 64 keys from j0 on and CHANNELS channels from x0 on. No other block has them. */
template <int CHANNELS>
static __device__ __forceinline__ void
add_keys(const float (&dK)[CHANNELS / 8][4], const float (&dV)[CHANNELS / 8][4], const AttnArgs &a,
         const KeysWork &work, const KeyBlock &block, int j0, int x0)
{
    const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int d = (int)a.shape.d;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int j = j0 + 16 * warp + g + 8 * e;
        const int64_t row = ((block.b * a.shape.Nk + j) * a.shape.Hkv + block.h_kv) * d;
        if (j >= (int)a.shape.Nk)
            continue;
#pragma unroll
        for (int n = 0; n < CHANNELS / 8; n++) {
            const int x = x0 + 8 * n + 2 * t;
            if (x < d) {
                add_pair(work.sums.dK + row + x, dK[n][2 * e] * a.scale, dK[n][2 * e + 1] * a.scale,
                         work.fresh);
                add_pair(work.sums.dV + row + x, dV[n][2 * e], dV[n][2 * e + 1], work.fresh);
            }
        }
    }
}

template <typename T, class C, bool ORDERED>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    keys_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ Pass pass,
                const __grid_constant__ KeyMaps maps, const __grid_constant__ KeysWork work)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        start_barriers<C>(smem);
        if (ORDERED)
            start_order<C>(smem_bytes, a, pass);
    }
    __syncthreads();
    const int index = ORDERED ? *(const int *)(smem_bytes + C::TICKET) : blockIdx.x;
    const KeyBlock block = keys_in_sections(a, C::Bc, index, pass.section, pass.back);
    const RowSight sight = sight_of(work.rule, (int)a.shape.Nk, block.j0, C::Bc);
    KeyWalk walk = start_walk<C>(block, sight);
    if (warpgroup == PRODUCER) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0)
            produce<C>(a, pass, maps, block, walk, smem);
        else if (ORDERED && threadIdx.x % 32 == 0 && threadIdx.x % 128 <= 64)
            keep_order<C>(a, pass, sight, block, walk, smem, threadIdx.x % 128 / 32 - 1);
    } else {
        float dK[C::D / 8][4], dV[C::D / 8][4];
        registers_take<CONSUMER_REGISTERS>();
        consume_in_turns<T, C, ORDERED>(dK, dV, a, pass, sight, block, walk, smem_bytes, warpgroup);
        if (work.sums.dK)
            add_keys<C::D>(dK, dV, a, work, block, block.j0 + 64 * warpgroup, 0);
        else
            store_gradients<T, C>(dK, dV, a.scale, maps, block, sight.Nk, smem_bytes, warpgroup);
    }
}

} // namespace rung

#endif
