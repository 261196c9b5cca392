/* SPDX-License-Identifier: MIT
 *
 * hints_softmax.c: which mistake explains a softmax of rows, or a merge of partial rows?
 *
 * As in hints.c a case is computed again with one mistake built in, here a row (or a pair) at a
 * time and in float64, and a mistake is dropped at the first value that it does not explain. The
 * code words are those of attention where the mistake is the same.
 *
 * Interface: softmax_hints_find, softmax_hint_code (contract_softmax.h).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "course/contract_softmax.h"

#define ANY       HUGE_VAL /* as an expected value: whatever was found */
#define NOTHING   -ANY     /* 0 or NaN: of a sum of exp that vanished */
#define FLOAT_LOG 88.72    /* exp of more is no float */
#define TOLERANCE 1e-4     /* a counterfactual is recognised, not graded */
#define UNTOUCHED 3e300    /* the bytes that memory is filled with before a run */

enum { WORK = 1 << 27 }; /* scores, of the rows before all rows that are compared */
enum {
    ROW_LSE_BASE_2,
    ROW_LSE_NO_MAX,
    ROW_LSE_NO_LOG,
    ROW_LSE_IS_L,
    ROW_LSE_WITH_L,
    ROW_BASE_2,
    ROW_NO_MAX,
    ROW_NOT_NORMALISED,
    ROW_MEAN,
    ROW_ZEROS,
    ROW_NOT_WRITTEN,
    ROW_LSE_NOT_WRITTEN,
    ROW_NAN_EMPTY,
    ROW_NO_LAST,
    ROW_NO_LAST_SUM,
    ROW_NO_LAST_P,
    ROW_NO_FIRST,
    ROW_NO_FIRST_SUM,
    ROW_NO_TAIL,
    ROW_NO_TAIL_SUM,
    ROW_STALE_L,
    ROW_FIRST_L,
    ROW_PREVIOUS_L,
    ROW_ALL_L,
    ROW_FIRST_M,
    ROW_PREVIOUS_M,
    ROW_ZERO_M,
    ROW_ALL_M,
    ROW_COLUMN
};

enum {
    MERGE_MIN,
    MERGE_M_OF_A,
    MERGE_M_OF_B,
    MERGE_SUM,
    MERGE_ONLY_A,
    MERGE_ONLY_B,
    MERGE_SWAPPED,
    MERGE_INVERTED,
    MERGE_BASE_2,
    MERGE_NAN_EMPTY,
    MERGE_NO_MAX,
    MERGE_ZEROS,
    MERGE_NOT_WRITTEN
};

enum { FIRST = 1, SECOND = 2, BOTH = 3 }; /* P and lse, m and l */

typedef struct Mistake {
    const char *code, *sentence;
    int kind, arrays;
    int tiled; /* 1: tiles of 1 .. 128 columns are tried */
} Mistake;

