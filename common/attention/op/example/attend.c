/* SPDX-License-Identifier: MIT
 *
 * attend.c: a program that has never heard of the Attention Ladder uses its installed library.
 *
 *     cc attend.c -o attend $(pkg-config --cflags --libs attention-ladder-flash) -lm && ./attend
 *
 * Two query heads share one key/value head (multi-query attention). Five queries are the last five
 * of eight tokens, and none may look ahead: the lower-right causal mask. The result is compared
 * with three plain loops; exit status 1 if they differ.
 */
#include <flash_attention_op.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { Nq = 5, Nk = 8, H = 2, Hkv = 1, d = 4 };

/* Every call can fail; a program should say so. */
static void must(FlashAttentionStatus status, const char *what)
{
    if (status != FLASH_ATTENTION_SUCCESS) {
        fprintf(stderr, "%s: %s\n", what, flash_attention_status_string(status));
        exit(1);
    }
}

/* out of query i, head h, channel x, by the definition. */
static double plain(const float *q, const float *k, const float *v, int i, int h, int x)
{
    double sum = 0, weighted = 0;
    for (int j = 0; j <= i + Nk - Nq; j++) {
        double s = 0;
        for (int y = 0; y < d; y++)
            s += (double)q[(i * H + h) * d + y] * (double)k[j * d + y];
        sum += exp(s / sqrt((double)d));
        weighted += exp(s / sqrt((double)d)) * (double)v[j * d + x];
    }
    return weighted / sum;
}

int main(void)
{
    static float q[Nq * H * d], k[Nk * Hkv * d], v[Nk * Hkv * d], out[Nq * H * d], lse[H * Nq];
    const int64_t q_shape[] = {Nq, H, d}, k_shape[] = {Nk, Hkv, d};
    FlashAttentionHandle *handle;
    FlashAttentionTensor q_like, k_like; /* out looks like q, v like k */
    FlashAttention *op;
    size_t bytes;
    double worst = 0;
    for (int n = 0; n < Nq * H * d; n++)
        q[n] = sinf((float)(3 * n + 1));
    for (int n = 0; n < Nk * Hkv * d; n++) {
        k[n] = 2 * cosf((float)(5 * n + 2));
        v[n] = (float)(n % 7);
    }

    /* once */
    must(flash_attention_create_handle(&handle, FLASH_ATTENTION_CPU, 0), "handle");
    must(flash_attention_describe(&q_like, FLASH_ATTENTION_F32, 3, q_shape, NULL), "q");
    must(flash_attention_describe(&k_like, FLASH_ATTENTION_F32, 3, k_shape, NULL), "k");
    must(flash_attention_create(handle, &op, &q_like, &q_like, &k_like, &k_like, NULL,
                                FLASH_ATTENTION_MASK_CAUSAL_LOWER_RIGHT, NULL),
         "operator");
    must(flash_attention_workspace_size(op, &bytes), "workspace size");
    void *workspace = malloc(bytes);
    must(workspace ? FLASH_ATTENTION_SUCCESS : FLASH_ATTENTION_INTERNAL_ERROR, "memory");

    /* many times */
    must(flash_attention_run(op, workspace, bytes, out, q, k, v, NULL, lse, NULL), "run");

    must(flash_attention_destroy(op), "destroy");
    must(flash_attention_destroy_handle(handle), "destroy handle");
    free(workspace);

    for (int i = 0; i < Nq; i++)
        for (int h = 0; h < H; h++) {
            printf("query %d head %d  lse %7.4f  out", i, h, (double)lse[h * Nq + i]);
            for (int x = 0; x < d; x++) {
                const float found = out[(i * H + h) * d + x];
                const double error = fabs((double)found - plain(q, k, v, i, h, x));
                worst = error <= worst ? worst : error; /* a NaN becomes the worst */
                printf(" %7.4f", (double)found);
            }
            printf("\n");
        }
    printf("largest difference from the plain loops: %.1e\n", worst);
    return worst < 1e-5 ? 0 : 1;
}
