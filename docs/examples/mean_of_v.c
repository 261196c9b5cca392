/* SPDX-License-Identifier: MIT
 *
 * mean_of_v.c: a wrong program for lesson 01.5, as a shared object for `naive --variant-so`. It
 * ignores Q and K: O is the mean of all rows of V, and lse = ln Nk, as if every score were 0.
 *
 * Interface: naive_variant.
 */
#include <math.h>

#include "attn.h"
#include "tensor.h"

AttnStatus naive_variant(const AttnArgs *args)
{
    const AttnShape *n = &args->shape;
    const int64_t group = n->H / n->Hkv; /* query heads that share a kv head */
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t i = 0; i < n->Nq; i++) {
                const int64_t O = tensor_offset(&args->O, b, i, h);
                for (int64_t x = 0; x < n->d; x++) {
                    float sum = 0.0f;
                    for (int64_t j = 0; j < n->Nk; j++)
                        sum += tensor_get(&args->V, tensor_offset(&args->V, b, j, h / group) + x);
                    tensor_set(&args->O, O + x, sum / (float)n->Nk);
                }
                args->lse[(b * n->H + h) * n->Nq + i] = logf((float)n->Nk); /* [B][H][Nq] */
            }
    return ATTN_OK;
}
