/* SPDX-License-Identifier: MIT
 *
 * rows_matrix.h: a matrix of scores with its softmax, on the host and on the device, and runs of
 * one softmax over it that are as strict as the runs of attention in common/harness/bench/run.c.
 *
 * Interface:
 * - matrix_new, matrix_upload, matrix_free: storage; the caller fills x.
 * - matrix_run: poisoned outputs, warm-up and timed runs; the last output lies in y and lse.
 * - matrix_canary_intact, matrix_fingerprint, matrix_input_intact: what a run may not have touched.
 */
#ifndef ROWS_MATRIX_H
#define ROWS_MATRIX_H

#include "harness/bench/bench.h"
#include "harness/rows_mode.h"

#define CANARY_FLOATS 64

/* A matrix of scores with room for its softmax, on the host and, for CUDA, on the device. y and
 * lse have canaries behind them. */
typedef struct Matrix {
    int64_t rows, cols;
    float *x, *y, *lse;             /* host */
    float *x_dev, *y_dev, *lse_dev; /* NULL without a device */
    int on_device;
} Matrix;

int matrix_new(Matrix *m, int64_t rows, int64_t cols, int on_device); /* 0, or -1: no memory */
int matrix_upload(const Matrix *m);                                   /* 0 or -1 */
void matrix_free(Matrix *m);
size_t matrix_x_bytes(const Matrix *m);

AttnStatus matrix_run(const Matrix *m, const RowsEntry *v, const RowsRung *rung, int warmup,
                      int iters, int threads, Samples *samples);

/* from: the first byte behind y or lse */
int matrix_canary_intact(const float *from);
uint64_t matrix_fingerprint(const float *x, int64_t count, int threads);
/* The input again, after the runs: 1 when nobody wrote into it. y is scratch from here on. */
int matrix_input_intact(const Matrix *m, const RowsEntry *v, uint64_t before, int threads);

#endif
