/* SPDX-License-Identifier: MIT
 *
 * pretend_kernels.c: the kernels that stage 06 asks of a GPU, on a pretended one (pretend_gpu.h):
 * in which stream they run, and what memory they read, write and add to.
 *
 * Few queries have their keys split among blocks, whose states lie in the workspace; only then is
 * it used forward, and there is no kernel for some heads or the last keys. dQ of 16 bits grows in
 * the workspace, where rows that were prepared for it and tables of the keys lie too:
 *
 *     workspace   dQ [B][Nq][H][d] | lse, delta [B][H][Nq] | the keys' positions
 *
 * Interface: of flash_library.h, block_resume.h, backward_library.h, block_add.h and small_work.h
 * what the backend of a GPU calls; cuda_share_forget (share.h), of ranks that are threads.
 */
#include <string.h>

#include "attention/backward/backward_library.h"
#include "attention/backward/cuda/block_add.h"
#include "attention/forward/cuda/block_resume.h"
#include "pretend_gpu.h"
#include "runtime/cuda/small_work.h"
#include "tensor.h"
#include "transports/cuda/share.h"

#define FEW_QUERIES 8

static int64_t count_q(const AttnShape *n)
{
    return n->B * n->Nq * n->H * n->d;
}

static int64_t count_kv(const AttnShape *n)
{
    return n->B * n->Nk * n->Hkv * n->d;
}

static int64_t count_rows(const AttnShape *n)
{
    return n->B * n->H * n->Nq;
}

static void uses_floats(PretendWork *work, const float *p, int64_t count, PretendUse how)
{
    pretend_uses(work, p, (size_t)count * sizeof *p, how);
}

/* Token by token where there are gaps between them, as in some heads of all. */
static void uses_tensor(PretendWork *work, const Tensor *t, PretendUse how)
{
    const size_t size = dtype_size(t->dtype);
    const int64_t row = t->shape[2] * t->shape[3];
    const int64_t run = t->stride[1] == row ? t->shape[1] : 1; /* tokens side by side */
    for (int64_t b = 0; t->data && b < t->shape[0]; b++)
        for (int64_t i = 0; i < t->shape[1]; i += run)
            pretend_uses(work, (char *)t->data + (size_t)tensor_offset(t, b, i, 0) * size,
                         (size_t)(run * row) * size, how);
}

/* A launch may look at the host's copies of the maps: they have to be there, and to be true. */
static void uses_map(PretendWork *work, AttnPositions map, const AttnSegment *segments)
{
    const size_t bytes = (size_t)map.count * sizeof *segments;
    if (!map.host || memcmp(map.host, map.segments, bytes) != 0)
        pretend_problem("the host's copy of a position map is not what the device has");
    pretend_uses(work, segments, bytes, PRETEND_READS);
}

static void reads_pair(PretendWork *work, const AttnArgs *a, const AttnSegment *positions_k)
{
    uses_tensor(work, &a->Q, PRETEND_READS);
    uses_tensor(work, &a->K, PRETEND_READS);
    uses_tensor(work, &a->V, PRETEND_READS);
    uses_map(work, a->positions_q, a->positions_q.segments);
    uses_map(work, a->positions_k, positions_k);
    if (a->mask)
        pretend_uses(work, a->mask, (size_t)(a->shape.Nq * a->shape.Nk), PRETEND_READS);
}

/* --- forward -----------------------------------------------------------------------------------*/

static int splits_keys(const AttnShape *n, AttnDtype dtype)
{
    return dtype != ATTN_F32 && n->Nq < FEW_QUERIES;
}

size_t flash_cuda_workspace_bytes(const AttnShape *shape, AttnDtype dtype)
{
    return splits_keys(shape, dtype) ? 2 * (size_t)count_q(shape) * sizeof(float) : 0;
}

AttnStatus flash_cuda_resume(const AttnArgs *a, float *O_state, FlashRows rows, void *workspace)
{
    const AttnShape *n = &a->shape;
    PretendWork work = {.name = "attention"};
    reads_pair(&work, a, a->positions_k.segments);
    uses_floats(&work, a->lse, count_rows(n), PRETEND_WRITES);
    uses_floats(&work, O_state, count_q(n), PRETEND_WRITES);
    uses_floats(&work, rows.m, count_rows(n), PRETEND_WRITES);
    uses_floats(&work, rows.l, count_rows(n), PRETEND_WRITES);
    if (!O_state)
        uses_tensor(&work, &a->O, PRETEND_WRITES);
    if (splits_keys(n, a->Q.dtype))
        pretend_uses(&work, workspace, flash_cuda_workspace_bytes(n, a->Q.dtype), PRETEND_WRITES);
    pretend_ask(&work, a->stream);
    return ATTN_OK;
}

AttnStatus flash_cuda_run(const AttnArgs *a, float *O_state, void *workspace)
{
    return flash_cuda_resume(a, O_state, (FlashRows){NULL, NULL, NULL}, workspace);
}

