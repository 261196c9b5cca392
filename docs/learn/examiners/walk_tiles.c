/* SPDX-License-Identifier: MIT
 *
 * walk_tiles.c: judges in which order tiles are visited, and that no part of a matrix is left out.
 *
 * The learner calls start_rows, visit_tile and finish_rows; here they compute nothing but count.
 *
 * Interface: -N queries, --keys, --rows Br, --cols Bc.
 */
#include "learn.h"

void walk_tiles(int Nq, int Nk, int Br, int Bc);
void start_rows(int i, int rows);
void visit_tile(int i, int rows, int j, int cols);
void finish_rows(int i, int rows);

const Mistake mistakes[] = {
    {"tail_tile_dropped",
     "The keys behind the last whole tile are left out: the last tile is smaller "
     "than Bc."},
    {"tail_rows_dropped",
     "The queries behind the last whole tile are left out: the last tile is smaller "
     "than Br."},
    {"tails_dropped",
     "Rows and keys behind the last whole tile are left out: Nk / Bc rounds down."},
    {NULL, NULL}};

static Output *seen, *begun, *finished;
static long Nq, Nk, Br, Bc;
static int current = -1; /* the first query of the tile that was visited last */

void prepare(void)
{
    long e;
    Nq = number("-N", 4), Nk = number("--keys", Nq), Br = number("--rows", 2),
    Bc = number("--cols", 2);
    seen = output("the number of visits", Nq, Nk, "query", "key");
    begun = output("the number of starts", Nq, 1, "query", "");
    finished = output("the number of finishes", Nq, 1, "query", "");
    for (e = 0; e < Nq * Nk; e++)
        seen->found[e] = 0.0f;
    for (e = 0; e < Nq; e++)
        begun->found[e] = finished->found[e] = 0.0f;
}

static void check_range(const char *what, long first, long count, long most, long n)
{
    if (first < 0 || count < 1 || first + count > n)
        refuse("past_the_end",
               "%s %ld to %ld do not exist: there are %ld. The last tile has fewer.", what, first,
               first + count - 1, n);
    if (count > most)
        refuse("tile_too_large", "A tile of %ld %s: at most %ld fit.", count, what, most);
}

static _Noreturn void not_a_number(const char *call, long first, const char *what, const char *size)
{
    refuse("tile_number",
           "%s: %ld is no beginning of a tile. The argument is the first %s of the tile, not the "
           "tile's number: in steps of %s.",
           call, first, what, size);
}

void start_rows(int i, int rows)
{
    long r;
    check_range("queries", i, rows, Br, Nq);
    for (r = i; r < i + rows; r++)
        if (begun->found[r]++ > 0.0f) {
            if (i % Br)
                not_a_number("start_rows", i, "query", "Br");
            refuse(
                "keys_outside",
                "Query %ld is started a second time: with the keys outside, every "
                "state is loaded and stored again for each tile of keys. Put the queries outside.",
                r);
        }
}

void visit_tile(int i, int rows, int j, int cols)
{
    long r, c;
    check_range("queries", i, rows, Br, Nq);
    check_range("keys", j, cols, Bc, Nk);
    for (r = i; r < i + rows; r++) {
        if (begun->found[r] != 1.0f || finished->found[r] != 0.0f)
            refuse("not_started", "Query %ld meets key %d %s.", r, j,
                   finished->found[r] > 0.0f ? "after finish_rows" : "before start_rows");
        for (c = 0; c < Nk && i != current; c++)
            if (seen->found[r * Nk + c] > 0.0f)
                refuse("keys_outside",
                       "Query %ld is visited again after others were: with the keys outside, its "
                       "state is loaded and stored for each tile of keys. Put the queries outside.",
                       r);
        for (c = j; c < j + cols; c++)
            if (seen->found[r * Nk + c]++ > 0.0f && j % Bc)
                not_a_number("visit_tile", j, "key", "Bc");
    }
    current = i;
}

void finish_rows(int i, int rows)
{
    long r;
    check_range("queries", i, rows, Br, Nq);
    for (r = i; r < i + rows; r++)
        finished->found[r]++;
}

void call(void)
{
    walk_tiles((int)Nq, (int)Nk, (int)Br, (int)Bc);
}

void expect(int mistake)
{
    const long rows = mistake == 2 || mistake == 3 ? Nq / Br * Br : Nq;
    const long cols = mistake == 1 || mistake == 3 ? Nk / Bc * Bc : Nk;
    long i, j;
    for (i = 0; i < Nq; i++) {
        begun->expected[i] = finished->expected[i] = i < rows;
        for (j = 0; j < Nk; j++)
            seen->expected[i * Nk + j] = i < rows && j < cols;
    }
}
