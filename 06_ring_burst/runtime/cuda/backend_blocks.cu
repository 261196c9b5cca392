/* SPDX-License-Identifier: MIT
 *
 * backend_blocks.cu: the block kernels of stages 03 and 04 on a rank's queue.
 *
 * dQ of a rank that keeps its queries (ring) grows over all steps. What the backward kernel does
 * around each block of keys, reading dO and O first and adding dQ to its sums last, is memory
 * traffic that need not be repeated: the kernel's own dQ stays in the workspace until somebody asks
 * for it, which shows when a function here is about to touch that memory (cuda_backend_settle).
 *
 *     without   begin add end   begin add end   begin add end    for each remote block
 *     with      begin add       add             add       end    dO, O read once, dQ added once
 *
 * Everything here is asked for in order and done later: these functions return when a kernel stands
 * in the queue. If a kernel fails, that shows where the queue is looked at (backend_streams.cu).
 *
 * Interface: of RingBackend (ring_world.h) attend, differentiate, alone; cuda_backend_settle
 * (backend_cuda.h); cuda_backend_reserve, cuda_backend_settle_all, cuda_backend_whole
 * (backend_internal.h).
 */
#include <stdlib.h>
#include <string.h>

#include "attention/backward/backward_library.h"
#include "attention/backward/cuda/block_add.h"
#include "attn_pairs.h"
#include "runtime/cuda/backend_internal.h"
#include "tensor.h"

/* The same map on the device. There are few of them, each used in every round. How many are "few"?
 * A map for each pair of shards or quarters that meet, the same in every round. */
static int device_map(RingRank *r, AttnPositions *map)
{
    CudaBackend *s = cuda_backend_of(r);
    const size_t bytes = (size_t)map->count * sizeof *map->segments;
    DeviceMap *m;
    for (int k = 0; k < s->map_count; k++)
        if (s->maps[k].count == map->count && memcmp(s->maps[k].host, map->segments, bytes) == 0) {
            map->segments = s->maps[k].dev;
            map->host = s->maps[k].host;
            return 0;
        }
    if (ring_grow(r, &s->maps, s->map_count, &s->map_room, sizeof *s->maps, "maps") != 0)
        return -1;
    m = &s->maps[s->map_count];
    memset(m, 0, sizeof *m);
    m->count = map->count;
    m->host = (AttnSegment *)malloc(bytes);
    if (!m->host || cudaMalloc((void **)&m->dev, bytes) != cudaSuccess) {
        free(m->host);
        return ring_fail(r, "out of memory for a position map");
    }
    s->map_count++;
    memcpy(m->host, map->segments, bytes);
    map->segments = m->dev;
    map->host = m->host;
    return cuda_backend_upload(r, m->dev, m->host, bytes);
}

