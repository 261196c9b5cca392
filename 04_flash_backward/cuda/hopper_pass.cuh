/* SPDX-License-Identifier: MIT
 *
 * hopper_pass.cuh: what comes before and after the kernel of keys, from v13 on.
 *
 * Before. lse and delta of all rows, and zeros for dQ, were a kernel with 2 bytes a load and a
 * memset: at N = 1024 a tenth of the pass and more. Here one kernel does both, 16 bytes at a time:
 * a row has d / 8 lanes, each of which takes four rows, so that eight loads are under way.
 *
 * Interface:
 * - pass_floats, place_pass (host): the memory of a pass.
 * - prepare_pass (host): the kernel. SumDelta: delta from O and dO.
 * - on_16_bytes (host): of a tensor.
 */
#ifndef FLASH_BACKWARD_HOPPER_PASS_CUH
#define FLASH_BACKWARD_HOPPER_PASS_CUH

#include "wgmma_keys.cuh"

namespace rung
{

#define ROWS_OF_LANE 4

/* Two elements of a register, the low half first. */
template <typename T> static __device__ __forceinline__ float2 unpack2(uint32_t both)
{
    if constexpr (std::is_same<T, __half>::value)
        return __half22float2(*reinterpret_cast<const __half2 *>(&both));
    else
        return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000));
}

/* How a row's delta comes about. The library has another one of these (hopper_keys.cuh). */
template <typename T> struct SumDelta {
    /* Eight channels from x on. */
    __device__ void load(uint4 &O, uint4 &dO, const AttnArgs &a, int b, int i, int h, int x) const
    {
        O = *(const uint4 *)((const T *)a.O.data + tensor_offset(&a.O, b, i, h) + x);
        dO = *(const uint4 *)((const T *)a.dO.data + tensor_offset(&a.dO, b, i, h) + x);
    }
    /* sum: of O and dO as they were loaded. at: its place in [B][H][Nq]. */
    __device__ float delta(float sum, int64_t /* at */) const
    {
        return sum;
    }
};

/* Rows of a head are neighbours in stats, heads of a row in O and dO: the second is more. A row
 * that sees no key (lse = -inf) may hold anything there. zeros: of float4, from dQ_sum on. */
template <typename T, int D, class Delta>
static __global__ void __launch_bounds__(256)
    prepare_kernel(const __grid_constant__ AttnArgs a, Delta how, float2 *stats, float *dQ_sum,
                   int64_t zeros, int rows_padded)
{
    const int LANES = D / 8, lane = threadIdx.x % LANES, H = (int)a.shape.H;
    const int64_t item = (blockIdx.x * (int64_t)256 + threadIdx.x) / LANES;
    const int h = (int)(item % H);
    const int i0 = (int)(item / H % (rows_padded / ROWS_OF_LANE)) * ROWS_OF_LANE;
    const int b = (int)(item / H / (rows_padded / ROWS_OF_LANE));
    /* The zeros are no row's: a block has 32 KiB of them. */
    const int64_t zero = blockIdx.x * (int64_t)(256 * 2 * ROWS_OF_LANE) + threadIdx.x;
#pragma unroll
    for (int k = 0; k < 2 * ROWS_OF_LANE; k++)
        if (zero + k * 256 < zeros)
            ((float4 *)dQ_sum)[zero + k * 256] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (b >= a.shape.B)
        return;
    uint4 O[ROWS_OF_LANE], dO[ROWS_OF_LANE];
#pragma unroll
    for (int r = 0; r < ROWS_OF_LANE; r++) {
        const int i = i0 + r;
        O[r] = dO[r] = make_uint4(0, 0, 0, 0);
        if (i < (int)a.shape.Nq)
            how.load(O[r], dO[r], a, b, i, h, lane * 8);
    }
#pragma unroll
    for (int r = 0; r < ROWS_OF_LANE; r++) {
        const uint32_t O_x[4] = {O[r].x, O[r].y, O[r].z, O[r].w};
        const uint32_t dO_x[4] = {dO[r].x, dO[r].y, dO[r].z, dO[r].w};
        const int i = i0 + r;
        float2 pair = make_float2(INFINITY, 0.0f); /* P = 2^(s - inf) = 0 */
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const float2 o = unpack2<T>(O_x[x]), g = unpack2<T>(dO_x[x]);
            pair.y = fmaf(g.x, o.x, fmaf(g.y, o.y, pair.y));
        }
#pragma unroll
        for (int distance = LANES / 2; distance > 0; distance /= 2)
            pair.y += __shfl_xor_sync(0xffffffffu, pair.y, distance);
        if (lane != 0)
            continue;
        const int64_t at = (int64_t)(b * H + h) * a.shape.Nq + i;
        const float lse = i < (int)a.shape.Nq ? a.lse[at] : -INFINITY;
        if (lse == -INFINITY)
            pair.y = 0.0f;
        else
            pair = make_float2(lse * LOG2E, how.delta(pair.y, at));
        stats[(int64_t)(b * H + h) * rows_padded + i] = pair;
    }
}

static bool on_16_bytes(const Tensor *t)
{
    return (uintptr_t)t->data % 16 == 0 && t->stride[0] % 8 == 0 && t->stride[1] % 8 == 0 &&
           t->stride[2] % 8 == 0;
}

/* Of all heads, in whole tiles. */
static int64_t rows_of_pass(const AttnShape *n)
{
    return n->B * n->H * divide_up((int)n->Nq, PAD_ROWS) * PAD_ROWS;
}

/* Floats of stats and, behind them, dQ_sum. D: channels that the kernel has, >= d. */
static size_t pass_floats(const AttnShape *n, int D)
{
    return (size_t)(rows_of_pass(n) * (2 + D));
}

static Pass place_pass(const AttnShape *n, float *memory_dev)
{
    return {(float2 *)memory_dev, memory_dev + 2 * rows_of_pass(n)};
}

/* What comes before the kernel of keys. more_zeros: bytes behind dQ_sum, a multiple of 16. */
template <typename T, int D, class Delta>
static AttnStatus prepare_pass(const AttnArgs *a, Delta how, const Pass &pass, int64_t more_zeros)
{
    const int64_t zeros = rows_of_pass(&a->shape) * (D / 4) + more_zeros / 16;
    const int64_t of_block = 256 * 2 * ROWS_OF_LANE; /* as many as its lanes load */
    prepare_kernel<T, D>
        <<<(unsigned)((zeros + of_block - 1) / of_block), 256, 0, (cudaStream_t)a->stream>>>(
            *a, how, (float2 *)pass.stats, pass.dQ_sum, zeros,
            divide_up((int)a->shape.Nq, PAD_ROWS) * PAD_ROWS);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

} // namespace rung

#endif
