/* SPDX-License-Identifier: MIT
 *
 * test_window_steps: single steps of stage 05's online module: what they start from, what they
 * leave alone and what they refuse.
 *
 * - From a random state with empty rows in it, a traversal adds what the keys know.
 * - The coursework's own four steps, its tolerance beside our bound.
 * - A step changes the rows of its block and no other bit; a block outside the window is not even
 *   read.
 * - The same bits with any number of threads. Every refusal, and what its sentence names (of
 *   integers: test_window_ends).
 */
#include <math.h>

#include "window_run.h"

/* --- states ------------------------------------------------------------------------------------*/

TEST(test_from_any_state)
{
    try_states(traverse);
}

/* Rows i0 .. i1-1 of all heads may differ, nothing else. */
static void assert_other_rows_untouched(const Run *r, const void *O, const float *lse, int64_t i0,
                                        int64_t i1)
{
    const AttnShape *n = &r->c->args.shape;
    const size_t row = (size_t)(n->H * n->d) * dtype_size(r->c->args.O.dtype);
    for (int64_t i = 0; i < n->Nq; i++) {
        if (i >= i0 && i < i1)
            continue;
        assert_memory_equal((const char *)O + (size_t)i * row,
                            (char *)r->c->args.O.data + (size_t)i * row, row);
        for (int64_t h = 0; h < n->H; h++)
            assert_memory_equal(&lse[h * n->Nq + i], &r->c->lse[h * n->Nq + i], sizeof *lse);
    }
}

static void assert_close(double found, double expected)
{
    assert_true(found == expected || fabs(found - expected) <= 2e-3 + 5e-3 * fabs(expected));
}

/* Its own tolerance too: 2e-3 + 5e-3 |x|, made for float32 and bfloat16 alike. */
static void assert_coursework_tolerance(const Run *r, const Oracle *o)
{
    const AttnShape *n = &r->c->args.shape;
    for (int64_t row = 0; row < n->H * n->Nq; row++) {
        assert_close(r->c->lse[row], o->lse.value[row]);
        for (int64_t x = 0; x < n->d; x++)
            assert_close(case_get(&r->c->args.O, 0, row % n->Nq, row / n->Nq, x),
                         o->O.value[row * n->d + x]);
    }
}

/* What is expected of one block of pairs alone. */
static Oracle oracle_of_block(const WindowCase *w, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    AttnArgs a = w->of.c->args;
    uint8_t *mask = malloc((size_t)(a.shape.Nq * a.shape.Nk));
    assert_non_null(mask);
    for (int64_t i = 0; i < a.shape.Nq; i++)
        for (int64_t j = 0; j < a.shape.Nk; j++)
            mask[i * a.shape.Nk + j] = i < i0 || i >= i1 || j < j0 || j >= j1;
    a.mask = mask;
    Oracle oracle = oracle_of(&a, 0, 1);
    free(mask);
    return oracle;
}

/* sq, skv, block sizes, block indexes; the first two shapes leave the lengths open. */
TEST(test_steps_of_the_coursework)
{
    static const int64_t steps[4][6] = {{64, 64, 32, 32, 0, 0},
                                        {96, 192, 32, 16, 2, 8},
                                        {1088, 2080, 128, 64, 0, 32},
                                        {1090, 2100, 128, 128, 8, 16}};
    for (int n = 0; n < 8; n++) {
        const int64_t *s = steps[n % 4], i0 = s[4] * s[2], j0 = s[5] * s[3];
        const int64_t i1 = i0 + s[2] < s[0] ? i0 + s[2] : s[0];
        const int64_t j1 = j0 + s[3] < s[1] ? j0 + s[3] : s[1];
        const WindowConfig c = config_of(n / 4 ? ATTN_BF16 : ATTN_F32, 4, 2, 32, 1, 96);
        WindowCase *w = window_case(&c, 1, s[0], s[1]);
        Oracle oracle = oracle_of_block(w, i0, i1, j0, j1);
        Run r = run_new(w, s[2], s[3]);
        const size_t O_bytes = (size_t)tensor_count(&r.c->args.O) * dtype_size(c.dtype);
        void *O = malloc(O_bytes);
        float *lse = malloc(rows_bytes(&r));
        assert_true(O && lse);
        random_state(&r, &oracle);
        memcpy(O, r.c->args.O.data, O_bytes);
        memcpy(lse, r.c->lse, rows_bytes(&r));
        step(&r, s[4], s[5]);
        assert_other_rows_untouched(&r, O, lse, i0, n % 4 == 2 ? i0 : i1); /* a no-op */
        assert_run_right(&r, &oracle, "a step of the coursework");
        if (c.dtype == ATTN_F32) /* bfloat16 itself has no more than 4e-3 |x| */
            assert_coursework_tolerance(&r, &oracle);
        free(O);
        free(lse);
        run_free(&r);
        oracle_free(&oracle);
        window_case_free(w);
    }
}

