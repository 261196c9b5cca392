/* SPDX-License-Identifier: MIT
 *
 * test_ring_shards: layouts of stage 06, checked token by token, and who sees whom and how far keys
 * travel, by brute force over all pairs of tokens. Nothing here knows how shard.c and plan.c do it.
 *
 * - Every token is dealt out exactly once, with its position, for all layouts; ragged lengths,
 *   fewer tokens than ranks, packed sequences, cross attention, strides.
 * - Each layout is what it is called, shares are nearly equal, and alone a rank keeps the order.
 * - A run of local tokens has the positions that the whole shard has there; a part of several
 *   shards, too. Contiguous shards together are one run.
 * - Refusals in one sentence.
 * - Two shards are called invisible to each other when no pair is visible, and only then.
 * - Hops are the largest distance of ranks that see each other; for a causal window over equal
 *   blocks that is ceil(L / n).
 * - Quarters: by hand, and of any lengths. Of one sequence any two shards, and quarters of one, are
 *   a case for Hopper's kernels; of several sequences they are none.
 * - Work: the bound of contiguous causal attention, and zigzag's balance, of both halves too; what
 *   the cost model counts, pairs and the rows that a mask cuts, by brute force.
 */
#include "attention/forward/cuda/key_rule.h"
#include "attn_pairs.h"
#include "oracle_case.h"

#include "planner/cost.h"
#include "planner/plan.h"
#include "planner/shard.h"

#define MOST_TOKENS   220
#define MOST_SEGMENTS 6

typedef struct Whole { /* a position map of a whole attention, before dealing */
    AttnSegment q[MOST_SEGMENTS], k[MOST_SEGMENTS];
    AttnArgs args;
} Whole;

static int64_t add_segments(AttnSegment *to, int count, const int64_t *lengths, int64_t position,
                            int64_t stride)
{
    int64_t first = 0;
    for (int s = 0; s < count; s++) {
        to[s] = (AttnSegment){first, lengths[s], 10 + s, position, stride};
        first += lengths[s];
    }
    return first;
}

static Whole *whole_new(int sequences, const int64_t *nq, const int64_t *nk, int64_t left,
                        int64_t right)
{
    Whole *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->args.shape = (AttnShape){1, 8, 4, 0, 0, 4};
    w->args.shape.Nq = add_segments(w->q, sequences, nq, 0, 1);
    w->args.shape.Nk = add_segments(w->k, sequences, nk, 0, 1);
    for (int s = 0; s < sequences; s++) /* lower-right */
        w->q[s].position = nk[s] - nq[s];
    w->args.positions_q = attn_positions(w->q, sequences);
    w->args.positions_k = attn_positions(w->k, sequences);
    w->args.rule = (AttnRule){left, right};
    return w;
}

/* A plan, and what it is of. */
typedef struct Dealt {
    RingPlan plan;
    Whole *whole;
} Dealt;

static RingPlan *plan_new(Whole *w, RingLayout layout, int ranks)
{
    Dealt *d = malloc(sizeof *d);
    const RingSetup setup = {
        .method = RING_METHOD_RING, .layout = layout, .ranks = ranks, .nodes = 1};
    char why[256] = "";
    assert_non_null(d);
    d->whole = w;
    if (ring_plan_make(&d->plan, &w->args, &setup, why))
        fail_msg("%s", why);
    return &d->plan;
}

/* With the whole that it is of. */
static void plan_delete(RingPlan *plan)
{
    ring_plan_free(&((Dealt *)plan)->plan);
    free(((Dealt *)plan)->whole);
    free(plan);
}

/* The cases that all tests walk through: lengths of the sequences of queries and of keys. */
typedef struct Lengths {
    int sequences;
    int64_t nq[MOST_SEGMENTS], nk[MOST_SEGMENTS];
} Lengths;

static const Lengths lengths[] = {
    {1, {32}, {32}},
    {1, {31}, {31}}, /* ragged */
    {1, {1}, {1}},
    {1, {3}, {3}},   /* fewer than ranks */
    {1, {13}, {50}}, /* cross attention */
    {1, {50}, {7}},
    {3, {16, 0, 33}, {16, 0, 33}},
    {4, {5, 1, 2, 40}, {9, 0, 30, 3}},
    {2, {0, 21}, {17, 21}},
};

#define LENGTHS_COUNT ((int)(sizeof lengths / sizeof *lengths))

static Whole *whole_of(const Lengths *l, int64_t left, int64_t right)
{
    return whole_new(l->sequences, l->nq, l->nk, left, right);
}

