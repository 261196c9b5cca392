/* SPDX-License-Identifier: MIT
 *
 * v1_cublas: v1_blas on the GPU. The products go to the vendor's library, which keeps tiles in
 * shared memory and registers; between them stands one kernel of ours for the softmax.
 *
 * The products are now so fast that the matrix between them sets the pace: S is written by the
 * first product, read and rewritten as P by the softmax, and read by the second product. On a GPU
 * that reads 4 TB/s those passes over B*H*N*N floats take longer than the multiplications.
 *
 * With f16 or bf16 tensors S is float32 still (a score of 100 in bf16 is off by 0.25, a factor of
 * 1.3 in its probability), and P is rounded to the dtype, as the second product wants it: into the
 * first half of its own row.
 *
 * Backward computes S and dP = dO V^T by products, turns both into P and dS by one kernel, and
 * gets dQ, dK, dV by three more products. Query heads of one group add to their dK and dV one
 * after the other, so the sums are the same on every run.
 *
 * Memory: S, B*H*Nq*Nk floats; backward S and dP, twice that; results [N][d] in float32.
 *
 * Interface: naive_v1_cublas, naive_v1_cublas_backward (naive.h).
 */
#include <cuda_runtime.h>

#include "alloc.h"
#include "cuda/cuda_check.h"
#include "product.cuh"
#include "score_row.cuh"

/* One block: one row. S [B][H][Nq][Nk] = scale Q K^T becomes P, rounded to the dtype of V. */
static __global__ void softmax_rows_kernel(const __grid_constant__ AttnArgs args, float *S)
{
    const int64_t row = blockIdx.x, Nk = args.shape.Nk;
    const ScoreRow rule = score_row_make(&args, row % args.shape.Nq);
    float *S_i = S + row * Nk;
    float m_i = -INFINITY, l_i = 0.0f;
    for (int64_t j = threadIdx.x; j < Nk; j += BLOCK) {
        S_i[j] = finish_score(&args, &rule, j, S_i[j]);
        m_i = fmaxf(m_i, S_i[j]);
    }
    m_i = block_max(m_i);
    if (m_i == -INFINITY)
        m_i = 0.0f; /* nothing visible: -inf - 0 stays -inf, while -inf - -inf would be NaN */
    for (int64_t j = threadIdx.x; j < Nk; j += BLOCK)
        l_i += expf(S_i[j] - m_i);
    l_i = block_sum(l_i);
    const float inverse = l_i == 0.0f ? 0.0f : 1.0f / l_i;
    for (int64_t first = 0; first < Nk; first += BLOCK) {
        const int64_t j = first + threadIdx.x;
        const float P_ij = j < Nk ? expf(S_i[j] - m_i) * inverse : 0.0f;
        store_score(S_i, args.V.dtype, Nk, j, P_ij);
    }
    if (threadIdx.x == 0)
        args.lse[row] = m_i + logf(l_i); /* log(0) = -inf: what an empty row should say */
}

/* One block: one row. S = scale Q K^T becomes P and dP = dO V^T becomes dS, both [B][H][Nq][Nk],
 * rounded to the dtype of Q, K, V and dO. */
static __global__ void gradient_rows_kernel(const __grid_constant__ AttnArgs args, float *S,
                                            float *dP)
{
    const int64_t row = blockIdx.x, Nk = args.shape.Nk, Nq = args.shape.Nq;
    const int64_t b = row / Nq / args.shape.H, h = row / Nq % args.shape.H, i = row % Nq;
    const int64_t O_i = tensor_offset(&args.O, b, i, h), dO_i = tensor_offset(&args.dO, b, i, h);
    const ScoreRow rule = score_row_make(&args, i);
    const float lse_i = args.lse[row], cap = args.softcap;
    float *S_i = S + row * Nk, *dP_i = dP + row * Nk, delta_i = 0.0f;
    for (int64_t x = threadIdx.x; x < args.shape.d; x += BLOCK)
        delta_i += load_element(&args.dO, dO_i + x) * load_element(&args.O, O_i + x);
    delta_i = block_sum(delta_i);
    for (int64_t first = 0; first < Nk; first += BLOCK) {
        const int64_t j = first + threadIdx.x;
        const float s = j < Nk ? finish_score(&args, &rule, j, S_i[j]) : -INFINITY;
        float P_ij = 0.0f, dS_ij = 0.0f;
        if (s != -INFINITY) {
            /* d/dx of cap * tanh(x / cap) is 1 - tanh^2, and tanh is s / cap */
            const float slope = cap > 0.0f ? 1.0f - (s / cap) * (s / cap) : 1.0f;
            P_ij = expf(s - lse_i);
            dS_ij = P_ij * (dP_i[j] - delta_i) * slope;
        }
        store_score(S_i, args.V.dtype, Nk, j, P_ij);
        store_score(dP_i, args.V.dtype, Nk, j, dS_ij);
    }
}

static int64_t count_rows(const AttnShape *shape)
{
    return shape->B * shape->H * shape->Nq;
}

/* --- forward -----------------------------------------------------------------------------------*/

/* Everything that forward and backward may own; release_all frees what is there. */
struct Work {
    float *S_dev, *dP_dev; /* [B][H][Nq][Nk] */
    Matrices Q, K, V, dO;  /* as cuBLAS reads them */
    Matrices result;       /* float32, before it is rounded into O, dQ, dK or dV */
};

