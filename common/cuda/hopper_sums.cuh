/* SPDX-License-Identifier: MIT
 *
 * hopper_sums.cuh: what a backward pass needs of sm_90a beyond hopper.cuh, in the same form: sums
 * in memory that many blocks add to, and factors of wgmma that lie the other way round.
 *
 * Interface:
 * - multiply_turned<T>: C = or += A^T B, A [16 keys][64 rows], B [16 keys][64 columns] in shared
 *   memory.
 * - store_matrices: stmatrix.
 * - load_bytes: a plain run of bytes by the copy engine. load_panel, store_panel: of a tile whose
 *   map has the channels of a head as one dimension.
 * - add_4: four floats are added to memory by one instruction of a thread.
 * - counter_wait, counter_set: a number in memory that other blocks count up.
 */
#ifndef ATTN_HOPPER_SUMS_CUH
#define ATTN_HOPPER_SUMS_CUH

#include "cuda/hopper.cuh"

/* wgmma.mma_async m64n64k16 with both factors transposed: their rows are what the sum runs over. */
#define WGMMA_TURNED(N, TYPE, NAMES, ...)                                                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES        \
                 "}, %32, %33, p, 1, 1, 1, 1;\n}\n"                                                \
                 : __VA_ARGS__                                                                     \
                 : "l"(A_desc), "l"(B_desc), "n"(ADD))

template <typename T, int ADD>
static __device__ __forceinline__ void multiply_turned(float (&C)[8][4], uint64_t A_desc,
                                                       uint64_t B_desc)
{
    BY_TYPE(WGMMA_TURNED, 64, NAMES_64, COLUMNS_64(C, 0));
}

/* stmatrix: four 8 x 8 tiles of 16 bits to shared memory. Lane 8 m + r says where row r of tile m
 * goes; the tiles come in the layout of C, two neighbours in a register. */
static __device__ __forceinline__ void store_matrices(uint32_t to_smem, const uint32_t (&tiles)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to_smem),
                 "r"(tiles[0]), "r"(tiles[1]), "r"(tiles[2]), "r"(tiles[3])
                 : "memory");
}

/* cp.async.bulk, global to shared memory: bytes, a multiple of 16, that count on `barrier`. */
static __device__ __forceinline__ void load_bytes(uint32_t to_smem, const void *from, int bytes,
                                                  uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to_smem),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
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

/* red.global.add.v4.f32 */
static __device__ __forceinline__ void add_4(float *to, const float (&c)[4])
{
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(c[0]), "f"(c[1]),
                 "f"(c[2]), "f"(c[3])
                 : "memory");
}

/* ld.acquire, until *counter is `value`: what was done before it was set is visible then. */
static __device__ __forceinline__ void counter_wait(const int *counter, int value)
{
    int now;
#ifdef HOPPER_WAIT_LIMIT
    int tries = 0;
#endif
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
#ifdef HOPPER_WAIT_LIMIT
        if (tries++ == HOPPER_WAIT_LIMIT)
            report_stuck(WAIT_Q);
#endif
    } while (now != value);
}

/* st.relaxed; a fence before it makes it a release. */
static __device__ __forceinline__ void counter_set(int *counter, int value)
{
    asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

#endif
