/* SPDX-License-Identifier: MIT
 *
 * check_everywhere.c: of a case that is checked on a sample, what every other element must at least
 * be. Outputs hold NaN before a run, so a row that was never written is found wherever it is; and
 * oracle_given.c takes lse and O from a run, where a NaN would ask for a NaN.
 *
 * Interface: check.h (check_everywhere).
 */
#include <math.h>

#include "check.h"
#include "tensor.h"

static int holds(const int64_t *index, int64_t count, int64_t i)
{
    int64_t low = 0, high = count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (index[middle] < i)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && index[low] == i;
}

/* How many values of row i have no business there; NaN by its bits. */
static int64_t count_bad(const CheckSlot *s, int64_t b, int64_t h, int64_t i)
{
    float row[1024];
    int64_t bad = 0;
    if (!s->found) /* lse: -inf is a row that sees no key */
        return !is_finite_f32(check_find(s, b, h, i, 0)) && !(check_find(s, b, h, i, 0) < 0);
    tensor_read_row(s->found, b, i, h, row);
    for (int64_t x = 0; x < s->width; x++)
        bad += !is_finite_f32(row[x]) && !(row[x] < 0) && !(row[x] > 0);
    return bad;
}

void check_everywhere(CheckArray *a, const Oracle *o, const AttnArgs *args, int which)
{
    const CheckSlot s = check_slot(o, args, which);
    const int64_t group = o->shape.H / o->shape.Hkv;
    const int threads = args->threads > 1 ? args->threads : 1;
    (void)threads;
    if ((!s.found && !s.found_f32) || which >= CHECK_DWQ)
        return;
    for (int64_t outer = 0; outer < o->shape.B * s.heads; outer++) {
        const int64_t b = outer / s.heads, h = outer % s.heads;
        const int64_t kv = which <= CHECK_DQ ? h / group : h;
        /* in the other groups no key was compared */
        const int compared = !s.outer_index || holds(s.outer_index, s.outer, outer);
        int64_t bad = 0;
        if (o->tainted[b * o->shape.Hkv + kv])
            continue;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : bad)
        for (int64_t i = 0; i < s.N; i++)
            bad +=
                compared && holds(s.sample->index, s.sample->count, i) ? 0 : count_bad(&s, b, h, i);
        a->off_nan += bad;
    }
    a->off += a->off_nan;
    a->nonfinite += a->off_nan;
}
