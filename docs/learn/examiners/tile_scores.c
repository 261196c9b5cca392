/* SPDX-License-Identifier: MIT
 *
 * tile_scores.c: judges attention of one head in tiles of keys, where the last tile is not whole.
 *
 * Interface: -N queries, --keys, -d channels.
 */
#include <math.h>

#include "attention.h"

void attend_tiles(const float *Q, const float *K, const float *V, float *O, float *lse, int Nq,
                  int Nk, int d);

#define TILE 8 /* keys of a tile in the stub */

const Mistake mistakes[] = {
    {"keys_counted_twice",
     "The last tile was moved back, so that it is whole: its first keys were in "
     "the tile before, too, and count twice."},
    {"tail_tile_dropped", "The keys of the last, smaller tile are left out."},
    ATTENTION_MISTAKES,
    {NULL, NULL}};

static Head head;

void prepare(void)
{
    head = head_of_flags();
}

void call(void)
{
    attend_tiles(head.Q, head.K, head.V, head_O->found, head_lse->found, (int)head.Nq, (int)head.Nk,
                 (int)head.d);
}

/* O and lse of all keys, and those from `first` to `last` - 1 once more. */
static void count_twice(long first, long last)
{
    Head again = head;
    double *O = head_O->expected, *O_again = case_memory(head.Nq * head.d, sizeof *O_again);
    double *lse = head_lse->expected, *lse_again = case_memory(head.Nq, sizeof *lse_again);
    long i, x;
    again.K += first * head.d;
    again.V += first * head.d;
    again.Nk = last - first;
    reference(&again, RIGHT, O_again, lse_again);
    for (i = 0; i < head.Nq; i++) {
        const double share = 1.0 / (1.0 + exp(lse_again[i] - lse[i]));
        for (x = i * head.d; x < (i + 1) * head.d; x++)
            O[x] = share * O[x] + (1.0 - share) * O_again[x];
        lse[i] -= log(share);
    }
    free(O_again);
    free(lse_again);
}

void expect(int mistake)
{
    const long whole = head.Nk / TILE * TILE;
    Head shorter = head;
    if (mistake == 2)
        shorter.Nk = whole;
    expect_head(&shorter, mistake > 2 ? mistake - 2 : RIGHT);
    if (mistake == 1 && head.Nk > TILE && whole < head.Nk)
        count_twice(head.Nk - TILE, whole);
}

/* What stands behind K and V is poison. */
const Mistake *diagnose(void)
{
    static const Mistake past_the_last_key = {
        "past_the_last_key",
        "The last tile has fewer than 8 keys. Rows behind them are taken for keys here."};
    return head.Nk % TILE && from_poison(head_lse) ? &past_the_last_key : NULL;
}
