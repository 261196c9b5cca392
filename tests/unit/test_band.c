/* SPDX-License-Identifier: MIT
 *
 * test_band.c: two numbers stand for the rule of positions (attn_band.h): every pair is seen or not
 * seen as attn_visible says, also where limits are the largest that there are and where positions
 * are far away from each other.
 */
#include "attn_band.h"
#include "attn_pairs.h"
#include "unit.h"

#define N 40

static int64_t rows_that_see;

static void try_band(AttnRule rule, int64_t q_position, int64_t k_position)
{
    const AttnSegment q = {0, N, 0, q_position, 1}, k = {0, N, 0, k_position, 1};
    const AttnArgs a = {.shape = {1, 1, 1, N, N, 1},
                        .rule = rule,
                        .positions_q = attn_positions(&q, 1),
                        .positions_k = attn_positions(&k, 1)};
    const AttnBand band = attn_band(&a);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            assert_int_equal(attn_sees(&a, i, j) != 0, i + band.from <= j && j <= i + band.to);
            rows_that_see += attn_sees(&a, i, j) && j == N - 1;
        }
    /* Kernels add an index below 2^30, and take the ends apart. */
    assert_true(band.from >= -(1 << 30) && band.from <= 1 << 30);
    assert_true(band.to >= -(1 << 30) && band.to <= 1 << 30);
}

TEST(test_a_band_is_the_rule)
{
    const int64_t far = (int64_t)1 << 33, most = (int64_t)1 << 60;
    const int64_t limits[] = {
        -1, 0, 1, 7, 30, 1000, 1 << 30, far - 3, far, far + 3, most, INT64_MAX - 1, INT64_MAX};
    const int64_t places[] = {0, 3, 25, -25, far, -far, most, -most};
    const int limit_count = sizeof limits / sizeof *limits;
    const int place_count = sizeof places / sizeof *places;
    for (int left = 0; left < limit_count; left++)
        for (int right = 0; right < limit_count; right++)
            for (int q = 0; q < place_count; q++)
                for (int k = 0; k < place_count; k++)
                    try_band((AttnRule){limits[left], limits[right]}, places[q], places[k]);
    assert_true(rows_that_see > 0);
}
