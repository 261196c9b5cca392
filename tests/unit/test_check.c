/* SPDX-License-Identifier: MIT
 *
 * test_check.c: a checker is worth what it refuses. A right result goes in and passes; then one
 * thing at a time is spoiled and the same call must fail, and name the place.
 */
#include <math.h>

#include "honest_options.h"

static const Honest plain = {1 << 20, 0, 0, 0};

typedef struct Subject {
    Case *c;
    Oracle o;
    Check check;
} Subject;

static Subject subject_new(AttnDtype dtype, AttnMask mask)
{
    Subject s = {0}; /* check.copies and online_block are the caller's */
    s.c = case_new((AttnShape){2, 4, 2, 70, 66, 8}, dtype, LAYOUT_ODD, 1);
    case_align(s.c, mask);
    honest_forward(&plain, &s.c->args);
    honest_backward(&plain, &s.c->args);
    assert_int_equal(0, oracle_run(&s.o, &s.c->args, 1, 1));
    return s;
}

static void subject_free(Subject *s)
{
    oracle_free(&s->o);
    case_free(s->c);
}

static int passes(Subject *s)
{
    s->check.inputs_intact = s->check.storage_intact = 1;
    check_outputs(&s->check, &s->o, &s->c->args, 1, 4);
    return s->check.pass;
}

/* In the explanation of the last check. */
static void expect_text(const Subject *s, const char *part)
{
    const char *text = explanation(&s->check, &s->c->args);
    if (!strstr(text, part))
        fail_msg("the explanation lacks \"%s\":\n%s", part, text);
}

TEST(right_result_passes)
{
    for (int dtype = 0; dtype < 3; dtype++)
        for (int mask = 0; mask < 4; mask++) {
            Subject s = subject_new((AttnDtype)dtype, (AttnMask)mask);
            assert_true(passes(&s));
            assert_string_equal("", explanation(&s.check, &s.c->args));
            assert_true(s.check.bound_ratio > 0 && s.check.bound_ratio <= 1);
            assert_int_equal(0, s.check.nonfinite);
            s.check.inputs_intact = 0;
            check_outputs(&s.check, &s.o, &s.c->args, 1, 4);
            assert_false(s.check.pass);
            s.check.inputs_intact = 1, s.check.storage_intact = 0;
            check_outputs(&s.check, &s.o, &s.c->args, 1, 4);
            assert_false(s.check.pass);
            subject_free(&s);
        }
}

/* One bad value anywhere in any output is found and named. */
TEST(one_bad_value_is_found)
{
    const float bad[] = {NAN, INFINITY, -INFINITY, 1e4f};
    for (int dtype = 0; dtype < 3; dtype++) {
        Subject s = subject_new((AttnDtype)dtype, ATTN_MASK_NONE);
        const AttnArgs *a = &s.c->args;
        const Tensor *const all[] = {&a->O, NULL, &a->dQ, &a->dK, &a->dV};
        for (int which = 0; which <= CHECK_DV; which++)
            for (int n = 0; n < 4; n++) {
                const Tensor *t = all[which] ? all[which] : &a->O;
                const int64_t b = n % 2, i = case_random() % t->shape[1], h = n % t->shape[2];
                const int64_t x = which == CHECK_LSE ? 0 : case_random() % 8;
                float *lse = &a->lse[(b * 4 + h) * 70 + i];
                const float kept = which == CHECK_LSE ? *lse : case_get(t, b, i, h, x);
                const CheckArray *found = &s.check.array[which];
                if (which == CHECK_LSE)
                    *lse = bad[n];
                else
                    case_set(t, b, i, h, x, bad[n]);
                assert_false(passes(&s));
                assert_int_equal(1, found->off);
                assert_int_equal(n < 3, found->nonfinite);
                assert_true(found->b == b && found->h == h && found->i == i && found->x == x);
                if (which == CHECK_LSE)
                    *lse = kept;
                else
                    case_set(t, b, i, h, x, kept);
            }
        assert_true(passes(&s));
        subject_free(&s);
    }
}

TEST(nan_everywhere_fails)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        Subject s = subject_new((AttnDtype)dtype, ATTN_MASK_CAUSAL_LOWER_RIGHT);
        Storage *const all[] = {&s.c->O, &s.c->dQ, &s.c->dK, &s.c->dV};
        for (int t = 0; t < 4; t++)
            tensor_poison(all[t]);
        memset(s.c->lse, 0xFF, sizeof(float) * 2 * 4 * 70);
        assert_false(passes(&s));
        for (int which = 0; which <= CHECK_DV; which++) {
            assert_int_equal(s.check.array[which].compared, s.check.array[which].off);
            assert_true(s.check.array[which].worst_ratio == INFINITY);
        }
        expect_text(&s, "never written");
        subject_free(&s);
    }
}

