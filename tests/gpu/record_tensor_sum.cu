/* SPDX-License-Identifier: MIT
 *
 * record_tensor_sum: writes what wgmma answers to the sums of tensor_sum_cases.h, as so many 32-bit
 * words (little-endian floats), and counts in how many the model of its sum
 * (common/simt/tensor_sum.h) has other bits.
 *
 *     nvcc -std=c++17 -gencode arch=compute_90a,code=sm_90a -I common -I . \
 *         tests/gpu/record_tensor_sum.cu -o build/record_tensor_sum
 *     build/record_tensor_sum tests/gpu/tensor_sum_h200.u32
 *
 * That record is of an NVIDIA H200, 2026-11-28.
 * A block asks 64 sums at once: case i is row i of A, column i of B, and C[i][i].
 *
 * Exit status: 0, also where a model differs; 3 a failure, 77 no Hopper GPU.
 */
#include <stdlib.h>
#include <string.h>

#include "simt/tensor_sum.h"
#include "tensor_sum_cases.h"
#include "units/hopper.cuh"

typedef struct Asked {
    uint8_t A[32], B[32];
    float C;
} Asked;

static __global__ void ask_kernel(const Asked *asked, float *answers, int count)
{
    __shared__ __align__(1024) unsigned char A[64 * 128], B[64 * 128];
    const int first = blockIdx.x * 64, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int at = threadIdx.x; at < 64 * 32; at += 128) {
        const int r = at / 32, k = at % 32, i = min(first + r, count - 1);
        const int to = r * 128 + ((k / 16) ^ (r % 8)) * 16 + k % 16; /* 128-byte swizzle */
        A[to] = asked[i].A[k];
        B[to] = asked[i].B[k];
    }
    fence_async();
    __syncthreads();
    float C[8][4];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int r = 16 * warp + lane / 4 + 8 * (e / 2);
            const int column = 8 * n + 2 * (lane % 4) + e % 2;
            C[n][e] = r == column ? asked[min(first + r, count - 1)].C : 0.0f;
        }
    const uint64_t A_desc = tile_descriptor((uint32_t)__cvta_generic_to_shared(A), 0);
    const uint64_t B_desc = tile_descriptor((uint32_t)__cvta_generic_to_shared(B), 0);
    wgmma_begin();
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" NAMES_64
                 "}, %32, %33, p, 1, 1;\n}\n"
                 : COLUMNS_64(C, 0)
                 : "l"(A_desc), "l"(B_desc), "r"(1));
    wgmma_commit();
    wgmma_wait<0>(C);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int r = 16 * warp + lane / 4 + 8 * (e / 2);
            const int column = 8 * n + 2 * (lane % 4) + e % 2;
            if (r == column && first + r < count)
                answers[first + r] = C[n][e];
        }
}

int main(int argc, char **argv)
{
    const int count = TENSOR_SUM_CASES;
    cudaDeviceProp device;
    if (argc != 2) {
        fprintf(stderr, "record_tensor_sum: found %d arguments, accepted is one: FILE\n", argc - 1);
        return 2;
    }
    if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9)
        return 77;
    Asked *asked;
    float *answers;
    if (cudaMallocManaged(&asked, count * sizeof *asked) != cudaSuccess ||
        cudaMallocManaged(&answers, count * sizeof *answers) != cudaSuccess)
        return 3;
    for (int i = 0; i < count; i++)
        tensor_sum_case(i, asked[i].A, asked[i].B, &asked[i].C);
    ask_kernel<<<(count + 63) / 64, 128>>>(asked, answers, count);
    if (cudaDeviceSynchronize() != cudaSuccess) {
        fprintf(stderr, "record_tensor_sum: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 3;
    }
    FILE *to = fopen(argv[1], "wb");
    if (!to || fwrite(answers, sizeof *answers, count, to) != (size_t)count || fclose(to) != 0) {
        fprintf(stderr, "record_tensor_sum: %s cannot be written\n", argv[1]);
        return 3;
    }
    int off[8] = {0}, all = 0;
    for (int i = 0; i < count; i++) {
        TensorSumNumber A[32], B[32];
        for (int k = 0; k < 32; k++) {
            A[k] = tensor_sum_number(asked[i].A[k]);
            B[k] = tensor_sum_number(asked[i].B[k]);
        }
        const float expected = tensor_sum(A, B, asked[i].C);
        if (memcmp(&expected, &answers[i], sizeof expected) != 0 && all++ < 10)
            printf("case %d (kind %d): the model says %a, the card %a\n", i, i % 8, expected,
                   answers[i]);
        off[i % 8] += memcmp(&expected, &answers[i], sizeof expected) != 0;
    }
    printf("tensor_sum.h: %d of %d differ; by kind", all, count);
    for (int kind = 0; kind < 8; kind++)
        printf(" %d", off[kind]);
    printf("\n");
    return 0;
}
