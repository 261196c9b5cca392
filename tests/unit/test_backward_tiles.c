/* SPDX-License-Identifier: MIT
 *
 * test_backward_tiles: what stage 04 says about its tiles.
 *
 * - The counters of v0 and v1 equal models/model.c for every option, dtype and grouping
 *   that they take, whatever the number of threads, which does not change a bit of the gradients
 *   (but for OpenBLAS: a product that it cuts for two threads may have other bits, so it has one).
 * - Each formula on a case worked out by hand.
 * - Twice the queries and keys: twice the memory in work, where stage 01's grows fourfold.
 * - --trace ends in the oracle's gradients.
 */
#include <math.h>

#include "gradient_blocks.h"
#ifdef _OPENMP
#include <omp.h>
#endif

#include "alloc.h"
#include "attention/rows.h"
#include "harness/check/check.h"
#include "harness/models/model.h"
#include "harness/report/pages.h"
#include "harness/rung.h"
#include "problem_rows.h"

STAGE_TRACE(flash_backward);
RUNG_FN(naive, v0_loops)
RUNG_FN(flash_backward, v0_fa1_backward)
RUNG_FN(flash_backward, v1_fa2_backward)

/* --- traffic -----------------------------------------------------------------------------------*/

/* A rung moves float32, whatever the tensors hold. */
static void assert_traffic(AccessCounts counted, ModelTraffic model)
{
    assert_true((double)counted.loads == model.loads);
    assert_true((double)counted.stores == model.stores);
    assert_true(4.0 * (double)counted.loads == model.load_bytes);
    assert_true(4.0 * (double)counted.stores == model.store_bytes);
}

static AccessCounts count(const Rung *rung, const Case *c)
{
    AccessCounts counted;
    assert_int_equal(ATTN_OK, rung_count(rung, &c->args, 1, 0, &counted));
    return counted;
}

/* Of v1's keys: for 16 tasks if there are so many tiles. */
static int64_t parts_of(const AttnShape *n)
{
    const int64_t tiles = (n->Nk + 63) / 64, wanted = (15 + n->B * n->Hkv) / (n->B * n->Hkv);
    return tiles < wanted ? tiles : wanted;
}

/* Bits of the three gradients, in the order of the tensors. */
static uint64_t gradient_bits(const Case *c)
{
    const Tensor *all[] = {&c->args.dQ, &c->args.dK, &c->args.dV};
    uint64_t bits = 0;
    for (int n = 0; n < 3; n++)
        for (int64_t b = 0; b < all[n]->shape[0]; b++)
            for (int64_t r = 0; r < all[n]->shape[1]; r++)
                for (int64_t h = 0; h < all[n]->shape[2]; h++)
                    for (int64_t x = 0; x < all[n]->shape[3]; x++) {
                        const float value = case_get(all[n], b, r, h, x);
                        uint32_t word;
                        memcpy(&word, &value, sizeof word);
                        bits = bits * UINT64_C(0x9E3779B97F4A7C15) + word + 1;
                    }
    return bits;
}

static void count_both(Case *c)
{
    const Rung *v0 = &rung_flash_backward_v0_fa1_backward;
    const Rung *v1 = &rung_flash_backward_v1_fa2_backward;
    uint64_t fa1 = 0, fa2 = 0;
#ifdef _OPENMP
    omp_set_num_threads(1); /* OpenBLAS's; the rungs name their own number */
#endif
    free(run_forward(c));
    AttnArgs f32 = c->args;
    f32.Q.dtype = ATTN_F32;
    for (c->args.threads = 1; c->args.threads <= 3; c->args.threads += 2) {
        if (!rung_skips(v0, ON_CPU, &c->args)) {
            assert_traffic(count(v0, c), model_fa1_backward_traffic(&f32, 64, 64));
            assert_true(c->args.threads == 1 || gradient_bits(c) == fa1);
            fa1 = gradient_bits(c);
        }
        if (!rung_skips(v1, ON_CPU, &c->args)) {
            assert_traffic(count(v1, c),
                           model_fa2_backward_traffic(&f32, 64, 64, parts_of(&f32.shape)));
            assert_true(c->args.threads == 1 || gradient_bits(c) == fa2);
            fa2 = gradient_bits(c);
        }
    }
}

