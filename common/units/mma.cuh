/* SPDX-License-Identifier: MIT
 *
 * mma.cuh: the tensor-core and asynchronous-copy instructions that the fast kernels are made of.
 *
 * A tensor core multiplies small matrices that are spread over the 32 lanes of a warp. One
 * mma.m16n8k16 computes C[16][8] += A[16][16] * B[16][8]. With g = lane / 4 and t = lane % 4, a
 * lane holds these elements ("fragments"):
 *
 *     A (4 registers of 2 elements)   B (2 registers of 2)       C (4 floats)
 *     a0: row g,     k 2t, 2t+1       b0: k 2t, 2t+1    col g    c0 c1: row g,     col 2t, 2t+1
 *     a1: row g + 8, k 2t, 2t+1       b1: k 2t+8, 2t+9  col g    c2 c3: row g + 8, col 2t, 2t+1
 *     a2: row g,     k 2t+8, 2t+9
 *     a3: row g + 8, k 2t+8, 2t+9
 *
 * The layout of C is, two column tiles side by side, the layout of A. That is why P = exp(S) can
 * feed the product P V straight from the registers in which S was accumulated.
 *
 * Source: PTX ISA, "Matrix fragments for mma.m16n8k16", "ldmatrix", "cp.async". All of it needs
 * sm_80; for an older target the functions are empty, and nobody launches them.
 *
 * Interface:
 * - mma_16816<T>: the product. ldmatrix_x4(_trans): four 8x8 fragments from shared memory.
 * - copy_async_16 / copy_async_commit / copy_async_wait<N>: global to shared memory, not through
 *   registers.
 * - pack2<T>: two floats to one register of two 16-bit elements. exp2_sfu: 2^x in one instruction.
 * - read_thread: threadIdx.x, not kept.
 * - swizzle<D>: where 16-byte chunk `chunk` of row `row` lies in a shared tile of D channels;
 *   skip_chunks<D>: the same row, 2k chunks further.
 */
#ifndef UNITS_MMA_CUH
#define UNITS_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define SM80_ASM(...)          asm(__VA_ARGS__)
#define SM80_ASM_VOLATILE(...) asm volatile(__VA_ARGS__)
#else
#define SM80_ASM(...)
#define SM80_ASM_VOLATILE(...)
#endif

template <typename T>
__device__ __forceinline__ void mma_16816(float c[4], const uint32_t a[4], uint32_t b0,
                                          uint32_t b1);

template <>
__device__ __forceinline__ void mma_16816<__nv_bfloat16>(float c[4], const uint32_t a[4],
                                                         uint32_t b0, uint32_t b1)
{
    SM80_ASM("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
             "{%8,%9}, {%0,%1,%2,%3};"
             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_16816<__half>(float c[4], const uint32_t a[4], uint32_t b0,
                                                  uint32_t b1)
{
    SM80_ASM("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
             "{%8,%9}, {%0,%1,%2,%3};"
             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Lane l supplies the shared-memory address of one 16-byte row: lanes 0-7 matrix 0, 8-15 matrix 1,
 * and so on. Matrix i arrives in r[i]: lane (g, t) gets elements 2t, 2t+1 of row g. */
__device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], uint32_t smem_address)
{
    SM80_ASM_VOLATILE("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                      : "r"(smem_address)
                      : "memory");
}

/* The same, each 8x8 matrix transposed on the way: lane (g, t) gets rows 2t, 2t+1 of column g. */
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], uint32_t smem_address)
{
    SM80_ASM_VOLATILE("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                      : "r"(smem_address)
                      : "memory");
}

/* Copies 16 bytes, or writes 16 zero bytes when `valid` is 0 (then `from` is not read): the tail
 * rows of the last tile must be zero, since 0 * NaN from unused memory would be NaN. */
__device__ __forceinline__ void copy_async_16(uint32_t to_smem, const void *from, int valid)
{
    [[maybe_unused]] const int bytes = valid ? 16 : 0;
    SM80_ASM_VOLATILE("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_smem), "l"(from),
                      "r"(bytes)
                      : "memory");
}

__device__ __forceinline__ void copy_async_commit(void)
{
    SM80_ASM_VOLATILE("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's committed groups are still on their way. */
template <int N> __device__ __forceinline__ void copy_async_wait(void)
{
    SM80_ASM_VOLATILE("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

template <typename T> __device__ __forceinline__ uint32_t pack2(float low, float high);

template <> __device__ __forceinline__ uint32_t pack2<__nv_bfloat16>(float low, float high)
{
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&both);
}

template <> __device__ __forceinline__ uint32_t pack2<__half>(float low, float high)
{
    __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&both);
}

/* 2^x by the special-function unit: error 2 ulp, 2^-inf = 0. */
__device__ __forceinline__ float exp2_sfu(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* threadIdx.x, read anew each time: what follows from it is then computed again where it is used
 * instead of being kept in registers that D = 128 does not have. */
__device__ __forceinline__ int read_thread(void)
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* Byte offset of a 16-byte chunk in a tile of D 16-bit channels a row. Shared memory has 32 banks
 * of 4 bytes, so eight 16-byte rows fill one wavefront if their chunks fall into eight different
 * bank groups. Rows lie D*2 bytes apart, a multiple of the 128 bytes that all banks span
 * (D % 64 == 0): without the XOR the eight rows that ldmatrix reads would all hit the same four
 * banks, and the load would take eight times as long. */
template <int D> __device__ __forceinline__ uint32_t swizzle(int row, int chunk)
{
    if (D % 64 == 0)
        chunk ^= row & 7;
    else if (D % 32 == 0) /* 64- and 192-byte rows: two rows already differ by half the banks */
        chunk ^= (row >> 1) & 3;
    else /* 32-byte rows of two chunks: four rows span the banks */
        chunk ^= (row >> 2) & 1;
    return (uint32_t)(row * (D * 2) + chunk * 16);
}

/* From the address of chunk 0 or 1 of a row in a tile (1024-byte aligned) to that of chunk 2k or
 * 2k + 1. The XOR of swizzle() acts on bits that belong to the chunk alone, and XORs commute, so
 * one XOR with a constant moves on; in 192-byte rows that holds for the two lowest chunk bits. */
template <int D> __device__ __forceinline__ uint32_t skip_chunks(uint32_t address, int k)
{
    return D % 64 == 0 ? address ^ (uint32_t)(k * 32)
                       : (address ^ (uint32_t)(k % 2 * 32)) + (uint32_t)(k / 2 * 64);
}

#endif
