/* SPDX-License-Identifier: MIT
 *
 * pretend_gradients.c: the backward kernels of a pretended GPU.
 *
 * dQ of 16 bits grows in the workspace, where rows that were prepared for it and tables of the keys
 * lie too:
 *
 *     workspace   dQ [B][Nq][H][d] | lse, delta [B][H][Nq] | the keys' positions
 *
 * Interface: of backward_library.h and block_add.h what the backend of a GPU calls.
 */
#include "attention/backward/backward_library.h"
#include "attention/backward/cuda/block_add.h"
#include "pretend_kernels.h"

static inline size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

size_t flash_gradients_tables_bytes(const AttnShape *n)
{
    return round_up((size_t)(n->Nk + 1) * sizeof(AttnSegment));
}

static size_t rows_bytes(const AttnShape *n)
{
    return round_up((size_t)count_rows(n) * sizeof(float));
}

size_t flash_backward_cuda_workspace_bytes(const AttnShape *n, AttnDtype dtype)
{
    return dtype == ATTN_F32 ? rows_bytes(n)
                             : round_up((size_t)count_q(n) * sizeof(float)) + 2 * rows_bytes(n) +
                                   flash_gradients_tables_bytes(n);
}

static void place(Kernel *k, void *workspace)
{
    char *at = workspace;
    k->dQ = (float *)at;
    at += round_up((size_t)count_q(&k->a.shape) * sizeof(float));
    k->lse = (float *)at;
    k->delta_kept = (float *)(at + rows_bytes(&k->a.shape));
    k->table = (AttnSegment *)(at + 2 * rows_bytes(&k->a.shape));
}

static void run_delta(void *context)
{
    const Kernel *k = context;
    flash_backward_delta(&k->a, k->delta_kept);
}

AttnStatus flash_backward_delta_cuda(const AttnArgs *a, float *delta)
{
    const Kernel k = {.a = *a, .delta_kept = delta};
    PretendWork *work = kernel_work("delta", run_delta, &k);
    uses_tensor(work, &a->O, PRETEND_READS);
    uses_tensor(work, &a->dO, PRETEND_READS);
    uses_floats(work, delta, count_rows(&a->shape), PRETEND_WRITES);
    pretend_ask(work, a->stream);
    return ATTN_OK;
}

static void run_table(void *context)
{
    const Kernel *k = context;
    memcpy(k->table, k->a.positions_k.segments, (size_t)k->a.positions_k.count * sizeof *k->table);
}

/* For the keys of this block. */
static AttnStatus ask_table(const Kernel *k)
{
    const AttnPositions *map = &k->a.positions_k;
    const size_t bytes = (size_t)map->count * sizeof *k->table;
    PretendWork *work = kernel_work("the keys' table", run_table, k);
    pretend_uses(work, map->segments, bytes, PRETEND_READS);
    pretend_uses(work, k->table, flash_gradients_tables_bytes(&k->a.shape), PRETEND_WRITES);
    pretend_ask(work, k->a.stream);
    return bytes <= flash_gradients_tables_bytes(&k->a.shape) ? ATTN_OK : ATTN_NO_MEMORY;
}

static void run_begin(void *context)
{
    const Kernel *k = context;
    const size_t bytes = (size_t)count_rows(&k->a.shape) * sizeof(float);
    memcpy(k->lse, k->a.lse, bytes);
    memcpy(k->delta_kept, k->delta, bytes);
    memset(k->dQ, 0, (size_t)count_q(&k->a.shape) * sizeof *k->dQ);
}

AttnStatus flash_backward_cuda_begin(const AttnArgs *a, const float *delta, void *workspace)
{
    const int64_t rows = count_rows(&a->shape);
    Kernel k = {.a = *a, .delta = delta};
    if (a->Q.dtype == ATTN_F32)
        return ATTN_OK;
    place(&k, workspace);
    PretendWork *work = kernel_work("the beginning of dQ", run_begin, &k);
    uses_floats(work, a->lse, rows, PRETEND_READS);
    uses_floats(work, delta, rows, PRETEND_READS);
    uses_floats(work, k.lse, rows, PRETEND_WRITES);
    uses_floats(work, k.delta_kept, rows, PRETEND_WRITES);
    uses_floats(work, k.dQ, count_q(&a->shape), PRETEND_WRITES);
    pretend_ask(work, a->stream);
    return ask_table(&k);
}

/* Both kinds; what is read of the rows was put into a.lse and delta, the table into a. */
static void run_add(void *context)
{
    Kernel *k = context;
    void *workspace = scratch(flash_backward_simd_workspace_bytes(&k->a.shape, 1));
    const size_t keys = (size_t)count_kv(&k->a.shape) * sizeof(float);
    check_host_maps(&k->a);
    if (k->fresh) {
        memset(k->sums.dK, 0, keys);
        memset(k->sums.dV, 0, keys);
    }
    flash_backward_simd_run(&k->a, k->delta, k->sums, workspace);
    free(workspace);
}