TEST(test_counted_is_the_models)
{
    for (int n = 0; n < OPTION_COUNT; n += quick() ? 3 : 1) /* odd ones are the large ones */
        for (int dtype = quick() ? n / 3 % 3 : 0; dtype < 3; dtype += quick() ? 3 : 1) {
            Case *c = case_option(&options[n], (AttnDtype)dtype, n % 2 ? 25 : 1, 1);
            count_both(c);
            case_free(c);
        }
    for (int group = 1; group <= 4; group *= 2) { /* several parts, ragged tiles, skipped ones */
        Case *c = case_new((AttnShape){1, 4, 4 / group, 150, 700, 12}, ATTN_BF16, LAYOUT_BSHD, 1);
        case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
        c->args.rule.left = 40;
        count_both(c);
        assert_true(parts_of(&c->args.shape) > 1);
        case_free(c);
    }
}

/* 2 query heads on 1 kv head; 3 tiles of 4 queries, 2 of 16 keys. Without a mask each of the 2 key
 * tiles asks for 10 rows: 20; with lower right, rows 0-3 (to key 13) see the first only: 16 rows,
 * and 16 + 20 + 20 keys by rows. q = 80, k = 80 for a query head. */
TEST(test_formulas_by_hand)
{
    Case *c = case_new((AttnShape){1, 2, 1, 10, 20, 8}, ATTN_BF16, LAYOUT_BSHD, 1);
    const double q = 80, k = 80, lse = 10;
    ModelTraffic t;
    t = model_fa1_backward_traffic(&c->args, 4, 16);
    assert_true(t.loads == 2 * (2 * k + 20 * 8 * 3 + 20 * 9 + q));
    assert_true(t.stores == 2 * (q + 2 * k + q + 20 * 8));
    assert_true(t.load_bytes == 2 * (2 * (2 * k + 20 * 8 * 3) + 4 * (20 * 9 + q)));
    assert_true(t.store_bytes == 2 * (2 * (q + 2 * k) + 4 * (q + 20 * 8)));
    t = model_fa2_backward_traffic(&c->args, 4, 16, 3);
    assert_true(t.load_bytes == 2 * (2 * (2 * q + 2 * k + 20 * 16) + 4 * (20 * 10 + 3 * q)));
    assert_true(t.store_bytes == 2 * (4 * (lse + 3 * q + 20 * 8) + 2 * (q + 2 * k)));
    /* sums in float32, and 4 copies of Q and dO: written once, read in place of 16 elements */
    t = model_packed_backward_traffic(&c->args, 4, 16, 3);
    assert_true(t.load_bytes == 2 * (2 * (2 * q + 2 * q + 2 * k) + 4 * (20 * 32 + 20 * 10) +
                                     4 * (2 * k + 4 * q + q + 2 * k)));
    assert_true(t.store_bytes ==
                2 * (4 * (lse + 4 * q + 4 * q + 2 * k + 20 * 8 + 2 * k + q) + 2 * (q + 2 * k)));
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    t = model_atomic_backward_traffic(&c->args, 4, 16, 1);
    assert_true(t.load_bytes == 2 * (2 * (2 * q + 2 * k + 16 * 16) + 4 * (q + 16 * 10)));
    assert_true(t.store_bytes == 2 * (2 * (q + 2 * k) + 4 * (lse + q + 16 * 8)));
    assert_true(model_atomic_backward_traffic(&c->args, 4, 16, 0).load_bytes - t.load_bytes ==
                2 * 4 * 4 * k);
    assert_true(model_atomic_backward_traffic(&c->args, 4, 16, 0).store_bytes - t.store_bytes ==
                2 * 4 * 4 * k);
    t = model_two_kernels_backward_traffic(&c->args, 4, 16);
    assert_true(t.load_bytes ==
                2 * (2 * (4 * q + 56 * 16 + 2 * k + 16 * 16) + 4 * (2 * lse + 2 * 16)));
    assert_true(t.store_bytes == 2 * (2 * (q + 2 * k) + 4 * lse));
    case_free(c);
}

