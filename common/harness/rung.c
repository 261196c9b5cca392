/* SPDX-License-Identifier: MIT
 *
 * rung.c: what the harness does so that a rung sees the plain problem only. See rung.h.
 */
#include "harness/rung.h"

#include "alloc.h"
#include "alloc_wanted.h"
#include "e4m3.h"
#include "harness/device/device.h"
#include "harness/visits.h"
#include "problem_rows.h"
#include "tensor.h"

#include <stdlib.h>
#include <string.h>

#define FAR         (1 << 30)    /* "no limit" of a band; and no index reaches it */
#define MOST_TOKENS (FAR - 1024) /* a row of the last tile + FAR fits an int */
#define MOST_ROWS   (((int64_t)1 << 31) - (1 << 20)) /* a step of all threads fits an int, too */

/* --- accesses ---------------------------------------------------------------------------------*/

/* Behind problem_rows.h and units/fast_memory.h. Threads and the host side of the CUDA twins add to
 * them, hence the atomics. */
static int64_t loads_seen, stores_seen;

void access_counts_add(int64_t loads, int64_t stores)
{
    __atomic_fetch_add(&loads_seen, loads, __ATOMIC_RELAXED);
    __atomic_fetch_add(&stores_seen, stores, __ATOMIC_RELAXED);
}

AccessCounts access_counts(void)
{
    AccessCounts counts;
    counts.loads = __atomic_load_n(&loads_seen, __ATOMIC_RELAXED);
    counts.stores = __atomic_load_n(&stores_seen, __ATOMIC_RELAXED);
    return counts;
}

void access_counts_reset(void)
{
    __atomic_store_n(&loads_seen, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&stores_seen, 0, __ATOMIC_RELAXED);
}

/* --- which cases ------------------------------------------------------------------------------*/

/* Then each row sees one range of keys: first + shift .. last + shift, cut at both ends. */
static int is_one_segment(const AttnArgs *a)
{
    const AttnSegment *q = a->positions_q.host, *k = a->positions_k.host;
    return a->positions_q.count == 1 && a->positions_k.count == 1 && q->stride == 1 &&
           k->stride == 1 && q->sequence == k->sequence;
}

static int clamp_far(int64_t distance)
{
    return (int)(distance < -FAR ? -FAR : distance > FAR ? FAR : distance);
}

/* Limits of a window may be as large as an int64 can be: 2^62 is as good as none. */
static void set_band(Problem *p, const AttnArgs *a)
{
    const int64_t none = (int64_t)1 << 62;
    const int64_t shift = a->positions_q.host->position - a->positions_k.host->position;
    const int64_t left = a->rule.left < 0 || a->rule.left > none ? none : a->rule.left;
    const int64_t right = a->rule.right < 0 || a->rule.right > none ? none : a->rule.right;
    p->from = clamp_far(shift - left);
    p->to = clamp_far(shift + right);
}

/* A stream sees what its cache holds: w keys back and its own, which is the last that has come. */
static const char *stream_skips(const AttnArgs *a)
{
    Problem band;
    set_band(&band, a);
    if (band.to == FAR)
        return "a stream has no tokens to come: it skips all but a causal mask";
    if (band.from == -FAR)
        return "a rolling cache is as long as the window: a stream skips all but a finite one";
    if (band.to < 0 || a->shape.Nq + band.to > a->shape.Nk)
        return "a stream skips queries without a key at their position (causal lower-right, and "
               "not more queries than keys)";
    return NULL;
}

