/* SPDX-License-Identifier: MIT
 *
 * check_everywhere.c: of a case that is checked on a sample, what every other element must at least
 * be. Outputs hold NaN before a run, so a row that was never written is found wherever it is; and
 * oracle_given.c takes lse and O from a run, where a NaN would ask for a NaN.
 *
 * A million tokens have 10^10 values in their results, and as many in their inputs. They are looked
 * through as they lie in memory, without a conversion: whether a value is a NaN says its bits.
 *
 * Interface: check.h (check_everywhere, row_nonfinite, row_nan).
 */
#include <math.h>
#include <string.h>

#include "check/check.h"
#include "tensor.h"

/* How many of n values are larger than `limit` when the sign is taken away? The sum fits 16 bits: a
 * row has 1024 channels at most. */
static int64_t count_above_16(const uint16_t *row, int64_t n, uint16_t limit)
{
    uint16_t found = 0;
    for (int64_t x = 0; x < n; x++)
        found = (uint16_t)(found + ((row[x] & 0x7FFF) > limit));
    return found;
}

static int64_t count_above_32(const float *row, int64_t n, uint32_t limit)
{
    int64_t found = 0;
    for (int64_t x = 0; x < n; x++) {
        uint32_t bits;
        memcpy(&bits, &row[x], sizeof bits);
        found += (bits & UINT32_C(0x7FFFFFFF)) > limit;
    }
    return found;
}

/* Infinity has the largest exponent and no fraction: a NaN is above it, what is finite below. */
static int64_t count_above(const Tensor *t, int64_t b, int64_t n, int64_t h, int finite)
{
    const int64_t at = tensor_offset(t, b, n, h), d = t->shape[3];
    const uint16_t infinity = t->dtype == ATTN_F16 ? 0x7C00 : 0x7F80;
    if (t->dtype == ATTN_F32)
        return count_above_32((const float *)t->data + at, d,
                              UINT32_C(0x7F800000) - (uint32_t)(finite != 0));
    return count_above_16((const uint16_t *)t->data + at, d, (uint16_t)(infinity - (finite != 0)));
}

int64_t row_nonfinite(const Tensor *t, int64_t b, int64_t n, int64_t h)
{
    return count_above(t, b, n, h, 1);
}

int64_t row_nan(const Tensor *t, int64_t b, int64_t n, int64_t h)
{
    return count_above(t, b, n, h, 0);
}

/* How many values of row i have no business there. In channels with the bit in `at` a NaN has. */
static int64_t count_bad(const CheckSlot *s, int64_t b, int64_t h, int64_t i, const uint8_t *at,
                         unsigned bit)
{
    int64_t bad = s->found ? row_nan(s->found, b, i, h) : 0;
    for (int64_t x = 0; bad && x < s->width; x++)
        bad -= (at[x] & bit) && isnan(check_find(s, b, h, i, x));
    if (s->found)
        return bad;
    /* lse: -inf is a row that sees no key */
    return !is_finite_f32(check_find(s, b, h, i, 0)) && !(check_find(s, b, h, i, 0) < 0);
}

void check_everywhere(CheckArray *a, const Oracle *o, const AttnArgs *args, int which)
{
    const CheckSlot s = check_slot(o, args, which);
    const int64_t group = o->shape.H / o->shape.Hkv;
    const int threads = args->threads > 1 ? args->threads : 1;
    const unsigned excused = which == CHECK_O ? ORACLE_TAINT_V : ORACLE_TAINT_DO; /* of dV */
    (void)threads;
    if ((!s.found && !s.found_f32) || which >= CHECK_DWQ)
        return;
    for (int64_t outer = 0; outer < o->shape.B * s.heads; outer++) {
        const int64_t b = outer / s.heads, h = outer % s.heads;
        const int64_t kv = which <= CHECK_DQ ? h / group : h;
        /* in the other groups no key was compared */
        const int compared = !s.outer_index || oracle_sample_find(&o->kv_heads, outer) >= 0;
        int64_t bad = 0;
        const unsigned taint = o->tainted[b * o->shape.Hkv + kv];
        const uint8_t *at = &o->tainted_at[(b * o->shape.Hkv + kv) * o->shape.d];
        /* which rows a K or Q has reached is not known here; a V or dO stays in its channels */
        if (taint &
            (which == CHECK_DQ || which == CHECK_DK ? ~0u : ORACLE_TAINT_K | ORACLE_TAINT_Q))
            continue;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : bad)
        for (int64_t i = 0; i < s.N; i++)
            bad += compared && oracle_sample_find(s.sample, i) >= 0
                       ? 0
                       : count_bad(&s, b, h, i, at, excused);
        a->off_nan += bad;
    }
    a->off += a->off_nan;
    a->nonfinite += a->off_nan;
}
