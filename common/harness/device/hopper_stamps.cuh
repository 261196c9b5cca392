/* SPDX-License-Identifier: MIT
 *
 * hopper_stamps.cuh: when each warpgroup of a block did what, by the multiprocessor's clock.
 *
 * No file includes it: a build with -Dgpu_stamps=true puts it in front of each file for Hopper,
 * where it lays stamps around hopper.cuh's functions. Stamped is what the first warp of a warpgroup
 * does in the grid's middle block.
 *
 * A stamp must not cost what it measures, and no register of a kernel is free for a counter. So
 * the clock itself says where a stamp goes: a warp has a place for each 4 clocks of the last
 * 524,288. A stamp is the clock, five instructions on it, and a store that nobody waits for.
 *
 *     0  the block begins                     l  a tile is ordered that counts on this mbarrier
 *     b  waits for an mbarrier                B  has seen it; what << 18 is the HopperWait
 *     m  begins to issue products             c  they are issued: a group; the file numbers them
 *     w  waits until so many groups are left  W  has seen it
 *     s  waits at a named barrier, 0: all     S  goes on
 *     f  begins fence_async                 F  is through
 *     o  a tile leaves for global memory
 *
 * Interface:
 * - stamp(kind, tag): by whole warps or single threads.
 * - write_stamps, in the place of launch_is_done: after a launch the file that
 *   HOPPER_STAMPS=FILE[,FROM,TO] names has a line for each stamp between two clocks of the block,
 *   "warpgroup clock kind tag".
 */
#ifndef ATTN_HOPPER_STAMPS_CUH
#define ATTN_HOPPER_STAMPS_CUH

#include <stdlib.h>

#include <algorithm>
#include <vector>

#include "units/hopper.cuh"

#define STAMP_GROUPS 8
#define STAMP_PLACES (1 << 17)

/* x: the clock, y: kind << 24 | tag. 0: nothing. */
static __device__ uint2 hopper_stamps_dev[STAMP_GROUPS][STAMP_PLACES];

static __device__ __forceinline__ void stamp(char kind, uint32_t tag)
{
    const uint32_t what = (uint32_t)kind << 24 | tag;
    const int here = blockIdx.x == gridDim.x / 2 && threadIdx.x % 128 < 32;
    asm volatile("{\n.reg .pred p;\n.reg .u32 now, place;\n.reg .u64 to;\n"
                 "setp.ne.u32 p, %0, 0;\n"
                 "mov.u32 now, %%clock;\n"
                 "shr.u32 place, now, 2;\n"
                 "and.b32 place, place, %1;\n"
                 "mad.wide.u32 to, place, 8, %2;\n"
                 "@p st.global.v2.u32 [to], {now, %3};\n}\n" ::"r"(here),
                 "n"(STAMP_PLACES - 1), "l"(hopper_stamps_dev[threadIdx.x / 128]), "r"(what));
}

template <int N, int TILES>
static __device__ __forceinline__ void stamped_wait(float (&C)[TILES][4])
{
    stamp('w', N);
    wgmma_wait<N>(C);
    stamp('W', N);
}

static inline bool write_stamps(cudaStream_t stream, const char *kernel)
{
    const char *const wanted = getenv("HOPPER_STAMPS");
    char name[256];
    unsigned from = 0, to = ~0u;
    if (!wanted || sscanf(wanted, "%255[^,],%u,%u", name, &from, &to) < 1)
        return true;
    if (!kernel) { /* before the launch */
        void *stamps_dev = NULL;
        return cudaGetSymbolAddress(&stamps_dev, hopper_stamps_dev) == cudaSuccess &&
               cudaMemset(stamps_dev, 0, sizeof hopper_stamps_dev) == cudaSuccess &&
               cudaDeviceSynchronize() == cudaSuccess;
    }
    std::vector<uint2> all(STAMP_GROUPS * STAMP_PLACES);
    if (cudaStreamSynchronize(stream) != cudaSuccess ||
        cudaMemcpyFromSymbol(all.data(), hopper_stamps_dev, sizeof hopper_stamps_dev) !=
            cudaSuccess)
        return false;
    unsigned begin = 0;
    for (int n = 0; n < STAMP_PLACES; n++)
        if (all[n].y >> 24 == '0')
            begin = all[n].x;
    FILE *file = fopen(name, "w");
    for (int group = 0; file && group < STAMP_GROUPS; group++) {
        uint2 *const mine = &all[(size_t)group * STAMP_PLACES];
        std::sort(mine, mine + STAMP_PLACES,
                  [begin](uint2 a, uint2 b) { return a.x - begin < b.x - begin; });
        unsigned products = 0;
        for (int n = 0; n < STAMP_PLACES; n++) {
            const unsigned clock = mine[n].x - begin, kind = mine[n].y >> 24;
            const unsigned tag = kind == 'c' ? products++ : mine[n].y & 0xffffff;
            if (kind && clock >= from && clock < to)
                fprintf(file, "%d %u %c %u\n", group, clock, (char)kind, tag);
        }
    }
    if (!file || fclose(file) != 0) {
        fprintf(stderr, "%s: cannot write the stamps\n", name);
        return false;
    }
    return true;
}

#define launch_is_done         write_stamps
#define wgmma_wait             stamped_wait
#define wgmma_begin()          (stamp('m', 0), wgmma_begin())
#define wgmma_commit()         (wgmma_commit(), stamp('c', 0))
#define barrier_init_done()    (barrier_init_done(), stamp('0', 0))
#define barrier_expect(at, n)  (stamp('l', at), barrier_expect(at, n))
#define barrier_wait(at, p, w) (stamp('b', at), barrier_wait(at, p, w), stamp('B', w << 18 | (at)))
#define threads_sync(id, n)    (stamp('s', id), threads_sync(id, n), stamp('S', id))
#define __syncthreads()        (stamp('s', 0), __syncthreads(), stamp('S', 0))
#define fence_async()          (stamp('f', 0), fence_async(), stamp('F', 0))
#define store_tile(...)        (store_tile(__VA_ARGS__), stamp('o', 0))

#endif
