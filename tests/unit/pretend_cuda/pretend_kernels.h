/* SPDX-License-Identifier: MIT
 *
 * pretend_kernels.h: the kernels that stage 06 asks of a GPU, by the CPU's block kernels, queued on
 * a pretended one (pretend_gpu.h): what pretend_attention.c and pretend_gradients.c share.
 *
 * What counts is what they share with the real ones: when they run, and what memory they read,
 * write and add to.
 *
 * Interface: Kernel, kernel_work; uses_floats, uses_tensor, reads_pair; check_host_maps; sizes;
 * scratch.
 */
#ifndef PRETEND_KERNELS_H
#define PRETEND_KERNELS_H

#include <stdlib.h>
#include <string.h>

#include "attention/backward/backward_library.h"
#include "attention/forward/cuda/block_resume.h"
#include "pretend_gpu.h"
#include "tensor.h"

typedef struct Kernel {
    AttnArgs a;
    float *O_state, *O_split; /* O_split: in the workspace */
    FlashRows rows;           /* m NULL: the state is (O, lse) */
    FlashHeads heads;
    int last; /* keys: O leaves the state */
    const float *delta;
    FlashSums sums;
    float *dQ, *lse, *delta_kept; /* in the workspace */
    AttnSegment *table;
    int fresh;
} Kernel;

static inline int64_t count_q(const AttnShape *n)
{
    return n->B * n->Nq * n->H * n->d;
}

static inline int64_t count_kv(const AttnShape *n)
{
    return n->B * n->Nk * n->Hkv * n->d;
}

static inline int64_t count_rows(const AttnShape *n)
{
    return n->B * n->H * n->Nq;
}

static inline void uses_floats(PretendWork *work, const float *p, int64_t count, PretendUse how)
{
    pretend_uses(work, p, (size_t)count * sizeof *p, how);
}

/* Token by token where there are gaps between them, as in some heads of all. */
static inline void uses_tensor(PretendWork *work, const Tensor *t, PretendUse how)
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
static inline void check_host_maps(const AttnArgs *a)
{
    const AttnPositions maps[] = {a->positions_q, a->positions_k};
    for (int m = 0; m < 2; m++)
        if (!maps[m].host || memcmp(maps[m].host, maps[m].segments,
                                    (size_t)maps[m].count * sizeof *maps[m].host) != 0)
            pretend_problem("the host's copy of a position map is not what the device has");
}

/* Q, K, V, positions, mask. */
static inline void reads_pair(PretendWork *work, const AttnArgs *a, const AttnSegment *positions_k)
{
    uses_tensor(work, &a->Q, PRETEND_READS);
    uses_tensor(work, &a->K, PRETEND_READS);
    uses_tensor(work, &a->V, PRETEND_READS);
    pretend_uses(work, a->positions_q.segments,
                 (size_t)a->positions_q.count * sizeof *a->positions_q.segments, PRETEND_READS);
    pretend_uses(work, positions_k, (size_t)a->positions_k.count * sizeof *positions_k,
                 PRETEND_READS);
    if (a->mask)
        pretend_uses(work, a->mask, (size_t)(a->shape.Nq * a->shape.Nk), PRETEND_READS);
}

static inline PretendWork *kernel_work(const char *name, void (*run)(void *), const Kernel *k)
{
    Kernel alone = *k;
    alone.a.threads = 1;
    return pretend_work(name, run, &alone, sizeof alone);
}

static inline void *scratch(size_t bytes)
{
    return pretend_need(aligned_alloc(64, (bytes + 64) / 64 * 64));
}

#endif
