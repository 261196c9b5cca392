/* SPDX-License-Identifier: MIT
 *
 * cuda.h: tensor maps, the part of CUDA's driver interface that the suite calls.
 *
 * Interface: CUtensorMap, cuTensorMapEncodeTiled.
 */
#pragma once
#include <stdint.h>

typedef uint64_t cuuint64_t;
typedef uint32_t cuuint32_t;
typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;
typedef struct {
    char *base;
    uint64_t sizes[5], bytes[5]; /* bytes: from one index to the next, of dimensions 1 to 4 */
    uint32_t box[5], rank, element, swizzle;
} SimtTensorMap;
typedef struct {
#ifdef __cplusplus
    alignas(64)
#else
    _Alignas(64)
#endif
        SimtTensorMap m;
} CUtensorMap;
typedef enum {
    CU_TENSOR_MAP_DATA_TYPE_UINT8,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32
} CUtensorMapDataType;
typedef enum { CU_TENSOR_MAP_INTERLEAVE_NONE } CUtensorMapInterleave;
typedef enum {
    CU_TENSOR_MAP_SWIZZLE_NONE,
    CU_TENSOR_MAP_SWIZZLE_32B,
    CU_TENSOR_MAP_SWIZZLE_64B,
    CU_TENSOR_MAP_SWIZZLE_128B
} CUtensorMapSwizzle;
typedef enum {
    CU_TENSOR_MAP_L2_PROMOTION_NONE,
    CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B
} CUtensorMapL2promotion;
typedef enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE } CUtensorMapFloatOOBfill;

#ifdef __cplusplus
extern "C"
#endif
    CUresult
    cuTensorMapEncodeTiled(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
