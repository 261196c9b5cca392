/* SPDX-License-Identifier: MIT
 *
 * test_ring_hops: who sees whom and how far keys travel, by brute force over all pairs of tokens.
 *
 * - Two shards are called invisible to each other when no pair is visible, and only then.
 * - Hops are the largest distance of ranks that see each other; for a causal window over equal
 *   blocks that is ceil(L / n).
 * - Work: the bound of contiguous causal attention, and zigzag's balance, of both halves too; what
 *   the cost model counts, pairs and the rows that a mask cuts, by brute force.
 */
#include "ring_plans.h"

#include "planner/cost.h"
#include "planner/shard.h"

/* --- who sees whom -----------------------------------------------------------------------------*/

/* Visible pairs of keys j_from .. j_to-1 of rank k with all queries of rank q. */
static int64_t pairs(const RingPlan *plan, int q, int k, int64_t j_from, int64_t j_to)
{
    const AttnPositions map_q = attn_positions(plan->q[q].segments, plan->q[q].count);
    const AttnPositions map_k = attn_positions(plan->k[k].segments, plan->k[k].count);
    int64_t seen = 0;
    for (int64_t i = 0; i < plan->q[q].tokens; i++)
        for (int64_t j = j_from; j < j_to; j++)
            seen += attn_visible(plan->rule, attn_position(map_q, i), attn_position(map_k, j));
    return seen;
}

static int64_t all_pairs(const RingPlan *plan, int q, int k)
{
    return pairs(plan, q, k, 0, plan->k[k].tokens);
}

static const int64_t windows[][2] = {{-1, -1}, {-1, 0}, {0, 0},  {1, 0},        {5, 0},
                                     {20, 0},  {3, 4},  {0, 9},  {30, 2},       {-1, 3},
                                     {2, -1},  {7, 7},  {2, 40}, {INT64_MAX, 0}};

#define WINDOW_COUNT ((int)(sizeof windows / sizeof *windows))

TEST(class_of_two_shards_is_exact)
{
    int64_t met[3] = {0, 0, 0};
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int m = 0; m < WINDOW_COUNT; m++)
            for (int layout = 0; layout < RING_LAYOUTS; layout++)
                for (int ranks = 1; ranks <= 5; ranks++) {
                    Whole *w = whole_new(lengths[n].sequences, lengths[n].nq, lengths[n].nk,
                                         windows[m][0], windows[m][1]);
                    RingPlan *plan = plan_new(w, (RingLayout)layout, ranks);
                    for (int e = 0; e < ranks * ranks; e++) {
                        const int q = e / ranks, k = e % ranks;
                        const int64_t seen = all_pairs(plan, q, k);
                        const AttnTile class = ring_pair_class(plan, q, k);
                        met[class]++;
                        assert_int_equal(seen == 0, class == ATTN_TILE_SKIP);
                        if (class == ATTN_TILE_CLEAN)
                            assert_int_equal(plan->q[q].tokens * plan->k[k].tokens, seen);
                    }
                    plan_delete(plan);
                    free(w);
                }
    assert_true(met[0] > 1000 && met[1] > 1000 && met[2] > 1000);
}

TEST(hops_are_the_largest_distance)
{
    int partial = 0, both = 0;
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int m = 0; m < WINDOW_COUNT; m++)
            for (int ranks = 1; ranks <= 9; ranks++) {
                Whole *w = whole_new(lengths[n].sequences, lengths[n].nq, lengths[n].nk,
                                     windows[m][0], windows[m][1]);
                RingPlan *plan = plan_new(w, RING_CONTIGUOUS, ranks);
                const int window = windows[m][0] >= 0 || windows[m][1] > 0;
                int up = 0, down = 0;
                for (int q = 0; q < ranks; q++)
                    for (int k = 0; k < ranks; k++)
                        if (all_pairs(plan, q, k) > 0) {
                            up = q - k > up ? q - k : up;
                            down = k - q > down ? k - q : down;
                        }
                if (!window || up + down >= ranks)
                    up = ranks - 1, down = 0;
                assert_int_equal(up, plan->hops_up);
                assert_int_equal(down, plan->hops_down);
                partial += up > 0 && up + down < ranks - 1;
                both += up > 0 && down > 0;
                plan_delete(plan);
                free(w);
            }
    assert_true(partial > 20 && both > 5);
}

