/* SPDX-License-Identifier: MIT
 *
 * collect.c: shards out of whole tensors, and whole tensors out of shards.
 *
 * A shard is a list of runs: local token first + t is row global + t * stride of the whole tensor.
 * Reading walks the list in one direction, collecting in the other, and no line here knows whether
 * the layout is contiguous, zigzag or striped, or how many sequences there are.
 *
 * Results go to rank 0 by host messages, one rank after the other. This is not what the stage
 * measures. But a shard of a million tokens has gigabytes, and a program that gathers it whole
 * spends most of its time on memory that it touches for the first time. So shards go in chunks,
 * through one buffer that stays in the cache, and the threads of the rank share the tokens of a
 * chunk.
 *
 *     zigzag, 16 tokens, rank 1 of 4: tokens 2 3 12 13
 *
 *     local     0 1      2  3
 *     global    2 3      12 13           two runs of two tokens each
 *
 * Interface: ring_shard_read, ring_collect_forward, ring_collect_backward, ring_collect_times
 * (ring_world.h).
 */

#include "runtime/ring_world.h"

#include <stdlib.h>
#include <string.h>

#include "tensor.h"

#define CHUNK ((size_t)8 << 20)
#define WORTH ((size_t)4 << 20) /* bytes that threads are started for */

/* --- tokens ------------------------------------------------------------------------------------*/

/* `tokens` local tokens of a shard from `first` on, [B][tokens][heads][d] without gaps: all of it,
 * or a quarter. Numbering its B * tokens places through says where chunks begin. */
typedef struct Packed {
    const Tensor *whole;
    const RingShard *shard;
    int64_t first, tokens;
} Packed;

static int64_t places_of(const Packed *p)
{
    return p->whole->shape[0] * p->tokens;
}

/* Of one token with all its heads. */
static size_t place_bytes(const Packed *p)
{
    return (size_t)(p->whole->shape[2] * p->whole->shape[3]) * dtype_size(p->whole->dtype);
}

/* Row of the whole tensor: the run is the last one that does not begin behind the token. */
static int64_t global_of(const RingShard *shard, int64_t local)
{
    int64_t low = 0, high = shard->count - 1;
    while (low < high) {
        const int64_t mid = (low + high + 1) / 2;
        if (shard->pieces[mid].first <= local)
            low = mid;
        else
            high = mid - 1;
    }
    return shard->pieces[low].global +
           (local - shard->pieces[low].first) * shard->pieces[low].stride;
}

/* The place's heads: one copy where they lie together in the whole tensor, too, or head by head,
 * since it may have any strides; a run of d elements is contiguous in both. */
static void move_place(const Packed *p, int64_t place, char *packed, int back)
{
    const Tensor *whole = p->whole;
    const int64_t together = whole->stride[2] == whole->shape[3] ? whole->shape[2] : 1;
    const size_t size = dtype_size(whole->dtype);
    const size_t bytes = (size_t)(together * whole->shape[3]) * size;
    const int64_t global = global_of(p->shard, p->first + place % p->tokens);
    for (int64_t h = 0; h < whole->shape[2]; h += together, packed += bytes) {
        const int64_t at = tensor_offset(whole, place / p->tokens, global, h);
        char *there = (char *)whole->data + (size_t)at * size;
        memcpy(back ? there : packed, back ? packed : there, bytes);
    }
}

/* packed = these places of the whole tensor, or with `back` the other way round. */
static void move_places(const Packed *p, int64_t first, int64_t count, char *packed, int back,
                        int threads)
{
    const size_t bytes = place_bytes(p);
    (void)threads; /* without OpenMP */
#pragma omp parallel for schedule(static)                                                          \
    num_threads(threads) if (threads > 1 && (size_t)count * bytes >= WORTH)
    for (int64_t n = 0; n < count; n++)
        move_place(p, first + n, packed + (size_t)n * bytes, back);
}

