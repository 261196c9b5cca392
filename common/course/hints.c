/* SPDX-License-Identifier: MIT
 *
 * hints.c: which mistake explains all that a submission computed?
 *
 * A mistake is a hypothesis, or one for each size of tile. It is dropped at the first row that it
 * does not explain, and nearly all are dropped at the first row of the first case, which the case
 * keeps for the next submission. What is left is compared row by row. Tiles may differ between
 * cases of different d (FlashAttention-1 cuts them to fit), not between those of the same d.
 *
 * Interface: hint_submission (hints.h). hints_symptom.c says what is left to say without a name.
 */
#include "course/hints_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor.h"

enum { FORWARD, DQ, DKV, GROUPS, MOST_TILES = 256 };
enum { KEEP_BYTES = 64 << 20 };

static const int group_arrays[GROUPS] = {HINT_FORWARD, HINT_DQ, HINT_DK | HINT_DV};

/* A run with what was found out about it before any hypothesis. */
typedef struct Case {
    const HintRun *run;
    HintGiven own; /* its own O and lse, where they are not the definition's */
    int wrong;     /* arrays */
    int64_t d, block;
} Case;

/* --- rows --------------------------------------------------------------------------------------*/

static int64_t units(const HintCase *c, int group)
{
    return c->n.B * (group == DKV ? c->n.Hkv * c->n.Nk : c->n.H * c->n.Nq);
}

static int64_t row_width(const HintCase *c, int group)
{
    return group == FORWARD ? 2 * c->n.d + 2 : group == DQ ? 2 * c->n.d : 4 * c->n.d;
}

/* How many rows a hypothesis is compared with. */
static int64_t rows_to_compare(const HintCase *c, int group)
{
    const int64_t pairs = group == DKV ? 4 * c->n.H / c->n.Hkv * c->n.Nq : 3 * c->n.Nk;
    const int64_t all = units(c, group), enough = HINT_WORK / (pairs * c->n.d) + 64;
    return all < enough ? all : enough;
}

/* The last row of the last head first: it sees the tail under every mask. The others follow in
 * steps of a golden section, so that the first few are spread over heads and rows. */
