/* SPDX-License-Identifier: MIT
 *
 * test_window_offline: stage 05's variants for whole calls, v0_offline_mask, v2_window_tiles and
 * v4_window_backward, against the definition of window_definition.h.
 *
 * - Every setting, every dtype: O, lse, and all five gradients as finite differences.
 * - The same settings 25 times larger, where tiles have edges.
 * - Maps that cannot be parted: several sequences at once, the two segments of a rolling cache.
 * - Dropout's zeros are exactly those of attn_keeps, its mean is right, and neither tiles nor
 *   threads can change a bit. Options that ask for nothing change no bit either.
 * - Counts of tiles are those of asking all pairs; memory grows with N, not with N^2.
 */
#include "window_definition.h"

#include "alloc.h"
#include "model.h"
#include "sliding_window.h"

/* forward, backward; the second line is v2 with its gradients */
static const struct {
    const char *name;
    AttnFn forward, backward;
} variants[] = {
    {"v0_offline_mask", sliding_window_v0_offline_mask, sliding_window_v0_offline_mask_backward},
    {"v2_window_tiles", sliding_window_v2_window_tiles, sliding_window_v4_window_backward},
};

/* Under sanitizers and qemu: each setting in one dtype, and every third one large. */
static int quick(void)
{
    return getenv("ATTN_TEST_QUICK") != NULL;
}

/* Runs both passes of variant v; results are in the world. */
static void run_variant(World *w, int v, int threads)
{
    float *lse = window_memory(w->s.H * w->total_q, sizeof *lse);
    AttnArgs args = world_args(w, lse);
    args.threads = threads;
    workspace_reset_peak();
    assert_int_equal(ATTN_OK, variants[v].forward(&args));
    assert_int_equal(ATTN_OK, variants[v].backward(&args));
    assert_true(workspace_intact());
    assert_int_equal(0, workspace_live());
    world_collect(w, &args);
    free(lse);
}

/* --- the definition ----------------------------------------------------------------------------*/

