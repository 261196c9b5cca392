/* SPDX-License-Identifier: MIT
 *
 * test_window_stream: stage 05's stream, one token at a time against a rolling cache.
 *
 * - After every token the answer is that of plain loops over the tokens so far: windows of 0, 1,
 *   some and more than there are tokens, GQA, cap, temperature, normalisation, three dtypes, all
 *   widths d around a vector.
 * - A token that enters without a query counts like any other.
 * - A million tokens (fewer with ATTN_TEST_QUICK): memory stays what it was, and sampled answers
 *   are right, the last ones included.
 * - Every refusal.
 */
#include <math.h>

#include "alloc.h"
#include "attention/window/cpu/online_internal.h"
#include "harness/io/fill.h"
#include "window_run.h"

/* Token t of a tensor [1][s][heads][d]. */
static char *token_of(const Tensor *t, int64_t token)
{
    return (char *)t->data + (size_t)(token * t->stride[1]) * dtype_size(t->dtype);
}

/* The first `prompt` tokens enter without a query. */
static void try_stream(const WindowConfig *c, int64_t N, int64_t prompt, const char *label)
{
    WindowCase *w = window_case(c, 1, N, N);
    AttnArgs *a = &w->of.c->args;
    float *lse = malloc((size_t)c->heads_q * sizeof *lse);
    char error[WINDOW_ERROR] = "";
    WindowStream *s;
    assert_non_null(lse);
    assert_int_equal(WINDOW_OK, window_stream_create(&s, &w->config, 1, error));
    const int64_t bytes = window_stream_bytes(s), queries = N - prompt;
    for (int64_t t = 0; t < prompt; t++)
        assert_int_equal(WINDOW_OK,
                         window_stream_append(s, token_of(&a->K, t), token_of(&a->V, t)));
    for (int64_t t = prompt; t < N; t++) {
        const int64_t i = t - prompt;
        assert_int_equal(WINDOW_OK,
                         window_stream_step(s, token_of(&a->Q, i), token_of(&a->K, t),
                                            token_of(&a->V, t), token_of(&a->O, i), lse));
        for (int64_t h = 0; h < c->heads_q; h++)
            a->lse[h * queries + i] = lse[h];
        assert_int_equal(bytes, window_stream_bytes(s));
    }
    a->shape.Nq = a->Q.shape[1] = a->O.shape[1] = queries;
    w->of.c->segments_q[0] = (AttnSegment){0, queries, 0, prompt, 1};
    case_judge(w->of.c, 0, 4, 1, label);
    window_stream_destroy(s);
    free(lse);
    window_case_free(w);
}

TEST(test_every_prefix)
{
    static const int64_t windows[] = {0, 1, 2, 7, 30, 31, 32, 200};
    for (int n = 0; n < 8 * 3; n++) {
        const WindowConfig c = config_of((AttnDtype)(n % 3), 4, 2, 20, 1, windows[n / 3]);
        try_stream(&c, 90, n % 2 ? 0 : 13, "a window");
    }
}

TEST(test_every_width)
{
    static const int64_t widths[] = {1, 3, 8, 15, 16, 17, 33, 64, 100, 128, 130, 256, 1024};
    for (int n = 0; n < 13; n++) {
        const WindowConfig c = config_of((AttnDtype)(n % 3), 1, 1, widths[n], 1, 18);
        try_stream(&c, 45, 0, "a width");
    }
}

TEST(test_options)
{
    for (int n = 0; n < 16; n++) {
        WindowConfig c = config_of((AttnDtype)(n % 3), 6, n % 2 ? 3 : 1, 24, 1, 9);
        c.cap = n & 2 ? 1.5f : 0.0f;
        c.options.temperature = n & 4 ? 0.7f : 1.0f;
        c.options.norm_group = n & 8 ? 8 : 0;
        c.scale = n % 5 == 3 ? -0.4f : 0.0f;
        try_stream(&c, 40, 0, "an option");
    }
}