/* Poison in the last rows only: a buffer that was filled too short. */
TEST(short_buffer_fails)
{
    Subject s = subject_new(ATTN_F32, ATTN_MASK_NONE);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t h = 0; h < 4; h++)
            for (int64_t i = 64; i < 70; i++)
                memset((float *)s.c->O.view.data + tensor_offset(&s.c->O.view, b, i, h), 0xFF, 32);
    assert_false(passes(&s));
    assert_int_equal(2 * 4 * 6 * 8, s.check.array[CHECK_O].off);
    assert_int_equal(8, s.check.array[CHECK_O].off_heads);
    assert_int_equal(6, s.check.array[CHECK_O].off_rows);
    expect_text(&s, "never written");
    expect_text(&s, "all in the last partial tile of 64 rows");
    subject_free(&s);
}

typedef enum Spoil { FLIP_SIGN, NEXT_ROW, SWAP_HEADS, ZERO, DOUBLE, MEAN_OF_V, SPOIL_COUNT } Spoil;

static void spoil(const Tensor *t, Spoil how, const Tensor *V)
{
    const int64_t N = t->shape[1], H = t->shape[2];
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t i = 0; i < N; i++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t x = 0; x < t->shape[3]; x++) {
                    const float was = case_get(t, b, i, h, x);
                    float mean = 0;
                    for (int64_t j = 0; j < V->shape[1]; j++)
                        mean += case_get(V, b, j, h % V->shape[2], x) / (float)V->shape[1];
                    if (how == FLIP_SIGN)
                        case_set(t, b, i, h, x, -was);
                    else if (how == NEXT_ROW && i + 1 < N)
                        case_set(t, b, i, h, x, case_get(t, b, i + 1, h, x));
                    else if (how == SWAP_HEADS && h % 2 == 0) {
                        case_set(t, b, i, h, x, case_get(t, b, i, h + 1, x));
                        case_set(t, b, i, h + 1, x, was);
                    } else if (how == ZERO || how == DOUBLE)
                        case_set(t, b, i, h, x, how == ZERO ? 0 : 2 * was);
                    else if (how == MEAN_OF_V)
                        case_set(t, b, i, h, x, mean);
                }
}

TEST(wrong_tensors_fail)
{
    const char *const hints[] = {"the sign is flipped", "should hold", "head",
                                 "all zeros",           "worst at",    "worst at"};
    for (int dtype = 0; dtype < 3; dtype++)
        for (int how = 0; how < SPOIL_COUNT; how++)
            for (int t = 0; t < 4; t++) {
                Subject s = subject_new((AttnDtype)dtype, ATTN_MASK_NONE);
                const AttnArgs *a = &s.c->args;
                const Tensor *const all[] = {&a->O, &a->dQ, &a->dK, &a->dV};
                const int which[] = {CHECK_O, CHECK_DQ, CHECK_DK, CHECK_DV};
                assert_true(passes(&s));
                spoil(all[t], (Spoil)how, &a->V);
                assert_false(passes(&s));
                for (int n = 0; n < 4; n++)
                    assert_int_equal(n == t, s.check.array[which[n]].off > 0);
                expect_text(&s, hints[how]);
                subject_free(&s);
            }
}

TEST(wrong_lse_fails)
{
    Subject s = subject_new(ATTN_F32, ATTN_MASK_NONE);
    for (int64_t i = 0; i < 2 * 4 * 70; i++)
        s.c->lse[i] *= 1.44269504f;
    assert_false(passes(&s));
    expect_text(&s, "base 2");
    subject_free(&s);
    s = subject_new(ATTN_F32, ATTN_MASK_NONE);
    for (int64_t i = 0; i < 2 * 4 * 70 - 1; i++)
        s.c->lse[i] = s.c->lse[i + 1];
    assert_false(passes(&s));
    expect_text(&s, "should hold");
    subject_free(&s);
}

