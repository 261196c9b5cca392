/* SPDX-License-Identifier: MIT
 *
 * check.c: compares outputs with the oracle.
 *
 * A checker fails in one of two ways: it misses a wrong answer, or it cries at a right one. Against
 * the first, every comparison here is of the form "good only if error <= bound", which NaN cannot
 * pass, and non-finite values are recognised by their bits. Against the second, the bounds come
 * from an analysis (oracle_core.c) and not from a guess.
 *
 * Interface: check.h. check_explain.c turns a verdict into words.
 */
#include "check/check.h"
#include "attn_options.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor.h"

int is_finite_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & UINT32_C(0x7F800000)) != UINT32_C(0x7F800000);
}

int is_finite_f64(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & UINT64_C(0x7FF0000000000000)) != UINT64_C(0x7FF0000000000000);
}

static int is_minus_infinity_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits == UINT32_C(0xFF800000);
}

static int is_minus_infinity_f64(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits == UINT64_C(0xFFF0000000000000);
}

static int is_nan_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & UINT32_C(0x7FFFFFFF)) > UINT32_C(0x7F800000);
}

CheckVerdict check_value(double expected, double bound, float found, double limit, int tainted,
                         double *ratio)
{
    double error;
    *ratio = 0;
    /* lse of a row that sees no key, with the bound 0. (Under taint -inf may be the sum of infinite
     * terms that happen to have one sign; whether that is inf or NaN is a matter of luck.) */
    if (is_minus_infinity_f64(expected) && (!tainted || is_finite_f64(bound))) {
        *ratio = is_minus_infinity_f32(found) ? 0 : INFINITY;
        return *ratio == 0 ? CHECK_GOOD : CHECK_OFF_NONFINITE;
    }
    if (!is_finite_f64(expected)) { /* a non-finite input reaches this element */
        *ratio = is_finite_f32(found) ? INFINITY : 0;
        return *ratio == 0 ? CHECK_GOOD : CHECK_OFF_NONFINITE;
    }
    if (tainted && (!is_finite_f64(bound) || !is_finite_f32(found)))
        return CHECK_OPEN;
    if (!is_finite_f32(found)) {
        if (!is_nan_f32(found) && fabs(expected) + bound >= limit && (found > 0) == (expected > 0))
            return CHECK_GOOD; /* too large for the type */
        *ratio = INFINITY;
        return CHECK_OFF_NONFINITE;
    }
    error = fabs((double)found - expected);
    if (error == 0 && is_finite_f64(bound))
        return CHECK_GOOD;
    *ratio = bound > 0 && is_finite_f64(bound) ? error / bound : INFINITY;
    return *ratio <= 1 ? CHECK_GOOD : CHECK_OFF;
}

CheckSlot check_slot(const Oracle *o, const AttnArgs *args, int which)
{
    const AttnShape *s = &o->shape;
    CheckSlot c = {NULL, NULL, NULL, &o->rows, s->Nq, s->H, s->B * s->H, NULL, s->d, which};
    if (which == CHECK_O) {
        c.expected = &o->O;
        c.found = &args->O;
    } else if (which == CHECK_LSE) {
        c.expected = &o->lse;
        c.found_f32 = args->lse;
        c.width = 1;
    } else if (which == CHECK_DQ) {
        c.expected = &o->dQ;
        c.found = &args->dQ;
    } else if (which >= CHECK_DWQ) { /* one row of every head, all batches summed */
        static int64_t zero = 0;
        static const OracleSample one = {&zero, 1};
        c.expected = which == CHECK_DWQ ? &o->dwq : &o->dwk;
        c.found_f32 = which == CHECK_DWQ ? args->options->dwq : args->options->dwk;
        c.sample = &one;
        c.N = 1;
        c.heads = c.outer = which == CHECK_DWQ ? s->H : s->Hkv;
    } else {
        c.expected = which == CHECK_DK ? &o->dK : &o->dV;
        c.found = which == CHECK_DK ? &args->dK : &args->dV;
        c.sample = &o->keys;
        c.N = s->Nk;
        c.heads = s->Hkv;
        c.outer = o->kv_heads.count;
        c.outer_index = o->kv_heads.index;
    }
    return c;
}