/* One sequence that attends to itself. */
static Whole *whole_tokens(int64_t N, int64_t left, int64_t right)
{
    return whole_new(1, &N, &N, left, right);
}

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
                Whole *w = whole_of(&lengths[n], -1, -1);
                RingPlan *plan = plan_new(w, (RingLayout)layout, ranks);
                assert_dealt_once(plan->q, ranks, w->args.positions_q, w->args.shape.Nq);
                assert_dealt_once(plan->k, ranks, w->args.positions_k, w->args.shape.Nk);
                plan_delete(plan);
            }
}

/* Positions of the whole need not be 0, 1, 2 ... */
TEST(strides_of_the_whole_are_kept)
{
    for (int layout = 0; layout < RING_LAYOUTS; layout++) {
        Whole *w = whole_tokens(29, -1, -1);
        RingPlan *plan;
        w->k[0].position = 100, w->k[0].stride = -3;
        plan = plan_new(w, (RingLayout)layout, 4);
        assert_dealt_once(plan->k, 4, w->args.positions_k, 29);
        plan_delete(plan);
    }
}

/* Sizes differ by one per sequence at most, so by two per sequence with zigzag's two chunks. */
TEST(shares_are_nearly_equal)
{
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int ranks = 2; ranks <= 8; ranks++)
            for (int layout = 0; layout < RING_LAYOUTS; layout++) {
                RingPlan *plan = plan_new(whole_of(&lengths[n], -1, -1), (RingLayout)layout, ranks);
                int64_t least = INT64_MAX, most = 0;
                for (int r = 0; r < ranks; r++) {
                    least = plan->k[r].tokens < least ? plan->k[r].tokens : least;
                    most = plan->k[r].tokens > most ? plan->k[r].tokens : most;
                }
                assert_true(most - least <= lengths[n].sequences * (layout == RING_ZIGZAG ? 2 : 1));
                plan_delete(plan);
            }
}

/* 16 tokens, 4 ranks, by hand: the picture of shard.c. */
TEST(layouts_by_hand)
{
    const char *const owner[RING_LAYOUTS] = {"0000111122223333", "0011223333221100",
                                             "0123012301230123"};
    for (int layout = 0; layout < RING_LAYOUTS; layout++) {
        RingPlan *plan = plan_new(whole_tokens(16, -1, 0), (RingLayout)layout, 4);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(4, plan->q[r].tokens);
            for (int64_t t = 0; t < 4; t++)
                assert_int_equal(owner[layout][global_of(&plan->q[r], t)] - '0', r);
        }
        plan_delete(plan);
    }
}

/* Where the quarters of a shard begin, by hand. N = 10 in four chunks: 0-1, 2-4, 5-6, 7-9. */
TEST(quarters_by_hand)
{
    static const struct {
        RingLayout layout;
        int64_t N;
        int ranks, rank;
        int64_t cut[5];
    } known[] = {
        {RING_ZIGZAG, 16, 4, 1, {0, 1, 2, 3, 4}},     {RING_ZIGZAG, 10, 2, 0, {0, 1, 2, 3, 5}},
        {RING_ZIGZAG, 10, 2, 1, {0, 1, 3, 4, 5}},     {RING_ZIGZAG, 4, 2, 0, {0, 0, 1, 2, 2}},
        {RING_ZIGZAG, 2, 2, 0, {0, 0, 0, 0, 1}},      {RING_ZIGZAG, 1, 2, 0, {0, 0, 0, 0, 1}},
        {RING_ZIGZAG, 1, 2, 1, {0, 0, 0, 0, 0}},      {RING_ZIGZAG, 7, 1, 0, {0, 3, 7, 7, 7}},
        {RING_CONTIGUOUS, 10, 2, 0, {0, 2, 5, 5, 5}}, {RING_STRIPED, 3, 2, 0, {0, 1, 2, 2, 2}}};
    for (size_t n = 0; n < sizeof known / sizeof *known; n++) {
        RingPlan *plan = plan_new(whole_tokens(known[n].N, -1, 0), known[n].layout, known[n].ranks);
        for (int q = 0; q <= 4; q++)
            assert_int_equal(known[n].cut[q], plan->k[known[n].rank].cut[q]);
        plan_delete(plan);
    }
}

/* Of zigzag, whatever the lengths: quarters 0 and 1 are the early chunk of each sequence, 2 and 3
 * the late one, each in its order, and 0 and 2 are half of the shard. */