static const Mistake of_rows[] = {
    {"lse_base_2", "lse is a base 2 logarithm", ROW_LSE_BASE_2, SECOND, 0},
    {"lse_without_max", "lse is ln l: the maximum is not added", ROW_LSE_NO_MAX, SECOND, 0},
    {"lse_without_log_l", "lse is the maximum alone: ln l is missing", ROW_LSE_NO_LOG, SECOND, 0},
    {"lse_is_l", "lse is the sum l itself", ROW_LSE_IS_L, SECOND, 0},
    {"lse_with_l", "lse is m + l: the logarithm is missing", ROW_LSE_WITH_L, SECOND, 0},
    {"exp2_for_exp", "this is 2^s where e^s belongs", ROW_BASE_2, BOTH, 0},
    {"no_max_subtraction", "exp overflows: the row's own maximum is not subtracted before exp",
     ROW_NO_MAX, BOTH, 0},
    {"not_normalised", "the weights are not divided by their sum", ROW_NOT_NORMALISED, FIRST, 0},
    {"mean_of_v", "all places that are not masked have the same weight", ROW_MEAN, FIRST, 0},
    {"zeros", "the result is all zeros", ROW_ZEROS, FIRST, 0},
    {"not_initialised", "all values are the NaN that fills memory before a run", ROW_NOT_WRITTEN,
     BOTH, 0},
    {"not_initialised", "lse is the NaN that fills memory before a run", ROW_LSE_NOT_WRITTEN,
     SECOND, 0},
    {"nan_on_empty_row", "a row in which all is masked computes (-inf) - (-inf) or 0 / 0",
     ROW_NAN_EMPTY, BOTH, 0},
    {"one_key_dropped", "the last column of a row is left out", ROW_NO_LAST, BOTH, 0},
    {"one_key_dropped", "the last column is left out of the sum", ROW_NO_LAST_SUM, BOTH, 0},
    {"one_key_dropped", "the last column of P is not computed", ROW_NO_LAST_P, FIRST, 0},
    {"one_key_dropped", "the first column of a row is left out", ROW_NO_FIRST, BOTH, 0},
    {"one_key_dropped", "the first column is left out of the sum", ROW_NO_FIRST_SUM, BOTH, 0},
    {"tail_tile_dropped", "the last partial tile of a row is left out", ROW_NO_TAIL, BOTH, 1},
    {"tail_tile_dropped", "the last partial tile is left out of the sum", ROW_NO_TAIL_SUM, BOTH, 1},
    {"stale_l", "the sum is not multiplied by exp(m_old - m_new) when the maximum grows",
     ROW_STALE_L, BOTH, 1},
    {"sum_of_another_row", "all rows are divided by the sum of row 0", ROW_FIRST_L, BOTH, 0},
    {"sum_of_another_row", "a row is divided by the sum of the one before it", ROW_PREVIOUS_L, BOTH,
     0},
    {"sum_not_reset", "the sum goes on from row to row: it has to begin with 0", ROW_ALL_L, BOTH,
     0},
    {"no_max_subtraction", "exp overflows: the maximum of row 0 is subtracted from all rows",
     ROW_FIRST_M, BOTH, 0},
    {"no_max_subtraction", "exp overflows: the maximum of the row before is subtracted",
     ROW_PREVIOUS_M, BOTH, 0},
    {"m_from_zero",
     "the maximum starts at 0, not at -inf: exp vanishes where all scores are far below",
     ROW_ZERO_M, BOTH, 0},
    {"max_not_reset", "the maximum goes on from row to row: it has to begin with -inf", ROW_ALL_M,
     BOTH, 0},
    {"softmax_over_queries", "this is the softmax of the columns, not of the rows", ROW_COLUMN,
     BOTH, 0},
};

static const Mistake of_merge[] = {
    {"smaller_maximum", "m is the smaller of both", MERGE_MIN, BOTH, 0},
    {"max_of_one", "m is always that of the first set", MERGE_M_OF_A, BOTH, 0},
    {"max_of_one", "m is always that of the second set", MERGE_M_OF_B, BOTH, 0},
    {"merge_without_weights", "the sums are added as they are: each counts from its own maximum",
     MERGE_SUM, SECOND, 0},
    {"one_side_rescaled", "only the sum of the first set is multiplied by exp(m_a - m)",
     MERGE_ONLY_A, SECOND, 0},
    {"one_side_rescaled", "only the sum of the second set is multiplied by exp(m_b - m)",
     MERGE_ONLY_B, SECOND, 0},
    {"wrong_one_rescaled", "the sums have each other's factor", MERGE_SWAPPED, SECOND, 0},
    {"alpha_inverted", "the factor is exp(m - m_a); it is exp(m_a - m)", MERGE_INVERTED, SECOND, 0},
    {"exp2_for_exp", "this is 2^s where e^s belongs", MERGE_BASE_2, SECOND, 0},
    {"nan_on_empty_row", "two empty sets compute (-inf) - (-inf)", MERGE_NAN_EMPTY, SECOND, 0},
    {"no_max_subtraction", "the sums are multiplied by exp(m_a) and exp(m_b): they count from 0",
     MERGE_NO_MAX, SECOND, 0},
    {"zeros", "l is all zeros", MERGE_ZEROS, SECOND, 0},
    {"not_initialised", "all values are the NaN that fills memory before a run", MERGE_NOT_WRITTEN,
     BOTH, 0},
};
enum { OF_ROWS = sizeof of_rows / sizeof *of_rows, OF_MERGE = sizeof of_merge / sizeof *of_merge };

