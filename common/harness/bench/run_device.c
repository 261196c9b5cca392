/* SPDX-License-Identifier: MIT
 *
 * run_device.c: one variant on the GPU. Inputs are uploaded once a problem and serve all variants;
 * outputs lie between canaries, are poisoned before each run and brought to the host after the
 * last. Times are those of CUDA events, the L2 overwritten before each run. See run.h.
 */
#include "harness/bench/run.h"
#include "harness/rung.h"

#include "alloc.h"
#include "harness/device/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CANARY_BYTES ((size_t)256) /* keeps cudaMalloc's alignment for the data between */
/* Around an input lies NaN, so that a tail that is read is seen in the result; around an output
 * something that a variant does not write by chance, nor poison is. */
#define CANARY_IN  0xFF
#define CANARY_OUT 0xA5

typedef struct DeviceCopy {
    unsigned char *all_dev; /* canary, data, canary */
    const Storage *host;
    unsigned char canary;
} DeviceCopy;

/* The inputs on the device, of the problem with this serial. */
static struct {
    uint64_t serial;
    DeviceCopy in[INPUT_STORAGES];
    AttnSegment *segments_dev; /* of the queries, then of the keys */
} cache;

static int copy_new(DeviceCopy *d, const Storage *host, unsigned char canary)
{
    d->host = host;
    d->canary = canary;
    d->all_dev = NULL;
    if (!host->mapping)
        return 0;
    d->all_dev = device_alloc(host->bytes + 2 * CANARY_BYTES);
    return d->all_dev && device_fill_bytes(d->all_dev, canary, host->bytes + 2 * CANARY_BYTES) == 0
               ? 0
               : -1;
}

/* Where the copy of a host address is: several tensors may share a storage (--pack). */
static void *copy_of(const DeviceCopy *copies, int count, const void *host)
{
    const uintptr_t at = (uintptr_t)host;
    for (int i = 0; i < count && host; i++) {
        const Storage *s = copies[i].host;
        const uintptr_t base = (uintptr_t)s->base;
        if (copies[i].all_dev && at >= base && at < base + s->bytes)
            return copies[i].all_dev + CANARY_BYTES + (at - base);
    }
    return NULL;
}

static void cache_drop(void)
{
    for (int i = 0; i < INPUT_STORAGES; i++)
        device_free(cache.in[i].all_dev);
    device_free(cache.segments_dev);
    memset(&cache, 0, sizeof cache);
}

static int cache_fill(const Inputs *p)
{
    const size_t segments =
        (size_t)(p->args.positions_q.count + p->args.positions_k.count) * sizeof *p->segments;
    const Storage *host[INPUT_STORAGES];
    if (cache.serial == p->serial)
        return 0;
    cache_drop();
    inputs_storages(p, host);
    for (int i = 0; i < INPUT_STORAGES; i++)
        if (copy_new(&cache.in[i], host[i], CANARY_IN) != 0 ||
            (cache.in[i].all_dev &&
             device_upload(cache.in[i].all_dev + CANARY_BYTES, host[i]->base, host[i]->bytes) != 0))
            return -1;
    cache.segments_dev = device_alloc(segments);
    if (!cache.segments_dev || device_upload(cache.segments_dev, p->segments, segments) != 0)
        return -1;
    cache.serial = p->serial;
    return 0;
}

/* The same arguments with device pointers; those of the options, if there are any, go to
 * *options. */
static AttnArgs device_args(const RunResult *out, const DeviceCopy o[RUN_OUTPUTS],
                            AttnOptions *options)
{
    AttnArgs a = out->args;
    Tensor *const in[] = {&a.Q, &a.K, &a.V, &a.dO};
    Tensor *const results[] = {&a.O, &a.dQ, &a.dK, &a.dV};
    for (int t = 0; t < 4; t++) {
        in[t]->data = copy_of(cache.in, INPUT_STORAGES, in[t]->data);
        results[t]->data = copy_of(o, RUN_OUTPUTS, results[t]->data);
    }
    a.lse = copy_of(o, RUN_OUTPUTS, a.lse);
    a.mask = copy_of(cache.in, INPUT_STORAGES, a.mask);
    a.positions_q.segments = cache.segments_dev;
    a.positions_k.segments = cache.segments_dev + a.positions_q.count;
    a.stream = NULL;
    *options = out->options;
    options->wq = copy_of(cache.in, INPUT_STORAGES, options->wq);
    options->wk = copy_of(cache.in, INPUT_STORAGES, options->wk);
    options->dwq = copy_of(o, RUN_OUTPUTS, options->dwq);
    options->dwk = copy_of(o, RUN_OUTPUTS, options->dwk);
    a.options = a.options ? options : NULL;
    return a;
}

