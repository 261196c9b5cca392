/* SPDX-License-Identifier: MIT
 *
 * test_window_refusals: what the offline module does not compute. Each refusal has its status, one
 * sentence that begins with the field and what was found there, and it comes before anything was
 * written.
 */
#include "window_call.h"

/* One mistake in a call that is right otherwise: its layout and pack, who makes it, and what the
 * sentence says. */
typedef struct Mistake {
    WindowLayout layout;
    WindowPack pack;
    void (*make)(WindowConfig *c, WindowCall *call);
    WindowStatus status;
    const char *sentence;
    int first; /* 1: only a backward call is refused for it */
} Mistake;

#define MISTAKE(name, line)                                                                        \
    static void name(WindowConfig *c, WindowCall *call)                                            \
    {                                                                                              \
        (void)c, (void)call;                                                                       \
        line;                                                                                      \
    }

static const int32_t cu_late[] = {1, 12, 24}, cu_falls[] = {0, 25, 24}, cu_short[] = {0, 12, 23};
static const int32_t cu_other[] = {0, 11, 24};

MISTAKE(bad_dtype, c->dtype = (AttnDtype)3)
MISTAKE(no_heads, c->heads_q = 0)
MISTAKE(heads_do_not_divide, c->heads_kv = 3)
MISTAKE(no_channels, c->head_dim = 0)
MISTAKE(many_channels, c->head_dim = 1025)
MISTAKE(negative_window, c->window = -2)
MISTAKE(no_threads, c->threads = 0)
MISTAKE(scale_is_nan, c->scale = NAN)
MISTAKE(negative_cap, c->cap = -1)
MISTAKE(temperature_is_zero, c->options.temperature = 0)
MISTAKE(low_above_zero, c->options.clip_low = 0.1f)
MISTAKE(low_is_nan, c->options.clip_low = NAN)
MISTAKE(high_below_one, c->options.clip_high = 0.9f)
MISTAKE(high_is_infinite, c->options.clip_high = INFINITY)
MISTAKE(everything_dropped, c->options.dropout = 1)
MISTAKE(negative_dropout, c->options.dropout = -0.1f)
MISTAKE(dropout_is_nan, c->options.dropout = NAN)
MISTAKE(group_does_not_divide, c->options.norm_group = 3)
MISTAKE(negative_group, c->options.norm_group = -1)
MISTAKE(no_weights, (c->options.norm_group = 2, c->options.wk = NULL))
MISTAKE(negative_eps, (c->options.norm_group = 2, c->options.norm_eps = -1))
MISTAKE(bad_layout, c->layout = (WindowLayout)3)
MISTAKE(bad_pack, c->pack = (WindowPack)7)
MISTAKE(no_batch, call->batch = 0)
MISTAKE(no_queries, call->seqlen_q = 0)
MISTAKE(no_keys, call->seqlen_kv = -4)
MISTAKE(too_large, (call->batch = INT64_MAX / 4, call->seqlen_q = 1000))
MISTAKE(other_lengths, call->seqlen_kv = 11)
MISTAKE(cu_without_thd, call->cu_seqlens_kv = cu_late)
MISTAKE(no_cu, call->cu_seqlens_q = NULL)
MISTAKE(cu_starts_late, call->cu_seqlens_q = cu_late)
MISTAKE(cu_runs_back, call->cu_seqlens_kv = cu_falls)
MISTAKE(cu_ends_early, call->cu_seqlens_kv = cu_short)
MISTAKE(cu_differ, call->cu_seqlens_kv = cu_other)
MISTAKE(no_q, call->Q = NULL)
MISTAKE(no_v, call->V = NULL)
MISTAKE(v_twice, call->V = call->K)
MISTAKE(k_twice, call->K = call->Q)
MISTAKE(no_o, call->O = NULL)
MISTAKE(no_lse, call->lse = NULL)
MISTAKE(no_do, call->dO = NULL)
MISTAKE(no_dk, call->dK = NULL)
MISTAKE(dv_twice, call->dV = call->dK)

#define CONFIG WINDOW_BAD_CONFIG
#define TENSOR WINDOW_BAD_TENSOR

