/* SPDX-License-Identifier: MIT
 *
 * test_ring_shards: layouts of stage 06, checked token by token, and who sees whom and how far keys
 * travel, by brute force over all pairs of tokens. Nothing here knows how shard.c and plan.c do it.
 *
 * - Every token is dealt out exactly once, with its position, for all layouts; ragged lengths,
 *   fewer tokens than ranks, packed sequences, cross attention, strides. Shares are nearly equal,
 *   and alone a rank keeps the order.
 * - Each layout is what it is called.
 * - Quarters: by hand, and of any lengths. Of one sequence any two shards, and quarters of one, are
 *   a case for Hopper's kernels; of several sequences they are none.
 * - A part of several shards has the positions that these have there. Contiguous shards together
 *   are one run.
 * - Refusals in one sentence.
 * - Two shards are called invisible to each other when no pair is visible, and only then. Hops are
 *   the largest distance of ranks that see each other. What the cost model counts, pairs and the
 *   rows that a mask cuts, is exact.
 * - Work: the bound of contiguous causal attention, and zigzag's balance, of both halves too.
 */
#include "attention/forward/cuda/key_rule.h"
#include "attn_pairs.h"
#include "oracle_case.h"

#include "planner/cost.h"
#include "planner/plan.h"
#include "planner/shard.h"

#define MOST_TOKENS   220
#define MOST_SEGMENTS 6

/* Lengths of the sequences of queries and of keys. */
typedef struct Lengths {
    int sequences;
    int64_t nq[MOST_SEGMENTS], nk[MOST_SEGMENTS];
} Lengths;

/* The cases that all tests walk through. */
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

/* A whole attention, and its plan. */
typedef struct Dealt {
    RingPlan plan;
    AttnArgs args;
    AttnSegment q[MOST_SEGMENTS], k[MOST_SEGMENTS];
} Dealt;

static int64_t add_segments(AttnSegment *to, int count, const int64_t *lengths_of)
{
    int64_t first = 0;
    for (int s = 0; s < count; first += lengths_of[s++])
        to[s] = (AttnSegment){first, lengths_of[s], 10 + s, 0, 1};
    return first;
}

static Dealt *whole_new(const Lengths *l, int64_t left, int64_t right)
{
    Dealt *d = calloc(1, sizeof *d);
    assert_non_null(d);
    d->args.shape = (AttnShape){1, 8, 4, 0, 0, 4};
    d->args.shape.Nq = add_segments(d->q, l->sequences, l->nq);
    d->args.shape.Nk = add_segments(d->k, l->sequences, l->nk);
    for (int s = 0; s < l->sequences; s++) /* lower-right */
        d->q[s].position = l->nk[s] - l->nq[s];
    d->args.positions_q = attn_positions(d->q, l->sequences);
    d->args.positions_k = attn_positions(d->k, l->sequences);
    d->args.rule = (AttnRule){left, right};
    return d;
}

static void make_plan(Dealt *d, int layout, int ranks)
{
    const RingSetup setup = {
        .method = RING_METHOD_RING, .layout = (RingLayout)layout, .ranks = ranks, .nodes = 1};
    char why[256] = "";
    if (ring_plan_make(&d->plan, &d->args, &setup, why))
        fail_msg("%s", why);
}

static Dealt *deal(const Lengths *l, int64_t left, int64_t right, int layout, int ranks)
{
    Dealt *d = whole_new(l, left, right);
    make_plan(d, layout, ranks);
    return d;
}

/* One causal sequence that attends to itself. */
static Dealt *deal_tokens(int64_t N, int layout, int ranks)
{
    return deal(&(Lengths){1, {N}, {N}}, -1, 0, layout, ranks);
}

static void dealt_free(Dealt *d)
{
    ring_plan_free(&d->plan);
    free(d);
}