/* Blocks left and right of the window: addresses that nobody may read or write. */
TEST(test_outside_the_window_nothing_is_read)
{
    const WindowConfig c = config_of(ATTN_F32, 1, 1, 8, 0, 8);
    WindowCase *w = window_case(&c, 1, 64, 64);
    Run r = run_new(w, 8, 8);
    char error[WINDOW_ERROR] = "";
    void *const nowhere = (void *)(uintptr_t)8;
    int steps = 0;
    for (int64_t i = 0; i < 8; i++)
        for (int64_t j = 0; j < 8; j++)
            if (j < i - 2 || j > i + 2) {
                assert_int_equal(WINDOW_OK,
                                 sliding_window_online_step(r.w, nowhere, nowhere, nowhere, nowhere,
                                                            nowhere, i, j, error));
                steps++;
            }
    assert_int_equal(30, steps);
    run_free(&r);
    window_case_free(w);
}

TEST(test_same_bits_with_threads)
{
    const WindowConfig c = config_of(ATTN_BF16, 4, 1, 64, 1, 300);
    WindowCase *w = window_case(&c, 1, 320, 333);
    void *O = NULL, *lse = NULL;
    for (w->config.threads = 1; w->config.threads <= 5; w->config.threads++) {
        Run r = run_new(w, 320, 320);
        traverse(&r);
        assert_repeats(&O, r.c->args.O.data, 320 * 4 * 64 * 2);
        assert_repeats(&lse, r.c->lse, rows_bytes(&r));
        run_free(&r);
    }
    free(O);
    free(lse);
    window_case_free(w);
}

/* --- refusals ----------------------------------------------------------------------------------*/

static WindowOnlineConfig good_config(void)
{
    return (WindowOnlineConfig){
        config_of(ATTN_F32, 4, 2, 16, 1, 8), 1, 20, 30, 8, 8, NULL, 0, NULL};
}

static void refused(WindowOnlineConfig c, WindowStatus status, const char *field)
{
    char error[WINDOW_ERROR] = "";
    SlidingWindowOnline *w = (SlidingWindowOnline *)error;
    assert_int_equal(status, sliding_window_online_create(&w, &c, error));
    assert_null(w);
    if (!strstr(error, field) || !strstr(error, "accepted") || strchr(error, '\n'))
        fail_msg("'%s' does not name %s and what is accepted", error, field);
    assert_int_equal(status, sliding_window_online_create(&w, &c, NULL));
}

#define REFUSED(field, name, value)                                                                \
    do {                                                                                           \
        WindowOnlineConfig c = good_config();                                                      \
        c.field = value;                                                                           \
        refused(c, WINDOW_BAD_CONFIG, name);                                                       \
    } while (0)

