/* SPDX-License-Identifier: MIT
 *
 * test_window_online: stage 05's online module. Blocks of attention, added one at a time in place,
 * are the attention over all of them, in whatever order they come.
 *
 * - The four orders by hand; every order visits every block once.
 * - All blocks in the four orders and in 50 random ones, three dtypes, ragged last blocks whose
 *   padding is NaN.
 * - Windows of 0, 1, some, more than there are keys; more queries than keys and the reverse; every
 *   option of the module; a full mask with blocks and rows that see nothing.
 */
#include "window_run.h"

/* --- orders ------------------------------------------------------------------------------------*/

static void assert_order(VisitOrder order, const int64_t want[6])
{
    int64_t visits[6];
    visits_set_order(order, 1);
    visits_fill(2, 3, visits);
    for (int t = 0; t < 6; t++)
        assert_int_equal(want[t], visits[t]);
}

TEST(test_orders_by_hand)
{
    assert_order(VISIT_ROWS, (int64_t[]){0, 1, 2, 3, 4, 5});
    assert_order(VISIT_COLUMNS, (int64_t[]){0, 3, 1, 4, 2, 5});
    assert_order(VISIT_DIAGONAL, (int64_t[]){0, 4, 1, 5, 2, 3});
    visits_set_order(VISIT_ROWS, 1);
}

/* Every block once, and another seed gives another order. */
TEST(test_an_order_is_a_permutation)
{
    int64_t visits[35], first[35];
    int others = 0;
    for (int trial = 0; trial < 23; trial++) {
        int seen[35] = {0};
        visits_set_order(trial < 3 ? (VisitOrder)trial : VISIT_RANDOM, (uint64_t)trial);
        visits_fill(5, 7, visits);
        for (int t = 0; t < 35; t++) {
            assert_in_range(visits[t], 0, 34);
            assert_int_equal(0, seen[visits[t]]++);
        }
        if (trial == 3)
            memcpy(first, visits, sizeof first);
        others += trial > 3 && memcmp(first, visits, sizeof first) != 0;
    }
    assert_int_equal(19, others);
    visits_set_order(VISIT_ROWS, 1);
}

TEST(test_any_order_is_one_pass)
{
    try_orders(traverse, 53);
}

/* --- options and shapes ------------------------------------------------------------------------*/

TEST(test_windows_and_lengths)
{
    static const int64_t windows[] = {WINDOW_INFINITE, 0, 1, 6, 40, 1000000, INT64_MAX};
    static const int64_t lengths[][2] = {{33, 33}, {50, 21}, {21, 50}, {1, 40}, {40, 1}};
    static const int64_t blocks[][2] = {{8, 8}, {16, 5}, {64, 64}, {1, 50}, {50, 1}};
    for (int n = 0; n < 7 * 5 * 2; n++) {
        const WindowConfig c = config_of((AttnDtype)(n % 3), 2, 1, 9, n / 35, windows[n / 5 % 7]);
        try_blocks(window_case(&c, 1, lengths[n % 5][0], lengths[n % 5][1]), traverse, 5, blocks,
                   "a window");
    }
}

TEST(test_options)
{
    try_option_configs(traverse);
}

TEST(test_full_mask)
{
    try_full_masks(traverse);
}
