/* SPDX-License-Identifier: MIT
 *
 * test_flash_resume: the block function of stage 03 adds keys to a state (O, lse), and it does not
 * matter how the keys come: any split, in any order, equals one pass over all of them, within the
 * oracle's bound. Stages 05 and 06 rest on this.
 *
 * - Every option of oracle_case.h and every shard of a ring (two segments for zigzag, two for each
 *   sequence of zigzag varlen, positions that are not consecutive), three dtypes, random blocks in
 *   random order, blocks of single keys, and the order of a ring.
 * - From lse = -inf, from a state that the oracle made.
 * - A block that no row sees leaves the state where it was.
 * - The same blocks in the same order give the same bits, with any number of threads; so do the
 *   CPU variants, 200 times (6 with ATTN_TEST_QUICK).
 */
#include <math.h>

#include "key_blocks.h"

#include "attention/forward/flash_library.h"
#include "harness/bench/bench.h"
#include "harness/rung.h"
#include "judge_case.h"

RUNG_FN(flash_forward, v0_fa1_tiles)
RUNG_FN(flash_forward, v1_fa2_rows)

static void add_keys(const Case *c, int64_t first, int64_t count, float *O_state)
{
    KeyBlock block;
    key_block_cut(&block, c, first, count);
    assert_int_equal(ATTN_OK, flash_block_cpu(&block.args, O_state));
    key_block_free(&block);
}

/* Blocks from number `from` on. */
static void add_split(const Case *c, const KeySplit *split, int from, float *O_state)
{
    for (int n = from; n < split->count; n++)
        add_keys(c, split->first[n], split->length[n], O_state);
}

static void assert_state_right(const Case *c, const Oracle *oracle, const float *O_state,
                               const char *label)
{
    flash_state_store(&c->args, O_state);
    assert_right(c, oracle, 0, 4, label);
}

/* Three random splits, one if quick. */
static void try_random_splits(const Case *c, const Oracle *oracle, const char *label)
{
    float *O_state = state_new(c);
    for (int trial = 0; trial < (quick() ? 1 : 3); trial++) {
        const KeySplit split = split_random(c->args.shape.Nk, quick() ? 3 : 1 + 2 * trial);
        flash_state_start(&c->args, O_state);
        add_split(c, &split, 0, O_state);
        assert_state_right(c, oracle, O_state, label);
    }
    free(O_state);
}

TEST(test_any_split_is_one_pass)
{
    for (int larger = 1; larger <= 25; larger += 24)
        for (int n = 0; n<OPTION_COUNT; n += larger> 1 && quick() == 2 ? 4 : 1)
            for (int dtype = larger > 1 && quick() ? n % 3 : 0; dtype < 3; dtype += larger == 1 ? 1
                                                                                    : quick()   ? 3
                                                                                              : 2) {
                Case *c = case_option(&options[n], (AttnDtype)dtype, larger, 1);
                c->args.threads = 1 + n % 3;
                Oracle oracle = oracle_of(&c->args, 0, 1);
                try_random_splits(c, &oracle, options[n].name);
                oracle_free(&oracle);
                case_free(c);
            }
}

/* Every key a block of its own: as many roundings of (O, lse) as there can be. */
TEST(test_single_keys)
{
    for (int n = 0; n < OPTION_COUNT; n++) {
        Case *c = case_option(&options[n], ATTN_F32, 1, 1);
        const int64_t Nk = c->args.shape.Nk;
        const KeySplit split = split_random(Nk, (int)Nk);
        float *O_state = state_new(c);
        Oracle oracle = oracle_of(&c->args, 0, 1);
        flash_state_start(&c->args, O_state);
        add_split(c, &split, 0, O_state);
        assert_state_right(c, &oracle, O_state, options[n].name);
        free(O_state);
        oracle_free(&oracle);
        case_free(c);
    }
}

/* The queries of a rank, the keys of all: random blocks, then the order of a ring. */
TEST(test_shards_of_a_ring)
{
    for (int n = 0; n < SHARD_COUNT; n++) {
        if (!shard_wanted(n))
            continue;
        const Shard *s = &shards[n];
        Case *c = shard_new(s, (AttnDtype)(n % 3), n % 2 ? LAYOUT_ODD : LAYOUT_BSHD);
        const KeySplit ring = split_evenly(s->shape.Nk, s->world, s->rank);
        float *O_state = state_new(c);
        c->args.threads = 1 + n % 2;
        Oracle oracle = oracle_of(&c->args, 0, 1);
        try_random_splits(c, &oracle, s->name);
        flash_state_start(&c->args, O_state);
        add_split(c, &ring, 0, O_state);
        assert_state_right(c, &oracle, O_state, s->name);
        free(O_state);
        oracle_free(&oracle);
        case_free(c);
    }
}

