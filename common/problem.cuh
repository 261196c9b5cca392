/* SPDX-License-Identifier: MIT
 *
 * problem.cuh: the plain problem on a GPU: what a block works on, and how a kernel is launched.
 *
 * A kernel gets the Problem as its argument: sizes, the band, device pointers. From stage 03 on it
 * keeps its tiles in registers, and registers have no index: loops over them must be unrolled, so
 * the head dimension D has to be known when the kernel is compiled. Those rungs have two, D = 64
 * and 128, and launch like this (stage 01 takes any d and needs no tiles: RUN_ANY, and launch<T>):
 *
 *     template <typename T, int D> static void launch(const Problem *p)
 *     {
 *         if (reserve_smem((const void *)some_kernel<T, D>, SMEM))
 *             some_kernel<T, D><<<row_blocks(p, Br), THREADS, SMEM, stream_of(p)>>>(*p);
 *     }
 *     static void forward(const Problem *p)
 *     {
 *         RUN_16_BIT(launch, p);
 *     }
 *
 * The harness asks CUDA afterwards whether it was accepted, and what the kernel answered.
 *
 * Interface:
 * - reserve_smem, stream_of, note_failure, count_multiprocessors, row_blocks, key_blocks, RUN_ANY,
 *   RUN_F32, RUN_16_BIT (host).
 * - BlockWork, work_of_block, last_rows_first, work_of_head, read_block: a block's rows of one
 *   head. queries_of, keys_of: row 0 of that head.
 * - KeyTiles, key_tiles: which tiles of keys a tile of rows visits. full_tiles: which of them need
 *   no mask.
 */
#ifndef PROBLEM_CUH
#define PROBLEM_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "problem.h"

/* --- host --------------------------------------------------------------------------------------*/

/* May this kernel have `bytes` of dynamic shared memory? More than 48 KiB must be asked for. If not
 * (--smem-limit, or the GPU has less), it must not be launched: the harness skips the rung. */
extern "C" int reserve_smem(const void *kernel, int bytes);

static inline cudaStream_t stream_of(const Problem *p)
{
    return (cudaStream_t)p->stream;
}

/* The pass has failed, and stderr says why: for what no launch shows, an error of cuBLAS, say. */
extern "C" void note_failure(void);
/* Of this GPU; 0: the pass has failed. */
extern "C" int count_multiprocessors(void);

/* One block for each tile of Br query rows of each head: what work_of_block deals out. */
static inline unsigned row_blocks(const Problem *p, int Br)
{
    return (unsigned)((int64_t)p->B * p->H * ((p->Nq + Br - 1) / Br));
}

/* One block for each tile of Bc keys of each kv head. */
static inline unsigned key_blocks(const Problem *p, int Bc)
{
    return (unsigned)((int64_t)p->B * p->Hkv * ((p->Nk + Bc - 1) / Bc));
}

/* launch<T>(p), launch<D>(p) and launch<T, D>(p) for the type and the head dimension of p. */
#define RUN_F32(launch, p)     ((p)->d == 64 ? launch<64>(p) : launch<128>(p))
#define RUN_TYPE(launch, T, p) ((p)->d == 64 ? launch<T, 64>(p) : launch<T, 128>(p))
#ifdef ATTN_NO_CUDA_F16 /* a machine without a GPU that asks whether all compiles */
#define RUN_16_BIT(launch, p) RUN_TYPE(launch, __nv_bfloat16, p)
#define RUN_ANY(launch, p)    ((p)->dtype == F32 ? launch<float>(p) : launch<__nv_bfloat16>(p))
#else
#define RUN_ANY(launch, p)                                                                         \
    ((p)->dtype == F32    ? launch<float>(p)                                                       \
     : (p)->dtype == BF16 ? launch<__nv_bfloat16>(p)                                               \
                          : launch<__half>(p))
#define RUN_16_BIT(launch, p)                                                                      \
    ((p)->dtype == BF16 ? RUN_TYPE(launch, __nv_bfloat16, p) : RUN_TYPE(launch, __half, p))
#endif

/* --- what a block works on ---------------------------------------------------------------------*/

/* A block's share of the work: batch, query head, the kv head that it reads, first query row. */
struct BlockWork {
    int b, h, h_kv, i0;
};

/* head: b * H + h */
static __device__ __forceinline__ BlockWork work_of_head(const Problem &p, int head, int i0)
{
    const int h = head % p.H;
    return {head / p.H, h, h / (p.H / p.Hkv), i0};
}

/* blockIdx.x, read anew each time: who asks for its work again at the end keeps no registers for it
 * in between. */
static __device__ __forceinline__ int read_block(void)
{
    int block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}

/* Consecutive blocks share a head, so K and V of that head are in the L2 cache for all of them. */
static __device__ __forceinline__ BlockWork work_of_block(const Problem &p, int Br)
{
    const int tiles = (p.Nq + Br - 1) / Br, block = read_block();
    return work_of_head(p, block / tiles, block % tiles * Br);
}

/* The same, the last rows of a head first: under a causal mask they see the most keys, and short
 * tiles fill the gaps at the end. */
static __device__ __forceinline__ BlockWork last_rows_first(const Problem &p, int Br)
{
    const int tiles = (p.Nq + Br - 1) / Br, block = read_block();
    return work_of_head(p, block / tiles, (tiles - 1 - block % tiles) * Br);
}

/* Row 0 of the block's head in a tensor of queries; row i is i * H * d elements further. */
template <typename T>
static __device__ __forceinline__ T *queries_of(T *X, const Problem &p, BlockWork work)
{
    return X + query_row(&p, work.b, work.h, 0);
}

/* Row 0 of its kv head in a tensor of keys; row j is j * Hkv * d elements further. */
template <typename T>
static __device__ __forceinline__ T *keys_of(T *X, const Problem &p, BlockWork work)
{
    return X + key_row(&p, work.b, work.h_kv, 0);
}

/* Tiles begin <= j < end of Bc keys: from the first key of the first row to the last of the last.
 */
struct KeyTiles {
    int begin, end;
};

template <int Br, int Bc>
static __device__ __forceinline__ KeyTiles key_tiles(const Problem &p, int i0)
{
    const int last_row = min(i0 + Br, p.Nq) - 1;
    const int first = max(i0 + p.from, 0), last = min(last_row + p.to, p.Nk - 1);
    if (last < first)
        return {0, 0};
    return {first / Bc, last / Bc + 1};
}

/* Those of `tiles` of which every row sees every key: from the last row's first key on, up to the
 * first row's last. None: begin = end, somewhere in `tiles`. */
template <int Br, int Bc>
static __device__ __forceinline__ KeyTiles full_tiles(const Problem &p, int i0, KeyTiles tiles)
{
    const int last_row = min(i0 + Br, p.Nq) - 1;
    const int first = max(last_row + p.from, 0), last = min(i0 + p.to, p.Nk - 1);
    const int begin = min(max(first / Bc + (first % Bc != 0), tiles.begin), tiles.end);
    return {begin, min(max((last + 1) / Bc, begin), tiles.end)};
}

#endif
