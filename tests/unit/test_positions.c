/* SPDX-License-Identifier: MIT
 *
 * test_positions.c: the visibility rule against its definition, and the tile classes against asking
 * every pair, over random segment lists, windows and tiles that do not fit the segments.
 */
#include "attn_pairs.h"
#include "oracle_case.h"

#define MOST 12

/* A random map of N local indexes: empty segments, several of one sequence, strides of any sign. */
static AttnPositions random_map(AttnSegment *s, int64_t N, int64_t sequences)
{
    int64_t count = 1 + case_random() % MOST, first = 0;
    for (int64_t n = 0; n < count; n++) {
        const int64_t left = N - first;
        s[n].first = first;
        s[n].length = n == count - 1 ? left : (int64_t)(case_random() % (unsigned)(left / 2 + 1));
        s[n].sequence = case_random() % (unsigned)sequences;
        s[n].position = (int64_t)(case_random() % 60) - 20;
        s[n].stride = (int64_t)(case_random() % 5) - 2;
        if (case_random() % 3 == 0)
            s[n].length = n == count - 1 ? left : 0;
        first += s[n].length;
    }
    return attn_positions(s, count);
}

static int64_t random_limit(void)
{
    const int64_t limits[] = {-1, 0, 1, 3, 7, 20, 1000, INT64_MAX};
    return limits[case_random() % 8];
}

/* The segment that holds i, by its definition: first <= i < first + length. */
TEST(position_is_that_of_its_segment)
{
    AttnSegment s[MOST];
    for (int n = 0; n < 2000; n++) {
        const int64_t N = 1 + case_random() % 40;
        const AttnPositions map = random_map(s, N, 3);
        for (int64_t i = 0; i < N; i++) {
            const AttnPosition at = attn_position(map, i);
            int found = 0;
            for (int64_t g = 0; g < map.count; g++)
                if (i >= s[g].first && i < s[g].first + s[g].length) {
                    found++;
                    assert_int_equal(at.sequence, s[g].sequence);
                    assert_int_equal(at.position, s[g].position + (i - s[g].first) * s[g].stride);
                }
            assert_int_equal(1, found);
        }
    }
}

/* The rule as attn.h has it in words, in 128 bits so that no limit overflows. */
TEST(visible_is_the_rule)
{
    for (int n = 0; n < 20000; n++) {
        const AttnRule r = {random_limit(), random_limit()};
        const AttnPosition q = {case_random() % 2, (int64_t)(case_random() % 40) - 20};
        const AttnPosition k = {case_random() % 2, (int64_t)(case_random() % 40) - 20};
        const __int128 from = r.left < 0 ? -((__int128)1 << 100) : (__int128)q.position - r.left;
        const __int128 to = r.right < 0 ? (__int128)1 << 100 : (__int128)q.position + r.right;
        const int expected = q.sequence == k.sequence && from <= k.position && k.position <= to;
        assert_int_equal(expected, attn_visible(r, q, k));
    }
}

TEST(range_is_min_and_max)
{
    AttnSegment s[MOST];
    for (int n = 0; n < 5000; n++) {
        const int64_t N = 1 + case_random() % 40, first = case_random() % (unsigned)N;
        const int64_t count = 1 + case_random() % (unsigned)(N - first);
        const AttnPositions map = random_map(s, N, 2);
        const AttnRange r = attn_range(map, first, count);
        int64_t sequence = attn_position(map, first).sequence, min = INT64_MAX, max = INT64_MIN;
        for (int64_t i = first; i < first + count; i++) {
            const AttnPosition at = attn_position(map, i);
            sequence = at.sequence == sequence ? sequence : -1;
            min = at.position < min ? at.position : min;
            max = at.position > max ? at.position : max;
        }
        assert_int_equal(sequence, r.sequence);
        assert_int_equal(min, r.min);
        assert_int_equal(max, r.max);
    }
}

static int64_t visible_in_tile(const AttnArgs *a, int64_t i0, int64_t Br, int64_t j0, int64_t Bc)
{
    int64_t seen = 0;
    for (int64_t i = i0; i < i0 + Br; i++)
        for (int64_t j = j0; j < j0 + Bc; j++)
            seen += attn_sees(a, i, j);
    return seen;
}

