/* SPDX-License-Identifier: MIT
 *
 * test_key_rule.c: the runs of keys that the library's Hopper kernel works with (key_rule.h),
 * against asking every pair, over random maps that grow and over some that do not.
 */
#include "oracle_case.h"

#include "attention/forward/cuda/key_rule.h"
#include "attn_pairs.h"

#define MOST 5

/* Segments that grow, mostly: now and then one begins too early, has another step or sequence. */
static AttnPositions random_map(AttnSegment *s, int64_t step, int64_t *N)
{
    const int64_t count = 1 + case_random() % (case_random() % 2 ? 1 : MOST);
    int64_t position = (int64_t)(case_random() % 60) - 30;
    *N = 0;
    for (int64_t n = 0; n < count; n++) {
        s[n].first = *N;
        s[n].length = (int64_t)(case_random() % 9) + (n == count - 1);
        s[n].sequence = case_random() % 12 == 0;
        s[n].position = position;
        s[n].stride = case_random() % 12 ? step : (int64_t)(case_random() % 4) - 1;
        *N += s[n].length;
        position += s[n].length * step + (int64_t)(case_random() % 8) - (case_random() % 8 == 0);
    }
    if (case_random() % 8 == 0) /* far away */
        for (int64_t n = 0; n < count; n++)
            s[n].position += (int64_t)1 << (20 + case_random() % 40);
    return attn_positions(s, count);
}

static int64_t random_limit(void)
{
    const int64_t limits[] = {-1, 0, 1, 3, 7, 20, 1000, INT64_MAX};
    return limits[case_random() % 8];
}

TEST(rows_see_the_runs_of_the_rule)
{
    int taken = 0, left_out = 0, parts = 0;
    for (int n = 0; n < 20000; n++) {
        AttnSegment q[MOST], k[MOST];
        AttnArgs a = {.rule = {random_limit(), random_limit()}};
        const int64_t step = case_random() % 3 ? 1 : 1 + case_random() % 4;
        KeyRule rule;
        a.positions_q = random_map(q, step, &a.shape.Nq);
        a.positions_k = random_map(k, step, &a.shape.Nk);
        if (!make_key_rule(&rule, &a)) {
            left_out++;
            continue;
        }
        taken++;
        for (int64_t i = 0; i < a.shape.Nq; i++) {
            const int p = row_position(&rule, (int)i);
            const int first = first_key(&rule, p), last = last_key(&rule, p);
            for (int64_t j = 0; j < a.shape.Nk; j++)
                assert_int_equal(attn_sees(&a, i, j) != 0, j >= first && j <= last);
            parts += first > 0 && last + 1 < a.shape.Nk && first <= last;
        }
    }
    assert_true(taken > 5000 && left_out > 500 && parts > 500);
}

/* What the kernel is for must not go the slow way. */
TEST(rings_and_plain_cases_are_taken)
{
    const AttnSegment plain[] = {{0, 100, 0, 28, 1}}, keys[] = {{0, 128, 0, 0, 1}};
    const AttnSegment zigzag[] = {{0, 64, 3, 64, 1}, {64, 64, 3, 832, 1}};
    const AttnSegment striped[] = {{0, 128, 0, 5, 8}}, other[] = {{0, 128, 0, 2, 8}};
    KeyRule rule;
    AttnArgs a = {.rule = {-1, 0}, .shape = {.Nq = 128, .Nk = 128}};
    a.positions_q = attn_positions(plain, 1);
    a.positions_k = attn_positions(keys, 1);
    assert_true(make_key_rule(&rule, &a));
    a.positions_q = a.positions_k = attn_positions(zigzag, 2);
    assert_true(make_key_rule(&rule, &a));
    a.positions_q = attn_positions(striped, 1);
    a.positions_k = attn_positions(other, 1);
    assert_true(make_key_rule(&rule, &a));
    a.positions_k.host = NULL; /* nobody knows */
    assert_false(make_key_rule(&rule, &a));
}
