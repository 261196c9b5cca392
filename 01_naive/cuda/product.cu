/* SPDX-License-Identifier: MIT
 *
 * product.cu: many small matrix products in few calls of cuBLAS.
 *
 * cuBLAS is written for column-major matrices. A row-major C = A B is, read column by column, the
 * product C^T = B^T A^T: the same memory, the operands swapped, the flags unchanged.
 *
 * One call multiplies a batch of matrices whose starts are a fixed stride apart. Heads of a batch
 * are; batches and heads together need two strides, and with grouped queries several query heads
 * read one kv head. So we loop over b and over one of (kv head, member of the group), and let the
 * call run over the other one, whichever is longer.
 *
 * f32 stays f32: cuBLAS uses TF32 (10 bits of mantissa) only when asked to, and is not asked. f16
 * and bf16 go to the tensor cores, which multiply exactly and add in float32.
 *
 * Interface: product.cuh.
 */
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <limits.h>

#include "alloc.h"
#include "cuda/cuda_check.h"
#include "element.cuh"
#include "product.cuh"

#define CUBLAS_TRY(call)                                                                           \
    do {                                                                                           \
        cublasStatus_t cublas_try_status = (call);                                                 \
        if (cublas_try_status != CUBLAS_STATUS_SUCCESS) {                                          \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cublasGetStatusString(cublas_try_status));                                     \
            return ATTN_CUDA_ERROR;                                                                \
        }                                                                                          \
    } while (0)

/* Making a handle takes longer than most products: one for the life of the process. */
static AttnStatus get_handle(const AttnArgs *args, cublasHandle_t *out)
{
    static cublasHandle_t handle;
    if (!handle) {
        CUBLAS_TRY(cublasCreate(&handle));
        CUBLAS_TRY(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH)); /* no TF32 for f32 */
    }
    CUBLAS_TRY(cublasSetStream(handle, (cudaStream_t)args->stream));
    *out = handle;
    return ATTN_OK;
}

/* --- tensors as matrices -----------------------------------------------------------------------*/

/* One thread: one element of packed [B][heads][N][ld] 16- or 32-bit, the first d of ld are used.
 * lse [B][heads][N] or NULL: rows where it is -inf become zeros. */
static __global__ void pack_kernel(const __grid_constant__ Tensor from,
                                   const __grid_constant__ Tensor to, int64_t count,
                                   const float *lse)
{
    const int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count)
        return;
    const int64_t heads = from.shape[2], N = from.shape[1], d = from.shape[3];
    const int64_t x = index % d, n = index / d % N, h = index / d / N % heads;
    const int64_t b = index / d / N / heads;
    const bool empty = lse && lse[index / d] == -INFINITY;
    store_element(&to, tensor_offset(&to, b, n, h) + x,
                  empty ? 0.0f : load_element(&from, tensor_offset(&from, b, n, h) + x));
}