/* Device memory of at least `bytes` that only this queue uses. */
static int grow(RingRank *r, void **p_dev, size_t *have, size_t bytes)
{
    if (bytes <= *have)
        return 0;
    if (cuda_backend_drain(r, 1) != 0)
        return -1;
    (void)cudaFree(*p_dev);
    *p_dev = NULL;
    *have = 0;
    if (cudaMalloc(p_dev, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return ring_fail(r, "out of GPU memory for %zu bytes of workspace", bytes);
    }
    *have = bytes;
    return 0;
}

/* Maps and mask of a pair of blocks. What is no data but a description has to get to the
 * device as well: the kernel cannot read the host's memory. The maps are there after the first
 * round; only a full mask travels every time. */
static int bring(RingRank *r, AttnArgs *a)
{
    CudaBackend *s = cuda_backend_of(r);
    const size_t mask_bytes = (size_t)(a->shape.Nq * a->shape.Nk);
    if (device_map(r, &a->positions_q) != 0 || device_map(r, &a->positions_k) != 0)
        return -1;
    if (!a->mask)
        return 0;
    if (grow(r, (void **)&s->mask_dev, &s->mask_bytes, mask_bytes) != 0 ||
        cuda_backend_upload(r, s->mask_dev, a->mask, mask_bytes) != 0)
        return -1;
    a->mask = s->mask_dev;
    return 0;
}

/* Reported beside the counted memory: it belongs to the kernels, not to the method. */
static int reserve_workspace(RingRank *r, size_t bytes)
{
    CudaBackend *s = cuda_backend_of(r);
    if (grow(r, &s->workspace_dev, &s->workspace_bytes, bytes) != 0)
        return -1;
    r->workspace_bytes = s->workspace_bytes + s->tables_bytes + s->mask_bytes;
    return 0;
}

/* What the largest pair of blocks needs, before the first round: cudaMalloc in the middle of a pass
 * may wait for messages. */
int cuda_backend_reserve(RingRank *r)
{
    const RingPlan *plan = r->plan;
    AttnShape n = plan->shape;
    if (plan->setup.method == RING_METHOD_ULYSSES) {
        n.H = n.H / r->world;
        n.Hkv = n.Hkv > r->world ? n.Hkv / r->world : 1;
    } else {
        n.Nq = ring_max_nq(r);
        n.Nk = ring_max_nk(r);
    }
    const size_t forward = flash_cuda_workspace_bytes(&n, plan->dtype);
    const size_t backward =
        plan->backward ? flash_backward_cuda_workspace_bytes(&n, plan->dtype) : 0;
    CudaBackend *s = cuda_backend_of(r);
    if (plan->backward && !s->one_stream &&
        grow(r, &s->tables_dev, &s->tables_bytes, flash_gradients_tables_bytes(&n)) != 0)
        return -1;
    return reserve_workspace(r, forward > backward ? forward : backward);
}

/* Heads have nothing in common, so each stream gets half of them: while the last blocks of one half
 * leave multiprocessors idle, the other half works there, of this step or of the next one
 * (backend_streams.cu). The bits are the same. last: as in flash_cuda_resume_heads, and ATTN_SKIP
 * likewise. */
static AttnStatus attend_in_streams(RingRank *r, AttnArgs *a, float *O_state, FlashRows rows,
                                    int last)
{
    CudaBackend *s = cuda_backend_of(r);
    const int heads = (int)(a->shape.B * a->shape.H), stream = s->stream;
    const int streams =
        stream == RING_BOTH_STREAMS && !s->one_stream && heads > 1 ? RING_STREAMS : 1;
    AttnStatus status = ATTN_OK;
    for (int n = 0; n < streams && status == ATTN_OK; n++) {
        const int first = heads * n / streams, end = heads * (n + 1) / streams;
        if (streams > 1)
            cuda_backend_select_half(r, n, heads);
        a->stream = cuda_backend_work(r);
        status = flash_cuda_resume_heads(a, O_state, rows, {first, end - first}, last);
    }
    if (streams > 1)
        cuda_backend_select_half(r, stream, heads);
    return status;
}

/* Merge and attention are one kernel: it loads O, m and l where an ordinary one starts from 0, -inf
 * and 0, and stores float32, or with the last keys O as it is to be. A merge of its own would read
 * and write all of O once more for each remote block. */
int cuda_backend_attend(RingRank *r, const AttnArgs *args, float *O_state, FlashRows rows)
{
    CudaBackend *s = cuda_backend_of(r);
    AttnArgs a = *args;
    const size_t row_bytes = (size_t)(a.shape.B * a.shape.H * a.shape.Nq) * sizeof *rows.l;
    const int rounded = ring_size(r->partials) < sizeof *O_state;
    int first;
    s->finished = NULL;
    if (cuda_backend_settle_all(r) != 0 ||
        reserve_workspace(r, flash_cuda_workspace_bytes(&a.shape, a.Q.dtype)) != 0 ||
        bring(r, &a) != 0 ||
        cuda_backend_begin_O(r, O_state, &a.shape, a.O.data || (rows.m && !rounded), &first) != 0 ||
        cuda_backend_touch(r, rows.l, row_bytes) != 0)
        return -1;
    AttnStatus status;
    if (a.O.data && first) { /* the first keys are the last ones, too: a pass without a state */
        a.stream = cuda_backend_work(r);
        status = flash_cuda_run(&a, NULL, s->workspace_dev);
    } else {
        status = attend_in_streams(r, &a, O_state, rows, a.O.data != NULL);
    }
    if (a.O.data && status != ATTN_SKIP)
        s->finished = a.O.data;
    if (status == ATTN_SKIP) {
        a.stream = cuda_backend_work(r);
        status = flash_cuda_resume(&a, O_state, rows, s->workspace_dev);
    }
    return cuda_backend_answer(r, status, "attention");
}

/* The gradients of these queries have been begun and not ended. */
static int same_queries(const CudaBackend *s, const AttnArgs *a, const float *delta, FlashSums sums)
{
    const AttnArgs *b = &s->begun;
    return s->sums.dQ && s->sums.dQ == sums.dQ && s->delta == delta && b->lse == a->lse &&
           b->Q.data == a->Q.data && b->dO.data == a->dO.data && b->shape.Nq == a->shape.Nq &&
           b->positions_q.segments == a->positions_q.segments;
}

/* dQ from the workspace to its sums. */
int cuda_backend_settle_all(RingRank *r)
{
    CudaBackend *s = cuda_backend_of(r);
    const FlashSums sums = s->sums;
    const AttnShape *n = &s->begun.shape;
    const int stream = s->stream;
    AttnArgs a = s->begun;
    s->sums.dQ = NULL;
    if (!sums.dQ)
        return 0;
    cuda_backend_stream(r, RING_BOTH_STREAMS);
    if (cuda_backend_touch(r, sums.dQ, (size_t)(n->B * n->Nq * n->H * n->d) * sizeof(float)) != 0)
        return -1;
    a.stream = cuda_backend_work(r);
    const int status =
        cuda_backend_answer(r, flash_backward_cuda_end(&a, sums, s->workspace_dev), "dQ");
    cuda_backend_stream(r, stream);
    return status;
}

/* Do the two stretches of memory touch? */
int cuda_backend_settle(RingRank *r, const void *p, size_t bytes)
{
    const CudaBackend *s = cuda_backend_of(r);
    const AttnShape *n = &s->begun.shape;
    const char *dQ = (const char *)s->sums.dQ, *from = (const char *)p;
    const size_t dQ_bytes = (size_t)(n->B * n->Nq * n->H * n->d) * sizeof(float);
    if (cuda_backend_touch(r, p, bytes) != 0)
        return -1;
    if (!dQ || from + bytes <= dQ || dQ + dQ_bytes <= from)
        return 0;
    return cuda_backend_settle_all(r);
}

/* The workspace has room for dQ of these queries until the last remote block has been seen. */
static int begin_gradients(RingRank *r, AttnArgs *a, const float *delta, FlashSums sums)
{
    CudaBackend *s = cuda_backend_of(r);
    AttnShape largest = a->shape;
    const int stream = s->stream;
    cuda_backend_stream(r, RING_BOTH_STREAMS); /* both add to what is prepared here */
    if (ring_max_nk(r) > largest.Nk)
        largest.Nk = ring_max_nk(r);
    if (cuda_backend_settle_all(r) != 0 ||
        reserve_workspace(r, flash_backward_cuda_workspace_bytes(&largest, a->Q.dtype)) != 0)
        return -1;
    s->begun = *a;
    s->delta = delta;
    s->sums = sums;
    a->stream = cuda_backend_work(r);
    const int status =
        cuda_backend_answer(r, flash_backward_cuda_begin(a, delta, s->workspace_dev), "gradients");
    cuda_backend_stream(r, stream);
    return status;
}

/* dK and dV of these keys are the zeros that they were made of: nobody has to write or read
 * those. */
static int fresh_keys(CudaBackend *s, FlashSums sums, size_t bytes)
{
    if (!cuda_backend_is_zero(s, sums.dK, bytes) || !cuda_backend_is_zero(s, sums.dV, bytes))
        return 0;
    cuda_backend_forget_zeros(s, sums.dK, bytes);
    cuda_backend_forget_zeros(s, sums.dV, bytes);
    return 1;
}

static AttnStatus add_gradients(CudaBackend *s, const AttnArgs *a, const float *delta,
                                FlashSums sums, int fresh)
{
    const FlashKeysOptions keys = {s->stream == 1 ? s->tables_dev : NULL, fresh};
    return a->Q.dtype == ATTN_F32 ? flash_backward_cuda_add(a, delta, sums, s->workspace_dev)
                                  : flash_gradients_add(a, delta, sums, s->workspace_dev, keys);
}

/* The caller believes that dQ is in sums.dQ after this. It is, as soon as anybody looks. */
int cuda_backend_differentiate(RingRank *r, const AttnArgs *args, const float *delta,
                               FlashSums sums)
{
    CudaBackend *s = cuda_backend_of(r);
    AttnArgs a = *args;
    const size_t keys = (size_t)(a.shape.B * a.shape.Nk * a.shape.Hkv * a.shape.d) * sizeof(float);
    const size_t queries = (size_t)(a.shape.B * a.shape.Nq * a.shape.H * a.shape.d) * sizeof(float);
    const int f32 = a.Q.dtype == ATTN_F32, fresh = !f32 && fresh_keys(s, sums, keys);
    if (bring(r, &a) != 0 || cuda_backend_touch(r, sums.dK, keys) != 0 ||
        cuda_backend_touch(r, sums.dV, keys) != 0 ||
        (f32 && cuda_backend_touch(r, sums.dQ, queries) != 0))
        return -1;
    if (!same_queries(s, &a, delta, sums) && begin_gradients(r, &a, delta, sums) != 0)
        return -1;
    a.stream = cuda_backend_work(r);
    return cuda_backend_answer(r, add_gradients(s, &a, delta, sums, fresh), "gradients");
}

/* [B][tokens][heads][d], contiguous */
Tensor cuda_backend_whole(const RingRank *r, void *data, int64_t tokens, int64_t heads)
{
    const AttnShape *n = &r->plan->shape;
    const int64_t row = heads * n->d;
    Tensor t = {data, r->plan->dtype, {n->B, tokens, heads, n->d}, {tokens * row, row, n->d, 1}};
    return t;
}

/* No peers, no mask, no state: the most that this GPU does for these sizes. The ring is measured as
 * a share of it. */
int cuda_backend_baseline(RingRank *r, RingPass pass)
{
    const AttnShape *n = &r->plan->shape;
    const AttnSegment q = {0, r->nq, 0, 0, 1}, k = {0, r->nk, 0, 0, 1};
    const FlashSums none = {NULL, NULL, NULL};
    AttnArgs a;
    if (r->nq == 0 || r->nk == 0)
        return 0;
    memset(&a, 0, sizeof a);
    a.shape = {n->B, n->H, n->Hkv, r->nq, r->nk, n->d};
    a.scale = r->plan->scale;
    a.softcap = r->plan->softcap;
    a.rule = {-1, -1};
    a.positions_q = attn_positions(&q, 1);
    a.positions_k = attn_positions(&k, 1);
    a.Q = cuda_backend_whole(r, r->Q, r->nq, n->H);
    a.K = cuda_backend_whole(r, r->K, r->nk, n->Hkv);
    a.V = cuda_backend_whole(r, r->V, r->nk, n->Hkv);
    a.O = cuda_backend_whole(r, r->O, r->nq, n->H);
    a.dO = cuda_backend_whole(r, r->dO, r->nq, n->H);
    a.dQ = cuda_backend_whole(r, r->dQ, r->nq, n->H);
    a.dK = cuda_backend_whole(r, r->dK, r->nk, n->Hkv);
    a.dV = cuda_backend_whole(r, r->dV, r->nk, n->Hkv);
    a.lse = r->lse;
    const size_t bytes = pass == RING_FORWARD
                             ? flash_cuda_workspace_bytes(&a.shape, a.Q.dtype)
                             : flash_backward_cuda_workspace_bytes(&a.shape, a.Q.dtype);
    if (cuda_backend_settle_all(r) != 0 || reserve_workspace(r, bytes) != 0 || bring(r, &a) != 0)
        return -1;
    void *workspace_dev = cuda_backend_of(r)->workspace_dev;
    a.stream = cuda_backend_work(r);
    return cuda_backend_answer(r,
                               pass == RING_FORWARD
                                   ? flash_cuda_run(&a, NULL, workspace_dev)
                                   : flash_backward_cuda_run(&a, NULL, none, workspace_dev),
                               "the local baseline");
}