const char *softmax_hint_code(int n, const char **sentence)
{
    const Mistake *m = n < OF_ROWS ? &of_rows[n] : &of_merge[n - OF_ROWS];
    if (n < 0 || n >= OF_ROWS + OF_MERGE)
        return NULL;
    *sentence = m->sentence;
    return m->code;
}

/* --- rows --------------------------------------------------------------------------------------*/

/* What is left of a row: its maximum, and the sum of exp(s - m) over columns first .. end-1. */
typedef struct Sum {
    double m, l;
} Sum;

static Sum sum_row(const Softmax *s, int64_t r, int64_t first, int64_t end)
{
    const float *in = s->in[0] + r * s->cols;
    Sum sum = {-INFINITY, 0.0};
    for (int64_t x = 0; x < s->cols; x++)
        sum.m = fmax(sum.m, in[x]);
    for (int64_t x = first; sum.m > -INFINITY && x < end; x++)
        sum.l += exp(in[x] - sum.m);
    return sum;
}

/* The online sum in tiles of T columns that forgets to rescale. */
static double stale_sum(const Softmax *s, int64_t r, int64_t T)
{
    const float *in = s->in[0] + r * s->cols;
    double m = -INFINITY, l = 0.0;
    for (int64_t first = 0; first < s->cols; first += T) {
        const int64_t end = first + T < s->cols ? first + T : s->cols;
        for (int64_t x = first; x < end; x++)
            m = fmax(m, in[x]);
        for (int64_t x = first; m > -INFINITY && x < end; x++)
            l += exp(in[x] - m);
    }
    return l;
}

/* The maximum that is subtracted in row r. */
static double wrong_maximum(const Softmax *s, int kind, int64_t r)
{
    double m = -INFINITY;
    if (kind == ROW_ZERO_M)
        return fmax(0.0, sum_row(s, r, 0, 0).m);
    if (kind == ROW_FIRST_M || kind == ROW_PREVIOUS_M)
        return sum_row(s, kind == ROW_FIRST_M || r == 0 ? 0 : r - 1, 0, 0).m;
    for (int64_t before = 0; before <= r; before++)
        m = fmax(m, sum_row(s, before, 0, 0).m);
    return m;
}

/* P and lse where something else than the row's maximum is subtracted: the same, as long as exp
 * neither overflows nor vanishes. */
static void shift_row(const Softmax *s, int64_t r, double shift, double *P, double *lse)
{
    const float *in = s->in[0] + r * s->cols;
    const Sum sum = sum_row(s, r, 0, s->cols);
    const double top = sum.m - shift;
    *lse = top < -104.0 ? NAN : top < -80.0 ? ANY : sum.m + log(sum.l);
    if (top + log(sum.l) > FLOAT_LOG)
        *lse = INFINITY;
    for (int64_t x = 0; x < s->cols; x++)
        P[x] = top < -104.0                ? NOTHING
               : top < -80.0               ? ANY
               : *lse != INFINITY          ? exp(in[x] - sum.m) / sum.l
               : in[x] - shift > FLOAT_LOG ? NAN
                                           : 0.0;
}

