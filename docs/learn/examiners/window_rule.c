/* SPDX-License-Identifier: MIT
 *
 * window_rule.c: judges which pairs a window shows, sides without a limit and wide ones among them.
 *
 * Interface: -N queries, --keys, --left, --right: of the window, -1 = no limit.
 */
#include "learn.h"

int sees(int i, int j, int Nq, int Nk, int left, int right);

const Mistake mistakes[] = {
    {"window_for_causal",
     "A window that hides nothing on its right side is taken for causal: -1, no limit, counts as a "
     "right side of 0."},
    {"right_of_the_keys",
     "With more queries than keys the first ones stand before key 0, and a right side of Nk - 1 "
     "does not reach all keys: it hides nothing from Nq - 1 on."},
    {"window_off_by_one", "Both ends of the window belong to it: key position - left is visible."},
    {NULL, NULL}};

static Output *seen;
static long Nq, Nk, left, right;

void prepare(void)
{
    Nq = number("-N", 1);
    Nk = number("--keys", Nq);
    left = number("--left", -1);
    right = number("--right", -1);
    seen = output("visible", Nq, Nk, "query", "key");
}

void call(void)
{
    long i, j;
    for (i = 0; i < Nq; i++)
        for (j = 0; j < Nk; j++)
            seen->found[i * Nk + j] =
                sees((int)i, (int)j, (int)Nq, (int)Nk, (int)left, (int)right) != 0;
}

void expect(int mistake)
{
    long i, j;
    for (i = 0; i < Nq; i++)
        for (j = 0; j < Nk; j++) {
            const long position = i + Nk - Nq, first = position - left + (mistake == 3);
            long to = right < 0 ? Nk : position + right;
            if (mistake == 1 && (left < 0 || left >= Nk - 1) && (right < 0 || right >= Nq - 1))
                to = position;
            if (mistake == 2 && right >= Nk - 1)
                to = Nk;
            seen->expected[i * Nk + j] = (left < 0 || j >= first) && j <= to;
        }
}
