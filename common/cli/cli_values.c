/* SPDX-License-Identifier: MIT
 *
 * cli_values.c: readers of flag values. Strict, because "12x" read as 12 or 1e99 read as infinity
 * would run an experiment that nobody asked for.
 */
#include "cli/cli_internal.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* strtoll and strtod skip white space and accept more than a plain number: these are the only
 * characters that a decimal integer has. */
static int looks_like_int(const char *text)
{
    if (*text == '-' || *text == '+')
        text++;
    if (*text == '\0')
        return 0;
    for (; *text; text++)
        if (*text < '0' || *text > '9')
            return 0;
    return 1;
}

int cli_read_int(const char *flag, const char *text, int64_t min, int64_t max, int64_t *out)
{
    long long value;
    errno = 0;
    value = looks_like_int(text) ? strtoll(text, NULL, 10) : 0;
    if (!looks_like_int(text) || errno == ERANGE || value < min || value > max)
        return cli_refuse("%s: found '%s', accepted is an integer from %" PRId64 " to %" PRId64,
                          flag, text, min, max);
    *out = value;
    return 0;
}

int cli_read_u64(const char *flag, const char *text, uint64_t *out)
{
    unsigned long long value;
    errno = 0;
    value = looks_like_int(text) && *text != '-' ? strtoull(text, NULL, 10) : 0;
    if (!looks_like_int(text) || *text == '-' || errno == ERANGE)
        return cli_refuse("%s: found '%s', accepted is an integer from 0 to %" PRIu64, flag, text,
                          UINT64_MAX);
    *out = value;
    return 0;
}

int cli_parse_number(const char *text, float *out)
{
    char *end = NULL;
    /* no leading space, no hexadecimal, no "inf" or "nan" */
    int plain = text[0] != '\0' && strspn(text, "0123456789+-.eE") == strlen(text);
    *out = plain ? (float)strtod(text, &end) : 0.0f;
    return plain && *end == '\0' && fabsf(*out) <= 3.402823466e38f;
}

int cli_read_float(const char *flag, const char *text, int positive, float *out)
{
    float rounded;
    if (!cli_parse_number(text, &rounded) || rounded == 0.0f || (positive && rounded < 0.0f))
        return cli_refuse("%s: found '%s', accepted is a finite float32 number %s", flag, text,
                          positive ? "above 0" : "other than 0");
    *out = rounded;
    return 0;
}

int cli_read_window(const char *flag, const char *text, int64_t *left, int64_t *right)
{
    /* Positions are added to the window's ends: far from overflow at this size. */
    const int64_t max = (int64_t)1 << 40;
    const int plain = strspn(text, "0123456789+-,") == strlen(text);
    char rest;
    if (!plain || sscanf(text, "%" SCNd64 ",%" SCNd64 "%c", left, right, &rest) != 2 ||
        *left < -1 || *left > max || *right < -1 || *right > max)
        return cli_refuse("%s: found '%s', accepted is L,R with two integers from -1 (no limit) to "
                          "%" PRId64 ", such as 128,0",
                          flag, text, max);
    return 0;
}

int cli_read_name(const char *flag, const char *text, const char *names, int *out)
{
    const size_t length = strlen(text);
    char all[256] = "";
    size_t used = 0;
    int i = 0;
    for (const char *name = names, *end; name; name = *end ? end + 1 : NULL, i++) {
        end = name + strcspn(name, "|");
        if ((size_t)(end - name) == length && strncmp(name, text, length) == 0) {
            *out = i;
            return 0;
        }
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%.*s", i ? ", " : "",
                                 (int)(end - name), name);
    }
    return cli_refuse("%s: found '%s', accepted is one of %s", flag, text, all);
}
