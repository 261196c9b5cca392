/* SPDX-License-Identifier: MIT
 *
 * check.c: compares outputs with the oracle, and says where and how one is wrong.
 *
 * A checker fails in one of two ways: it misses a wrong answer, or it cries at a right one. Against
 * the first, every comparison here is of the form "good only if error <= bound", which NaN cannot
 * pass, and non-finite values are recognised by their bits. Against the second, the bounds come
 * from an analysis (oracle_core.c) and not from a guess.
 *
 * Interface: check.h.
 */
#include "harness/check/check.h"
#include "attn_options.h"
#include "attn_pairs.h"
#include "tensor.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- values, and their places ------------------------------------------------------------------*/

CheckVerdict check_value(double expected, double bound, float found, double limit, int tainted,
                         double *ratio)
{
    double error;
    *ratio = 0;
    /* lse of a row that sees no key, with the bound 0. (Under taint -inf may be the sum of infinite
     * terms that happen to have one sign; whether that is inf or NaN is a matter of luck.) */
    if (expected == -INFINITY && (!tainted || isfinite(bound))) {
        *ratio = found == -INFINITY ? 0 : INFINITY;
        return *ratio == 0 ? CHECK_GOOD : CHECK_OFF_NONFINITE;
    }
    if (!isfinite(expected)) { /* a non-finite input reaches this element */
        *ratio = isfinite(found) ? INFINITY : 0;
        return *ratio == 0 ? CHECK_GOOD : CHECK_OFF_NONFINITE;
    }
    if (tainted && (!isfinite(bound) || !isfinite(found)))
        return CHECK_OPEN;
    if (!isfinite(found)) {
        if (!isnan(found) && fabs(expected) + bound >= limit && (found > 0) == (expected > 0))
            return CHECK_GOOD; /* too large for the type */
        *ratio = INFINITY;
        return CHECK_OFF_NONFINITE;
    }
    error = fabs((double)found - expected);
    if (error == 0 && isfinite(bound))
        return CHECK_GOOD;
    *ratio = bound > 0 && isfinite(bound) ? error / bound : INFINITY;
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

/* Found value of (b, h, i, x). */
static float check_find(const CheckSlot *s, int64_t b, int64_t h, int64_t i, int64_t x)
{
    if (!s->found)
        return s->found_f32[((b * s->heads + h) * s->N + i) * s->width + x];
    return tensor_get(s->found, tensor_offset(s->found, b, i, h) + x);
}

/* --- the wider bound of a variant that rounds O to its dtype after every step ------------------*/

void check_online_reach(const AttnArgs *args, int64_t block, int64_t b, int64_t h, int64_t i,
                        double *reach)
{
    const AttnShape *s = &args->shape;
    const AttnDtype dtype = args->O.dtype;
    const double half = dtype == ATTN_F32 ? 0x1p-24 : dtype == ATTN_F16 ? 0x1p-11 : 0x1p-8;
    const int64_t kv = h / (s->H / s->Hkv);
    int64_t steps = 0;
    memset(reach, 0, sizeof *reach * (size_t)s->d);
    for (int64_t n = 0; n < args->positions_k.count; n++) { /* cut into blocks of its own */
        const AttnSegment *g = &args->positions_k.segments[n];
        int64_t last = -1;
        for (int64_t t = 0; t < g->length; t++) {
            if (!attn_sees(args, i, g->first + t))
                continue;
            steps += t / block != last;
            last = t / block;
            const int64_t at = tensor_offset(&args->V, b, g->first + t, kv);
            for (int64_t x = 0; x < s->d; x++) { /* fmax is a call, and this takes all N^2 d */
                const double value = fabs(tensor_get(&args->V, at + x));
                reach[x] = value > reach[x] ? value : reach[x];
            }
        }
    }
    for (int64_t x = 0; x < s->d; x++)
        reach[x] *= (double)steps * half;
}

/* --- every element of a case that is checked on a sample ---------------------------------------*/

/* What every other element must at least be. Outputs hold NaN before a run, so a row that was never
 * written is found wherever it is; and oracle_tiles.c takes lse and O from a run, where a NaN would
 * ask for a NaN. */

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
    return !isfinite(check_find(s, b, h, i, 0)) && !(check_find(s, b, h, i, 0) < 0);
}

