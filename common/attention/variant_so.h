/* SPDX-License-Identifier: MIT
 *
 * variant_so.h: what a shared object for --variant-so exports.
 *
 * STAGE is naive, tiled_softmax, flash_forward, flash_backward or sliding_window:
 *
 *     int STAGE_abi_version = ..._ABI_VERSION;
 *     AttnStatus STAGE_variant(const AttnArgs *args);
 *     AttnStatus STAGE_variant_backward(const AttnArgs *args);    for --backward: stages 01, 05
 *
 * flash_backward_variant is the backward pass: O and lse are there already, from stage 03.
 * sliding_window_variant takes AttnArgs with AttnOptions; QK normalisation and the temperature,
 * which is part of the scale, are done around it. Packed tensors and layouts are strides, several
 * sequences are segments of the position maps.
 *
 * Interface: NAIVE_ABI_VERSION and its like. (Stage 06: 06_ring_burst/runtime/simulate.h.)
 */
#ifndef VARIANT_SO_H
#define VARIANT_SO_H

#include "attn.h"

#define NAIVE_ABI_VERSION          2
#define TILED_SOFTMAX_ABI_VERSION  2
#define FLASH_FORWARD_ABI_VERSION  2
#define FLASH_BACKWARD_ABI_VERSION 2
#define SLIDING_WINDOW_ABI_VERSION 2

#endif
