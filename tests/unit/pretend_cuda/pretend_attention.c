/* SPDX-License-Identifier: MIT
 *
 * pretend_attention.c: the forward kernels of a pretended GPU.
 *
 * The state of a row that has seen no key is not read, and stays what it was if no key is seen now
 * either. Few queries have their keys split among blocks, whose states lie in the workspace; only
 * then is it used, and there is no kernel for some heads or the last keys.
 *
 * Interface: of flash_library.h and block_resume.h what the backend of a GPU calls.
 */
#include <math.h>

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
    check_host_maps(&k->a);
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

static void *copy_of(const void *p, size_t bytes)
{
    return p ? memcpy(scratch(bytes), p, bytes) : NULL;
}

/* Row [b][i][h] of O and of the state. */
static int64_t head_row(const AttnShape *n, int64_t head, int64_t i)
{
    return (head / n->H * n->Nq + i) * n->H + head % n->H;
}

/* Of the copies only what belongs to the kernel's heads goes back: other heads may be in the works
 * at the same time. */
static void keep_heads(const Kernel *k, const Kernel *copies, const float *state)
{
    const AttnShape *n = &k->a.shape;
    const size_t row_bytes = (size_t)n->Nq * sizeof(float);
    for (int64_t head = k->heads.first; head < k->heads.first + k->heads.count; head++) {
        memcpy(k->a.lse + head * n->Nq, copies->a.lse + head * n->Nq, row_bytes);
        if (!k->last && k->rows.m) {
            memcpy(k->rows.m + head * n->Nq, copies->rows.m + head * n->Nq, row_bytes);
            memcpy(k->rows.l + head * n->Nq, copies->rows.l + head * n->Nq, row_bytes);
        }
        for (int64_t i = 0; i < n->Nq; i++) {
            const int64_t at = head_row(n, head, i) * n->d;
            const size_t size = dtype_size(k->a.O.dtype);
            if (k->last)
                memcpy((char *)k->a.O.data +
                           (size_t)tensor_offset(&k->a.O, head / n->H, i, head % n->H) * size,
                       (const char *)copies->a.O.data + (size_t)at * size, (size_t)n->d * size);
            else
                memcpy(k->O_state + at, state + at, (size_t)n->d * sizeof *state);
        }
    }
}

static void run_heads(void *context)
{
    const Kernel *k = context;
    const AttnShape *n = &k->a.shape;
    const size_t bytes = (size_t)count_q(n) * sizeof(float);
    const size_t row_bytes = (size_t)count_rows(n) * sizeof(float);
    const int64_t token = n->H * n->d;
    float *state = copy_of(k->O_state, bytes);
    check_host_maps(&k->a);
    Kernel all = *k;
    all.rows.m = copy_of(k->rows.m, row_bytes);
    all.rows.l = copy_of(k->rows.l, row_bytes);
    all.a.lse = copy_of(k->a.lse, row_bytes);
    all.a.O = (Tensor){
        scratch(bytes), k->a.O.dtype, {n->B, n->Nq, n->H, n->d}, {n->Nq * token, token, n->d, 1}};
    resume(&all, state);
    if (k->last)
        store(&all, state);
    keep_heads(k, &all, state);
    free(all.a.O.data);
    free(all.a.lse);
    free(all.rows.l);
    free(all.rows.m);
    free(state);
}

/* Token by token: the kernel's heads of a sequence stand side by side. */
static void uses_heads(PretendWork *work, const Kernel *k)
{
    const AttnShape *n = &k->a.shape;
    const int64_t first = k->heads.first * n->Nq, rows = k->heads.count * n->Nq;
    const PretendUse how = k->last ? PRETEND_READS : PRETEND_WRITES;
    uses_floats(work, k->a.lse + first, rows, PRETEND_WRITES);
    if (k->rows.m) {
        uses_floats(work, k->rows.m + first, rows, how);
        uses_floats(work, k->rows.l + first, rows, how);
    }
    for (int64_t head = k->heads.first; head < k->heads.first + k->heads.count; head++)
        for (int64_t i = 0; i < n->Nq; i++) {
            Tensor row = k->a.O;
            row.data = (char *)row.data + (size_t)tensor_offset(&row, head / n->H, i, head % n->H) *
                                              dtype_size(row.dtype);
            uses_floats(work, k->O_state + head_row(n, head, i) * n->d, n->d, how);
            if (k->last)
                pretend_uses(work, row.data, (size_t)n->d * dtype_size(row.dtype), PRETEND_WRITES);
        }
}

AttnStatus flash_cuda_resume_heads(const AttnArgs *a, float *O_state, FlashRows rows,
                                   FlashHeads heads, int last)
{
    const Kernel k = {.a = *a, .O_state = O_state, .rows = rows, .heads = heads, .last = last};
    if (a->Q.dtype == ATTN_F32 || splits_keys(&a->shape, a->Q.dtype))
        return ATTN_SKIP;
    if (heads.first < 0 || heads.count < 1 || heads.first + heads.count > a->shape.B * a->shape.H)
        return ATTN_CUDA_ERROR; /* CUDA refuses a grid of no blocks */
    PretendWork *work =
        kernel_work(last ? "attention to the last keys" : "attention", run_heads, &k);
    reads_pair(work, a, a->positions_k.segments);
    uses_heads(work, &k);
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
