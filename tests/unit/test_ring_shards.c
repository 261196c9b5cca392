/* SPDX-License-Identifier: MIT
 *
 * test_ring_shards: layouts of stage 06, checked token by token. Nothing here knows how shard.c and
 * plan.c do it.
 *
 * - Every token is dealt out exactly once, with its position, for all layouts; ragged lengths,
 *   fewer tokens than ranks, packed sequences, cross attention, strides.
 * - Each layout is what it is called, shares are nearly equal, and alone a rank keeps the order.
 * - A run of local tokens has the positions that the whole shard has there.
 * - Refusals in one sentence.
 */
#include "planner/shard.h"
#include "ring_plans.h"

/* Local token t of a shard is which token of the whole tensor? By walking over all pieces. */
static int64_t global_of(const RingShard *shard, int64_t t)
{
    for (int64_t p = 0; p < shard->count; p++) {
        const RingPiece *g = &shard->pieces[p];
        if (t >= g->first && t < g->first + g->length)
            return g->global + (t - g->first) * g->stride;
    }
    fail_msg("token %d of %d is in no piece", (int)t, (int)shard->tokens);
    return -1;
}

static void assert_dealt_once(const RingShard *shards, int ranks, AttnPositions whole, int64_t N)
{
    int owners[MOST_TOKENS] = {0};
    int64_t total = 0;
    assert_true(N <= MOST_TOKENS);
    for (int rank = 0; rank < ranks; rank++) {
        const RingShard *s = &shards[rank];
        const AttnPositions map = attn_positions(s->segments, s->count);
        int64_t next = 0;
        for (int64_t p = 0; p < s->count; p++) {
            assert_int_equal(next, s->pieces[p].first);
            assert_int_equal(next, s->segments[p].first);
            assert_int_equal(s->pieces[p].length, s->segments[p].length);
            assert_true(s->pieces[p].length > 0);
            next += s->pieces[p].length;
        }
        assert_int_equal(next, s->tokens);
        total += s->tokens;
        for (int64_t t = 0; t < s->tokens; t++) {
            const int64_t n = global_of(s, t);
            AttnPosition local, global;
            assert_true(n >= 0 && n < N);
            owners[n]++;
            local = attn_position(map, t), global = attn_position(whole, n);
            assert_int_equal(global.sequence, local.sequence);
            assert_int_equal(global.position, local.position);
        }
    }
    assert_int_equal(N, total);
    for (int64_t n = 0; n < N; n++)
        assert_int_equal(1, owners[n]);
}

TEST(every_token_is_dealt_once)
{
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int ranks = 1; ranks <= 17; ranks++)
            for (int layout = 0; layout < RING_LAYOUTS; layout++) {
                Whole *w = whole_new(lengths[n].sequences, lengths[n].nq, lengths[n].nk, -1, -1);
                RingPlan *plan = plan_new(w, (RingLayout)layout, ranks);
                assert_dealt_once(plan->q, ranks, w->args.positions_q, w->args.shape.Nq);
                assert_dealt_once(plan->k, ranks, w->args.positions_k, w->args.shape.Nk);
                plan_delete(plan);
                free(w);
            }
}

/* Positions of the whole need not be 0, 1, 2 ... */
TEST(strides_of_the_whole_are_kept)
{
    for (int layout = 0; layout < RING_LAYOUTS; layout++) {
        Whole *w = whole_new(1, (int64_t[]){29}, (int64_t[]){29}, -1, -1);
        RingPlan *plan;
        w->k[0].position = 100, w->k[0].stride = -3;
        plan = plan_new(w, (RingLayout)layout, 4);
        assert_dealt_once(plan->k, 4, w->args.positions_k, 29);
        plan_delete(plan);
        free(w);
    }
}

/* Sizes differ by one per sequence at most, so by two per sequence with zigzag's two chunks. */
TEST(shares_are_nearly_equal)
{
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int ranks = 2; ranks <= 8; ranks++)
            for (int layout = 0; layout < RING_LAYOUTS; layout++) {
                Whole *w = whole_new(lengths[n].sequences, lengths[n].nq, lengths[n].nk, -1, -1);
                RingPlan *plan = plan_new(w, (RingLayout)layout, ranks);
                int64_t least = INT64_MAX, most = 0;
                for (int r = 0; r < ranks; r++) {
                    least = plan->k[r].tokens < least ? plan->k[r].tokens : least;
                    most = plan->k[r].tokens > most ? plan->k[r].tokens : most;
                }
                assert_true(most - least <= lengths[n].sequences * (layout == RING_ZIGZAG ? 2 : 1));
                plan_delete(plan);
                free(w);
            }
}

/* 16 tokens, 4 ranks, by hand: the picture of shard.c. */
TEST(layouts_by_hand)
{
    const char *const owner[RING_LAYOUTS] = {"0000111122223333", "0011223333221100",
                                             "0123012301230123"};
    for (int layout = 0; layout < RING_LAYOUTS; layout++) {
        Whole *w = whole_new(1, (int64_t[]){16}, (int64_t[]){16}, -1, 0);
        RingPlan *plan = plan_new(w, (RingLayout)layout, 4);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(4, plan->q[r].tokens);
            for (int64_t t = 0; t < 4; t++)
                assert_int_equal(owner[layout][global_of(&plan->q[r], t)] - '0', r);
        }
        plan_delete(plan);
        free(w);
    }
}

/* The bit-equality of one rank with the kernel rests on this. */
/* Gradients travel in halves, cut at tokens / 2: there, and nowhere else, zigzag's order goes back
 * to an early token, although chunks may be odd and sequences many. */
