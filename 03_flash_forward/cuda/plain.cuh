/* SPDX-License-Identifier: MIT
 *
 * plain.cuh: the plain problem, as the rungs v0 to v8 on the GPU see it (VARIANT_PLAIN in
 * common/bench/variant.h).
 *
 * A row sees one range of keys, whatever the mask: query i sees key j when
 *
 *     from <= j - i <= to           no mask: -oo, oo    causal: -oo, s    window L, R: s - L, s + R
 *
 * with s = 0 (the diagonal starts in the upper left corner) or s = Nk - Nq (it ends in the lower
 * right one). So two numbers are the mask of a whole launch.
 *
 * A kernel keeps its tiles in registers, and registers have no index: loops over them must be
 * unrolled, so the head dimension D has to be known when the kernel is compiled. Rungs have two,
 * D = 64 and 128.
 *
 * Interface:
 * - Band, band_of: the two numbers. sees: the question above.
 * - BlockWork, work_of_block, work_of_head: what a block works on. head_of: row 0 of a head.
 *   lse_row: where its lse lies.
 * - KeyTiles, key_tiles: which tiles of keys a tile of rows visits. full_tiles (v7 and later):
 *   which of them need no mask.
 * - run_for_dim, run_for_16_bit, launch (host): from run-time sizes to a compiled kernel.
 */
#ifndef FLASH_FORWARD_PLAIN_CUH
#define FLASH_FORWARD_PLAIN_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/cuda_check.h"
#include "flash_rungs.h"

namespace plain
{

struct Band {
    int from, to;
};

static __device__ __forceinline__ bool sees(Band band, int i, int j)
{
    return band.from <= j - i && j - i <= band.to;
}

/* "No limit" becomes 2^30, which no difference of two indexes reaches. */
static __device__ __forceinline__ Band band_of(const AttnArgs &a)
{
    const int64_t none = 1 << 30;
    const int64_t shift = a.positions_q.segments->position - a.positions_k.segments->position;
    const int64_t left = a.rule.left, right = a.rule.right;
    Band band = {-(1 << 30), 1 << 30};
    if (left >= 0 && left < none + shift)
        band.from = (int)(shift - left);
    if (right >= 0 && right < none - shift)
        band.to = (int)(shift + right);
    return band;
}

/* A block's share of the work: batch, query head, the kv head that it reads, first query row. */
struct BlockWork {
    int b, h, h_kv, i0;
};

static __device__ __forceinline__ BlockWork work_of_head(const AttnArgs &a, int head, int i0)
{
    const int H = (int)a.shape.H, h = head % H;
    return {head / H, h, h / (H / (int)a.shape.Hkv), i0};
}

/* Consecutive blocks share a head, so K and V of that head are in the L2 cache for all of them. */
static __device__ __forceinline__ BlockWork work_of_block(const AttnArgs &a, int Br)
{
    const int tiles = ((int)a.shape.Nq + Br - 1) / Br;
    return work_of_head(a, blockIdx.x / tiles, (int)(blockIdx.x % tiles) * Br);
}

/* Row 0 of a head; row n is n * stride[1] elements further. */
template <typename T> static __device__ __forceinline__ T *head_of(const Tensor &t, int b, int h)
{
    return (T *)t.data + tensor_offset(&t, b, 0, h);
}

/* Place of row i in lse [B][H][Nq]. */
static __device__ __forceinline__ int64_t lse_row(const AttnArgs &a, BlockWork work, int i)
{
    return (work.b * a.shape.H + work.h) * a.shape.Nq + i;
}

/* Tiles begin <= j < end of Bc keys: from the first key of the first row to the last of the last.
 */
struct KeyTiles {
    int begin, end;
};

template <int Br, int Bc>
static __device__ __forceinline__ KeyTiles key_tiles(const AttnArgs &a, Band band, int i0)
{
    const int last_row = min(i0 + Br, (int)a.shape.Nq) - 1;
    const int first = max(i0 + band.from, 0), last = min(last_row + band.to, (int)a.shape.Nk - 1);
    if (last < first)
        return {0, 0};
    return {first / Bc, last / Bc + 1};
}

/* Those of `tiles` of which every row sees every key: from the last row's first key on, up to the
 * first row's last. None: begin = end, somewhere in `tiles`. */
template <int Br, int Bc>
static __device__ __forceinline__ KeyTiles full_tiles(const AttnArgs &a, Band band, int i0,
                                                      KeyTiles tiles)
{
    const int last_row = min(i0 + Br, (int)a.shape.Nq) - 1;
    const int first = max(last_row + band.from, 0);
    const int last = min(i0 + band.to, (int)a.shape.Nk - 1);
    const int begin = min(max(first / Bc + (first % Bc != 0), tiles.begin), tiles.end);
    return {begin, min(max((last + 1) / Bc, begin), tiles.end)};
}

/* --- host --------------------------------------------------------------------------------------*/

/* A 16-byte load needs rows that start on 16 bytes. */
static inline bool rows_on_16_bytes(const AttnArgs *a)
{
    const uintptr_t addresses =
        (uintptr_t)a->Q.data | (uintptr_t)a->K.data | (uintptr_t)a->V.data | (uintptr_t)a->O.data;
    return addresses % 16 == 0;
}

template <template <typename, int> class Launch, typename T>
static AttnStatus run_for_dim(const AttnArgs *a)
{
    if (!rows_on_16_bytes(a))
        return ATTN_SKIP;
    return a->shape.d == 64    ? Launch<T, 64>::run(a)
           : a->shape.d == 128 ? Launch<T, 128>::run(a)
                               : ATTN_SKIP;
}

/* For tensor cores, which sm_80 and later have. */
template <template <typename, int> class Launch> static AttnStatus run_for_16_bit(const AttnArgs *a)
{
    if (a->Q.dtype == ATTN_F32 || cuda_capability() < 80)
        return ATTN_SKIP;
#ifdef ATTN_NO_CUDA_F16 /* a machine without a GPU that asks whether all compiles */
    return a->Q.dtype == ATTN_BF16 ? run_for_dim<Launch, __nv_bfloat16>(a) : ATTN_SKIP;
#else
    return a->Q.dtype == ATTN_BF16 ? run_for_dim<Launch, __nv_bfloat16>(a)
                                   : run_for_dim<Launch, __half>(a);
#endif
}

/* One block for each tile of Br rows of each head. C: sizes, the kernel's Tile. */
template <class C, class Kernel> static AttnStatus launch(Kernel *kernel, const AttnArgs *a)
{
    const int64_t tiles = (a->shape.Nq + C::Br - 1) / C::Br;
    const AttnStatus status = cuda_reserve_smem((const void *)kernel, C::SMEM);
    if (status != ATTN_OK)
        return status;
    kernel<<<(unsigned)(a->shape.B * a->shape.H * tiles), C::THREADS, C::SMEM,
             (cudaStream_t)a->stream>>>(*a);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

} // namespace plain

#endif
