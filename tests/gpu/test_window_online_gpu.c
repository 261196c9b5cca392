/* SPDX-License-Identifier: MIT
 *
 * test_window_online_gpu: the online module of stage 05 on the device, as test_window_online and
 * test_window_steps have it on the host: blocks, weights and mask are device pointers, and so is
 * the global state that steps update in place.
 *
 * - All blocks in the four orders and in random ones, three dtypes, ragged last blocks whose
 *   padding is NaN; windows, lengths, every option of the module, a full mask.
 * - Any state to start from, empty rows among it.
 * - A block outside the window is not even read; a row that sees nothing keeps its bits; nothing
 *   outside the block's rows is written.
 * - What the device refuses.
 */
#include "gpu_main.h"
#include "window_device.h"

/* --- orders, options ---------------------------------------------------------------------------*/

TEST(test_any_order_is_one_pass)
{
    for (int n = 0; n < 6; n++) {
        const WindowConfig c = config_of((AttnDtype)(n % 3), 4, 2, 12, n < 3, n < 3 ? 17 : 9);
        Plain *p = plain_new(&c, 2, 37, 53);
        DeviceRun r = device_run_new(p, 8, 7 + n % 2);
        plain_attend(p, 0, 37, 0, 53);
        for (int order = 0; order < 8; order++) {
            visits_set_order(order < 3 ? (VisitOrder)order : VISIT_RANDOM, (uint64_t)order);
            clear_state(&r.host);
            device_traverse(&r);
            plain_check(p, &r.host.O.view, r.host.lse, r.host.Tc, "an order");
            assert_true(tensor_intact(&r.host.O));
        }
        device_run_free(&r);
        plain_free(p);
    }
    visits_set_order(VISIT_ROWS, 1);
}

static void try_once(Plain *p, int64_t bq, int64_t bkv, const char *label)
{
    DeviceRun r = device_run_new(p, bq, bkv);
    plain_start(p);
    plain_attend(p, 0, p->sq, 0, p->skv);
    visits_set_order(VISIT_RANDOM, (uint64_t)(bq * bkv));
    device_traverse(&r);
    visits_set_order(VISIT_ROWS, 1);
    plain_check(p, &r.host.O.view, r.host.lse, r.host.Tc, label);
    device_run_free(&r);
}

/* Blocks of one row and of more rows than a thread block has; d past one lane's channels. */
TEST(test_windows_and_lengths)
{
    static const int64_t windows[] = {WINDOW_INFINITE, 0, 1, 6, 1000000};
    static const int64_t lengths[][2] = {{33, 33}, {70, 21}, {21, 70}, {1, 40}, {40, 1}};
    static const int64_t blocks[][2] = {{8, 5}, {64, 64}, {1, 50}};
    for (int n = 0; n < 5 * 5; n++) {
        const int64_t d = n % 4 == 0 ? 9 : n % 4 == 1 ? 64 : n % 4 == 2 ? 130 : 256;
        const WindowConfig c = config_of((AttnDtype)(n % 3), 2, 1, d, n % 2, windows[n / 5]);
        Plain *p = plain_new(&c, 1, lengths[n % 5][0], lengths[n % 5][1]);
        try_once(p, blocks[n % 3][0], blocks[n % 3][1], "a window");
        plain_free(p);
    }
}

TEST(test_options)
{
    for (int n = 0; n < OPTION_CONFIGS; n++) {
        const WindowConfig c = option_config(n);
        Plain *p = plain_new(&c, 1, 30, 41);
        try_once(p, 8, 12, "an option");
        plain_free(p);
    }
}

TEST(test_full_mask)
{
    for (int n = 0; n < 6; n++) {
        const WindowConfig c = config_of((AttnDtype)(n % 3), 2, 2, 20, n / 3, n % 2 ? 15 : -1);
        Plain *p = plain_new(&c, 2, 43, 50);
        uint8_t *mask = mask_for(p);
        try_once(p, 8, 8, "a full mask");
        free(mask);
        plain_free(p);
    }
}

/* --- states ------------------------------------------------------------------------------------*/

