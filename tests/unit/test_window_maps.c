/* SPDX-License-Identifier: MIT
 *
 * test_window_maps: which pairs stage 05's variants for whole calls see, drop and walk over.
 *
 * - Maps that cannot be parted: several sequences at once, the two segments of a rolling cache;
 *   v1_online_block goes over these one after the other.
 * - Maps that the two variants of steps do not take, with a reason.
 * - Dropout's zeros are exactly those of attn_keeps, and its mean is right.
 * - Counts of tiles are those of asking all pairs.
 */
#include "window_variants.h"

#include "library/cpu/weights.h"
#include "models/model.h"

/* --- position maps that cannot be parted -------------------------------------------------------*/

/* The whole problem at once, with its map of many segments: a mask of zeros asks for that. */
TEST(test_a_map_of_sequences_without_parting)
{
    for (int n = 0; n < SETTINGS; n += quick() ? 2 : 1)
        for (int v = 0; v < 2 && settings[n].sequences > 1; v++) {
            const uint64_t state = smooth_state(&settings[n], 11);
            World *parted = world_from(state, &settings[n], ATTN_F32, 11);
            World *whole = world_from(state, &settings[n], ATTN_F32, 11);
            uint8_t *mask = calloc((size_t)(whole->total_q * whole->total_k), 1);
            AttnArgs args = world_args(whole);
            assert_non_null(mask);
            args.mask = mask;
            run_variant(parted, v, 1);
            run_args(whole, v, &args);
            for (int64_t e = 0; e < whole->sizes[IN_Q]; e++)
                assert_near(whole->O[e], parted->O[e], 1e-5, "O", whole->s.name, e);
            assert_gradients_near(whole, parted, 1e-4);
            free(mask);
            world_free(whole);
            world_free(parted);
        }
}

/* Local index j of a rolling cache holds key (j + turn) % Nk: one sequence in two segments. */
static void turn_keys(World *w, AttnArgs *args, int64_t turn)
{
    const int64_t Nk = w->total_k, row = w->s.Hkv * w->s.d;
    Tensor *const keys[] = {&args->K, &args->V};
    for (int t = 0; t < 2; t++)
        for (int64_t j = 0; j < Nk; j++)
            for (int64_t x = 0; x < row; x++)
                tensor_set(keys[t], j * row + x,
                           (float)w->input[t ? IN_V : IN_K][(j + turn) % Nk * row + x]);
    w->segments_k[0] = (AttnSegment){0, Nk - turn, 0, turn, 1};
    w->segments_k[1] = (AttnSegment){Nk - turn, turn, 0, 0, 1};
    args->positions_k.count = 2;
}

TEST(test_keys_of_a_rolling_cache)
{
    for (int n = 0; n < SETTINGS; n += quick() ? 2 : 1)
        for (int v = 0; v < 2; v++) {
            if (settings[n].sequences > 1 || settings[n].dropout > 0)
                continue; /* dropout counts keys by where they are */
            const uint64_t state = smooth_state(&settings[n], 21);
            World *straight = world_from(state, &settings[n], ATTN_F32, 21);
            World *turned = world_from(state, &settings[n], ATTN_F32, 21);
            AttnArgs args = world_args(turned);
            const int64_t row = turned->s.Hkv * turned->s.d, turn = turned->total_k / 3;
            turn_keys(turned, &args, turn);
            run_variant(straight, v, 1);
            run_args(turned, v, &args);
            for (int64_t e = 0; e < turned->sizes[IN_Q]; e++) {
                assert_near(turned->O[e], straight->O[e], 1e-5, "O", turned->s.name, e);
                assert_near(turned->gradient[0][e], straight->gradient[0][e], 1e-4, "dQ",
                            turned->s.name, e);
            }
            for (int g = 1; g < 3; g++)
                for (int64_t e = 0; e < turned->sizes[g]; e++)
                    assert_near(turned->gradient[g][e],
                                straight->gradient[g][(e + turn * row) % turned->sizes[g]], 1e-4,
                                "dK, dV", turned->s.name, e);
            world_free(turned);
            world_free(straight);
        }
}

