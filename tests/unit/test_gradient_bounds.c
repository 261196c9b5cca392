/* SPDX-License-Identifier: MIT
 *
 * test_gradient_bounds.c: how much of their bounds do right gradients use, and what do the bounds
 * see? test_bounds.c asks that of small cases of every option; here are the inputs that programs
 * get: outliers, large scores, the bundled activations and the real dO of a training step.
 *
 * - Right ones pass: the honest kernel in three orders (honest_options.h), and every backward
 *   pass of stages 01 and 04 behind every forward pass of stages 01 and 03, so what lse means is
 *   the same in all of them. Printed: the worst share of each bound, and of FlashAttention's rule.
 * - Wrong ones do not: delta missing, a key dropped, dQ and dK with a scale that is off. How small
 *   an error of the scale a check of single elements sees depends on the dtype: it is measured
 *   here, and what it lets pass is for test_projection.py.
 */
#include <math.h>

#include "cli_lines.h"
#include "honest_options.h"

#include "attention/backward/backward_library.h"
#include "attention/forward/flash_library.h"
#include "attention/rows.h"
#include "harness/rung.h"

RUNG_FN(flash_forward, v0_fa1_tiles)
RUNG_FN(flash_forward, v1_fa2_rows)
RUNG_FN(naive, v0_loops)
RUNG_FN(flash_backward, v0_fa1_backward)
RUNG_FN(flash_backward, v1_fa2_backward)

static const char *const lines[] = {
    "-H 2 -N 150 -d 64",
    "-H 2 --kv-heads 1 -N 200 -d 32 --causal",
    "-H 2 --seq-q 90 --seq-kv 170 -d 64 --dist outlier",
    "-H 2 --kv-heads 1 -N 130 -d 128 --dist outlier --window 60,20",
    "-H 2 -N 130 -d 64 --dist large",
    "-H 2 --seq-q 170 --seq-kv 120 -d 17 --dist large --causal --scale -0.3",
    "-H 2 -N 120 -d 64 --dist large --softcap 20",
    "-H 2 -N 140 -d 32 --dist outlier --softcap 2 --mask full --strides odd",
    "-H 1 -N 1 -d 8",
    "--bundled=encoder",
    "--bundled=causal",
};
#define LINE_COUNT ((int)(sizeof lines / sizeof *lines))
#define BUNDLED    (LINE_COUNT - 2) /* from here on: larger, so not every pair of passes */

typedef struct Pass {
    const char *name;
    AttnFn run;
} Pass;

static const Pass forwards[] = {{"naive v0_loops", naive_v0_loops},
                                {"v0_fa1_tiles", flash_forward_v0_fa1_tiles},
                                {"v1_fa2_rows", flash_forward_v1_fa2_rows},
                                {"library", flash_forward_library_cpu}};
static const Pass backwards[] = {{"naive v0_loops", naive_v0_loops_backward},
                                 {"v0_fa1_backward", flash_backward_v0_fa1_backward_backward},
                                 {"v1_fa2_backward", flash_backward_v1_fa2_backward_backward},
                                 {"library", flash_backward_library_cpu}};
static const Honest ways[] = {{1 << 20, 0, 0, 0}, {16, 1, 1, 1}, {5, 0, 1, 0}};

static Shares worst[2]; /* of the honest kernel, of the variants */

static const Variant variants[] = {
    {"v0_unit", ON_CPU, DTYPES_ALL, naive_v0_loops, naive_v0_loops_backward, 0, "", NULL, NULL}};
static const Stage stage = {"unit", "00_unit", "?", 1, STAGE_ALWAYS_BACKWARD, variants, 1};

typedef struct Trial {
    Made made;
    Storage O, dQ, dK, dV;
    AttnArgs args;
    Oracle oracle;
} Trial;