TEST(test_from_any_state)
{
    for (int n = 0; n < 9; n++) {
        const WindowConfig c = config_of((AttnDtype)(n % 3), 2, 1, 11, n % 2, n < 6 ? 8 : -1);
        Plain *p = plain_new(&c, 2, 45, 30);
        DeviceRun r = device_run_new(p, 16, 8);
        random_state(&r.host);
        plain_attend(p, 0, 45, 0, 30);
        visits_set_order(VISIT_RANDOM, (uint64_t)n);
        device_traverse(&r);
        visits_set_order(VISIT_ROWS, 1);
        plain_check(p, &r.host.O.view, r.host.lse, r.host.Tc + 1, "a partial state");
        device_run_free(&r);
        plain_free(p);
    }
}

/* One step changes rows i0 .. i1-1 at most, and of these those that see a key. */
static void try_step(Plain *p, int64_t i, int64_t j, int64_t i0, int64_t i1, int *changed)
{
    const int64_t hq = p->c.heads_q, d = p->c.head_dim, rows = p->B * hq * p->sq;
    DeviceRun r = device_run_new(p, 8, 8);
    float *lse = malloc(r.lse_bytes);
    unsigned char *O = malloc(r.O_bytes);
    assert_true(lse && O);
    random_state(&r.host);
    memcpy(lse, r.host.lse, r.lse_bytes);
    memcpy(O, r.host.O.base, r.O_bytes);
    state_up(&r);
    device_step(&r, i, j);
    state_down(&r);
    *changed = 0;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t b = row / (hq * p->sq), h = row / p->sq % hq, n = row % p->sq;
        const size_t bytes = (size_t)d * dtype_size(p->c.dtype);
        const unsigned char *now =
            (unsigned char *)r.host.O.view.data +
            (size_t)tensor_offset(&r.host.O.view, b, n, h) * dtype_size(p->c.dtype);
        const int same = memcmp(&lse[row], &r.host.lse[row], sizeof *lse) == 0 &&
                         memcmp(O + (now - r.host.O.base), now, bytes) == 0;
        assert_true(same || (n >= i0 && n < i1));
        *changed += !same;
    }
    free(lse);
    free(O);
    device_run_free(&r);
}

TEST(test_a_step_changes_what_sees_a_key)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        const WindowConfig c = config_of((AttnDtype)dtype, 2, 1, 10, 1, 3);
        Plain *p = plain_new(&c, 2, 21, 21);
        int changed;
        /* rows 16 .. 18 see keys 13 .. 15 of block 1; rows 19, 20 see none of it */
        try_step(p, 2, 1, 16, 19, &changed);
        assert_int_equal(2 * 2 * 3, changed);
        try_step(p, 2, 2, 16, 21, &changed); /* both blocks ragged */
        assert_int_equal(2 * 2 * 5, changed);
        try_step(p, 0, 2, 0, 0, &changed); /* the future */
        assert_int_equal(0, changed);
        plain_free(p);
    }
}

/* Addresses that nobody may read. */
TEST(test_a_block_outside_is_not_read)
{
    const WindowConfig c = config_of(ATTN_F32, 1, 1, 8, 1, 2);
    const WindowOnlineConfig config = {c, 1, 64, 64, 8, 8, NULL, 1, NULL};
    char error[WINDOW_ERROR], *nowhere = (char *)64;
    SlidingWindowOnline *w;
    assert_int_equal(WINDOW_OK, sliding_window_online_create(&w, &config, error));
    for (int j = 1; j < 8; j++)
        assert_int_equal(WINDOW_OK,
                         sliding_window_online_step(w, nowhere, nowhere, nowhere, nowhere,
                                                    (float *)(void *)nowhere, 0, j, error));
    assert_int_equal(0, device_synchronize());
    sliding_window_online_destroy(w);
}

TEST(test_what_the_device_refuses)
{
    const WindowConfig c = config_of(ATTN_F32, 1, 1, 300, 1, 2);
    const WindowOnlineConfig config = {c, 1, 64, 64, 8, 8, NULL, 1, NULL};
    char error[WINDOW_ERROR] = "";
    SlidingWindowOnline *w;
    assert_int_equal(WINDOW_NOT_SUPPORTED, sliding_window_online_create(&w, &config, error));
    assert_null(w);
    assert_non_null(strstr(error, "head_dim"));
    assert_non_null(strstr(error, "300"));
}
