/* SPDX-License-Identifier: MIT
 *
 * merge_outputs.c: judges the merge of a state (m, l, a) into (O, lse), in place.
 *
 * Interface: -N rows, -d channels, --hand: query 3 of the four tokens, --large: lse in the
 * hundreds, --empty-old, --empty-block.
 */
#include <math.h>

#include "learn.h"

void merge_row(float *O, float *lse, float m, float l, const float *a, int d);

const Mistake mistakes[] = {
    {"merge_without_weights",
     "a of the block is added as it is: it needs the factor exp(m - lse)."},
    {"not_divided",
     "a is l times the block's O, and exp(lse_block - lse) is the share of O. Of a it "
     "is exp(m - lse)."},
    {"nan_on_empty_row", "Two empty sides have lse = -inf, and -inf - (-inf) is NaN."},
    {"no_max_subtraction",
     "exp(lse) is infinite from 88.72 on. Take the maximum out: max + log1p(exp(min - max))."},
    {"plain_mean",
     "This is the mean of the two. It is right only where both sides have the same lse."},
    {"lse_too_early",
     "*lse is overwritten before the share of the old part is taken: exp(lse - lse) is 1."},
    {"shares_exchanged", "The old O gets the share of the block, and the block that of the old O."},
    {"shares_not_normalised", "The two shares sum to more than 1: they are exp(lse_old - lse) and "
                              "exp(lse_block - lse), with "
                              "the merged lse and not with the larger one."},
    {"exponent_of_the_wrong_sign",
     "The exponent is max - min, which grows: exp(min - max) is at most 1, and log1p of it at most "
     "ln 2."},
    {"lse_not_updated", "O is merged and *lse is not: it has to become the merged one."},
    {"zero_by_zero",
     "a / l is 0 / 0 where the block has no key. No division is needed: the factor of "
     "a is exp(m - lse), which is 0 there."},
    {NULL, NULL}};

static float *O_old, *O_block, *lse_old, *lse_block; /* of the block: what its state stands for */
static float *block_m, *block_l, *block_a;           /* [N] [N] [N][d] */
static Output *O, *lse;
static long N, d;

void prepare(void)
{
    const int hand = has_flag("--hand");
    N = case_size("-N", 1, 1), d = case_size("-d", 2, 2);
    O_old = case_memory(N * d, sizeof *O_old), lse_old = case_memory(N, sizeof *lse_old);
    O_block = case_memory(N * d, sizeof *O_block), lse_block = case_memory(N, sizeof *lse_block);
    block_m = input("m", N), block_l = input("l", N), block_a = input("a", N * d);
    O = output("O", N, d, "row", "channel"), lse = output("lse", N, 1, "row", "");
    fill_normal(O_old, N * d, 1), fill_normal(O_block, N * d, 2);
    fill_normal(lse_old, N, 3), fill_normal(lse_block, N, 4);
    for (long i = 0; i < N; i++) {
        lse_old[i] += has_flag("--large") ? 300.0f : 0.0f;
        lse_block[i] += has_flag("--large") ? 300.0f : 0.0f;
        lse_old[i] = has_flag("--empty-old") ? -INFINITY : lse_old[i];
        lse_block[i] = has_flag("--empty-block") ? -INFINITY : lse_block[i];
        for (long x = 0; x < d; x++) {
            O_old[i * d + x] *= has_flag("--empty-old") ? 0.0f : 1.0f;
            O_block[i * d + x] *= has_flag("--empty-block") ? 0.0f : 1.0f;
        }
    }
    if (hand) {
        O_old[0] = O_old[1] = 0.5f, lse_old[0] = 1.4003f;
        O_block[0] = 1.6089f, O_block[1] = 2.3911f, lse_block[0] = 1.6318f;
    }
    for (long i = 0; i < N; i++) {
        block_l[i] = isinf(lse_block[i]) ? 0.0f : hand ? 1.2431f : 1.0f + 0.5f * (float)(i % 7);
        block_m[i] = isinf(lse_block[i]) ? -INFINITY : lse_block[i] - logf(block_l[i]);
        for (long x = 0; x < d; x++)
            block_a[i * d + x] = block_l[i] * O_block[i * d + x];
    }
}

void call(void)
{
    for (long i = 0; i < N; i++) {
        memcpy(O->found + i * d, O_old + i * d, sizeof(float) * (size_t)d);
        lse->found[i] = lse_old[i];
        merge_row(O->found + i * d, lse->found + i, block_m[i], block_l[i], block_a + i * d,
                  (int)d);
    }
}

void expect(int mistake)
{
    for (long i = 0; i < N; i++) {
        const double a = lse_old[i], b = lse_block[i], max = fmax(a, b), min = fmin(a, b);
        const int empty = isinf(max) && mistake != 3;
        double both = empty ? max : max + log1p(exp(mistake == 9 ? max - min : min - max));
        double of_old = empty ? 1 : exp(a - both), of_block = empty ? 0 : exp(b - both);
        if (mistake == 4) { /* as float32 has it */
            both = (double)logf(expf((float)a) + expf((float)b));
            of_old = exp(a - both), of_block = exp(b - both);
        }
        const double l = block_l[i];
        if (mistake == 1 && !empty)
            of_block = l;
        if (mistake == 2 && !empty)
            of_block *= l;
        if (mistake == 5)
            of_old = 0.5, of_block = 0.5 * l;
        if (mistake == 6)
            of_old = 1;
        if (mistake == 7 && !empty)
            of_old = exp(b - both), of_block = exp(a - both);
        if (mistake == 8 && !empty)
            of_old = exp(a - max), of_block = exp(b - max);
        if (mistake == 10)
            both = a;
        if (mistake == 11 && l == 0 && !empty)
            of_block = NAN;
        lse->expected[i] = both;
        for (long x = 0; x < d; x++)
            O->expected[i * d + x] = of_old * O_old[i * d + x] + of_block * O_block[i * d + x];
    }
}

/* -inf + inf, with the old lse in front where the larger one belongs */
const Mistake *diagnose(void)
{
    static const Mistake old_in_front = {
        "old_in_front",
        "One side is empty, its lse -inf. With the larger of the two lse in front, max + "
        "log1p(exp(min - max)), nothing infinite remains."};
    return isnan(lse->found[0]) && isinf(lse_old[0]) ? &old_in_front : NULL;
}