/* 70 queries over 66 keys, lower-right causal: rows 0 .. 3 see nothing. Exactly 0 and -inf. */
TEST(empty_rows_are_exact)
{
    Subject s = subject_new(ATTN_BF16, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    const float wrong_lse[] = {0, NAN, INFINITY, -1e30f, -3e38f};
    assert_true(passes(&s));
    assert_true(s.c->lse[2] == -INFINITY);
    for (int n = 0; n < 5; n++) {
        s.c->lse[2] = wrong_lse[n];
        assert_false(passes(&s));
    }
    s.c->lse[2] = -INFINITY;
    assert_true(passes(&s));
    case_set(&s.c->args.O, 0, 2, 0, 1, 1e-30f);
    assert_false(passes(&s));
    expect_text(&s, "see no key");
    case_set(&s.c->args.O, 0, 2, 0, 1, -0.0f);
    assert_true(passes(&s));
    case_set(&s.c->args.dQ, 1, 3, 2, 0, NAN);
    assert_false(passes(&s));
    subject_free(&s);
}

/* Without the mask, with a key too few or too many, or with the kv heads in the wrong order. */
TEST(wrong_attention_fails)
{
    for (int dtype = 0; dtype < 3; dtype++)
        for (int wrong = 0; wrong < 4; wrong++) {
            Subject s = subject_new((AttnDtype)dtype, ATTN_MASK_CAUSAL_LOWER_RIGHT);
            AttnArgs *a = &s.c->args;
            const AttnArgs right = *a;
            if (wrong == 0)
                a->rule.right = -1; /* no mask */
            else if (wrong == 1)
                s.c->segments_q[0].position++; /* one key too many */
            else if (wrong == 2)
                s.c->segments_q[0].position = 0; /* upper-left */
            else
                a->scale = 1;
            honest_forward(&plain, a);
            honest_backward(&plain, a);
            *a = right;
            assert_false(passes(&s));
            for (int which = 0; which <= CHECK_DV; which++)
                assert_true(s.check.array[which].off > 0);
            subject_free(&s);
        }
}

/* An input holds a NaN in channel 1 of the last token of head 0 of batch 0. A window of two: only
 * the last row and the last two keys have to do with it. */
static Subject hidden_nan(const Tensor *(*input)(AttnArgs *))
{
    Subject s = {.c = case_new((AttnShape){2, 4, 2, 8, 8, 3}, ATTN_F32, LAYOUT_BSHD, 1)};
    case_align(s.c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    s.c->args.rule.left = 1;
    case_set(input(&s.c->args), 0, 7, 0, 1, NAN);
    assert_int_equal(0, oracle_run(&s.o, &s.c->args, 1, 1));
    for (int which = 0; which <= CHECK_DV; which++) { /* what is right */
        const CheckSlot slot = check_slot(&s.o, &s.c->args, which);
        for (int64_t e = 0; e < slot.expected->count; e++) {
            const int64_t x = e % slot.width, i = e / slot.width % 8, at = e / slot.width / 8;
            const float value = (float)slot.expected->value[e];
            if (slot.found)
                case_set(slot.found, at / slot.heads, i, at % slot.heads, x, value);
            else
                s.c->lse[e] = value;
        }
    }
    assert_true(passes(&s));
    return s;
}

static const Tensor *in_V(AttnArgs *a)
{
    return &a->V;
}
static const Tensor *in_K(AttnArgs *a)
{
    return &a->K;
}
static const Tensor *in_Q(AttnArgs *a)
{
    return &a->Q;
}
static const Tensor *in_dO(AttnArgs *a)
{
    return &a->dO;
}

/* What a NaN in token 2 of each output gives, where 0 x NaN may have come from that input: 0 never,
 * 1 in channel 1, 2 in every channel. Never in another head or batch, and never in lse. */
TEST(nan_of_a_hidden_neighbour)
{
    static const struct {
        const Tensor *(*input)(AttnArgs *);
        int excuses[CHECK_DV + 1]; /* O lse dQ dK dV */
        float softcap;             /* its slope, of a NaN score, reaches dS */
    } rules[] = {{in_V, {1, 0, 2, 2, 0}, 0.0f},
                 {in_K, {0, 0, 1, 2, 2}, 0.0f},
                 {in_K, {0, 0, 2, 2, 2}, 3.0f},
                 {in_Q, {0, 0, 0, 2, 2}, 0.0f},
                 {in_dO, {0, 0, 0, 2, 1}, 0.0f}};
    for (size_t n = 0; n < sizeof rules / sizeof *rules; n++) {
        Subject s = hidden_nan(rules[n].input);
        AttnArgs *a = &s.c->args;
        const Tensor *const outputs[] = {&a->O, NULL, &a->dQ, &a->dK, &a->dV};
        a->softcap = rules[n].softcap;
        for (int which = 0; which <= CHECK_DV; which++)
            for (int other = 0; other < 3; other++) /* the head itself, another one, a batch */
                for (int64_t x = 0; x < (which == CHECK_LSE ? 1 : 3); x++) {
                    const int64_t b = other == 2, h = other != 1 ? 0 : which <= CHECK_DQ ? 2 : 1;
                    const Tensor *t = outputs[which];
                    float *lse = &a->lse[(b * 4 + h) * 8 + 2];
                    const float kept = t ? case_get(t, b, 2, h, x) : *lse;
                    const int excuse = rules[n].excuses[which];
                    const int right = other == 0 && (excuse == 2 || (excuse == 1 && x == 1));
                    if (t)
                        case_set(t, b, 2, h, x, NAN);
                    else
                        *lse = NAN;
                    if (passes(&s) != right)
                        fail_msg("input %d: a NaN in %s, channel %d, %s", (int)n,
                                 s.check.array[which].name, (int)x, right ? "fails" : "passes");
                    assert_int_equal(right, s.check.array[which].shared);
                    if (t)
                        case_set(t, b, 2, h, x, kept);
                    else
                        *lse = kept;
                }
        subject_free(&s);
    }
}

static void expect_note(const Check *check, const char *text)
{
    char found[512] = "";
    FILE *to = fmemopen(found, sizeof found, "w");
    assert_non_null(to);
    check_note_shared(check, "v", to);
    fclose(to);
    assert_string_equal(text, found);
}

TEST(note_of_what_is_excused)
{
    Subject s = hidden_nan(in_V);
    expect_note(&s.check, "");
    case_set(&s.c->args.O, 0, 2, 0, 1, NAN);
    assert_true(passes(&s));
    expect_note(&s.check,
                "note: v: 1 row that does not see a non-finite key is not finite: 0 x NaN "
                "in a shared tile (O)\n");
    for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < 6; i++)
            case_set(&s.c->args.O, 0, i, h, 1, INFINITY);
    for (int64_t x = 0; x < 3; x++)
        case_set(&s.c->args.dK, 0, 4, 0, x, NAN);
    assert_true(passes(&s));
    expect_note(&s.check, "note: v: 12 rows that do not see a non-finite key are not finite: 0 x "
                          "NaN in a shared tile (O)\nnote: v: 1 sum that no non-finite input "
                          "belongs to is not finite: 0 x NaN in a shared tile (dK)\n");
    case_set(&s.c->args.O, 0, 7, 0, 1, 1); /* it sees the key: a finite value is wrong */
    assert_false(passes(&s));
    subject_free(&s);
}

/* check_value at its edges. */
TEST(single_values)
{
    double ratio;
    assert_int_equal(CHECK_GOOD, check_value(1, 0.5, 1.5f, 65520, 0, &ratio));
    assert_true(ratio == 1);
    assert_int_equal(CHECK_OFF, check_value(1, 0.5, 1.50001f, 65520, 0, &ratio));
    assert_int_equal(CHECK_OFF, check_value(0, 0, 1e-45f, 65520, 0, &ratio));
    assert_int_equal(CHECK_OFF_NONFINITE, check_value(1, 1e300, NAN, 65520, 0, &ratio));
    assert_int_equal(CHECK_OFF_NONFINITE, check_value(1, INFINITY, NAN, 65520, 0, &ratio));
    assert_int_equal(CHECK_OFF, check_value(1, INFINITY, 2, 65520, 0, &ratio));
    assert_int_equal(CHECK_OFF, check_value(1, NAN, 1, 65520, 0, &ratio));
    assert_int_equal(CHECK_OFF_NONFINITE, check_value(NAN, NAN, 1, 65520, 1, &ratio));
    assert_int_equal(CHECK_GOOD, check_value(NAN, NAN, INFINITY, 65520, 1, &ratio));
    assert_int_equal(CHECK_OFF_NONFINITE, check_value(-INFINITY, 0, NAN, 65520, 1, &ratio));
    assert_int_equal(CHECK_OFF_NONFINITE, check_value(-INFINITY, 0, INFINITY, 65520, 0, &ratio));
    assert_int_equal(CHECK_GOOD, check_value(-INFINITY, 0, -INFINITY, 65520, 1, &ratio));
    assert_int_equal(CHECK_GOOD, check_value(-INFINITY, NAN, NAN, 65520, 1, &ratio));
    assert_int_equal(CHECK_OFF_NONFINITE, check_value(-INFINITY, NAN, 1, 65520, 1, &ratio));
    assert_int_equal(CHECK_OPEN, check_value(1, 0.5, NAN, 65520, 1, &ratio));
    assert_int_equal(CHECK_OFF, check_value(1, 0.5, 2, 65520, 1, &ratio));
    assert_int_equal(CHECK_GOOD, check_value(65515, 10, INFINITY, 65520, 0, &ratio));
    assert_int_equal(CHECK_OFF_NONFINITE, check_value(65515, 10, -INFINITY, 65520, 0, &ratio));
    assert_int_equal(CHECK_OFF_NONFINITE, check_value(65515, 10, NAN, 65520, 0, &ratio));
    assert_int_equal(CHECK_OFF_NONFINITE, check_value(65500, 10, INFINITY, 65520, 0, &ratio));
}
