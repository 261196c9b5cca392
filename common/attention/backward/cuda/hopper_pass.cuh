/* SPDX-License-Identifier: MIT
 *
 * hopper_pass.cuh: what the library does before and after its Hopper kernels of keys: rung v13's
 * preparation and the rounding of dQ, for tensors of any strides, head dimensions below that of the
 * tile, delta that is given, and dQ that is added to sums.
 *
 * Interface:
 * - pass_floats, place_pass, rows_of_pass (host): the memory of a pass. on_16_bytes (host).
 * - prepare_pass (host): lse, delta and zeros. finish_dQ (host): dQ from its slabs.
 */
#ifndef FLASH_BACKWARD_HOPPER_PASS_CUH
#define FLASH_BACKWARD_HOPPER_PASS_CUH

#include "attn.h"
#include "harness/device/cuda_check.h"
#include "units/wgmma_keys.cuh"

namespace hopper_backward
{

#define ROWS_OF_LANE 4

static bool on_16_bytes(const Tensor *t)
{
    return (uintptr_t)t->data % 16 == 0 && t->stride[0] % 8 == 0 && t->stride[1] % 8 == 0 &&
           t->stride[2] % 8 == 0;
}

/* Of all heads, in whole tiles. */
static int64_t rows_of_pass(const AttnShape *n)
{
    return n->B * n->H * padded_rows((int)n->Nq);
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

/* Eight channels of a row from x on. */
template <typename T>
static __device__ __forceinline__ uint4 load_8(const Tensor &from, int b, int i, int h, int x,
                                               bool aligned)
{
    const T *at = (const T *)from.data + tensor_offset(&from, b, i, h) + x;
    const uint16_t *e = (const uint16_t *)at;
    if (aligned)
        return *(const uint4 *)at;
    return make_uint4(e[0] | (uint32_t)e[1] << 16, e[2] | (uint32_t)e[3] << 16,
                      e[4] | (uint32_t)e[5] << 16, e[6] | (uint32_t)e[7] << 16);
}

/* Rows of a head are neighbours in stats, heads of a row in O and dO: the second is more. A row
 * that sees no key (lse = -inf) may hold anything there. delta_dev [B][H][Nq], or NULL: it is
 * summed up. aligned: rows of O and dO lie on 16 bytes. zeros: of float4, from dQ_sum on. */
template <typename T, int D>
static __global__ void __launch_bounds__(256)
    prepare_kernel(const __grid_constant__ AttnArgs a, const float *delta_dev, bool aligned,
                   float2 *stats, float *dQ_sum, int64_t zeros, int rows_padded)
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
        if (i < (int)a.shape.Nq && !delta_dev && lane * 8 < (int)a.shape.d) {
            O[r] = load_8<T>(a.O, b, i, h, lane * 8, aligned);
            dO[r] = load_8<T>(a.dO, b, i, h, lane * 8, aligned);
        }
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
            pair = make_float2(lse * (float)M_LOG2E, delta_dev ? delta_dev[at] : pair.y);
        stats[(int64_t)(b * H + h) * rows_padded + i] = pair;
    }
}

/* What comes before the kernel of keys. more_zeros: bytes behind dQ_sum, a multiple of 16. */
template <typename T, int D>
static AttnStatus prepare_pass(const AttnArgs *a, const float *delta_dev, const Pass &pass,
                               int64_t more_zeros)
{
    const int64_t zeros = rows_of_pass(&a->shape) * (D / 4) + more_zeros / 16;
    const int64_t of_block = 256 * 2 * ROWS_OF_LANE; /* as many as its lanes load */
    prepare_kernel<T, D>
        <<<(unsigned)((zeros + of_block - 1) / of_block), 256, 0, (cudaStream_t)a->stream>>>(
            *a, delta_dev, on_16_bytes(&a->O) && on_16_bytes(&a->dO), (float2 *)pass.stats,
            pass.dQ_sum, zeros, padded_rows((int)a->shape.Nq));
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

/* Eight channels of a row of dQ to a tensor of d channels whose rows lie on 16 bytes or not, or
 * (sum not NULL) sum [B][Nq][H][d] += dQ. */
template <typename T>
static __device__ __forceinline__ void write_dQ(const AttnArgs &a, float *sum, bool aligned,
                                                const float (&dQ)[8], int b, int i, int h,
                                                int channel)
{
    if (channel >= (int)a.shape.d)
        return;
    if (sum) {
        float *at = sum + ((b * a.shape.Nq + i) * a.shape.H + h) * a.shape.d + channel;
#pragma unroll
        for (int x = 0; x < 8; x++)
            at[x] += dQ[x];
        return;
    }
    T *to = (T *)a.dQ.data + tensor_offset(&a.dQ, b, i, h) + channel;
    if (aligned) {
        *reinterpret_cast<uint4 *>(to) = make_uint4(pack2<T>(dQ[0], dQ[1]), pack2<T>(dQ[2], dQ[3]),
                                                    pack2<T>(dQ[4], dQ[5]), pack2<T>(dQ[6], dQ[7]));
    } else {
#pragma unroll
        for (int x = 0; x < 8; x++)
            to[x] = T(dQ[x]);
    }
}

/* dQ = scale * dQ_sum. A thread has four lanes' floats of one 16 x 8 tile: eight channels of rows g
 * and g + 8; eight neighbouring threads have 64 channels. */
template <typename T, int D>
static __global__ void __launch_bounds__(256)
    slabs_kernel(const __grid_constant__ AttnArgs a, const float *dQ_sum, int Tr, float *sum,
                 bool aligned)
{
    const int64_t item = blockIdx.x * (int64_t)256 + threadIdx.x;
    const int n = item % 8, g = item / 8 % 8, panel = item / 64 % (D / 64);
    const int warp = item / D % 4, i = (int)(item / (4 * D) % Tr) * 64 + warp * 16 + g;
    const int head = (int)(item / (4 * D) / Tr), H = (int)a.shape.H;
    if (head >= a.shape.B * H)
        return;
    const float *from = dQ_sum + ((item / 64 * 8 + n) * 8 + g) * 16;
    float dQ[2][8]; /* of rows g and g + 8 */
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const float4 lane = *reinterpret_cast<const float4 *>(from + 4 * t);
        dQ[0][2 * t] = lane.x * a.scale;
        dQ[0][2 * t + 1] = lane.y * a.scale;
        dQ[1][2 * t] = lane.z * a.scale;
        dQ[1][2 * t + 1] = lane.w * a.scale;
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (i + 8 * e < a.shape.Nq)
            write_dQ<T>(a, sum, aligned, dQ[e], head / H, i + 8 * e, head % H, panel * 64 + n * 8);
}

/* sum: as in write_dQ. */
template <typename T, int D>
static AttnStatus finish_dQ(const AttnArgs *a, const Pass &pass, float *sum)
{
    const int Tr = divide_up((int)a->shape.Nq, 64);
    const int64_t items = a->shape.B * a->shape.H * Tr * (4 * D);
    slabs_kernel<T, D><<<(unsigned)((items + 255) / 256), 256, 0, (cudaStream_t)a->stream>>>(
        *a, pass.dQ_sum, Tr, sum, on_16_bytes(&a->dQ));
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

} // namespace hopper_backward

#endif