/* A NaN anywhere, of the sample or not: into a->off, nonfinite, off_nan. (Infinity may be a value
 * too large for its type; only lse has no business with +infinity.) What a non-finite input of the
 * head may have reached is passed over. */
static void check_everywhere(CheckArray *a, const Oracle *o, const AttnArgs *args, int which)
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

/* --- where and how an output is wrong ----------------------------------------------------------*/

/* Wrong kernels are wrong in a pattern: the last partial tile, one head, the rows that see no key,
 * everything after a certain row. The pattern usually names the mistake. */

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

/* Fills a->hint from the worst row: flipped sign, another row's, another head's, never written. */
static void check_hint(CheckArray *a, const CheckSlot *s, int64_t outer, int64_t t, double c)
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
        if (a->rms_ratio > 1)
            fprintf(to,
                    "%s: %s is wrong: in one head the root mean square of its errors is %.3g times "
                    "what roundings may make it\n",
                    label, a->name, a->rms_ratio);
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

/* --- against the bounds ------------------------------------------------------------------------*/

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
    return which <= CHECK_DQ && o->lse.value[row] == -INFINITY && !isfinite(o->lse.fixed[row]);
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

/* e4m3: of a head, what its errors' squares add up to, and what they are expected to. */
typedef struct Squares {
    double found, expected;
    int64_t rows;
} Squares;

/* Row `row` of [B][H][rows.count]: what the squares of its errors are expected to add up to; 0: not
 * known, or not of O. */
static double add_row(Squares *s, const Oracle *o, int which, int64_t row)
{
    const double known = which == CHECK_O && o->lse.square ? o->lse.square[row] : 0;
    const double square = isfinite(known) ? known : 0;
    s->rows += square > 0;
    s->expected += square;
    return square;
}

/* The bound of an element has to hold for the worst of roundings, and so it passes a dropped key.
 * Their root mean square has no such excuse. It is that of at least one free number a row, so 4
 * parts in the root of the rows are more than five standard deviations. */
static void note_squares(CheckArray *a, const Squares *s)
{
    const double limit = 1 + 4 / sqrt((double)s->rows);
    const double ratio = s->rows > 0 ? sqrt(s->found / s->expected) / limit : 0;
    if (ratio > a->rms_ratio)
        a->rms_ratio = ratio;
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
        Squares squares = {0, 0, 0};
        for (int64_t t = 0; t < s.sample->count; t++) {
            const int64_t i = s.sample->index[t];
            int shared_row = 0;
            const double square = add_row(&squares, o, which, n * s.sample->count + t);
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
                const int open = weightless || (isfinite(bound) ? is_shared(o, args, which, b, h, x)
                                                                : tainted || swallowed);
                const CheckVerdict v = check_value(expected, bound, found, limit, open, &ratio);
                if (v == CHECK_OPEN) {
                    a->unspecified++;
                    shared_row |= !weightless && isfinite(bound);
                    continue;
                }
                a->nonfinite += v == CHECK_OFF_NONFINITE;
                if (v != CHECK_GOOD)
                    note_off(a, i, s.N, bound == 0, rows_off);
                squares.found += square > 0 && isfinite(error) ? error * error : 0;
                if (isfinite(error) && error > a->max_error)
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
        note_squares(a, &squares);
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
        check->pass &= a->off == 0 && a->compared + a->unspecified > 0 && a->rms_ratio <= 1;
        check->nonfinite += a->nonfinite;
        if (a->worst_ratio > check->bound_ratio)
            check->bound_ratio = a->worst_ratio;
        if (a->rms_ratio > check->bound_ratio)
            check->bound_ratio = a->rms_ratio;
    }
}
