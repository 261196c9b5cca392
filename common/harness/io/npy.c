/* SPDX-License-Identifier: MIT
 *
 * npy.c: NumPy's .npy files, read without trusting a byte of them, and written.
 *
 * A file is
 *
 *     \x93NUMPY  major minor  length (2 bytes; 4 from format 2.0 on)  header  data
 *
 * and the header is a Python dict in text:
 *
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (2, 300, 8, 64), }
 *
 * Python may write the keys in any order and with any blanks, so the header is parsed, not
 * searched; whatever is not exactly such a dict is refused. Sizes are multiplied with overflow
 * checks before anything is allocated, and the data must be as long as the shape says.
 *
 * Half a file does not stay. A caller that wants to keep the old file until the new one is whole
 * gives a temporary name and renames it (report_save.c).
 *
 * Interface: npy.h.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "harness/io/npy.h"
#include "tensor.h"

/* --- the header --------------------------------------------------------------------------------*/

#define NPY_MAGIC "\x93NUMPY"
#define ACCEPTED  "accepted are <f2 <f4 <f8 |u1 |b1 <i4 <i8"

typedef struct NpyKind {
    char descr[4];
    const char *name;
    size_t size;
} NpyKind;

static const NpyKind kinds[7] = {
    [NPY_F2] = {"<f2", "f2", 2}, [NPY_F4] = {"<f4", "f4", 4},     [NPY_F8] = {"<f8", "f8", 8},
    [NPY_U1] = {"|u1", "u1", 1}, [NPY_BOOL] = {"|b1", "bool", 1}, [NPY_I4] = {"<i4", "i4", 4},
    [NPY_I8] = {"<i8", "i8", 8},
};
#define KIND_COUNT ((int)(sizeof kinds / sizeof kinds[0]))

/* error = "<name>: <sentence>". Of a very long name only the end is shown, so that the sentence
 * always has room. Returns -1. */
__attribute__((format(printf, 3, 4))) static int refuse(char *error, const char *name,
                                                        const char *format, ...)
{
    const size_t length = strlen(name), most = 200;
    va_list args;
    int used = snprintf(error, NPY_ERROR_SIZE, "%s%s: ", length > most ? "..." : "",
                        length > most ? name + length - most : name);
    va_start(args, format);
    vsnprintf(error + used, NPY_ERROR_SIZE - (size_t)used, format, args);
    va_end(args);
    return -1;
}

/* "not enough memory for <what>": NPY_NO_MEMORY. */
static int refuse_memory(char *error, const char *name, const char *what)
{
    refuse(error, name, "not enough memory for %s", what);
    return NPY_NO_MEMORY;
}

/* The rest of the header that is still to be read, and where a complaint goes. */
typedef struct Parser {
    const char *at, *end;
    const char *name;
    char *error;
} Parser;

static int refuse_header(Parser *p, const char *expected)
{
    char found[25];
    size_t t = 0;
    for (; t + 1 < sizeof found && p->at + t < p->end; t++)
        found[t] = p->at[t] >= ' ' && p->at[t] <= '~' ? p->at[t] : '?';
    found[t] = '\0';
    return refuse(p->error, p->name, "the .npy header has \"%s\" where %s is expected", found,
                  expected);
}

static void skip_blanks(Parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
        p->at++;
}

/* 1 and past it if this character comes next (after blanks). */
static int take(Parser *p, char c)
{
    skip_blanks(p);
    if (p->at == p->end || *p->at != c)
        return 0;
    p->at++;
    return 1;
}

/* 1 and past it if this word comes next and ends there. */
static int take_word(Parser *p, const char *word)
{
    const size_t n = strlen(word);
    skip_blanks(p);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return 0;
    if (p->at + n < p->end && strchr(",}) \t\r\n", p->at[n]) == NULL)
        return 0;
    p->at += n;
    return 1;
}

/* A quoted string of at most 31 plain characters without escapes. */
static int parse_string(Parser *p, char out[32], const char *what)
{
    const char *from;
    char quote;
    size_t n;
    skip_blanks(p);
    if (p->at == p->end || (*p->at != '\'' && *p->at != '"'))
        return refuse_header(p, what);
    quote = *p->at;
    from = p->at + 1;
    for (n = 0; n < 32 && from + n < p->end && from[n] != quote; n++)
        if (from[n] < ' ' || from[n] > '~' || from[n] == '\\')
            return refuse_header(p, what);
    if (n == 32 || from + n == p->end)
        return refuse_header(p, what);
    memcpy(out, from, n);
    out[n] = '\0';
    p->at = from + n + 1;
    return 0;
}

