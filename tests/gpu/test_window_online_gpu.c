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

TEST(test_any_order_is_one_pass)
{
    try_orders(traverse_on_device, 8);
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
        try_blocks(window_case(&c, 1, lengths[n % 5][0], lengths[n % 5][1]), traverse_on_device, 1,
                   &blocks[n % 3], "a window");
    }
}

TEST(test_options)
{
    try_option_configs(traverse_on_device);
}

TEST(test_full_mask)
{
    try_full_masks(traverse_on_device);
}

TEST(test_from_any_state)
{
    try_states(traverse_on_device);
}

/* One step changes rows i0 .. i1-1 at most, and of these those that see a key. */
static void try_step(const WindowCase *w, int64_t i, int64_t j, int64_t i0, int64_t i1,
                     int *changed)
{
    Run host = run_new(w, 8, 8);
    const Case *c = host.c;
    const AttnShape *n = &c->args.shape;
    float *lse = malloc(rows_bytes(&host));
    unsigned char *O = malloc(c->O.bytes);
    assert_true(lse && O);
    random_state(&host, NULL);
    memcpy(lse, c->lse, rows_bytes(&host));
    memcpy(O, c->O.base, c->O.bytes);
    DeviceRun r = device_run_new(&host);
    device_step(&r, i, j);
    state_down(&r);
    *changed = 0;
    for (int64_t row = 0; row < n->B * n->H * n->Nq; row++) {
        const int64_t b = row / (n->H * n->Nq), h = row / n->Nq % n->H, at = row % n->Nq;
        const size_t size = dtype_size(c->O.view.dtype);
        const unsigned char *now =
            (unsigned char *)c->O.view.data + (size_t)tensor_offset(&c->O.view, b, at, h) * size;
        const int same = memcmp(&lse[row], &c->lse[row], sizeof *lse) == 0 &&
                         memcmp(O + (now - c->O.base), now, (size_t)n->d * size) == 0;
        assert_true(same || (at >= i0 && at < i1));
        *changed += !same;
    }
    free(lse);
    free(O);
    device_run_free(&r);
    run_free(&host);
}

TEST(test_a_step_changes_what_sees_a_key)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        const WindowConfig c = config_of((AttnDtype)dtype, 2, 1, 10, 1, 3);
        WindowCase *w = window_case(&c, 2, 21, 21);
        int changed;
        /* rows 16 .. 18 see keys 13 .. 15 of block 1; rows 19, 20 see none of it */
        try_step(w, 2, 1, 16, 19, &changed);
        assert_int_equal(2 * 2 * 3, changed);
        try_step(w, 2, 2, 16, 21, &changed); /* both blocks ragged */
        assert_int_equal(2 * 2 * 5, changed);
        try_step(w, 0, 2, 0, 0, &changed); /* the future */
        assert_int_equal(0, changed);
        window_case_free(w);
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
