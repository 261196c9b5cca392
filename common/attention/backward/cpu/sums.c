/* SPDX-License-Identifier: MIT
 *
 * sums.c: what all backward passes share: delta, and gradients in float32.
 *
 * Why delta = rowsum(dO * O): cpu/v1_fa2_backward.c of stage 04 derives it.
 *
 * Interface: flash_backward_delta, flash_sums_start, flash_sums_store,
 * flash_backward_set_deterministic (backward_library.h).
 */
#include <string.h>

#include "attention/backward/backward_library.h"
#include "tensor.h"

static int deterministic; /* what --deterministic said */

void flash_backward_set_deterministic(int yes)
{
    deterministic = yes != 0;
}

int flash_backward_deterministic(void)
{
    return deterministic;
}

void flash_backward_delta(const AttnArgs *args, float *delta)
{
    const AttnShape *n = &args->shape;
    const int64_t rows = n->B * n->H * n->Nq;
    const int threads = args->threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t b = row / (n->H * n->Nq), h = row / n->Nq % n->H, i = row % n->Nq;
        const int64_t O_row = tensor_offset(&args->O, b, i, h);
        const int64_t dO_row = tensor_offset(&args->dO, b, i, h);
        float sum = 0.0f;
        for (int64_t x = 0; x < n->d; x++) {
            const float O = tensor_get(&args->O, O_row + x);
            /* a row without keys: O is 0, dO may be padding, and 0 * NaN would be NaN */
            sum += O == 0.0f ? 0.0f : tensor_get(&args->dO, dO_row + x) * O;
        }
        delta[row] = sum;
    }
}

void flash_sums_start(const AttnShape *n, FlashSums sums)
{
    memset(sums.dQ, 0, (size_t)(n->B * n->Nq * n->H * n->d) * sizeof *sums.dQ);
    memset(sums.dK, 0, (size_t)(n->B * n->Nk * n->Hkv * n->d) * sizeof *sums.dK);
    memset(sums.dV, 0, (size_t)(n->B * n->Nk * n->Hkv * n->d) * sizeof *sums.dV);
}

/* from [B][N][heads][d] -> t, rounded to its dtype */
static void store_tensor(const Tensor *t, const float *from)
{
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t n = 0; n < t->shape[1]; n++)
            for (int64_t h = 0; h < t->shape[2]; h++, from += t->shape[3])
                tensor_write_row(t, b, n, h, from);
}

void flash_sums_store(const AttnArgs *args, FlashSums sums)
{
    store_tensor(&args->dQ, sums.dQ);
    store_tensor(&args->dK, sums.dK);
    store_tensor(&args->dV, sums.dV);
}
