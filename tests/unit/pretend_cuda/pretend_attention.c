/* SPDX-License-Identifier: MIT
 *
 * pretend_attention.c: the forward kernels of a pretended GPU.
 *
 * The state of a row that has seen no key is not read, and stays what it was if no key is seen now
 * either. Few queries have their keys split among blocks, whose states lie in the workspace; only
 * then is it used, and there is no kernel for the last keys.
 *
 * Interface: of flash_forward.h and block_resume.h what the space of a GPU calls.
 */
#include "../../../03_flash_forward/cuda/block_resume.h"
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

static int unseen(const Kernel *k, int64_t row)
{
    return k->rows.m ? k->rows.l[row] == 0.0f : k->a.lse[row] == -INFINITY;
}

/* state [Nq][H][d] becomes that of the block's keys too; rows that see none stay as they are. A GPU
 * keeps l in one float. */
static void resume(const Kernel *k, float *state)
{
    const AttnShape *n = &k->a.shape;
    const size_t width = (size_t)n->d * sizeof(float);
    const size_t rows_bytes = (size_t)count_rows(n) * sizeof(float);
    float *before = scratch((size_t)count_q(n) * sizeof *before);
    void *workspace = scratch(flash_simd_workspace_bytes(n, 1));
    FlashRows rows = {k->rows.m, k->rows.l, scratch(rows_bytes)};
    memcpy(before, state, (size_t)count_q(n) * sizeof *before);
    memset(rows.l_rest, 0, rows_bytes);
    for (int64_t row = 0; row < count_rows(n); row++)
        if (unseen(k, row))
            memset(row_of(n, state, row), 0, width);
    flash_simd_resume(&k->a, state, rows, workspace);
    for (int64_t row = 0; row < count_rows(n); row++)
        if (unseen(k, row))
            memcpy(row_of(n, state, row), row_of(n, before, row), width);
    free(rows.l_rest);
    free(workspace);
    free(before);
}

/* O of the rows that have seen a key; zeros. */
static void store(const Kernel *k, float *state)
{
    const AttnShape *n = &k->a.shape;
    for (int64_t row = 0; row < count_rows(n); row++)
        if (k->rows.l[row] == 0.0f)
            memset(row_of(n, state, row), 0, (size_t)n->d * sizeof *state);
    flash_rows_store(&k->a, state, k->rows);
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
    resume(k, state);
    if (k->O_split)
        memcpy(k->O_state, k->O_split, bytes);
}

static void uses_rows(PretendWork *work, FlashRows rows, const AttnShape *n, PretendUse how)
{
    uses_floats(work, rows.m, count_rows(n), how);
    uses_floats(work, rows.l, count_rows(n), how);
}

AttnStatus flash_cuda_resume(const AttnArgs *a, float *O_state, FlashRows rows, void *workspace)
{
    const AttnShape *n = &a->shape;
    const int split = splits_keys(n, a->Q.dtype);
    const Kernel k = {
        .a = *a, .O_state = O_state, .O_split = split ? workspace : NULL, .rows = rows};
    PretendWork *work = kernel_work("attention", run_attend, &k);
    reads_pair(work, a, a->positions_k.segments);
    uses_floats(work, a->lse, count_rows(n), PRETEND_WRITES);
    if (O_state) {
        uses_floats(work, O_state, count_q(n), PRETEND_WRITES);
        if (rows.m)
            uses_rows(work, rows, n, PRETEND_WRITES);
    } else {
        uses_tensor(work, &a->O, PRETEND_WRITES);
    }
    if (split)
        pretend_uses(work, workspace, flash_cuda_workspace_bytes(n, a->Q.dtype), PRETEND_WRITES);
    pretend_ask(work, a->stream);
    return ATTN_OK;
}

AttnStatus flash_cuda_run(const AttnArgs *a, float *O_state, void *workspace)
{
    return flash_cuda_resume(a, O_state, (FlashRows){NULL, NULL, NULL}, workspace);
}

/* The state is only read. */
static void run_last(void *context)
{
    Kernel k = *(const Kernel *)context;
    const size_t bytes = (size_t)count_q(&k.a.shape) * sizeof(float);
    const size_t row_bytes = (size_t)count_rows(&k.a.shape) * sizeof(float);
    float *state = scratch(bytes), *m = scratch(2 * row_bytes);
    memcpy(state, k.O_state, bytes);
    memcpy(m, k.rows.m, row_bytes);
    k.rows.m = m;
    k.rows.l = memcpy(m + count_rows(&k.a.shape), k.rows.l, row_bytes);
    resume(&k, state);
    store(&k, state);
    free(m);
    free(state);
}

AttnStatus flash_cuda_resume_last(const AttnArgs *a, float *O_state, FlashRows rows)
{
    const Kernel k = {.a = *a, .O_state = O_state, .rows = rows};
    if (a->Q.dtype == ATTN_F32 || splits_keys(&a->shape, a->Q.dtype))
        return ATTN_SKIP;
    PretendWork *work = kernel_work("attention to the last keys", run_last, &k);
    reads_pair(work, a, a->positions_k.segments);
    uses_floats(work, O_state, count_q(&a->shape), PRETEND_READS);
    uses_rows(work, rows, &a->shape, PRETEND_READS);
    uses_floats(work, a->lse, count_rows(&a->shape), PRETEND_WRITES);
    uses_tensor(work, &a->O, PRETEND_WRITES);
    pretend_ask(work, a->stream);
    return ATTN_OK;
}

static void run_store(void *context)
{
    const Kernel *k = context;
    const size_t bytes = (size_t)count_q(&k->a.shape) * sizeof(float);
    float *state = memcpy(scratch(bytes), k->O_state, bytes);
    store(k, state);
    free(state);
}

AttnStatus flash_cuda_rows_store(const AttnArgs *a, const float *O_state, FlashRows rows)
{
    const Kernel k = {.a = *a, .O_state = (float *)O_state, .rows = rows};
    PretendWork *work = kernel_work("the division by l", run_store, &k);
    uses_floats(work, rows.l, count_rows(&a->shape), PRETEND_READS);
    uses_floats(work, O_state, count_q(&a->shape), PRETEND_READS);
    uses_tensor(work, &a->O, PRETEND_WRITES);
    pretend_ask(work, a->stream);
    return ATTN_OK;
}
