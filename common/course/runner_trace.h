/* SPDX-License-Identifier: MIT
 *
 * runner_trace.h: states that a submission shows by attn_trace.h, on their way to the judge.
 *
 * They lie in one of the task's arrays, one behind the other: TraceHead, then TraceRecords, each
 * followed by m [rows], l [rows] and O [rows][d]. The submission can write anything there.
 *
 * Interface:
 * - runner_trace_open, runner_trace_shape: before a call. runner_traced: after it.
 * - TraceHead, TraceRecord.
 */
#ifndef ATTN_RUNNER_TRACE_H
#define ATTN_RUNNER_TRACE_H

#include <stddef.h>
#include <stdint.h>

typedef struct TraceHead {
    uint64_t used; /* bytes behind the head */
    uint64_t lost; /* 1: there was no room for some */
} TraceHead;

typedef struct TraceRecord {
    int32_t b, h, i, j, Br, Bc; /* as the submission says */
    int32_t rows, d;            /* rows: 0 where that names no tile */
} TraceRecord;

/* memory NULL: calls are noticed, and nothing is kept. */
void runner_trace_open(void *memory, size_t bytes);
void runner_trace_shape(int64_t rows, int64_t d); /* of O, for one head */
int runner_traced(void);                          /* 1: attn_trace was called since the open */

/* What attn_trace.h declares. */
void attn_judge_begin(int b, int h, int Br, int Bc);
void attn_judge_trace(int i, int j, const float *m, const float *l, const float *O);

#endif
