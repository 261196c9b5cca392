/* SPDX-License-Identifier: MIT
 *
 * test_bundled.c: do the shipped activations reach a case as they lie in common/data? Which files
 * they are and what they hold is the business of tests/docs/test_plots.py.
 */
#include "cli_lines.h"

static const Variant variants[] = {{"v0_unit", ON_CPU, DTYPES_ALL, nothing, nothing, 0, ""}};
static const Stage stage = {"unit", "00_unit", "?", 1, STAGE_HAS_BACKWARD, variants, 1};

static const AttnArgs *make(Made *m, const char *line)
{
    expect_made(m, line);
    return &m->problem.args;
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
    Made c;
    const AttnArgs *a = make(&c, "--bundled=causal");
    assert_true(a->shape.B == 1 && a->shape.H == 4 && a->shape.Hkv == 2 && a->shape.Nq == 512 &&
                a->shape.Nk == 512 && a->shape.d == 64);
    assert_true(c.problem.mask_type == ATTN_MASK_CAUSAL_LOWER_RIGHT);
    assert_true(attn_sees(a, 100, 100) && !attn_sees(a, 100, 101));
    assert_null(c.problem.dO.mapping); /* a forward pass has no use for it */
    drop(&c);
    a = make(&c, "--bundled=causal --mask none");
    assert_true(c.problem.mask_type == ATTN_MASK_NONE && attn_sees(a, 100, 101));
    drop(&c);
    a = make(&c, "--bundled --backward");
    assert_true(a->shape.H == 12 && a->shape.Nq == 384 && a->shape.d == 32);
    assert_true(c.problem.mask_type == ATTN_MASK_NONE);
    drop(&c);
}

/* The dO of the training step does not come from the seed; the encoder has none, so its does. */
TEST(dO_is_of_the_file)
{
    Made one, other;
    const AttnArgs *a = make(&one, "--bundled=causal --backward --seed 1");
    assert_true(same_dO(a, make(&other, "--bundled=causal --backward --seed 2 --strides odd")));
    drop(&one);
    drop(&other);
    a = make(&one, "--bundled --backward --seed 1");
    assert_false(same_dO(a, make(&other, "--bundled --backward --seed 2")));
    drop(&one);
    drop(&other);
}

/* Five orders of magnitude between rows, which float16 cannot hold and bfloat16 can. */
TEST(dO_in_each_dtype)
{
    double least, most;
    Made c;
    assert_true(dO_range(make(&c, "--bundled=causal --backward"), &least, &most) == 0.0);
    assert_true(least < 1e-8 && most > 1e-4 && most < 1e-2);
    drop(&c);
    assert_true(dO_range(make(&c, "--bundled=causal --backward --dtype bf16"), &least, &most) ==
                0.0);
    assert_true(least < 1e-8 && most > 1e-4);
    drop(&c);
    assert_true(dO_range(make(&c, "--bundled=causal --backward --dtype f16"), &least, &most) > 0.2);
    assert_true(least == 0.0 && most > 1e-4);
    drop(&c);
}
