/* SPDX-License-Identifier: MIT
 *
 * normalise.c: QK normalisation. Long keys and queries make large scores, and a softmax of large
 * scores is a choice of one key; dividing each vector by its own size keeps the scores in range
 * whatever the layers before did. Grouped RMSNorm does that for every `group` channels of a head:
 *
 *     r    = 1 / sqrt(mean of x^2 over the group + eps)
 *     xn_c = w_c x_c r                                    w: learned, one weight a channel and head
 *
 * Backward, with g_c = dL/dxn_c. x_c reaches the loss along two ways: through its own xn_c, and
 * through r, which all channels of the group share. dr/dx_c = -r^3 x_c / group, hence
 *
 *     dx_c = r w_c g_c - (r^3 / group) x_c sum_e w_e g_e x_e
 *     dw_c = sum over all tokens of g_c x_c r
 *
 * dw is the only sum over tokens, and floating-point sums depend on their order. Threads that add
 * as they come would give other bits on every run. So tokens are cut into blocks of a fixed size;
 * each block has a sum of its own, and the blocks are added in order, whoever computed them.
 *
 * Interface: window_normalise, window_normalise_backward (window_library.h).
 */
#include <math.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "alloc.h"
#include "attention/window/window_library.h"
#include "tensor.h"

#define TOKENS 64 /* of a block */

static int thread_index(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* 1 / the size of one group x [group]. Values of 1e30 have a size, but their squares overflow: NaN,
 * since 1 / inf would make zeros of the row that look like a result. */
static float reciprocal_rms(const float *x, int64_t group, float eps)
{
    float sum = 0.0f;
    for (int64_t c = 0; c < group; c++)
        sum += x[c] * x[c];
    return sum < INFINITY ? 1.0f / sqrtf(sum / (float)group + eps) : NAN;
}

AttnStatus window_normalise(const Tensor *X, const float *w, int64_t group, float eps, int threads,
                            Tensor *Xn)
{
    const int64_t N = X->shape[1], heads = X->shape[2], d = X->shape[3];
    float *rows = workspace_alloc((size_t)(threads * d) * sizeof *rows); /* [threads][d] */
    if (!rows)
        return ATTN_NO_MEMORY;
    *Xn =
        (Tensor){Xn->data, X->dtype, {X->shape[0], N, heads, d}, {N * heads * d, heads * d, d, 1}};
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t token = 0; token < X->shape[0] * N; token++) {
        float *x = rows + thread_index() * d;
        for (int64_t h = 0; h < heads; h++) {
            tensor_read_row(X, token / N, token % N, h, x);
            for (int64_t first = 0; first < d; first += group) {
                const float r = reciprocal_rms(x + first, group, eps);
                for (int64_t c = first; c < first + group; c++)
                    x[c] *= r * w[h * d + c];
            }
            tensor_write_row(Xn, token / N, token % N, h, x);
        }
    }
    workspace_free(rows);
    return ATTN_OK;
}

/* One head of one token: x [d] becomes dx, and what it adds to dw [d]. w, g = dxn [d] */
static void normalise_row_backward(float *x, const float *w, const float *g, int64_t d,
                                   int64_t group, float eps, float *dw)
{
    for (int64_t first = 0; first < d; first += group) {
        const float r = reciprocal_rms(x + first, group, eps);
        float shared = 0.0f;
        for (int64_t c = first; c < first + group; c++)
            shared += w[c] * g[c] * (x[c] * r);
        shared /= (float)group;
        for (int64_t c = first; c < first + group; c++) {
            const float unit = x[c] * r; /* r * x is at most sqrt(group): nothing overflows */
            dw[c] += g[c] * unit;
            x[c] = r * (w[c] * g[c] - unit * shared);
        }
    }
}

AttnStatus window_normalise_backward(const Tensor *X, const float *w, int64_t group, float eps,
                                     const float *dXn, int threads, Tensor *dX, float *dw)
{
    const int64_t N = X->shape[1], heads = X->shape[2], d = X->shape[3], width = heads * d;
    const int64_t tokens = X->shape[0] * N, blocks = (tokens + TOKENS - 1) / TOKENS;
    /* rows [threads][d], sums [blocks][heads*d] */
    float *rows = workspace_alloc((size_t)(threads * d + blocks * width) * sizeof *rows);
    float *sums = rows + threads * d;
    if (!rows)
        return ATTN_NO_MEMORY;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t block = 0; block < blocks; block++) {
        float *x = rows + thread_index() * d, *sum = sums + block * width;
        const int64_t end = (block + 1) * TOKENS < tokens ? (block + 1) * TOKENS : tokens;
        for (int64_t c = 0; c < width; c++)
            sum[c] = 0.0f;
        for (int64_t token = block * TOKENS; token < end; token++)
            for (int64_t h = 0; h < heads; h++) {
                tensor_read_row(X, token / N, token % N, h, x);
                normalise_row_backward(x, w + h * d, dXn + token * width + h * d, d, group, eps,
                                       sum + h * d);
                tensor_write_row(dX, token / N, token % N, h, x);
            }
    }
    for (int64_t c = 0; dw && c < width; c++) {
        dw[c] = 0.0f;
        for (int64_t block = 0; block < blocks; block++)
            dw[c] += sums[block * width + c];
    }
    workspace_free(rows);
    return ATTN_OK;
}