TEST(zigzag_halves_meet_in_the_middle)
{
    for (int64_t N = 24; N < 60; N++)
        for (int ranks = 2; ranks <= 3; ranks++)
            for (int sequences = 1; sequences <= 3; sequences++) {
                const int64_t n[] = {N - 11 * (sequences - 1), 13, 9};
                Whole *w = whole_new(sequences, n, n, -1, 0);
                RingPlan *plan = plan_new(w, RING_ZIGZAG, ranks);
                for (int r = 0; r < ranks; r++) {
                    const RingShard *s = &plan->q[r];
                    for (int64_t t = 1; t < s->tokens && s->tokens > 3; t++)
                        assert_int_equal(t == s->tokens / 2, global_of(s, t) < global_of(s, t - 1));
                }
                plan_delete(plan);
                free(w);
            }
}

TEST(alone_a_rank_keeps_the_order)
{
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int layout = 0; layout < RING_LAYOUTS; layout++) {
            Whole *w = whole_new(lengths[n].sequences, lengths[n].nq, lengths[n].nk, -1, 0);
            RingPlan *plan = plan_new(w, (RingLayout)layout, 1);
            for (int64_t t = 0; t < w->args.shape.Nk; t++)
                assert_int_equal(t, global_of(&plan->k[0], t));
            assert_int_equal(0, plan->hops_up + plan->hops_down);
            plan_delete(plan);
            free(w);
        }
}

TEST(a_run_has_the_positions_of_the_shard)
{
    for (int n = 0; n < 3000; n++) {
        const Lengths *l = &lengths[case_random() % LENGTHS_COUNT];
        const int ranks = 1 + (int)(case_random() % 6);
        const RingLayout layout = (RingLayout)(case_random() % RING_LAYOUTS);
        Whole *w = whole_new(l->sequences, l->nq, l->nk, -1, -1);
        RingPlan *plan = plan_new(w, layout, ranks);
        const RingShard *shard = &plan->q[case_random() % (unsigned)ranks];
        const int64_t first = case_random() % (unsigned)(shard->tokens + 1);
        const int64_t tokens = case_random() % (unsigned)(shard->tokens - first + 1);
        AttnSegment room[4 * MOST_SEGMENTS];
        AttnPositions run = attn_positions(room, 0);
        int64_t covered = 0;
        for (int64_t s = 0; s < shard->count; s++) {
            RingPiece piece;
            if (!ring_run_cut(shard, s, first, tokens, &piece, &room[run.count]))
                continue;
            assert_int_equal(covered, piece.first);
            assert_int_equal(covered, room[run.count++].first);
            assert_int_equal(global_of(shard, first + covered), piece.global);
            covered += piece.length;
        }
        assert_int_equal(tokens, covered);
        for (int64_t t = 0; t < tokens; t++) {
            const AttnPositions map = attn_positions(shard->segments, shard->count);
            const AttnPosition a = attn_position(run, t), b = attn_position(map, first + t);
            assert_int_equal(a.sequence, b.sequence);
            assert_int_equal(a.position, b.position);
        }
        plan_delete(plan);
        free(w);
    }
}

/* --- refusals ----------------------------------------------------------------------------------*/

static void assert_refused(AttnShape shape, RingSetup setup, const char *word)
{
    Whole *w = whole_new(1, (int64_t[]){16}, (int64_t[]){16}, -1, -1);
    RingPlan *plan = malloc(sizeof *plan);
    char why[256] = "";
    assert_non_null(plan);
    w->args.shape = shape;
    assert_int_equal(-1, ring_plan_make(plan, &w->args, &setup, why));
    if (!strstr(why, word))
        fail_msg("'%s' does not name %s", why, word);
    free(plan);
    free(w);
}

TEST(refusals_name_the_reason)
{
    const AttnShape shape = {1, 12, 4, 16, 16, 8};
    assert_refused(shape, (RingSetup){RING_METHOD_RING, .ranks = 0, .nodes = 1}, "--ranks");
    assert_refused(shape, (RingSetup){RING_METHOD_RING, .ranks = 65, .nodes = 1}, "--ranks");
    assert_refused(shape, (RingSetup){RING_METHOD_RING_DOUBLE, .ranks = 6, .nodes = 4}, "--nodes");
    assert_refused(shape, (RingSetup){RING_METHOD_RING, .ranks = 6, .nodes = 0}, "--nodes");
    assert_refused(shape, (RingSetup){RING_METHOD_AUTO, .ranks = 2, .nodes = 1}, "method");
    assert_refused(shape, (RingSetup){RING_METHOD_ULYSSES, .ranks = 8, .nodes = 1}, "12 query");
    assert_refused(shape, (RingSetup){RING_METHOD_ULYSSES, .ranks = 6, .nodes = 1}, "4 kv");
}

/* Heads that can be dealt out: Hkv a multiple of G, or G of Hkv (kv heads are copied). */
TEST(ulysses_takes_what_it_can_deal_out)
{
    const int ranks[] = {1, 2, 3, 4, 6, 12}, fine[] = {1, 1, 0, 1, 0, 1};
    for (int n = 0; n < 6; n++) {
        Whole *w = whole_new(1, (int64_t[]){16}, (int64_t[]){16}, -1, -1);
        const RingSetup setup = {RING_METHOD_ULYSSES, .ranks = ranks[n], .nodes = 1};
        RingPlan *plan = malloc(sizeof *plan);
        char why[256];
        assert_non_null(plan);
        w->args.shape = (AttnShape){1, 12, 4, 16, 16, 8};
        assert_int_equal(fine[n] ? 0 : -1, ring_plan_make(plan, &w->args, &setup, why));
        ring_plan_free(plan);
        free(plan);
        free(w);
    }
}