static void wrong_column(const Softmax *s, int64_t r, double *P, double *lse)
{
    *lse = ANY;
    for (int64_t x = 0; x < s->cols; x++) {
        double m = -INFINITY, l = 0.0;
        for (int64_t q = 0; q < s->rows; q++)
            m = fmax(m, s->in[0][q * s->cols + x]);
        for (int64_t q = 0; m > -INFINITY && q < s->rows; q++)
            l += exp(s->in[0][q * s->cols + x] - m);
        P[x] = l > 0.0 ? exp(s->in[0][r * s->cols + x] - m) / l : ANY;
    }
}

/* The sum that row r is divided by, where it is not its own. */
static double wrong_sum(const Softmax *s, const Mistake *m, int64_t T, int64_t r)
{
    const int64_t cols = s->cols;
    double l = 0.0;
    switch (m->kind) {
    case ROW_NO_LAST:
    case ROW_NO_LAST_SUM:
        return sum_row(s, r, 0, cols - 1).l;
    case ROW_NO_FIRST:
    case ROW_NO_FIRST_SUM:
        return sum_row(s, r, 1, cols).l;
    case ROW_NO_TAIL:
    case ROW_NO_TAIL_SUM:
        return sum_row(s, r, 0, cols / T * T).l;
    case ROW_STALE_L:
        return stale_sum(s, r, T);
    case ROW_FIRST_L:
    case ROW_PREVIOUS_L:
        return sum_row(s, m->kind == ROW_FIRST_L || r == 0 ? 0 : r - 1, 0, cols).l;
    case ROW_ALL_L:
        for (int64_t before = 0; before <= r; before++)
            l += sum_row(s, before, 0, cols).l;
        return l;
    default:
        return sum_row(s, r, 0, cols).l;
    }
}

static double wrong_lse(int kind, double m, double l)
{
    switch (kind) {
    case ROW_LSE_BASE_2:
        return (m + log(l)) / log(2.0);
    case ROW_LSE_NO_MAX:
        return log(l);
    case ROW_LSE_NO_LOG:
        return m;
    case ROW_LSE_IS_L:
        return l;
    case ROW_LSE_WITH_L:
        return m + l;
    case ROW_ZEROS:
    case ROW_BASE_2:
        return ANY;
    case ROW_NOT_WRITTEN:
    case ROW_LSE_NOT_WRITTEN:
        return UNTOUCHED;
    default:
        return m + log(l);
    }
}

/* Column x of row r has no weight at all by this mistake. */
static int leaves_out(const Softmax *s, int kind, int64_t T, int64_t x)
{
    return ((kind == ROW_NO_LAST || kind == ROW_NO_LAST_P) && x == s->cols - 1) ||
           (kind == ROW_NO_FIRST && x == 0) || (kind == ROW_NO_TAIL && x >= s->cols / T * T);
}

static void wrong_row(const Softmax *s, const Mistake *m, int64_t T, int64_t r, double *P,
                      double *lse)
{
    const float *in = s->in[0] + r * s->cols;
    const Sum own = sum_row(s, r, 0, s->cols);
    const double l = wrong_sum(s, m, T, r), seen = m->kind == ROW_BASE_2 ? log(2.0) : 1.0;
    double base_2 = 0.0, places = 0.0;
    if (m->kind == ROW_NO_MAX || (m->kind >= ROW_FIRST_M && m->kind <= ROW_ALL_M)) {
        shift_row(s, r, m->kind == ROW_NO_MAX ? 0.0 : wrong_maximum(s, m->kind, r), P, lse);
        return;
    }
    if (m->kind == ROW_COLUMN) {
        wrong_column(s, r, P, lse);
        return;
    }
    *lse = own.l > 0.0 ? wrong_lse(m->kind, own.m, l) : ANY;
    if (m->kind == ROW_NAN_EMPTY && own.l == 0.0)
        *lse = NAN;
    for (int64_t x = 0; x < s->cols; x++) {
        places += in[x] > -INFINITY;
        base_2 += own.l > 0.0 ? exp(seen * (in[x] - own.m)) : 0.0;
    }
    for (int64_t x = 0; x < s->cols; x++) {
        const double e = own.l > 0.0 ? exp(seen * (in[x] - own.m)) : 0.0;
        P[x] = own.l == 0.0 && m->kind != ROW_NAN_EMPTY && m->kind != ROW_NOT_WRITTEN ? 0.0
               : m->kind == ROW_NOT_NORMALISED                                        ? e
               : m->kind == ROW_BASE_2                                                ? e / base_2
               : m->kind == ROW_MEAN          ? (in[x] > -INFINITY) / places
               : m->kind == ROW_ZEROS         ? 0.0
               : m->kind == ROW_NOT_WRITTEN   ? UNTOUCHED
               : own.l == 0.0                 ? NAN
               : leaves_out(s, m->kind, T, x) ? 0.0
               : l > 0.0                      ? e / l
                                              : ANY;
    }
}

