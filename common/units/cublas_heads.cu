/* SPDX-License-Identifier: MIT
 *
 * cublas_heads.cu: many small matrix products in few calls of cuBLAS. See cublas_heads.cuh.
 *
 * Interface: multiply_heads.
 */
#include "units/cublas_heads.cuh"

#include <cublas_v2.h>
#include <stdio.h>

static int refused(cublasStatus_t status, const char *what)
{
    if (status != CUBLAS_STATUS_SUCCESS)
        fprintf(stderr, "cuBLAS: %s: %s\n", what, cublasGetStatusString(status));
    return status != CUBLAS_STATUS_SUCCESS;
}

/* Making a handle takes longer than most products: one for the life of the process. */
static cublasHandle_t get_handle(cudaStream_t stream)
{
    static cublasHandle_t handle;
    if (!handle && (refused(cublasCreate(&handle), "cublasCreate") ||
                    refused(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH), "no TF32 for f32")))
        handle = NULL;
    return handle && refused(cublasSetStream(handle, stream), "cublasSetStream") ? NULL : handle;
}

/* A batch: `count` query heads, first_head + t * step for t = 0 .. count-1. */
struct HeadRun {
    int b, first_head, step, count;
};

/* Where the run starts in m, and how far apart its matrices lie. group: query heads of a kv head;
 * per_kv: those that share a matrix of m. */
static char *run_start(const Matrices *m, int H, int group, HeadRun run, int64_t *stride)
{
    const int per_kv = m->heads == H ? 1 : group;
    const int64_t element = m->type == CUDA_R_32F ? 4 : 2;
    *stride = run.step / per_kv * m->stride_h; /* 0: the whole run reads one matrix */
    return (char *)m->data +
           element * (run.b * m->stride_b + run.first_head / per_kv * m->stride_h);
}

int multiply_heads(cudaStream_t stream, int batches, int H, int Hkv, Transpose A_transposed,
                   Transpose B_transposed, int m, int n, int k, float alpha, const Matrices *A,
                   const Matrices *B, const Matrices *C)
{
    const int group = H / Hkv;
    const bool sum_group = C->heads == Hkv && group > 1;
    /* Along the kv heads: members of a group are `group` apart and never meet in one call, which
     * summing needs. Along the group: better when there are few kv heads. */
    const bool along_kv = sum_group || Hkv >= group;
    const int runs = along_kv ? group : Hkv;
    const cublasHandle_t handle = get_handle(stream);
    if (!handle)
        return -1;
    for (int b = 0; b < batches; b++)
        for (int r = 0; r < runs; r++) {
            const HeadRun run = {b, along_kv ? r : r * group, along_kv ? group : 1,
                                 along_kv ? Hkv : group};
            const float beta = sum_group && r > 0 ? 1.0f : 0.0f;
            int64_t stride_A, stride_B, stride_C;
            const void *A_run = run_start(A, H, group, run, &stride_A);
            const void *B_run = run_start(B, H, group, run, &stride_B);
            void *C_run = run_start(C, H, group, run, &stride_C);
            if (refused(cublasGemmStridedBatchedEx(
                            handle, B_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                            A_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &alpha, B_run,
                            B->type, (int)B->ld, stride_B, A_run, A->type, (int)A->ld, stride_A,
                            &beta, C_run, CUDA_R_32F, (int)C->ld, stride_C, run.count,
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                        "cublasGemmStridedBatchedEx"))
                return -1;
        }
    return 0;
}
