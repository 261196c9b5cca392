/* SPDX-License-Identifier: MIT
 *
 * backend_cpu.c: host memory, and the block kernels of stages 03 and 04 on the CPU.
 *
 * A rank adds a remote block to its state with the library of stage 03, which resumes from what
 * it left: the merge of two partial results costs no pass over memory of its own. Work is done when
 * its function returns, so there are no queues here, and a mark is simply the time.
 *
 * The kernels' workspace belongs to the rank and only grows: nothing is allocated in a step that
 * has the size of the last one.
 *
 * What a backend is: the few things that differ between a CPU and a GPU. Methods call ring_attend
 * or ring_zero; behind these stands a table of functions, the one at the end of this file or its
 * twin in cuda/. To add a third kind of device would mean one more such table.
 *
 * Interface: ring_backend_cpu.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "attention/backward/backward_library.h"
#include "runtime/ring_world.h"
#include "tensor.h"

typedef struct CpuBackend {
    double *marks;
    int mark_count, mark_room;
    void *workspace;
} CpuBackend;

/* Nothing to open but a place for marks and the workspace. The GPU's backend makes streams here. */
static int cpu_open(RingRank *r)
{
    r->backend_state = calloc(1, sizeof(CpuBackend));
    return r->backend_state ? 0 : ring_fail(r, "out of memory");
}

static void cpu_close(RingRank *r)
{
    CpuBackend *backend = r->backend_state;
    if (!backend)
        return;
    workspace_free(backend->workspace);
    free(backend->marks);
    free(backend);
    r->backend_state = NULL;
}

/* From the allocator that all stages share: it counts, puts a guard page behind each block, and
 * fills it with NaN, so that what was never written is seen in the result. */
static void *cpu_alloc(RingRank *r, size_t bytes)
{
    (void)r;
    return workspace_alloc(bytes);
}

static void cpu_free(RingRank *r, void *p)
{
    (void)r;
    workspace_free(p);
}

static int cpu_move(RingRank *r, void *to, const void *from, size_t bytes)
{
    (void)r;
    memcpy(to, from, bytes);
    return 0;
}

static int cpu_zero(RingRank *r, void *p, size_t bytes)
{
    (void)r;
    memset(p, 0, bytes);
    return 0;
}

/* All bits set are a NaN in float32, f16 and bf16. */
static int cpu_poison(RingRank *r, void *p, size_t bytes)
{
    (void)r;
    memset(p, 0xFF, bytes);
    return 0;
}

/* A pitch is the distance of two rows in memory; it is larger than the width when a row is only a
 * part of a longer one, such as some heads of a token. */
static int cpu_copy(RingRank *r, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                    size_t width, int64_t height)
{
    (void)r;
    for (int64_t row = 0; row < height; row++)
        memcpy((char *)to + (size_t)row * to_pitch, (const char *)from + (size_t)row * from_pitch,
               width);
    return 0;
}

/* --- attention ---------------------------------------------------------------------------------*/

/* No key seen: a sum of nothing, ln 0. */
static int cpu_start_state(RingRank *r, float *O_state, int64_t count, float *lse, int64_t rows)
{
    (void)r;
    for (int64_t e = 0; e < count; e++)
        O_state[e] = 0.0f;
    for (int64_t row = 0; row < rows; row++)
        lse[row] = -INFINITY;
    return 0;
}

/* Packed copies of keys and queries for the register tiles of the library. */
static int grow_workspace(RingRank *r, size_t bytes)
{
    CpuBackend *backend = r->backend_state;
    if (backend->workspace && bytes <= r->workspace_bytes)
        return 0;
    workspace_free(backend->workspace);
    backend->workspace = workspace_alloc(bytes);
    if (!backend->workspace)
        return ring_fail(r, "no %zu bytes for the block kernel's workspace", bytes);
    r->workspace_bytes = bytes;
    return 0;
}

/* args describe two blocks that may have come from anywhere; the kernel of stage 03 neither knows
 * nor cares. O_state with the rows, or with args->lse, is what it starts from and leaves. */
static int cpu_attend(RingRank *r, const AttnArgs *args, float *O_state, FlashRows rows)
{
    const CpuBackend *backend = r->backend_state;
    if (grow_workspace(r, flash_simd_workspace_bytes(&args->shape, args->threads)) != 0)
        return -1;
    return flash_simd_resume(args, O_state, rows, backend->workspace) == ATTN_OK
               ? 0
               : ring_fail(r, "the block kernel failed");
}