/* --- merge -------------------------------------------------------------------------------------*/

static void wrong_pair(const Softmax *s, const Mistake *k, int64_t n, double *m, double *l)
{
    const double m_a = s->in[0][n], l_a = s->in[1][n], m_b = s->in[2][n], l_b = s->in[3][n];
    const double most = fmax(m_a, m_b), unit = k->kind == MERGE_BASE_2 ? log(2.0) : 1.0;
    const double a = l_a > 0.0 ? exp(unit * (m_a - most)) : 0.0;
    const double b = l_b > 0.0 ? exp(unit * (m_b - most)) : 0.0;
    const double other = k->kind == MERGE_MIN      ? fmin(m_a, m_b)
                         : k->kind == MERGE_M_OF_A ? m_a
                                                   : m_b;
    *m = most;
    *l = l_a * a + l_b * b;
    switch (k->kind) {
    case MERGE_MIN:
    case MERGE_M_OF_A:
    case MERGE_M_OF_B:
        *m = other;
        *l = other == -INFINITY ? ANY : l_a * exp(m_a - other) + l_b * exp(m_b - other);
        break;
    case MERGE_SUM:
        *l = l_a + l_b;
        break;
    case MERGE_ONLY_A:
        *l = l_a * a + l_b;
        break;
    case MERGE_ONLY_B:
        *l = l_a + l_b * b;
        break;
    case MERGE_SWAPPED:
        *l = l_a * b + l_b * a;
        break;
    case MERGE_INVERTED:
        *l = l_a == 0.0 || l_b == 0.0 ? ANY : l_a * exp(most - m_a) + l_b * exp(most - m_b);
        break;
    case MERGE_NAN_EMPTY:
        *l = most == -INFINITY ? NAN : *l;
        break;
    case MERGE_NO_MAX:
        *l = most < -80.0 ? ANY : l_a * exp(m_a) + l_b * exp(m_b);
        break;
    case MERGE_ZEROS:
        *l = 0.0;
        break;
    case MERGE_NOT_WRITTEN:
        *m = *l = UNTOUCHED;
        break;
    default:
        break;
    }
}

/* --- all cases ---------------------------------------------------------------------------------*/

static int fits(double expected, float found)
{
    uint32_t bits;
    memcpy(&bits, &found, sizeof bits);
    if (expected == ANY)
        return 1;
    if (expected == UNTOUCHED)
        return bits == UINT32_MAX;
    if (expected == NOTHING)
        return found == 0.0f || isnan(found);
    if (isnan(expected))
        return !isfinite(found);
    if (fabs(expected) > 3e38)
        return !isfinite(found) || fabsf(found) > 2e38f;
    return fabs(found - expected) <= TOLERANCE * fabs(expected) + 1e-36;
}

/* A bound of 1e-36 is for P; a logarithm near 0 is off by more. */
static int fits_log(double expected, float found)
{
    return expected == found || fits(expected, found) || fabs(found - expected) <= TOLERANCE;
}