static int parse_descr(Parser *p, NpyArray *a)
{
    char descr[32];
    skip_blanks(p);
    if (p->at < p->end && *p->at == '[')
        return refuse(p->error, p->name, "the dtype is structured; " ACCEPTED);
    if (parse_string(p, descr, "a dtype such as '<f4'") != 0)
        return -1;
    for (int t = 0; t < KIND_COUNT; t++)
        if (strcmp(descr, kinds[t].descr) == 0) {
            a->type = (NpyType)t;
            return 0;
        }
    if (descr[0] == '>')
        return refuse(p->error, p->name, "the dtype '%s' is big-endian; " ACCEPTED, descr);
    return refuse(p->error, p->name, "the dtype is '%s'; " ACCEPTED, descr);
}

static int parse_order(Parser *p)
{
    if (take_word(p, "False"))
        return 0;
    if (take_word(p, "True"))
        return refuse(p->error, p->name,
                      "the array is in Fortran order; C order is accepted "
                      "(numpy.ascontiguousarray)");
    return refuse_header(p, "True or False");
}

/* One size: decimal digits, no sign, no leading zero (Python refuses that too). */
static int parse_size(Parser *p, int64_t *size)
{
    const char *from;
    int64_t value = 0;
    skip_blanks(p);
    from = p->at;
    if (p->at + 1 < p->end && *p->at == '-' && p->at[1] >= '0' && p->at[1] <= '9')
        return refuse(p->error, p->name, "the shape has a negative size; sizes are 1 or more");
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *p->at - '0', &value))
            return refuse(p->error, p->name, "the shape has a size above 2^63");
    if (p->at == from || (p->at - from > 1 && *from == '0')) {
        p->at = from;
        return refuse_header(p, "a size");
    }
    *size = value;
    return 0;
}

static int parse_shape(Parser *p, NpyArray *a)
{
    int comma = 0;
    if (!take(p, '('))
        return refuse_header(p, "a shape in parentheses");
    while (!take(p, ')')) {
        if (a->ndim > 0 && !comma)
            return refuse_header(p, "a comma or the end of the shape");
        if (a->ndim == NPY_MAX_DIMS)
            return refuse(p->error, p->name, "the array has more than %d dimensions", NPY_MAX_DIMS);
        if (parse_size(p, &a->shape[a->ndim]) != 0)
            return -1;
        a->ndim++;
        comma = take(p, ',');
    }
    if (a->ndim == 1 && !comma) /* (3) is a number in Python; (3,) is a tuple */
        return refuse(p->error, p->name, "the shape of one dimension lacks its comma: (n,)");
    return 0;
}

/* The whole dict: three keys, each once, in any order. */
static int parse_dict(Parser *p, NpyArray *a)
{
    static const char *const keys[3] = {"descr", "fortran_order", "shape"};
    int seen[3] = {0, 0, 0}, comma = 1, failed, k;
    char key[32];
    if (!take(p, '{'))
        return refuse_header(p, "{");
    while (!take(p, '}')) {
        if (!comma)
            return refuse_header(p, "a comma or }");
        if (parse_string(p, key, "'descr', 'fortran_order' or 'shape'") != 0)
            return -1;
        for (k = 0; k < 3 && strcmp(key, keys[k]) != 0;)
            k++;
        if (k == 3 || seen[k]++)
            return refuse(p->error, p->name, "the .npy header has %s key '%s'",
                          k == 3 ? "an unknown" : "twice the", key);
        if (!take(p, ':'))
            return refuse_header(p, "a colon");
        failed = k == 0 ? parse_descr(p, a) : k == 1 ? parse_order(p) : parse_shape(p, a);
        if (failed)
            return -1;
        comma = take(p, ',');
    }
    skip_blanks(p);
    if (p->at != p->end)
        return refuse_header(p, "the end of the header");
    for (k = 0; k < 3; k++)
        if (!seen[k])
            return refuse(p->error, p->name, "the .npy header lacks the key '%s'", keys[k]);
    return 0;
}

/* text [length]: the header's dict -> type, ndim and shape of *a, which was zeroed. 0 or -1. */
static int parse_header(const char *text, size_t length, const char *name, NpyArray *a, char *error)
{
    Parser p = {.at = text, .end = text + length, .name = name, .error = error};
    return parse_dict(&p, a);
}

