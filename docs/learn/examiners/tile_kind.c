/* SPDX-License-Identifier: MIT
 *
 * tile_kind.c: judges which tiles of a score matrix are skipped, masked and full.
 *
 * Interface: -N queries and keys, --tile, --left, --right: of the window, -1 = no limit.
 */
#include "learn.h"

#include <signal.h>
#include <sys/time.h>

enum { MILLION = 1000000 };

int tile_kind(int i0, int i1, int j0, int j1, int left, int right);

const Mistake mistakes[] = {
    {"first_row_only",
     "This asks whether the tile's first query sees a key. Its other queries may: the smallest "
     "difference belongs to the last query."},
    {"window_ignored", "Tiles before the window are not skipped: the left side is ignored."},
    {"masked_tile_taken_for_full",
     "A tile is taken for full when one of its pairs is visible; all of them have to be."},
    {"minus_one_literal",
     "-1 is no distance here: it says that this side has no limit, so nothing is hidden there."},
    {"right_ignored", "Tiles behind the window are not skipped: the right side is ignored."},
    {"edge_skipped",
     "Both ends of the window belong to it: a tile whose least difference is `right`, or whose "
     "largest is -left, has a visible pair."},
    {"edge_not_full",
     "Both ends of the window belong to it: a tile whose differences reach from -left to right is "
     "full."},
    {"left_without_minus", "The window begins at -left: differences key - query of keys before the "
                           "query are negative."},
    {"all_masked", "Every tile is masked here: right, but nothing is saved."},
    {"minus_one_not_full", "-1 is forgotten in the test for full: a side without a limit hides "
                           "nothing, so it keeps no tile "
                           "from being full."},
    {NULL, NULL}};

static Output *kind;
static long N, tile, left, right, tiles;
static int million; /* a tile is so large that nobody counts its pairs, here neither */

static long end_of(long first)
{
    return first + tile < N ? first + tile : N;
}

void prepare(void)
{
    N = number("-N", 16);
    tile = number("--tile", 4);
    left = number("--left", -1);
    right = number("--right", -1);
    tiles = (N + tile - 1) / tile;
    million = tile >= MILLION;
    kind = output("the kind of a tile", tiles, tiles, "tile of queries", "tile of keys");
}

static void too_long(int signal_number)
{
    (void)signal_number;
    refuse("loop_over_pairs",
           "It did not finish a tile of %d x %d pairs within 0.2 s. Is there "
           "a loop over pairs? The least and the most difference are enough.",
           MILLION, MILLION);
}

void call(void)
{
    const struct itimerval limit = {.it_value = {.tv_usec = 200000}};
    if (million) {
        signal(SIGVTALRM, too_long);
        setitimer(ITIMER_VIRTUAL, &limit, NULL); /* of the process, on a busy machine too */
    }
    for (long i = 0; i < tiles; i++)
        for (long j = 0; j < tiles; j++)
            kind->found[i * tiles + j] =
                (float)tile_kind((int)(i * tile), (int)end_of(i * tile), (int)(j * tile),
                                 (int)end_of(j * tile), (int)left, (int)right);
}

static int head_sees(long i, long j, int mistake)
{
    return (left < 0 || mistake == 2 || j - i >= -left) && (right < 0 || j - i <= right);
}

/* Of a tile's differences, least to most, as the last mistakes judge them. */
static int kind_of(int mistake, long least, long most)
{
    const int edge = mistake == 6, strict = mistake == 7;
    const long low = mistake == 8 ? left : -left;
    const int left_full = (left < 0 && mistake != 10) || least >= low + strict;
    const int right_full = (right < 0 && mistake != 10) || most <= right - strict;
    if (mistake == 9)
        return 1;
    if ((right >= 0 && mistake != 5 && least > right - edge) || (left >= 0 && most < low + edge))
        return 0;
    return left_full && right_full ? 2 : 1;
}

void expect(int mistake)
{
    for (long a = 0; a < tiles; a++)
        for (long b = 0; b < tiles; b++) {
            long all = 0, seen = 0, first = 0, really = 0;
            for (long i = a * tile; i < end_of(a * tile) && !million; i++)
                for (long j = b * tile; j < end_of(b * tile); j++) {
                    all++;
                    seen += head_sees(i, j, mistake);
                    really += head_sees(i, j, 0);
                    first += head_sees(i, j, mistake) && i == a * tile;
                }
            const long least = b * tile - (end_of(a * tile) - 1);
            const long most = end_of(b * tile) - 1 - a * tile;
            if (mistake > 4 || million) {
                kind->expected[a * tiles + b] = kind_of(mistake, least, most);
                continue;
            }
            if (mistake == 4) {
                kind->expected[a * tiles + b] = least > right || most < -left     ? 0
                                                : least >= -left && most <= right ? 2
                                                                                  : 1;
                continue;
            }
            kind->expected[a * tiles + b] = (mistake == 1 ? first : seen) == 0 ? 0
                                            : mistake == 3 || really == all    ? 2
                                                                               : 1;
        }
}
