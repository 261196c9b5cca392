/* SPDX-License-Identifier: MIT
 *
 * check_explain.c: says where and how an output is wrong, so that the reader has a place to look.
 *
 * Wrong kernels are wrong in a pattern: the last partial tile, one head, the rows that see no key,
 * everything after a certain row. The pattern usually names the mistake.
 *
 * Interface: check.h (check_hint, check_place, check_explain, check_note_shared).
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "tensor.h"

/* Do the found values of row (b,h,i) equal factor times the expected ones at `element`, within the
 * bound of `factor * expected`? */
static int row_is(const CheckSlot *s, int64_t outer, int64_t i, int64_t element, double factor,
                  double c)
{
    const int64_t number = s->outer_index ? s->outer_index[outer] : outer;
    for (int64_t x = 0; x < s->width; x++) {
        const double bound = s->expected->fixed[element + x] + c * s->expected->per_c[element + x];
        const float found = check_find(s, number / s->heads, number % s->heads, i, x);
        const double error = fabs((double)found - factor * s->expected->value[element + x]);
        if (!(error <= 2 * bound))
            return 0;
    }
    return 1;
}

/* 1 when the bytes of the found row are all 0xFF, as they were before the run. */
static int row_is_poison(const CheckSlot *s, const CheckArray *a)
{
    const unsigned char *bytes;
    size_t size;
    if (s->found) {
        size = dtype_size(s->found->dtype);
        bytes = (const unsigned char *)s->found->data +
                (size_t)tensor_offset(s->found, a->b, a->i, a->h) * size;
    } else {
        size = sizeof(float);
        bytes = (const unsigned char *)(s->found_f32 +
                                        ((a->b * s->heads + a->h) * s->N + a->i) * s->width);
    }
    for (size_t n = 0; n < size * (size_t)s->width; n++)
        if (bytes[n] != 0xFF)
            return 0;
    return 1;
}

static int row_is_zero(const CheckSlot *s, const CheckArray *a)
{
    for (int64_t x = 0; x < s->width; x++)
        if (check_find(s, a->b, a->h, a->i, x) != 0)
            return 0;
    return 1;
}

void check_hint(CheckArray *a, const CheckSlot *s, int64_t outer, int64_t t, double c)
{
    const int64_t rows = s->sample->count, at = (outer * rows + t) * s->width;
    const int64_t *index = s->sample->index;
    if (row_is_poison(s, a)) {
        snprintf(a->hint, sizeof a->hint, "this row was never written");
    } else if (row_is_zero(s, a)) {
        snprintf(a->hint, sizeof a->hint, "this row is all zeros");
    } else if (row_is(s, outer, a->i, at, -1, c)) {
        snprintf(a->hint, sizeof a->hint, "the sign is flipped");
    } else if (s->which == CHECK_LSE && row_is(s, outer, a->i, at, 1 / log(2.0), c)) {
        snprintf(a->hint, sizeof a->hint, "this is lse in base 2; it must be the natural log");
    } else if (t > 0 && index[t - 1] == a->i - 1 && row_is(s, outer, a->i, at - s->width, 1, c)) {
        snprintf(a->hint, sizeof a->hint, "this is what row %" PRId64 " should hold", a->i - 1);
    } else if (t + 1 < rows && index[t + 1] == a->i + 1 &&
               row_is(s, outer, a->i, at + s->width, 1, c)) {
        snprintf(a->hint, sizeof a->hint, "this is what row %" PRId64 " should hold", a->i + 1);
    } else {
        for (int64_t other = 0; other < s->outer; other++) {
            const int64_t number = s->outer_index ? s->outer_index[other] : other;
            if (other != outer && row_is(s, outer, a->i, (other * rows + t) * s->width, 1, c)) {
                snprintf(a->hint, sizeof a->hint,
                         "this is what batch %" PRId64 ", head %" PRId64 " should hold",
                         number / s->heads, number % s->heads);
                return;
            }
        }
    }
}