/* Adds to sums.dQ, sums.dK and sums.dV: nothing is cleared here, since others may have added
 * before. */
static int cpu_differentiate(RingRank *r, const AttnArgs *args, const float *delta, FlashSums sums)
{
    const CpuBackend *backend = r->backend_state;
    if (grow_workspace(r, flash_backward_simd_workspace_bytes(&args->shape, args->threads)) != 0)
        return -1;
    return flash_backward_simd_run(args, delta, sums, backend->workspace) == ATTN_OK
               ? 0
               : ring_fail(r, "the block kernel of the backward pass failed");
}

/* A row sum, float32. */
static int cpu_delta(RingRank *r, const AttnArgs *args, float *delta)
{
    (void)r;
    flash_backward_delta(args, delta);
    return 0;
}

static int cpu_finish_O(RingRank *r, const AttnArgs *args, float *O_state, FlashRows rows)
{
    (void)r;
    if (rows.m)
        flash_rows_store(args, O_state, rows);
    else
        flash_state_store(args, O_state);
    return 0;
}

/* --- sums and rounding -------------------------------------------------------------------------*/

/* tensor_get and tensor_set know the three dtypes; with a stride of 1 they walk through plain
 * memory. */
static Tensor flat(const void *p, AttnDtype dtype)
{
    return (Tensor){.data = (void *)p, .dtype = dtype, .stride = {0, 0, 0, 1}};
}

/* The order of the additions is the caller's: here it is one element, one addition. */
static int cpu_add(RingRank *r, float *to, const float *from, int64_t count)
{
    (void)r;
    for (int64_t e = 0; e < count; e++)
        to[e] += from[e];
    return 0;
}

/* In place: element e moves to a lower address, so upwards nothing is overwritten before it is
 * read; on the way back downwards. The 4 bytes are read by memcpy, since the same memory holds
 * floats and halves. */
static int cpu_narrow(RingRank *r, void *to, void *p, int64_t count, AttnDtype dtype)
{
    const Tensor narrow = flat(to, dtype);
    (void)r;
    for (int64_t e = 0; (dtype != ATTN_F32 || to != p) && e < count; e++) {
        float x;
        memcpy(&x, (const char *)p + 4 * e, sizeof x);
        tensor_set(&narrow, e, x);
    }
    return 0;
}

static int cpu_widen(RingRank *r, void *p, int64_t count, AttnDtype dtype)
{
    const Tensor from = flat(p, dtype);
    (void)r;
    for (int64_t e = count; dtype != ATTN_F32 && e-- > 0;) {
        const float x = tensor_get(&from, e);
        memcpy((char *)p + 4 * e, &x, sizeof x);
    }
    return 0;
}

/* --- time --------------------------------------------------------------------------------------*/

/* On a CPU what was asked for has been done. On a GPU this is the one place where the host
 * waits. */
static int cpu_finish(RingRank *r)
{
    (void)r;
    return 0;
}

/* A number for the time now. A GPU cannot say when its work will be done, so marks, not times, are
 * what events are made of. */
static int cpu_mark(RingRank *r, int messages)
{
    CpuBackend *backend = r->backend_state;
    (void)messages;
    if (ring_grow(r, &backend->marks, backend->mark_count, &backend->mark_room,
                  sizeof *backend->marks, "a trace") != 0)
        return -1;
    backend->marks[backend->mark_count] = ring_now_ms();
    return backend->mark_count++;
}

static double cpu_mark_ms(RingRank *r, int mark)
{
    return ((const CpuBackend *)r->backend_state)->marks[mark];
}

static void cpu_forget_marks(RingRank *r)
{
    ((CpuBackend *)r->backend_state)->mark_count = 0;
}

const RingBackend ring_backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_move,
    .download = cpu_move,
    .zero = cpu_zero,
    .poison = cpu_poison,
    .copy = cpu_copy,
    .start_state = cpu_start_state,
    .attend = cpu_attend,
    .differentiate = cpu_differentiate,
    .delta = cpu_delta,
    .finish_O = cpu_finish_O,
    .add = cpu_add,
    .narrow = cpu_narrow,
    .widen = cpu_widen,
    .finish = cpu_finish,
    .mark = cpu_mark,
    .mark_ms = cpu_mark_ms,
    .forget_marks = cpu_forget_marks,
};
