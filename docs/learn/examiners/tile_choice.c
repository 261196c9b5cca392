/* SPDX-License-Identifier: MIT
 *
 * tile_choice.c: judges a tile for the backward pass by walking its loops and counting floats.
 *
 * Interface: -M floats of fast memory, -d channels, -N queries and keys.
 */
#include "learn.h"

void choose_tile(long M, long d, long N, long *Br, long *Bc);

const Mistake mistakes[] = {{NULL, NULL}};

static Output *chosen;
static long M, d, N;

static long smaller(long a, long b)
{
    return a < b ? a : b;
}

/* Floats that cross between slow and fast memory. */
static long traffic(long Br, long Bc)
{
    long floats = 0;
    for (long j = 0; j < N; j += Bc) {
        floats += 4 * smaller(Bc, N - j) * d; /* K_j, V_j in; dK_j, dV_j out */
        for (long i = 0; i < N; i += Br)
            floats +=
                smaller(Br, N - i) * (4 * d + 2); /* Q_i, dO_i, dQ_i in, dQ_i out; lse, delta */
    }
    return floats;
}

static long needs(long Br, long Bc)
{
    return 3 * Br * d + 2 * Br + 4 * Bc * d + 2 * Br * Bc;
}

void prepare(void)
{
    M = number("-M", 12288);
    d = number("-d", 64);
    N = number("-N", 4096);
    chosen = output("the tile", 2, 1, "number", "");
}

/* The best tile has the most keys that fit beside 16 queries: fewer keys never load less. */
static long best(void)
{
    long Bc = 1;
    while (Bc < N && needs(16, Bc + 1) <= M)
        Bc++;
    return traffic(16, Bc);
}

void call(void)
{
    long Br = 0, Bc = 0;
    choose_tile(M, d, N, &Br, &Bc);
    chosen->found[0] = (float)Br;
    chosen->found[1] = (float)Bc;
    if (Br < 16)
        refuse("too_few_queries", "Br is %ld; at least 16 are wanted.", Br);
    if (Bc < 1 || Br > N || Bc > N)
        refuse("outside", "Br = %ld and Bc = %ld: both must lie between 1 and N = %ld.", Br, Bc, N);
    if (needs(Br, Bc) > M)
        refuse("does_not_fit",
               "Br = %ld, Bc = %ld need %ld floats of %ld. Have you counted P and dS?", Br, Bc,
               needs(Br, Bc), M);
    if ((double)traffic(Br, Bc) > 1.02 * (double)best())
        refuse(Br == Bc ? "square_tile" : "too_few_keys",
               "Br = %ld, Bc = %ld move %.4g floats; %.4g are possible.\n%s", Br, Bc,
               (double)traffic(Br, Bc), (double)best(),
               Br == Bc
                   ? "A square tile spends memory on queries, which does not reduce the traffic."
                   : "Each tile of keys loads all queries: use more keys.");
}

void expect(int mistake)
{
    (void)mistake;
    for (int n = 0; n < 2; n++)
        chosen->expected[n] = chosen->found[n];
}
