/* SPDX-License-Identifier: MIT
 *
 * test_flash_window: the CPU library in a narrow window, where only the keys of the window are
 * packed and roll through a small buffer. The sweep's cases are mostly too short for that to begin.
 *
 * - Right against the oracle: windows on one side and on both, rows that see nothing at either end,
 *   shared heads, batches, a full mask, a cap, a resumed state.
 * - The same bits with any number of threads, whether keys roll or not.
 * - Right, and the same bits, whether O is stored past the caches or through them; without a
 *   window, too.
 * - The workspace: never more than without a window, and the packed part of it independent of N.
 */
#include "judge_case.h"

#include "attn_config.h"
#include "units/vector.h"

#include "attention/forward/cpu/simd_pack.h"
#include "attn_pairs.h"

static const FlashSimd *used_simd(void)
{
#ifdef HAVE_ISA_AVX512
    if (strcmp(exp_isa(), "avx512") == 0)
        return &flash_simd_avx512;
#endif
#ifdef HAVE_ISA_AVX2
    if (strcmp(exp_isa(), "avx2") == 0)
        return &flash_simd_avx2;
#endif
    return &flash_simd_portable;
}

static size_t plan_of(const AttnArgs *args, Plan *plan)
{
    return flash_make_plan(plan, used_simd(), args, NULL);
}

typedef struct WindowCase {
    AttnShape shape;
    int64_t left, right;
    int64_t shift; /* query 0 stands here, key 0 at 0 */
    AttnDtype dtype;
    TensorLayout layout;
    float softcap;
    int full_mask, threads;
} WindowCase;

static const WindowCase cases[] = {
    {{1, 1, 1, 700, 700, 16}, 40, 0, 0, ATTN_F32, LAYOUT_BSHD, 0, 0, 1},
    {{1, 3, 3, 611, 603, 9}, 17, 30, 0, ATTN_F32, LAYOUT_ODD, 0, 0, 2},
    {{2, 4, 2, 460, 500, 20}, 0, 0, 40, ATTN_BF16, LAYOUT_BSHD, 0, 0, 3},
    {{1, 2, 1, 900, 640, 33}, 25, 3, -130, ATTN_F16, LAYOUT_BHSD, 1.5f, 0, 1},
    {{1, 1, 1, 300, 900, 40}, 100, 20, 450, ATTN_F32, LAYOUT_SBHD, 0, 1, 2},
    {{1, 2, 2, 130, 1100, 64}, 300, 0, 900, ATTN_F32, LAYOUT_BSHD, 0, 0, 1},
};
#define CASES ((int)(sizeof cases / sizeof *cases))

static Case *window_case(const WindowCase *w)
{
    Case *c = case_new(w->shape, w->dtype, w->layout, 1);
    c->segments_q[0].position = w->shift;
    c->args.rule = (AttnRule){w->left, w->right};
    c->args.softcap = w->softcap;
    c->args.threads = w->threads;
    if (w->full_mask)
        case_mask(c);
    return c;
}

TEST(test_right_while_keys_roll)
{
    for (int n = 0; n < CASES; n++) {
        Case *c = window_case(&cases[n]);
        const AttnShape *s = &c->args.shape;
        float *O_state = malloc(sizeof *O_state * (size_t)(s->B * s->Nq * s->H * s->d));
        Plan plan;
        assert_non_null(O_state);
        plan_of(&c->args, &plan);
        assert_true(plan.narrow && plan.rolls && plan.capacity < plan.keys);
        Oracle oracle = oracle_of(&c->args, 0, 1);
        assert_int_equal(ATTN_OK, flash_forward_library_cpu(&c->args));
        assert_right(c, &oracle, 0, 4, "library");
        flash_state_start(&c->args, O_state);
        assert_int_equal(ATTN_OK, flash_block_cpu(&c->args, O_state));
        flash_state_store(&c->args, O_state);
        assert_right(c, &oracle, 0, 4, "flash_block_cpu");
        oracle_free(&oracle);
        free(O_state);
        case_free(c);
    }
}

