/* SPDX-License-Identifier: MIT
 *
 * pair_backward.c: a solution of exercise 7 of docs/lab/04_exercises.md: the backward pass one
 * pair (query, key) at a time, as a shared object for `flash_backward --variant-so`. O and lse are
 * there already.
 *
 * Nothing of size Nq x Nk is kept: P_ij is computed again from Q_i, K_j and lse_i, used three times
 * and forgotten. The functions of common/ are those of the program that loads this.
 *
 * Interface: flash_backward_variant, flash_backward_abi_version.
 */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "attn_pairs.h"
#include "tensor.h"
#include "variant_so.h"

int flash_backward_abi_version = FLASH_BACKWARD_ABI_VERSION;

typedef struct Rows {
    float *Q_i, *dO_i, *O_i, *dQ_i, *K_j, *V_j; /* [d] */
} Rows;

static float dot(const float *a, const float *b, int64_t d)
{
    float sum = 0.0f;
    for (int64_t x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

/* Query i of head h: its dQ, and what it adds to dK and dV [Nk][d] of its kv head. */
static void backward_row(const AttnArgs *a, Rows t, int64_t b, int64_t h, int64_t i, float *dK,
                         float *dV)
{
    const int64_t d = a->shape.d, h_kv = h / (a->shape.H / a->shape.Hkv);
    const float lse_i = a->lse[(b * a->shape.H + h) * a->shape.Nq + i];
    tensor_read_row(&a->Q, b, i, h, t.Q_i);
    tensor_read_row(&a->dO, b, i, h, t.dO_i);
    tensor_read_row(&a->O, b, i, h, t.O_i);
    memset(t.dQ_i, 0, (size_t)d * sizeof *t.dQ_i);
    const float delta_i = dot(t.dO_i, t.O_i, d);
    for (int64_t j = 0; j < a->shape.Nk; j++) {
        if (!attn_sees(a, i, j))
            continue; /* so lse_i is finite from here on */
        tensor_read_row(&a->K, b, j, h_kv, t.K_j);
        tensor_read_row(&a->V, b, j, h_kv, t.V_j);
        const float s = attn_score(a, dot(t.Q_i, t.K_j, d)); /* scale and cap */
        const float p = expf(s - lse_i), dP = dot(t.dO_i, t.V_j, d);
        float dS = p * (dP - delta_i);
        if (a->softcap > 0.0f)
            dS *= 1.0f - (s / a->softcap) * (s / a->softcap);
        for (int64_t x = 0; x < d; x++) {
            t.dQ_i[x] += a->scale * dS * t.K_j[x];
            dK[j * d + x] += a->scale * dS * t.Q_i[x];
            dV[j * d + x] += p * t.dO_i[x];
        }
    }
    tensor_write_row(&a->dQ, b, i, h, t.dQ_i);
}

AttnStatus flash_backward_variant(const AttnArgs *a)
{
    const AttnShape *n = &a->shape;
    const int64_t d = n->d, group = n->H / n->Hkv;
    float *memory = workspace_alloc((size_t)((6 + 2 * n->Nk) * d) * sizeof *memory);
    if (!memory)
        return ATTN_NO_MEMORY;
    const Rows rows = {memory,         memory + d,     memory + 2 * d,
                       memory + 3 * d, memory + 4 * d, memory + 5 * d};
    float *dK = memory + 6 * d, *dV = dK + n->Nk * d;
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h_kv = 0; h_kv < n->Hkv; h_kv++) {
            memset(dK, 0, (size_t)(2 * n->Nk * d) * sizeof *dK); /* dV lies behind it */
            for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++)
                for (int64_t i = 0; i < n->Nq; i++)
                    backward_row(a, rows, b, h, i, dK, dV);
            for (int64_t j = 0; j < n->Nk; j++) {
                tensor_write_row(&a->dK, b, j, h_kv, dK + j * d);
                tensor_write_row(&a->dV, b, j, h_kv, dV + j * d);
            }
        }
    workspace_free(memory);
    return ATTN_OK;
}
