/* SPDX-License-Identifier: MIT
 *
 * test_window_offline: stage 05's variants for whole calls, v0_offline_mask, v2_window_tiles and
 * v4_window_backward, against the definition of window_definition.h.
 *
 * - Every setting, every dtype: O, lse, and all five gradients as finite differences.
 * - The same settings 25 times larger, where tiles have edges.
 * - Lists that leave out who has no tokens; several sequences in each of two batches.
 * - Threads change no bit, nor do options that ask for nothing.
 * - Memory grows with N, not with N^2.
 * Who is seen, dropped and walked over: test_window_maps.c.
 */
#include "window_variants.h"

/* --- the definition ----------------------------------------------------------------------------*/

/* lse is float32 for every dtype; but where Qn is near a tie, float32 and float64 may round it to
 * different neighbours */
static void check_forward(const World *w, const char *what)
{
    const double tolerance[] = {1e-5, 2e-3, 1.6e-2};
    assert_forward_defined(w, tolerance[w->config.dtype],
                           tolerance[w->s.group > 0 ? w->config.dtype : 0], what);
}

/* With 16 bits the rounding of O, of Qn and of Kn is in the gradients too; the last two with a clip
 * can bring a pair to the other side of its kink, where the gradient jumps: no tolerance for that,
 * so this combination is left to the oracle, which knows how far a pair is from a kink. */
static void check_gradients(const World *w, const char *what)
{
    const int clips = w->s.low != 0 || w->s.high != 1;
    const double tolerance[] = {2e-5, 2e-2, 1e-1};
    const char *const names[] = {"dQ", "dK", "dV", "dwq", "dwk"};
    double *O = window_memory(w->sizes[IN_Q], sizeof *O);
    double *lse = window_memory(w->total_q * w->s.H, sizeof *lse);
    const int jumps = clips && w->s.group > 0 && w->config.dtype != ATTN_F32;
    for (int n = 0; n < (jumps ? 0 : w->s.group > 0 ? 5 : 3); n++)
        for (int64_t e = 0; e < w->sizes[n]; e++) {
            char label[64];
            snprintf(label, sizeof label, "%s %s", what, names[n]);
            assert_near(w->gradient[n][e], define_gradient(w, n, e, O, lse),
                        tolerance[w->config.dtype], label, w->s.name, e);
        }
    free(lse);
    free(O);
}

TEST(test_every_setting_is_its_definition)
{
    for (int n = 0; n < SETTINGS; n++)
        for (int dtype = quick() ? n % 3 : 0; dtype < 3; dtype += quick() ? 3 : 1)
            for (int v = 0; v < 2; v++) {
                World *w = world_new(&settings[n], (AttnDtype)dtype, 1);
                run_variant(w, v, 1);
                check_forward(w, variants[v].name);
                check_gradients(w, variants[v].name);
                world_free(w);
            }
}

/* Finite differences of N^2 pairs would take long; but v0 is their equal on small cases, and its
 * code has no tiles: what is right on 6 keys is right on 150. */
TEST(test_larger_settings)
{
    for (int n = 0; n < SETTINGS; n += quick() ? 3 : 1) {
        const uint64_t state = smooth_state(&settings[n], 25);
        World *whole = world_from(state, &settings[n], ATTN_F32, 25);
        World *tiles = world_from(state, &settings[n], ATTN_F32, 25);
        run_variant(whole, 0, 2);
        run_variant(tiles, 1, 2);
        check_forward(whole, variants[0].name);
        check_forward(tiles, variants[1].name);
        assert_gradients_near(tiles, whole, 1e-4);
        world_free(tiles);
        world_free(whole);
    }
}

/* --- sequences ---------------------------------------------------------------------------------*/

static int64_t without_empty(AttnSegment *segments, int64_t count)
{
    int64_t left = 0;
    for (int64_t s = 0; s < count; s++)
        if (segments[s].length > 0)
            segments[left++] = segments[s];
    return left;
}

/* A sequence without queries, or without keys, need not be in that list. */
TEST(test_lists_need_not_name_every_sequence)
{
    int shorter = 0;
    for (int n = 0; n < SETTINGS; n++)
        for (int v = 0; v < 2 && settings[n].sequences > 1; v++) {
            World *named = world_from(41, &settings[n], ATTN_F32, 2);
            World *listed = world_from(41, &settings[n], ATTN_F32, 2);
            AttnArgs args = world_args(listed);
            const int64_t count = args.positions_q.count;
            args.positions_q.count = without_empty(listed->segments_q, count);
            args.positions_k.count = without_empty(listed->segments_k, count);
            shorter += args.positions_q.count < count || args.positions_k.count < count;
            run_variant(named, v, 1);
            run_args(listed, v, &args);
            assert_memory_equal(named->O, listed->O, sizeof(float) * (size_t)named->sizes[IN_Q]);
            for (int g = 0; g < 3; g++)
                assert_memory_equal(named->gradient[g], listed->gradient[g],
                                    sizeof(float) * (size_t)named->sizes[g]);
            world_free(listed);
            world_free(named);
        }
    assert_true(shorter >= 6);
}