static AttnPositions map_of(const RingShard *shard)
{
    return attn_positions(shard->segments, shard->count);
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

static void assert_same_place(AttnPositions a, int64_t i, AttnPositions b, int64_t j)
{
    const AttnPosition p = attn_position(a, i), q = attn_position(b, j);
    assert_int_equal(p.sequence, q.sequence);
    assert_int_equal(p.position, q.position);
}

static void assert_dealt_once(const RingShard *shards, int ranks, AttnPositions whole, int64_t N)
{
    int owners[MOST_TOKENS] = {0};
    int64_t total = 0;
    assert_true(N <= MOST_TOKENS);
    for (int rank = 0; rank < ranks; rank++) {
        const RingShard *s = &shards[rank];
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
            assert_true(n >= 0 && n < N && (ranks > 1 || n == t));
            owners[n]++;
            assert_same_place(whole, n, map_of(s), t);
        }
    }
    assert_int_equal(N, total);
    for (int64_t n = 0; n < N; n++)
        assert_int_equal(1, owners[n]);
}

/* The largest share of keys less the smallest. */
static int64_t difference(const RingPlan *plan)
{
    int64_t least = INT64_MAX, most = 0;
    for (int r = 0; r < plan->setup.ranks; r++) {
        least = plan->nk[r] < least ? plan->nk[r] : least;
        most = plan->nk[r] > most ? plan->nk[r] : most;
    }
    return most - least;
}

/* Sizes differ by one per sequence at most, so by two per sequence with zigzag's two chunks. Alone
 * a rank has the tokens in their order: its bits are the kernel's. */
TEST(every_token_is_dealt_once)
{
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int ranks = 1; ranks <= 17; ranks++)
            for (int layout = 0; layout < RING_LAYOUTS; layout++) {
                Dealt *d = deal(&lengths[n], -1, -1, layout, ranks);
                assert_dealt_once(d->plan.q, ranks, d->args.positions_q, d->args.shape.Nq);
                assert_dealt_once(d->plan.k, ranks, d->args.positions_k, d->args.shape.Nk);
                assert_true(difference(&d->plan) <=
                            lengths[n].sequences * (layout == RING_ZIGZAG ? 2 : 1));
                dealt_free(d);
            }
}

/* Positions of the whole need not be 0, 1, 2 ... */
TEST(strides_of_the_whole_are_kept)
{
    for (int layout = 0; layout < RING_LAYOUTS; layout++) {
        Dealt *d = whole_new(&(Lengths){1, {29}, {29}}, -1, -1);
        d->k[0].position = 100, d->k[0].stride = -3;
        make_plan(d, layout, 4);
        assert_dealt_once(d->plan.k, 4, d->args.positions_k, 29);
        dealt_free(d);
    }
}

/* 16 tokens, 4 ranks, by hand: the picture of shard.c. */
TEST(layouts_by_hand)
{
    const char *const owner[RING_LAYOUTS] = {"0000111122223333", "0011223333221100",
                                             "0123012301230123"};
    for (int layout = 0; layout < RING_LAYOUTS; layout++) {
        Dealt *d = deal_tokens(16, layout, 4);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(4, d->plan.q[r].tokens);
            for (int64_t t = 0; t < 4; t++)
                assert_int_equal(owner[layout][global_of(&d->plan.q[r], t)] - '0', r);
        }
        dealt_free(d);
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
        Dealt *d = deal_tokens(known[n].N, known[n].layout, known[n].ranks);
        assert_memory_equal(known[n].cut, d->plan.k[known[n].rank].cut, sizeof known[n].cut);
        dealt_free(d);
    }
}

/* Of zigzag, whatever the lengths: quarters 0 and 1 are the early chunk of each sequence, 2 and 3
 * the late one, each in its order, and 0 and 2 are half of the shard. */
TEST(quarters_of_zigzag)
{
    for (int64_t N = 24; N < 60; N++)
        for (int ranks = 2; ranks <= 3; ranks++)
            for (int sequences = 1; sequences <= 3; sequences++) {
                const int64_t first = N - 11 * (sequences - 1);
                const Lengths n = {sequences, {first, 13, 9}, {first, 13, 9}};
                Dealt *d = deal(&n, -1, 0, RING_ZIGZAG, ranks);
                for (int r = 0; r < ranks; r++) {
                    const RingShard *s = &d->plan.q[r];
                    assert_int_equal(s->tokens / 2, s->cut[1] + s->cut[3] - s->cut[2]);
                    assert_int_equal(s->tokens, s->cut[4]);
                    for (int64_t t = 0; t < s->tokens; t++) {
                        const int late = t >= s->cut[2], chunk = late ? 2 * ranks - 1 - r : r;
                        const AttnPosition p = attn_position(map_of(s), t);
                        const int64_t length = n.nq[p.sequence - 10];
                        assert_in_range(p.position, chunk * length / (2 * ranks),
                                        (chunk + 1) * length / (2 * ranks) - 1);
                        for (int q = 0; q < 4; q++) /* a quarter goes up; so do both of a chunk */
                            if (t > s->cut[q] && t < s->cut[q + 1])
                                assert_true(global_of(s, t) > global_of(s, t - 1));
                        if (sequences == 1 && t > 0)
                            assert_true(global_of(s, t) > global_of(s, t - 1));
                    }
                }
                dealt_free(d);
            }
}

