/* SPDX-License-Identifier: MIT
 *
 * test_window_tiles: how many tiles a window skips, masks and leaves clean. The formula of
 * models/model.h, the count in the walk of the CPU variants and asking every pair of every tile
 * have to agree.
 */
#include "unit.h"

#include "models/model.h"
#include "sliding_window.h"

enum { MOST = 40, SEQUENCES = 4 };

static uint64_t random_state = 5;

static int64_t below(int64_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((random_state >> 33) % (uint64_t)n);
}

typedef struct Sequences {
    AttnArgs args;
    AttnSegment q[SEQUENCES], k[SEQUENCES];
    uint8_t mask[MOST * MOST];
} Sequences;

/* Some sequences side by side (a few of them may be empty), or a single one; upper- or lower-right
 * alignment; any window. */
static void random_sequences(Sequences *s, int64_t count)
{
    static const int64_t limits[] = {-1, 0, 1, 2, 5, 8, 15, 16, 1000, INT64_C(1) << 40};
    const int upper_left = below(3) == 0;
    AttnArgs *a = &s->args;
    *a = (AttnArgs){.shape = {1 + below(2), 1 + below(3), 1, 0, 0, 1}};
    for (int64_t t = 0; t < count; t++) {
        const int64_t Nq = below(MOST / count + 1), Nk = below(MOST / count + 1);
        s->q[t] = (AttnSegment){a->shape.Nq, Nq, t, upper_left ? 0 : Nk - Nq, 1};
        s->k[t] = (AttnSegment){a->shape.Nk, Nk, t, 0, 1};
        a->shape.Nq += Nq;
        a->shape.Nk += Nk;
    }
    a->positions_q = attn_positions(s->q, count);
    a->positions_k = attn_positions(s->k, count);
    a->rule = (AttnRule){limits[below(10)], limits[below(10)]};
}

/* Each pair of each tile of each sequence. With a full mask no tile is clean, whatever it holds. */
static ModelTiles ask_every_pair(const Sequences *s, int64_t Br, int64_t Bc)
{
    const AttnArgs *a = &s->args;
    const int64_t heads = a->shape.B * a->shape.H;
    ModelTiles sum = {0, 0, 0};
    for (int64_t t = 0; t < a->positions_q.count; t++)
        for (int64_t i = 0; i < s->q[t].length; i += Br)
            for (int64_t j = 0; j < s->k[t].length; j += Bc) {
                int64_t seen = 0, pairs = 0;
                for (int64_t r = i; r < i + Br && r < s->q[t].length; r++)
                    for (int64_t c = j; c < j + Bc && c < s->k[t].length; c++, pairs++)
                        seen +=
                            attn_visible(a->rule, attn_position(a->positions_q, s->q[t].first + r),
                                         attn_position(a->positions_k, s->k[t].first + c));
                sum.skipped += seen == 0 ? heads : 0;
                sum.masked += seen > 0 && (seen < pairs || a->mask) ? heads : 0;
                sum.clean += seen == pairs && !a->mask ? heads : 0;
            }
    return sum;
}

static void compare(const Sequences *s)
{
    const int64_t Br = 1 + below(12), Bc = 1 + below(12);
    const ModelTiles asked = ask_every_pair(s, Br, Bc);
    const ModelTiles formula = model_window_tiles(&s->args, Br, Bc);
    const WindowTiles walked = window_count_tiles(&s->args, Br, Bc);
    assert_int_equal(asked.skipped, formula.skipped);
    assert_int_equal(asked.masked, formula.masked);
    assert_int_equal(asked.clean, formula.clean);
    assert_int_equal(asked.skipped, walked.skipped);
    assert_int_equal(asked.masked, walked.masked);
    assert_int_equal(asked.clean, walked.clean);
    assert_true(walked.Br == Br && walked.Bc == Bc);
}

TEST(one_sequence)
{
    Sequences s;
    for (int n = 0; n < 5000; n++) {
        random_sequences(&s, 1);
        if (s.args.shape.Nq > 0 && s.args.shape.Nk > 0)
            compare(&s);
    }
}

TEST(several_sequences)
{
    Sequences s;
    for (int n = 0; n < 3000; n++) {
        random_sequences(&s, 1 + below(SEQUENCES));
        s.args.shape.B = 1;
        if (s.args.shape.Nq > 0 && s.args.shape.Nk > 0)
            compare(&s);
    }
}

TEST(full_mask)
{
    Sequences s;
    for (int n = 0; n < 500; n++) {
        random_sequences(&s, 1);
        for (int e = 0; e < MOST * MOST; e++)
            s.mask[e] = below(2) == 0;
        s.args.mask = s.mask;
        if (s.args.shape.Nq > 0 && s.args.shape.Nk > 0)
            compare(&s);
    }
}

/* What the formula does not cover it says. */
TEST(other_maps)
{
    AttnSegment two[2] = {{0, 5, 0, 0, 1}, {5, 5, 0, 20, 1}}, strided = {0, 10, 0, 0, 2};
    AttnSegment plain = {0, 10, 0, 0, 1}, apart[2] = {{0, 3, 0, 0, 1}, {3, 7, 1, 0, 1}};
    const uint8_t nothing_masked = 0;
    AttnArgs a = {.shape = {1, 1, 1, 10, 10, 1}, .rule = {3, 0}};
    a.positions_q = attn_positions(two, 2);
    a.positions_k = attn_positions(two, 2);
    assert_int_equal(model_window_tiles(&a, 4, 4).skipped, -1);
    a.mask = &nothing_masked; /* not read */
    a.positions_q = a.positions_k = attn_positions(apart, 2);
    assert_int_equal(model_window_tiles(&a, 4, 4).skipped, -1);
    a.mask = NULL;
    assert_int_equal(model_window_tiles(&a, 4, 4).skipped, 1);
    a.shape.B = 2;
    assert_int_equal(model_window_tiles(&a, 4, 4).skipped, -1);
    a.shape.B = 1;
    a.positions_q = attn_positions(&strided, 1);
    a.positions_k = attn_positions(&plain, 1);
    assert_int_equal(model_window_tiles(&a, 4, 4).skipped, -1);
    a.positions_q = attn_positions(&plain, 1);
    assert_int_equal(model_window_tiles(&a, 4, 4).skipped, 4); /* 2 + 1 above, 1 below */
    assert_int_equal(model_window_tiles(&a, 4, 4).masked, 5);
}

/* A causal window over 2^20 tokens, by hand: a row tile has up to w / Bc - 1 full tiles, a masked
 * one on the diagonal and from the 17th on one at the far end. */
TEST(long_sequence)
{
    const int64_t N = INT64_C(1) << 20, T = N / 64;
    const AttnSegment all = {0, N, 0, 0, 1};
    AttnArgs a = {.shape = {1, 3, 1, N, N, 1}, .rule = {1024, 0}};
    const ModelTiles of =
        (a.positions_q = a.positions_k = attn_positions(&all, 1), model_window_tiles(&a, 64, 64));
    assert_int_equal(of.clean, 3 * (15 * T - 15 * 16 / 2));
    assert_int_equal(of.skipped + of.masked + of.clean, 3 * T * T);
    assert_int_equal(of.masked, 3 * (T + (T - 16)));
}