/* Two batches of the same sequences, the second one behind the first: no part of it is one run. */
TEST(test_sequences_in_two_batches)
{
    const Setting s = {"batches", 2, 1, 4, 1, 5, 0, 0, 1, 0, 1, 0, 2, 2, {5, 8}, {9, 6}};
    for (int v = 0; v < 2; v++) {
        World *one[2] = {world_new(&s, ATTN_F32, 1), world_new(&s, ATTN_F32, 1)}, *both;
        Setting twice = s; /* memory of twice as many tokens */
        twice.Nq[1] += 13, twice.Nk[1] += 15;
        both = world_new(&twice, ATTN_F32, 1);
        for (int t = 0; t < 6; t++)
            for (int b = 0; b < 2 && t != IN_WQ && t != IN_WK; b++)
                memcpy(both->input[t] + b * one[b]->sizes[t], one[b]->input[t],
                       sizeof(double) * (size_t)one[b]->sizes[t]);
        for (int b = 0; b < 2; b++) {
            memcpy(one[b]->wq, both->wq, sizeof both->wq);
            memcpy(one[b]->wk, both->wk, sizeof both->wk);
            run_variant(one[b], v, 1);
        }
        AttnArgs args = world_args(both);
        Tensor *const all[] = {&args.Q,  &args.K,  &args.V,  &args.O,
                               &args.dO, &args.dQ, &args.dK, &args.dV};
        for (int t = 0; t < 8; t++) {
            all[t]->shape[0] = 2, all[t]->shape[1] /= 2;
            all[t]->stride[0] = all[t]->shape[1] * all[t]->stride[1];
        }
        args.shape.B = 2, args.shape.Nq = 13, args.shape.Nk = 15;
        args.positions_q = attn_positions(one[0]->segments_q, 2);
        args.positions_k = attn_positions(one[0]->segments_k, 2);
        assert_int_equal(ATTN_OK, variants[v].forward(&args));
        assert_int_equal(ATTN_OK, variants[v].backward(&args));
        for (int b = 0; b < 2; b++)
            for (int t = 0; t < 4; t++) { /* O dQ dK dV */
                const float *want = t == 0 ? one[b]->O : one[b]->gradient[t - 1];
                const int64_t count = one[b]->sizes[t == 0 ? IN_Q : t - 1];
                for (int64_t e = 0; e < count; e++)
                    assert_near(tensor_get(all[t == 0 ? 3 : t + 4], b * count + e), want[e], 1e-4,
                                "a batch", s.name, e);
            }
        for (int b = 0; b < 2; b++)
            world_free(one[b]);
        world_free(both);
    }
}

/* --- nothing but the options -------------------------------------------------------------------*/

static void assert_same_bits(const World *a, const World *b)
{
    assert_memory_equal(a->O, b->O, sizeof(float) * (size_t)a->sizes[IN_Q]);
    assert_memory_equal(a->lse, b->lse, sizeof(float) * (size_t)(a->total_q * a->s.H));
    for (int g = 0; g < (a->s.group > 0 ? 5 : 3); g++)
        assert_memory_equal(a->gradient[g], b->gradient[g], sizeof(float) * (size_t)a->sizes[g]);
}

/* dwq and dwk are sums over all tokens: their order must not be that of the threads. (v0 promises
 * nothing of the kind: OpenBLAS cuts its large products for as many threads as there are.) */
TEST(test_threads_change_no_bit)
{
    for (int n = 0; n < SETTINGS; n += quick() ? 3 : 1) {
        const uint64_t state = window_state;
        World *one = world_from(state, &settings[n], (AttnDtype)(n % 3), 25);
        World *three = world_from(state, &settings[n], (AttnDtype)(n % 3), 25);
        run_variant(one, 1, 1);
        run_variant(three, 1, 3);
        assert_same_bits(one, three);
        world_free(three);
        world_free(one);
    }
}

/* Options that ask for nothing, and no options: the same. A temperature beside a cap too. */
TEST(test_neutral_options_change_no_bit)
{
    for (int capped = 0; capped < 2; capped++)
        for (int v = 0; v < 2; v++) {
            const Setting s = {"neutral", 4, 2, 8, 1, 9, 0,    capped ? 2.0f : 0,
                               1,         0, 1, 0, 0, 1, {90}, {130}};
            World *with[2];
            for (int n = 0; n < 2; n++) {
                with[n] = world_from(7, &s, ATTN_F32, 1);
                AttnArgs args = world_args(with[n]);
                with[n]->options.temperature = capped ? 5.0f : 1.0f;
                args.options = n ? &with[n]->options : NULL;
                run_args(with[n], v, &args);
            }
            assert_same_bits(with[0], with[1]);
            world_free(with[0]);
            world_free(with[1]);
        }
}

/* Bytes of workspace of one setting with N tokens, both passes. */
static size_t peak_of(int v, int64_t N)
{
    const Setting s = {"memory", 2, 1, 8, 1, 20, 0, 0, 1, -0.1f, 1.1f, 0.1f, 4, 1, {N}, {N}};
    World *w = world_new(&s, ATTN_F32, 1);
    run_variant(w, v, 1);
    world_free(w);
    return workspace_peak();
}

TEST(test_memory_is_proportional_to_n)
{
    assert_true(peak_of(1, 1200) < 2.05 * (double)peak_of(1, 600));
    assert_true(peak_of(0, 1200) > 3.5 * (double)peak_of(0, 600)); /* v0: N^2 */
}

TEST(test_skip_reason)
{
    window_set_skip_reason("because");
    assert_string_equal("because", window_skip_reason());
    window_set_skip_reason("");
    assert_string_equal("", window_skip_reason());
}
