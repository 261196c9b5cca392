/* SPDX-License-Identifier: MIT
 *
 * hopper_sums.cuh: what a backward pass needs of sm_90a beyond hopper.cuh, in the same form: sums
 * in memory that many blocks add to, and factors of wgmma that lie the other way round.
 *
 * Interface:
 * - multiply_turned<T>: C = or += A^T B, A [16 keys][64 rows], B [16 keys][64 columns] in shared
 *   memory.
 * - store_matrices: stmatrix.
 * - load_bytes: a plain run of bytes by the copy engine.
 * - add_4: four floats are added to memory by one instruction of a thread.
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

/* red.global.add.v4.f32 */
static __device__ __forceinline__ void add_4(float *to, const float (&c)[4])
{
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(c[0]), "f"(c[1]),
                 "f"(c[2]), "f"(c[3])
                 : "memory");
}

#endif
