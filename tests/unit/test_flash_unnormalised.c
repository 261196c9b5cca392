/* SPDX-License-Identifier: MIT
 *
 * test_flash_unnormalised: the library resumes from a state that is not divided (FlashRows), and 16
 * blocks of keys are as good as one.
 *
 * - Every shard of a ring, three dtypes, random blocks in random order, 1 to 3 threads: within the
 *   oracle's bound.
 * - All keys as one block: the bits of flash_forward_library_cpu.
 * - 16 blocks: lse within 1.5 times the error of one block, where (O, lse) is twice as wrong.
 * - One NaN or infinite key in one of several blocks: it reaches lse of each row that sees it, also
 *   when blocks without it come later.
 */
#include <math.h>

#include "alloc.h"
#include "attention/forward/flash_library.h"
#include "judge_case.h"
#include "key_blocks.h"

static FlashRows rows_new(const Case *c)
{
    const AttnShape *s = &c->args.shape;
    const size_t count = (size_t)(s->B * s->H * s->Nq);
    FlashRows rows = {malloc(3 * count * sizeof(float)), NULL, NULL};
    assert_non_null(rows.m);
    rows.l = rows.m + count;
    rows.l_rest = rows.l + count;
    return rows;
}

static void attend_unnormalised(const Case *c, const KeySplit *split, float *O_state,
                                FlashRows rows)
{
    const size_t bytes = flash_simd_workspace_bytes(&c->args.shape, c->args.threads);
    void *workspace = workspace_alloc(bytes);
    assert_non_null(workspace);
    flash_state_start(&c->args, O_state);
    for (float *m = rows.m; m < rows.l; m++)
        *m = -INFINITY;
    memset(rows.l, 0, 2 * (size_t)(rows.l_rest - rows.l) * sizeof(float));
    for (int n = 0; n < split->count; n++) {
        KeyBlock block;
        key_block_cut(&block, c, split->first[n], split->length[n]);
        assert_int_equal(ATTN_OK, flash_simd_resume(&block.args, O_state, rows, workspace));
        key_block_free(&block);
    }
    flash_rows_store(&c->args, O_state, rows);
    workspace_free(workspace);
}

TEST(test_unnormalised_states)
{
    for (int n = 0; n < SHARD_COUNT; n++) {
        if (!shard_wanted(n))
            continue;
        Case *c = shard_new(&shards[n], (AttnDtype)(n % 3), n % 2 ? LAYOUT_ODD : LAYOUT_BSHD);
        const AttnShape *s = &c->args.shape;
        const size_t lse_bytes = (size_t)(s->B * s->H * s->Nq) * sizeof(float);
        const KeySplit whole = split_evenly(s->Nk, 1, 0);
        float *O_state = state_new(c);
        void *O = NULL, *lse = NULL;
        const FlashRows rows = rows_new(c);
        c->args.threads = 1 + n % 3;
        Oracle oracle = oracle_of(&c->args, 0, 1);
        for (int trial = 0; trial < 3; trial++) {
            const KeySplit split = split_random(s->Nk, 1 + 3 * trial);
            attend_unnormalised(c, &split, O_state, rows);
            assert_right(c, &oracle, 0, 4, "random splits");
        }
        for (int plain = 0; plain < 2; plain++) {
            if (plain)
                assert_int_equal(ATTN_OK, flash_forward_library_cpu(&c->args));
            else
                attend_unnormalised(c, &whole, O_state, rows);
            assert_repeats(&O, c->O.base, c->O.bytes);
            assert_repeats(&lse, c->lse, lse_bytes);
        }
        oracle_free(&oracle);
        free(O), free(lse), free(O_state), free(rows.m);
        case_free(c);
    }
}

/* As (O, lse) 16 blocks are twice as wrong as one. */
TEST(test_unnormalised_states_lose_nothing)
{
    Case *c = case_new((AttnShape){1, 4, 4, 128, 256, 32}, ATTN_F32, LAYOUT_BSHD, 1);
    const KeySplit one = split_evenly(256, 1, 0), many = split_evenly(256, 16, 0);
    const FlashRows rows = rows_new(c);
    float *O_state = state_new(c);
    double once, again, rounded;
    Oracle oracle = oracle_of(&c->args, 0, 1);
    attend_unnormalised(c, &one, O_state, rows);
    once = largest_lse_error(c, &oracle);
    attend_unnormalised(c, &many, O_state, rows);
    again = largest_lse_error(c, &oracle);
    flash_state_start(&c->args, O_state);
    for (int n = 0; n < many.count; n++) {
        KeyBlock block;
        key_block_cut(&block, c, many.first[n], many.length[n]);
        assert_int_equal(ATTN_OK, flash_block_cpu(&block.args, O_state));
        key_block_free(&block);
    }
    rounded = largest_lse_error(c, &oracle);
    assert_true(once > 0.0 && again <= 1.5 * once && rounded > 2.0 * once);
    oracle_free(&oracle);
    free(O_state), free(rows.m);
    case_free(c);
}

TEST(test_a_nonfinite_key_stays)
{
    static const float values[] = {NAN, INFINITY};
    for (int n = 0; n < 16; n++) { /* block of the key, its value, with or without a window */
        Case *c = case_new((AttnShape){1, 2, 2, 70, 160, 16}, ATTN_F32, LAYOUT_BSHD, 1);
        const KeySplit split = split_evenly(160, 4, 0);
        const FlashRows rows = rows_new(c);
        float *O_state = state_new(c);
        c->args.rule = n / 8 ? (AttnRule){50, 0} : (AttnRule){-1, -1};
        case_set(&c->args.K, 0, 17 + n % 4 * 40, 1, 3, values[n / 4 % 2]);
        attend_unnormalised(c, &split, O_state, rows);
        case_judge(c, 0, 4, 1, "not finite");
        free(O_state), free(rows.m);
        case_free(c);
    }
}
