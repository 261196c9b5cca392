/* SPDX-License-Identifier: MIT
 *
 * tensor.h: 16-bit floats, rows of strided tensors, and host storage that catches overruns.
 *
 * Interface:
 * - f16_from_f32 / f32_from_f16, bf16_from_f32 / f32_from_bf16: round to nearest, ties to even,
 *   subnormals kept, overflow to infinity. The CUDA intrinsics give the same bits for every number;
 *   a NaN stays a NaN (quiet, sign and upper payload kept, as x86 does; CUDA has only one NaN).
 * - tensor_read_row / tensor_write_row: one head's row of d channels as float. row_nonfinite,
 *   row_nan: how many of its values are that.
 * - tensor_new: host storage with a guard page behind its last byte (an overrun faults), a canary
 * in front, and NaN in every byte that belongs to no element.
 */
#ifndef ATTN_TENSOR_H
#define ATTN_TENSOR_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

uint16_t f16_from_f32(float x);
float f32_from_f16(uint16_t bits);
uint16_t bf16_from_f32(float x);
float f32_from_bf16(uint16_t bits);

/* Rounds x to the dtype and back: the value a tensor of that dtype can hold. */
float dtype_round(AttnDtype dtype, float x);
size_t dtype_size(AttnDtype dtype);
const char *dtype_name(AttnDtype dtype); /* "f32" "f16" "bf16" */

/* element = tensor_offset(...) + x */
float tensor_get(const Tensor *t, int64_t element);
void tensor_set(const Tensor *t, int64_t element, float value);
/* row [d]: channels 0 .. shape[3]-1 of (b, n, h), converted from / rounded to the dtype */
void tensor_read_row(const Tensor *t, int64_t b, int64_t n, int64_t h, float *row);
void tensor_write_row(const Tensor *t, int64_t b, int64_t n, int64_t h, const float *row);
/* how many values of such a row are infinite or NaN, and NaN; up to 1024 channels */
int64_t row_nonfinite(const Tensor *t, int64_t b, int64_t n, int64_t h);
int64_t row_nan(const Tensor *t, int64_t b, int64_t n, int64_t h);

/* How the elements lie in memory. ODD has a gap after every row of d channels and an odd element
 * offset, so that nothing but single-element alignment can be assumed. */
typedef enum TensorLayout { LAYOUT_BSHD, LAYOUT_SBHD, LAYOUT_BHSD, LAYOUT_ODD } TensorLayout;

/* Host storage of one tensor. `bytes` counts from `base` (first element's byte or the gap before
 * it) to the guard page, so base .. base+bytes is what a copy to a device has to move. */
typedef struct Storage {
    Tensor view; /* view.data points into base */
    unsigned char *base;
    size_t bytes;
    void *mapping; /* what munmap gets */
    size_t mapping_bytes;
} Storage;

/* 0, or -1 when memory is short, a size is < 1 or the bytes pass 2^63 (s is zeroed then). The last
 * element ends where the guard page begins (ODD may leave one element). [B][H][Nq][1] in BSHD
 * order is a guarded lse. All bytes are 0xFF at first: NaN in all three dtypes. */
int tensor_new(Storage *s, AttnDtype dtype, TensorLayout layout, int64_t B, int64_t N, int64_t H,
               int64_t d);
void tensor_poison(const Storage *s); /* writes 0xFF over all bytes again */
int tensor_intact(const Storage *s);  /* 1: canary and all stride gaps still hold 0xFF */
uint64_t
tensor_fingerprint(const Storage *s); /* of all bytes: tells whether an input was written */
void tensor_free(Storage *s);

/* Heads first .. first+count-1 of a tensor, as a tensor. */
Tensor tensor_heads(const Tensor *t, int64_t first, int64_t count);

/* Elements of the tensor as if contiguous: logical index ((b*N + n)*H + h)*d + x -> channel. */
int64_t tensor_count(const Tensor *t);

#ifdef __cplusplus
}
#endif
#endif