TEST(quarters_of_zigzag)
{
    for (int64_t N = 24; N < 60; N++)
        for (int ranks = 2; ranks <= 3; ranks++)
            for (int sequences = 1; sequences <= 3; sequences++) {
                const int64_t n[] = {N - 11 * (sequences - 1), 13, 9};
                RingPlan *plan = plan_new(whole_new(sequences, n, n, -1, 0), RING_ZIGZAG, ranks);
                for (int r = 0; r < ranks; r++) {
                    const RingShard *s = &plan->q[r];
                    const AttnPositions map = attn_positions(s->segments, s->count);
                    assert_int_equal(s->tokens / 2, s->cut[1] + s->cut[3] - s->cut[2]);
                    assert_int_equal(s->tokens, s->cut[4]);
                    for (int64_t t = 0; t < s->tokens; t++) {
                        const int late = t >= s->cut[2], chunk = late ? 2 * ranks - 1 - r : r;
                        const AttnPosition p = attn_position(map, t);
                        const int64_t length = n[p.sequence - 10];
                        assert_in_range(p.position, chunk * length / (2 * ranks),
                                        (chunk + 1) * length / (2 * ranks) - 1);
                        for (int q = 0; q < 4; q++) /* a quarter goes up; so do both of a chunk */
                            if (t > s->cut[q] && t < s->cut[q + 1])
                                assert_true(global_of(s, t) > global_of(s, t - 1));
                        if (sequences == 1 && t > 0)
                            assert_true(global_of(s, t) > global_of(s, t - 1));
                    }
                }
                plan_delete(plan);
            }
}

/* The rule is what both libraries ask before they take the Hopper kernel (stage 04 for queries and
 * keys exchanged as well). The parts are as the kernel is told of them. */
static void assert_hopper(const RingPlan *plan, int q, int64_t q_first, int64_t q_tokens, int k,
                          int64_t k_first, int64_t k_tokens)
{
    RingShard of_q, of_k;
    AttnArgs args = {.shape = {1, 1, 1, q_tokens, k_tokens, 128}, .rule = plan->rule};
    KeyRule rule;
    assert_int_equal(0, ring_shard_cut(&of_q, &plan->q[q], 1, q_first, q_tokens));
    assert_int_equal(0, ring_shard_cut(&of_k, &plan->k[k], 1, k_first, k_tokens));
    args.positions_q = attn_positions(of_q.segments, of_q.count);
    args.positions_k = attn_positions(of_k.segments, of_k.count);
    assert_true(make_key_rule(&rule, &args));
    args.positions_q = attn_positions(of_k.segments, of_k.count);
    args.positions_k = attn_positions(of_q.segments, of_q.count);
    assert_true(make_key_rule(&rule, &args));
    ring_shard_free(&of_q);
    ring_shard_free(&of_k);
}

TEST(all_blocks_are_cases_for_hopper)
{
    static const int64_t tokens[] = {64, 61, 1024};
    for (int n = 0; n < 3; n++)
        for (int layout = 0; layout < RING_LAYOUTS; layout++)
            for (int ranks = 2; ranks <= 8; ranks *= 2) {
                RingPlan *plan =
                    plan_new(whole_tokens(tokens[n], -1, 0), (RingLayout)layout, ranks);
                for (int q = 0; q < ranks; q++)
                    for (int k = 0; k < ranks; k++) {
                        const int64_t nq = plan->q[q].tokens, nk = plan->k[k].tokens;
                        assert_hopper(plan, q, 0, nq, k, 0, nk);
                        for (int p = 0; p < RING_QUARTERS; p++) {
                            const int64_t *i = &plan->q[q].cut[p], *j = &plan->k[k].cut[p];
                            if (i[0] < i[1])
                                assert_hopper(plan, q, i[0], i[1] - i[0], k, 0, nk);
                            if (j[0] < j[1])
                                assert_hopper(plan, q, 0, nq, k, j[0], j[1] - j[0]);
                        }
                    }
                plan_delete(plan);
            }
}

/* Ulysses gives a rank the tokens of all, one rank's behind the other's. More than RULE_SEGMENTS
 * runs would be no case for Hopper's kernels. */
TEST(contiguous_shards_together_are_one_run)
{
    for (int ranks = 2; ranks <= 8; ranks++) {
        RingPlan *plan = plan_new(whole_tokens(61, -1, 0), RING_CONTIGUOUS, ranks);
        const RingSpan all = {RING_EVERYBODY, 0, 61};
        RingShard cut;
        assert_int_equal(0, ring_shard_cut(&cut, plan->q, ranks, 0, 61));
        assert_int_equal(1, cut.count);
        assert_int_equal(61, cut.segments[0].length);
        assert_int_equal(61, cut.pieces[0].length);
        assert_true(ring_hopper_takes(plan, all, all));
        ring_shard_free(&cut);
        plan_delete(plan);
    }
}

