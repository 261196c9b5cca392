/* SPDX-License-Identifier: MIT
 *
 * test_flash_backward: what the sweep of stage 04 cannot see.
 *
 * - The forward pass of stage 03 feeds the block function: any split of the keys, in any order, and
 *   any split of the queries give the gradients of one pass, within the oracle's bound, for every
 *   option of oracle_case.h and every shard of a ring. Stages 05 and 06 rest on this.
 * - A call adds to what is there. A block that nobody sees adds nothing.
 * - delta; equal keys: rows of dS sum to zero, and dV is what a uniform P gives.
 * - The same bits with any number of threads, and in memory of the caller without an allocation;
 *   the same bits of every variant in 200 runs.
 */
#include <math.h>

#include "gradient_blocks.h"

#include "alloc.h"
#include "harness/rung.h"
#include "judge_case.h"

RUNG_FN(flash_backward, v0_fa1_backward)
RUNG_FN(flash_backward, v1_fa2_backward)

static void assert_sums_right(const Case *c, const Oracle *oracle, FlashSums sums,
                              const char *label)
{
    flash_sums_store(&c->args, sums);
    assert_right(c, oracle, 1, 4, label);
}

/* Three random splits, of keys or of queries; one if quick: more splits of the same arithmetic
 * would show TSan no other accesses. */
static void try_random_splits(const Case *c, const Oracle *oracle, const char *label, int queries)
{
    const AttnShape *n = &c->args.shape;
    const FlashSums sums = sums_new(n);
    float *delta = run_forward(c);
    for (int trial = 0; trial < (quick() ? 1 : 3); trial++) {
        const KeySplit split = split_random(queries ? n->Nq : n->Nk, quick() ? 3 : 1 + 2 * trial);
        flash_sums_start(n, sums);
        for (int t = 0; t < split.count; t++)
            (queries ? add_queries : add_keys)(c, flash_backward_block_cpu, delta, split.first[t],
                                               split.length[t], sums);
        assert_sums_right(c, oracle, sums, label);
    }
    sums_free(sums);
    free(delta);
}

static void try_options(int queries)
{
    for (int larger = 1; larger <= 25; larger += 24)
        for (int n = 0; n < OPTION_COUNT; n += quick() == 2 ? 4 : 1)
            for (int dtype = quick() ? (n + queries) % 3 : 0; dtype < 3; dtype += quick() ? 3
                                                                                  : larger == 1
                                                                                      ? 1
                                                                                      : 2) {
                Case *c = case_option(&options[n], (AttnDtype)dtype, larger, 1);
                c->args.threads = quick() ? 3 : 1 + n % 3;
                Oracle oracle = oracle_of(&c->args, 1, 1);
                try_random_splits(c, &oracle, options[n].name, queries);
                oracle_free(&oracle);
                case_free(c);
            }
}

TEST(test_any_split_of_keys_is_one_pass)
{
    try_options(0);
}

TEST(test_any_split_of_queries_is_one_pass)
{
    try_options(1);
}

TEST(test_shards_of_a_ring)
{
    for (int n = 0; n < SHARD_COUNT; n++) {
        if (!shard_wanted(n))
            continue;
        Case *c = shard_new(&shards[n], (AttnDtype)(n % 3), n % 2 ? LAYOUT_ODD : LAYOUT_BSHD);
        c->args.threads = 1 + n % 2;
        Oracle oracle = oracle_of(&c->args, 1, 1);
        try_random_splits(c, &oracle, shards[n].name, n % 2);
        oracle_free(&oracle);
        case_free(c);
    }
}

TEST(test_a_call_adds)
{
    expect_a_call_adds(flash_backward_block_cpu, ATTN_F32, 300, 1e-6f);
}

TEST(test_a_block_that_nobody_sees)
{
    expect_nothing_added(flash_backward_block_cpu, ATTN_F32, 0);
}

TEST(test_delta)
{
    Case *c = case_new((AttnShape){2, 3, 1, 37, 50, 59}, ATTN_BF16, LAYOUT_ODD, 1);
    const AttnShape *n = &c->args.shape;
    float *delta = run_forward(c);
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t i = 0; i < n->Nq; i++) {
                double sum = 0, size = 0;
                for (int64_t x = 0; x < n->d; x++) {
                    const double product = (double)case_get(&c->args.dO, b, i, h, x) *
                                           (double)case_get(&c->args.O, b, i, h, x);
                    sum += product;
                    size += fabs(product);
                }
                assert_true(fabs(delta[(b * n->H + h) * n->Nq + i] - sum) <=
                            (double)n->d * 0x1p-24 * size);
            }
    free(delta);
    case_free(c);
}

