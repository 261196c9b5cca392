/* SPDX-License-Identifier: MIT
 *
 * npy.c: reads NumPy's .npy files without trusting a byte of them.
 *
 * A file is
 *
 *     \x93NUMPY  major minor  length (2 bytes; 4 from format 2.0 on)  header  data
 *
 * and the header is a Python dict that npy_header.c parses. Sizes are multiplied with overflow
 * checks before anything is allocated, and the data must be as long as the shape says.
 *
 * Interface: npy.h (npy_write_f32 is in npy_write.c).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc.h"
#include "harness/io/npy_internal.h"
#include "tensor.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "data is copied without swapping bytes");

#define PREFIX     12    /* magic, version and the longer form of the length */
#define MAX_HEADER 65535 /* what format 1.0 can say; a longer one is no plain array */

/* Reads everything before the data. file_size is that of the whole file; `size` bytes of it, enough
 * for any accepted header, are here. On success *offset and *bytes say where the data is. */
static int parse_front(const unsigned char *front, size_t size, uint64_t file_size,
                       const char *name, NpyArray *out, size_t *offset, size_t *bytes, char *error)
{
    size_t length, start;
    memset(out, 0, sizeof *out);
    if (size < 10 || memcmp(front, NPY_MAGIC, 6) != 0)
        return npy_refuse(error, name, "not a .npy file (it does not begin with \\x93NUMPY)");
    if (front[6] < 1 || front[6] > 3 || front[7] != 0)
        return npy_refuse(error, name, ".npy format %d.%d; accepted are 1.0, 2.0 and 3.0", front[6],
                          front[7]);
    start = front[6] == 1 ? 10 : PREFIX;
    if (size < start)
        return npy_refuse(error, name, "the file ends inside the .npy header");
    length = (size_t)front[8] | (size_t)front[9] << 8;
    if (front[6] > 1)
        length |= (size_t)front[10] << 16 | (size_t)front[11] << 24;
    if (length > MAX_HEADER)
        return npy_refuse(error, name,
                          "the .npy header says it has %zu bytes; at most %d are accepted", length,
                          MAX_HEADER);
    if (size - start < length)
        return npy_refuse(error, name, "the file ends inside the .npy header");
    if (npy_parse_header((const char *)front + start, length, name, out, error) != 0 ||
        npy_count_elements(out, name, error, bytes) != 0)
        return -1;
    *offset = start + length;
    if (file_size - *offset != *bytes)
        return npy_refuse(error, name, "%llu bytes of data; its shape and dtype need %zu",
                          (unsigned long long)(file_size - *offset), *bytes);
    if (!memory_enough_for(*bytes) || !(out->data = malloc(*bytes)))
        return npy_refuse_memory(error, name, "its numbers");
    return 0;
}

/* What can only be said when the data is here. Gives the array up on failure. */
static int check_data(NpyArray *a, const char *name, char *error)
{
    const unsigned char *p = a->data;
    int64_t i;
    if (a->type == NPY_BOOL)
        for (i = 0; i < a->count; i++)
            if (p[i] > 1) {
                npy_refuse(error, name, "a bool array has the byte %d; accepted are 0 and 1", p[i]);
                npy_free(a);
                return -1;
            }
    return 0;
}

int npy_parse(const unsigned char *bytes, size_t size, const char *name, NpyArray *out,
              char error[NPY_ERROR_SIZE])
{
    size_t offset = 0, data_bytes = 0;
    const int failed = parse_front(bytes, size, size, name, out, &offset, &data_bytes, error);
    if (failed)
        return failed;
    memcpy(out->data, bytes + offset, data_bytes);
    return check_data(out, name, error);
}

static int read_open_file(FILE *f, uint64_t file_size, const char *path, NpyArray *out, char *error)
{
    unsigned char *front = malloc(PREFIX + MAX_HEADER);
    size_t size, offset = 0, bytes = 0;
    int failed;
    if (!front)
        return npy_refuse_memory(error, path, "its header");
    size = fread(front, 1, PREFIX + MAX_HEADER, f);
    failed = ferror(f) ? npy_refuse(error, path, "reading failed: %s", strerror(errno))
                       : parse_front(front, size, file_size, path, out, &offset, &bytes, error);
    free(front);
    if (failed)
        return failed;
    if (fseek(f, (long)offset, SEEK_SET) != 0 || fread(out->data, 1, bytes, f) != bytes) {
        npy_free(out);
        return npy_refuse(error, path, "reading failed: %s",
                          ferror(f) ? strerror(errno) : "the file became shorter");
    }
    return check_data(out, path, error);
}

int npy_read(const char *path, NpyArray *out, char error[NPY_ERROR_SIZE])
{
    struct stat info;
    FILE *f;
    int failed;
    memset(out, 0, sizeof *out);
    if (stat(path, &info) != 0)
        return npy_refuse(error, path, "cannot be opened: %s", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return npy_refuse(error, path, "not a regular file");
    f = fopen(path, "rb");
    if (!f)
        return npy_refuse(error, path, "cannot be opened: %s", strerror(errno));
    failed = read_open_file(f, (uint64_t)info.st_size, path, out, error);
    fclose(f);
    return failed;
}

double npy_value(const NpyArray *a, int64_t i)
{
    switch (a->type) {
    case NPY_F2:
        return (double)f32_from_f16(((const uint16_t *)a->data)[i]);
    case NPY_F4:
        return (double)((const float *)a->data)[i];
    case NPY_F8:
        return ((const double *)a->data)[i];
    case NPY_I4:
        return (double)((const int32_t *)a->data)[i];
    case NPY_I8:
        return (double)((const int64_t *)a->data)[i];
    default:
        return (double)((const uint8_t *)a->data)[i];
    }
}

const char *npy_type_name(NpyType type)
{
    return npy_kinds[type].name;
}

void npy_free(NpyArray *a)
{
    free(a->data);
    a->data = NULL;
}