/* v1's traversal of the second segment starts from the state that the first one left. */
TEST(test_steps_over_a_rolling_cache)
{
    int compared = 0;
    window_set_blocks(3, 2);
    for (int n = 0; n < SETTINGS; n++) {
        const Setting *s = &settings[n];
        if (s->sequences > 1 || s->dropout > 0 || s->low != 0 || s->high != 1)
            continue;
        World *straight = world_from(31, s, ATTN_F32, 3), *turned = world_from(31, s, ATTN_F32, 3);
        AttnArgs args = world_args(turned);
        turn_keys(turned, &args, turned->total_k / 3);
        run_variant(straight, 0, 1);
        assert_int_equal(ATTN_OK, sliding_window_v1_online_block(&args));
        world_collect(turned, &args);
        for (int64_t e = 0; e < turned->sizes[IN_Q]; e++)
            assert_near(turned->O[e], straight->O[e], 1e-5, "O", s->name, e);
        for (int64_t e = 0; e < turned->total_q * s->H; e++)
            assert_near(turned->lse[e], straight->lse[e], 1e-5, "lse", s->name, e);
        compared++;
        world_free(turned);
        world_free(straight);
    }
    window_set_blocks(64, 64);
    assert_true(compared >= 8);
}

static void assert_skipped(AttnFn variant, const AttnArgs *args, const char *reason)
{
    window_set_skip_reason("");
    assert_int_equal(ATTN_SKIP, variant(args));
    assert_non_null(strstr(window_skip_reason(), reason));
}

/* A block of the online module and a stream have consecutive positions; a stream has its keys in
 * one piece. Whoever computed such a map as if it were one would be wrong and not know it. */
TEST(test_maps_that_steps_do_not_take)
{
    const Setting s = {"skipped", 2, 1, 4, 1, 3, 0, 0, 1, 0, 1, 0, 0, 1, {9}, {9}};
    World *w = world_new(&s, ATTN_F32, 1);
    AttnArgs args = world_args(w);
    assert_int_equal(ATTN_OK, sliding_window_v1_online_block(&args));
    assert_int_equal(ATTN_OK, sliding_window_v3_streaming(&args));
    w->segments_k[0].stride = 2;
    assert_skipped(sliding_window_v1_online_block, &args, "consecutive positions");
    assert_skipped(sliding_window_v3_streaming, &args, "in one piece");
    w->segments_k[0].stride = 1, w->segments_q[0].stride = -1;
    assert_skipped(sliding_window_v1_online_block, &args, "consecutive positions");
    assert_skipped(sliding_window_v3_streaming, &args, "in one piece");
    w->segments_q[0].stride = 1;
    turn_keys(w, &args, 4);
    assert_int_equal(ATTN_OK, sliding_window_v1_online_block(&args));
    assert_skipped(sliding_window_v3_streaming, &args, "in one piece");
    world_free(w);
}

/* --- dropout -----------------------------------------------------------------------------------*/

/* Q = 0 makes P uniform, and V = the unit matrix makes O the weights themselves: those of several
 * tiles of keys, with other edges in every sequence. */
TEST(test_dropped_pairs)
{
    enum { N = 200 };
    const Setting s = {"weights",     2,        1, N, 0, -1, 0, 0, 1, 0, 1, 0.3f, 0, 3,
                       {30, 64, 150}, {N, N, N}};
    for (int v = 0; v < 2; v++) {
        World *w = world_new(&s, ATTN_F32, 1);
        const uint32_t threshold = attn_dropout_threshold(s.dropout);
        int64_t kept = 0, pairs = 0;
        memset(w->input[IN_Q], 0, sizeof(double) * (size_t)w->sizes[IN_Q]);
        for (int64_t e = 0; e < w->sizes[IN_V]; e++)
            w->input[IN_V][e] = e / N % N == e % N;
        run_variant(w, v, 2);
        for (int n = 0; n < s.sequences; n++)
            for (int64_t i = 0; i < s.Nq[n]; i++)
                for (int64_t h = 0; h < s.H; h++)
                    for (int64_t j = 0; j < N; j++) {
                        const int keeps = attn_keeps(&w->options, threshold, n, h, i, j);
                        const float weight = w->O[((w->first_q[n] + i) * s.H + h) * N + j];
                        if (keeps)
                            assert_near(weight, 1.0 / N / 0.7, 1e-6, "a weight", s.name, j);
                        else
                            assert_true(weight == 0.0f);
                        kept += keeps;
                        pairs++;
                    }
        /* lse knows nothing of it */
        for (int64_t e = 0; e < w->total_q * s.H; e++)
            assert_near(w->lse[e], log(N), 1e-6, "lse", s.name, e);
        /* binomial: five standard deviations */
        assert_true(fabs((double)kept / (double)pairs - 0.7) < 5 * sqrt(0.21 / (double)pairs));
        world_free(w);
    }
}