/* The first two heads of the inputs, which are all of them but for the bundled ones. */
static void trial_new(Trial *t, const char *line, AttnDtype dtype)
{
    char text[512];
    AttnArgs *a = &t->args;
    AttnShape *s = &a->shape;
    Tensor *of_q[] = {&a->Q, &a->dO}, *of_k[] = {&a->K, &a->V};
    snprintf(text, sizeof text, "%s -B 1 --threads 2 --dtype %s", line, dtype_name(dtype));
    expect_made(&t->made, text);
    *a = t->made.problem.args;
    s->Hkv = s->H == s->Hkv ? (s->H < 2 ? s->H : 2) : 1;
    s->H = s->H < 2 ? s->H : 2;
    for (int n = 0; n < 2; n++)
        of_q[n]->shape[2] = s->H, of_k[n]->shape[2] = s->Hkv;
    assert_int_equal(0, tensor_new(&t->O, dtype, LAYOUT_BSHD, s->B, s->Nq, s->H, s->d));
    assert_int_equal(0, tensor_new(&t->dQ, dtype, LAYOUT_BSHD, s->B, s->Nq, s->H, s->d));
    assert_int_equal(0, tensor_new(&t->dK, dtype, LAYOUT_BSHD, s->B, s->Nk, s->Hkv, s->d));
    assert_int_equal(0, tensor_new(&t->dV, dtype, LAYOUT_BSHD, s->B, s->Nk, s->Hkv, s->d));
    a->O = t->O.view, a->dQ = t->dQ.view, a->dK = t->dK.view, a->dV = t->dV.view;
    a->lse = calloc((size_t)(s->B * s->H * s->Nq), sizeof *a->lse);
    assert_non_null(a->lse);
    assert_int_equal(0, oracle_run(&t->oracle, a, 1, 2));
}

static void trial_free(Trial *t)
{
    oracle_free(&t->oracle);
    free(t->args.lse);
    tensor_free(&t->O);
    tensor_free(&t->dQ);
    tensor_free(&t->dK);
    tensor_free(&t->dV);
    drop(&t->made);
}

static Check judge(const Trial *t)
{
    return check_of(&t->args, &t->oracle, 1, 4);
}

static void expect_pass(const Trial *t, int group, const char *line, const char *name,
                        const char *forward)
{
    const Check check = judge(t);
    char label[256];
    snprintf(label, sizeof label, "%s behind %s, %s", name, forward, line);
    assert_pass(&check, &t->args, label);
    shares_add(worst[group], t->args.Q.dtype, &check);
}

/* Sanitizers and qemu: the honest kernel is slow, its accuracy is not theirs to judge. */
static int line_count(void)
{
    return quick() ? 2 : LINE_COUNT;
}

TEST(honest_kernels_pass)
{
    for (int n = 0; n < line_count(); n++)
        for (int dtype = n < BUNDLED ? 0 : 1; dtype < 3; dtype++) {
            Trial t = {0};
            trial_new(&t, lines[n], (AttnDtype)dtype);
            honest_forward(&ways[n % 3], &t.args);
            honest_backward(&ways[n % 3], &t.args);
            expect_pass(&t, 0, lines[n], "the honest kernel", "itself");
            trial_free(&t);
        }
}

TEST(any_forward_feeds_any_backward)
{
    for (int n = 0; n < line_count(); n++)
        for (int dtype = 0; dtype < 3; dtype++) {
            Trial t = {0};
            trial_new(&t, lines[n], (AttnDtype)dtype);
            for (int f = 0; f < 4; f++) {
                assert_int_equal(ATTN_OK, forwards[f].run(&t.args));
                for (int b = 0; b < 4; b++) {
                    if (n >= BUNDLED && (f != b || b == 0))
                        continue;
                    assert_int_equal(ATTN_OK, backwards[b].run(&t.args));
                    expect_pass(&t, 1, lines[n], backwards[b].name, forwards[f].name);
                }
            }
            trial_free(&t);
        }
}

/* Scores of 10^6 and more, whose roundings multiply P by exp(x) with x above 1: right passes lie
 * within the bound, which they left when it took exp(x) for 1 + x; beyond exp(80) the oracle says
 * that it cannot judge. */
TEST(scores_of_millions)
{
    static const char *const scales[] = {"-H 1 -N 90 -d 64 --scale 3e5",
                                         "-H 1 -N 90 -d 64 --scale 1e6"};
    Trial t = {0};
    for (int n = 0; n < 2; n++) {
        trial_new(&t, scales[n], ATTN_F32);
        assert_false(t.oracle.beyond);
        assert_int_equal(ATTN_OK, forwards[1].run(&t.args));
        for (int b = 0; b < 4; b++) {
            assert_int_equal(ATTN_OK, backwards[b].run(&t.args));
            const Check check = judge(&t);
            assert_pass(&check, &t.args, backwards[b].name);
        }
        trial_free(&t);
    }
    trial_new(&t, "-H 1 -N 90 -d 64 --scale 1e8", ATTN_F32);
    assert_true(t.oracle.beyond);
    trial_free(&t);
}