/* All keys alike: P is uniform, so dV is the mean of dO over the queries, times their number over
 * Nk; and dQ = scale * (sum of a row of dS) * K = 0, because the Jacobian of softmax knows no
 * direction in which all scores move together. */
TEST(test_equal_keys)
{
    Case *c = case_new((AttnShape){1, 1, 1, 90, 150, 16}, ATTN_F32, LAYOUT_BSHD, 1);
    const AttnShape *n = &c->args.shape;
    const FlashSums sums = sums_new(n);
    for (int64_t j = 1; j < n->Nk; j++)
        for (int64_t x = 0; x < n->d; x++)
            case_set(&c->args.K, 0, j, 0, x, case_get(&c->args.K, 0, 0, 0, x));
    float *delta = run_forward(c);
    assert_int_equal(ATTN_OK, flash_backward_block_cpu(&c->args, delta, sums));
    for (int64_t e = 0; e < query_floats(n); e++)
        assert_true(fabsf(sums.dQ[e]) <= 1e-5f);
    for (int64_t j = 0; j < n->Nk; j++)
        for (int64_t x = 0; x < n->d; x++) {
            double mean = 0;
            for (int64_t i = 0; i < n->Nq; i++)
                mean += case_get(&c->args.dO, 0, i, 0, x) / (double)n->Nk;
            assert_true(fabs(sums.dV[j * n->d + x] - mean) <= 1e-5);
        }
    sums_free(sums);
    free(delta);
    case_free(c);
}

TEST(test_same_bits)
{
    const int repeats = quick() ? 6 : 200; /* each number of threads, and one again */
    Case *c = case_new((AttnShape){1, 3, 1, 150, 333, 40}, ATTN_F32, LAYOUT_ODD, 1);
    const AttnShape *n = &c->args.shape;
    const FlashSums sums = sums_new(n);
    void *dQ = NULL, *dK = NULL, *dV = NULL;
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    float *delta = run_forward(c);
    for (int repeat = 0; repeat < repeats; repeat++) {
        c->args.threads = 1 + repeat % 5;
        flash_sums_start(n, sums);
        assert_int_equal(ATTN_OK, flash_backward_block_cpu(&c->args, delta, sums));
        assert_repeats(&dQ, sums.dQ, sizeof(float) * (size_t)query_floats(n));
        assert_repeats(&dK, sums.dK, sizeof(float) * (size_t)key_floats(n));
        assert_repeats(&dV, sums.dV, sizeof(float) * (size_t)key_floats(n));
    }
    sums_free(sums);
    free(dQ), free(dK), free(dV), free(delta);
    case_free(c);
}

/* The variants themselves, each with the threads that it was given. */
TEST(test_passes_repeat)
{
    static const AttnFn passes[] = {flash_backward_v0_fa1_backward_backward,
                                    flash_backward_v1_fa2_backward_backward,
                                    flash_backward_library_cpu};
    for (int p = 0; p < 3; p++) {
        Case *c = case_new((AttnShape){1, 4, 2, 75, 170, 40}, ATTN_F16, LAYOUT_BSHD, 1);
        const Storage *gradients[] = {&c->dQ, &c->dK, &c->dV};
        void *first[3] = {NULL, NULL, NULL};
        case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
        c->args.threads = 2;
        free(run_forward(c));
        for (int repeat = 0; repeat < (quick() ? 3 : 200); repeat++) {
            assert_int_equal(ATTN_OK, passes[p](&c->args));
            for (int t = 0; t < 3; t++)
                assert_repeats(&first[t], gradients[t]->base, gradients[t]->bytes);
        }
        for (int t = 0; t < 3; t++)
            free(first[t]);
        case_free(c);
    }
}

TEST(test_memory_of_the_caller)
{
    Case *c = case_new((AttnShape){1, 2, 1, 75, 260, 40}, ATTN_F16, LAYOUT_BSHD, 1);
    const AttnShape *n = &c->args.shape;
    const FlashSums own = sums_new(n), given = sums_new(n);
    float *delta = run_forward(c);
    void *workspace = workspace_alloc(flash_backward_simd_workspace_bytes(n, c->args.threads));
    const size_t live = workspace_live();
    assert_non_null(workspace);
    assert_int_equal(ATTN_OK, flash_backward_block_cpu(&c->args, delta, own));
    workspace_reset_peak();
    assert_int_equal(ATTN_OK, flash_backward_simd_run(&c->args, delta, given, workspace));
    assert_true(workspace_peak() == live);
    workspace_free(workspace); /* looks at the fences around it */
    assert_true(workspace_intact());
    assert_memory_equal(own.dQ, given.dQ, sizeof(float) * (size_t)query_floats(n));
    assert_memory_equal(own.dK, given.dK, sizeof(float) * (size_t)key_floats(n));
    sums_free(own);
    sums_free(given);
    free(delta);
    case_free(c);
}