/* --- memory ------------------------------------------------------------------------------------*/

/* Most bytes that a pass over N queries and keys holds at once. */
static double peak_of(AttnFn backward, int64_t N)
{
    Case *c = case_new((AttnShape){1, 1, 1, N, N, 16}, ATTN_F32, LAYOUT_BSHD, 1);
    double peak;
    c->args.threads = 2;
    free(run_forward(c));
    workspace_reset_peak();
    assert_int_equal(ATTN_OK, backward(&c->args));
    peak = (double)workspace_peak();
    assert_true(peak > 0);
    case_free(c);
    return peak;
}

TEST(test_memory_grows_as_N)
{
    static const AttnFn passes[] = {flash_backward_v0_fa1_backward_backward,
                                    flash_backward_v1_fa2_backward_backward,
                                    flash_backward_library_cpu};
    for (int p = 0; p < 3; p++)
        assert_true(peak_of(passes[p], 2048) < 2.2 * peak_of(passes[p], 1024));
    assert_true(peak_of(naive_v0_loops_backward, 256) > 3 * peak_of(naive_v0_loops_backward, 128));
}

/* --- trace -------------------------------------------------------------------------------------*/

static double worst; /* of the numbers printed with four decimals */

/* Numbers of one gradient from a line of the end table; dQ has none in rows past the last. */
static char *read_row(char *at, const Case *c, const Tensor *t, const double *want, int64_t row)
{
    for (int64_t x = 0; row < t->shape[1] && x < t->shape[3]; x++) {
        const double printed = strtod(at, &at);
        worst = fmax(worst, fabs(printed - want[row * c->args.shape.d + x]));
    }
    return at;
}

static void try_trace(Case *c)
{
    char text[16384] = "", *at;
    FILE *to = fmemopen(text, sizeof text, "w");
    assert_non_null(to);
    Oracle oracle = oracle_of(&c->args, 1, 1);
    assert_int_equal(0, flash_backward_trace(&c->args, to));
    fclose(to);
    at = strstr(text, "in the end");
    assert_non_null(at);
    at = strchr(strchr(at, '\n') + 1, '\n') + 1;
    for (int64_t row = 0; row < c->args.shape.Nq || row < c->args.shape.Nk; row++) {
        assert_int_equal(row, strtol(at, &at, 10));
        at = read_row(at, c, &c->args.dQ, oracle.dQ.value, row);
        at = read_row(at, c, &c->args.dK, oracle.dK.value, row);
        at = read_row(at, c, &c->args.dV, oracle.dV.value, row);
        assert_true(*at == '\n' || *at == ' ');
        at = strchr(at, '\n') + 1;
    }
    oracle_free(&oracle);
}

TEST(test_trace_ends_in_the_gradients)
{
    static const AttnShape shapes[] = {{1, 1, 1, 6, 6, 2}, {1, 1, 1, 5, 8, 3}, {1, 1, 1, 8, 3, 8}};
    for (int n = 0; n < 12; n++) {
        Case *c = case_new(shapes[n % 3], n % 2 ? ATTN_BF16 : ATTN_F32, LAYOUT_ODD, 1);
        if (n >= 3)
            case_align(c, n % 2 ? ATTN_MASK_CAUSAL_UPPER_LEFT : ATTN_MASK_CAUSAL_LOWER_RIGHT);
        if (n >= 6)
            c->args.softcap = 2;
        if (n >= 9)
            case_mask(c);
        worst = 0;
        try_trace(c);
        assert_true(worst < 1e-4); /* four decimals */
        case_free(c);
    }
}