/* t = t * by, rounded to its dtype. */
static void multiply(const Tensor *t, float by)
{
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t n = 0; n < t->shape[1]; n++)
            for (int64_t h = 0; h < t->shape[2]; h++)
                for (int64_t x = 0; x < t->shape[3]; x++)
                    case_set(t, b, n, h, x, by * case_get(t, b, n, h, x));
}

static const char *const wrong_case = "-H 2 -N 128 -d 64 --causal";

/* Smallest slip of the scale of dQ and of dK, among 0.01 % times powers of 2, that is refused. */
TEST(slip_of_the_scale)
{
    const double allowed[] = {0.01, 0.02, 0.2};
    for (int dtype = 0; dtype < 3; dtype++) {
        double slip[2] = {0, 0};
        Trial t = {0};
        trial_new(&t, wrong_case, (AttnDtype)dtype);
        flash_forward_library_cpu(&t.args);
        for (int g = 0; g < 2; g++)
            for (double by = 1e-4; slip[g] == 0 && by < 1; by *= 2) {
                flash_backward_library_cpu(&t.args);
                multiply(g ? &t.args.dK : &t.args.dQ, 1 + (float)by);
                const Check check = judge(&t);
                assert_true(check.array[g ? CHECK_DQ : CHECK_DK].off == 0);
                slip[g] = check.array[g ? CHECK_DK : CHECK_DQ].off > 0 ? by : 0;
            }
        trial_free(&t);
        print_message("# scale slips that are seen, %s: dQ %.2f %%, dK %.2f %%\n",
                      dtype_name((AttnDtype)dtype), 100 * slip[0], 100 * slip[1]);
        for (int g = 0; g < 2; g++)
            assert_true(slip[g] > 0 && slip[g] <= allowed[dtype]);
    }
}

/* delta = 0, by a backward pass that finds O = 0; and keys that were forgotten. */
TEST(missing_delta_and_keys)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        Trial t = {0};
        Check check;
        uint8_t *mask = calloc(128 * 128, 1);
        assert_non_null(mask);
        trial_new(&t, wrong_case, (AttnDtype)dtype);
        flash_forward_library_cpu(&t.args);
        multiply(&t.args.O, 0);
        flash_backward_library_cpu(&t.args);
        check = judge(&t);
        print_message("# delta missing, %s: dQ %.1f, dK %.1f, dV %.2f bounds\n",
                      dtype_name((AttnDtype)dtype), check.array[CHECK_DQ].worst_ratio,
                      check.array[CHECK_DK].worst_ratio, check.array[CHECK_DV].worst_ratio);
        assert_true(check.array[CHECK_DQ].off > 0 && check.array[CHECK_DK].off > 0);
        assert_true(check.array[CHECK_DV].off == 0); /* dV does not know of delta */
        flash_forward_library_cpu(&t.args);
        for (int64_t i = 0; i < 128; i++)
            mask[i * 128 + 40] = 1; /* one key, seen by 88 queries */
        t.args.mask = mask;
        flash_backward_library_cpu(&t.args);
        t.args.mask = NULL;
        check = judge(&t);
        print_message("# one key dropped, %s: dQ %.1f, dK %.1f, dV %.1f bounds\n",
                      dtype_name((AttnDtype)dtype), check.array[CHECK_DQ].worst_ratio,
                      check.array[CHECK_DK].worst_ratio, check.array[CHECK_DV].worst_ratio);
        for (int which = CHECK_DQ; which <= CHECK_DV; which++)
            assert_true(check.array[which].off > 0);
        free(mask);
        trial_free(&t);
    }
}

/* dV in f16 reaches its bound: gradients of the training step are as small as 1.5 subnormals of
 * f16, and storing one costs half a subnormal, 2^-25. That is the floor eta. */
TEST(report)
{
    shares_report("honest", worst[0], CHECK_DWQ);
    shares_report("variants", worst[1], CHECK_DWQ);
}