/* Batches are streams side by side. */
TEST(test_batches)
{
    const WindowConfig c = config_of(ATTN_F32, 2, 1, 8, 1, 5);
    char error[WINDOW_ERROR];
    WindowStream *both, *one[2];
    float q[2][2][8], k[2][8], v[2][8], o[2][2][8], lse[2][2], o_one[2][8], lse_one[2];
    assert_int_equal(WINDOW_OK, window_stream_create(&both, &c, 2, error));
    for (int b = 0; b < 2; b++)
        assert_int_equal(WINDOW_OK, window_stream_create(&one[b], &c, 1, error));
    for (int t = 0; t < 20; t++) {
        for (int x = 0; x < 32; x++)
            q[x / 16][x / 8 % 2][x % 8] = case_normal();
        for (int x = 0; x < 16; x++) {
            k[x / 8][x % 8] = case_normal();
            v[x / 8][x % 8] = case_normal();
        }
        assert_int_equal(WINDOW_OK, window_stream_step(both, q, k, v, o, lse[0]));
        for (int b = 0; b < 2; b++) {
            assert_int_equal(WINDOW_OK,
                             window_stream_step(one[b], q[b], k[b], v[b], o_one, lse_one));
            assert_memory_equal(o[b], o_one, sizeof o_one);
            assert_memory_equal(lse[b], lse_one, sizeof lse_one);
        }
    }
    window_stream_destroy(both);
    for (int b = 0; b < 2; b++)
        window_stream_destroy(one[b]);
}

/* --- a million tokens --------------------------------------------------------------------------*/

#define LONG_D      64
#define LONG_WINDOW 256

/* A cheap row that any token's turn can make again. */
static void long_row(int64_t t, int tensor, float row[LONG_D])
{
    for (uint64_t x = 0; x < LONG_D; x += 4) {
        const uint64_t word = fill_mix((uint64_t)t * 64 + x + ((uint64_t)tensor << 60));
        for (uint64_t part = 0; part < 4; part++)
            row[x + part] = (float)((int64_t)(word >> (16 * part) & 0xFFFF) - 32768) * 0x1p-14f;
    }
}

/* The answer to token t: plain loops in double over what its window holds. */
static void assert_long_row(int64_t t, const float *o, float lse)
{
    float q[LONG_D], k[LONG_D], v[LONG_D];
    double sum = 0, O[LONG_D] = {0};
    long_row(t, 1, q);
    for (int64_t j = t > LONG_WINDOW ? t - LONG_WINDOW : 0; j <= t; j++) {
        double s = 0;
        long_row(j, 2, k);
        long_row(j, 3, v);
        for (int x = 0; x < LONG_D; x++)
            s += (double)q[x] * (double)k[x] / 8;
        sum += exp(s);
        for (int x = 0; x < LONG_D; x++)
            O[x] += exp(s) * (double)v[x];
    }
    assert_true(fabs((double)lse - log(sum)) < 2e-5);
    for (int x = 0; x < LONG_D; x++)
        assert_true(fabs((double)o[x] - O[x] / sum) < 2e-5);
}

TEST(test_a_million_tokens)
{
    const int64_t N = quick() ? 20000 : 1000000; /* sanitizers, qemu */
    const WindowConfig c = config_of(ATTN_F32, 1, 1, LONG_D, 1, LONG_WINDOW);
    const size_t before = workspace_live();
    float q[LONG_D], k[LONG_D], v[LONG_D], o[LONG_D], lse;
    char error[WINDOW_ERROR];
    WindowStream *s;
    int checked = 0;
    assert_int_equal(WINDOW_OK, window_stream_create(&s, &c, 1, error));
    const int64_t bytes = window_stream_bytes(s);
    assert_true(bytes < 2 * (LONG_WINDOW + 32) * LONG_D * 4 + 4096); /* K, V and little else */
    const size_t live = workspace_live();
    /* what it says is what it took, and the object itself */
    assert_true((size_t)bytes > live - before && (size_t)bytes < live - before + 1024);
    workspace_reset_peak();
    for (int64_t t = 0; t < N; t++) {
        long_row(t, 1, q);
        long_row(t, 2, k);
        long_row(t, 3, v);
        assert_int_equal(WINDOW_OK, window_stream_step(s, q, k, v, o, &lse));
        if (t < 3 || t % 9973 == 0 || (t > 250 && t < 262) || t >= N - 20) {
            assert_long_row(t, o, lse);
            checked++;
        }
    }
    assert_true(checked > 30);
    assert_int_equal(bytes, window_stream_bytes(s));
    assert_int_equal(live, workspace_peak()); /* no step ever needed more */
    window_stream_destroy(s);
    assert_int_equal(before, workspace_live());
}