const char *rung_skips(const Rung *rung, AttnDevice device, const AttnArgs *a)
{
    const int full = (rung->flags & FULL) != 0;
    if (a->mask && !full)
        return "a rung skips a mask from memory; the library takes it";
    if (!is_one_segment(a))
        return "a rung skips positions in several segments; the library takes them";
    if (a->softcap > 0.0f && !full)
        return "a rung skips a softcap; the library takes it";
    if (!(a->scale > 0.0f) && !full)
        return "a rung skips a scale that is not positive; the library takes it";
    if (a->options)
        return "a rung skips the options of stage 05; the library takes them";
    if (a->shape.Nq >= MOST_TOKENS || a->shape.Nk >= MOST_TOKENS)
        return "a rung skips 2^30 - 1024 tokens and more";
    if (a->shape.H * a->shape.d > MOST_ROWS || a->shape.B * a->shape.H * a->shape.Nq > MOST_ROWS)
        return "a rung skips H * d or B * H * Nq of 2^31 - 2^20 and more: it counts in int";
    if (rung->flags & D_256 && a->shape.d != 256)
        return "this rung skips every d but 256: it shows what that needs";
    if (device == ON_CUDA && !(rung->flags & (ANY_D | D_256)) && a->shape.d != 64 &&
        a->shape.d != 128)
        return "a rung on the GPU skips every d but 64 and 128; the library takes it";
    if (rung->dtypes & E4M3 && a->shape.d != 128)
        return "this rung skips every d but 128: its tiles have rows of 128 bytes";
    if (device == ON_CUDA && (rung->flags & SM90A) && device_arch() != 90)
        return "this rung skips every GPU but Hopper: it is made of that GPU's instructions";
    if (device == ON_CUDA && (rung->flags & SM80) && device_arch() < 80)
        return "this rung skips GPUs older than sm_80: they have no such tensor cores";
    return rung->flags & STREAM ? stream_skips(a) : NULL;
}

/* --- the tensors ------------------------------------------------------------------------------*/

static void tensors_of(RungRun *r, Tensor *of[RUNG_TENSORS])
{
    Tensor *const all[RUNG_TENSORS] = {&r->args.Q, &r->args.K,  &r->args.V,  &r->args.dO,
                                       &r->args.O, &r->args.dQ, &r->args.dK, &r->args.dV};
    memcpy(of, all, sizeof all);
}

enum { FIRST_OUTPUT = 4, FIRST_GRADIENT = 5 }; /* in the order of tensors_of */

static int is_contiguous(const Tensor *t)
{
    const int64_t *n = t->shape;
    return t->stride[2] == n[3] && t->stride[1] == n[2] * n[3] &&
           t->stride[0] == n[1] * n[2] * n[3];
}

static AttnDtype dtype_of_copy(const RungRun *r, const Tensor *t)
{
    return r->device == ON_CUDA || r->rung->flags & STEPS ? t->dtype : ATTN_F32;
}

/* Bytes of a contiguous copy. */
static size_t bytes_of_copy(const RungRun *r, const Tensor *t)
{
    return (size_t)tensor_count(t) * dtype_size(dtype_of_copy(r, t));
}

/* Between a tensor and its contiguous copy, to it or back. On a GPU the rows of a head are one
 * copy of a rectangle. */
static int move_tensor(const RungRun *r, const Tensor *t, void *copy, int back)
{
    Tensor to = *t;
    to.data = copy;
    to.dtype = dtype_of_copy(r, t);
    to.stride[2] = t->shape[3];
    to.stride[1] = t->shape[2] * to.stride[2];
    to.stride[0] = t->shape[1] * to.stride[1];
    const Tensor *from = back ? &to : t, *target = back ? t : &to;
    float row[1024]; /* d is at most that */
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t h = 0; h < t->shape[2]; h++) {
            if (r->device == ON_CUDA) {
                const size_t size = dtype_size(t->dtype);
                if (device_copy_rows((char *)target->data + size * tensor_offset(target, b, 0, h),
                                     size * target->stride[1],
                                     (char *)from->data + size * tensor_offset(from, b, 0, h),
                                     size * from->stride[1], size * t->shape[3], t->shape[1]) != 0)
                    return -1;
                continue;
            }
            for (int64_t n = 0; n < t->shape[1]; n++) {
                tensor_read_row(from, b, n, h, row);
                tensor_write_row(target, b, n, h, row);
            }
        }
    return 0;
}

/* NaN into a copy. */
static int poison(const RungRun *r, void *copy, size_t bytes)
{
    if (r->device == ON_CUDA)
        return device_fill_bytes(copy, 0xFF, bytes);
    memset(copy, 0xFF, bytes);
    return 0;
}

/* --- from args to the problem -----------------------------------------------------------------*/