TEST(packed_sequences_are_no_case)
{
    static const int64_t n[] = {64, 32};
    RingPlan *plan = plan_new(whole_new(2, n, n, -1, 0), RING_ZIGZAG, 2);
    const RingShard *shard = &plan->q[0];
    AttnArgs args = {.shape = {1, 1, 1, shard->tokens, shard->tokens, 128}, .rule = plan->rule};
    KeyRule rule;
    args.positions_q = args.positions_k = attn_positions(shard->segments, shard->count);
    assert_false(make_key_rule(&rule, &args));
    plan_delete(plan);
}

/* The bit-equality of one rank with the kernel rests on this. */
TEST(alone_a_rank_keeps_the_order)
{
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int layout = 0; layout < RING_LAYOUTS; layout++) {
            Whole *w = whole_of(&lengths[n], -1, 0);
            RingPlan *plan = plan_new(w, (RingLayout)layout, 1);
            for (int64_t t = 0; t < w->args.shape.Nk; t++)
                assert_int_equal(t, global_of(&plan->k[0], t));
            assert_int_equal(0, plan->hops_up + plan->hops_down);
            plan_delete(plan);
        }
}

TEST(a_run_has_the_positions_of_the_shard)
{
    for (int n = 0; n < 3000; n++) {
        const Lengths *l = &lengths[case_random() % LENGTHS_COUNT];
        const int ranks = 1 + (int)(case_random() % 6);
        const RingLayout layout = (RingLayout)(case_random() % RING_LAYOUTS);
        RingPlan *plan = plan_new(whole_of(l, -1, -1), layout, ranks);
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
    }
}

/* Of several shards, one behind the other, from any token to any other. */
TEST(a_part_of_several_shards_has_their_tokens)
{
    for (int n = 0; n < 3000; n++) {
        const Lengths *l = &lengths[case_random() % LENGTHS_COUNT];
        const int ranks = 1 + (int)(case_random() % 6);
        const RingLayout layout = (RingLayout)(case_random() % RING_LAYOUTS);
        RingPlan *plan = plan_new(whole_of(l, -1, -1), layout, ranks);
        int64_t all = 0, before = 0;
        for (int rank = 0; rank < ranks; rank++)
            all += plan->k[rank].tokens;
        const int64_t first = case_random() % (unsigned)(all + 1);
        const int64_t tokens = case_random() % (unsigned)(all - first + 1);
        RingShard cut;
        assert_int_equal(0, ring_shard_cut(&cut, plan->k, ranks, first, tokens));
        assert_int_equal(tokens, cut.tokens);
        const AttnPositions ours = attn_positions(cut.segments, cut.count);
        for (int rank = 0; rank < ranks; before += plan->k[rank++].tokens)
            for (int64_t t = 0; t < plan->k[rank].tokens; t++) {
                const RingShard *shard = &plan->k[rank];
                const AttnPositions map = attn_positions(shard->segments, shard->count);
                const int64_t at = before + t - first;
                if (at < 0 || at >= tokens)
                    continue;
                const AttnPosition a = attn_position(ours, at), b = attn_position(map, t);
                assert_int_equal(a.sequence, b.sequence);
                assert_int_equal(a.position, b.position);
                assert_int_equal(global_of(&cut, at), global_of(shard, t));
            }
        for (int64_t run = 1; run < cut.count; run++) /* each begins where the last one ends */
            assert_int_equal(cut.pieces[run].first,
                             cut.pieces[run - 1].first + cut.pieces[run - 1].length);
        ring_shard_free(&cut);
        plan_delete(plan);
    }
}

/* --- refusals ----------------------------------------------------------------------------------*/

static void assert_refused(AttnShape shape, RingSetup setup, const char *word)
{
    Whole *w = whole_tokens(16, -1, -1);
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
        Whole *w = whole_tokens(16, -1, -1);
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
                    RingPlan *plan = plan_new(whole_of(&lengths[n], windows[m][0], windows[m][1]),
                                              (RingLayout)layout, ranks);
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
                }
    assert_true(met[0] > 1000 && met[1] > 1000 && met[2] > 1000);
}

