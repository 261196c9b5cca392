/* SPDX-License-Identifier: MIT
 *
 * visible.c: judges the rule of the causal mask, aligned with the lower-right corner.
 *
 * Interface: -N queries, --keys.
 */
#include "learn.h"

int visible(int i, int j, int Nq, int Nk);

const Mistake mistakes[] = {
    {"other_corner", "This diagonal starts in the upper-left corner. The last query has to see the "
                     "last key, whatever Nq and Nk are."},
    {"query_key_swapped",
     "This hides the past; it has to hide the keys that come after the query."},
    {"window_off_by_one", "A query sees its own key, too: its last key is i + Nk - Nq itself."},
    {"no_mask", "Every key is visible here; keys after the query have to be hidden."},
    {"wrong_sign",
     "The two lengths are exchanged: the diagonal moves right when there are more keys "
     "than queries."},
    {NULL, NULL}};

static Output *sees;
static long Nq, Nk;

void prepare(void)
{
    Nq = number("-N", 1);
    Nk = number("--keys", Nq);
    sees = output("visible", Nq, Nk, "query", "key");
}

void call(void)
{
    long i, j;
    for (i = 0; i < Nq; i++)
        for (j = 0; j < Nk; j++)
            sees->found[i * Nk + j] = visible((int)i, (int)j, (int)Nq, (int)Nk) != 0;
}

void expect(int mistake)
{
    const long offset = mistake == 1 ? 0 : mistake == 5 ? Nq - Nk : Nk - Nq;
    long i, j;
    for (i = 0; i < Nq; i++)
        for (j = 0; j < Nk; j++)
            sees->expected[i * Nk + j] = mistake == 2   ? j >= i + offset
                                         : mistake == 3 ? j < i + offset
                                         : mistake == 4 ? 1
                                                        : j <= i + offset;
}
