/* SPDX-License-Identifier: MIT
 *
 * dispatch.cuh: the host side that the variants share: from run-time sizes to compiled kernels.
 *
 * A kernel keeps its tiles in registers, and registers have no index: every loop over them must be
 * unrolled, so the head dimension has to be known when the kernel is compiled. We compile five,
 * D = 32, 64, 96, 128, 256, and pad other d with channels of zeros up to the next one. Zeros change
 * neither Q K^T nor the first d channels of P V.
 *
 * Interface:
 * - run_for_dim<Launch, T>: Launch<T, D>::run(args, ...) with the smallest D >= d.
 * - run_for_16_bit<Launch>: the same for the dtype of Q, tensor-core kernels only.
 * - tiles_for_dim<Launch, T>: Br and Bc of the kernel that run_for_dim would launch.
 * - reserve_smem: a kernel's dynamic shared memory, or ATTN_SKIP where --smem-limit forbids it.
 * - rows_on_16_bytes: may 16-byte loads be used on this tensor?
 * - tile_count, launch_blocks: grids. work_of_head: what a block works on.
 * - state_row, lse_row: where a row of the state and its lse stand. no_rows: the state is (O, lse).
 * - all_heads: B*H of them.
 */
#ifndef FLASH_FORWARD_DISPATCH_CUH
#define FLASH_FORWARD_DISPATCH_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "block_resume.h"
#include "harness/device/cuda_check.h"
#include "harness/device/device.h"

template <template <typename, int> class Launch, typename T, typename... More>
static AttnStatus run_for_dim(const AttnArgs *a, More... more)
{
    const int64_t d = a->shape.d;
#ifndef ATTN_GPU_SAMPLE /* the sample only shows that all compiles, with one size */
    if (d <= 32)
        return Launch<T, 32>::run(a, more...);
    if (d <= 64)
        return Launch<T, 64>::run(a, more...);
    if (d <= 96)
        return Launch<T, 96>::run(a, more...);
    if (d > 128)
        return d <= 256 ? Launch<T, 256>::run(a, more...) : ATTN_SKIP;
#endif
    return d <= 128 ? Launch<T, 128>::run(a, more...) : ATTN_SKIP;
}

/* Launch<T, D>::C has the constants Br and Bc: the byte model asks the kernel itself. */
template <template <typename, int> class Launch, typename T>
static FlashTiles tiles_for_dim(const AttnArgs *a)
{
    const int64_t d = a->shape.d;
    if (d <= 32)
        return flash_tiles_of(&a->shape, Launch<T, 32>::C::Br, Launch<T, 32>::C::Bc);
    if (d <= 64)
        return flash_tiles_of(&a->shape, Launch<T, 64>::C::Br, Launch<T, 64>::C::Bc);
    if (d <= 96)
        return flash_tiles_of(&a->shape, Launch<T, 96>::C::Br, Launch<T, 96>::C::Bc);
    if (d <= 128)
        return flash_tiles_of(&a->shape, Launch<T, 128>::C::Br, Launch<T, 128>::C::Bc);
    return flash_tiles_of(&a->shape, Launch<T, 256>::C::Br, Launch<T, 256>::C::Bc);
}

/* More than 48 KiB of dynamic shared memory have to be asked for. --smem-limit counts the static
 * part too, which only the compiled kernel knows. */
template <class Kernel> static AttnStatus reserve_smem(Kernel *kernel, int bytes)
{
    if (device_smem_limit() > 0) {
        cudaFuncAttributes about;
        CUDA_TRY(cudaFuncGetAttributes(&about, kernel));
        if (device_smem_refuses((int64_t)about.sharedSizeBytes + bytes))
            return ATTN_SKIP;
    }
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    return ATTN_OK;
}

/* For kernels on the tensor cores of sm_80 and later, which multiply 16-bit elements: float32 is
 * skipped. */
template <template <typename, int> class Launch, typename... More>
static AttnStatus run_for_16_bit(const AttnArgs *a, More... more)
{
    int device = 0, major = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (a->Q.dtype == ATTN_F32 || major < 8)
        return ATTN_SKIP;
    if (a->Q.dtype == ATTN_BF16)
        return run_for_dim<Launch, __nv_bfloat16>(a, more...);
#ifdef ATTN_NO_CUDA_F16 /* a machine without a GPU that asks whether all compiles */
    return ATTN_SKIP;
#else
    return run_for_dim<Launch, __half>(a, more...);
#endif
}

/* A 16-byte access must lie on a multiple of 16 bytes, and so must each row of each head. */
static inline bool rows_on_16_bytes(const Tensor *t)
{
    const int64_t step = t->dtype == ATTN_F32 ? 4 : 8; /* elements in 16 bytes */
    return (uintptr_t)t->data % 16 == 0 && t->shape[3] % step == 0 && t->stride[0] % step == 0 &&
           t->stride[1] % step == 0 && t->stride[2] % step == 0;
}

static inline bool all_rows_on_16_bytes(const AttnArgs *a)
{
    return rows_on_16_bytes(&a->Q) && rows_on_16_bytes(&a->K) && rows_on_16_bytes(&a->V);
}

static inline int tile_count(int64_t rows, int tile)
{
    return (int)((rows + tile - 1) / tile);
}

/* One block for each (batch, head, tile of Br query rows). gridDim.x may be 2^31 - 1, gridDim.y and
 * z only 65535, which B*H can pass: everything is folded into x. */
static inline unsigned launch_blocks(const AttnArgs *a, int Br)
{
    return (unsigned)(a->shape.B * a->shape.H * tile_count(a->shape.Nq, Br));
}

/* A block's share of the work: batch, query head, the kv head that it reads, first query row. */
struct BlockWork {
    int b, h, h_kv, i0;
};

static __device__ __forceinline__ BlockWork work_of_head(const AttnArgs &a, int head, int i0)
{
    const int H = (int)a.shape.H;
    BlockWork work;
    work.b = head / H;
    work.h = head % H;
    work.h_kv = work.h / (H / (int)a.shape.Hkv);
    work.i0 = i0;
    return work;
}

/* Row i of the float32 state [B][Nq][H][d], and its place in lse [B][H][Nq]. */
static __device__ __forceinline__ int64_t state_row(const AttnArgs &a, BlockWork work, int i)
{
    return ((work.b * a.shape.Nq + i) * a.shape.H + work.h) * a.shape.d;
}

static __device__ __forceinline__ int64_t lse_row(const AttnArgs &a, BlockWork work, int i)
{
    return (work.b * a.shape.H + work.h) * a.shape.Nq + i;
}

static __host__ __device__ __forceinline__ FlashRows no_rows()
{
    FlashRows none = {NULL, NULL, NULL};
    return none;
}

static inline FlashHeads all_heads(const AttnArgs *a)
{
    FlashHeads all = {0, (int)(a->shape.B * a->shape.H)};
    return all;
}

#endif
