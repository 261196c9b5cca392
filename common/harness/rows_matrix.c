/* SPDX-License-Identifier: MIT
 *
 * rows_matrix.c: storage and strict runs of one softmax over a matrix. See rows_matrix.h.
 */
#include "harness/rows_matrix.h"

#include "alloc.h"
#include "harness/device/device.h"

#include <stdlib.h>
#include <string.h>

size_t matrix_x_bytes(const Matrix *m)
{
    return (size_t)(m->rows * m->cols) * sizeof(float);
}
static size_t y_bytes(const Matrix *m)
{
    return matrix_x_bytes(m) + CANARY_FLOATS * sizeof(float);
}
static size_t lse_bytes(const Matrix *m)
{
    return (size_t)(m->rows + CANARY_FLOATS) * sizeof(float);
}

void matrix_free(Matrix *m)
{
    free(m->x);
    free(m->y);
    free(m->lse);
    device_free(m->x_dev);
    device_free(m->y_dev);
    device_free(m->lse_dev);
    memset(m, 0, sizeof *m);
}

int matrix_new(Matrix *m, int64_t rows, int64_t cols, int on_device)
{
    int64_t count;
    memset(m, 0, sizeof *m);
    m->rows = rows;
    m->cols = cols;
    m->on_device = on_device;
    if (__builtin_mul_overflow(rows, cols, &count) || count > INT64_MAX / 64)
        return -1;
    m->x = malloc(matrix_x_bytes(m));
    m->y = malloc(y_bytes(m));
    m->lse = malloc(lse_bytes(m));
    if (m->x && m->y && m->lse && on_device) {
        m->x_dev = device_alloc(matrix_x_bytes(m));
        m->y_dev = device_alloc(y_bytes(m));
        m->lse_dev = device_alloc(lse_bytes(m));
    }
    if (m->x && m->y && m->lse && (!on_device || (m->x_dev && m->y_dev && m->lse_dev)))
        return 0;
    matrix_free(m);
    return -1;
}

static SoftmaxArgs matrix_args(const Matrix *m, const RowsEntry *v, int threads)
{
    SoftmaxArgs args = {m->x, m->y, m->lse, m->rows, m->cols, threads, NULL, NULL};
    if (v->device == ON_CUDA) {
        args.x = m->x_dev;
        args.y = m->y_dev;
        args.lse = m->lse_dev;
    }
    return args;
}

static int matrix_poison(const Matrix *m, const RowsEntry *v)
{
    if (v->device == ON_CUDA)
        return device_fill_bytes(m->y_dev, 0xFF, y_bytes(m)) ||
               device_fill_bytes(m->lse_dev, 0xFF, lse_bytes(m));
    memset(m->y, 0xFF, y_bytes(m));
    memset(m->lse, 0xFF, lse_bytes(m));
    return 0;
}

int matrix_canary_intact(const float *from)
{
    for (size_t i = 0; i < CANARY_FLOATS * sizeof(float); i++)
        if (((const unsigned char *)from)[i] != 0xFF)
            return 0;
    return 1;
}

AttnStatus matrix_run(const Matrix *m, const RowsEntry *v, const RowsRung *rung, int warmup,
                      int iters, int threads, Samples *samples)
{
    SoftmaxArgs args = matrix_args(m, v, threads);
    DeviceTimer *timer = v->device == ON_CUDA ? device_timer_new() : NULL;
    AttnStatus status = ATTN_OK;
    const size_t bytes = rung->work ? (size_t)rung->work(m->rows, m->cols) : 0;
    samples->count = 0;
    if (bytes > 0)
        args.work = timer ? workspace_alloc_device(bytes) : workspace_alloc(bytes);
    if ((v->device == ON_CUDA && !timer) || (bytes > 0 && !args.work))
        status = ATTN_NO_MEMORY;
    for (int i = -warmup; i < iters && status == ATTN_OK; i++) {
        double start, ms;
        if (matrix_poison(m, v) || (timer && device_flush_l2())) {
            status = ATTN_CUDA_ERROR;
            break;
        }
        start = bench_now_ms();
        if (timer)
            device_timer_start(timer);
        rung->softmax(&args);
        if (timer && device_launched() != 0)
            status = ATTN_CUDA_ERROR;
        ms = timer ? device_timer_stop_ms(timer) : bench_now_ms() - start;
        if (i >= 0 && samples->count < BENCH_MAX_SAMPLES)
            samples->ms[samples->count++] = ms;
    }
    if (timer && status == ATTN_OK &&
        (device_synchronize() || device_download(m->y, m->y_dev, y_bytes(m)) ||
         device_download(m->lse, m->lse_dev, lse_bytes(m))))
        status = ATTN_CUDA_ERROR;
    timer ? workspace_free_device(args.work) : workspace_free(args.work);
    device_timer_free(timer);
    return status;
}

/* Depends on the bits and the place of every element: a change anywhere changes it. */
uint64_t matrix_fingerprint(const float *x, int64_t count, int threads)
{
    uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(static)
    for (int64_t e = 0; e < count; e++) {
        uint32_t bits;
        memcpy(&bits, &x[e], sizeof bits);
        sum += (bits + UINT64_C(0x9E3779B97F4A7C15)) * (2 * (uint64_t)e + 1);
    }
    return sum;
}

int matrix_input_intact(const Matrix *m, const RowsEntry *v, uint64_t before, int threads)
{
    const float *x = m->x;
    if (v->device == ON_CUDA) {
        if (device_download(m->y, m->x_dev, matrix_x_bytes(m)))
            return 0;
        x = m->y;
    }
    return matrix_fingerprint(x, m->rows * m->cols, threads) == before;
}

int matrix_upload(const Matrix *m)
{
    return m->on_device ? device_upload(m->x_dev, m->x, matrix_x_bytes(m)) : 0;
}