/* 1: intact, 0: overwritten, -1: CUDA error */
static int canaries_intact(const DeviceCopy *d)
{
    unsigned char found[CANARY_BYTES];
    for (int side = 0; d->all_dev && side < 2; side++) {
        if (device_download(found, d->all_dev + (side ? CANARY_BYTES + d->host->bytes : 0),
                            CANARY_BYTES) != 0)
            return -1;
        for (size_t i = 0; i < CANARY_BYTES; i++)
            if (found[i] != d->canary)
                return 0;
    }
    return 1;
}

/* Are the inputs on the device still those of the host? In pieces: they may be gigabytes. */
static int inputs_intact(void)
{
    const size_t piece = (size_t)64 << 20;
    unsigned char *found = malloc(piece);
    int intact = found ? 1 : -1;
    for (int i = 0; i < INPUT_STORAGES && intact == 1; i++) {
        const DeviceCopy *d = &cache.in[i];
        size_t at, bytes = d->all_dev ? d->host->bytes : 0;
        for (at = 0; at < bytes && intact == 1; at += piece) {
            const size_t n = bytes - at < piece ? bytes - at : piece;
            if (device_download(found, d->all_dev + CANARY_BYTES + at, n) != 0)
                intact = -1;
            else
                intact = memcmp(found, d->host->base + at, n) == 0;
        }
        if (intact == 1)
            intact = canaries_intact(d);
    }
    free(found);
    return intact;
}

static AttnStatus poison_device(RunResult *out, const void *of)
{
    const DeviceCopy *o = of; /* [RUN_OUTPUTS] */
    (void)out;
    for (int i = 0; i < RUN_OUTPUTS; i++)
        if (o[i].all_dev &&
            device_fill_bytes(o[i].all_dev + CANARY_BYTES, 0xFF, o[i].host->bytes) != 0)
            return ATTN_CUDA_ERROR;
    return ATTN_OK;
}

/* Outputs to the host, gaps and canaries looked at. */
static AttnStatus bring_home(RunResult *out, const DeviceCopy o[RUN_OUTPUTS])
{
    int intact;
    for (int i = 0; i < RUN_OUTPUTS; i++) {
        if (!o[i].all_dev)
            continue;
        intact = canaries_intact(&o[i]);
        if (intact < 0 ||
            device_download(o[i].host->base, o[i].all_dev + CANARY_BYTES, o[i].host->bytes) != 0)
            return ATTN_CUDA_ERROR;
        if (!intact || !tensor_intact(o[i].host))
            out->storage_intact = 0;
    }
    intact = inputs_intact();
    out->inputs_intact = intact == 1;
    if (intact != 1)
        cache_drop(); /* the next variant gets fresh ones */
    return intact < 0 ? ATTN_CUDA_ERROR : ATTN_OK;
}

AttnStatus run_device(RunResult *out, const Variant *v, const Inputs *p, const CliCase *c)
{
    Storage *host[RUN_OUTPUTS];
    DeviceCopy o[RUN_OUTPUTS];
    AttnOptions options;
    DeviceTimer *timer = NULL;
    const size_t live = workspace_live();
    AttnStatus status;
    workspace_reset_peak();
    status = cache_fill(p) == 0 ? ATTN_OK : ATTN_NO_MEMORY;
    memset(o, 0, sizeof o);
    run_outputs(out, host);
    for (int i = 0; i < RUN_OUTPUTS && status == ATTN_OK; i++)
        if (copy_new(&o[i], host[i], CANARY_OUT) != 0)
            status = ATTN_NO_MEMORY;
    if (status == ATTN_OK && !(timer = device_timer_new()))
        status = ATTN_CUDA_ERROR;
    if (status == ATTN_OK) {
        const AttnArgs args = device_args(out, o, &options);
        status = run_repetitions(out, v, c, &args, timer, poison_device, o);
    }
    if (device_is_model()) /* its times are nobody's */
        out->forward.count = out->backward.count = 0;
    out->leaked_bytes = workspace_live() > live ? workspace_live() - live : 0;
    if (status == ATTN_OK)
        status = bring_home(out, o);
    if (!workspace_intact())
        out->storage_intact = 0;
    workspace_trim();
    for (int i = 0; i < RUN_OUTPUTS; i++)
        device_free(o[i].all_dev);
    device_timer_free(timer);
    return status;
}
