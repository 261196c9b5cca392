/* SPDX-License-Identifier: MIT
 *
 * pretend_gpu.h: a GPU that does what it was asked for as late, and in as odd an order, as its
 * streams and events allow, and watches whether the order mattered.
 *
 * Nothing runs when it is asked for. When the host looks whether a stream is empty, some of the
 * work of all streams is done: that of whichever stream a seed says, as long as no event holds it
 * up. So a result that is right for many seeds is not right by luck.
 *
 * And each piece of work says what memory it reads, writes or adds to. Which work comes before
 * which is known when it is asked for: by its stream, by events that its stream waits for, by what
 * the host has seen to be done. Vector clocks keep that. The clock of a piece of work has a number
 * for each stream: that many things asked of that stream are certain to be done before it. Two
 * pieces of work that touch the same bytes in ways that need an order (two may read, or two may
 * add), and neither of which is certain to come first, are a problem in every run, whatever order
 * this run has taken.
 *
 * Interface:
 * - pretend_gpu_begin, pretend_gpu_end: an empty device; what was wrong since.
 * - PretendWork, pretend_work, pretend_uses, pretend_ask: a kernel.
 * - The rest is what the files of the pretended GPU share.
 */
#ifndef PRETEND_GPU_H
#define PRETEND_GPU_H

#include <stdint.h>

#include "cuda_runtime_api.h"

#define PRETEND_STREAMS 64

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

typedef struct PretendWork {
    const char *name;
    void (*run)(void *context);
    void *context; /* a copy of its own */
    PretendSpan *spans;
    int count, room;
} PretendWork;

PretendWork *pretend_work(const char *name, void (*run)(void *context), const void *context,
                          size_t bytes);
void pretend_uses(PretendWork *work, const void *p, size_t bytes, PretendUse how);
void pretend_ask(PretendWork *work, cudaStream_t stream); /* the work changes hands */

/* --- between the pretended GPU's files; all but the first with its lock held -------------------*/

void *pretend_need(void *p); /* NULL: there is no memory for the test, which ends */

typedef struct PretendClock { /* of each stream: so many things asked of it are done before */
    uint32_t at[PRETEND_STREAMS];
} PretendClock;

void pretend_lock(void);
void pretend_unlock(void);
void pretend_problem(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint32_t pretend_done(int stream); /* how many things that were asked of it are done */
/* Of work that is number clock->at[stream] of its stream; the clock's other numbers are what it
 * comes behind. */
void pretend_note_uses(const PretendWork *work, int stream, const PretendClock *clock);
void pretend_queues_begin(uint64_t seed);
void pretend_queues_end(void);
void pretend_memory_end(void);

#endif
