/* SPDX-License-Identifier: MIT
 *
 * npy_write.c: writes a float32 array. Half a file does not stay. A caller that wants to keep the
 * old file until the new one is whole gives a temporary name and renames it (report_save.c).
 *
 * Interface: npy.h, npy_write_f32.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness/io/npy_internal.h"

/* The front of a float32 file, padded so that the data begins at a multiple of 64. Returns its
 * length. */
static size_t make_front(unsigned char front[256], int ndim, const int64_t *shape)
{
    char *text = (char *)front + 10;
    size_t n, length;
    int t;
    memset(front, ' ', 256);
    n = (size_t)sprintf(text, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (t = 0; t < ndim; t++)
        n += (size_t)sprintf(text + n, t == 0 ? "%lld," : " %lld,", (long long)shape[t]);
    if (ndim > 1)
        n--; /* (2, 3), but (2,) */
    n += (size_t)sprintf(text + n, "), }");
    text[n] = ' ';
    length = (10 + n + 1 + 63) / 64 * 64;
    front[length - 1] = '\n';
    memcpy(front, NPY_MAGIC "\x01\x00", 8);
    front[8] = (unsigned char)((length - 10) & 0xFF);
    front[9] = (unsigned char)((length - 10) >> 8);
    return length;
}

int npy_write_f32(const char *path, const float *data, int ndim, const int64_t *shape,
                  char error[NPY_ERROR_SIZE])
{
    NpyArray a = {.type = NPY_F4, .ndim = ndim};
    unsigned char front[256];
    size_t bytes = 0, length;
    FILE *f;
    int t, good, why;
    if (ndim < 0 || ndim > NPY_MAX_DIMS)
        return npy_refuse(error, path, "cannot be written: 0 to %d dimensions are accepted, not %d",
                          NPY_MAX_DIMS, ndim);
    for (t = 0; t < ndim; t++)
        if ((a.shape[t] = shape[t]) < 0)
            return npy_refuse(error, path, "cannot be written: the shape has a negative size");
    if (npy_count_elements(&a, path, error, &bytes) != 0)
        return -1;
    length = make_front(front, ndim, shape);
    f = fopen(path, "wbe");
    good = f && fwrite(front, 1, length, f) == length && fwrite(data, 1, bytes, f) == bytes;
    why = errno;
    if (f && fclose(f) != 0 && good) { /* a full disk may show only here */
        why = errno;
        good = 0;
    }
    if (f && !good)
        unlink(path);
    return good ? 0 : npy_refuse(error, path, "cannot be written: %s", strerror(why));
}