/* type and shape -> a->count and the bytes of the data. 0, or -1 for an empty array or too many. */
static int count_elements(NpyArray *a, const char *name, char *error, size_t *bytes)
{
    const int64_t size = (int64_t)kinds[a->type].size;
    int64_t total;
    a->count = 1;
    for (int t = 0; t < a->ndim; t++) {
        if (a->shape[t] == 0)
            return refuse(error, name, "the array is empty: dimension %d has size 0", t);
        if (__builtin_mul_overflow(a->count, a->shape[t], &a->count))
            return refuse(error, name, "the shape has more than 2^63 elements");
    }
    if (__builtin_mul_overflow(a->count, size, &total) || (uint64_t)total > SIZE_MAX / 2)
        return refuse(error, name, "the shape needs more than 2^63 bytes");
    *bytes = (size_t)total;
    return 0;
}

/* --- reading -----------------------------------------------------------------------------------*/

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
        return refuse(error, name, "not a .npy file (it does not begin with \\x93NUMPY)");
    if (front[6] < 1 || front[6] > 3 || front[7] != 0)
        return refuse(error, name, ".npy format %d.%d; accepted are 1.0, 2.0 and 3.0", front[6],
                      front[7]);
    start = front[6] == 1 ? 10 : PREFIX;
    if (size < start)
        return refuse(error, name, "the file ends inside the .npy header");
    length = (size_t)front[8] | (size_t)front[9] << 8;
    if (front[6] > 1)
        length |= (size_t)front[10] << 16 | (size_t)front[11] << 24;
    if (length > MAX_HEADER)
        return refuse(error, name, "the .npy header says it has %zu bytes; at most %d are accepted",
                      length, MAX_HEADER);
    if (size - start < length)
        return refuse(error, name, "the file ends inside the .npy header");
    if (parse_header((const char *)front + start, length, name, out, error) != 0 ||
        count_elements(out, name, error, bytes) != 0)
        return -1;
    *offset = start + length;
    if (file_size - *offset != *bytes)
        return refuse(error, name, "%llu bytes of data; its shape and dtype need %zu",
                      (unsigned long long)(file_size - *offset), *bytes);
    if (!memory_enough_for(*bytes) || !(out->data = malloc(*bytes)))
        return refuse_memory(error, name, "its numbers");
    return 0;
}

/* What can only be said when the data is here. Gives the array up on failure. */
static int check_data(NpyArray *a, const char *name, char *error)
{
    const unsigned char *p = a->data;
    if (a->type == NPY_BOOL)
        for (int64_t i = 0; i < a->count; i++)
            if (p[i] > 1) {
                refuse(error, name, "a bool array has the byte %d; accepted are 0 and 1", p[i]);
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
        return refuse_memory(error, path, "its header");
    size = fread(front, 1, PREFIX + MAX_HEADER, f);
    failed = ferror(f) ? refuse(error, path, "reading failed: %s", strerror(errno))
                       : parse_front(front, size, file_size, path, out, &offset, &bytes, error);
    free(front);
    if (failed)
        return failed;
    if (fseek(f, (long)offset, SEEK_SET) != 0 || fread(out->data, 1, bytes, f) != bytes) {
        npy_free(out);
        return refuse(error, path, "reading failed: %s",
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
        return refuse(error, path, "cannot be opened: %s", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return refuse(error, path, "not a regular file");
    f = fopen(path, "rb");
    if (!f)
        return refuse(error, path, "cannot be opened: %s", strerror(errno));
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
    return kinds[type].name;
}

void npy_free(NpyArray *a)
{
    free(a->data);
    a->data = NULL;
}

/* --- writing -----------------------------------------------------------------------------------*/

/* The front of a float32 file, padded so that the data begins at a multiple of 64. Returns its
 * length. */
static size_t make_front(unsigned char front[256], int ndim, const int64_t *shape)
{
    char *text = (char *)front + 10;
    size_t n, length;
    memset(front, ' ', 256);
    n = (size_t)sprintf(text, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (int t = 0; t < ndim; t++)
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
    int good, why;
    if (ndim < 0 || ndim > NPY_MAX_DIMS)
        return refuse(error, path, "cannot be written: 0 to %d dimensions are accepted, not %d",
                      NPY_MAX_DIMS, ndim);
    for (int t = 0; t < ndim; t++)
        if ((a.shape[t] = shape[t]) < 0)
            return refuse(error, path, "cannot be written: the shape has a negative size");
    if (count_elements(&a, path, error, &bytes) != 0)
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
    return good ? 0 : refuse(error, path, "cannot be written: %s", strerror(why));
}
