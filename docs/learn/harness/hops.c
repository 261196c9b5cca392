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
    {"right_ignored", "Keys of later ranks never come: the right side of the window is ignored."},
    {"no_limit_of_ranks", "After G - 1 hops a block has been everywhere; more lead home."},
    {NULL, NULL}};

static Output *hops;
static long G, n, left, right;

void prepare(void)
{
    G = number("-G", 4);
    n = number("-n", 4);
    left = number("--left", -1);
    right = number("--right", -1);
    hops = output("the number of hops", 2, 1, "direction (0: up, 1: down)", "");
}

void call(void)
{
    int up = -1, down = -1;
    count_hops((int)G, (int)n, (int)left, (int)right, &up, &down);
    hops->found[0] = (float)up;
    hops->found[1] = (float)down;
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
        up = left / n < G - 1 ? left / n : G - 1;
    if (mistake == 2 && left >= 0)
        up = left / n + 1 < G - 1 ? left / n + 1 : G - 1;
    if (mistake == 3)
        down = 0;
    if (mistake == 4 && left >= 0)
        up = (left + n - 1) / n;
    hops->expected[0] = (double)up;
    hops->expected[1] = (double)down;
}
