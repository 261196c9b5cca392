/* SPDX-License-Identifier: MIT
 *
 * choose_tiles.c: judges tile sizes by what FlashAttention-2's loops move with them.
 *
 * count_loads walks the loops and counts; nothing is computed. The best tiles are found by
 * trying all of them.
 *
 * Interface: -M numbers of fast memory, -N queries and keys, -d channels.
 */
#include "learn.h"

#define LEAST_KEYS 8

void choose_tiles(long M, long N, long d, long *Br, long *Bc);

const Mistake mistakes[] = {{NULL, NULL}};

static long M, N, d;

void prepare(void)
{
    M = number("-M", 1024), N = number("-N", 256), d = number("-d", 16);
}

static long smaller(long a, long b)
{
    return a < b ? a : b;
}

/* Q_i and O_i, K_j and V_j, the scores, m_i and l_i */
static long fast_numbers(long Br, long Bc)
{
    return 2 * Br * d + 2 * Bc * d + Br * Bc + 2 * Br;
}

static long count_loads(long Br, long Bc)
{
    long i, j, loads = 0;
    for (i = 0; i < N; i += Br) {
        loads += smaller(Br, N - i) * d; /* Q_i */
        for (j = 0; j < N; j += Bc)
            loads += 2 * smaller(Bc, N - j) * d; /* K_j, V_j */
    }
    return loads;
}

void call(void)
{
    const long least_keys = smaller(LEAST_KEYS, N);
    long Br = 0, Bc = 0, best = 0, rows, loads;
    for (rows = 1; rows <= N && fast_numbers(rows, least_keys) <= M; rows++)
        best = rows; /* more rows never load more; the number of keys of a tile does not matter */
    choose_tiles(M, N, d, &Br, &Bc);
    if (Br < 1 || Br > N || Bc > N)
        refuse("size", "Br = %ld, Bc = %ld: a tile has 1 to N = %ld rows and keys.", Br, Bc, N);
    if (Bc < least_keys)
        refuse("too_few_keys", "Bc = %ld: at least %d keys are wanted.", Bc, LEAST_KEYS);
    if (fast_numbers(Br, Bc) > M && fast_numbers(Br, Bc) - Br * Bc <= M)
        refuse("scores_forgotten",
               "Br = %ld, Bc = %ld take %ld of %ld numbers: the scores, Br x Bc, have "
               "to fit, too.",
               Br, Bc, fast_numbers(Br, Bc), M);
    if (fast_numbers(Br, Bc) > M)
        refuse("does_not_fit",
               "Br = %ld, Bc = %ld take %ld of %ld numbers. Q_i, O_i, K_j, V_j, S, m_i and "
               "l_i all have to fit.",
               Br, Bc, fast_numbers(Br, Bc), M);
    loads = count_loads(Br, Bc);
    if (loads > count_loads(best, least_keys) && Br <= Bc)
        refuse("too_many_keys",
               "Br = %ld, Bc = %ld load %ld numbers; %ld are possible. K and V are loaded "
               "once for each tile of queries: which of the two sizes matters?",
               Br, Bc, loads, count_loads(best, least_keys));
    if (loads > count_loads(best, least_keys))
        refuse("memory_left",
               "Br = %ld, Bc = %ld load %ld numbers; %ld are possible. %ld numbers of fast "
               "memory are left over.",
               Br, Bc, loads, count_loads(best, least_keys), M - fast_numbers(Br, Bc));
}

void expect(int mistake)
{
    (void)mistake; /* there is no array: call() has judged */
}
