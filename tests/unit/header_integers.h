/* SPDX-License-Identifier: MIT
 *
 * header_integers.h: every integer that a public header takes, read from the header itself, so that
 * none is added without a test of its ends.
 *
 * An integer is a field of a struct or a parameter: "WindowCall.batch",
 * "flash_attention_set_threads.threads". Enumerations count, and arrays that are read (const), but
 * not what a function writes or returns.
 *
 * Interface:
 * - ends_tried(name): a test has tried the lower and the upper end, and what lies beyond.
 * - assert_all_ends_tried(path): of each integer in this header, and of nothing that is not there.
 */
#ifndef HEADER_INTEGERS_H
#define HEADER_INTEGERS_H

#include "unit.h"

enum { MOST_INTEGERS = 128 };

static struct {
    char name[96];
    int declared;
} integers[MOST_INTEGERS];
static int integer_count;

static inline void ends_tried(const char *name)
{
    assert_in_range(integer_count, 0, MOST_INTEGERS - 1);
    snprintf(integers[integer_count++].name, sizeof integers->name, "%s", name);
}

/* Without comments, lines of the preprocessor, bodies of functions and lists of enumerators. */
static inline char *plain_header(const char *path, char enums[32][48], int *enum_count)
{
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    char *from = text, *to = text, *end;
    int depth = 0, body = 0;
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    assert_true(feof(file));
    fclose(file);
    while (*from) {
        if (strncmp(from, "/*", 2) == 0) {
            from = strstr(from, "*/") + 2;
        } else if (*from == '#') {
            while (*from && *from != '\n')
                from += *from == '\\' ? 2 : 1;
        } else if (strncmp(from, "extern \"C\" {", 12) == 0) {
            from += 12;
        } else if (strncmp(from, "typedef enum ", 13) == 0) {
            end = from + 13 + strcspn(from + 13, " ;");
            snprintf(enums[(*enum_count)++], 48, "%.*s", (int)(end - from - 13), from + 13);
            from = strchr(from, ';') + 1;
        } else {
            if (*from == '{' && to > text && to[-1] == '\n')
                body = 1; /* the brace of a function stands at the start of a line */
            depth += body && *from == '{';
            if (!body)
                *to++ = *from;
            if (*from == '}' && body && --depth == 0)
                body = 0, *to++ = ';';
            from++;
        }
    }
    *to = '\0';
    return text;
}

static inline int is_integer_type(const char *word, char enums[32][48], int enum_count)
{
    static const char *const types[] = {"int",    "int32_t",   "int64_t",  "uint64_t",
                                        "size_t", "ptrdiff_t", "AttnDtype"};
    for (size_t n = 0; n < sizeof types / sizeof *types; n++)
        if (strcmp(word, types[n]) == 0)
            return 1;
    for (int n = 0; n < enum_count; n++)
        if (strcmp(word, enums[n]) == 0)
            return 1;
    return 0;
}

static inline int integer_declared(const char *within, const char *name)
{
    char whole[96];
    int found = 0;
    snprintf(whole, sizeof whole, "%.46s.%.47s", within, name);
    for (int n = 0; n < integer_count; n++)
        if (strcmp(integers[n].name, whole) == 0)
            found = integers[n].declared = 1;
    if (!found)
        print_error("%s: nothing tries its ends\n", whole);
    return found;
}

static inline void assert_all_ends_tried(const char *path)
{
    char enums[32][48], word[48] = "", within[48] = "", before[48] = "";
    int enum_count = 0, missing = 0, declared = 0, constant = 0, pointer = 0, integer = 0;
    for (const char *at = plain_header(path, enums, &enum_count); *at;) {
        const size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                         "0123456789_");
        if (length) {
            snprintf(before, sizeof before, "%s", word);
            snprintf(word, sizeof word, "%.*s", (int)length, at);
            at += length;
            constant |= strcmp(word, "const") == 0;
            if (is_integer_type(before, enums, enum_count) && !integer)
                integer = 1; /* this word is what is declared */
            continue;
        }
        if (*at == '{' || *at == '(') /* the name of a struct, of a function */
            snprintf(within, sizeof within, "%s", word);
        pointer |= *at == '*';
        if (*at == '*' && is_integer_type(word, enums, enum_count))
            integer = 1;
        if (strchr(",;)[", *at)) {
            if (integer && (!pointer || constant)) {
                missing += !integer_declared(within, word);
                declared++;
            }
            /* "int a, b": b has no type in front of it; in a list of parameters each has one */
            const char *next = at + 1 + strspn(at + 1, " \n*");
            const size_t more = strcspn(next, " \n*,;)[(");
            if (*at != ',' || (next[more] != ',' && next[more] != ';' && next[more] != '['))
                integer = constant = 0;
            pointer = 0;
            if (*at == '[')
                at = strchr(at, ']');
            word[0] = '\0';
        } else if (strchr("{}(", *at)) {
            integer = constant = pointer = 0;
            word[0] = '\0';
        }
        at++;
    }
    assert_in_range(declared, 1, MOST_INTEGERS);
    assert_int_equal(0, missing);
}

static inline void assert_only_declared_ends(void)
{
    for (int n = 0; n < integer_count; n++)
        if (!integers[n].declared)
            fail_msg("%s: no header has it", integers[n].name);
}

#endif