static int takes(const RingPlan *plan, const RingShard *q, const RingShard *k)
{
    const AttnArgs args = {.shape = {1, 1, 1, q->tokens, k->tokens, 128},
                           .rule = plan->rule,
                           .positions_q = map_of(q),
                           .positions_k = map_of(k)};
    KeyRule rule;
    return make_key_rule(&rule, &args);
}

/* The rule is what both libraries ask before they take the Hopper kernel (stage 04 for queries and
 * keys exchanged as well). The parts, from tokens i[0] and j[0] on to i[1] and j[1], are as the
 * kernel is told of them. */
static void assert_hopper(const RingPlan *plan, int q, const int64_t *i, int k, const int64_t *j)
{
    RingShard of_q, of_k;
    if (i[0] == i[1] || j[0] == j[1])
        return;
    assert_int_equal(0, ring_shard_cut(&of_q, &plan->q[q], 1, i[0], i[1] - i[0]));
    assert_int_equal(0, ring_shard_cut(&of_k, &plan->k[k], 1, j[0], j[1] - j[0]));
    assert_true(takes(plan, &of_q, &of_k) && takes(plan, &of_k, &of_q));
    ring_shard_free(&of_q);
    ring_shard_free(&of_k);
}

TEST(all_blocks_are_cases_for_hopper)
{
    static const int64_t tokens[] = {64, 61, 1024};
    for (int n = 0; n < 3; n++)
        for (int layout = 0; layout < RING_LAYOUTS; layout++)
            for (int ranks = 2; ranks <= 8; ranks *= 2) {
                Dealt *d = deal_tokens(tokens[n], layout, ranks);
                for (int e = 0; e < ranks * ranks; e++) {
                    const int q = e / ranks, k = e % ranks;
                    const RingShard *Q = &d->plan.q[q], *K = &d->plan.k[k];
                    const int64_t all_q[] = {0, Q->tokens}, all_k[] = {0, K->tokens};
                    assert_hopper(&d->plan, q, all_q, k, all_k);
                    for (int p = 0; p < RING_QUARTERS; p++) {
                        assert_hopper(&d->plan, q, &Q->cut[p], k, all_k);
                        assert_hopper(&d->plan, q, all_q, k, &K->cut[p]);
                    }
                }
                dealt_free(d);
            }
}

/* Ulysses gives a rank the tokens of all, one rank's behind the other's. More than RULE_SEGMENTS
 * runs would be no case for Hopper's kernels. */
TEST(contiguous_shards_together_are_one_run)
{
    for (int ranks = 2; ranks <= 8; ranks++) {
        Dealt *d = deal_tokens(61, RING_CONTIGUOUS, ranks);
        const RingSpan all = {RING_EVERYBODY, 0, 61};
        RingShard cut;
        assert_int_equal(0, ring_shard_cut(&cut, d->plan.q, ranks, 0, 61));
        assert_int_equal(1, cut.count);
        assert_int_equal(61, cut.segments[0].length);
        assert_int_equal(61, cut.pieces[0].length);
        assert_true(ring_hopper_takes(&d->plan, all, all));
        ring_shard_free(&cut);
        dealt_free(d);
    }
}

TEST(packed_sequences_are_no_case)
{
    Dealt *d = deal(&(Lengths){2, {64, 32}, {64, 32}}, -1, 0, RING_ZIGZAG, 2);
    assert_false(takes(&d->plan, &d->plan.q[0], &d->plan.q[0]));
    dealt_free(d);
}

