/* SPDX-License-Identifier: MIT
 *
 * test_philox.c: the generator behind dropout gives the published numbers, and a pair (i, j) takes
 * the word that the contract says: counter (j / 4, i, h, b), key = halves of the seed, word j % 4.
 *
 * The known answers are those of the authors' own distribution (Random123, tests/kat_vectors, lines
 * "philox4x32 10"): zeros, ones, and the digits of pi.
 */
#include "unit.h"

#include "harness/io/philox.h"

TEST(known_answers)
{
    static const struct {
        PhiloxWords counter;
        uint32_t key[2];
        PhiloxWords answer;
    } known[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         {0xffffffff, 0xffffffff},
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {0xa4093822, 0x299f31d0},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (int n = 0; n < 3; n++) {
        const PhiloxWords found =
            philox_4x32_10(known[n].counter, known[n].key[0], known[n].key[1]);
        for (int w = 0; w < 4; w++)
            assert_int_equal(known[n].answer.word[w], found.word[w]);
    }
}

/* The third vector as a pair: j = 4 * 0x243f6a88 + w, i = 0x85a308d3, h, b, seed = both key words.
 * A threshold one above the word drops the pair, the word itself keeps it. */
TEST(words_of_a_pair)
{
    static const uint32_t answer[] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    const AttnOptions o = {.dropout = 0.5f, .dropout_seed = UINT64_C(0x299f31d0a4093822)};
    for (int64_t w = 0; w < 4; w++) {
        const int64_t j = 4 * INT64_C(0x243f6a88) + w;
        assert_true(attn_keeps(&o, answer[w], 0x03707344, 0x13198a2e, 0x85a308d3, j));
        assert_false(attn_keeps(&o, answer[w] + 1, 0x03707344, 0x13198a2e, 0x85a308d3, j));
    }
}

TEST(thresholds)
{
    const AttnOptions o = {.dropout_seed = 3};
    assert_int_equal(0, attn_dropout_threshold(0));
    assert_int_equal(0x80000000u, attn_dropout_threshold(0.5f));
    assert_int_equal(0x40000000u, attn_dropout_threshold(0.25f));
    assert_int_equal(429496736u, attn_dropout_threshold(0.1f)); /* 0.1f is a little above 0.1 */
    assert_int_equal(4294967040u, attn_dropout_threshold(0.99999994f));
    for (int64_t j = 0; j < 1000; j++)
        assert_true(attn_keeps(&o, 0, 0, 0, 0, j));
}