static void release_all(Work *work)
{
    matrices_free(&work->result);
    matrices_free(&work->dO);
    matrices_free(&work->V);
    matrices_free(&work->K);
    matrices_free(&work->Q);
    workspace_free_device(work->dP_dev);
    workspace_free_device(work->S_dev); /* waits for the kernels: cudaFree does */
}

/* The next line only if all lines before it went well. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        const AttnStatus try_status = (call);                                                      \
        if (try_status != ATTN_OK)                                                                 \
            return try_status;                                                                     \
    } while (0)

static AttnStatus alloc_scores(const AttnArgs *args, float **S_dev)
{
    const size_t pairs = (size_t)count_rows(&args->shape) * (size_t)args->shape.Nk;
    *S_dev = (float *)workspace_alloc_device(pairs * sizeof(float));
    return *S_dev ? ATTN_OK : ATTN_NO_MEMORY;
}

static AttnStatus forward(const AttnArgs *args, Work *work)
{
    const int64_t H = args->shape.H, Nq = args->shape.Nq, Nk = args->shape.Nk, d = args->shape.d;
    TRY(alloc_scores(args, &work->S_dev));
    TRY(matrices_of_tensor(args, &args->Q, &work->Q));
    TRY(matrices_of_tensor(args, &args->K, &work->K));
    TRY(matrices_of_tensor(args, &args->V, &work->V));
    TRY(matrices_new_f32(args, H, Nq, &work->result));
    const Matrices S = matrices_of_scores(args, work->S_dev, ATTN_F32);
    const Matrices P = matrices_of_scores(args, work->S_dev, args->V.dtype);
    TRY(multiply_heads(args, AS_IS, TRANSPOSED, Nq, Nk, d, args->scale, &work->Q, &work->K, &S));
    softmax_rows_kernel<<<(unsigned)count_rows(&args->shape), BLOCK, 0,
                          (cudaStream_t)args->stream>>>(*args, work->S_dev);
    CUDA_TRY_LAUNCH();
    TRY(multiply_heads(args, AS_IS, AS_IS, Nq, d, Nk, 1.0f, &P, &work->V, &work->result));
    return matrices_store(args, &work->result, &args->O);
}

AttnStatus naive_v1_cublas(const AttnArgs *args)
{
    Work work = {};
    const AttnStatus status = forward(args, &work);
    release_all(&work);
    return status;
}

/* --- backward ----------------------------------------------------------------------------------*/

/* One gradient: a product into float32, then rounded into its tensor of N rows. */
static AttnStatus gradient(const AttnArgs *args, Work *work, const Tensor *out,
                           Transpose X_transposed, float alpha, const Matrices *X,
                           const Matrices *rows)
{
    const int64_t Nq = args->shape.Nq, Nk = args->shape.Nk, N = out->shape[1];
    TRY(matrices_new_f32(args, out->shape[2], N, &work->result));
    TRY(multiply_heads(args, X_transposed, AS_IS, N, args->shape.d, X_transposed ? Nq : Nk, alpha,
                       X, rows, &work->result));
    TRY(matrices_store(args, &work->result, out));
    matrices_free(&work->result);
    return ATTN_OK;
}

static AttnStatus backward(const AttnArgs *args, Work *work)
{
    const int64_t Nq = args->shape.Nq, Nk = args->shape.Nk, d = args->shape.d;
    TRY(alloc_scores(args, &work->S_dev));
    TRY(alloc_scores(args, &work->dP_dev));
    TRY(matrices_of_tensor(args, &args->Q, &work->Q));
    TRY(matrices_of_tensor(args, &args->K, &work->K));
    TRY(matrices_of_tensor(args, &args->V, &work->V));
    TRY(matrices_of_gradient(args, &work->dO));
    const Matrices S = matrices_of_scores(args, work->S_dev, ATTN_F32);
    const Matrices dP = matrices_of_scores(args, work->dP_dev, ATTN_F32);
    TRY(multiply_heads(args, AS_IS, TRANSPOSED, Nq, Nk, d, args->scale, &work->Q, &work->K, &S));
    TRY(multiply_heads(args, AS_IS, TRANSPOSED, Nq, Nk, d, 1.0f, &work->dO, &work->V, &dP));
    gradient_rows_kernel<<<(unsigned)count_rows(&args->shape), BLOCK, 0,
                           (cudaStream_t)args->stream>>>(*args, work->S_dev, work->dP_dev);
    CUDA_TRY_LAUNCH();
    const Matrices P = matrices_of_scores(args, work->S_dev, args->V.dtype);
    const Matrices dS = matrices_of_scores(args, work->dP_dev, args->V.dtype);
    TRY(gradient(args, work, &args->dQ, AS_IS, args->scale, &dS, &work->K));
    TRY(gradient(args, work, &args->dK, TRANSPOSED, args->scale, &dS, &work->Q));
    return gradient(args, work, &args->dV, TRANSPOSED, 1.0f, &P, &work->dO);
}

AttnStatus naive_v1_cublas_backward(const AttnArgs *args)
{
    Work work = {};
    const AttnStatus status = backward(args, &work);
    release_all(&work);
    return status;
}