TEST(hops_are_the_largest_distance)
{
    int partial = 0, both = 0;
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int m = 0; m < WINDOW_COUNT; m++)
            for (int ranks = 1; ranks <= 9; ranks++) {
                RingPlan *plan = plan_new(whole_of(&lengths[n], windows[m][0], windows[m][1]),
                                          RING_CONTIGUOUS, ranks);
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
            }
    assert_true(partial > 20 && both > 5);
}

/* Equal blocks, one sequence, causal window of L: ceil(L / n) hops, not more than G - 1. */
TEST(hops_of_a_causal_window_by_formula)
{
    const int64_t n = 12;
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int64_t L = 0; L <= n * ranks + 3; L++) {
            RingPlan *plan = plan_new(whole_tokens(n * ranks, L, 0), RING_CONTIGUOUS, ranks);
            const int64_t hops = (L + n - 1) / n;
            assert_int_equal(hops < ranks ? hops : ranks - 1, plan->hops_up);
            assert_int_equal(0, plan->hops_down);
            plan_delete(plan);
        }
}

/* Layouts that spread every sequence over all ranks turn fully, whatever the window. */
TEST(other_layouts_turn_fully)
{
    for (int layout = RING_ZIGZAG; layout < RING_LAYOUTS; layout++) {
        RingPlan *plan = plan_new(whole_tokens(64, 4, 0), (RingLayout)layout, 4);
        assert_int_equal(3, plan->hops_up);
        assert_int_equal(0, plan->hops_down);
        plan_delete(plan);
    }
}

/* --- work --------------------------------------------------------------------------------------*/

/* Causal, n tokens a rank: contiguous rank r has n(n+1)/2 + r n^2 pairs; with zigzag every rank has
 * as many at every step, and both halves of the keys (two quarters each) nearly the same number. */
TEST(work_of_the_ranks)
{
    const int G = 4;
    const int64_t n = 16;
    RingPlan *contiguous = plan_new(whole_tokens(n * G, -1, 0), RING_CONTIGUOUS, G);
    RingPlan *zigzag = plan_new(whole_tokens(n * G, -1, 0), RING_ZIGZAG, G);
    for (int r = 0; r < G; r++) {
        int64_t sum = 0;
        for (int t = 0; t < G; t++)
            sum += all_pairs(contiguous, r, (r - t + G) % G);
        assert_int_equal(n * (n + 1) / 2 + r * n * n, sum);
        for (int t = 0; t < G; t++) {
            const int owner = (r - t + G) % G;
            int64_t half[RING_HALVES] = {0, 0};
            for (int p = 0; p < RING_QUARTERS; p++)
                half[p % 2] +=
                    pairs(zigzag, r, owner, zigzag->k[owner].cut[p], zigzag->k[owner].cut[p + 1]);
            assert_int_equal(t == 0 ? n * (n + 1) / 2 : n * n / 2, half[0] + half[1]);
            if (t > 0)
                assert_int_equal(half[0], half[1]);
            else
                assert_true(half[0] < 2 * half[1] && half[1] < 2 * half[0]);
        }
    }
    plan_delete(contiguous);
    plan_delete(zigzag);
}

/* Packed sequences: halves are equal work although the first sequences are the long ones. */
TEST(work_of_halves_of_sequences)
{
    static const int64_t n[] = {256, 128, 64, 32, 16, 16};
    const int G = 4;
    RingPlan *plan = plan_new(whole_new(6, n, n, -1, 0), RING_ZIGZAG, G);
    for (int r = 0; r < G; r++)
        for (int owner = 0; owner < G; owner++) {
            int64_t half[RING_HALVES] = {0, 0};
            for (int p = 0; p < RING_QUARTERS && owner != r; p++)
                half[p % 2] +=
                    pairs(plan, r, owner, plan->k[owner].cut[p], plan->k[owner].cut[p + 1]);
            assert_int_equal(half[0], half[1]);
            assert_true(owner == r || half[0] > 0);
        }
    plan_delete(plan);
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
                RingPlan *plan = plan_new(whole_of(&lengths[n], windows[m][0], windows[m][1]),
                                          (RingLayout)layout, ranks);
                for (int e = 0; e < ranks * ranks; e++) {
                    const int q = e / ranks, k = e % ranks;
                    const RingWork work = ring_pair_work(plan, q, k);
                    assert_int_equal(all_pairs(plan, q, k), work.pairs);
                    assert_int_equal(cut_rows(plan, q, k), work.partial_rows);
                    cut += work.partial_rows;
                }
                plan_delete(plan);
            }
    assert_true(cut > 1000);
}