/* --- refusals ----------------------------------------------------------------------------------*/

static void refused(WindowConfig c, int64_t batch, WindowStatus status, const char *field)
{
    char error[WINDOW_ERROR] = "";
    WindowStream *s = (WindowStream *)error;
    assert_int_equal(status, window_stream_create(&s, &c, batch, error));
    assert_null(s);
    if (!strstr(error, field) || !strstr(error, "accepted"))
        fail_msg("'%s' does not name %s and what is accepted", error, field);
}

TEST(test_refusals)
{
    const WindowConfig good = config_of(ATTN_F32, 4, 2, 16, 1, 8);
    WindowConfig c = good;
    refused(good, 0, WINDOW_BAD_CONFIG, "batch");
    c.causal = 0;
    refused(c, 1, WINDOW_BAD_CONFIG, "causal");
    c = good, c.window = WINDOW_INFINITE;
    refused(c, 1, WINDOW_BAD_CONFIG, "window");
    c = good, c.options.dropout = 0.5f;
    refused(c, 1, WINDOW_BAD_CONFIG, "dropout");
    c = good, c.options.clip_high = 1.25f;
    refused(c, 1, WINDOW_BAD_CONFIG, "clip");
    c = good, c.heads_kv = 3;
    refused(c, 1, WINDOW_BAD_CONFIG, "heads_kv");
    c = good, c.window = INT64_C(1) << 56;
    refused(c, 1, WINDOW_NO_MEMORY, "window");
    c = good, c.window = INT64_MAX;
    refused(c, 1, WINDOW_NO_MEMORY, "window");
    refused(good, INT64_MAX, WINDOW_BAD_CONFIG, "batch");
    c = good, c.heads_q = c.heads_kv = INT64_C(1) << 62;
    refused(c, 4, WINDOW_BAD_CONFIG, "batch");
}

TEST(test_null_is_refused)
{
    const WindowConfig c = config_of(ATTN_F32, 1, 1, 4, 1, 2);
    float a[4] = {0}, lse;
    char error[WINDOW_ERROR];
    WindowStream *s;
    assert_int_equal(WINDOW_OK, window_stream_create(&s, &c, 1, error));
    assert_int_equal(WINDOW_BAD_TENSOR, window_stream_step(s, NULL, a, a, a, &lse));
    assert_int_equal(WINDOW_BAD_TENSOR, window_stream_step(s, a, NULL, a, a, &lse));
    assert_int_equal(WINDOW_BAD_TENSOR, window_stream_step(s, a, a, NULL, a, &lse));
    assert_int_equal(WINDOW_BAD_TENSOR, window_stream_step(s, a, a, a, NULL, &lse));
    assert_int_equal(WINDOW_BAD_TENSOR, window_stream_step(s, a, a, a, a, NULL));
    assert_int_equal(WINDOW_BAD_TENSOR, window_stream_step(NULL, a, a, a, a, &lse));
    window_stream_destroy(s);
    window_stream_destroy(NULL);
    assert_int_equal(0, window_stream_bytes(NULL));
    assert_int_equal(WINDOW_BAD_CONFIG, window_stream_create(&s, NULL, 1, error));
    assert_null(s);
    assert_int_equal(WINDOW_BAD_CONFIG, window_stream_create(NULL, &c, 1, error));
    assert_non_null(strstr(error, "out: found NULL, accepted"));
}
