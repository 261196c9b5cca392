/* SPDX-License-Identifier: MIT
 *
 * hopper_pass.cuh: what comes before and after the kernel of keys, from v13 on.
 *
 * Before. lse and delta of all rows, and zeros for dQ, were a kernel with 2 bytes a load and a
 * memset: at N = 1024 a quarter of the pass. Here one kernel does both, 16 bytes at a time: a row
 * has d / 8 lanes, each of which takes four rows, so that eight loads are under way.
 *
 * Interface:
 * - pass_floats, run_prepared: the whole pass, in memory that is given.
 * - on_16_bytes: of a tensor.
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

/* Rows of a head are neighbours in stats, heads of a row in O and dO: the second is more. */
template <typename T, int D>
static __global__ void __launch_bounds__(256)
    prepare_kernel(const __grid_constant__ AttnArgs a, float2 *stats, float *dQ_sum,
                   int rows_padded)
{
    const int LANES = D / 8, lane = threadIdx.x % LANES, H = (int)a.shape.H;
    const int64_t item = (blockIdx.x * (int64_t)256 + threadIdx.x) / LANES;
    const int h = (int)(item % H);
    const int i0 = (int)(item / H % (rows_padded / ROWS_OF_LANE)) * ROWS_OF_LANE;
    const int b = (int)(item / H / (rows_padded / ROWS_OF_LANE));
    const Plain plain = plain_of(a);
    /* The zeros are no row's: a block has 32 KiB of them. */
    const int64_t zeros = a.shape.B * H * rows_padded * (D / 4);
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
        if (i >= plain.first_row && i < plain.end_row) {
            O[r] = *(const uint4 *)((const T *)a.O.data + tensor_offset(&a.O, b, i, h) + lane * 8);
            dO[r] =
                *(const uint4 *)((const T *)a.dO.data + tensor_offset(&a.dO, b, i, h) + lane * 8);
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
        if (i >= plain.first_row && i < plain.end_row)
            pair.x = a.lse[(int64_t)(b * H + h) * a.shape.Nq + i] * LOG2_E;
        if (lane == 0)
            stats[(int64_t)(b * H + h) * rows_padded + i] = pair;
    }
}

static bool on_16_bytes(const Tensor *t)
{
    return (uintptr_t)t->data % 16 == 0 && t->stride[0] % 8 == 0 && t->stride[1] % 8 == 0 &&
           t->stride[2] % 8 == 0;
}

/* Floats of dQ_sum and stats. */
static size_t pass_floats(const AttnShape *n)
{
    const int rows_padded = divide_up((int)n->Nq, PAD_ROWS) * PAD_ROWS;
    return (size_t)(n->B * n->H * rows_padded) * (size_t)(n->d + 2);
}

/* The pass around a launcher that adds dQ up and finishes it. memory_dev: pass_floats. */
template <typename T, int D>
static AttnStatus run_prepared(const AttnArgs *a, LaunchFn launch, float *memory_dev)
{
    const int rows_padded = divide_up((int)a->shape.Nq, PAD_ROWS) * PAD_ROWS;
    const int64_t rows = a->shape.B * a->shape.H * rows_padded;
    float2 *stats = (float2 *)(memory_dev + rows * D);
    const Pass pass = {stats, memory_dev};
    if (flash_backward_deterministic() || !on_16_bytes(&a->O) || !on_16_bytes(&a->dO))
        return ATTN_SKIP;
    const unsigned blocks = (unsigned)((rows / ROWS_OF_LANE * (D / 8) + 255) / 256);
    prepare_kernel<T, D>
        <<<blocks, 256, 0, (cudaStream_t)a->stream>>>(*a, stats, memory_dev, rows_padded);
    CUDA_TRY_LAUNCH();
    return launch(a, pass);
}

} // namespace rung

#endif