float check_find(const CheckSlot *s, int64_t b, int64_t h, int64_t i, int64_t x)
{
    if (!s->found)
        return s->found_f32[((b * s->heads + h) * s->N + i) * s->width + x];
    return tensor_get(s->found, tensor_offset(s->found, b, i, h) + x);
}

/* Notes one element that is outside its bound. */
static void note_off(CheckArray *a, int64_t i, int64_t N, int empty, uint8_t *rows_off)
{
    if (a->off++ == 0)
        a->first_off_row = a->last_off_row = i;
    a->first_off_row = i < a->first_off_row ? i : a->first_off_row;
    a->last_off_row = i > a->last_off_row ? i : a->last_off_row;
    a->off_tail += N % 64 != 0 && i >= N - N % 64;
    a->off_empty += empty;
    if (rows_off)
        rows_off[i] = 1;
}

/* 1: a cap makes a finite score of an infinite q; the row is finite, its bound is not, so open. */
static int is_swallowed(const Oracle *o, const AttnArgs *args, int which, int64_t b, int64_t h)
{
    const int64_t kv = h / (o->shape.H / o->shape.Hkv);
    return args->softcap > 0.0f && which <= CHECK_DQ &&
           (o->tainted[b * o->shape.Hkv + kv] & ORACLE_TAINT_Q) != 0;
}

/* 1: row `row` of [B][H][rows.count] sees keys, all with the score -inf: NaN is right too. */
static int is_weightless(const Oracle *o, int which, int64_t row)
{
    return which <= CHECK_DQ && is_minus_infinity_f64(o->lse.value[row]) &&
           !is_finite_f64(o->lse.fixed[row]);
}

/* 1: a non-finite input shares the head (dwq, dwk: of any batch): an infinite bound is open. */
static int is_tainted(const Oracle *o, int which, int64_t b, int64_t h)
{
    const int64_t group = o->shape.H / o->shape.Hkv;
    const int of_q = which <= CHECK_DQ || which == CHECK_DWQ;
    const int64_t kv = of_q ? h / group : h;
    const unsigned mask = which <= CHECK_DQ ? ORACLE_TAINT_K | ORACLE_TAINT_V : ~0u;
    unsigned found = 0;
    if (which < CHECK_DWQ)
        return (o->tainted[b * o->shape.Hkv + kv] & mask) != 0;
    for (int64_t n = 0; n < o->shape.B; n++)
        found |= o->tainted[n * o->shape.Hkv + kv];
    return (found & mask) != 0;
}

/* 1: channel x of this head may have met 0 x NaN in a tile that it shares with a pair that it does
 * not see. O: P times V. dQ: dS times K, or a dS of such a dP, of delta, which is made from O, or
 * of the slope of a cap, 1 - tanh^2 of the score. dV: P times dO; and P is exp(s - lse), where a K
 * or Q has made the lse of a whole row NaN. dK: all that. Scores of hidden keys are replaced, not
 * multiplied: lse has no excuse. */
static int is_shared(const Oracle *o, const AttnArgs *args, int which, int64_t b, int64_t h,
                     int64_t x)
{
    const int64_t kv = which <= CHECK_DQ ? h / (o->shape.H / o->shape.Hkv) : h;
    const int64_t group = b * o->shape.Hkv + kv;
    /* K's channel reaches its group, or by a NaN score every channel */
    const int spread = (args->options && args->options->norm_group) || args->softcap > 0.0f;
    unsigned all, here;
    if (which == CHECK_LSE || which >= CHECK_DWQ)
        return which != CHECK_LSE && is_tainted(o, which, b, h);
    all = o->tainted[group];
    here = all ? o->tainted_at[group * o->shape.d + x] : 0;
    if (which == CHECK_O)
        return (here & ORACLE_TAINT_V) != 0;
    if (which == CHECK_DQ)
        return (((spread ? all : here) & ORACLE_TAINT_K) | (all & ORACLE_TAINT_V)) != 0;
    return which == CHECK_DK
               ? all != 0
               : ((all & (ORACLE_TAINT_K | ORACLE_TAINT_Q)) | (here & ORACLE_TAINT_DO)) != 0;
}