/* Token by token: the kernel's heads of a sequence stand side by side. */
AttnStatus flash_cuda_resume_heads(const AttnArgs *a, float *O_state, FlashRows rows,
                                   FlashHeads heads, int last)
{
    const AttnShape *n = &a->shape;
    const int64_t first = heads.first * n->Nq, count = heads.count * n->Nq;
    const PretendUse how = last ? PRETEND_READS : PRETEND_WRITES;
    if (a->Q.dtype == ATTN_F32 || splits_keys(n, a->Q.dtype))
        return ATTN_SKIP;
    if (heads.first < 0 || heads.count < 1 || heads.first + heads.count > n->B * n->H)
        return ATTN_CUDA_ERROR; /* CUDA refuses a grid of no blocks */
    PretendWork work = {.name = last ? "attention to the last keys" : "attention"};
    reads_pair(&work, a, a->positions_k.segments);
    uses_floats(&work, a->lse + first, count, PRETEND_WRITES);
    uses_floats(&work, rows.m ? rows.m + first : NULL, count, how);
    uses_floats(&work, rows.m ? rows.l + first : NULL, count, how);
    for (int64_t row = first; row < first + count; row++) {
        const int64_t b = row / (n->H * n->Nq), h = row / n->Nq % n->H, i = row % n->Nq;
        const size_t size = dtype_size(a->O.dtype);
        uses_floats(&work, O_state + ((b * n->Nq + i) * n->H + h) * n->d, n->d, how);
        if (last)
            pretend_uses(&work, (char *)a->O.data + (size_t)tensor_offset(&a->O, b, i, h) * size,
                         (size_t)n->d * size, PRETEND_WRITES);
    }
    pretend_ask(&work, a->stream);
    return ATTN_OK;
}

AttnStatus flash_cuda_rows_store(const AttnArgs *a, const float *O_state, FlashRows rows)
{
    PretendWork work = {.name = "the division by l"};
    uses_floats(&work, rows.l, count_rows(&a->shape), PRETEND_READS);
    uses_floats(&work, O_state, count_q(&a->shape), PRETEND_READS);
    uses_tensor(&work, &a->O, PRETEND_WRITES);
    pretend_ask(&work, a->stream);
    return ATTN_OK;
}

/* --- backward ----------------------------------------------------------------------------------*/

static size_t round_up(size_t bytes)
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

typedef struct Places { /* in the workspace */
    float *dQ, *lse, *delta;
    AttnSegment *table;
} Places;

static Places places_in(void *workspace, const AttnShape *n)
{
    char *rows = (char *)workspace + round_up((size_t)count_q(n) * sizeof(float));
    return (Places){workspace, (float *)rows, (float *)(rows + rows_bytes(n)),
                    (AttnSegment *)(rows + 2 * rows_bytes(n))};
}

AttnStatus flash_backward_delta_cuda(const AttnArgs *a, float *delta)
{
    PretendWork work = {.name = "delta"};
    uses_tensor(&work, &a->O, PRETEND_READS);
    uses_tensor(&work, &a->dO, PRETEND_READS);
    uses_floats(&work, delta, count_rows(&a->shape), PRETEND_WRITES);
    pretend_ask(&work, a->stream);
    return ATTN_OK;
}

/* For the keys of this block. */
static void ask_table(const AttnArgs *a, AttnSegment *table)
{
    PretendWork work = {.name = "the keys' table"};
    uses_map(&work, a->positions_k, a->positions_k.segments);
    pretend_uses(&work, table, flash_gradients_tables_bytes(&a->shape), PRETEND_WRITES);
    pretend_ask(&work, a->stream);
}

AttnStatus flash_backward_cuda_begin(const AttnArgs *a, const float *delta, void *workspace)
{
    const int64_t rows = count_rows(&a->shape);
    const Places to = places_in(workspace, &a->shape);
    PretendWork work = {.name = "the beginning of dQ"};
    if (a->Q.dtype == ATTN_F32)
        return ATTN_OK;
    uses_floats(&work, a->lse, rows, PRETEND_READS);
    uses_floats(&work, delta, rows, PRETEND_READS);
    uses_floats(&work, to.lse, rows, PRETEND_WRITES);
    uses_floats(&work, to.delta, rows, PRETEND_WRITES);
    uses_floats(&work, to.dQ, count_q(&a->shape), PRETEND_WRITES);
    pretend_ask(&work, a->stream);
    ask_table(a, to.table);
    return ATTN_OK;
}

/* from: the rows and the table that are read, and the dQ to which is added. */
static AttnStatus ask_add(const char *name, const AttnArgs *a, Places from, FlashSums sums,
                          PretendUse how_dQ)
{
    const AttnShape *n = &a->shape;
    PretendWork work = {.name = name};
    reads_pair(&work, a, from.table);
    uses_tensor(&work, &a->dO, PRETEND_READS);
    uses_floats(&work, from.lse, count_rows(n), PRETEND_READS);
    uses_floats(&work, from.delta, count_rows(n), PRETEND_READS);
    uses_floats(&work, from.dQ, count_q(n), how_dQ);
    uses_floats(&work, sums.dK, count_kv(n), PRETEND_WRITES);
    uses_floats(&work, sums.dV, count_kv(n), PRETEND_WRITES);
    pretend_ask(&work, a->stream);
    return ATTN_OK;
}

