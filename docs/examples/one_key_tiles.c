/* SPDX-License-Identifier: MIT
 *
 * one_key_tiles.c: a solution of stage 03's exercise 8: FlashAttention-2 with tiles of one query
 * and one key, as a shared object for `flash_forward --variant-so`.
 *
 * A tile of one key has m~ = s, l~ = 1 and P~ V_j = V_j: the update is stage 02's
 * softmax_push with O along. The functions of common/ are those of the program that loads this.
 *
 * Interface: flash_forward_variant, flash_forward_abi_version.
 */
#include <math.h>

#include "alloc.h"
#include "attn_pairs.h"
#include "tensor.h"
#include "variant_so.h"

int flash_forward_abi_version = FLASH_FORWARD_ABI_VERSION;

/* All keys for query i of head h. Q_i, K_j, V_j, O_i [d] */
static float attend_row(const AttnArgs *a, int64_t b, int64_t h, int64_t i, float *Q_i)
{
    const int64_t d = a->shape.d, kv_head = h / (a->shape.H / a->shape.Hkv);
    float *K_j = Q_i + d, *V_j = K_j + d, *O_i = V_j + d;
    float m_i = -INFINITY, l_i = 0.0f;
    tensor_read_row(&a->Q, b, i, h, Q_i);
    for (int64_t x = 0; x < d; x++)
        O_i[x] = 0.0f;
    for (int64_t j = 0; j < a->shape.Nk; j++) {
        float qk = 0.0f;
        if (!attn_sees(a, i, j))
            continue; /* so s is finite from here on, and no shift is needed */
        tensor_read_row(&a->K, b, j, kv_head, K_j);
        tensor_read_row(&a->V, b, j, kv_head, V_j);
        for (int64_t x = 0; x < d; x++)
            qk += Q_i[x] * K_j[x];
        const float s = attn_score(a, qk); /* scale and cap */
        const float m_new = s > m_i ? s : m_i;
        const float alpha = expf(m_i - m_new), p = expf(s - m_new);
        l_i = alpha * l_i + p;
        m_i = m_new;
        for (int64_t x = 0; x < d; x++)
            O_i[x] = alpha * O_i[x] + p * V_j[x];
    }
    for (int64_t x = 0; x < d && l_i > 0.0f; x++)
        O_i[x] /= l_i;
    tensor_write_row(&a->O, b, i, h, O_i);
    return m_i + logf(l_i); /* no key: -inf + log(0) = -inf */
}

AttnStatus flash_forward_variant(const AttnArgs *a)
{
    const AttnShape *n = &a->shape;
    float *rows = workspace_alloc((size_t)(4 * n->d) * sizeof *rows);
    if (!rows)
        return ATTN_NO_MEMORY;
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t i = 0; i < n->Nq; i++)
                a->lse[(b * n->H + h) * n->Nq + i] = attend_row(a, b, h, i, rows);
    workspace_free(rows);
    return ATTN_OK;
}
