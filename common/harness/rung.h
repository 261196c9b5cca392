/* SPDX-License-Identifier: MIT
 *
 * rung.h: from what a user may ask (AttnArgs) to the plain problem that a rung is asked
 * (problem.h), and back.
 *
 * What can be turned exactly is turned, outside of what is timed and counted: tensors with other
 * strides become contiguous copies, and on a CPU 16 bits are widened before and rounded after a
 * pass (but for a rung that rounds between its steps). e4m3 becomes bytes and scales. What cannot
 * be, the rung skips.
 *
 *     rung_open     Problem from args; copies of the inputs
 *     rung_load     before a pass: work space, poisoned outputs; before a backward one the O that
 *                   the forward pass has left
 *     rung_pass     the rung itself: what is timed
 *     rung_store    outputs back into args, work space freed
 *     rung_close
 *
 * Interface:
 * - RungRun and the five functions above.    - rung_skips: why a rung does not take a case.
 * - rung_describe: r->p without data: what a rung's tiles are asked with. rung_call: all of it, for
 *   tests. rung_count: the same with a given fast memory, and what moved in and out of it.
 */
#ifndef ATTN_RUNG_H
#define ATTN_RUNG_H

#include "attn.h"
#include "harness/bench/variant.h"
#include "problem.h"

enum { RUNG_TENSORS = 8 }; /* Q K V dO O dQ dK dV */

typedef struct RungRun {
    const Rung *rung;
    AttnDevice device;
    AttnArgs args;
    Problem p;
    void *copy[RUNG_TENSORS]; /* contiguous, of the rung's dtype; NULL: args' own tensor serves */
    float *scales[3];         /* E4M3: of Q, K and V, behind the bytes in their copies */
    int64_t *visits;          /* of a rung that goes in steps */
    size_t work_bytes;        /* that the last rung_load asked for */
} RungRun;

/* NULL, or one sentence with "skips". args: as the variant gets them, on a GPU with device pointers
 * (position maps are read in host memory). */
const char *rung_skips(const Rung *rung, AttnDevice device, const AttnArgs *args);

void rung_describe(RungRun *r, const Rung *rung, AttnDevice device, const AttnArgs *args);

/* The case must be one that the rung takes. ATTN_OK, ATTN_NO_MEMORY, ATTN_CUDA_ERROR; rung_close is
 * right after all of them. */
AttnStatus rung_open(RungRun *r, const Rung *rung, AttnDevice device, const AttnArgs *args);
AttnStatus rung_load(RungRun *r, int backward);
AttnStatus rung_pass(RungRun *r, int backward); /* also ATTN_SKIP: --smem-limit */
AttnStatus rung_store(RungRun *r, int backward);
void rung_close(RungRun *r);

/* One pass on args, or ATTN_SKIP where the rung skips the case. */
AttnStatus rung_call(const Rung *rung, AttnDevice device, const AttnArgs *args, int backward);

struct AccessCounts; /* problem_rows.h */

/* A pass on a CPU with `sram` elements of fast memory: what a rung counts that is made of
 * units/fast_memory.h. */
AttnStatus rung_count(const Rung *rung, const AttnArgs *args, int backward, int64_t sram,
                      struct AccessCounts *moved);

/* A rung as a function of AttnArgs for each pass, under the name that its stage and file give it:
 * where tests and exercises want one. RUNG_FN: on a CPU. */
#define RUNG_FN_ON(device, stage, name)                                                            \
    extern const Rung rung_##stage##_##name;                                                       \
    RUNG_CALLS(device, stage, name)
#define RUNG_CALLS(device, stage, name)                                                            \
    static inline AttnStatus stage##_##name(const AttnArgs *args)                                  \
    {                                                                                              \
        return rung_call(&rung_##stage##_##name, device, args, 0);                                 \
    }                                                                                              \
    static inline AttnStatus stage##_##name##_backward(const AttnArgs *args)                       \
    {                                                                                              \
        return rung_call(&rung_##stage##_##name, device, args, 1);                                 \
    }
#define RUNG_FN(stage, name)      RUNG_FN_ON(ON_CPU, stage, name)
#define CUDA_RUNG_FN(stage, name) RUNG_FN_ON(ON_CUDA, stage, name)
#endif