AttnStatus flash_gradients_add(const AttnArgs *a, const float *delta, FlashSums sums,
                               void *workspace, FlashKeysOptions keys)
{
    Places from = places_in(workspace, &a->shape);
    (void)delta;
    if (a->Q.dtype == ATTN_F32 || (keys.tables_dev && flash_backward_deterministic()))
        return ATTN_SKIP;
    from.table = keys.tables_dev ? keys.tables_dev : from.table;
    ask_table(a, from.table);
    return ask_add("gradients", a, from, sums, PRETEND_ADDS);
}

AttnStatus flash_backward_cuda_add(const AttnArgs *a, const float *delta, FlashSums sums,
                                   void *workspace)
{
    const Places from = {sums.dQ, a->lse, (float *)delta, (AttnSegment *)a->positions_k.segments};
    return a->Q.dtype == ATTN_F32
               ? ask_add("gradients of float32", a, from, sums, PRETEND_WRITES)
               : flash_gradients_add(a, delta, sums, workspace, (FlashKeysOptions){NULL, 0});
}

AttnStatus flash_backward_cuda_end(const AttnArgs *a, FlashSums sums, void *workspace)
{
    PretendWork work = {.name = "the end of dQ"};
    if (a->Q.dtype == ATTN_F32)
        return ATTN_OK;
    uses_floats(&work, places_in(workspace, &a->shape).dQ, count_q(&a->shape), PRETEND_READS);
    uses_floats(&work, sums.dQ, count_q(&a->shape), PRETEND_WRITES);
    if (!sums.dQ)
        uses_tensor(&work, &a->dQ, PRETEND_WRITES);
    pretend_ask(&work, a->stream);
    return ATTN_OK;
}

/* The whole pass: the local baseline's. */
AttnStatus flash_backward_cuda_run(const AttnArgs *a, const float *delta, FlashSums sums,
                                   void *workspace)
{
    PretendWork work = {.name = "all gradients"};
    (void)delta;
    if (sums.dQ)
        return ATTN_SKIP;
    reads_pair(&work, a, a->positions_k.segments);
    uses_tensor(&work, &a->O, PRETEND_READS);
    uses_tensor(&work, &a->dO, PRETEND_READS);
    uses_floats(&work, a->lse, count_rows(&a->shape), PRETEND_READS);
    uses_tensor(&work, &a->dQ, PRETEND_WRITES);
    uses_tensor(&work, &a->dK, PRETEND_WRITES);
    uses_tensor(&work, &a->dV, PRETEND_WRITES);
    pretend_uses(&work, workspace, flash_backward_cuda_workspace_bytes(&a->shape, a->Q.dtype),
                 PRETEND_WRITES);
    pretend_ask(&work, a->stream);
    return ATTN_OK;
}

/* --- small work between the kernels ------------------------------------------------------------*/

static AttnStatus ask(const char *name, const void *to, size_t to_bytes, const void *from,
                      size_t from_bytes, cudaStream_t stream)
{
    PretendWork work = {.name = name};
    pretend_uses(&work, from, from_bytes, PRETEND_READS);
    pretend_uses(&work, to, to_bytes, PRETEND_WRITES);
    pretend_ask(&work, stream);
    return ATTN_OK;
}

AttnStatus launch_empty_rows(float *lse, int64_t count, cudaStream_t stream)
{
    return ask("empty rows", lse, (size_t)count * sizeof *lse, NULL, 0, stream);
}

AttnStatus launch_cast(void *to, AttnDtype dtype, const float *from, int64_t count,
                       cudaStream_t stream)
{
    return ask("a cast", to, (size_t)count * dtype_size(dtype), from, (size_t)count * sizeof *from,
               stream);
}

AttnStatus launch_narrow(void *p, int64_t count, AttnDtype dtype, cudaStream_t stream)
{
    const size_t bytes = (size_t)count * sizeof(float);
    return dtype == ATTN_F32 ? ATTN_OK : ask("narrowing", p, bytes, p, bytes, stream);
}

AttnStatus launch_widen(void *p, int64_t count, AttnDtype dtype, cudaStream_t stream)
{
    const size_t bytes = (size_t)count * sizeof(float);
    return dtype == ATTN_F32 ? ATTN_OK : ask("widening", p, bytes, p, bytes, stream);
}

AttnStatus launch_add(float *to, const float *from, int64_t count, cudaStream_t stream)
{
    const size_t bytes = (size_t)count * sizeof *to;
    return ask("a sum", to, bytes, from, bytes, stream);
}

void cuda_share_forget(RingRank *r) /* nothing is shared */
{
    (void)r;
}
