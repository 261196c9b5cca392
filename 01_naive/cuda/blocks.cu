/* SPDX-License-Identifier: MIT
 *
 * blocks.cu: the two products of attention on the GPU, for a stage that has its own softmax.
 *
 * With cuBLAS they are those of v1_cublas, and a kernel of one block a row adds cap and mask; in a
 * build without it they are those of v0_thread_per_score.
 *
 * Interface: naive_cuda_scores, naive_cuda_weighted_sum (naive.h).
 */
#include <cuda_runtime.h>

#include "attn_config.h"
#include "cuda/cuda_check.h"
#include "product.cuh"
#include "score_row.cuh"

#ifdef HAVE_CUBLAS

/* One block: one row of S [B][H][Nq][Nk], scale Q K^T, gets its cap and mask. */
static __global__ void finish_scores_kernel(const __grid_constant__ AttnArgs args, float *S)
{
    const int64_t row = blockIdx.x, Nk = args.shape.Nk;
    const ScoreRow rule = score_row_make(&args, row % args.shape.Nq);
    for (int64_t j = threadIdx.x; j < Nk; j += BLOCK)
        S[row * Nk + j] = finish_score(&args, &rule, j, S[row * Nk + j]);
}

/* One block: one row of P [B][H][Nq][Nk], rounded to 16 bits into its own first half. */
static __global__ void round_rows_kernel(AttnDtype dtype, int64_t Nk, float *P)
{
    float *P_i = P + (int64_t)blockIdx.x * Nk;
    for (int64_t first = 0; first < Nk; first += BLOCK) {
        const int64_t j = first + threadIdx.x;
        store_score(P_i, dtype, Nk, j, j < Nk ? P_i[j] : 0.0f);
    }
}

static unsigned grid_rows(const AttnArgs *args)
{
    return (unsigned)(args->shape.B * args->shape.H * args->shape.Nq);
}

AttnStatus naive_cuda_scores(const AttnArgs *args, float *S_dev)
{
    const AttnShape *shape = &args->shape;
    const Matrices S = matrices_of_scores(args, S_dev, ATTN_F32);
    Matrices Q = {}, K = {};
    AttnStatus status = matrices_of_tensor(args, &args->Q, &Q);
    if (status == ATTN_OK)
        status = matrices_of_tensor(args, &args->K, &K);
    if (status == ATTN_OK)
        status = multiply_heads(args, AS_IS, TRANSPOSED, shape->Nq, shape->Nk, shape->d,
                                args->scale, &Q, &K, &S);
    matrices_free(&K); /* a copy that the product still reads: it is kept that long */
    matrices_free(&Q);
    if (status != ATTN_OK)
        return status;
    finish_scores_kernel<<<grid_rows(args), BLOCK, 0, (cudaStream_t)args->stream>>>(*args, S_dev);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

AttnStatus naive_cuda_weighted_sum(const AttnArgs *args, float *P_dev)
{
    const AttnShape *shape = &args->shape;
    const Matrices P = matrices_of_scores(args, P_dev, args->V.dtype);
    Matrices V = {}, O = {};
    AttnStatus status;
    if (args->V.dtype != ATTN_F32) {
        round_rows_kernel<<<grid_rows(args), BLOCK, 0, (cudaStream_t)args->stream>>>(
            args->V.dtype, shape->Nk, P_dev);
        CUDA_TRY_LAUNCH();
    }
    status = matrices_of_tensor(args, &args->V, &V);
    if (status == ATTN_OK)
        status = matrices_new_f32(args, shape->H, shape->Nq, &O);
    if (status == ATTN_OK)
        status =
            multiply_heads(args, AS_IS, AS_IS, shape->Nq, shape->d, shape->Nk, 1.0f, &P, &V, &O);
    if (status == ATTN_OK)
        status = matrices_store(args, &O, &args->O);
    matrices_free(&O); /* kept until its kernels are done */
    matrices_free(&V);
    return status;
}

#else

AttnStatus naive_cuda_scores(const AttnArgs *args, float *S_dev)
{
    return plain_scores(args, S_dev);
}

AttnStatus naive_cuda_weighted_sum(const AttnArgs *args, float *P_dev)
{
    return plain_weighted_sum(args, P_dev);
}

#endif