/* SKIP: none visible. CLEAN: all. Both are promises; MASKED promises nothing. */
TEST(tile_class_keeps_its_promise)
{
    AttnSegment sq[MOST], sk[MOST];
    int64_t met[3] = {0, 0, 0};
    for (int n = 0; n < 20000; n++) {
        AttnArgs a = {.shape = {1, 1, 1, 1 + case_random() % 30, 1 + case_random() % 30, 1}};
        const int64_t Br = 1 + case_random() % (unsigned)a.shape.Nq;
        const int64_t Bc = 1 + case_random() % (unsigned)a.shape.Nk;
        const int64_t i0 = case_random() % (unsigned)(a.shape.Nq - Br + 1);
        const int64_t j0 = case_random() % (unsigned)(a.shape.Nk - Bc + 1);
        AttnTile class;
        int64_t seen;
        a.rule = (AttnRule){random_limit(), random_limit()};
        a.positions_q = random_map(sq, a.shape.Nq, 2);
        a.positions_k = random_map(sk, a.shape.Nk, 2);
        class = attn_tile_class(a.rule, attn_range(a.positions_q, i0, Br),
                                attn_range(a.positions_k, j0, Bc));
        seen = visible_in_tile(&a, i0, Br, j0, Bc);
        met[class]++;
        if (class == ATTN_TILE_SKIP)
            assert_int_equal(0, seen);
        if (class == ATTN_TILE_CLEAN)
            assert_int_equal(Br * Bc, seen);
    }
    assert_true(met[0] > 1000 && met[1] > 1000 && met[2] > 1000);
}

/* For ordinary attention (one segment, stride 1) the classes are exact: nothing is asked pair by
 * pair that need not be. */
TEST(tile_class_is_exact_for_one_segment)
{
    for (int n = 0; n < 20000; n++) {
        const int64_t Nq = 1 + case_random() % 30, Nk = 1 + case_random() % 30;
        const AttnSegment q = {0, Nq, 0, case_random() % 2 ? Nk - Nq : 0, 1}, k = {0, Nk, 0, 0, 1};
        AttnArgs a = {.shape = {1, 1, 1, Nq, Nk, 1}};
        const int64_t Br = 1 + case_random() % (unsigned)Nq, Bc = 1 + case_random() % (unsigned)Nk;
        const int64_t i0 = case_random() % (unsigned)(Nq - Br + 1);
        const int64_t j0 = case_random() % (unsigned)(Nk - Bc + 1);
        int64_t seen;
        a.rule = (AttnRule){random_limit(), random_limit()};
        a.positions_q = attn_positions(&q, 1);
        a.positions_k = attn_positions(&k, 1);
        seen = visible_in_tile(&a, i0, Br, j0, Bc);
        assert_int_equal(seen == 0         ? ATTN_TILE_SKIP
                         : seen == Br * Bc ? ATTN_TILE_CLEAN
                                           : ATTN_TILE_MASKED,
                         attn_tile_class(a.rule, attn_range(a.positions_q, i0, Br),
                                         attn_range(a.positions_k, j0, Bc)));
    }
}

/* Lower-right: the last query sees the last key. Upper-left: the first sees the first only. */
TEST(alignment_by_hand)
{
    Case *c = case_new((AttnShape){1, 1, 1, 2, 4, 1}, ATTN_F32, LAYOUT_BSHD, 1);
    const int lower[2][4] = {{1, 1, 1, 0}, {1, 1, 1, 1}},
              upper[2][4] = {{1, 0, 0, 0}, {1, 1, 0, 0}};
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    for (int e = 0; e < 8; e++)
        assert_int_equal(lower[e / 4][e % 4], attn_sees(&c->args, e / 4, e % 4));
    case_align(c, ATTN_MASK_CAUSAL_UPPER_LEFT);
    for (int e = 0; e < 8; e++)
        assert_int_equal(upper[e / 4][e % 4], attn_sees(&c->args, e / 4, e % 4));
    case_free(c);
}
