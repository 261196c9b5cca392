/* SPDX-License-Identifier: MIT
 *
 * test_bundled.c: do the shipped activations reach a case as they lie in common/data? Which files
 * they are and what they hold is the business of tests/docs/test_plots.py.
 */
#include <unistd.h>

#include "unit.h"

#include "io/problem.h"

static AttnStatus nothing(const AttnArgs *args)
{
    (void)args;
    return ATTN_OK;
}

static const Variant variants[] = {{"v0_unit", ON_CPU, DTYPES_ALL, nothing, nothing, 0, ""}};
static const Stage stage = {"unit", "00_unit", "?", 1, STAGE_HAS_BACKWARD, variants, 1};

typedef struct Case {
    Cli cli;
    Problem problem;
} Case;

static const AttnArgs *make(Case *c, const char *line)
{
    char text[512], *argv[64] = {"unit"}, *rest = NULL;
    int argc = 1;
    snprintf(text, sizeof text, "%s", line);
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    assert_int_equal(cli_parse(&c->cli, &stage, argc, argv), CLI_CONTINUE);
    assert_int_equal(problem_make(&c->problem, &c->cli.cases[0]), EXIT_OK);
    return &c->problem.args;
}

static void done(Case *c)
{
    problem_free(&c->problem);
    cli_free(&c->cli);
}

/* Norm of a row of dO, and how many of all its elements are zero. */
static double row_norm(const Tensor *dO, int64_t i, int64_t h, int64_t *zeros)
{
    double sum = 0.0;
    for (int64_t x = 0; x < dO->shape[3]; x++) {
        double value = (double)tensor_get(dO, tensor_offset(dO, 0, i, h) + x);
        sum += value * value;
        *zeros += value == 0.0;
    }
    return sqrt(sum);
}

/* Smallest and largest norm of a row of dO; returns the share of its elements that are zero. */
static double dO_range(const AttnArgs *a, double *least, double *most)
{
    int64_t zeros = 0;
    *least = INFINITY;
    *most = 0.0;
    for (int64_t i = 0; i < a->shape.Nq; i++)
        for (int64_t h = 0; h < a->shape.H; h++) {
            double norm = row_norm(&a->dO, i, h, &zeros);
            *least = fmin(*least, norm);
            *most = fmax(*most, norm);
        }
    return (double)zeros / (double)(a->shape.Nq * a->shape.H * a->shape.d);
}

static int same_dO(const AttnArgs *a, const AttnArgs *b)
{
    for (int64_t i = 0; i < a->shape.Nq; i++)
        for (int64_t h = 0; h < a->shape.H; h++)
            for (int64_t x = 0; x < a->shape.d; x++)
                if (tensor_get(&a->dO, tensor_offset(&a->dO, 0, i, h) + x) !=
                    tensor_get(&b->dO, tensor_offset(&b->dO, 0, i, h) + x))
                    return 0;
    return 1;
}

TEST(sizes_and_mask)
{
    Case c;
    const AttnArgs *a = make(&c, "--bundled=causal");
    assert_true(a->shape.B == 1 && a->shape.H == 4 && a->shape.Hkv == 2 && a->shape.Nq == 512 &&
                a->shape.Nk == 512 && a->shape.d == 64);
    assert_true(c.problem.mask_type == ATTN_MASK_CAUSAL_LOWER_RIGHT);
    assert_true(attn_sees(a, 100, 100) && !attn_sees(a, 100, 101));
    assert_null(c.problem.dO.mapping); /* a forward pass has no use for it */
    done(&c);
    a = make(&c, "--bundled=causal --mask none");
    assert_true(c.problem.mask_type == ATTN_MASK_NONE && attn_sees(a, 100, 101));
    done(&c);
    a = make(&c, "--bundled --backward");
    assert_true(a->shape.H == 12 && a->shape.Nq == 384 && a->shape.d == 32);
    assert_true(c.problem.mask_type == ATTN_MASK_NONE);
    done(&c);
}

/* The dO of the training step does not come from the seed; the encoder has none, so its does. */
TEST(dO_is_of_the_file)
{
    Case one, other;
    const AttnArgs *a = make(&one, "--bundled=causal --backward --seed 1");
    assert_true(same_dO(a, make(&other, "--bundled=causal --backward --seed 2 --strides odd")));
    done(&one);
    done(&other);
    a = make(&one, "--bundled --backward --seed 1");
    assert_false(same_dO(a, make(&other, "--bundled --backward --seed 2")));
    done(&one);
    done(&other);
}

/* Five orders of magnitude between rows, which float16 cannot hold and bfloat16 can. */
TEST(dO_in_each_dtype)
{
    double least, most;
    Case c;
    assert_true(dO_range(make(&c, "--bundled=causal --backward"), &least, &most) == 0.0);
    assert_true(least < 1e-8 && most > 1e-4 && most < 1e-2);
    done(&c);
    assert_true(dO_range(make(&c, "--bundled=causal --backward --dtype bf16"), &least, &most) ==
                0.0);
    assert_true(least < 1e-8 && most > 1e-4);
    done(&c);
    assert_true(dO_range(make(&c, "--bundled=causal --backward --dtype f16"), &least, &most) > 0.2);
    assert_true(least == 0.0 && most > 1e-4);
    done(&c);
}