/* Seven threads have no room for seven windows of one short head: then all of it is packed. */
TEST(test_threads_and_bits)
{
    int rolled[2] = {0, 0};
    for (int n = 0; n < CASES; n++) {
        Case *c = window_case(&cases[n]);
        const size_t rows = (size_t)(c->args.shape.B * c->args.shape.H * c->args.shape.Nq);
        void *O = NULL, *lse = NULL;
        for (int threads = 1; threads <= 7; threads++) {
            Plan plan;
            c->args.threads = threads;
            plan_of(&c->args, &plan);
            assert_true(plan.narrow);
            rolled[plan.rolls]++;
            tensor_poison(&c->O);
            assert_int_equal(ATTN_OK, flash_forward_library_cpu(&c->args));
            assert_repeats(&O, c->O.base, c->O.bytes);
            assert_repeats(&lse, c->lse, rows * sizeof *c->lse);
        }
        free(O), free(lse);
        case_free(c);
    }
    assert_true(rolled[0] > 0 && rolled[1] > 0);
}

/* Odd strides are no whole lines: rows of that O go the usual way. */
static void check_past_caches(AttnRule rule)
{
    const AttnShape s = {1, 16, 1, 1024, 1024, 64};
    const uint64_t seed = case_state;
    Case *c[2];
    for (int n = 0; n < 2; n++) {
        Plan plan;
        case_state = seed;
        c[n] = case_new(s, ATTN_F32, n ? LAYOUT_ODD : LAYOUT_BSHD, 1);
        c[n]->args.rule = rule;
        c[n]->args.threads = 2;
        plan_of(&c[n]->args, &plan);
        assert_int_equal(!n, plan.O_past_caches);
        assert_int_equal(ATTN_OK, flash_forward_library_cpu(&c[n]->args));
    }
    for (int64_t i = 0; i < s.Nq; i++)
        for (int64_t h = 0; h < s.H; h++)
            for (int64_t x = 0; x < s.d; x++)
                assert_true(case_get(&c[0]->O.view, 0, i, h, x) ==
                            case_get(&c[1]->O.view, 0, i, h, x));
    case_judge(c[0], 0, 4, 2, "library, O past the caches");
    case_free(c[0]);
    case_free(c[1]);
}

TEST(test_past_caches)
{
    check_past_caches((AttnRule){20, 0});
    check_past_caches((AttnRule){-1, 0});
}

/* Whoever allocates from the shape alone has room for every rule. */
TEST(test_workspace)
{
    for (int64_t N = 1; N < 3000; N += N / 3 + 1)
        for (int64_t window = 0; window < 2 * N; window += window / 2 + 1)
            for (int threads = 1; threads <= 9; threads += 4) {
                const AttnSegment whole = {0, N, 0, 0, 1};
                AttnArgs a = {.shape = {1, 6, 3, N, N, 1 + N % 70},
                              .rule = {window, N % 2 ? 0 : window},
                              .positions_q = attn_positions(&whole, 1),
                              .positions_k = attn_positions(&whole, 1),
                              .threads = threads};
                Plan plan;
                assert_true(plan_of(&a, &plan) <= flash_simd_workspace_bytes(&a.shape, threads));
            }
    for (int threads = 1; threads <= 3; threads++) {
        AttnSegment whole = {0, 4096, 0, 0, 1};
        AttnArgs a = {.shape = {1, 4, 4, 4096, 4096, 64},
                      .rule = {256, 0},
                      .positions_q = attn_positions(&whole, 1),
                      .positions_k = attn_positions(&whole, 1),
                      .threads = threads};
        Plan small, large;
        plan_of(&a, &small);
        a.shape.Nq = a.shape.Nk = whole.length = 65536;
        plan_of(&a, &large);
        assert_true(small.rolls && large.rolls);
        assert_int_equal(small.slots * (small.K_floats + small.V_floats),
                         large.slots * (large.K_floats + large.V_floats));
    }
}
