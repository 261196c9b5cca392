/* SPDX-License-Identifier: MIT
 *
 * problem_rows.h: all that a rung is asked that is a softmax of rows, and the line by which it
 * registers. (problem_rows_attention.h computes attention with it: the products of stage 01 around
 * it.)
 *
 * How often such a rung touches x and y is its subject, so each file is compiled twice: as it is,
 * where LOAD and STORE are a plain read and a plain write, and once more with -DCOUNT_ACCESSES,
 * where they also increment a counter and the file registers itself with the suffix _counted. So
 * the numbers in the table come from running the same source, not from a formula; a test compares
 * them with the formula.
 *
 * A local array of a few kilobytes is the CPU's shared memory (it stays in L1): filling it from x
 * counts as reading x, working inside it counts as nothing.
 *
 * Interface:
 * - SoftmaxArgs, SoftmaxFn: the softmax alone, on rows x cols float32, row-major and contiguous.
 * - RowsRung, RUNG_ROWS: the last line of a rung's file.
 * - LOAD(p), STORE(p, v): one element of x or y. LOAD_BLOCK(block, p, n): n elements of x into a
 *   local array. STORE_BLOCK_SCALED(p, block, n, factor): n elements of a local array, times
 *   factor, to y. (On a GPU: problem_rows.cuh.)
 * - access_counts, access_counts_reset: reads and writes since the last reset.
 */
#ifndef PROBLEM_ROWS_H
#define PROBLEM_ROWS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct SoftmaxArgs {
    const float *x; /* [rows][cols] scores; a device pointer on a GPU */
    float *y;       /* [rows][cols] probabilities; may be x itself */
    float *lse;     /* [rows], or NULL when nobody asks */
    int64_t rows, cols;
    int threads;  /* CPU threads, >= 1 */
    void *work;   /* as many bytes as the rung's work() says; NULL if 0 */
    void *stream; /* cudaStream_t, or NULL on the CPU */
} SoftmaxArgs;

typedef void (*SoftmaxFn)(const SoftmaxArgs *args);

typedef struct RowsRung {
    const char *name;
    SoftmaxFn softmax;
    int64_t (*work)(int64_t rows, int64_t cols); /* bytes; NULL: none */
    int reads;             /* of each element in a row that does not stay on chip */
    int64_t one_read_cols; /* rows up to this width are read once; 0: never */
} RowsRung;

#ifdef COUNT_ACCESSES
#define ROWS_NAME(name) rows_##name##_counted
#else
#define ROWS_NAME(name) rows_##name
#endif
#ifdef __cplusplus
#define ROWS_EXTERN extern "C"
#else
#define ROWS_EXTERN
#endif
/* The name and the idea are read by common/tools/rungs.py. */
#define RUNG_ROWS(stage, name, idea, softmax, work, reads, one_read_cols)                          \
    ROWS_EXTERN const RowsRung ROWS_NAME(name) = {#name, softmax, work, reads, one_read_cols}

/* --- counted accesses --------------------------------------------------------------------------*/

typedef struct AccessCounts {
    int64_t loads, stores; /* elements of x and y read and written */
} AccessCounts;

AccessCounts access_counts(void);
void access_counts_reset(void);
void access_counts_add(int64_t loads, int64_t stores); /* safe from any thread */

#ifdef COUNT_ACCESSES
#define COUNT_LOADS(n)  access_counts_add((n), 0)
#define COUNT_STORES(n) access_counts_add(0, (n))
#else
#define COUNT_LOADS(n)  ((void)0)
#define COUNT_STORES(n) ((void)0)
#endif

#ifndef __CUDACC__
#define LOAD(p)     (COUNT_LOADS(1), *(p))
#define STORE(p, v) (COUNT_STORES(1), (void)(*(p) = (v)))

static inline void LOAD_BLOCK(float *block, const float *p, int64_t n)
{
    COUNT_LOADS(n);
    memcpy(block, p, (size_t)n * sizeof *p);
}

static inline void STORE_BLOCK_SCALED(float *p, const float *block, int64_t n, float factor)
{
    COUNT_STORES(n);
    for (int64_t c = 0; c < n; c++)
        p[c] = block[c] * factor;
}
#endif

#ifdef __cplusplus
}
#endif
#endif