/* At least one place. */
static int64_t chunk_places(const Packed *p)
{
    const size_t bytes = place_bytes(p);
    return bytes < CHUNK ? (int64_t)(CHUNK / bytes) : 1;
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

/* For the chunks of one shard: as much as the largest of them needs. */
static char *chunk_room(RingRank *r, const Packed *p)
{
    const int64_t all = places_of(p), most = chunk_places(p);
    return staging(r, (size_t)(all < most ? all : most) * place_bytes(p));
}

int ring_shard_read(RingRank *r, void *to, const Tensor *from, const RingShard *shard)
{
    const Packed whole = {from, shard, 0, shard->tokens};
    const int64_t all = places_of(&whole), most = chunk_places(&whole);
    const size_t bytes = place_bytes(&whole);
    char *packed = chunk_room(r, &whole);
    int status = packed ? 0 : -1;
    for (int64_t first = 0; first < all && status == 0; first += most) {
        const int64_t count = all - first < most ? all - first : most;
        move_places(&whole, first, count, packed, 0, r->threads);
        status = r->backend->upload(r, (char *)to + (size_t)first * bytes, packed,
                                    (size_t)count * bytes);
    }
    free(packed);
    return status;
}

/* --- results to rank 0 -------------------------------------------------------------------------*/

/* The same few lines are the sender's and the receiver's side. Rank 0 asks one rank after the other
 * and each sends chunk by chunk, so the blocking host messages meet in pairs and cannot form a
 * circle. mine: where the part of this rank lies. */
static int collect_part(RingRank *r, const Packed *p, const char *mine, int rank)
{
    const int64_t all = places_of(p), most = chunk_places(p);
    const size_t bytes = place_bytes(p);
    char *packed = chunk_room(r, p);
    int status = packed ? 0 : -1;
    for (int64_t first = 0; first < all && status == 0; first += most) {
        const int64_t count = all - first < most ? all - first : most;
        const size_t from = (size_t)first * bytes, length = (size_t)count * bytes;
        status = rank == r->rank ? r->backend->download(r, packed, mine + from, length)
                                 : ring_host_receive(r, rank, packed, length);
        if (status == 0 && r->rank != 0)
            status = ring_host_send(r, 0, packed, length);
        else if (status == 0 && p->whole->data)
            move_places(p, first, count, packed, 1, r->threads);
    }
    free(packed);
    return status;
}

/* whole: of every rank's args, but only rank 0 writes to it. Called by all ranks at the same point,
 * with the same tensor: rank 0 collects, the others send. A result may be two halves, of which the
 * second begins at byte `second`: with a batch of two a quarter of batch 1 stands behind the same
 * quarter of batch 0. */
static int collect(RingRank *r, const Tensor *whole, const RingShard *shards, const void *mine,
                   int halves, size_t second)
{
    const int end = r->rank ? r->rank + 1 : r->world, parts = halves ? RING_QUARTERS : 1;
    for (int rank = r->rank; rank < end; rank++)
        for (int part = 0; part < parts; part++) {
            const RingShard *shard = &shards[rank];
            const int64_t first = shard->cut[part];
            const Packed p = {whole, shard, first,
                              (halves ? shard->cut[part + 1] : shard->tokens) - first};
            const int64_t place = whole->shape[0] * ring_quarter_place(shard, part);
            const size_t skip = (size_t)place * place_bytes(&p);
            const char *from = (const char *)mine + (part % 2 ? second : 0) + skip;
            if (collect_part(r, &p, from, rank) != 0)
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

int ring_collect_forward(RingRank *r, const RingTask *task)
{
    const AttnShape *n = &r->plan->shape;
    const Tensor O = whole_of(r, &task->args->O, n->Nq, n->H);
    /* [B][H][Nq], here and there: a tensor of one channel and as many batches */
    const Tensor lse = {task->args->lse, ATTN_F32, {n->B * n->H, n->Nq, 1, 1}, {n->Nq, 1, 1, 1}};
    if (collect(r, &O, r->plan->q, r->O, 0, 0) != 0)
        return -1;
    return collect(r, &lse, r->plan->q, r->lse, 0, 0);
}

int ring_collect_backward(RingRank *r, const RingTask *task)
{
    const AttnShape *n = &r->plan->shape;
    const Tensor dQ = whole_of(r, &task->args->dQ, n->Nq, n->H);
    const Tensor dK = whole_of(r, &task->args->dK, n->Nk, n->Hkv);
    const Tensor dV = whole_of(r, &task->args->dV, n->Nk, n->Hkv);
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
        return ring_host_send(r, 0, ms, bytes);
    others = staging(r, bytes);
    for (int rank = 1; others && status == 0 && rank < r->world; rank++) {
        status = ring_host_receive(r, rank, others, bytes);
        for (int i = 0; status == 0 && i < count; i++)
            ms[i] = others[i] > ms[i] ? others[i] : ms[i];
    }
    free(others);
    return others ? status : -1;
}
