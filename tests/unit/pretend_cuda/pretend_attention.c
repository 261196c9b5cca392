/* SPDX-License-Identifier: MIT
 *
 * pretend_attention.c: the forward kernels of a pretended GPU.
 *
 * The state of a row that has seen no key is not read, and stays what it was if no key is seen now
 * either. Few queries have their keys split among blocks, whose states lie in the workspace; only
 * then is it used, and there is no kernel for the last keys.
 *
 * Interface: of flash_forward.h what the space of a GPU calls.
 */
#include "pretend_kernels.h"

#define FEW_QUERIES 8

static int splits_keys(const AttnShape *n, AttnDtype dtype)
{
    return dtype != ATTN_F32 && n->Nq < FEW_QUERIES;
}

size_t flash_cuda_workspace_bytes(const AttnShape *shape, AttnDtype dtype)
{
    return splits_keys(shape, dtype) ? 2 * (size_t)count_q(shape) * sizeof(float) : 0;
}

static float *row_of(const AttnShape *n, float *O, int64_t row)
{
    const int64_t b = row / (n->H * n->Nq), h = row / n->Nq % n->H, i = row % n->Nq;
    return O + ((b * n->Nq + i) * n->H + h) * n->d;
}

/* state [Nq][H][d] becomes that of the block's keys too; rows that see none stay as they are. */
static void resume(const AttnArgs *a, float *state)
{
    const AttnShape *n = &a->shape;
    const size_t width = (size_t)n->d * sizeof(float);
    float *before = scratch((size_t)count_q(n) * sizeof *before);
    void *workspace = scratch(flash_simd_workspace_bytes(n, 1));
    memcpy(before, state, (size_t)count_q(n) * sizeof *before);
    for (int64_t row = 0; row < count_rows(n); row++)
        if (a->lse[row] == -INFINITY)
            memset(row_of(n, state, row), 0, width);
    flash_simd_run(a, state, workspace);
    for (int64_t row = 0; row < count_rows(n); row++)
        if (a->lse[row] == -INFINITY)
            memcpy(row_of(n, state, row), row_of(n, before, row), width);
    free(workspace);
    free(before);
}

static void run_attend(void *context)
{
    Kernel *k = context;
    const size_t bytes = (size_t)count_q(&k->a.shape) * sizeof(float);
    float *state = k->O_split ? k->O_split : k->O_state;
    if (!k->O_state) {
        void *workspace = scratch(flash_simd_workspace_bytes(&k->a.shape, 1));
        flash_simd_run(&k->a, NULL, workspace);
        free(workspace);
        return;
    }
    if (k->O_split)
        memcpy(k->O_split, k->O_state, bytes);
    resume(&k->a, state);
    if (k->O_split)
        memcpy(k->O_state, k->O_split, bytes);
}

AttnStatus flash_cuda_run(const AttnArgs *a, float *O_state, void *workspace)
{
    const AttnShape *n = &a->shape;
    const int split = splits_keys(n, a->Q.dtype);
    const Kernel k = {.a = *a, .O_state = O_state, .O_split = split ? workspace : NULL};
    PretendWork *work = kernel_work("attention", run_attend, &k);
    reads_pair(work, a, a->positions_k.segments);
    uses_floats(work, a->lse, count_rows(n), PRETEND_WRITES);
    if (O_state)
        uses_floats(work, O_state, count_q(n), PRETEND_WRITES);
    else
        uses_tensor(work, &a->O, PRETEND_WRITES);
    if (split)
        pretend_uses(work, workspace, flash_cuda_workspace_bytes(n, a->Q.dtype), PRETEND_WRITES);
    pretend_ask(work, a->stream);
    return ATTN_OK;
}

/* Rows that see no key in all: zeros. */
static void run_last(void *context)
{
    Kernel *k = context;
    const AttnShape *n = &k->a.shape;
    float *state = scratch((size_t)count_q(n) * sizeof *state);
    memcpy(state, k->O_state, (size_t)count_q(n) * sizeof *state);
    resume(&k->a, state);
    for (int64_t row = 0; row < count_rows(n); row++)
        if (k->a.lse[row] == -INFINITY)
            memset(row_of(n, state, row), 0, (size_t)n->d * sizeof *state);
    flash_state_store(&k->a, state);
    free(state);
}

AttnStatus flash_cuda_run_last(const AttnArgs *a, float *O_state)
{
    const Kernel k = {.a = *a, .O_state = O_state};
    if (a->Q.dtype == ATTN_F32 || splits_keys(&a->shape, a->Q.dtype))
        return ATTN_SKIP;
    PretendWork *work = kernel_work("attention to the last keys", run_last, &k);
    reads_pair(work, a, a->positions_k.segments);
    uses_floats(work, O_state, count_q(&a->shape), PRETEND_READS);
    uses_floats(work, a->lse, count_rows(&a->shape), PRETEND_WRITES);
    uses_tensor(work, &a->O, PRETEND_WRITES);
    pretend_ask(work, a->stream);
    return ATTN_OK;
}
