/* SPDX-License-Identifier: MIT
 *
 * hints_symptom.c: where the wrong values are, when no mistake has a name for them.
 *
 * Wrong kernels are wrong in a pattern: the last partial tile, one head, one row in so many. The
 * pattern is read off the rows, each compared with the definition.
 *
 * Interface: hint_symptom, hint_array (hints.h).
 */
#include "course/hints_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor.h"

static void say(HintSymptom *s, const char *code, const char *sentence)
{
    s->code = code;
    snprintf(s->sentence, sizeof s->sentence, "%s", sentence);
}

/* off [N]: 1 where a row of the head with the worst value is off. */
static uint8_t *rows_off(const HintRun *run, int which, int64_t N)
{
    const HintCase *c = run->of;
    const OracleArray *right = which == CHECK_O ? &c->oracle->O : &c->oracle->lse;
    const int64_t b = run->check->array[which].b, h = run->check->array[which].h;
    const int64_t width = which == CHECK_O ? c->n.d : 1, row = (b * c->n.H + h) * N;
    uint8_t *off = calloc((size_t)N, 1);
    for (int64_t e = 0; off && e < N * width; e++) {
        const int64_t i = e / width, at = row * width + e;
        const double found =
            which == CHECK_O
                ? tensor_get(&run->found->O, tensor_offset(&run->found->O, b, i, h) + e % width)
                : run->found->lse[at];
        const double bound = right->fixed[at] + c->c * right->per_c[at];
        off[i] |= !(found == right->value[at] || fabs(found - right->value[at]) <= bound);
    }
    return off;
}

/* Exactly the rows i with i % period == *first are off: the smallest such period, 0 = none. */
static int64_t period_of(const uint8_t *off, int64_t N, int64_t *first)
{
    for (int64_t period = 2; off && period <= 128 && 3 * period <= N; period++)
        for (*first = 0; *first < period; (*first)++) {
            int64_t i = 0;
            while (i < N && off[i] == (i % period == *first))
                i++;
            if (i == N)
                return period;
        }
    return 0;
}

static int periodic(HintSymptom *s, const HintRun *run, int which)
{
    int64_t first, period;
    uint8_t *off;
    if (!run->of || which > CHECK_LSE || run->of->n.Nq > 4096)
        return 0;
    off = rows_off(run, which, run->of->n.Nq);
    period = period_of(off, run->of->n.Nq, &first);
    free(off);
    if (!period)
        return 0;
    s->code = "every_nth_row";
    snprintf(s->sentence, sizeof s->sentence,
             "one row in %" PRId64 " is off: rows %" PRId64 ", %" PRId64 ", %" PRId64 " ...",
             period, first, first + period, first + 2 * period);
    return 1;
}

void hint_symptom(HintSymptom *s, const HintRun *run, int which)
{
    const CheckArray *a = &run->check->array[which];
    const int keys = which == CHECK_DK || which == CHECK_DV;
    const AttnShape *n = &run->found->shape;
    const int64_t heads = n->B * (keys ? n->Hkv : n->H);
    const char *row = keys ? "key" : "row";
    say(s, "scattered", "wrong values are scattered over rows and heads");
    if (a->off_empty == a->off) {
        say(s, "empty_rows",
            keys ? "all wrong values are at keys that no query sees; they are 0"
                 : "all wrong values are in rows that see no key; there O is 0 and lse is -inf");
    } else if (a->nonfinite == a->off) {
        s->code = "nonfinite";
        if (a->nonfinite == a->compared)
            say(s, "nonfinite", "all values are NaN or infinite");
        else
            snprintf(s->sentence, sizeof s->sentence,
                     "%" PRId64 " values are NaN or infinite, from %s %" PRId64 " on; the others "
                     "are right",
                     a->nonfinite, row, a->first_off_row);
    } else if (a->hint[0]) {
        s->code = "worst_row";
        snprintf(s->sentence, sizeof s->sentence, "the worst %s: %s", row, a->hint);
    } else if (a->off_tail == a->off && a->first_off_row >= 64) {
        s->code = "tail_tile";
        snprintf(s->sentence, sizeof s->sentence,
                 "all wrong values are in the last partial tile of %ss", row);
    } else if (periodic(s, run, which)) {
        return;
    } else if (a->off_heads == 1 && heads > 1) {
        s->code = "one_head";
        snprintf(s->sentence, sizeof s->sentence,
                 "all wrong values are in batch %" PRId64 ", head %" PRId64, a->b, a->h);
    } else if (a->off_rows == 1) {
        s->code = "one_row";
        snprintf(s->sentence, sizeof s->sentence, "all wrong values are in %s %" PRId64, row, a->i);
    } else if (a->first_off_row > 0 && a->off_rows == a->last_off_row - a->first_off_row + 1) {
        s->code = "from_row_on";
        snprintf(s->sentence, sizeof s->sentence,
                 "%ss %" PRId64 " to %" PRId64 " are off, those before are right", row,
                 a->first_off_row, a->last_off_row);
    } else if (a->off == a->compared) {
        say(s, "all_values", "every value is off");
    } else if (a->off > a->compared - a->compared / 20) {
        say(s, "scattered", "nearly every value is off");
    }
}

void hint_array(HintSymptom *s, const HintVerdict *v, const HintRun *run, int which)
{
    const int named = (v->arrays & (1 << which)) != 0;
    if (!v->code[0]) {
        const size_t used = (hint_symptom(s, run, which), strlen(s->sentence));
        const int forward =
            run->check->array[CHECK_O].checked && run->check->array[CHECK_LSE].checked;
        const char *where =
            !forward              ? ""
            : v->arrays == HINT_O ? "; lse is right in all cases, and so are scores, m and l: look "
                                    "at the product with V and the division by l"
            : v->arrays == HINT_LSE ? "; O is right in all cases: look at the line that writes lse"
                                    : "";
        snprintf(s->sentence + used, sizeof s->sentence - used, "%s", where);
        return;
    }
    say(s, named ? v->code : "follows",
        named ? v->sentence : "this follows from the wrong O and lse");
}