/* drop_row makes four words for four keys where attn_keeps makes them for one: the same answer, at
 * the threshold too, from any key on and with gaps. */
TEST(test_a_row_is_dropped_pair_by_pair)
{
    const int64_t j[] = {2, 3, 4, 5, 6, 7, 8, 21, 22, 0, 1, 4};
    const AttnOptions o = {.dropout = 0.5f, .dropout_seed = UINT64_C(0x299f31d0a4093822)};
    for (int at = 0; at < 12; at++)
        for (uint32_t above = 0; above < 2; above++) {
            const PhiloxWords words = philox_4x32_10(
                (PhiloxWords){{(uint32_t)(j[at] / 4), 7, 1, 5}}, 0xa4093822, 0x299f31d0);
            const uint32_t threshold = words.word[j[at] % 4] + above;
            const WeightRule rule = {0, 1, 0, 1, threshold, 2.0f, &o};
            float weight[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
            drop_row(&rule, (WeightPlace){5, 1, 7, j}, 12, weight);
            assert_true(weight[at] == (above ? 0.0f : 2.0f));
            for (int c = 0; c < 12; c++)
                assert_true(weight[c] == (attn_keeps(&o, threshold, 5, 1, 7, j[c]) ? 2.0f : 0.0f));
        }
}

/* --- the walk ----------------------------------------------------------------------------------*/

/* Pairs of one tile that are visible, asked one by one. */
static int64_t visible_pairs(const AttnArgs *a, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    int64_t count = 0;
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = j0; j < j1; j++)
            count += attn_sees(a, i, j);
    return count;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

TEST(test_tiles_are_counted)
{
    const int64_t sizes[][2] = {{16, 16}, {64, 32}, {7, 50}, {1000, 1}};
    for (int n = 0; n < SETTINGS; n += quick() ? 3 : 1)
        for (int size = 0; size < 4; size++) {
            World *w = world_new(&settings[n], ATTN_F32, 13);
            const AttnArgs args = world_args(w);
            const int64_t Br = sizes[size][0], Bc = sizes[size][1], heads = w->s.H;
            const WindowTiles tiles = window_count_tiles(&args, Br, Bc);
            const ModelTiles formula = model_window_tiles(&args, Br, Bc);
            int64_t skipped = 0, clean = 0, all = 0;
            for (int s = 0; s < w->s.sequences; s++)
                for (int64_t i = w->first_q[s]; i < w->first_q[s + 1]; i += Br)
                    for (int64_t j = w->first_k[s]; j < w->first_k[s + 1]; j += Bc) {
                        const int64_t i1 = least(i + Br, w->first_q[s + 1]);
                        const int64_t j1 = least(j + Bc, w->first_k[s + 1]);
                        const int64_t pairs = visible_pairs(&args, i, i1, j, j1);
                        skipped += pairs == 0;
                        clean += pairs == (i1 - i) * (j1 - j);
                        all++;
                    }
            assert_int_equal(heads * skipped, tiles.skipped);
            assert_int_equal(heads * clean, tiles.clean);
            assert_int_equal(heads * (all - skipped - clean), tiles.masked);
            assert_int_equal(formula.skipped, tiles.skipped);
            assert_int_equal(formula.masked, tiles.masked);
            assert_int_equal(formula.clean, tiles.clean);
            world_free(w);
        }
}
