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

#include "../../../../04_flash_backward/cuda/hopper_pass.cuh"
#include "attention/backward/backward_library.h"
#include "ordered_dq.cuh"
#include "row_rule.cuh"

namespace rung
{

struct KeysWork {
    RowRule rule;
    FlashSums sums; /* dK NULL: into the tensors */
    bool fresh;     /* the sums have nothing yet and are not read */
    int section;    /* of keys_in_sections */
    bool back;
};

/* KeyMaps, of boxes that take so many copies: one, or one for each panel. */
struct PanelMaps : KeyMaps {
    int copies;
};

/* What load_tile and store_tile take in place of a map: wgmma_keys.cuh names K of these as K of
 * KeyMaps. */
struct BoxMap {
    const CUtensorMap *map;
    int copies;
};

struct BoxMaps {
    BoxMap Q, K, V, dO, dK, dV;
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

/* Boxes of 64 rows. Where a head has all D channels: panels as in make_tile_map; else [channels],
 * row, 1, head, batch, and a box for each panel. */
static AttnStatus make_map(CUtensorMap *map, Tensor t, int D)
{
    for (int n = 0; n < 3; n++)
        if (t.shape[n] == 1)
            t.stride[n] = 8;
    const bool whole = t.shape[3] == D;
    const cuuint64_t panels = (cuuint64_t)(whole ? D / PANEL : 1);
    const cuuint64_t width = (cuuint64_t)(whole ? PANEL : t.shape[3]);
    const cuuint64_t sizes[5] = {width, (cuuint64_t)t.shape[1], panels, (cuuint64_t)t.shape[2],
                                 (cuuint64_t)t.shape[0]};
    const cuuint64_t bytes[4] = {(cuuint64_t)t.stride[1] * 2, (cuuint64_t)(whole ? PANEL * 2 : 16),
                                 (cuuint64_t)t.stride[2] * 2, (cuuint64_t)t.stride[0] * 2};
    const cuuint32_t box[5] = {PANEL, 64, (cuuint32_t)panels, 1, 1};
    const CUtensorMapDataType type =
        t.dtype == ATTN_BF16 ? MAP_TYPE<__nv_bfloat16> : MAP_TYPE<__half>;
    return encode_map(map, type, 5, t.data, sizes, bytes, box) ? ATTN_OK : ATTN_CUDA_ERROR;
}

static AttnStatus make_maps(PanelMaps *maps, const AttnArgs *a, int D, bool sums)
{
    const Tensor *tensors[6] = {&a->Q, &a->K, &a->V, &a->dO, &a->dK, &a->dV};
    CUtensorMap *map[6] = {&maps->Q, &maps->K, &maps->V, &maps->dO, &maps->dK, &maps->dV};
    AttnStatus status = ATTN_OK;
    maps->copies = a->shape.d == D ? 1 : D / PANEL;
    for (int t = 0; t < (sums ? 4 : 6) && status == ATTN_OK; t++)
        status = make_map(map[t], *tensors[t], D);
    return status;
}

/* Block `index` where the tiles of keys of `section` heads are taken in turn, with those of a head
 * from first to last, or back. */
static __device__ __forceinline__ KeyBlock keys_in_sections(const AttnArgs &a, int Bc, int index,
                                                            int section, bool back)
{
    const int tiles = divide_up((int)a.shape.Nk, Bc), Hkv = (int)a.shape.Hkv;
    const int first = index / (tiles * section) * section, rest = index - first * tiles;
    const int here = min(section, (int)a.shape.B * Hkv - first);
    const int head = first + rest % here, j = rest / here;
    KeyBlock block;
    block.b = head / Hkv;
    block.h_kv = head % Hkv;
    block.j0 = (back ? tiles - 1 - j : j) * Bc;
    block.group = (int)a.shape.H / Hkv;
    return block;
}

/* cp.async.bulk.tensor as in load_tile and store_tile, one panel of 64 channels. Channels from d on
 * are zeros, or left out (16 bytes at a time). */
static __device__ __forceinline__ void load_panel(uint32_t to_smem, const CUtensorMap *map,
                                                  int panel, int b, int h, int n, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to_smem),
                 "l"(map), "r"(barrier), "r"(panel * PANEL), "r"(n), "r"(0), "r"(h), "r"(b)
                 : "memory");
}

