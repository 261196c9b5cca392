/* SPDX-License-Identifier: MIT
 *
 * zigzag.c: judges which tokens each rank gets.
 *
 * Interface: -N tokens, -G ranks.
 */
#include "learn.h"

int take_zigzag(int rank, int G, int N, int *tokens);

const Mistake mistakes[] = {
    {"contiguous", "The two chunks lie side by side: a late rank has nearly twice the mean work. "
                   "Its second chunk "
                   "is the one that lies as far from the end as the first from the beginning."},
    {"two_early",
     "The second chunk goes up with the rank, too: the last rank has the later half of both. It "
     "has to go down: 2G - 1 - r."},
    {"rest_dropped", "The tokens that remain when 2G does not divide N belong to nobody: c * N / "
                     "C, not c * (N / C)."},
    {NULL, NULL}};

static Output *rank_of;
static long N, G;

void prepare(void)
{
    N = number("-N", 4);
    G = number("-G", 2);
    rank_of = output("the rank of a token", N, 1, "token", "");
    for (long t = 0; t < N; t++)
        rank_of->found[t] = -1.0f; /* nobody's */
}

void call(void)
{
    int *tokens = case_memory(N, sizeof *tokens);
    for (long r = 0; r < G; r++) {
        const int count = take_zigzag((int)r, (int)G, (int)N, tokens);
        if (count < 0 || count > N)
            refuse("count", "Rank %ld has %d tokens of %ld.", r, count, N);
        for (int n = 0; n < count; n++) {
            if (tokens[n] < 0 || tokens[n] >= N)
                refuse("no_token", "Rank %ld has token %d; there are %ld.", r, tokens[n], N);
            if (n > 0 && tokens[n] <= tokens[n - 1])
                refuse("order", "The tokens of rank %ld do not ascend: %d behind %d.", r, tokens[n],
                       tokens[n - 1]);
            if (rank_of->found[tokens[n]] >= 0)
                refuse("twice", "Token %d belongs to rank %d and to rank %ld.", tokens[n],
                       (int)rank_of->found[tokens[n]], r);
            rank_of->found[tokens[n]] = (float)r;
        }
    }
    free(tokens);
}

void expect(int mistake)
{
    for (long t = 0; t < N; t++)
        rank_of->expected[t] = -1;
    for (long c = 0; c < 2 * G; c++) {
        const long even = N / (2 * G); /* of a chunk whose rest is dropped */
        const long first = mistake == 3 ? c * even : c * N / (2 * G);
        const long end = mistake == 3 ? (c + 1) * even : (c + 1) * N / (2 * G);
        for (long t = first; t < end; t++)
            rank_of->expected[t] = (double)(mistake == 1   ? c / 2
                                            : c < G        ? c
                                            : mistake == 2 ? c - G
                                                           : 2 * G - 1 - c);
    }
}
