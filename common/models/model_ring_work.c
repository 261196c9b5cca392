/* SPDX-License-Identifier: MIT
 *
 * model_ring_work.c: who has how much to do under a causal mask, when N = G n tokens are dealt out
 * in equal blocks. Rank r at step t has the keys of rank j = r - t (mod G); the pairs it computes:
 *
 *     layout       j = r         j < r          j > r          all steps of rank r
 *     contiguous   n(n+1)/2      n n            0              n(n+1)/2 + r n n
 *     zigzag       n(n+1)/2      n n/2          n n/2          n (G n + 1)/2
 *     striped      n(n+1)/2      n(n+1)/2       n(n-1)/2       n (G n + 2r + 2 - G)/2
 *
 * In a ring each step ends when the slowest rank's does. Contiguous: from step 1 on there is always
 * a rank with a full block, and half of all blocks are empty, so half of the time is spent waiting.
 * Zigzag gives every rank an early and a late chunk: all do the same at every step.
 *
 * Interface: model_ring_pairs, model_ring_efficiency (model_ring_bytes.h). Any mask and any blocks:
 * ring_block_work in stage 06.
 */
#include "models/model_ring_bytes.h"

int64_t model_ring_pairs(RingLayout layout, int64_t n, int q_rank, int k_rank)
{
    if (q_rank == k_rank)
        return n * (n + 1) / 2;
    switch (layout) {
    case RING_ZIGZAG:
        return n * (n / 2);
    case RING_STRIPED:
        return k_rank < q_rank ? n * (n + 1) / 2 : n * (n - 1) / 2;
    default:
        return k_rank < q_rank ? n * n : 0;
    }
}

double model_ring_efficiency(RingLayout layout, int ranks, int64_t n)
{
    const double G = ranks, tokens = (double)n;
    switch (layout) {
    case RING_ZIGZAG:
        return 1;
    case RING_STRIPED:
        return (G * tokens + 1) / (G * (tokens + 1));
    default:
        return (G * tokens + 1) / (tokens + 1 + 2 * (G - 1) * tokens);
    }
}