TEST(test_refusals)
{
    const float weights[64] = {0};
    REFUSED(base.heads_kv, "heads_kv", 3);
    REFUSED(base.scale, "scale", NAN);
    REFUSED(base.cap, "cap", -1.0f);
    REFUSED(base.options.temperature, "temperature", 0.0f);
    REFUSED(base.layout, "layout", WINDOW_SBHD);
    REFUSED(base.pack, "pack", WINDOW_QKV);
    REFUSED(base.options.clip_low, "clip", -0.1f);
    REFUSED(base.options.clip_high, "clip", 1.1f);
    REFUSED(base.options.dropout, "dropout", 0.25f);
    REFUSED(base.options.norm_group, "norm_group", 5);
    REFUSED(base.options.norm_group, "wq", 4);
    WindowOnlineConfig c = good_config();
    c.base.options.norm_group = 4;
    c.base.options.wq = weights;
    refused(c, WINDOW_BAD_CONFIG, "wk");
    c.base.options.wk = weights;
    c.base.options.norm_eps = 0.0f;
    refused(c, WINDOW_BAD_CONFIG, "norm_eps");
}

/* Products of sizes that 64 bits do not hold: a workspace of 0 bytes would be the result. */
TEST(test_sizes_that_nothing_holds_are_refused)
{
    REFUSED(seqlen_q, "seqlen_q", INT64_MAX);
    REFUSED(seqlen_kv, "seqlen_kv", INT64_MAX);
    REFUSED(block_size_q, "block_size_q", INT64_MAX);
    REFUSED(block_size_kv, "block_size_kv", INT64_MAX);
    REFUSED(batch, "batch", INT64_C(1) << 61);
    REFUSED(base.heads_q, "batch", INT64_C(1) << 62);
}

TEST(test_null_is_refused)
{
    const WindowOnlineConfig c = good_config();
    SlidingWindowOnline *w = (SlidingWindowOnline *)&c;
    float block[8 * 4 * 16] = {0}, O[20 * 4 * 16], lse[4 * 20];
    char error[WINDOW_ERROR];
    assert_int_equal(WINDOW_BAD_CONFIG, sliding_window_online_create(&w, NULL, error));
    assert_null(w);
    assert_non_null(strstr(error, "config: found NULL, accepted"));
    assert_int_equal(WINDOW_BAD_CONFIG, sliding_window_online_create(NULL, &c, error));
    assert_non_null(strstr(error, "out: found NULL, accepted"));
    assert_int_equal(WINDOW_BAD_TENSOR,
                     sliding_window_online_step(NULL, block, block, block, O, lse, 0, 0, error));
    assert_non_null(strstr(error, "w: found NULL, accepted"));
}

TEST(test_steps_that_are_refused)
{
    WindowOnlineConfig c = good_config(); /* 3 x 4 blocks */
    SlidingWindowOnline *w;
    static const int64_t outside[][2] = {{3, 0}, {-1, 0}, {0, 4}, {0, -1}};
    float block[8 * 4 * 16] = {0}, O[20 * 4 * 16], lse[4 * 20], O_before[20 * 4 * 16];
    char error[WINDOW_ERROR];
    memset(O, 0x55, sizeof O);
    memset(lse, 0x55, sizeof lse);
    memcpy(O_before, O, sizeof O);
    assert_int_equal(WINDOW_OK, sliding_window_online_create(&w, &c, error));
    for (int n = 0; n < 4; n++) {
        assert_int_equal(WINDOW_BAD_INDEX,
                         sliding_window_online_step(w, block, block, block, O, lse, outside[n][0],
                                                    outside[n][1], error));
        assert_non_null(strstr(error, n < 2 ? "block_idx_q" : "block_idx_kv"));
        assert_non_null(strstr(error, n < 2 ? "0 to 2" : "0 to 3"));
    }
    for (int n = 0; n < 5; n++) {
        static const char *const names[] = {"q_block", "k_block", "v_block", "global_o",
                                            "global_lse"};
        assert_int_equal(WINDOW_BAD_TENSOR,
                         sliding_window_online_step(w, n == 0 ? NULL : block, n == 1 ? NULL : block,
                                                    n == 2 ? NULL : block, n == 3 ? NULL : O,
                                                    n == 4 ? NULL : lse, 0, 0, error));
        assert_non_null(strstr(error, names[n]));
    }
    assert_memory_equal(O_before, O, sizeof O);
    sliding_window_online_destroy(w);
    sliding_window_online_destroy(NULL);
}
