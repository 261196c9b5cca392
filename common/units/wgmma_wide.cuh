/* SPDX-License-Identifier: MIT
 *
 * wgmma_wide.cuh: products of the backward pass at d = 256; two warpgroups share each of them.
 *
 * Interface:
 * - multiply_narrow: S^T or dP^T of 32 queries. multiply_wide: dQ, dV or dK of 128 channels.
 */
#ifndef UNITS_WGMMA_WIDE_CUH
#define UNITS_WGMMA_WIDE_CUH

#include "units/hopper.cuh"

/* wgmma.mma_async, both factors from shared memory. TURNED: 0 or 1 of A and of B, transposed. */
#define NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_ANY(N, TYPE, NAMES, A_NAME, B_NAME, P_NAME, TURNED, ...)                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P_NAME ", 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES        \
                 "}, " A_NAME ", " B_NAME ", p, 1, 1, " TURNED ";\n}\n"                            \
                 : __VA_ARGS__                                                                     \
                 : "l"(A_desc), "l"(B_desc), "n"(ADD))
/* C[64][32] = or += A[64][16] B[32][16]^T */
template <typename T, int ADD>
static __device__ __forceinline__ void multiply_narrow(float (&C)[4][4], uint64_t A_desc,
                                                       uint64_t B_desc)
{
    BY_TYPE(WGMMA_ANY, 32, NAMES_32, "%16", "%17", "%18", "0, 0", COLUMNS_32(C, 0));
}

/* C[64][128] = or += A B, B [16][128]; A [64][16], or (TRANSPOSED) [16][64] and transposed */
template <typename T, int ADD, bool TRANSPOSED>
static __device__ __forceinline__ void multiply_wide(float (&C)[16][4], uint64_t A_desc,
                                                     uint64_t B_desc)
{
    if constexpr (TRANSPOSED)
        BY_TYPE(WGMMA_ANY, 128, NAMES_128, "%64", "%65", "%66", "1, 1", COLUMNS_64(C, 0),
                COLUMNS_64(C, 8));
    else
        BY_TYPE(WGMMA_ANY, 128, NAMES_128, "%64", "%65", "%66", "0, 1", COLUMNS_64(C, 0),
                COLUMNS_64(C, 8));
}

#endif