static AttnStatus copy_elements(const AttnArgs *args, const Tensor *from, const Tensor *to,
                                const float *lse)
{
    const int64_t count = from->shape[0] * from->shape[1] * from->shape[2] * from->shape[3];
    pack_kernel<<<grid_for(count), BLOCK, 0, (cudaStream_t)args->stream>>>(*from, *to, count, lse);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

/* The same memory in the words of common: [B][N][heads][d]. */
static Tensor tensor_of_matrices(const Matrices *m, const Tensor *shape_of)
{
    Tensor t = *shape_of;
    t.data = m->data;
    t.dtype = m->dtype;
    t.stride[0] = m->stride_b;
    t.stride[1] = m->ld;
    t.stride[2] = m->stride_h;
    return t;
}

/* Room for [B][heads][N][ld]. */
static AttnStatus matrices_new(int64_t B, int64_t heads, int64_t N, int64_t ld, AttnDtype dtype,
                               Matrices *out)
{
    const size_t element = dtype == ATTN_F32 ? 4 : 2;
    out->dtype = dtype;
    out->heads = heads;
    out->ld = ld;
    out->stride_h = N * ld;
    out->stride_b = heads * N * ld;
    out->data = out->owned_dev = workspace_alloc_device((size_t)(B * heads * N * ld) * element);
    return out->data ? ATTN_OK : ATTN_NO_MEMORY;
}

/* Row n of a head lies stride[1] behind row n-1, which is all that a leading dimension says, so
 * most layouts need no copy. The exceptions: rows that overlap or lie too far apart for an int,
 * and 16-bit tensors off the 16-byte grid that the tensor-core kernels load by. */
static bool readable_in_place(const Tensor *t)
{
    if (t->stride[1] < t->shape[3] || t->stride[1] > INT_MAX)
        return false;
    return t->dtype == ATTN_F32 || ((uintptr_t)t->data % 16 == 0 && t->stride[0] % 8 == 0 &&
                                    t->stride[1] % 8 == 0 && t->stride[2] % 8 == 0);
}

static AttnStatus matrices_copy(const AttnArgs *args, const Tensor *t, const float *lse,
                                Matrices *out)
{
    const int64_t ld = (t->shape[3] + 7) / 8 * 8; /* 8 elements of 16 bits: the 16-byte grid */
    const AttnStatus status =
        matrices_new(t->shape[0], t->shape[2], t->shape[1], ld, t->dtype, out);
    if (status != ATTN_OK)
        return status;
    const Tensor packed = tensor_of_matrices(out, t);
    return copy_elements(args, t, &packed, lse);
}

AttnStatus matrices_of_tensor(const AttnArgs *args, const Tensor *t, Matrices *out)
{
    if (!readable_in_place(t))
        return matrices_copy(args, t, NULL, out);
    *out = {t->data, t->dtype, t->shape[2], t->stride[1], t->stride[0], t->stride[2], NULL};
    return ATTN_OK;
}

AttnStatus matrices_of_gradient(const AttnArgs *args, Matrices *out)
{
    return matrices_copy(args, &args->dO, args->lse, out);
}

AttnStatus matrices_new_f32(const AttnArgs *args, int64_t heads, int64_t N, Matrices *out)
{
    return matrices_new(args->shape.B, heads, N, args->shape.d, ATTN_F32, out);
}

AttnStatus matrices_store(const AttnArgs *args, const Matrices *from, const Tensor *t)
{
    const Tensor results = tensor_of_matrices(from, t);
    return copy_elements(args, &results, t, NULL);
}

void matrices_free(Matrices *m)
{
    workspace_free_device(m->owned_dev);
    m->owned_dev = NULL;
}

Matrices matrices_of_scores(const AttnArgs *args, float *X_dev, AttnDtype dtype)
{
    const AttnShape *shape = &args->shape;
    const int64_t ld = dtype == ATTN_F32 ? shape->Nk : 2 * shape->Nk;
    return {X_dev, dtype, shape->H, ld, shape->H * shape->Nq * ld, shape->Nq * ld, NULL};
}

/* --- products ----------------------------------------------------------------------------------*/

/* A batch: `count` query heads, first_head + t * step for t = 0 .. count-1. */
struct HeadRun {
    int64_t b, first_head, step, count;
};

/* Where the run starts in m, and how far apart its matrices lie. */
static char *run_start(const Matrices *m, const AttnShape *shape, HeadRun run, int64_t *stride)
{
    const int64_t group = shape->H / shape->Hkv;
    const int64_t per_kv = m->heads == shape->H ? 1 : group; /* query heads that share a matrix */
    const int64_t element = m->dtype == ATTN_F32 ? 4 : 2;
    *stride = run.step / per_kv * m->stride_h; /* 0: the whole run reads one matrix */
    return (char *)m->data +
           element * (run.b * m->stride_b + run.first_head / per_kv * m->stride_h);
}

static cudaDataType_t cuda_type(AttnDtype dtype)
{
    return dtype == ATTN_F16 ? CUDA_R_16F : dtype == ATTN_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

AttnStatus multiply_heads(const AttnArgs *args, Transpose A_transposed, Transpose B_transposed,
                          int64_t m, int64_t n, int64_t k, float alpha, const Matrices *A,
                          const Matrices *B, const Matrices *C)
{
    const AttnShape *shape = &args->shape;
    const int64_t Hkv = shape->Hkv, group = shape->H / Hkv;
    const bool sum_group = C->heads == Hkv && group > 1;
    /* Along the kv heads: members of a group are `group` apart and never meet in one call, which
     * summing needs. Along the group: better when there are few kv heads. */
    const bool along_kv = sum_group || Hkv >= group;
    const int64_t runs = along_kv ? group : Hkv;
    cublasHandle_t handle;
    if (get_handle(args, &handle) != ATTN_OK)
        return ATTN_CUDA_ERROR;
    for (int64_t b = 0; b < shape->B; b++)
        for (int64_t r = 0; r < runs; r++) {
            const HeadRun run = {b, along_kv ? r : r * group, along_kv ? group : 1,
                                 along_kv ? Hkv : group};
            const float beta = sum_group && r > 0 ? 1.0f : 0.0f;
            int64_t stride_A, stride_B, stride_C;
            const void *A_run = run_start(A, shape, run, &stride_A);
            const void *B_run = run_start(B, shape, run, &stride_B);
            void *C_run = run_start(C, shape, run, &stride_C);
            CUBLAS_TRY(cublasGemmStridedBatchedEx(
                handle, B_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                A_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, (int)n, (int)m, (int)k, &alpha, B_run,
                cuda_type(B->dtype), (int)B->ld, stride_B, A_run, cuda_type(A->dtype), (int)A->ld,
                stride_A, &beta, C_run, CUDA_R_32F, (int)C->ld, stride_C, (int)run.count,
                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
        }
    return ATTN_OK;
}
