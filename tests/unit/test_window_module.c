/* SPDX-License-Identifier: MIT
 *
 * test_window_module: the offline module as a library: layouts, packing, sequences.
 *
 * - A layout and a packing are ways to write the same numbers down: the results are the same bits.
 * - What they are is what the definition says, gradients included.
 * - Sequences in one call are what separate calls give; the coursework's lengths are among them.
 */
#include "window_call.h"

#include "alloc.h"

/* Both passes; results are in the world. */
static void run_module(World *w, WindowLayout layout, WindowPack pack)
{
    WindowConfig c = w->config;
    Buffers b;
    char error[WINDOW_ERROR] = "";
    c.layout = layout, c.pack = pack, c.options = w->options;
    const WindowCall call = make_call(w, &c, &b);
    if (sliding_window_offline(&c, &call, error) != WINDOW_OK ||
        sliding_window_offline_backward(&c, &call, error) != WINDOW_OK) {
        print_message("%s\n", error);
        fail();
    }
    assert_int_equal(0, workspace_live());
    copy_tensor(w, &c, &b, AT_O, NULL, w->O);
    copy_tensor(w, &c, &b, AT_DQ, NULL, w->gradient[0]);
    copy_tensor(w, &c, &b, AT_DK, NULL, w->gradient[1]);
    copy_tensor(w, &c, &b, AT_DV, NULL, w->gradient[2]);
    for (int n = 0; n < w->s.sequences; n++)
        for (int64_t i = 0; i < w->s.Nq[n]; i++)
            for (int64_t h = 0; h < w->s.H; h++) {
                const int64_t row = w->first_q[n] + i;
                /* [b][h][s], and THD: [h][t] */
                w->lse[row * w->s.H + h] = layout == WINDOW_THD
                                               ? b.lse[h * w->total_q + row]
                                               : b.lse[(n * w->s.H + h) * w->s.Nq[0] + i];
            }
    free_buffers(&b);
}

/* --- layouts and packs -------------------------------------------------------------------------*/

static void assert_same(const World *a, const World *b, double tolerance)
{
    for (int64_t e = 0; e < a->sizes[IN_Q]; e++)
        assert_near(b->O[e], a->O[e], tolerance, "O", a->s.name, e);
    for (int64_t e = 0; e < a->total_q * a->s.H; e++)
        assert_near(b->lse[e], a->lse[e], tolerance, "lse", a->s.name, e);
    assert_gradients_near(b, a, tolerance);
}

static int equal_lengths(const Setting *s)
{
    for (int n = 1; n < s->sequences; n++)
        if (s->Nq[n] != s->Nq[0] || s->Nk[n] != s->Nk[0])
            return 0;
    return 1;
}

static int self_attention(const Setting *s)
{
    for (int n = 0; n < s->sequences; n++)
        if (s->Nq[n] != s->Nk[n])
            return 0;
    return 1;
}

/* A fresh world with the same numbers every time. */
static World *same_world(const Setting *s, AttnDtype dtype)
{
    return world_from(99, s, dtype, 3);
}

TEST(test_a_layout_changes_no_bit)
{
    int compared = 0;
    for (int n = 0; n < SETTINGS; n++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
            World *first[2] = {NULL, NULL}; /* of THD, of the other two */
            for (int layout = WINDOW_BSHD; layout <= WINDOW_THD; layout++)
                for (int pack = WINDOW_Q_K_V; pack <= WINDOW_QKV; pack++) {
                    World *w;
                    const int thd = layout == WINDOW_THD;
                    if ((!thd && !equal_lengths(&settings[n])) ||
                        (pack == WINDOW_QKV && !self_attention(&settings[n])))
                        continue;
                    w = same_world(&settings[n], (AttnDtype)dtype);
                    run_module(w, (WindowLayout)layout, (WindowPack)pack);
                    if (first[thd]) {
                        assert_same(first[thd], w, 0);
                        compared++;
                        world_free(w);
                    } else {
                        first[thd] = w;
                    }
                }
            /* a batch is one problem, THD a problem for each sequence: sums may be cut otherwise */
            if (first[0] && first[1] && dtype == ATTN_F32)
                assert_same(first[0], first[1], 1e-5);
            for (int t = 0; t < 2; t++)
                if (first[t])
                    world_free(first[t]);
        }
    assert_in_range(compared, 150, 1000); /* that the two conditions left something */
}

/* What the module computes is the definition, and not only the same everywhere. */
TEST(test_the_module_is_its_definition)
{
    for (int n = 0; n < SETTINGS; n++) {
        World *w = same_world(&settings[n], ATTN_F32);
        double *O = window_memory(w->sizes[IN_Q], sizeof *O);
        double *lse = window_memory(w->total_q * w->s.H, sizeof *lse);
        run_module(w, WINDOW_THD, WINDOW_Q_KV);
        assert_forward_defined(w, 1e-5, 1e-5, "O");
        for (int g = 0; g < (w->s.group > 0 ? 5 : 3); g++) /* a few elements of each */
            for (int64_t e = 0; e < w->sizes[g]; e += w->sizes[g] / 5 + 1)
                assert_near(w->gradient[g][e], define_gradient(w, g, e, O, lse), 3e-5, "a gradient",
                            w->s.name, e);
        free(lse);
        free(O);
        world_free(w);
    }
}