static __device__ __forceinline__ void store_panel(uint32_t from_smem, const CUtensorMap *map,
                                                   int panel, int b, int h, int n)
{
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
                 "[%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(from_smem),
                 "l"(map), "r"(panel * PANEL), "r"(n), "r"(0), "r"(h), "r"(b)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

static __device__ __forceinline__ BoxMaps boxes_of(const PanelMaps &maps)
{
    const int copies = maps.copies;
    return {{&maps.Q, copies},  {&maps.K, copies},  {&maps.V, copies},
            {&maps.dO, copies}, {&maps.dK, copies}, {&maps.dV, copies}};
}

/* 64 rows of a head. */
static __device__ __forceinline__ void load_tile(uint32_t to, const BoxMap *box, int b, int h,
                                                 int n, uint32_t barrier)
{
    if (box->copies == 1)
        ::load_tile(to, box->map, b, h, n, barrier);
    else
        for (int panel = 0; panel < box->copies; panel++)
            load_panel(to + panel * 64 * PANEL * 2, box->map, panel, b, h, n, barrier);
}

static __device__ __forceinline__ void store_tile(uint32_t from, const BoxMap *box, int b, int h,
                                                  int n)
{
    if (box->copies == 1)
        ::store_tile(from, box->map, b, h, n);
    else
        for (int panel = 0; panel < box->copies; panel++)
            store_panel(from + panel * 64 * PANEL * 2, box->map, panel, b, h, n);
}

/* delta that is given, or the sum. Rows have d channels, and lie on 16 bytes or not. */
template <typename T> struct AnyDelta {
    const float *delta_dev; /* or NULL */
    int d;
    bool aligned;
    __device__ uint4 load_8(const Tensor &from, int b, int i, int h, int x) const
    {
        const T *at = (const T *)from.data + tensor_offset(&from, b, i, h) + x;
        const uint16_t *e = (const uint16_t *)at;
        if (aligned)
            return *(const uint4 *)at;
        return make_uint4(e[0] | (uint32_t)e[1] << 16, e[2] | (uint32_t)e[3] << 16,
                          e[4] | (uint32_t)e[5] << 16, e[6] | (uint32_t)e[7] << 16);
    }
    __device__ void load(uint4 &O, uint4 &dO, const AttnArgs &a, int b, int i, int h, int x) const
    {
        if (delta_dev || x >= d)
            return;
        O = load_8(a.O, b, i, h, x);
        dO = load_8(a.dO, b, i, h, x);
    }
    __device__ float delta(float sum, int64_t at) const
    {
        return delta_dev ? delta_dev[at] : sum;
    }
};

/* dQ to tensors of d channels whose rows lie on 16 bytes or not, or (sum not NULL) sum
 * [B][Nq][H][d] += dQ. */
template <typename T> struct WriteDQ {
    float *sum;
    bool aligned;
    __device__ void operator()(const AttnArgs &a, const float (&dQ)[8], int b, int i, int h,
                               int channel) const
    {
        if (channel >= (int)a.shape.d)
            return;
        if (sum) {
            float *at = sum + ((b * a.shape.Nq + i) * a.shape.H + h) * a.shape.d + channel;
#pragma unroll
            for (int x = 0; x < 8; x++)
                at[x] += dQ[x];
        } else if (aligned) {
            RoundDQ<T>()(a, dQ, b, i, h, channel);
        } else {
            T *at = (T *)a.dQ.data + tensor_offset(&a.dQ, b, i, h) + channel;
#pragma unroll
            for (int x = 0; x < 8; x++)
                at[x] = T(dQ[x]);
        }
    }
};

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
                const __grid_constant__ PanelMaps maps, const __grid_constant__ KeysWork work)
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
    const KeyBlock block = keys_in_sections(a, C::Bc, index, work.section, work.back);
    const BoxMaps boxes = boxes_of(maps);
    const RowSight sight = sight_of(work.rule, (int)a.shape.Nk, block.j0, C::Bc);
    KeyWalk walk = start_walk<C>(block, sight);
    if (warpgroup == PRODUCER) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0)
            produce<C>(a, pass, boxes, block, walk, smem);
        else if (ORDERED && threadIdx.x % 32 == 0 && threadIdx.x % 128 <= 64)
            keep_order<C>(a, pass, work.back, sight, block, walk, smem, threadIdx.x % 128 / 32 - 1);
    } else {
        float dK[C::D / 8][4], dV[C::D / 8][4];
        registers_take<CONSUMER_REGISTERS>();
        const AddOrdered<C, ORDERED> add = {smem, warpgroup};
        consume_in_turns<T, C>(dK, dV, a, pass, sight, block, walk, add, smem_bytes, warpgroup);
        if (work.sums.dK)
            add_keys<C::D>(dK, dV, a, work, block, block.j0 + 64 * warpgroup, 0);
        else
            store_gradients<T, C>(dK, dV, a.scale, boxes, block, sight.Nk, smem_bytes, warpgroup);
    }
}

} // namespace rung

#endif