static void set_problem(RungRun *r)
{
    const AttnArgs *a = &r->args;
    Problem *p = &r->p;
    Tensor *all[RUNG_TENSORS];
    void *data[RUNG_TENSORS];
    tensors_of(r, all);
    for (int t = 0; t < RUNG_TENSORS; t++)
        data[t] = r->copy[t] ? r->copy[t] : all[t]->data;
    p->B = (int)a->shape.B, p->H = (int)a->shape.H, p->Hkv = (int)a->shape.Hkv;
    p->Nq = (int)a->shape.Nq, p->Nk = (int)a->shape.Nk, p->d = (int)a->shape.d;
    p->scale = a->scale;
    p->softcap = a->softcap;
    p->mask = a->mask;
    p->dtype = 1 << dtype_of_copy(r, &a->Q); /* F32, F16 ... are the bits of AttnDtype */
    for (int t = 0; t < 3; t++)
        p->scales[t] = r->scales[t];
    p->Q = data[0], p->K = data[1], p->V = data[2], p->dO = data[3];
    p->O = data[4], p->dQ = data[5], p->dK = data[6], p->dV = data[7];
    p->lse = a->lse;
    p->threads = a->threads;
    p->stream = a->stream;
    set_band(p, a);
    p->block_q = (int)(visits_block_q() < a->shape.Nq ? visits_block_q() : a->shape.Nq);
    p->block_kv = (int)(visits_block_kv() < a->shape.Nk ? visits_block_kv() : a->shape.Nk);
    p->visits = r->visits;
}

void rung_describe(RungRun *r, const Rung *rung, AttnDevice device, const AttnArgs *args)
{
    memset(r, 0, sizeof *r);
    r->rung = rung;
    r->device = device;
    r->args = *args;
    set_problem(r);
}

/* What is not timed either: which block comes when. */
static int open_visits(RungRun *r)
{
    const int64_t Tr = (r->p.Nq + r->p.block_q - 1) / r->p.block_q;
    const int64_t Tc = (r->p.Nk + r->p.block_kv - 1) / r->p.block_kv;
    const size_t bytes = (size_t)(Tr * Tc) * sizeof *r->visits;
    r->visits = memory_enough_for(bytes) ? malloc(bytes) : NULL;
    if (!r->visits) {
        workspace_refuse(bytes);
        return -1;
    }
    visits_fill(Tr, Tc, r->visits);
    return 0;
}

static void *new_copy(const RungRun *r, size_t bytes)
{
    void *copy = NULL;
    if (r->device == ON_CUDA)
        return device_alloc(bytes);
    if (memory_enough_for(bytes))
        copy = malloc(bytes);
    if (!copy)
        workspace_refuse(bytes);
    return copy;
}

/* Q, K or V of E4M3: the copy, or the tensor itself, becomes bytes with their scales behind. Both
 * lie on 256 bytes. */
static AttnStatus open_bytes(RungRun *r, int which, const Tensor *t)
{
    const size_t count = (size_t)tensor_count(t), at = (count + 255) / 256 * 256;
    const size_t blocks = (size_t)((t->shape[1] + E4M3_BLOCK - 1) / E4M3_BLOCK);
    const size_t bytes = at + (size_t)(t->shape[0] * t->shape[2]) * blocks * sizeof(float);
    const size_t element = dtype_size(t->dtype);
    unsigned char *host =
        memory_enough_for(element * count + bytes) ? calloc(element * count + bytes, 1) : NULL;
    void *copy = host ? new_copy(r, bytes) : NULL;
    Tensor from = *t;
    AttnStatus status = copy ? ATTN_OK : ATTN_NO_MEMORY;
    from.data = host + bytes;
    from.stride[2] = t->shape[3], from.stride[1] = t->shape[2] * from.stride[2];
    from.stride[0] = t->shape[1] * from.stride[1];
    if (copy &&
        device_download(from.data, r->copy[which] ? r->copy[which] : t->data, element * count) == 0)
        tensor_e4m3(&from, E4M3_BLOCK, host, (float *)(host + at));
    else if (copy)
        status = ATTN_CUDA_ERROR;
    if (status == ATTN_OK && device_upload(copy, host, bytes) != 0)
        status = ATTN_CUDA_ERROR;
    free(host);
    device_free(r->copy[which]);
    r->copy[which] = copy;
    r->scales[which] = (float *)((char *)copy + at);
    return status;
}