/* Of several shards, one behind the other, from any token to any other. */
TEST(a_part_of_several_shards_has_their_tokens)
{
    for (int n = 0; n < 3000; n++) {
        const int ranks = 1 + (int)(case_random() % 6);
        Dealt *d = deal(&lengths[case_random() % LENGTHS_COUNT], -1, -1,
                        (int)(case_random() % RING_LAYOUTS), ranks);
        const int64_t all = d->args.shape.Nk, first = case_random() % (unsigned)(all + 1);
        const int64_t tokens = case_random() % (unsigned)(all - first + 1);
        int64_t before = 0;
        RingShard cut;
        assert_int_equal(0, ring_shard_cut(&cut, d->plan.k, ranks, first, tokens));
        assert_int_equal(tokens, cut.tokens);
        for (int rank = 0; rank < ranks; before += d->plan.k[rank++].tokens)
            for (int64_t t = 0; t < d->plan.k[rank].tokens; t++) {
                const RingShard *shard = &d->plan.k[rank];
                const int64_t at = before + t - first;
                if (at < 0 || at >= tokens)
                    continue;
                assert_same_place(map_of(&cut), at, map_of(shard), t);
                assert_int_equal(global_of(&cut, at), global_of(shard, t));
            }
        for (int64_t run = 1; run < cut.count; run++) /* each begins where the last one ends */
            assert_int_equal(cut.pieces[run].first,
                             cut.pieces[run - 1].first + cut.pieces[run - 1].length);
        ring_shard_free(&cut);
        dealt_free(d);
    }
}

/* --- refusals ----------------------------------------------------------------------------------*/

/* part: of the sentence. NULL: there is a plan. */
static void expect_plan(RingMethod method, int ranks, int nodes, const char *part)
{
    const RingSetup setup = {.method = method, .ranks = ranks, .nodes = nodes};
    Dealt *d = whole_new(&lengths[0], -1, -1);
    char why[256] = "";
    d->args.shape.H = 12;
    assert_int_equal(part ? -1 : 0, ring_plan_make(&d->plan, &d->args, &setup, why));
    if (part && !strstr(why, part))
        fail_msg("'%s' does not name %s", why, part);
    dealt_free(d);
}

/* Heads that can be dealt out: Hkv a multiple of G, or G of Hkv (kv heads are copied). */
TEST(refusals_name_the_reason)
{
    expect_plan(RING_METHOD_RING, 0, 1, "--ranks");
    expect_plan(RING_METHOD_RING, 65, 1, "--ranks");
    expect_plan(RING_METHOD_RING_DOUBLE, 6, 4, "--nodes");
    expect_plan(RING_METHOD_RING, 6, 0, "--nodes");
    expect_plan(RING_METHOD_AUTO, 2, 1, "method");
    expect_plan(RING_METHOD_ULYSSES, 8, 1, "12 query");
    expect_plan(RING_METHOD_ULYSSES, 6, 1, "4 kv");
    expect_plan(RING_METHOD_ULYSSES, 3, 1, "4 kv");
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        expect_plan(RING_METHOD_ULYSSES, ranks, 1, NULL);
    expect_plan(RING_METHOD_ULYSSES, 12, 1, NULL);
}

/* --- who sees whom -----------------------------------------------------------------------------*/