static int64_t unit_number(int64_t all, int64_t k)
{
    int64_t step = (int64_t)(0.6180339887 * (double)all) + 1;
    for (;; step++) {
        int64_t a = step, b = all;
        while (b) {
            const int64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            return (all - 1 + k * step) % all;
    }
}

static void compute(HintCase *c, const HintMistake *m, HintTile tile, const HintGiven *given,
                    int group, int64_t unit, double *out)
{
    const int64_t N = group == DKV ? c->n.Nk : c->n.Nq, heads = group == DKV ? c->n.Hkv : c->n.H;
    const int64_t b = unit / (N * heads), h = unit / N % heads, i = unit % N;
    if (group == FORWARD)
        hint_forward_row(c, &m->bug, tile, b, h, i, out);
    else if (group == DQ)
        hint_dq_row(c, &m->bug, tile, given, b, h, i, out);
    else
        hint_dkv_row(c, &m->bug, tile, given, b, h, i, out);
}

/* Row k of a hypothesis, from the case's memory if it is there, else computed into scratch, and
 * kept as long as there is room. */
static const double *row_at(HintCase *c, const HintMistake *m, HintTile tile, int slot, int group,
                            int64_t k, double *scratch)
{
    HintRows *rows = &c->rows[3 * slot + group];
    const int64_t width = row_width(c, group);
    if (k < rows->count)
        return rows->at + k * width;
    compute(c, m, tile, &c->right, group, unit_number(units(c, group), k), scratch);
    if (k == rows->count && c->kept_bytes < KEEP_BYTES) {
        if (k == rows->room) {
            const int64_t room = k ? 4 * k : 1;
            double *at = realloc(rows->at, (size_t)(room * width) * sizeof *at);
            if (!at)
                return scratch;
            c->kept_bytes += (size_t)((room - rows->room) * width) * sizeof *at;
            rows->at = at;
            rows->room = room;
        }
        memcpy(rows->at + k * width, scratch, (size_t)width * sizeof *scratch);
        rows->count++;
    }
    return scratch;
}

/* --- one row compared --------------------------------------------------------------------------*/

/* Bytes 0xFF in any dtype, as float32. A NaN that is computed has other bits, unless it is computed
 * from this one. */
static int is_poison(float found)
{
    uint32_t bits;
    memcpy(&bits, &found, sizeof bits);
    return (bits & 0xFFFF0000U) == 0xFFFF0000U;
}

static int value_fits(double expected, double tolerance, double found)
{
    if (tolerance == INFINITY)
        return 1;
    if (tolerance == HINT_OR_NAN)
        return found == expected || isnan(found);
    if (isnan(expected)) /* tolerance < 0: not any NaN, but the one that fills memory */
        return tolerance < 0.0 ? is_poison((float)found) : !isfinite(found);
    if (fabs(expected) > 3e38 && isfinite(expected)) /* too large for float32 */
        return !isfinite(found) || fabs(found) > 2e38;
    if (isinf(expected))
        return found == expected;
    return fabs(found - expected) <= tolerance;
}

static int tensor_fits(const Tensor *t, int64_t b, int64_t h, int64_t i, const double *expected,
                       const double *tolerance)
{
    const int64_t at = tensor_offset(t, b, i, h);
    for (int64_t x = 0; x < t->shape[3]; x++)
        if (!value_fits(expected[x], tolerance[x], tensor_get(t, at + x)))
            return 0;
    return 1;
}

/* Are the arrays of `mask` what `row` says at this unit? */
static int unit_fits(const Case *k, const HintMistake *m, int group, int64_t unit, int mask,
                     const double *row)
{
    const AttnArgs *found = k->run->found;
    const AttnShape *n = &k->run->of->n;
    const int64_t N = group == DKV ? n->Nk : n->Nq, heads = group == DKV ? n->Hkv : n->H;
    const int64_t b = unit / (N * heads), h = unit / N % heads, i = unit % N, d = n->d;
    if (group == DQ)
        return tensor_fits(&found->dQ, b, h, i, row, row + d);
    if (group == DKV)
        return (!(mask & HINT_DK) || tensor_fits(&found->dK, b, h, i, row, row + 2 * d)) &&
               (!(mask & HINT_DV) || tensor_fits(&found->dV, b, h, i, row + d, row + 3 * d));
    if (mask & HINT_LSE &&
        !value_fits(row[d], row[2 * d + 1], found->lse[(b * n->H + h) * n->Nq + i]))
        return 0;
    if (!(mask & HINT_O))
        return 1;
    if (m->bug.feed == FEED_LAYOUT) /* row (b, h, i) was written where (b, token, head) lies */
        return tensor_fits(&found->O, b, unit % (N * heads) % heads, unit % (N * heads) / heads,
                           row, row + d + 1);
    return tensor_fits(&found->O, b, h, i, row, row + d + 1);
}

/* --- one case ----------------------------------------------------------------------------------*/

/* The arrays among `mask` that this case can say something about. */
static int looked_at(const Case *k, int mask)
{
    int arrays = 0;
    for (int a = CHECK_O; a <= CHECK_DV; a++)
        arrays |= k->run->check->array[a].checked ? mask & (1 << a) : 0;
    return arrays & (k->run->arrays ? k->run->arrays : arrays);
}

/* The worst values of the wrong arrays of a group: where a wrong hypothesis most likely fails, and
 * a sample of the rows may miss them. */
static int worst_fit(const Case *k, const HintMistake *m, HintTile tile, int group, int mask,
                     const HintGiven *given, double *scratch)
{
    HintCase *c = k->run->of;
    const int64_t heads = group == DKV ? c->n.Hkv : c->n.H, N = group == DKV ? c->n.Nk : c->n.Nq;
    for (int a = CHECK_O; a <= CHECK_DV; a++) {
        const CheckArray *w = &k->run->check->array[a];
        const int64_t unit = (w->b * heads + w->h) * N + w->i;
        if (!(mask & group_arrays[group] & (1 << a)) || !w->off || m->bug.feed == FEED_LAYOUT)
            continue;
        compute(c, m, tile, given, group, unit, scratch);
        if (!unit_fits(k, m, group, unit, 1 << a, scratch))
            return 0;
    }
    return 1;
}

/* slot < 0: nothing is kept. */
static int case_fits(const Case *k, const HintMistake *m, HintTile tile, int slot, int mask,
                     double *scratch)
{
    HintCase *c = k->run->of;
    const HintGiven *given = k->own.O ? &k->own : &c->right;
    mask = looked_at(k, mask);
    if (mask & HINT_FORWARD) /* O and lse come from the same scores: both must fit */
        mask |= looked_at(k, m->arrays & HINT_FORWARD);
    for (int group = 0; group < GROUPS; group++) {
        const int arrays = mask & group_arrays[group];
        const int64_t rows = arrays ? rows_to_compare(c, group) : 0;
        const int keep = slot >= 0 && (group == FORWARD || !k->own.O);
        for (int64_t n = 0; n < rows; n++) {
            const int64_t unit = unit_number(units(c, group), n);
            const double *row = scratch;
            if (keep)
                row = row_at(c, m, tile, slot, group, n, scratch);
            else
                compute(c, m, tile, given, group, unit, scratch);
            if (!unit_fits(k, m, group, unit, arrays, row) ||
                (n == 0 && !worst_fit(k, m, tile, group, mask, given, scratch)))
                return 0;
        }
    }
    return 1;
}

/* --- all cases ---------------------------------------------------------------------------------*/

static int64_t shown(const HintMistake *m, HintTile tile)
{
    return m->tiles == TILES_QUERY ? tile.Tq : tile.T;
}

/* Must their tiles be the same? */
static int same_tile(const Case *a, const Case *b)
{
    return a->d == b->d && a->block == b->block;
}

/* A tile that holds all keys says nothing about tiles: to drop it is to drop everything. */
static int is_evidence(const Case *k, HintTile tile)
{
    const AttnShape *n = &k->run->of->n;
    return k->wrong && tile.T < (n->Nq > n->Nk ? n->Nq : n->Nk);
}

/* Does one size of tile explain all cases that must share one, and is it less than the keys of one
 * of those that failed? *T: that size where only one does, 0 = several or none. */
static int mistake_fits(const Case *cases, int count, const HintMistake *m, int slot, int mask,
                        double *scratch, int64_t *T)
{
    const int tiles = hint_tile_count(m->tiles);
    int evident = m->tiles == TILES_NONE;
    *T = -1;
    for (int k = 0; k < count; k++) {
        int left = 0;
        int first = 1;
        for (int e = 0; e < k; e++)
            first &= !same_tile(&cases[e], &cases[k]);
        /* once two sizes fit, neither is named: no third is asked */
        for (int n = 0; first && n < tiles && !(left && *T == 0); n++) {
            const HintTile tile = hint_tile(m->tiles, n, cases[k].d);
            int fits = 1, seen = 0;
            for (int e = k; fits && e < count; e++) {
                if (!same_tile(&cases[e], &cases[k]))
                    continue;
                fits = case_fits(&cases[e], m, tile, slot + n, mask, scratch);
                seen |= is_evidence(&cases[e], tile);
            }
            evident |= fits && seen;
            left += fits;
            if (fits)
                *T = *T == -1 || *T == shown(m, tile) ? shown(m, tile) : 0;
        }
        if (first && !left)
            return 0;
    }
    *T = m->tiles == TILES_NONE || *T < 2 ? 0 : *T;
    return evident;
}

static int copy_own(HintGiven *own, const HintRun *run)
{
    const AttnShape *n = &run->of->n;
    const int64_t rows = n->B * n->Nq * n->H;
    float *row = malloc((size_t)n->d * sizeof *row);
    own->O = malloc((size_t)(rows * n->d) * sizeof *own->O);
    own->lse = malloc((size_t)rows * sizeof *own->lse);
    for (int64_t r = 0; row && own->O && own->lse && r < rows; r++) {
        tensor_read_row(&run->found->O, r / (n->Nq * n->H), r % n->Nq, r / n->Nq % n->H, row);
        for (int64_t x = 0; x < n->d; x++)
            own->O[r * n->d + x] = row[x];
        own->lse[r] = run->found->lse[r];
    }
    free(row);
    return row && own->O && own->lse ? 0 : -1;
}

/* Which arrays are wrong by themselves: gradients that follow from a wrong O are not. */
static int prepare(Case *k, const HintRun *run, double *scratch)
{
    static const HintMistake none = {"", "", HINT_ALL, TILES_NONE, {0}};
    const CheckArray *a = run->check->array;
    k->run = run;
    k->d = run->of->n.d;
    k->block = run->block;
    run->of->shared.bug = NULL; /* another submission's O and lse may have lain at the same place */
    for (int which = CHECK_O; which <= CHECK_DV; which++)
        k->wrong |= a[which].checked && a[which].off ? 1 << which : 0;
    if (!(k->wrong & HINT_FORWARD) || !a[CHECK_DQ].checked || !run->found->O.data ||
        !run->found->lse)
        return 0;
    if (copy_own(&k->own, run) != 0)
        return -1;
    for (int which = CHECK_DQ; which <= CHECK_DV; which++)
        if (k->wrong & (1 << which) &&
            case_fits(k, &none, hint_tile(TILES_NONE, 0, k->d), -1, 1 << which, scratch))
            k->wrong &= ~(1 << which);
    return 0;
}

static void name_arrays(char *text, size_t size, int arrays)
{
    static const char *const names[] = {"O", "lse", "dQ", "dK", "dV"};
    text[0] = '\0';
    for (int a = CHECK_O; a <= CHECK_DV; a++)
        if (arrays & (1 << a))
            snprintf(text + strlen(text), size - strlen(text), "%s%s", text[0] ? ", " : "",
                     names[a]);
}

/* Two mistakes that only change who sees whom, and both fit: the cases cannot tell them apart,
 * since the pairs are the same. What either says of the output is true. */
static int same_pairs(const HintMistake *a, const HintMistake *b)
{
    HintBug one = a->bug, other = b->bug;
    one.see = one.left = one.right = one.tiled = 0;
    other.see = other.left = other.right = other.tiled = 0;
    return a->bug.see && b->bug.see && memcmp(&one, &other, sizeof one) == 0;
}

/* Two mistakes, one of which ignores the scores, and both fit: the other one leaves so little of
 * the scores that it makes no difference. What either says of the output is true. */
static int scores_vanish(const HintMistake *a, const HintMistake *b)
{
    return a->bug.score == SCORE_ZERO || b->bug.score == SCORE_ZERO;
}

/* Several rows of the table may fit if they have one code: then the first one speaks. Mistakes
 * without a tile come first: what they explain needs no tile of a size that happens to fit. Returns
 * how many codes fit, at most 2. */
static int search(HintVerdict *v, const Case *cases, int count, int tiled, double *scratch)
{
    const HintMistake *first = NULL;
    int64_t first_T = 0;
    char arrays[32], tiles[32] = "";
    int slot = 0;
    for (int n = 0; n < hint_mistake_count; n++) {
        const HintMistake *m = &hint_mistakes[n];
        int64_t T;
        const int possible =
            (m->tiles != TILES_NONE) == tiled && (v->arrays & ~m->arrays) == 0 &&
            (!(m->arrays & HINT_TOGETHER) || (v->arrays | HINT_TOGETHER) == m->arrays) &&
            !(first && strcmp(first->code, m->code) == 0);
        if (possible && mistake_fits(cases, count, m, slot, v->arrays, scratch, &T)) {
            if (first && !same_pairs(first, m) && !scores_vanish(first, m))
                return 2;
            first_T = first ? first_T : T;
            first = first ? first : m;
        }
        slot += hint_tile_count(m->tiles);
    }
    if (!first)
        return 0;
    v->code = first->code;
    name_arrays(arrays, sizeof arrays, v->arrays);
    if (first_T > 0)
        snprintf(tiles, sizeof tiles, " (tiles of %" PRId64 ")", first_T);
    snprintf(v->sentence, sizeof v->sentence, "%s: %s%s", arrays, first->sentence, tiles);
    return 1;
}

/* What needs no hypothesis: memory that was not to be touched, and errors so small that the
 * definition itself explains them within twice its bound. */
static void name_plain(HintVerdict *v, const Case *cases, int count, double *scratch)
{
    static const HintMistake none = {"", "", HINT_ALL, TILES_NONE, {0}};
    char arrays[32];
    int small = 1;
    for (int k = 0; k < count; k++) {
        if (!cases[k].run->check->inputs_intact) {
            v->code = "input_written";
            snprintf(v->sentence, sizeof v->sentence, "an input was written to");
            return;
        }
        if (!cases[k].run->check->storage_intact) {
            v->code = "written_outside";
            snprintf(v->sentence, sizeof v->sentence, "memory outside the outputs was written to");
            return;
        }
    }
    for (int k = 0; k < count && small; k++)
        small = looked_at(&cases[k], cases[k].wrong) == cases[k].wrong &&
                case_fits(&cases[k], &none, hint_tile(TILES_NONE, 0, 0), -1, v->arrays, scratch);
    if (!small || !v->arrays)
        return;
    name_arrays(arrays, sizeof arrays, v->arrays);
    v->code = "rounding";
    snprintf(v->sentence, sizeof v->sentence,
             "%s: the formula is right, but more is rounded on the way than float32 sums need",
             arrays);
}

int hint_submission(HintVerdict *v, const HintRun *runs, int count)
{
    Case *cases = calloc((size_t)count + 1, sizeof *cases);
    double *scratch = malloc(((size_t)4 * 1024 + 2) * sizeof *scratch);
    int known = 0, unexplained = 0, failed = !cases || !scratch ? -1 : 0;
    *v = (HintVerdict){"", "", 0};
    /* Failed cases first: they drop most hypotheses. */
    for (int pass = 0; pass < 2; pass++)
        for (int n = 0; n < count && !failed; n++) {
            unexplained |= !runs[n].of && !runs[n].check->pass;
            if (runs[n].of && runs[n].check->pass == pass)
                failed = prepare(&cases[known++], &runs[n], scratch);
        }
    for (int k = 0; k < known; k++)
        v->arrays |= cases[k].wrong;
    if (!failed && !unexplained)
        name_plain(v, cases, known, scratch);
    if (!failed && !unexplained && v->arrays && !v->code[0])
        if (search(v, cases, known, 0, scratch) == 0)
            search(v, cases, known, 1, scratch);
    for (int k = 0; cases && k < known; k++) {
        free(cases[k].own.O);
        free(cases[k].own.lse);
    }
    free(cases);
    free(scratch);
    return failed;
}
