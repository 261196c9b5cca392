/* SPDX-License-Identifier: MIT
 *
 * slots.c: judges which token each slot of a rolling cache holds, by storing all tokens in turn.
 *
 * Interface: -w keys before the query, -t the last token.
 */
#include "learn.h"

void slot_positions(int t, int w, int *position);

const Mistake mistakes[] = {
    {"one_slot_less", "This counts w slots; there are w + 1: the query's own key needs one, too."},
    {"by_age", "The tokens stand in the order of their age here. Nothing is ever moved: slot t mod "
               "(w + 1) is "
               "overwritten."},
    {"empty_slots", "A slot that no token has reached holds -1."},
    {"negative_modulo",
     "In C -2 % 8 is -2 and not 6: where the difference is negative, this is a token after t."},
    {"negative_modulo",
     "In C -2 % 8 is -2 and not 6: where the difference is negative, this is a token after t."},
    {"never_over", "Slots are written over: after token w slot s holds a later token than s."},
    {"older_ones_forgotten",
     "The slots behind that of token t are not empty: they hold tokens of the round before."},
    {"only_the_newest", "Only the slot of token t is filled here; all others keep what they hold."},
    {"distance", "t - s is how long ago token s was stored, not which token slot s holds."},
    {NULL, NULL}};

static Output *position;
static long w, t;

void prepare(void)
{
    w = number("-w", 1);
    t = number("-t", 3);
    position = output("position", w + 1, 1, "slot", "");
}

void call(void)
{
    int *found = case_memory(w + 1, sizeof *found);
    slot_positions((int)t, (int)w, found);
    for (long s = 0; s <= w; s++)
        position->found[s] = (float)found[s];
    free(found);
}

void expect(int mistake)
{
    const long slots = mistake == 1 && w > 0 ? w : w + 1;
    for (long s = 0; s <= w; s++) {
        const long back = ((t - s) % slots + slots) % slots, empty = mistake == 3 ? t - back : -1;
        position->expected[s] = (double)(t - back < 0 ? empty : t - back);
        if (mistake == 4)
            position->expected[s] = (double)(t - (t - s) % slots);
        if (mistake == 5)
            position->expected[s] = (double)(t - (t % slots - s) % slots);
        if (mistake == 6)
            position->expected[s] = (double)(s <= t ? s : -1);
        if (mistake == 7)
            position->expected[s] = (double)(s <= t % slots ? t - t % slots + s : -1);
        if (mistake == 8)
            position->expected[s] = (double)(s == t % slots ? t : -1);
        if (mistake == 9)
            position->expected[s] = (double)(t < s ? -1 : t - s);
        if (mistake == 2)
            position->expected[s] = (double)(t - (w - s) < 0 ? -1 : t - (w - s));
    }
}
