/* SPDX-License-Identifier: MIT
 *
 * test_window_steps: single steps of stage 05's online module: what they start from, what they
 * leave alone and what they refuse.
 *
 * - From a random state with empty rows in it, a traversal adds what the keys know.
 * - The coursework's own four steps, its tolerance beside our bound.
 * - A step changes the rows of its block and no other bit; a block outside the window is not even
 *   read.
 * - The same bits with any number of threads. Every refusal, and what its sentence names.
 */
#include <math.h>

#include "window_run.h"

/* --- states ------------------------------------------------------------------------------------*/

TEST(test_from_any_state)
{
    for (int n = 0; n < 9; n++) {
        const WindowConfig c = config_of((AttnDtype)(n % 3), 2, 1, 11, n % 2, n < 6 ? 8 : -1);
        Plain *p = plain_new(&c, 2, 45, 30);
        Run r = run_new(p, 16, 8);
        random_state(&r);
        plain_attend(p, 0, 45, 0, 30);
        visits_set_order(VISIT_RANDOM, (uint64_t)n);
        traverse(&r);
        visits_set_order(VISIT_ROWS, 1);
        plain_check(p, &r.O.view, r.lse, r.Tc + 1, "a partial state");
        run_free(&r);
        plain_free(p);
    }
}

/* Rows i0 .. i1-1 of all heads may differ, nothing else. */
static void assert_other_rows_untouched(const Run *r, const void *O, const float *lse, int64_t i0,
                                        int64_t i1)
{
    const Plain *p = r->p;
    const size_t row = (size_t)(p->c.heads_q * p->c.head_dim) * dtype_size(p->c.dtype);
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t i = 0; i < p->sq; i++) {
            const size_t at = (size_t)(b * p->sq + i) * row;
            if (i >= i0 && i < i1)
                continue;
            assert_memory_equal((const char *)O + at, (char *)r->O.view.data + at, row);
            for (int64_t h = 0; h < p->c.heads_q; h++)
                assert_memory_equal(&lse[(b * p->c.heads_q + h) * p->sq + i],
                                    &r->lse[(b * p->c.heads_q + h) * p->sq + i], sizeof *lse);
        }
}

/* Its own tolerance too: 2e-3 + 5e-3 |x|, made for float32 and bfloat16 alike. */
static void assert_coursework_tolerance(const Run *r)
{
    const Plain *p = r->p;
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t h = 0; h < p->c.heads_q; h++)
            for (int64_t i = 0; i < p->sq; i++) {
                const int64_t row = (b * p->c.heads_q + h) * p->sq + i;
                const int64_t at = ((b * p->sq + i) * p->c.heads_q + h) * p->c.head_dim;
                if (p->lse[row] != -INFINITY)
                    assert_true(fabs((double)r->lse[row] - p->lse[row]) <=
                                2e-3 + 5e-3 * fabs(p->lse[row]));
                for (int64_t x = 0; x < p->c.head_dim; x++)
                    assert_true(fabs((double)case_get(&r->O.view, b, i, h, x) - p->O[at + x]) <=
                                2e-3 + 5e-3 * fabs(p->O[at + x]));
            }
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
        Plain *p = plain_new(&c, 1, s[0], s[1]);
        Run r = run_new(p, s[2], s[3]);
        const size_t O_bytes = (size_t)tensor_count(&r.O.view) * dtype_size(c.dtype);
        const size_t lse_bytes = (size_t)(4 * s[0]) * sizeof(float);
        void *O = malloc(O_bytes);
        float *lse = malloc(lse_bytes);
        assert_true(O && lse);
        random_state(&r);
        memcpy(O, r.O.view.data, O_bytes);
        memcpy(lse, r.lse, lse_bytes);
        step(&r, s[4], s[5]);
        assert_other_rows_untouched(&r, O, lse, i0, n % 4 == 2 ? i0 : i1); /* a no-op */
        plain_attend(p, i0, i1, j0, j1);
        plain_check(p, &r.O.view, r.lse, 1, "a step of the coursework");
        if (c.dtype == ATTN_F32) /* bfloat16 itself has no more than 4e-3 |x| */
            assert_coursework_tolerance(&r);
        free(O);
        free(lse);
        run_free(&r);
        plain_free(p);
    }
}

/* Blocks left and right of the window: addresses that nobody may read or write. */
TEST(test_outside_the_window_nothing_is_read)
{
    const WindowConfig c = config_of(ATTN_F32, 1, 1, 8, 0, 8);
    Plain *p = plain_new(&c, 1, 64, 64);
    Run r = run_new(p, 8, 8);
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
    plain_free(p);
}

TEST(test_same_bits_with_threads)
{
    const WindowConfig c = config_of(ATTN_BF16, 4, 1, 64, 1, 300);
    Plain *p = plain_new(&c, 1, 320, 333);
    Run first = run_new(p, 320, 320);
    traverse(&first);
    for (int threads = 2; threads <= 5; threads++) {
        p->c.threads = threads;
        Run r = run_new(p, 320, 320);
        traverse(&r);
        assert_memory_equal(first.O.view.data, r.O.view.data, 320 * 4 * 64 * 2);
        assert_memory_equal(first.lse, r.lse, 320 * 4 * sizeof(float));
        run_free(&r);
    }
    run_free(&first);
    plain_free(p);
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
    REFUSED(batch, "batch", 0);
    REFUSED(seqlen_q, "seqlen_q", 0);
    REFUSED(seqlen_kv, "seqlen_kv", -3);
    REFUSED(block_size_q, "block_size_q", 0);
    REFUSED(block_size_kv, "block_size_kv", 0);
    REFUSED(base.heads_q, "heads_q", 0);
    REFUSED(base.heads_kv, "heads_kv", 3);
    REFUSED(base.head_dim, "head_dim", 1025);
    REFUSED(base.dtype, "dtype", (AttnDtype)7);
    REFUSED(base.window, "window", -2);
    REFUSED(base.threads, "threads", 0);
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
