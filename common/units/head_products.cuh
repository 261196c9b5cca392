/* SPDX-License-Identifier: MIT
 *
 * head_products.cuh: the two products of attention on a GPU, for a softmax of one's own between
 * them. With cuBLAS they are cuBLAS's; in a build without it one thread computes one result.
 *
 * Interface:
 * - HeadProducts: sizes and what makes a score. multiply_QK, multiply_PV: 0, or -1 with a sentence
 *   on stderr. T: float, __half, __nv_bfloat16. product_floats: work space of multiply_PV.
 */
#ifndef UNITS_HEAD_PRODUCTS_CUH
#define UNITS_HEAD_PRODUCTS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

struct HeadProducts {
    int B, H, Hkv, Nq, Nk, d;
    int is_f32;           /* T is float */
    float scale, softcap; /* softcap 0: no cap */
    int from, to;         /* query i sees key j when from <= j - i <= to ... */
    const uint8_t *mask;  /* ... and mask [Nq][Nk] is 0 there; NULL: no mask */
    cudaStream_t stream;
};

/* S [B][H][Nq][Nk] of Q [B][Nq][H][d] and K [B][Nk][Hkv][d]: scaled, capped, -inf where hidden. */
template <typename T>
int multiply_QK(const HeadProducts &products, const T *Q, const T *K, float *S);

/* O [B][Nq][H][d] = P V. P [B][H][Nq][Nk] is used up: in 16 bits its rows are rounded in place.
 * work: product_floats floats. */
template <typename T>
int multiply_PV(const HeadProducts &products, float *P, const T *V, float *work, T *O);

static inline int64_t product_floats(const HeadProducts &products)
{
    return (int64_t)products.B * products.H * products.Nq * products.d;
}

#endif
