/* SPDX-License-Identifier: MIT
 *
 * hopper_pass.cuh: what comes before and after the kernel of keys, from v13 on.
 *
 * Before. lse and delta of all rows, and zeros for dQ, were a kernel with 2 bytes a load and a
 * memset: at N = 1024 a quarter of the pass. Here one kernel does both, 16 bytes at a time: a row
 * has d / 8 lanes, each of which takes four rows, so that eight loads are under way.
 *
 * Interface:
 * - pass_floats, run_prepared: the whole pass, in memory that is given. place_pass, prepare_pass.
 * - on_16_bytes: of a tensor.
 */
#ifndef FLASH_BACKWARD_HOPPER_PASS_CUH
#define FLASH_BACKWARD_HOPPER_PASS_CUH

#include "ordered_dq.cuh"

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

/* Eight elements, at once if they lie on 16 bytes. */
template <typename T> static __device__ __forceinline__ uint4 load_8(const T *from, bool aligned)
{
    const uint16_t *x = (const uint16_t *)from;
    if (aligned)
        return *(const uint4 *)from;
    return make_uint4(x[0] | (uint32_t)x[1] << 16, x[2] | (uint32_t)x[3] << 16,
                      x[4] | (uint32_t)x[5] << 16, x[6] | (uint32_t)x[7] << 16);
}

/* Rows of a head are neighbours in stats, heads of a row in O and dO: the second is more. delta
 * NULL: from O and dO. A row that sees no key (lse = -inf) may hold anything there. */
template <typename T, int D>
static __global__ void __launch_bounds__(256)
    prepare_kernel(const __grid_constant__ AttnArgs a, const float *delta, float2 *stats,
                   float *dQ_sum, int rows_padded, bool aligned)
{
    const int LANES = D / 8, lane = threadIdx.x % LANES, H = (int)a.shape.H;
    const int64_t item = (blockIdx.x * (int64_t)256 + threadIdx.x) / LANES;
    const int h = (int)(item % H);
    const int i0 = (int)(item / H % (rows_padded / ROWS_OF_LANE)) * ROWS_OF_LANE;
    const int b = (int)(item / H / (rows_padded / ROWS_OF_LANE));
    /* The zeros, of dQ and of the counters behind it, are no row's: a block has 32 KiB of them. */
    const int64_t rows = a.shape.B * H * rows_padded;
    const int64_t zeros = rows * (D / 4) + order_ints(rows) / 4;
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
        if (!delta && lane * 8 < (int)a.shape.d && i < (int)a.shape.Nq) {
            O[r] = load_8((const T *)a.O.data + tensor_offset(&a.O, b, i, h) + lane * 8, aligned);
            dO[r] =
                load_8((const T *)a.dO.data + tensor_offset(&a.dO, b, i, h) + lane * 8, aligned);
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
            pair = make_float2(lse * LOG2E, delta ? delta[at] : pair.y);
        stats[(int64_t)(b * H + h) * rows_padded + i] = pair;
    }
}

static bool on_16_bytes(const Tensor *t)
{
    return (uintptr_t)t->data % 16 == 0 && t->stride[0] % 8 == 0 && t->stride[1] % 8 == 0 &&
           t->stride[2] % 8 == 0;
}

/* Floats of dQ_sum, counters and stats. D: channels that the kernel has, >= d. */
static size_t pass_floats(const AttnShape *n, int D)
{
    const int64_t rows = n->B * n->H * (divide_up((int)n->Nq, PAD_ROWS) * PAD_ROWS);
    return (size_t)(rows * (D + 2) + order_ints(rows));
}

static Pass place_pass(const AttnShape *n, int D, float *memory_dev)
{
    const int64_t rows = n->B * n->H * (divide_up((int)n->Nq, PAD_ROWS) * PAD_ROWS);
    Pass pass = {(float2 *)(memory_dev + rows * D + order_ints(rows)), memory_dev};
    return pass;
}

/* What comes before the kernel of keys. */
template <typename T, int D>
static AttnStatus prepare_pass(const AttnArgs *a, const float *delta_dev, float *memory_dev)
{
    const int rows_padded = divide_up((int)a->shape.Nq, PAD_ROWS) * PAD_ROWS;
    const int64_t rows = a->shape.B * a->shape.H * rows_padded;
    const int64_t zeros = rows * (D / 4) + order_ints(rows) / 4; /* more than it has lanes */
    const unsigned blocks =
        (unsigned)((zeros + 256 * 2 * ROWS_OF_LANE - 1) / (256 * 2 * ROWS_OF_LANE));
    prepare_kernel<T, D><<<blocks, 256, 0, (cudaStream_t)a->stream>>>(
        *a, delta_dev, (float2 *)place_pass(&a->shape, D, memory_dev).stats, memory_dev,
        rows_padded, on_16_bytes(&a->O) && on_16_bytes(&a->dO));
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

/* The pass around a launcher that adds dQ up and finishes it. memory_dev: pass_floats. kernel: the
 * one that it launches, with so many bytes of shared memory, which are asked for first: a refusal
 * leaves nothing behind. */
template <typename T, int D>
static AttnStatus run_prepared(const AttnArgs *a, LaunchFn launch, const void *kernel,
                               int smem_bytes, float *memory_dev)
{
    if (!on_16_bytes(&a->O) || !on_16_bytes(&a->dO))
        return ATTN_SKIP;
    AttnStatus status = reserve_smem(kernel, smem_bytes);
    if (status == ATTN_OK)
        status = prepare_pass<T, D>(a, NULL, memory_dev);
    return status == ATTN_OK ? launch(a, place_pass(&a->shape, D, memory_dev)) : status;
}

} // namespace rung

#endif