static const Mistake mistakes[] = {
    {WINDOW_BSHD, WINDOW_Q_K_V, bad_dtype, CONFIG, "dtype: found 3", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, no_heads, CONFIG, "heads_q: found 0", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, heads_do_not_divide, CONFIG, "heads_kv: found 3", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, no_channels, CONFIG, "head_dim: found 0", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, many_channels, CONFIG, "head_dim: found 1025", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, negative_window, CONFIG, "window: found -2", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, no_threads, CONFIG, "threads: found 0", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, scale_is_nan, CONFIG, "scale: found nan", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, negative_cap, CONFIG, "cap: found -1", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, temperature_is_zero, CONFIG, "temperature: found 0", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, low_above_zero, CONFIG, "clip_low: found 0.1", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, low_is_nan, CONFIG, "clip_low: found nan", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, high_below_one, CONFIG, "clip_high: found 0.9", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, high_is_infinite, CONFIG, "clip_high: found inf", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, everything_dropped, CONFIG, "dropout: found 1", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, negative_dropout, CONFIG, "dropout: found -0.1", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, dropout_is_nan, CONFIG, "dropout: found nan", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, group_does_not_divide, CONFIG, "norm_group: found 3", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, negative_group, CONFIG, "norm_group: found -1", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, no_weights, CONFIG, "wk: found NULL", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, negative_eps, CONFIG, "norm_eps: found -1", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, bad_layout, CONFIG, "layout: found 3", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, bad_pack, CONFIG, "pack: found 7", 0},
    {WINDOW_SBHD, WINDOW_Q_K_V, no_batch, TENSOR, "batch: found 0", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, no_queries, TENSOR, "seqlen_q: found 0", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, no_keys, TENSOR, "seqlen_kv: found -4", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, too_large, TENSOR, "batch and seqlen: found", 0},
    {WINDOW_BSHD, WINDOW_QKV, other_lengths, TENSOR, "seqlen_kv: found 11", 0},
    {WINDOW_SBHD, WINDOW_Q_K_V, cu_without_thd, TENSOR, "cu_seqlens_kv: found an array", 0},
    {WINDOW_THD, WINDOW_Q_K_V, no_cu, TENSOR, "cu_seqlens_q: found NULL", 0},
    {WINDOW_THD, WINDOW_Q_K_V, cu_starts_late, TENSOR, "cu_seqlens_q[0]: found 1", 0},
    {WINDOW_THD, WINDOW_Q_K_V, cu_runs_back, TENSOR, "cu_seqlens_kv[2]: found 24", 0},
    {WINDOW_THD, WINDOW_Q_K_V, cu_ends_early, TENSOR, "cu_seqlens_kv[2]: found 23", 0},
    {WINDOW_THD, WINDOW_QKV, cu_differ, TENSOR, "cu_seqlens_kv[1]: found 11", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, no_q, TENSOR, "Q: found NULL", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, no_v, TENSOR, "V: found NULL", 0},
    {WINDOW_BSHD, WINDOW_Q_KV, v_twice, TENSOR, "V: found a tensor", 0},
    {WINDOW_BSHD, WINDOW_QKV, k_twice, TENSOR, "K: found a tensor", 0},
    {WINDOW_THD, WINDOW_QKV, no_o, TENSOR, "O: found NULL", 0},
    {WINDOW_BSHD, WINDOW_Q_K_V, no_lse, TENSOR, "lse: found NULL", 1},
    {WINDOW_BSHD, WINDOW_Q_K_V, no_do, TENSOR, "dO: found NULL", 1},
    {WINDOW_SBHD, WINDOW_Q_KV, no_dk, TENSOR, "dK: found NULL", 1},
    {WINDOW_SBHD, WINDOW_Q_KV, dv_twice, TENSOR, "dV: found a tensor", 1},
};

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
            mistakes[n].make(&c, &call);
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

TEST(test_status_texts)
{
    for (int a = WINDOW_OK; a <= WINDOW_FAILED; a++) {
        assert_string_not_equal("unknown status", sliding_window_status_text((WindowStatus)a));
        for (int b = WINDOW_OK; b < a; b++)
            assert_string_not_equal(sliding_window_status_text((WindowStatus)b),
                                    sliding_window_status_text((WindowStatus)a));
    }
    assert_string_equal("unknown status", sliding_window_status_text((WindowStatus)99));
}
