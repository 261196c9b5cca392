/* SPDX-License-Identifier: MIT
 *
 * collect.c: shards out of whole tensors, and whole tensors out of shards.
 *
 * A shard is a list of runs: local token first + t is row global + t * stride of the whole tensor.
 * Reading walks the list in one direction, collecting in the other, and no line here knows whether
 * the layout is contiguous, zigzag or striped, or how many sequences there are.
 *
 * Results go to rank 0 by host messages, one rank after the other, so that rank 0 needs room for
 * one shard beside its own. This is not what the stage measures.
 *
 *     zigzag, 16 tokens, rank 1 of 4: tokens 2 3 12 13, dealt out for two halves of equal work:
 *
 *     local     0        1         2        3
 *     global    2        12        3        13           four runs of one token each
 *
 * Interface: collect.h; ring_rank_tell, ring_report_gather, ring_report_free (ring_world.h).
 */
#include "collect.h"

#include <stdlib.h>
#include <string.h>

#include "tensor.h"

/* --- tokens ------------------------------------------------------------------------------------*/

/* Rows of `whole` and of packed [B][tokens][heads][d] that belong to local tokens first .. of the
 * shard: packed = whole, or with `back` whole = packed. Head by head, since the whole tensor may
 * have any strides; a run of d elements is contiguous in both. */
static void move_tokens(const Tensor *whole, const RingShard *shard, int64_t first, int64_t tokens,
                        char *packed, int back)
{
    const int64_t heads = whole->shape[2];
    const size_t size = dtype_size(whole->dtype), row = (size_t)whole->shape[3] * size;
    for (int64_t b = 0; b < whole->shape[0]; b++)
        for (int64_t c = 0; c < shard->count; c++)
            for (int64_t t = 0; t < shard->pieces[c].length; t++) {
                const RingPiece *piece = &shard->pieces[c];
                const int64_t local = piece->first + t - first;
                const int64_t global = piece->global + t * piece->stride;
                for (int64_t h = 0; local >= 0 && local < tokens && h < heads; h++) {
                    char *there =
                        (char *)whole->data + (size_t)tensor_offset(whole, b, global, h) * size;
                    char *here = packed + (size_t)((b * tokens + local) * heads + h) * row;
                    memcpy(back ? there : here, back ? here : there, row);
                }
            }
}

/* Of so many tokens of this tensor, without gaps. */
static size_t packed_bytes(const Tensor *whole, int64_t tokens)
{
    return (size_t)(whole->shape[0] * tokens * whole->shape[2] * whole->shape[3]) *
           dtype_size(whole->dtype);
}

/* Host memory between the whole tensor and a rank's own, which may be a GPU's. Not counted by
 * ring_alloc: it is gone before a pass begins. */
static void *staging(RingRank *r, size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        ring_fail(r, "out of memory for a shard on its way");
    return p;
}

int ring_shard_read(RingRank *r, void *to, const Tensor *from, const RingShard *shard)
{
    const size_t bytes = packed_bytes(from, shard->tokens);
    void *packed = staging(r, bytes);
    int status = -1;
    if (packed) {
        move_tokens(from, shard, 0, shard->tokens, packed, 0);
        status = bytes ? r->space->upload(r, to, packed, bytes) : 0;
    }
    free(packed);
    return status;
}

/* --- results to rank 0 -------------------------------------------------------------------------*/

/* Where a rank's result lies: as one tensor, or as two halves. */
typedef struct Result {
    const Tensor *whole; /* on rank 0 */
    const RingShard *shards;
    const char *mine;
    int halves;
    size_t skip; /* byte of `mine` at which half 1 begins */
} Result;

/* This rank's result, packed; halves one behind the other. */
static int download(RingRank *r, const Result *result, char *packed)
{
    const int64_t tokens = result->shards[r->rank].tokens;
    const int64_t split = result->halves ? tokens / 2 : tokens;
    const size_t first = packed_bytes(result->whole, split);
    const size_t second = packed_bytes(result->whole, tokens - split);
    if (first && r->space->download(r, packed, result->mine, first) != 0)
        return -1;
    return second ? r->space->download(r, packed + first, result->mine + result->skip, second) : 0;
}

/* Each half is packed for itself, [B][tokens of the half][heads][d]: with a batch of two the first
 * half of batch 1 does not stand behind the first half of batch 0. */
static void place(const Result *result, int rank, char *packed)
{
    const RingShard *shard = &result->shards[rank];
    const int64_t split = result->halves ? shard->tokens / 2 : shard->tokens;
    move_tokens(result->whole, shard, 0, split, packed, 1);
    move_tokens(result->whole, shard, split, shard->tokens - split,
                packed + packed_bytes(result->whole, split), 1);
}

/* The same few lines are the sender's and the receiver's side. Rank 0 asks one rank after the other
 * and each sends once, so the blocking host messages meet in pairs and cannot form a circle. */
