/* SPDX-License-Identifier: MIT
 *
 * test_window_module: the offline module as a library: layouts, packing, sequences.
 *
 * - A layout and a packing are ways to write the same numbers down: the results are the same bits.
 * - What they are is right, gradients included.
 * - Sequences in one call are what separate calls give.
 * - What it does not compute: each refusal has its status, one sentence that begins with the field
 *   and what was found there, and it comes before anything was written.
 *
 * The numbers of a World (window_world.h) become a call in any layout and packing. Where an
 * element lies is written down once more here, as an index, and not taken from the module's
 * strides.
 */
#include <math.h>

#include "window_world.h"

#include "alloc.h"

/* --- calls -------------------------------------------------------------------------------------*/

/* Memory of a call; packed tensors lie in the first one of their pack. Q K V O dO dQ dK dV */
typedef struct Buffers {
    void *at[8];
    int64_t count[8]; /* elements */
    float *lse;
    int32_t cu_q[MAX_SEQUENCES + 1], cu_k[MAX_SEQUENCES + 1];
} Buffers;

enum { AT_Q, AT_K, AT_V, AT_O, AT_DO, AT_DQ, AT_DK, AT_DV };

/* Heads side by side where tensor t lies, and the first of its own among them. *home: whose memory
 * that is. */
static int64_t stored_heads(const World *w, WindowPack pack, int t, int *home, int64_t *first)
{
    const int64_t H = w->s.H, Hkv = w->s.Hkv;
    const int part = t <= AT_V ? t : t >= AT_DQ ? t - AT_DQ : -1, base = t <= AT_V ? 0 : AT_DQ;
    *home = t, *first = 0;
    if (part < 0 || pack == WINDOW_Q_K_V || (pack == WINDOW_Q_KV && part == 0))
        return part == 1 || part == 2 ? Hkv : H;
    *home = base + (pack == WINDOW_Q_KV ? 1 : 0);
    if (pack == WINDOW_Q_KV)
        *first = part == 2 ? Hkv : 0;
    else
        *first = part == 0 ? 0 : part == 1 ? H : H + Hkv;
    return pack == WINDOW_Q_KV ? 2 * Hkv : H + 2 * Hkv;
}

/* Where channel 0 of tensor t is: token i of sequence n, head h. */
static int64_t element_of(const World *w, WindowLayout layout, WindowPack pack, int t, int n,
                          int64_t i, int64_t h)
{
    const int keys = t == AT_K || t == AT_V || t == AT_DK || t == AT_DV;
    int home;
    int64_t first;
    const int64_t stored = stored_heads(w, pack, t, &home, &first);
    const int64_t before = keys ? w->first_k[n] : w->first_q[n];
    const int64_t token = layout == WINDOW_SBHD ? i * w->s.sequences + n : before + i;
    return (token * stored + first + h) * w->s.d;
}

/* Copies tensor t between its buffer and an array of the world; from != NULL: into the buffer. */
static void copy_tensor(const World *w, const WindowConfig *c, const Buffers *b, int t,
                        const double *from, float *to)
{
    const int keys = t == AT_K || t == AT_V || t == AT_DK || t == AT_DV;
    const int64_t heads = keys ? w->s.Hkv : w->s.H, d = w->s.d;
    int home;
    int64_t first, at = 0;
    stored_heads(w, c->pack, t, &home, &first);
    const Tensor view = {b->at[home], c->dtype, {1, 1, 1, 1}, {1, 1, 1, 1}};
    for (int n = 0; n < w->s.sequences; n++)
        for (int64_t i = 0; i < (keys ? w->s.Nk[n] : w->s.Nq[n]); i++)
            for (int64_t h = 0; h < heads; h++) {
                const int64_t e = element_of(w, c->layout, c->pack, t, n, i, h);
                for (int64_t x = 0; x < d; x++, at++) {
                    if (from)
                        tensor_set(&view, e + x, (float)from[at]);
                    else
                        to[at] = tensor_get(&view, e + x);
                }
            }
}

static WindowCall make_call(const World *w, const WindowConfig *c, Buffers *b)
{
    const int64_t d = w->s.d;
    memset(b, 0, sizeof *b);
    for (int t = 0; t < 8; t++) {
        const int keys = t == AT_K || t == AT_V || t == AT_DK || t == AT_DV;
        int home;
        int64_t first;
        const int64_t stored = stored_heads(w, c->pack, t, &home, &first);
        if (home != t)
            continue;
        b->count[t] = (keys ? w->total_k : w->total_q) * stored * d;
        b->at[t] = window_memory(b->count[t], dtype_size(c->dtype));
    }
    b->lse = window_memory(w->s.H * w->total_q, sizeof *b->lse);
    copy_tensor(w, c, b, AT_Q, w->input[IN_Q], NULL);
    copy_tensor(w, c, b, AT_K, w->input[IN_K], NULL);
    copy_tensor(w, c, b, AT_V, w->input[IN_V], NULL);
    copy_tensor(w, c, b, AT_DO, w->input[IN_DO], NULL);
    for (int n = 0; n <= w->s.sequences; n++) {
        b->cu_q[n] = (int32_t)w->first_q[n];
        b->cu_k[n] = (int32_t)w->first_k[n];
    }
    const int thd = c->layout == WINDOW_THD;
    /* clang-format off */
    return (WindowCall){
        w->s.sequences, thd ? w->total_q : w->s.Nq[0], thd ? w->total_k : w->s.Nk[0],
        thd ? b->cu_q : NULL, thd ? b->cu_k : NULL, b->at[AT_Q], b->at[AT_K], b->at[AT_V],
        b->at[AT_O], b->lse, b->at[AT_DO], b->at[AT_DQ], b->at[AT_DK], b->at[AT_DV]};
    /* clang-format on */
}