AttnStatus rung_open(RungRun *r, const Rung *rung, AttnDevice device, const AttnArgs *args)
{
    Tensor *all[RUNG_TENSORS];
    rung_describe(r, rung, device, args);
    if (rung->flags & STEPS && open_visits(r) != 0)
        return ATTN_NO_MEMORY;
    tensors_of(r, all);
    for (int t = 0; t < RUNG_TENSORS; t++) {
        if (!all[t]->data || (is_contiguous(all[t]) && dtype_of_copy(r, all[t]) == all[t]->dtype))
            continue;
        r->copy[t] = new_copy(r, bytes_of_copy(r, all[t]));
        if (!r->copy[t])
            return ATTN_NO_MEMORY;
        if (t < FIRST_OUTPUT && move_tensor(r, all[t], r->copy[t], 0) != 0)
            return ATTN_CUDA_ERROR;
    }
    for (int t = 0; t < 3 && rung->dtypes & E4M3; t++) {
        const AttnStatus status = open_bytes(r, t, all[t]);
        if (status != ATTN_OK)
            return status;
    }
    set_problem(r);
    return ATTN_OK;
}

void rung_close(RungRun *r)
{
    for (int t = 0; t < RUNG_TENSORS; t++)
        r->device == ON_CUDA ? device_free(r->copy[t]) : free(r->copy[t]);
    free(r->visits);
}

/* --- one pass ---------------------------------------------------------------------------------*/

AttnStatus rung_load(RungRun *r, int backward)
{
    Tensor *all[RUNG_TENSORS];
    tensors_of(r, all);
    for (int t = FIRST_OUTPUT; t < RUNG_TENSORS; t++) {
        if (!r->copy[t] || (t >= FIRST_GRADIENT) != backward) {
            if (!(r->copy[t] && backward && t < FIRST_GRADIENT))
                continue;
            if (move_tensor(r, all[t], r->copy[t], 0) != 0) /* O, as it was rounded */
                return ATTN_CUDA_ERROR;
            continue;
        }
        if (poison(r, r->copy[t], bytes_of_copy(r, all[t])) != 0)
            return ATTN_CUDA_ERROR;
    }
    r->work_bytes = r->rung->work ? (size_t)r->rung->work(&r->p, backward) : 0;
    r->p.work = NULL;
    if (r->work_bytes > 0) {
        r->p.work = r->device == ON_CUDA ? workspace_alloc_device(r->work_bytes)
                                         : workspace_alloc(r->work_bytes);
        if (!r->p.work)
            return ATTN_NO_MEMORY;
    }
    return ATTN_OK;
}

AttnStatus rung_pass(RungRun *r, int backward)
{
    if (r->device == ON_CUDA)
        device_set_smem_limit(device_smem_limit()); /* forgets what was refused before */
    (backward ? r->rung->backward : r->rung->forward)(&r->p);
    if (r->device == ON_CPU)
        return ATTN_OK;
    return device_smem_refused() ? ATTN_SKIP : device_launched() == 0 ? ATTN_OK : ATTN_CUDA_ERROR;
}

AttnStatus rung_store(RungRun *r, int backward)
{
    Tensor *all[RUNG_TENSORS];
    int failed = 0;
    tensors_of(r, all);
    r->device == ON_CUDA ? workspace_free_device(r->p.work) : workspace_free(r->p.work);
    r->p.work = NULL;
    for (int t = FIRST_OUTPUT; t < RUNG_TENSORS; t++)
        if (r->copy[t] && (t >= FIRST_GRADIENT) == backward)
            failed |= move_tensor(r, all[t], r->copy[t], 1);
    return failed ? ATTN_CUDA_ERROR : ATTN_OK;
}

static AttnStatus call(const Rung *rung, AttnDevice device, const AttnArgs *args, int backward,
                       int64_t sram)
{
    RungRun r;
    AttnStatus status;
    if (!(backward ? rung->backward : rung->forward) || rung_skips(rung, device, args))
        return ATTN_SKIP;
    status = rung_open(&r, rung, device, args);
    r.p.sram = sram;
    if (status == ATTN_OK)
        status = rung_load(&r, backward);
    if (status == ATTN_OK) {
        status = rung_pass(&r, backward);
        const AttnStatus stored = rung_store(&r, backward);
        status = status == ATTN_OK ? stored : status;
    }
    rung_close(&r);
    return status;
}

AttnStatus rung_call(const Rung *rung, AttnDevice device, const AttnArgs *args, int backward)
{
    return call(rung, device, args, backward, 0);
}

AttnStatus rung_count(const Rung *rung, const AttnArgs *args, int backward, int64_t sram,
                      AccessCounts *moved)
{
    AttnStatus status;
    access_counts_reset();
    status = call(rung, ON_CPU, args, backward, sram);
    *moved = access_counts();
    return status;
}
