/* SPDX-License-Identifier: MIT
 *
 * noise.h: other work for the GPU, beside a test of determinism.
 *
 * A thread keeps a second stream busy with copies and with attention of its own, so the blocks of
 * the kernel under test start in other orders, on other multiprocessors, beside other blocks. That
 * work must really go on: the test asks noise_rounds.
 *
 * Interface:
 * - make_noise: a pthread's function. It goes on until noise_stop; then noise_failed is set.
 * - noise_rounds: how much has been done so far.
 * - run_beside_noise: tests with that thread beside them; the exit status of the program.
 */
#ifndef NOISE_H
#define NOISE_H

#include <pthread.h>
#include <stdatomic.h>

#include <cuda_runtime_api.h>

#include "harness/device/device.h"
#include "harness/io/fill.h"
#include "harness/rung.h"

CUDA_RUNG_FN(flash_forward, v1_fa2)

#define NOISE_N     1024 /* 16 heads, d = 64, f32: some 2 ms */
#define NOISE_BYTES ((size_t)256 << 20)

static atomic_int noise_stop, noise_rounds, noise_failed;

/* 16 heads of queries = keys = values from the seed; O and lse behind them. */
static inline AttnArgs noise_problem(float *all_dev, AttnPositions map, cudaStream_t stream)
{
    const int64_t elements = 16 * NOISE_N * 64;
    AttnArgs a = {.shape = {1, 16, 16, NOISE_N, NOISE_N, 64}, .scale = 0.125f, .rule = {-1, -1}};
    a.Q = (Tensor){all_dev, ATTN_F32, {1, NOISE_N, 16, 64}, {elements, (int64_t)16 * 64, 64, 1}};
    a.K = a.V = a.O = a.Q;
    a.O.data = all_dev + elements;
    a.lse = all_dev + 2 * elements;
    a.positions_q = a.positions_k = map;
    a.stream = stream;
    return a;
}

static inline void *make_noise(void *unused)
{
    const AttnSegment segment = {0, NOISE_N, 0, 0, 1};
    const size_t elements = (size_t)16 * NOISE_N * 64;
    float *all_dev = device_alloc((2 * elements + 16 * NOISE_N) * sizeof *all_dev);
    char *copy_dev = device_alloc(2 * NOISE_BYTES);
    AttnSegment *segment_dev = device_alloc(sizeof segment);
    cudaStream_t stream;
    int failed = !all_dev || !copy_dev || !segment_dev ||
                 device_upload(segment_dev, &segment, sizeof segment) != 0 ||
                 cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess;
    if (!failed) {
        const AttnArgs a =
            noise_problem(all_dev, (AttnPositions){segment_dev, 1, &segment}, stream);
        failed = fill_tensor_device(&a.Q, FILL_Q, 5, FILL_NORMAL, stream) != ATTN_OK;
        while (!failed && !atomic_load(&noise_stop)) {
            for (int n = 0; n < 4; n++)
                failed |= flash_forward_v1_fa2(&a) != ATTN_OK ||
                          cudaMemcpyAsync(copy_dev + NOISE_BYTES, copy_dev, NOISE_BYTES,
                                          cudaMemcpyDeviceToDevice, stream) != cudaSuccess;
            failed |= cudaStreamSynchronize(stream) != cudaSuccess;
            atomic_fetch_add(&noise_rounds, 1);
        }
        (void)cudaStreamDestroy(stream);
    }
    device_free(all_dev);
    device_free(copy_dev);
    device_free(segment_dev);
    atomic_store(&noise_failed, failed);
    return unused;
}

/* tests: runs them all; how many failed. 1 as well when the noise did. */
static inline int run_beside_noise(int (*tests)(void))
{
    pthread_t thread;
    int failed;
    if (device_count() == 0) {
        printf("no CUDA device\n");
        return 77;
    }
    if (pthread_create(&thread, NULL, make_noise, NULL) != 0)
        return 3;
    failed = tests();
    atomic_store(&noise_stop, 1);
    pthread_join(thread, NULL);
    return failed || atomic_load(&noise_failed);
}

#endif