static int collect_one(RingRank *r, const Result *result, int rank)
{
    const size_t bytes = packed_bytes(result->whole, result->shards[rank].tokens);
    char *packed = staging(r, bytes);
    int status = -1;
    if (packed && rank == r->rank)
        status = download(r, result, packed);
    else if (packed)
        status = r->transport->host_receive(r, rank, packed, bytes);
    if (status == 0 && r->rank != 0)
        status = r->transport->host_send(r, 0, packed, bytes);
    else if (status == 0 && result->whole->data)
        place(result, rank, packed);
    free(packed);
    return status;
}

/* whole: of every rank's args, but only rank 0 writes to it. Called by all ranks at the same point,
 * with the same tensor: rank 0 collects, the others send. */
static int collect(RingRank *r, const Tensor *whole, const RingShard *shards, const void *mine,
                   int halves, size_t skip)
{
    const Result result = {whole, shards, mine, halves, skip};
    if (r->rank != 0)
        return collect_one(r, &result, r->rank);
    for (int rank = 0; rank < r->world; rank++)
        if (collect_one(r, &result, rank) != 0)
            return -1;
    return 0;
}

/* lse [B][H][Nq] is, token for token, a tensor [B][Nq][H][1] with other strides. A rank's own has
 * the same order [B][H][nq] and is turned when it is there. */
static int collect_lse(RingRank *r, const AttnArgs *args)
{
    const AttnShape *n = &args->shape;
    const int64_t heads = n->B * n->H;
    for (int rank = r->rank; rank < (r->rank == 0 ? r->world : r->rank + 1); rank++) {
        const RingShard *shard = &r->plan->q[rank];
        const size_t bytes = (size_t)(heads * shard->tokens) * sizeof(float);
        float *rows = staging(r, bytes);
        int status = -1;
        if (rows && rank == r->rank)
            status = bytes ? r->space->download(r, rows, r->lse, bytes) : 0;
        else if (rows)
            status = r->transport->host_receive(r, rank, rows, bytes);
        if (status == 0 && r->rank != 0)
            status = r->transport->host_send(r, 0, rows, bytes);
        for (int64_t c = 0; status == 0 && r->rank == 0 && args->lse && c < shard->count; c++) {
            const RingPiece *piece = &shard->pieces[c];
            for (int64_t h = 0; h < heads; h++)
                for (int64_t t = 0; t < piece->length; t++)
                    args->lse[h * n->Nq + piece->global + t * piece->stride] =
                        rows[h * shard->tokens + piece->first + t];
        }
        free(rows);
        if (status != 0)
            return -1;
    }
    return 0;
}

/* The whole tensor's shape follows from the plan, since only rank 0 is sure to have one. A rank
 * other than 0 has no output, and needs its shape all the same: it decides how much it sends. */
static Tensor whole_of(const RingRank *r, const Tensor *given, int64_t tokens, int64_t heads)
{
    Tensor whole = *given;
    const AttnShape *n = &r->plan->shape;
    whole.dtype = r->plan->dtype;
    whole.shape[0] = n->B;
    whole.shape[1] = tokens;
    whole.shape[2] = heads;
    whole.shape[3] = n->d;
    return whole;
}

int ring_collect_forward(RingRank *r, const RingJob *job)
{
    const AttnShape *n = &r->plan->shape;
    const Tensor O = whole_of(r, &job->args->O, n->Nq, n->H);
    if (collect(r, &O, r->plan->q, r->O, 0, 0) != 0)
        return -1;
    return collect_lse(r, job->args);
}

int ring_collect_backward(RingRank *r, const RingJob *job)
{
    const AttnShape *n = &r->plan->shape;
    const Tensor dQ = whole_of(r, &job->args->dQ, n->Nq, n->H);
    const Tensor dK = whole_of(r, &job->args->dK, n->Nk, n->Hkv);
    const Tensor dV = whole_of(r, &job->args->dV, n->Nk, n->Hkv);
    if (collect(r, &dQ, r->plan->q, r->dQ, !r->dQ_whole, r->dQ_second) != 0 ||
        collect(r, &dK, r->plan->k, r->dK, !r->dKV_whole, r->dKV_second) != 0)
        return -1;
    return collect(r, &dV, r->plan->k, r->dV, !r->dKV_whole, r->dKV_second);
}

/* The slowest rank's time is the time of the run: a result is there when its last part is. */
int ring_collect_times(RingRank *r, double *ms, int count)
{
    const size_t bytes = (size_t)count * sizeof *ms;
    double *others;
    int status = 0;
    if (r->rank != 0)
        return r->transport->host_send(r, 0, ms, bytes);
    others = staging(r, bytes);
    for (int rank = 1; others && status == 0 && rank < r->world; rank++) {
        status = r->transport->host_receive(r, rank, others, bytes);
        for (int i = 0; status == 0 && i < count; i++)
            ms[i] = others[i] > ms[i] ? others[i] : ms[i];
    }
    free(others);
    return others ? status : -1;
}
