/* SPDX-License-Identifier: MIT
 *
 * attention_on_device: attention around any CUDA softmax of this stage.
 *
 * Stage 01 computes the scores of all heads, S [B][H][Nq][Nk], already scaled, capped and masked
 * with -inf. To a softmax that is one matrix of B*H*Nq rows, which it overwrites by P; its lse
 * comes in the order [B][H][Nq] that the contract asks for. Then stage 01 multiplies by V.
 *
 * Interface:
 * - attention_v0_block_per_row ... attention_v3_split_row: AttnArgs with device pointers; memory
 *   for S and for the slices' states.
 */
#include <cuda_runtime.h>

#include "alloc.h"
#include "cuda/cuda_check.h"
#include "naive.h"
#include "tiled_softmax.h"

static AttnStatus attention_on_device(const AttnArgs *args, SoftmaxFn softmax)
{
    const AttnShape *n = &args->shape;
    int64_t rows = n->B * n->H * n->Nq, cols = n->Nk;
    float *S_dev = (float *)workspace_alloc_device((size_t)(rows * cols) * sizeof(float));
    void *workspace_dev = workspace_alloc_device(softmax_workspace_bytes(rows, cols));
    AttnStatus status = S_dev && workspace_dev ? ATTN_OK : ATTN_NO_MEMORY;

    if (status == ATTN_OK)
        status = naive_cuda_scores(args, S_dev); /* [B][H][Nq][Nk] */
    if (status == ATTN_OK) {
        SoftmaxArgs softmax_args = {};
        softmax_args.x = softmax_args.y = S_dev;
        softmax_args.lse = args->lse;
        softmax_args.rows = rows;
        softmax_args.cols = cols;
        softmax_args.threads = 1;
        softmax_args.workspace = workspace_dev;
        softmax_args.stream = args->stream;
        status = softmax(&softmax_args);
    }
    if (status == ATTN_OK)
        status = naive_cuda_weighted_sum(args, S_dev);
    workspace_free_device(workspace_dev);
    workspace_free_device(S_dev);
    return status;
}

AttnStatus attention_v0_block_per_row(const AttnArgs *args)
{
    return attention_on_device(args, softmax_v0_block_per_row);
}

AttnStatus attention_v1_warp_online(const AttnArgs *args)
{
    return attention_on_device(args, softmax_v1_warp_online);
}

AttnStatus attention_v2_one_read(const AttnArgs *args)
{
    return attention_on_device(args, softmax_v2_one_read);
}

AttnStatus attention_v3_split_row(const AttnArgs *args)
{
    return attention_on_device(args, softmax_v3_split_row);
}
