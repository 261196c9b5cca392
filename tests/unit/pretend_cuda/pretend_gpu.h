/* SPDX-License-Identifier: MIT
 *
 * pretend_gpu.h: a GPU that computes nothing, and watches whether the order of its streams matters.
 *
 * Each piece of work says what memory it reads, writes or adds to. Which work comes before which is
 * known when it is asked for: by its stream, by events that its stream waits for, by what the host
 * has seen to be done. Vector clocks keep that. The clock of a piece of work has a number for each
 * stream: that many things asked of that stream are certain to be done before it. Two pieces of
 * work that touch the same bytes in ways that need an order (two may read, or two may add), and
 * neither of which is certain to come first, are a problem, whatever order a real GPU would take.
 *
 * Copies and zeros are done at once; kernels write nothing. An event, or the end of a stream, is
 * there when the host has looked for it some times: how often, the seed says. So what the host
 * finds done by chance is no order. The time of an event is the number of things before it.
 *
 * Interface:
 * - pretend_gpu_begin, pretend_gpu_end: an empty device; what was wrong since.
 * - PretendWork, pretend_uses, pretend_ask: a kernel. pretend_problem: what a kernel finds wrong.
 * - pretend_seen: an event without another look.
 */
#ifndef PRETEND_GPU_H
#define PRETEND_GPU_H

#include <stdint.h>

#include "cuda_runtime_api.h"

void pretend_gpu_begin(uint64_t seed);
/* The number of problems; words: the first one. Streams, events and memory that were not given back
 * are problems too. */
int pretend_gpu_end(char words[256]);

/* What a kernel does with memory. Two that add to the same may do it in any order. */
typedef enum PretendUse { PRETEND_READS, PRETEND_WRITES, PRETEND_ADDS } PretendUse;

typedef struct PretendSpan {
    const char *begin;
    size_t bytes;
    PretendUse how;
} PretendSpan;

typedef struct PretendWork { /* begins as {name} */
    const char *name;
    PretendSpan *spans;
    int count, size;
} PretendWork;

void pretend_uses(PretendWork *work, const void *p, size_t bytes, PretendUse how);
void pretend_ask(PretendWork *work, cudaStream_t stream); /* and the work is empty again */
int pretend_seen(cudaEvent_t event);                      /* has the host seen that it is there? */
void pretend_problem(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