/* Visible pairs of keys j_from .. j_to-1 of rank k with all queries of rank q. */
static int64_t pairs(const RingPlan *plan, int q, int k, int64_t j_from, int64_t j_to)
{
    const AttnPositions map_q = map_of(&plan->q[q]), map_k = map_of(&plan->k[k]);
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

static int64_t met[3], rows_cut, partial, both; /* so that no loop below runs in vain */

/* Layouts that spread every sequence over all ranks turn fully, whatever the window. */
static void check_hops(const RingPlan *plan, int up, int down)
{
    const int ranks = plan->setup.ranks, window = plan->rule.left >= 0 || plan->rule.right > 0;
    if (!window || plan->setup.layout != RING_CONTIGUOUS || up + down >= ranks)
        up = ranks - 1, down = 0;
    assert_int_equal(up, plan->hops_up);
    assert_int_equal(down, plan->hops_down);
    partial += up > 0 && up + down < ranks - 1;
    both += up > 0 && down > 0;
}

static void check_sight(const RingPlan *plan, int with_rows)
{
    const int ranks = plan->setup.ranks;
    int up = 0, down = 0;
    for (int q = 0; q < ranks; q++)
        for (int k = 0; k < ranks; k++) {
            const int64_t seen = all_pairs(plan, q, k);
            const AttnTile class = ring_pair_class(plan, q, k);
            const RingWork work = ring_pair_work(plan, q, k);
            met[class]++;
            assert_int_equal(seen == 0, class == ATTN_TILE_SKIP);
            if (class == ATTN_TILE_CLEAN)
                assert_int_equal(plan->q[q].tokens * plan->k[k].tokens, seen);
            up = seen && q - k > up ? q - k : up;
            down = seen && k - q > down ? k - q : down;
            assert_int_equal(seen, work.pairs);
            if (with_rows)
                assert_int_equal(cut_rows(plan, q, k), work.partial_rows);
            rows_cut += work.partial_rows;
        }
    check_hops(plan, up, down);
}

TEST(who_sees_whom)
{
    for (int n = 0; n < LENGTHS_COUNT; n++)
        for (int m = 0; m < WINDOW_COUNT; m++)
            for (int layout = 0; layout < RING_LAYOUTS; layout++)
                for (int ranks = 1; ranks <= (layout == RING_CONTIGUOUS ? 9 : 5); ranks++) {
                    Dealt *d = deal(&lengths[n], windows[m][0], windows[m][1], layout, ranks);
                    check_sight(&d->plan, ranks == 1 + (n + m) % 4);
                    dealt_free(d);
                }
    assert_true(met[0] > 1000 && met[1] > 1000 && met[2] > 1000);
    assert_true(rows_cut > 1000 && partial > 20 && both > 5);
}

/* --- work --------------------------------------------------------------------------------------*/

/* Visible pairs of both halves of k's keys, two quarters each. */
static void count_halves(const RingPlan *plan, int q, int k, int64_t half[RING_HALVES])
{
    half[0] = half[1] = 0;
    for (int p = 0; p < RING_QUARTERS; p++)
        half[p % 2] += pairs(plan, q, k, plan->k[k].cut[p], plan->k[k].cut[p + 1]);
}

/* Causal, n tokens a rank: contiguous rank r has n(n+1)/2 + r n^2 pairs; with zigzag every rank has
 * as many at every step, and both halves of the keys nearly the same number. */
TEST(work_of_the_ranks)
{
    const int G = 4;
    const int64_t n = 16;
    Dealt *contiguous = deal_tokens(n * G, RING_CONTIGUOUS, G);
    Dealt *zigzag = deal_tokens(n * G, RING_ZIGZAG, G);
    for (int r = 0; r < G; r++) {
        int64_t sum = 0;
        for (int owner = 0; owner < G; owner++) {
            int64_t half[RING_HALVES];
            sum += all_pairs(&contiguous->plan, r, owner);
            count_halves(&zigzag->plan, r, owner, half);
            assert_int_equal(owner == r ? n * (n + 1) / 2 : n * n / 2, half[0] + half[1]);
            if (owner != r)
                assert_int_equal(half[0], half[1]);
            else
                assert_true(half[0] < 2 * half[1] && half[1] < 2 * half[0]);
        }
        assert_int_equal(n * (n + 1) / 2 + r * n * n, sum);
    }
    dealt_free(contiguous);
    dealt_free(zigzag);
}

/* Packed sequences: halves are equal work although the first sequences are the long ones. */
TEST(work_of_halves_of_sequences)
{
    static const Lengths n = {6, {256, 128, 64, 32, 16, 16}, {256, 128, 64, 32, 16, 16}};
    const int G = 4;
    Dealt *d = deal(&n, -1, 0, RING_ZIGZAG, G);
    for (int e = 0; e < G * G; e++) {
        int64_t half[RING_HALVES];
        count_halves(&d->plan, e / G, e % G, half);
        assert_true(e / G == e % G || (half[0] == half[1] && half[0] > 0));
    }
    dealt_free(d);
}