static int row_fits(const Softmax *s, const JudgeRun *run, const Mistake *m, int64_t T, int64_t r,
                    double *P)
{
    const float found = run->values[1][r];
    double lse;
    wrong_row(s, m, T, r, P, &lse);
    if (!fits_log(lse, found))
        return 0;
    for (int64_t x = 0; x < s->cols; x++)
        if (!fits(P[x], run->values[0][r * s->cols + x]))
            return 0;
    return 1;
}

static int pair_fits(const Softmax *s, const JudgeRun *run, const Mistake *k, int64_t n)
{
    double m, l;
    wrong_pair(s, k, n, &m, &l);
    return fits_log(m, run->values[0][n]) && fits(l, run->values[1][n]);
}

/* Of many rows the first ones and the worst: a mistake may go through all rows before. */
static int case_fits(const JudgeCase *c, const JudgeRun *run, const Mistake *m, int64_t T,
                     double *P)
{
    const Softmax *s = c->own;
    const int64_t most = (int64_t)sqrt((double)WORK / (double)s->cols);
    if (c->contract == &contract_softmax_merge) {
        for (int64_t n = 0; n < s->rows; n++)
            if (!pair_fits(s, run, m, n))
                return 0;
        return 1;
    }
    for (int64_t r = 0; r < s->rows && r < most; r++)
        if (!row_fits(s, run, m, T, r, P))
            return 0;
    for (int a = 0; a < 2; a++)
        if (run->check.array[a].off && !row_fits(s, run, m, T, run->check.array[a].i, P))
            return 0;
    return 1;
}

static int mistake_fits(const JudgeCase *cases, const JudgeRun *runs, int count, const Mistake *m,
                        double *P)
{
    for (int64_t T = 1; T <= (m->tiled ? 128 : 1); T++) {
        int n = 0,
            evident = !m->tiled; /* a tile that holds the whole row says nothing about tiles */
        for (; n < count && case_fits(&cases[n], &runs[n], m, T, P); n++)
            evident |= runs[n].status == JUDGE_WRONG && T < ((const Softmax *)cases[n].own)->cols;
        if (n == count && evident)
            return 1;
    }
    return 0;
}

void softmax_hints_find(HintVerdict *v, const JudgeCase *cases, const JudgeRun *runs, int count)
{
    const int merge = cases[0].contract == &contract_softmax_merge;
    const Mistake *all = merge ? of_merge : of_rows, *found = NULL;
    const Mistake none = {"", "", -1, BOTH, 0};
    int64_t cols = 1;
    double *P;
    for (int n = 0; n < count; n++) {
        const CheckArray *a = runs[n].check.array;
        if ((runs[n].status != JUDGE_WRONG && runs[n].status != JUDGE_RIGHT) ||
            !runs[n].values[1] || !a[0].checked)
            return;
        v->arrays |= (a[0].off ? FIRST : 0) | (a[1].off ? SECOND : 0);
        cols = ((const Softmax *)cases[n].own)->cols > cols ? ((const Softmax *)cases[n].own)->cols
                                                            : cols;
    }
    P = malloc((size_t)cols * sizeof *P);
    if (P && mistake_fits(cases, runs, count, &none, P)) /* so near that any small mistake fits */
        v->arrays = 0;
    for (int n = 0; P && v->arrays && n < (merge ? OF_MERGE : OF_ROWS); n++) {
        if ((v->arrays & ~all[n].arrays) || (found && strcmp(found->code, all[n].code) == 0) ||
            !mistake_fits(cases, runs, count, &all[n], P))
            continue;
        if (found) { /* two that the cases cannot tell apart */
            free(P);
            return;
        }
        found = &all[n];
    }
    free(P);
    if (!found)
        return;
    v->code = found->code;
    snprintf(v->sentence, sizeof v->sentence, "%s", found->sentence);
}
