/* SPDX-License-Identifier: MIT
 *
 * hops.c: judges how far keys travel under a window, by looking at all pairs of tokens.
 *
 * Interface: -G ranks, -n tokens of a rank, --left, --right: of the window, -1 = no limit.
 */
#include "learn.h"

void count_hops(int G, int n, int left, int right, int *up, int *down);

const Mistake mistakes[] = {
    {"rounded_down",
     "The hops are rounded down: a window that ends inside a rank needs that rank's keys, too."},
    {"one_too_many",
     "With left = n the first query sees exactly the first key of its neighbour: one hop. This is "
     "one too many where n divides the window."},
    {"one_too_many", "A side of 0 keys needs no hop, and a side of n keys one: this is one too "
                     "many where n divides it."},
    {"minus_one_literal",
     "-1 is no number of keys here: it says that this side has no limit, and then all blocks are "
     "wanted."},
    {"right_ignored", "Keys of later ranks never come: the right side of the window is ignored."},
    {"no_limit_of_ranks", "After G - 1 hops a block has been everywhere; more lead home."},
    {"sides_exchanged", "*up and *down are exchanged: keys that a query sees on its left belong to "
                        "earlier ranks, so they travel up."},
    {"keys_for_hops", "These are numbers of keys; a hop brings n of them."},
    {NULL, NULL}};

static Output *hops_up, *hops_down;
static long G, n, left, right;

void prepare(void)
{
    G = number("-G", 4);
    n = number("-n", 4);
    left = number("--left", -1);
    right = number("--right", -1);
    hops_up = output("*up", 1, 1, "", "");
    hops_down = output("*down", 1, 1, "", "");
}

void call(void)
{
    int up = -1, down = -1;
    count_hops((int)G, (int)n, (int)left, (int)right, &up, &down);
    hops_up->found[0] = (float)up;
    hops_down->found[0] = (float)down;
}

static long limited(long hops)
{
    return hops < G - 1 ? hops : G - 1;
}

void expect(int mistake)
{
    long up = 0, down = 0;
    for (long i = 0; i < G * n; i++)
        for (long j = 0; j < G * n; j++) {
            const long apart = i / n - j / n;
            if ((left >= 0 && j < i - left) || (right >= 0 && j > i + right))
                continue;
            up = apart > up ? apart : up;
            down = -apart > down ? -apart : down;
        }
    if (mistake == 1 && left >= 0)
        up = limited(left / n);
    if (mistake == 1 && right >= 0)
        down = limited(right / n);
    if ((mistake == 2 || mistake == 3) && left >= 0)
        up = limited(left / n + 1);
    if (mistake == 3 && right >= 0)
        down = limited(right / n + 1);
    if (mistake == 4)
        up = limited((left + n - 1) / n), down = limited((right + n - 1) / n);
    if (mistake == 5)
        down = 0;
    if (mistake == 6 && left >= 0)
        up = (left + n - 1) / n;
    if (mistake == 8)
        up = left < 0 ? up : left, down = right < 0 ? down : right;
    if (mistake == 7) {
        const long swapped = up;
        up = down, down = swapped;
    }
    hops_up->expected[0] = (double)up;
    hops_down->expected[0] = (double)down;
}
