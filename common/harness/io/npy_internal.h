/* SPDX-License-Identifier: MIT
 *
 * npy_internal.h: what the reader (npy.c), the header parser (npy_header.c) and the writer
 * (npy_write.c) of .npy files share.
 *
 * Interface:
 * - npy_kinds: the accepted element types, indexed by NpyType.
 * - npy_refuse, npy_refuse_memory: write "<name>: <sentence>".
 * - npy_parse_header, npy_count_elements: below.
 */
#ifndef ATTN_NPY_INTERNAL_H
#define ATTN_NPY_INTERNAL_H

#include "harness/io/npy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NPY_MAGIC "\x93NUMPY"

typedef struct NpyKind {
    char descr[4];
    const char *name;
    size_t size;
} NpyKind;

extern const NpyKind npy_kinds[7];

/* Returns -1, so that a refusal is one return statement. */
__attribute__((format(printf, 3, 4))) int npy_refuse(char *error, const char *name,
                                                     const char *format, ...);
/* "not enough memory for <what>": NPY_NO_MEMORY. */
int npy_refuse_memory(char *error, const char *name, const char *what);
/* text [length]: the header's dict -> type, ndim and shape of *a, which was zeroed. 0 or -1. */
int npy_parse_header(const char *text, size_t length, const char *name, NpyArray *a, char *error);
/* type and shape -> a->count and the bytes of the data. 0, or -1 for an empty array or too many. */
int npy_count_elements(NpyArray *a, const char *name, char *error, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