void check_place(const CheckArray *a, int which, const AttnShape *s, FILE *to)
{
    const int keys = which == CHECK_DK || which == CHECK_DV;
    const int weights = which >= CHECK_DWQ; /* of all batches and tokens */
    const int64_t heads = (weights ? 1 : s->B) * (keys || which == CHECK_DWK ? s->Hkv : s->H);
    const int64_t N = keys ? s->Nk : s->Nq;
    const char *row = keys ? "key" : "row";
    if (weights) {
        fprintf(to,
                "%" PRId64 " of %" PRId64 " heads; a weight's gradient is a sum over all batches "
                "and tokens",
                a->off_heads, heads);
        return;
    }
    fprintf(to, "%" PRId64 " of %" PRId64 " heads, %" PRId64 " of %" PRId64 " %ss", a->off_heads,
            heads, a->off_rows, N, row);
    fprintf(to, " (%" PRId64 " .. %" PRId64 ")", a->first_off_row, a->last_off_row);
    if (a->off_empty == a->off)
        fprintf(to, "; all in %ss that %s", row, keys ? "no query sees" : "see no key");
    else if (a->off_tail == a->off && N > 64)
        fprintf(to, "; all in the last partial tile of 64 %ss", row);
    else if (a->off_heads == 1 && heads > 1)
        fprintf(to, "; all in one head");
}

void check_explain(const Check *check, const char *label, const AttnArgs *args, FILE *to)
{
    if (check->pass)
        return;
    if (!check->inputs_intact)
        fprintf(to, "%s: an input was written to\n", label);
    if (!check->storage_intact)
        fprintf(to, "%s: memory outside the outputs was written to\n", label);
    for (int which = 0; which < CHECK_COUNT; which++) {
        const CheckArray *a = &check->array[which];
        if (!a->checked)
            continue;
        if (a->compared + a->unspecified == 0)
            fprintf(to, "%s: nothing of %s was compared\n", label, a->name);
        if (a->off_nan)
            fprintf(to, "%s: %s is wrong: %" PRId64 " values outside of the sample are NaN%s\n",
                    label, a->name, a->off_nan, which == CHECK_LSE ? " or +infinity" : "");
        if (a->off == a->off_nan)
            continue;
        fprintf(to, "%s: %s is wrong: %" PRId64 " of %" PRId64 " values are off", label, a->name,
                a->off - a->off_nan, a->compared);
        if (a->nonfinite > a->off_nan)
            fprintf(to, ", %" PRId64 " of them by being finite or not", a->nonfinite - a->off_nan);
        if (which >= CHECK_DWQ)
            fprintf(to, "\n    worst at (h=%" PRId64 ", x=%" PRId64 "): ", a->h, a->x);
        else
            fprintf(to,
                    "\n    worst at (b=%" PRId64 ", h=%" PRId64 ", i=%" PRId64 ", x=%" PRId64 "): ",
                    a->b, a->h, a->i, a->x);
        fprintf(to, "expected %.9g, found %.9g, bound %.3g (error is %.3g bounds)\n", a->expected,
                a->found, a->bound, a->worst_ratio);
        fprintf(to, "    where: ");
        check_place(a, which, &args->shape, to);
        fprintf(to, "\n");
        if (a->hint[0])
            fprintf(to, "    worst row: %s\n", a->hint);
    }
}

void check_note_shared(const Check *check, const char *label, FILE *to)
{
    for (int which = 0; which < CHECK_COUNT; which++) {
        const int64_t n = check->array[which].shared;
        const char *what = which == CHECK_O || which == CHECK_DQ
                               ? n == 1 ? "row that does not see a non-finite key is"
                                        : "rows that do not see a non-finite key are"
                           : n == 1 ? "sum that no non-finite input belongs to is"
                                    : "sums that no non-finite input belongs to are";
        if (n > 0)
            fprintf(to, "note: %s: %" PRId64 " %s not finite: 0 x NaN in a shared tile (%s)\n",
                    label, n, what, check->array[which].name);
    }
}
