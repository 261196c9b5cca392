/* SPDX-License-Identifier: MIT
 *
 * npy_header.c: the header of a .npy file, a Python dict in text:
 *
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (2, 300, 8, 64), }
 *
 * Python may write the keys in any order and with any blanks, so the header is parsed, not
 * searched; whatever is not exactly such a dict is refused.
 *
 * Interface: npy_internal.h.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "harness/io/npy_internal.h"

#define ACCEPTED "accepted are <f2 <f4 <f8 |u1 |b1 <i4 <i8"

const NpyKind npy_kinds[7] = {
    [NPY_F2] = {"<f2", "f2", 2}, [NPY_F4] = {"<f4", "f4", 4},     [NPY_F8] = {"<f8", "f8", 8},
    [NPY_U1] = {"|u1", "u1", 1}, [NPY_BOOL] = {"|b1", "bool", 1}, [NPY_I4] = {"<i4", "i4", 4},
    [NPY_I8] = {"<i8", "i8", 8},
};
#define KIND_COUNT ((int)(sizeof npy_kinds / sizeof npy_kinds[0]))

/* error = "<name>: <sentence>". Of a very long name only the end is shown, so that the sentence
 * always has room. Returns -1. */
int npy_refuse(char *error, const char *name, const char *format, ...)
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

int npy_refuse_memory(char *error, const char *name, const char *what)
{
    npy_refuse(error, name, "not enough memory for %s", what);
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
    return npy_refuse(p->error, p->name, "the .npy header has \"%s\" where %s is expected", found,
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
    int t;
    skip_blanks(p);
    if (p->at < p->end && *p->at == '[')
        return npy_refuse(p->error, p->name, "the dtype is structured; " ACCEPTED);
    if (parse_string(p, descr, "a dtype such as '<f4'") != 0)
        return -1;
    for (t = 0; t < KIND_COUNT; t++)
        if (strcmp(descr, npy_kinds[t].descr) == 0) {
            a->type = (NpyType)t;
            return 0;
        }
    if (descr[0] == '>')
        return npy_refuse(p->error, p->name, "the dtype '%s' is big-endian; " ACCEPTED, descr);
    return npy_refuse(p->error, p->name, "the dtype is '%s'; " ACCEPTED, descr);
}

static int parse_order(Parser *p)
{
    if (take_word(p, "False"))
        return 0;
    if (take_word(p, "True"))
        return npy_refuse(p->error, p->name,
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
        return npy_refuse(p->error, p->name, "the shape has a negative size; sizes are 1 or more");
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *p->at - '0', &value))
            return npy_refuse(p->error, p->name, "the shape has a size above 2^63");
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
            return npy_refuse(p->error, p->name, "the array has more than %d dimensions",
                              NPY_MAX_DIMS);
        if (parse_size(p, &a->shape[a->ndim]) != 0)
            return -1;
        a->ndim++;
        comma = take(p, ',');
    }
    if (a->ndim == 1 && !comma) /* (3) is a number in Python; (3,) is a tuple */
        return npy_refuse(p->error, p->name, "the shape of one dimension lacks its comma: (n,)");
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
            return npy_refuse(p->error, p->name, "the .npy header has %s key '%s'",
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
            return npy_refuse(p->error, p->name, "the .npy header lacks the key '%s'", keys[k]);
    return 0;
}

int npy_parse_header(const char *text, size_t length, const char *name, NpyArray *a, char *error)
{
    Parser p = {.at = text, .end = text + length, .name = name, .error = error};
    return parse_dict(&p, a);
}

/* Shape -> count and bytes. */
int npy_count_elements(NpyArray *a, const char *name, char *error, size_t *bytes)
{
    const int64_t size = (int64_t)npy_kinds[a->type].size;
    int64_t total;
    int t;
    a->count = 1;
    for (t = 0; t < a->ndim; t++) {
        if (a->shape[t] == 0)
            return npy_refuse(error, name, "the array is empty: dimension %d has size 0", t);
        if (__builtin_mul_overflow(a->count, a->shape[t], &a->count))
            return npy_refuse(error, name, "the shape has more than 2^63 elements");
    }
    if (__builtin_mul_overflow(a->count, size, &total) || (uint64_t)total > SIZE_MAX / 2)
        return npy_refuse(error, name, "the shape needs more than 2^63 bytes");
    *bytes = (size_t)total;
    return 0;
}
