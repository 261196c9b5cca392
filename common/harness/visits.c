/* SPDX-License-Identifier: MIT
 *
 * visits.c: blocks of the online rungs, and the order in which they are visited.
 *
 *     rows        queries outside, keys inside: the order of FlashAttention-2
 *     columns     keys outside: the order of FlashAttention-1, each key block is read once
 *     diagonal    turn s visits block (i, i + s mod Tc) for each i: the order of a ring, in which
 *                 all ranks i work at the same time and keys move on by one rank after each turn
 *     random      any order at all
 *
 * The result is the same in all of them, up to rounding: that is what stage 05 is about.
 *
 * Interface: visits.h.
 */
#include "harness/visits.h"

#include "harness/io/fill.h"

static int64_t block_q = 64, block_kv = 64;
static VisitOrder order = VISIT_ROWS;
static uint64_t order_seed = 1;

void visits_set_blocks(int64_t q, int64_t kv)
{
    block_q = q;
    block_kv = kv;
}

void visits_set_order(VisitOrder new_order, uint64_t seed)
{
    order = new_order;
    order_seed = seed;
}

int64_t visits_block_q(void)
{
    return block_q;
}

int64_t visits_block_kv(void)
{
    return block_kv;
}

/* Every permutation is equally likely (Fisher and Yates): swap each with one at or before it. */
static void shuffle(int64_t *visits, int64_t count)
{
    const uint64_t stream = fill_stream(order_seed, 0, (uint64_t)count);
    for (int64_t t = count - 1; t > 0; t--) {
        const int64_t other = (int64_t)(fill_word(stream, (uint64_t)t) % (uint64_t)(t + 1));
        const int64_t visit = visits[t];
        visits[t] = visits[other];
        visits[other] = visit;
    }
}

void visits_fill(int64_t Tr, int64_t Tc, int64_t *visits)
{
    for (int64_t t = 0; t < Tr * Tc; t++)
        switch (order) {
        case VISIT_COLUMNS:
            visits[t] = t % Tr * Tc + t / Tr;
            break;
        case VISIT_DIAGONAL:
            visits[t] = t % Tr * Tc + (t % Tr + t / Tr) % Tc;
            break;
        default:
            visits[t] = t;
        }
    if (order == VISIT_RANDOM)
        shuffle(visits, Tr * Tc);
}