/* Equal blocks, one sequence, causal window of L: ceil(L / n) hops, not more than G - 1. */
TEST(hops_of_a_causal_window_by_formula)
{
    const int64_t n = 12;
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int64_t L = 0; L <= n * ranks + 3; L++) {
            Whole *w = whole_new(1, (int64_t[]){n * ranks}, (int64_t[]){n * ranks}, L, 0);
            RingPlan *plan = plan_new(w, RING_CONTIGUOUS, ranks);
            const int64_t hops = (L + n - 1) / n;
            assert_int_equal(hops < ranks ? hops : ranks - 1, plan->hops_up);
            assert_int_equal(0, plan->hops_down);
            plan_delete(plan);
            free(w);
        }
}

/* Layouts that spread every sequence over all ranks turn fully, whatever the window. */
TEST(other_layouts_turn_fully)
{
    for (int layout = RING_ZIGZAG; layout < RING_LAYOUTS; layout++) {
        Whole *w = whole_new(1, (int64_t[]){64}, (int64_t[]){64}, 4, 0);
        RingPlan *plan = plan_new(w, (RingLayout)layout, 4);
        assert_int_equal(3, plan->hops_up);
        assert_int_equal(0, plan->hops_down);
        plan_delete(plan);
        free(w);
    }
}

/* --- work --------------------------------------------------------------------------------------*/

/* Causal, n tokens a rank: contiguous rank r has n(n+1)/2 + r n^2 pairs; with zigzag every rank has
 * as many at every step, and both halves of the keys nearly the same number. */
TEST(work_of_the_ranks)
{
    const int G = 4;
    const int64_t n = 16;
    Whole *w = whole_new(1, (int64_t[]){n * G}, (int64_t[]){n * G}, -1, 0);
    RingPlan *contiguous = plan_new(w, RING_CONTIGUOUS, G), *zigzag = plan_new(w, RING_ZIGZAG, G);
    for (int r = 0; r < G; r++) {
        int64_t sum = 0;
        for (int t = 0; t < G; t++)
            sum += all_pairs(contiguous, r, (r - t + G) % G);
        assert_int_equal(n * (n + 1) / 2 + r * n * n, sum);
        for (int t = 0; t < G; t++) {
            const int owner = (r - t + G) % G;
            const int64_t half[2] = {pairs(zigzag, r, owner, 0, n / 2),
                                     pairs(zigzag, r, owner, n / 2, n)};
            assert_int_equal(t == 0 ? n * (n + 1) / 2 : n * n / 2, half[0] + half[1]);
            if (t > 0)
                assert_int_equal(half[0], half[1]);
            else
                assert_true(half[0] < 2 * half[1] && half[1] < 2 * half[0]);
        }
    }
    plan_delete(contiguous);
    plan_delete(zigzag);
    free(w);
}

/* Queries of runs that see a part of a run of keys. */
static int64_t cut_rows(const RingPlan *plan, int q, int k)
{
    const RingShard *Q = &plan->q[q], *K = &plan->k[k];
    int64_t rows = 0;
    for (int64_t a = 0; a < Q->count; a++)
        for (int64_t b = 0; b < K->count; b++) {
            const AttnSegment *of_q = &Q->segments[a], *of_k = &K->segments[b];
            int64_t seen = 0;
            for (int64_t i = 0; i < of_q->length; i++)
                for (int64_t j = 0; j < of_k->length; j++)
                    seen += attn_visible(
                        plan->rule,
                        (AttnPosition){of_q->sequence, of_q->position + i * of_q->stride},
                        (AttnPosition){of_k->sequence, of_k->position + j * of_k->stride});
            rows += seen > 0 && seen < of_q->length * of_k->length ? of_q->length : 0;
        }
    return rows;
}

TEST(work_of_the_model_is_exact)
{
    int64_t cut = 0;
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int m = 0; m < WINDOW_COUNT; m++)
            for (int layout = 0; layout < RING_LAYOUTS; layout++) {
                const int ranks = 1 + (n + m) % 4;
                Whole *w = whole_new(lengths[n].sequences, lengths[n].nq, lengths[n].nk,
                                     windows[m][0], windows[m][1]);
                RingPlan *plan = plan_new(w, (RingLayout)layout, ranks);
                for (int e = 0; e < ranks * ranks; e++) {
                    const int q = e / ranks, k = e % ranks;
                    const RingWork work = ring_pair_work(plan, q, k);
                    assert_int_equal(all_pairs(plan, q, k), work.pairs);
                    assert_int_equal(cut_rows(plan, q, k), work.partial_rows);
                    cut += work.partial_rows;
                }
                plan_delete(plan);
                free(w);
            }
    assert_true(cut > 1000);
}
