/* SPDX-License-Identifier: MIT
 *
 * npy.h: NumPy's .npy files, formats 1.0 to 3.0, little-endian, C order.
 *
 * Interface:
 * - npy_read: whole file into memory, or one sentence saying what is wrong with it.
 * - npy_write_f32: a float32 array; half a file does not stay.
 */
#ifndef ATTN_NPY_H
#define ATTN_NPY_H

#include <stddef.h>
#include <stdint.h>

#define NPY_MAX_DIMS   8
#define NPY_ERROR_SIZE 512

typedef enum NpyType { NPY_F2, NPY_F4, NPY_F8, NPY_U1, NPY_BOOL, NPY_I4, NPY_I8 } NpyType;

typedef struct NpyArray {
    NpyType type;
    int ndim;
    int64_t shape[NPY_MAX_DIMS];
    int64_t count; /* product of the shape */
    void *data;    /* count elements, C order; npy_free releases it */
} NpyArray;

#define NPY_NO_MEMORY (-2)

/* 0, or -1 with one sentence in error that names the file, what was found and what is accepted;
 * NPY_NO_MEMORY, with a sentence, when it is not the file's fault. */
int npy_read(const char *path, NpyArray *out, char error[NPY_ERROR_SIZE]);
/* The same from memory (the fuzzer's door). name stands in the messages. */
int npy_parse(const unsigned char *bytes, size_t size, const char *name, NpyArray *out,
              char error[NPY_ERROR_SIZE]);
int npy_write_f32(const char *path, const float *data, int ndim, const int64_t *shape,
                  char error[NPY_ERROR_SIZE]);
double npy_value(const NpyArray *a, int64_t i); /* element i as double, any type */
const char *npy_type_name(NpyType type);        /* "f2" ... */
void npy_free(NpyArray *a);
#endif
