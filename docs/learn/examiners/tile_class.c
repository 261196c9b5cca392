/* SPDX-License-Identifier: MIT
 *
 * tile_class.c: judges which tiles of a causal problem are skipped, masked and full.
 *
 * Interface: -N queries, --keys, --rows Br, --cols Bc.
 */
#include "learn.h"

int tile_class(int i, int rows, int j, int cols, int Nq, int Nk);

enum { SKIP, MASKED, FULL };

const Mistake mistakes[] = {
    {"masked_tiles_skipped",
     "A tile is skipped that its last row still sees: skip only when the *last* row "
     "sees none of its keys."},
    {"masked_tile_taken_for_full",
     "A tile is called full although its first row does not see its last key."},
    {"other_corner", "The diagonal ends in the lower-right corner: query i is token i + Nk - Nq."},
    {"one_key_too_few", "The diagonal itself is visible: a query sees its own key."},
    {"all_masked", "Every tile is masked here: right, but nothing is saved."},
    {"masked_tiles_skipped",
     "A tile is skipped because its last key is hidden. Skip only when its *first* key is hidden "
     "from its last row."},
    {"skipped_too_late",
     "A tile of which nothing is visible is not skipped: the last row of a tile is i + rows - 1."},
    {NULL, NULL}};

static Output *classes;
static long Nq, Nk, Br, Bc;

void prepare(void)
{
    static const char *const names[] = {"SKIP", "MASKED", "FULL", NULL};
    Nq = number("-N", 8), Nk = number("--keys", Nq), Br = number("--rows", 4),
    Bc = number("--cols", 4);
    classes = output("the class", (Nq + Br - 1) / Br, (Nk + Bc - 1) / Bc, "row tile", "key tile");
    classes->names = names;
}

void call(void)
{
    long i, j;
    for (i = 0; i < classes->rows; i++)
        for (j = 0; j < classes->cols; j++) {
            const long rows = Nq - i * Br < Br ? Nq - i * Br : Br;
            const long cols = Nk - j * Bc < Bc ? Nk - j * Bc : Bc;
            classes->found[i * classes->cols + j] = (float)tile_class(
                (int)(i * Br), (int)rows, (int)(j * Bc), (int)cols, (int)Nq, (int)Nk);
        }
}

/* The right class counts the visible pairs of the tile. */
static int class_of(int mistake, long i, long rows, long j, long cols)
{
    const long offset = mistake == 3 ? 0 : Nk - Nq - (mistake == 4);
    long r, c, visible = 0;
    for (r = i; r < i + rows; r++)
        for (c = j; c < j + cols; c++)
            visible += c <= r + offset;
    if (mistake == 5)
        return MASKED;
    if (mistake == 6 && j + cols - 1 > i + rows - 1 + offset)
        return SKIP;
    if (mistake == 7 && visible == 0 && j <= i + rows + offset)
        return MASKED;
    if (mistake == 1 && j > i + offset)
        return SKIP;
    if (mistake == 2 && j + cols - 1 <= i + rows - 1 + offset)
        return FULL;
    return visible == 0 ? SKIP : visible == rows * cols ? FULL : MASKED;
}

void expect(int mistake)
{
    long i, j;
    for (i = 0; i < classes->rows; i++)
        for (j = 0; j < classes->cols; j++) {
            const long rows = Nq - i * Br < Br ? Nq - i * Br : Br;
            const long cols = Nk - j * Bc < Bc ? Nk - j * Bc : Bc;
            classes->expected[i * classes->cols + j] =
                class_of(mistake, i * Br, rows, j * Bc, cols);
        }
}