/* The state after the first block is the oracle's; half of the cases have rows in it that have
 * seen nothing (lse = -inf) beside rows that have. */
TEST(test_from_a_state_by_the_definition)
{
    for (int n = 0; n < SHARD_COUNT; n++) {
        if (!shard_wanted(n))
            continue;
        Case *c = shard_new(&shards[n], ATTN_F32, LAYOUT_BSHD);
        KeySplit split = split_evenly(c->args.shape.Nk, 3, 0);
        float *O_state = state_new(c);
        Oracle oracle = oracle_of(&c->args, 0, 1);
        state_from_oracle(c, split.length[0], O_state);
        add_split(c, &split, 1, O_state);
        assert_state_right(c, &oracle, O_state, shards[n].name);
        free(O_state);
        oracle_free(&oracle);
        case_free(c);
    }
}

/* Keys of another sequence, keys of the future, keys that the mask hides: the state stays where it
 * was, for rows with a past and for rows without. */
TEST(test_a_block_that_nobody_sees)
{
    for (int kind = 0; kind < 3; kind++) {
        Case *c = unseen_case(kind, ATTN_F32, 20);
        float *O_state = state_new(c);
        Oracle before = oracle_of(&c->args, 0, 1); /* the last 70 add nothing */
        state_from_oracle(c, 140, O_state);
        add_keys(c, 140, 70, O_state);
        assert_state_right(c, &before, O_state, "a block that nobody sees");
        flash_state_start(&c->args, O_state);
        add_keys(c, 140, 70, O_state);
        for (int64_t e = 0; e < 2 * 70; e++)
            assert_true(c->args.lse[e] == -INFINITY);
        for (int64_t e = 0; e < 2 * 70 * 20; e++)
            assert_true(O_state[e] == 0.0f);
        oracle_free(&before);
        free(O_state);
        case_free(c);
    }
}

TEST(test_same_order_same_bits)
{
    Case *c = case_new((AttnShape){1, 3, 1, 150, 333, 40}, ATTN_F32, LAYOUT_ODD, 1);
    const AttnShape *s = &c->args.shape;
    const size_t count = (size_t)(s->Nq * s->H * s->d), rows = (size_t)(s->Nq * s->H);
    float *O_state = state_new(c);
    void *O = NULL, *lse = NULL;
    bench_set_threads(1); /* of BLAS: with several, some of its kernels cut a product otherwise */
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    for (c->args.threads = 1; c->args.threads <= 5; c->args.threads++) {
        flash_state_start(&c->args, O_state);
        add_keys(c, 200, 133, O_state);
        add_keys(c, 0, 200, O_state);
        assert_repeats(&O, O_state, count * sizeof *O_state);
        assert_repeats(&lse, c->lse, rows * sizeof *c->lse);
    }
    free(O), free(lse), free(O_state);
    case_free(c);
}

/* One head and three: v2 shares them out in two ways. */
TEST(test_variants_same_bits)
{
    static const AttnFn variants[] = {flash_forward_v0_fa1_tiles, flash_forward_v1_fa2_rows,
                                      flash_forward_library_cpu};
    const int repeats = quick() ? 6 : 200; /* each number of threads, and one again */
    for (int n = 0; n < 6; n++) {
        const int64_t H = n % 2 ? 3 : 1;
        Case *c = case_new((AttnShape){1, H, H, 130, 190, 24}, ATTN_BF16, LAYOUT_BSHD, 1);
        const size_t rows = (size_t)(H * 130) * sizeof(float);
        void *O = NULL, *lse = NULL;
        case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
        for (int repeat = 0; repeat < repeats; repeat++) {
            c->args.threads = 1 + repeat % 5;
            tensor_poison(&c->O);
            memset(c->lse, 0xFF, rows);
            assert_int_equal(ATTN_OK, variants[n / 2](&c->args));
            assert_repeats(&O, c->O.base, c->O.bytes);
            assert_repeats(&lse, c->lse, rows);
        }
        free(O), free(lse);
        case_free(c);
    }
}