static void check_forward(const World *w, const char *what)
{
    const double tolerance[] = {1e-5, 2e-3, 1.6e-2};
    double *O = window_memory(w->sizes[IN_Q], sizeof *O);
    double *lse = window_memory(w->total_q * w->s.H, sizeof *lse);
    define_forward(w, w->input, 1, O, lse);
    for (int64_t e = 0; e < w->sizes[IN_Q]; e++)
        assert_near(w->O[e], O[e], tolerance[w->config.dtype], what, w->s.name, e);
    /* lse is float32 for every dtype; but where Qn is near a tie, float32 and float64 may round it
     * to different neighbours */
    for (int64_t e = 0; e < w->total_q * w->s.H; e++)
        assert_near(w->lse[e], lse[e], tolerance[w->s.group > 0 ? w->config.dtype : 0], "lse",
                    w->s.name, e);
    free(lse);
    free(O);
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

static void test_every_setting_is_its_definition(void **unused)
{
    (void)unused;
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

/* A start of the generator with which no pair is so near to a kink of the clip that two roundings
 * of P could be on different sides. */
static uint64_t smooth_state(const Setting *s, int64_t larger)
{
    for (uint64_t state = 1;; state++) {
        window_state = state;
        World *w = world_new(s, ATTN_F32, larger);
        double *O = window_memory(w->sizes[IN_Q], sizeof *O);
        double *lse = window_memory(w->total_q * w->s.H, sizeof *lse);
        define_kink = INFINITY;
        define_forward(w, w->input, 1, O, lse);
        free(lse);
        free(O);
        world_free(w);
        if (define_kink > 1e-7)
            return state;
    }
}

/* Finite differences of N^2 pairs would take long; but v0 is their equal on small cases, and its
 * code has no tiles: what is right on 6 keys is right on 150. */
static void test_larger_settings(void **unused)
{
    (void)unused;
    for (int n = 0; n < SETTINGS; n += quick() ? 3 : 1) {
        const uint64_t state = smooth_state(&settings[n], 25);
        World *whole, *tiles;
        window_state = state;
        whole = world_new(&settings[n], ATTN_F32, 25);
        window_state = state; /* the same numbers again */
        tiles = world_new(&settings[n], ATTN_F32, 25);
        run_variant(whole, 0, 2);
        run_variant(tiles, 1, 2);
        check_forward(whole, variants[0].name);
        check_forward(tiles, variants[1].name);
        for (int g = 0; g < (tiles->s.group > 0 ? 5 : 3); g++)
            for (int64_t e = 0; e < tiles->sizes[g]; e++)
                assert_near(tiles->gradient[g][e], whole->gradient[g][e], 1e-4, "a gradient",
                            tiles->s.name, e);
        world_free(tiles);
        world_free(whole);
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
static void test_threads_change_no_bit(void **unused)
{
    (void)unused;
    for (int n = 0; n < SETTINGS; n += quick() ? 3 : 1) {
        const uint64_t state = window_state;
        World *one = world_new(&settings[n], (AttnDtype)(n % 3), 25), *three;
        window_state = state;
        three = world_new(&settings[n], (AttnDtype)(n % 3), 25);
        run_variant(one, 1, 1);
        run_variant(three, 1, 3);
        assert_same_bits(one, three);
        world_free(three);
        world_free(one);
    }
}

/* Options that ask for nothing, and no options: the same. A temperature beside a cap too. */
static void test_neutral_options_change_no_bit(void **unused)
{
    (void)unused;
    for (int capped = 0; capped < 2; capped++)
        for (int v = 0; v < 2; v++) {
            const Setting s = {"neutral", 4, 2, 8, 1, 9, 0,    capped ? 2.0f : 0,
                               1,         0, 1, 0, 0, 1, {90}, {130}};
            World *with[2];
            for (int n = 0; n < 2; n++) {
                float *lse = window_memory(s.H * 90, sizeof *lse);
                window_state = 7;
                with[n] = world_new(&s, ATTN_F32, 1);
                AttnArgs args = world_args(with[n], lse);
                with[n]->options.temperature = capped ? 5.0f : 1.0f;
                args.options = n ? &with[n]->options : NULL;
                assert_int_equal(ATTN_OK, variants[v].forward(&args));
                assert_int_equal(ATTN_OK, variants[v].backward(&args));
                world_collect(with[n], &args);
                free(lse);
            }
            assert_same_bits(with[0], with[1]);
            world_free(with[0]);
            world_free(with[1]);
        }
}

/* --- position maps that cannot be parted -------------------------------------------------------*/

/* The whole problem at once, with its map of many segments: a mask of zeros asks for that. */
static void test_a_map_of_sequences_without_parting(void **unused)
{
    (void)unused;
    for (int n = 0; n < SETTINGS; n += quick() ? 2 : 1)
        for (int v = 0; v < 2 && settings[n].sequences > 1; v++) {
            World *parted, *whole;
            const uint64_t state = smooth_state(&settings[n], 11);
            window_state = state;
            parted = world_new(&settings[n], ATTN_F32, 11);
            window_state = state;
            whole = world_new(&settings[n], ATTN_F32, 11);
            uint8_t *mask = calloc((size_t)(whole->total_q * whole->total_k), 1);
            float *lse = window_memory(whole->s.H * whole->total_q, sizeof *lse);
            AttnArgs args = world_args(whole, lse);
            assert_non_null(mask);
            args.mask = mask;
            run_variant(parted, v, 1);
            assert_int_equal(ATTN_OK, variants[v].forward(&args));
            assert_int_equal(ATTN_OK, variants[v].backward(&args));
            world_collect(whole, &args);
            for (int64_t e = 0; e < whole->sizes[IN_Q]; e++)
                assert_near(whole->O[e], parted->O[e], 1e-5, "O", whole->s.name, e);
            for (int g = 0; g < (whole->s.group > 0 ? 5 : 3); g++)
                for (int64_t e = 0; e < whole->sizes[g]; e++)
                    assert_near(whole->gradient[g][e], parted->gradient[g][e], 1e-4, "a gradient",
                                whole->s.name, e);
            free(lse);
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

static void test_keys_of_a_rolling_cache(void **unused)
{
    (void)unused;
    for (int n = 0; n < SETTINGS; n += quick() ? 2 : 1)
        for (int v = 0; v < 2; v++) {
            World *straight, *turned;
            if (settings[n].sequences > 1 || settings[n].dropout > 0)
                continue; /* dropout counts keys by where they are */
            const uint64_t state = smooth_state(&settings[n], 21);
            window_state = state;
            straight = world_new(&settings[n], ATTN_F32, 21);
            window_state = state;
            turned = world_new(&settings[n], ATTN_F32, 21);
            float *lse = window_memory(turned->s.H * turned->total_q, sizeof *lse);
            AttnArgs args = world_args(turned, lse);
            const int64_t row = turned->s.Hkv * turned->s.d, turn = turned->total_k / 3;
            turn_keys(turned, &args, turn);
            run_variant(straight, v, 1);
            assert_int_equal(ATTN_OK, variants[v].forward(&args));
            assert_int_equal(ATTN_OK, variants[v].backward(&args));
            world_collect(turned, &args);
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
            free(lse);
            world_free(turned);
            world_free(straight);
        }
}

/* --- dropout -----------------------------------------------------------------------------------*/

/* Q = 0 makes P uniform, and V = the unit matrix makes O the weights themselves. */
static void test_dropped_pairs(void **unused)
{
    (void)unused;
    enum { N = 64 };
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

static void test_tiles_are_counted(void **unused)
{
    const int64_t sizes[][2] = {{16, 16}, {64, 32}, {7, 50}, {1000, 1}};
    (void)unused;
    for (int n = 0; n < SETTINGS; n += quick() ? 3 : 1)
        for (int size = 0; size < 4; size++) {
            World *w = world_new(&settings[n], ATTN_F32, 13);
            float *lse = window_memory(w->s.H * w->total_q, sizeof *lse);
            const AttnArgs args = world_args(w, lse);
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
            free(lse);
            world_free(w);
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

static void test_memory_is_proportional_to_n(void **unused)
{
    (void)unused;
    assert_true(peak_of(1, 1200) < 2.05 * (double)peak_of(1, 600));
    assert_true(peak_of(0, 1200) > 3.5 * (double)peak_of(0, 600)); /* v0: N^2 */
}

static void test_skip_reason(void **unused)
{
    (void)unused;
    window_set_skip_reason("because");
    assert_string_equal("because", window_skip_reason());
    window_set_skip_reason("");
    assert_string_equal("", window_skip_reason());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_setting_is_its_definition),
        cmocka_unit_test(test_larger_settings),
        cmocka_unit_test(test_threads_change_no_bit),
        cmocka_unit_test(test_neutral_options_change_no_bit),
        cmocka_unit_test(test_a_map_of_sequences_without_parting),
        cmocka_unit_test(test_keys_of_a_rolling_cache),
        cmocka_unit_test(test_dropped_pairs),
        cmocka_unit_test(test_tiles_are_counted),
        cmocka_unit_test(test_memory_is_proportional_to_n),
        cmocka_unit_test(test_skip_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