static void free_buffers(Buffers *b)
{
    for (int t = 0; t < 8; t++)
        free(b->at[t]);
    free(b->lse);
}

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

/* What the module computes is right, and not only the same everywhere. */
TEST(test_the_module_is_right)
{
    for (int n = 0; n < SETTINGS; n++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
            World *w = same_world(&settings[n], (AttnDtype)dtype);
            AttnArgs a = world_args(w);
            Buffers b;
            const WindowCall call =
                make_call(w, &w->config, &b); /* its tensors lie as those of a */
            assert_int_equal(WINDOW_OK, sliding_window_offline(&w->config, &call, NULL));
            assert_int_equal(WINDOW_OK, sliding_window_offline_backward(&w->config, &call, NULL));
            a.O.data = b.at[AT_O], a.lse = b.lse;
            a.dQ.data = b.at[AT_DQ], a.dK.data = b.at[AT_DK], a.dV.data = b.at[AT_DV];
            args_judge(&a, 1, 4, 1, w->s.name);
            free_buffers(&b);
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

/* --- what it does not compute ------------------------------------------------------------------*/

static const int32_t cu_late[] = {1, 12, 24}, cu_falls[] = {0, 25, 24}, cu_short[] = {0, 12, 23};
static const int32_t cu_other[] = {0, 11, 24};

/* One mistake in a call that is right otherwise (integers at their ends: test_window_ends.c): its
 * name, layout and pack, the status, how the sentence begins, 1: only a backward call is refused
 * for it; and what makes it. */
/* clang-format off */
#define MISTAKES(X) \
    X(heads_do_not_divide, BSHD, Q_K_V, CONFIG, "heads_kv: found 3", 0, c->heads_kv = 3) \
    X(scale_is_nan, BSHD, Q_K_V, CONFIG, "scale: found nan", 0, c->scale = NAN) \
    X(negative_cap, BSHD, Q_K_V, CONFIG, "cap: found -1", 0, c->cap = -1) \
    X(temperature_is_zero, BSHD, Q_K_V, CONFIG, "temperature: found 0", 0, \
      c->options.temperature = 0) \
    X(low_above_zero, BSHD, Q_K_V, CONFIG, "clip_low: found 0.1", 0, c->options.clip_low = 0.1f) \
    X(low_is_nan, BSHD, Q_K_V, CONFIG, "clip_low: found nan", 0, c->options.clip_low = NAN) \
    X(high_below_one, BSHD, Q_K_V, CONFIG, "clip_high: found 0.9", 0, c->options.clip_high = 0.9f) \
    X(high_is_infinite, BSHD, Q_K_V, CONFIG, "clip_high: found inf", 0, \
      c->options.clip_high = INFINITY) \
    X(everything_dropped, BSHD, Q_K_V, CONFIG, "dropout: found 1", 0, c->options.dropout = 1) \
    X(negative_dropout, BSHD, Q_K_V, CONFIG, "dropout: found -0.1", 0, c->options.dropout = -0.1f) \
    X(dropout_is_nan, BSHD, Q_K_V, CONFIG, "dropout: found nan", 0, c->options.dropout = NAN) \
    X(group_does_not_divide, BSHD, Q_K_V, CONFIG, "norm_group: found 3", 0, \
      c->options.norm_group = 3) \
    X(no_weights, BSHD, Q_K_V, CONFIG, "wk: found NULL", 0, \
      (c->options.norm_group = 2, c->options.wk = NULL)) \
    X(negative_eps, BSHD, Q_K_V, CONFIG, "norm_eps: found -1", 0, \
      (c->options.norm_group = 2, c->options.norm_eps = -1)) \
    X(too_large, BSHD, Q_K_V, TENSOR, "batch and seqlen: found", 0, \
      (call->batch = INT64_MAX / 4, call->seqlen_q = 1000)) \
    X(other_lengths, BSHD, QKV, TENSOR, "seqlen_kv: found 11", 0, call->seqlen_kv = 11) \
    X(cu_without_thd, SBHD, Q_K_V, TENSOR, "cu_seqlens_kv: found an array", 0, \
      call->cu_seqlens_kv = cu_late) \
    X(no_cu, THD, Q_K_V, TENSOR, "cu_seqlens_q: found NULL", 0, call->cu_seqlens_q = NULL) \
    X(cu_starts_late, THD, Q_K_V, TENSOR, "cu_seqlens_q[0]: found 1", 0, \
      call->cu_seqlens_q = cu_late) \
    X(cu_runs_back, THD, Q_K_V, TENSOR, "cu_seqlens_kv[2]: found 24", 0, \
      call->cu_seqlens_kv = cu_falls) \
    X(cu_ends_early, THD, Q_K_V, TENSOR, "cu_seqlens_kv[2]: found 23", 0, \
      call->cu_seqlens_kv = cu_short) \
    X(cu_differ, THD, QKV, TENSOR, "cu_seqlens_kv[1]: found 11", 0, \
      call->cu_seqlens_kv = cu_other) \
    X(no_q, BSHD, Q_K_V, TENSOR, "Q: found NULL", 0, call->Q = NULL) \
    X(no_v, BSHD, Q_K_V, TENSOR, "V: found NULL", 0, call->V = NULL) \
    X(v_twice, BSHD, Q_KV, TENSOR, "V: found a tensor", 0, call->V = call->K) \
    X(k_twice, BSHD, QKV, TENSOR, "K: found a tensor", 0, call->K = call->Q) \
    X(no_o, THD, QKV, TENSOR, "O: found NULL", 0, call->O = NULL) \
    X(no_lse, BSHD, Q_K_V, TENSOR, "lse: found NULL", 1, call->lse = NULL) \
    X(no_do, BSHD, Q_K_V, TENSOR, "dO: found NULL", 1, call->dO = NULL) \
    X(no_dk, SBHD, Q_KV, TENSOR, "dK: found NULL", 1, call->dK = NULL) \
    X(dv_twice, SBHD, Q_KV, TENSOR, "dV: found a tensor", 1, call->dV = call->dK)
/* clang-format on */

#define NAME(name, ...) name,
#define ROW(name, layout, pack, status, sentence, first, line)                                     \
    {WINDOW_##layout, WINDOW_##pack, WINDOW_BAD_##status, sentence, first},
#define MAKE(name, layout, pack, status, sentence, first, line)                                    \
    case name:                                                                                     \
        line;                                                                                      \
        break;

enum { MISTAKES(NAME) };

static const struct {
    WindowLayout layout;
    WindowPack pack;
    WindowStatus status;
    const char *sentence;
    int first;
} mistakes[] = {MISTAKES(ROW)};

static void make_mistake(int n, WindowConfig *c, WindowCall *call)
{
    switch (n) {
        MISTAKES(MAKE)
    }
}

static void assert_untouched(const Buffers *b, AttnDtype dtype)
{
    const int outputs[] = {AT_O, AT_DQ, AT_DK, AT_DV};
    for (int t = 0; t < 4; t++)
        for (int64_t byte = 0; byte < b->count[outputs[t]] * (int64_t)dtype_size(dtype); byte++)
            assert_int_equal(0xFF, ((const unsigned char *)b->at[outputs[t]])[byte]);
}

TEST(test_refusals)
{
    const Setting s = {"refused", 4, 2, 4, 1, 5, 0, 0, 1, 0, 1, 0, 0, 2, {12, 12}, {12, 12}};
    for (int n = 0; n < (int)(sizeof mistakes / sizeof *mistakes); n++)
        for (int backward = mistakes[n].first; backward < 2; backward++) {
            World *w = world_new(&s, (AttnDtype)(n % 3), 1);
            WindowConfig c = w->config;
            Buffers b;
            WindowCall call;
            WindowStatus status;
            char error[WINDOW_ERROR] = "";
            c.layout = mistakes[n].layout, c.pack = mistakes[n].pack;
            call = make_call(w, &c, &b);
            make_mistake(n, &c, &call);
            status = (backward ? sliding_window_offline_backward
                               : sliding_window_offline)(&c, &call, error);
            if (status != mistakes[n].status || strstr(error, mistakes[n].sentence) != error)
                print_message("%s: status %d, '%s'\n", mistakes[n].sentence, (int)status, error);
            assert_int_equal(mistakes[n].status, status);
            assert_ptr_equal(error, strstr(error, mistakes[n].sentence));
            assert_non_null(strstr(error, "accept"));
            assert_untouched(&b, c.dtype);
            /* no place for a sentence is no reason to fall over */
            assert_int_equal(status, (backward ? sliding_window_offline_backward
                                               : sliding_window_offline)(&c, &call, NULL));
            free_buffers(&b);
            world_free(w);
        }
}

TEST(test_no_structs)
{
    const WindowConfig c = WINDOW_CONFIG_DEFAULT;
    const WindowCall call = {0};
    char error[WINDOW_ERROR];
    assert_int_equal(WINDOW_BAD_CONFIG, sliding_window_offline(NULL, &call, error));
    assert_non_null(strstr(error, "config: found NULL"));
    assert_int_equal(WINDOW_BAD_CONFIG, sliding_window_offline_backward(&c, NULL, error));
    assert_non_null(strstr(error, "call: found NULL"));
    assert_int_equal(WINDOW_BAD_CONFIG, sliding_window_offline(&c, &call, error)); /* no heads */
}
