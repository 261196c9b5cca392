/* SPDX-License-Identifier: MIT
 *
 * e4m3.h: bytes as numbers: a sign, 4 bits of exponent, 3 of fraction; no infinity, one NaN.
 *
 * Interface:
 * - e4m3_from_f32: to the nearest, ties to even, above 448 to 448, as cvt.rn.satfinite does.
 *   f32_from_e4m3.
 * - e4m3_scale: the power of two for a block whose largest number is given.
 * - tensor_e4m3: what bytes and a scale for each head and block of tokens hold of a tensor.
 */
#ifndef ATTN_E4M3_H
#define ATTN_E4M3_H

#include "attn.h"

uint8_t e4m3_from_f32(float x);
float f32_from_e4m3(uint8_t byte);

/* The smallest power of two with largest / scale <= 448, so that no number of the block is cut. */
float e4m3_scale(float largest);

/* t [B][N][heads][d]; `block` tokens of a head share a scale. With bytes NULL each number becomes
 * what its byte and scale hold, in place. Else bytes [B][N][heads][d] and scales
 * [B][heads][ceil(N / block)] get them, and t stays. Doing the first and then the second loses
 * nothing. An infinity becomes a NaN. */
void tensor_e4m3(const Tensor *t, int64_t block, uint8_t *bytes, float *scales);
#endif