/* --- sequences ---------------------------------------------------------------------------------*/

/* Sequence n of w, alone, with the same numbers. */
static World *only_sequence(const World *w, const Setting *s, int n)
{
    Setting one = *s;
    World *alone;
    one.sequences = 1;
    one.Nq[0] = s->Nq[n], one.Nk[0] = s->Nk[n];
    alone = world_new(&one, w->config.dtype, 3);
    const int64_t q = w->first_q[n] * s->H * s->d, k = w->first_k[n] * s->Hkv * s->d;
    const int64_t from[] = {q, k, k, 0, 0, q};
    for (int t = 0; t < 6; t++)
        memcpy(alone->input[t], w->input[t] + from[t], sizeof(double) * (size_t)alone->sizes[t]);
    memcpy(alone->wq, w->wq, sizeof w->wq);
    memcpy(alone->wk, w->wk, sizeof w->wk);
    return alone;
}

/* Not dropout: a sequence's number is in its random numbers. */
TEST(test_sequences_are_separate_runs)
{
    int compared = 0;
    for (int at = 0; at < SETTINGS; at++) {
        const Setting *s = &settings[at];
        World *w;
        if (s->sequences < 2 || s->dropout > 0)
            continue;
        w = same_world(s, (AttnDtype)(at % 3));
        run_module(w, WINDOW_THD, WINDOW_Q_K_V);
        for (int n = 0; n < s->sequences; n++) {
            World *alone;
            if (s->Nq[n] == 0 || s->Nk[n] == 0)
                continue; /* a tensor has at least one token */
            alone = only_sequence(w, s, n);
            run_module(alone, WINDOW_BSHD, WINDOW_Q_K_V);
            const int64_t q = w->first_q[n] * s->H * s->d, k = w->first_k[n] * s->Hkv * s->d;
            assert_memory_equal(alone->O, w->O + q, sizeof(float) * (size_t)alone->sizes[IN_Q]);
            assert_memory_equal(alone->lse, w->lse + w->first_q[n] * s->H,
                                sizeof(float) * (size_t)(alone->total_q * s->H));
            for (int64_t e = 0; e < alone->sizes[IN_Q]; e++)
                assert_near(alone->gradient[0][e], w->gradient[0][q + e], 1e-5, "dQ", s->name, e);
            for (int g = 1; g < 3; g++)
                for (int64_t e = 0; e < alone->sizes[IN_K]; e++)
                    assert_near(alone->gradient[g][e], w->gradient[g][k + e], 1e-5, "dK, dV",
                                s->name, e);
            compared++;
            world_free(alone);
        }
        world_free(w);
    }
    assert_in_range(compared, 8, 100);
}

/* The lengths of the coursework's tests, where one query has 24 keys and another sequence more
 * queries than keys. */
TEST(test_lengths_of_the_coursework)
{
    /* clang-format off */
    const Setting s = {"coursework", 8, 4, 16, 1, 32, 0, 0, 1, 0, 1, 0, 0, 6,
                       {100, 1, 200, 11, 50, 150}, {100, 24, 400, 400, 25, 75}};
    /* clang-format on */
    World *w = world_new(&s, ATTN_F32, 1);
    assert_int_equal(512, w->total_q);
    assert_int_equal(1024, w->total_k);
    run_module(w, WINDOW_THD, WINDOW_Q_K_V);
    assert_forward_defined(w, 1e-5, 1e-5, "O");
    world_free(w);
}

/* Limits that no sum of positions may overflow. */
TEST(test_a_window_of_any_number)
{
    for (int n = 0; n < SETTINGS; n++) {
        World *none = same_world(&settings[n], ATTN_F32),
              *wide = same_world(&settings[n], ATTN_F32);
        none->config.window = WINDOW_INFINITE;
        wide->config.window = INT64_MAX;
        run_module(none, WINDOW_THD, WINDOW_Q_K_V);
        run_module(wide, WINDOW_THD, WINDOW_Q_K_V);
        assert_same(none, wide, 0);
        world_free(none);
        world_free(wide);
    }
}

TEST(test_lse_may_be_missing)
{
    for (int n = 0; n < SETTINGS; n++) {
        World *w = same_world(&settings[n], ATTN_F32);
        Buffers b;
        WindowCall call = make_call(w, &w->config, &b);
        float *with = window_memory(w->sizes[IN_Q], sizeof *with);
        assert_int_equal(WINDOW_OK, sliding_window_offline(&w->config, &call, NULL));
        memcpy(with, b.at[AT_O], sizeof(float) * (size_t)w->sizes[IN_Q]);
        memset(b.at[AT_O], 0xFF, sizeof(float) * (size_t)w->sizes[IN_Q]);
        call.lse = NULL;
        assert_int_equal(WINDOW_OK, sliding_window_offline(&w->config, &call, NULL));
        assert_memory_equal(with, b.at[AT_O], sizeof(float) * (size_t)w->sizes[IN_Q]);
        free(with);
        free_buffers(&b);
        world_free(w);
    }
}