static void check_array(CheckArray *a, const Oracle *o, const AttnArgs *args, int which, double c,
                        const Check *check)
{
    CheckSlot s = check_slot(o, args, which);
    const int64_t online_block = which == CHECK_O ? check->online_block : 0;
    const double *copied = check->copies ? s.expected->copied : NULL;
    const double limit = s.found && o->dtype == ATTN_F16 ? 65520 : FLT_MAX;
    uint8_t *rows_off = calloc((size_t)s.N, 1);
    double *reach = online_block > 0 ? calloc((size_t)s.width, sizeof *reach) : NULL;
    int64_t worst_outer = 0, worst_t = 0, element = 0;
    a->checked = 1;
    if (!s.found && !s.found_f32) /* nothing to compare, which check_outputs does not accept */
        s.outer = 0;
    for (int64_t n = 0; n < s.outer; n++) {
        const int64_t outer = s.outer_index ? s.outer_index[n] : n;
        const int64_t b = outer / s.heads, h = outer % s.heads, off_before = a->off;
        const int tainted = is_tainted(o, which, b, h);
        const int swallowed = is_swallowed(o, args, which, b, h);
        for (int64_t t = 0; t < s.sample->count; t++) {
            const int64_t i = s.sample->index[t];
            int shared_row = 0;
            if (reach)
                check_online_reach(args, online_block, b, h, i, reach);
            for (int64_t x = 0; x < s.width; x++, element++) {
                const double expected = s.expected->value[element];
                const double bound = s.expected->fixed[element] + c * s.expected->per_c[element] +
                                     (reach ? reach[x] : 0) + (copied ? copied[element] : 0);
                const float found = check_find(&s, b, h, i, x);
                const double error = fabs((double)found - expected);
                double ratio;
                const int weightless = is_weightless(o, which, element / s.width);
                const int open =
                    weightless || (is_finite_f64(bound) ? is_shared(o, args, which, b, h, x)
                                                        : tainted || swallowed);
                const CheckVerdict v = check_value(expected, bound, found, limit, open, &ratio);
                if (v == CHECK_OPEN) {
                    a->unspecified++;
                    shared_row |= !weightless && is_finite_f64(bound);
                    continue;
                }
                a->nonfinite += v == CHECK_OFF_NONFINITE;
                if (v != CHECK_GOOD)
                    note_off(a, i, s.N, bound == 0, rows_off);
                if (is_finite_f64(error) && error > a->max_error)
                    a->max_error = error;
                if (a->compared++ == 0 || ratio > a->worst_ratio) {
                    a->worst_ratio = ratio;
                    a->b = b, a->h = h, a->i = i, a->x = x;
                    a->expected = expected, a->found = found, a->bound = bound;
                    worst_outer = n, worst_t = t;
                }
            }
            a->shared += shared_row;
        }
        a->off_heads += a->off > off_before;
    }
    for (int64_t i = 0; rows_off && i < s.N; i++)
        a->off_rows += rows_off[i];
    free(rows_off);
    free(reach);
    if (a->off)
        check_hint(a, &s, worst_outer, worst_t, c);
}

void check_outputs(Check *check, const Oracle *o, const AttnArgs *args, int backward, double c)
{
    static const char *const names[CHECK_COUNT] = {"O", "lse", "dQ", "dK", "dV", "dwq", "dwk"};
    check->pass = check->inputs_intact && check->storage_intact;
    check->bound_ratio = 0;
    check->nonfinite = 0;
    check->sample = (CheckSample){!o->whole,
                                  o->given,
                                  o->rows.count,
                                  backward ? o->keys.count : 0,
                                  backward ? o->kv_heads.count : 0,
                                  o->seed};
    memset(check->array, 0, sizeof check->array);
    for (int which = 0; which < CHECK_COUNT; which++) {
        CheckArray *a = &check->array[which];
        a->name = names[which];
        if (which > CHECK_LSE && !backward)
            continue;
        if (which >= CHECK_DWQ && o->dwq.count == 0)
            continue;
        check_array(a, o, args, which, c, check);
        if (!o->whole)
            check_everywhere(a, o, args, which);
        check->pass &= a->off == 0 && a->compared + a->unspecified > 0;
        check->nonfinite += a->nonfinite;
        if (a->worst_ratio > check->bound_ratio)
            check->bound_ratio = a->worst_ratio;
    }
}
