/* SPDX-License-Identifier: MIT
 *
 * plan.c: what follows from the user's choices for all ranks: who has which tokens, and how far
 * keys have to travel. Every rank computes the same plan from the same arguments, so nobody has to
 * ask anybody how long a message will be.
 *
 * How far. In a full turn the keys of every rank visit all others, G-1 hops. A window leaves most
 * of these visits without a visible pair when each rank has one run of tokens: with n tokens per
 * rank, a causal window of L keys is over after ceil(L / n) hops. That formula is for equal blocks
 * of one sequence. Here the pairs of ranks are asked, so it holds for ragged ones, for packed
 * sequences and for cross attention too; a right side of the window makes keys travel down as well,
 * in a ring of its own. Where both together reach everybody, one full turn does.
 *
 * Zigzag and striped shards have tokens in several places, so a window lets them see more ranks:
 * there the turn is full, and what cannot be seen is skipped by the kernels.
 *
 * Interface: ring_plan_make, ring_plan_free (plan.h).
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "planner/shard.h"

#define WHY_SIZE 256

static int refuse_heads(const AttnShape *n, int ranks, char why[WHY_SIZE])
{
    if (n->H % ranks) {
        snprintf(why, WHY_SIZE,
                 "ulysses deals out heads: %" PRId64 " query heads cannot be dealt out to %d ranks "
                 "evenly; --ranks has to divide --heads",
                 n->H, ranks);
        return -1;
    }
    if (n->Hkv % ranks && ranks % n->Hkv) {
        snprintf(why, WHY_SIZE,
                 "ulysses deals out heads: of %" PRId64 " kv heads and %d ranks one has to divide "
                 "the other",
                 n->Hkv, ranks);
        return -1;
    }
    return 0;
}

static int refuse(const RingSetup *setup, const AttnShape *n, char why[WHY_SIZE])
{
    if (setup->ranks < 1 || setup->ranks > RING_MAX_RANKS) {
        snprintf(why, WHY_SIZE, "--ranks: found %d, accepted are 1 to %d", setup->ranks,
                 RING_MAX_RANKS);
        return -1;
    }
    if (setup->nodes < 1 || setup->ranks % setup->nodes) {
        snprintf(why, WHY_SIZE, "--nodes: %d ranks cannot be dealt out to %d nodes evenly",
                 setup->ranks, setup->nodes);
        return -1;
    }
    if (setup->method <= RING_METHOD_AUTO || setup->method >= RING_METHODS) {
        snprintf(why, WHY_SIZE, "a plan is made for one method, and none is chosen yet");
        return -1;
    }
    return setup->method == RING_METHOD_ULYSSES ? refuse_heads(n, setup->ranks, why) : 0;
}

/* The largest rank distance that a visible pair spans, for keys of earlier ranks and of later. */
static void count_hops(RingPlan *plan)
{
    const int G = plan->setup.ranks;
    const int window = plan->rule.left >= 0 || plan->rule.right > 0;
    const int stops = plan->setup.method == RING_METHOD_RING ||
                      plan->setup.method == RING_METHOD_BURST; /* others go everywhere */
    int up = G - 1, down = 0;
    if (window && stops && plan->setup.layout == RING_CONTIGUOUS) {
        up = 0;
        for (int q = 0; q < G; q++)
            for (int k = 0; k < G; k++) {
                if ((q - k <= up && k - q <= down) || ring_pair_class(plan, q, k) == ATTN_TILE_SKIP)
                    continue;
                if (q > k)
                    up = q - k;
                else
                    down = k - q;
            }
    }
    plan->hops_up = up + down < G ? up : G - 1;
    plan->hops_down = up + down < G ? down : 0;
}

int ring_plan_make(RingPlan *plan, const AttnArgs *args, const RingSetup *setup, char why[256])
{
    memset(plan, 0, sizeof *plan);
    if (refuse(setup, &args->shape, why))
        return -1;
    *plan = (RingPlan){.setup = *setup,
                       .shape = args->shape,
                       .dtype = args->Q.dtype,
                       .scale = args->scale,
                       .softcap = args->softcap,
                       .rule = args->rule,
                       .mask = args->mask,
                       .backward = args->dO.data != NULL};
    for (int rank = 0; rank < setup->ranks; rank++) {
        if (ring_shard_make(&plan->q[rank], args->positions_q, setup->layout, rank, setup->ranks) ||
            ring_shard_make(&plan->k[rank], args->positions_k, setup->layout, rank, setup->ranks)) {
            ring_plan_free(plan);
            snprintf(why, WHY_SIZE, "memory is short: a plan for %d ranks", setup->ranks);
            return -1;
        }
        plan->nq[rank] = plan->q[rank].tokens;
        plan->nk[rank] = plan->k[rank].tokens;
    }
    count_hops(plan);
    return 0;
}

void ring_plan_free(RingPlan *plan)
{
    for (int rank = 0; rank < plan->setup.ranks; rank++) {
        ring_shard_free(&plan->q[rank]);
        ring_shard_free(&plan->k[rank]);
    }
    memset(plan, 0, sizeof *plan);
}
