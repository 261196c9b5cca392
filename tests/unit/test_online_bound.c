/* SPDX-License-Identifier: MIT
 *
 * test_online_bound.c: a variant that rounds O to its dtype after every step of some keys errs more
 * than the bound of one rounding allows, and is right all the same. Check.online_block adds, for
 * each step in which the row sees a key, half an ulp of the largest |V| that the row sees.
 *
 * Steps are those of a careful implementation in float32 with O and lse stored after each, blocks
 * of keys in ascending or descending order.
 */
#include <math.h>

#include "attn_pairs.h"
#include "honest_attention.h"

/* ln(e^a + e^b) */
static float merge_lse(float a, float b)
{
    const float most = fmaxf(a, b), least = fminf(a, b);
    return most == -INFINITY ? most : most + log1pf(expf(least - most));
}

/* Keys first .. last-1 of row (b, h, i) into O and lse. */
static void online_step(const AttnArgs *a, int64_t b, int64_t h, int64_t i, int64_t first,
                        int64_t last)
{
    const int64_t kv = h / (a->shape.H / a->shape.Hkv), d = a->shape.d;
    const Honest way = {1, 0, 0, 0};
    float *lse = a->lse + (b * a->shape.H + h) * a->shape.Nq + i;
    float m = -INFINITY, l = 0, O[64] = {0}, own, both, slope;
    for (int64_t j = first; j < last; j++)
        if (attn_sees(a, i, j))
            m = fmaxf(m, honest_score(&way, a, b, h, i, j, &slope));
    if (m == -INFINITY)
        return;
    for (int64_t j = first; j < last; j++) {
        if (!attn_sees(a, i, j))
            continue;
        const float P = expf(honest_score(&way, a, b, h, i, j, &slope) - m);
        l += P;
        for (int64_t x = 0; x < d; x++)
            O[x] += P * honest_at(&a->V, b, j, kv, x);
    }
    own = m + logf(l);
    both = merge_lse(*lse, own);
    for (int64_t x = 0; x < d; x++)
        case_set(&a->O, b, i, h, x,
                 expf(*lse - both) * case_get(&a->O, b, i, h, x) + expf(own - both) * O[x] / l);
    *lse = both;
}

static void online_run(const AttnArgs *a, int64_t block, int descending)
{
    const AttnShape s = a->shape;
    const int64_t blocks = (s.Nk + block - 1) / block;
    for (int64_t row = 0; row < s.B * s.H * s.Nq; row++) {
        const int64_t b = row / (s.H * s.Nq), h = row / s.Nq % s.H, i = row % s.Nq;
        a->lse[row] = -INFINITY;
        for (int64_t x = 0; x < s.d; x++)
            case_set(&a->O, b, i, h, x, 0);
        for (int64_t t = 0; t < blocks; t++) {
            const int64_t n = descending ? blocks - 1 - t : t;
            online_step(a, b, h, i, n * block, n * block + block < s.Nk ? n * block + block : s.Nk);
        }
    }
}

/* V all near one value: every rounding counts, and in one direction. */
static void fill_V(const Tensor *V, float value)
{
    for (int64_t j = 0; j < V->shape[1]; j++)
        for (int64_t x = 0; x < V->shape[3]; x++)
            case_set(V, 0, j, 0, x, value + 0.01f * case_normal());
}

static Check judge(const Case *c, const Oracle *o, int64_t block)
{
    Check check = {.inputs_intact = 1, .storage_intact = 1, .online_block = block};
    check_outputs(&check, o, &c->args, 0, 4);
    return check;
}

TEST(steps_have_their_bound)
{
    const int64_t sizes[] = {1, 3, 16, 64};
    for (int dtype = 0; dtype < 3; dtype++)
        for (int similar = 0; similar < 2; similar++)
            for (int n = 0; n < 4; n++) {
                Case *c = case_new((AttnShape){1, 2, 1, 10, 300, 8}, (AttnDtype)dtype, 0, 1);
                double with, without;
                if (similar)
                    fill_V(&c->args.V, 1);
                Oracle o = oracle_of(&c->args, 0, 1);
                online_run(&c->args, sizes[n], n % 2);
                with = judge(c, &o, sizes[n]).array[CHECK_O].worst_ratio;
                without = judge(c, &o, 0).array[CHECK_O].worst_ratio;
                print_message("# %s, blocks of %2d keys, %s V: %.2f of the bound, %.2f without\n",
                              dtype_name((AttnDtype)dtype), (int)sizes[n],
                              similar ? "similar" : "any", with, without);
                assert_true(judge(c, &o, sizes[n]).pass);
                assert_true(judge(c, &o, 0).array[CHECK_LSE].off == 0);
                if (dtype != ATTN_F32 && sizes[n] == 1)
                    assert_true(without > 1);
                oracle_free(&o);
                case_free(c);
            }
}

/* reach is steps * half an ulp * max |V| over what the row sees; steps counts visible blocks. */
TEST(reach_counts_visible_steps)
{
    Case *c = case_new((AttnShape){1, 1, 1, 12, 12, 2}, ATTN_BF16, 0, 1);
    double reach[2];
    for (int64_t j = 0; j < 12; j++)
        for (int64_t x = 0; x < 2; x++)
            case_set(&c->args.V, 0, j, 0, x, (x ? -1.0f : 1.0f) * (float)(j + 1));
    c->args.rule = (AttnRule){4, 0};
    for (int64_t i = 0; i < 12; i++)
        for (int64_t block = 1; block <= 13; block++) {
            const int64_t first = i < 4 ? 0 : i - 4;
            check_online_reach(&c->args, block, 0, 0, i, reach);
            for (int x = 0; x < 2; x++)
                assert_true(reach[x] ==
                            (double)((i / block - first / block + 1) * (i + 1)) * 0x1p-8);
        }
    c->segments_k[0] = (AttnSegment){0, 5, 0, 7, 1}; /* the rolling cache: keys 7..11, then 0..6 */
    c->segments_k[1] = (AttnSegment){5, 7, 0, 0, 1};
    c->args.positions_k.count = 2;
    check_online_reach(&c->args, 4, 0, 0, 8, reach); /* sees locals 0, 1 and 9, 10, 11: */
    assert_true(reach[0] == 2 * 12 * 0x1p-8);        /* a block of each segment */
    c->args.rule = (AttnRule){0, 0};
    check_online_reach(&c->args, 4, 0, 0, 0, reach);
    assert_true(reach[0] == 1 * 6 * 0x1p-8);
    case_free(c);
}

/* The wider bound is wide: lse, which has none, shows a dropped block just as well. */
TEST(dropped_block_shows)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        Case *c = case_new((AttnShape){1, 1, 1, 10, 96, 16}, (AttnDtype)dtype, 0, 1);
        Oracle o = oracle_of(&c->args, 0, 1);
        c->args.shape.Nk = 80; /* the last of six blocks is never visited */
        online_run(&c->args, 16, 0);
        c->args.shape.Nk = 96;
        assert_true(judge(c, &o, 16).array[CHECK_O].off > 0);
        assert_true(judge(c, &o, 16).array[CHECK_LSE].off > 0);
        oracle_free(&o);
        case_free(c);
    }
}
