/* SPDX-License-Identifier: MIT
 *
 * pretend_small_work.c: the small work between the kernels of stage 06, queued on a pretended GPU.
 *
 * Interface: small_work.h; cuda_share_forget (share.h), of ranks that are threads.
 */
#include "runtime/cuda/small_work.h"

#include <math.h>
#include <string.h>

#include "pretend_gpu.h"
#include "tensor.h"
#include "transports/cuda/share.h"

typedef struct Walk {
    void *to;
    const void *from;
    AttnDtype dtype;
    int64_t count;
} Walk;

static Tensor flat(const void *p, AttnDtype dtype)
{
    return (Tensor){.data = (void *)p, .dtype = dtype, .stride = {0, 0, 0, 1}};
}

static void ask(const char *name, void (*run)(void *), const Walk *w, size_t to_bytes,
                size_t from_bytes, cudaStream_t stream)
{
    PretendWork *work = pretend_work(name, run, w, sizeof *w);
    pretend_uses(work, w->from, from_bytes, PRETEND_READS);
    pretend_uses(work, w->to, to_bytes, PRETEND_WRITES);
    pretend_ask(work, stream);
}

static void run_empty_rows(void *context)
{
    const Walk *w = context;
    for (int64_t e = 0; e < w->count; e++)
        ((float *)w->to)[e] = -INFINITY;
}

AttnStatus launch_empty_rows(float *lse, int64_t count, cudaStream_t stream)
{
    const Walk w = {.to = lse, .count = count};
    ask("empty rows", run_empty_rows, &w, (size_t)count * sizeof(float), 0, stream);
    return ATTN_OK;
}

/* Upwards: in place too, element e is read before it is written over. */
static void run_narrow(void *context)
{
    const Walk *w = context;
    const Tensor to = flat(w->to, w->dtype);
    for (int64_t e = 0; e < w->count; e++) {
        float x;
        memcpy(&x, (const char *)w->from + 4 * e, sizeof x);
        tensor_set(&to, e, x);
    }
}

AttnStatus launch_cast(void *to, AttnDtype dtype, const float *from, int64_t count,
                       cudaStream_t stream)
{
    const Walk w = {.to = to, .from = from, .dtype = dtype, .count = count};
    ask("a cast", run_narrow, &w, (size_t)count * dtype_size(dtype), (size_t)count * sizeof(float),
        stream);
    return ATTN_OK;
}

AttnStatus launch_narrow(void *p, int64_t count, AttnDtype dtype, cudaStream_t stream)
{
    const Walk w = {.to = p, .from = p, .dtype = dtype, .count = count};
    const size_t bytes = (size_t)count * sizeof(float);
    if (dtype != ATTN_F32)
        ask("narrowing in place", run_narrow, &w, bytes, bytes, stream);
    return ATTN_OK;
}

/* Downwards. */
static void run_widen(void *context)
{
    const Walk *w = context;
    const Tensor from = flat(w->from, w->dtype);
    for (int64_t e = w->count; e-- > 0;) {
        const float x = tensor_get(&from, e);
        memcpy((char *)w->to + 4 * e, &x, sizeof x);
    }
}

AttnStatus launch_widen(void *p, int64_t count, AttnDtype dtype, cudaStream_t stream)
{
    const Walk w = {.to = p, .from = p, .dtype = dtype, .count = count};
    if (dtype != ATTN_F32)
        ask("widening", run_widen, &w, (size_t)count * sizeof(float),
            (size_t)count * dtype_size(dtype), stream);
    return ATTN_OK;
}

static void run_add(void *context)
{
    const Walk *w = context;
    for (int64_t e = 0; e < w->count; e++)
        ((float *)w->to)[e] += ((const float *)w->from)[e];
}

AttnStatus launch_add(float *to, const float *from, int64_t count, cudaStream_t stream)
{
    const Walk w = {.to = to, .from = from, .count = count};
    const size_t bytes = (size_t)count * sizeof(float);
    ask("a sum", run_add, &w, bytes, bytes, stream);
    return ATTN_OK;
}

/* Nothing is shared. */
void cuda_share_forget(RingRank *r)
{
    (void)r;
}