static AttnStatus ask_add(const char *name, const Kernel *k, PretendUse dQ)
{
    const AttnShape *n = &k->a.shape;
    PretendWork *work = kernel_work(name, run_add, k);
    reads_pair(work, &k->a, k->a.positions_k.segments);
    uses_tensor(work, &k->a.dO, PRETEND_READS);
    uses_floats(work, k->a.lse, count_rows(n), PRETEND_READS);
    uses_floats(work, k->delta, count_rows(n), PRETEND_READS);
    uses_floats(work, k->sums.dQ, count_q(n), dQ);
    uses_floats(work, k->sums.dK, count_kv(n), PRETEND_WRITES);
    uses_floats(work, k->sums.dV, count_kv(n), PRETEND_WRITES);
    pretend_ask(work, k->a.stream);
    return ATTN_OK;
}

AttnStatus flash_gradients_add(const AttnArgs *a, const float *delta, FlashSums sums,
                               void *workspace, FlashKeysOptions keys)
{
    Kernel k = {.a = *a, .delta = delta, .sums = sums, .fresh = keys.fresh};
    if (a->Q.dtype == ATTN_F32 || (keys.tables_dev && flash_backward_deterministic()))
        return ATTN_SKIP;
    place(&k, workspace);
    if (keys.tables_dev)
        k.table = keys.tables_dev;
    const AttnStatus status = ask_table(&k);
    k.a.positions_k.segments = k.table;
    k.a.lse = k.lse;
    k.delta = k.delta_kept;
    k.sums.dQ = k.dQ;
    return status == ATTN_OK ? ask_add("gradients", &k, PRETEND_ADDS) : status;
}

AttnStatus flash_backward_cuda_add(const AttnArgs *a, const float *delta, FlashSums sums,
                                   void *workspace)
{
    const FlashKeysOptions plain = {NULL, 0};
    const Kernel k = {.a = *a, .delta = delta, .sums = sums};
    return a->Q.dtype == ATTN_F32 ? ask_add("gradients of float32", &k, PRETEND_WRITES)
                                  : flash_gradients_add(a, delta, sums, workspace, plain);
}

/* To the sums, or rounded to the tensor. */
static void run_end(void *context)
{
    const Kernel *k = context;
    const AttnShape *n = &k->a.shape;
    for (int64_t row = 0; row < count_rows(n); row++) {
        const int64_t b = row / (n->Nq * n->H), i = row / n->H % n->Nq, h = row % n->H;
        for (int64_t x = 0; x < n->d; x++)
            if (k->sums.dQ)
                k->sums.dQ[row * n->d + x] += k->dQ[row * n->d + x];
            else
                tensor_set(&k->a.dQ, tensor_offset(&k->a.dQ, b, i, h) + x, k->dQ[row * n->d + x]);
    }
}

AttnStatus flash_backward_cuda_end(const AttnArgs *a, FlashSums sums, void *workspace)
{
    Kernel k = {.a = *a, .sums = sums};
    if (a->Q.dtype == ATTN_F32)
        return ATTN_OK;
    place(&k, workspace);
    PretendWork *work = kernel_work("the end of dQ", run_end, &k);
    uses_floats(work, k.dQ, count_q(&a->shape), PRETEND_READS);
    if (sums.dQ)
        uses_floats(work, sums.dQ, count_q(&a->shape), PRETEND_WRITES);
    else
        uses_tensor(work, &a->dQ, PRETEND_WRITES);
    pretend_ask(work, a->stream);
    return ATTN_OK;
}

/* The whole pass: the local baseline's. */
AttnStatus flash_backward_cuda_run(const AttnArgs *a, const float *delta, FlashSums sums,
                                   void *workspace)
{
    const Kernel k = {.a = *a, .sums = sums};
    if (sums.dQ)
        return ATTN_SKIP;
    (void)delta;
    PretendWork *work = kernel_work("all gradients", run_add, &k);
    reads_pair(work, a, a->positions_k.segments);
    uses_tensor(work, &a->O, PRETEND_READS);
    uses_tensor(work, &a->dO, PRETEND_READS);
    uses_floats(work, a->lse, count_rows(&a->shape), PRETEND_READS);
    uses_tensor(work, &a->dQ, PRETEND_WRITES);
    uses_tensor(work, &a->dK, PRETEND_WRITES);
    uses_tensor(work, &a->dV, PRETEND_WRITES);
    pretend_uses(work, workspace, flash_backward_cuda_workspace_bytes(&a->shape, a->Q.dtype),
                 PRETEND_WRITES);
    pretend_ask(work, a->stream);
    return ATTN_OK;
}
