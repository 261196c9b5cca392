/* SPDX-License-Identifier: MIT
 *
 * attention.h: a whole attention pass as one function, the contracts of the stages. AttnArgs and
 * everything in it is explained in attn.h; read its first page before you begin.
 *
 * What every pass has to know:
 *
 *     shape      B batches, H query heads, Hkv key/value heads, Nq queries, Nk keys, d channels.
 *                Query head h reads key/value head h / (H / Hkv).
 *     tensors    views with strides: element x of token n, head h, batch b is at
 *                tensor_offset(&args->Q, b, n, h) + x. dtype says float32, float16 or bfloat16;
 *                tensor_read_row and tensor_write_row in tensor.h convert a row.
 *     scale      multiplies q.k. softcap: 0 in the course.
 *     mask       attn_sees(args, i, j) is 1 if query i may look at key j.
 *     lse        float32 [B][H][Nq]: natural logarithm of the sum of exp(s) over a row.
 *     no keys    A row that sees no key has O = 0, lse = -inf and zero gradients, never NaN.
 *
 * Return ATTN_OK, or ATTN_NO_MEMORY when malloc fails. Inputs are read-only. Outputs hold NaN
 * before the call: what you do not write is wrong.
 *
 * Interface (write the one that the assignment asks for):
 * - naive_variant, tiled_softmax_variant, flash_forward_variant, sliding_window_variant: O and lse
 *   from Q, K and V.
 * - naive_variant_backward, sliding_window_variant_backward: after the forward pass of the same
 *   file; dQ, dK and dV from Q, K, V, dO and the O and lse that it wrote.
 * - flash_backward_variant: dQ, dK and dV from Q, K, V, dO and a correct O and lse.
 */
#ifndef COURSE_ATTENTION_H
#define COURSE_ATTENTION_H

#include "attn.h"
#include "attn_pairs.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

AttnStatus naive_variant(const AttnArgs *args);
AttnStatus naive_variant_backward(const AttnArgs *args);
AttnStatus tiled_softmax_variant(const AttnArgs *args);
AttnStatus flash_forward_variant(const AttnArgs *args);
AttnStatus flash_backward_variant(const AttnArgs *args);
AttnStatus sliding_window_variant(const AttnArgs *args);
AttnStatus sliding_window_variant_backward(const AttnArgs *args);

#ifdef __cplusplus
}
#endif
#endif
