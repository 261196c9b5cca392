/* SPDX-License-Identifier: MIT
 *
 * test_flash_op.c: the operator computes attention.
 *
 * Every result is compared with the oracle: dtypes, mask types, 3 and 4 dimensions, GQA and MQA,
 * layouts, negative strides and stride 0, masks with rows apart, empty rows, with and without lse,
 * on a CPU and on a GPU that is pretended (pretend_device.h). Workspaces and outputs start as NaN,
 * stand beside fences, and inputs may not change.
 */
#include <math.h>

#include "op_case.h"
#include "pretend_device.h"

typedef struct Plan {
    FlashAttentionDevice device;
    int ndim, threads;
    FlashAttentionMask mask_type;
    int64_t mask_stride; /* of rows: Nk, more, or 0 */
} Plan;

/* Rows of the mask as far apart as the plan says; c->mask becomes what the oracle reads. */
static uint8_t *spread_mask(Case *c, int64_t stride)
{
    const AttnShape *s = &c->args.shape;
    const size_t bytes = (size_t)((s->Nq - 1) * stride + s->Nk);
    uint8_t *spread = malloc(bytes);
    assert_non_null(spread);
    memset(spread, 1, bytes); /* what lies between rows would hide everything */
    for (int64_t i = 0; i < s->Nq; i++)
        for (int64_t j = 0; j < s->Nk; j++) {
            if (stride == 0)
                c->mask[i * s->Nk + j] = c->mask[j];
            spread[i * stride + j] = c->mask[i * s->Nk + j];
        }
    return spread;
}

static uint64_t fingerprint(const Case *c)
{
    return tensor_fingerprint(&c->Q) ^ 3 * tensor_fingerprint(&c->K) ^
           5 * tensor_fingerprint(&c->V);
}

/* Twice with lse, once without: the same bits each time, and right. */
static void run_and_judge(Case *c, const Plan *p, const char *name)
{
    const AttnShape *s = &c->args.shape;
    const size_t lse_bytes = sizeof(float) * (size_t)(s->B * s->H * s->Nq);
    const FlashAttentionTensor mask = {
        FLASH_ATTENTION_BOOL, 2, {s->Nq, s->Nk, 0, 0}, {p->mask_stride, 1, 0, 0}};
    FlashAttentionHandle *handle;
    uint8_t *spread = NULL;
    float *lse = malloc(lse_bytes);
    uint64_t before, first;
    assert_non_null(lse);
    if (p->mask_type == FLASH_ATTENTION_MASK_FULL) {
        case_mask(c);
        spread = spread_mask(c, p->mask_stride);
    }
    before = fingerprint(c);
    assert_int_equal(SUCCESS, flash_attention_create_handle(&handle, p->device, 0));
    if (p->device == FLASH_ATTENTION_CPU)
        assert_int_equal(SUCCESS, flash_attention_set_threads(handle, p->threads));
    FlashAttention *op = op_like(handle, c, p->ndim, p->mask_type, &mask);
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle)); /* not needed any more */
    Scratch scratch = op_scratch(op);

    workspace_reset_peak();
    const size_t live = workspace_live();
    assert_int_equal(SUCCESS, case_run(op, c, &scratch, spread, c->lse));
    first = tensor_fingerprint(&c->O);
    memcpy(lse, c->lse, lse_bytes);
    memset(scratch.at, 0x7F, scratch.bytes);
    memset(c->lse, 0xFF, lse_bytes);
    tensor_poison(&c->O);
    assert_int_equal(SUCCESS, case_run(op, c, &scratch, spread, NULL));
    assert_true(tensor_fingerprint(&c->O) == first);
    assert_int_equal(SUCCESS, case_run(op, c, &scratch, spread, c->lse));
    assert_memory_equal(lse, c->lse, lse_bytes);
    assert_true(tensor_fingerprint(&c->O) == first && tensor_intact(&c->O));
    assert_true(fingerprint(c) == before);
    assert_true(workspace_live() == live && workspace_peak() == live);

    assert_int_equal(SUCCESS, flash_attention_destroy(op));
    workspace_free(scratch.memory);
    assert_true(workspace_intact());
    case_judge(c, 0, 4, 1, name);
    free(spread);
    free(lse);
}

/* A random case: what is not random are the bounds, which include sizes of 1. */
TEST(test_random_cases)
{
    static const TensorLayout layouts[] = {LAYOUT_BSHD, LAYOUT_SBHD, LAYOUT_BHSD, LAYOUT_ODD};
    const int cases = getenv("ATTN_TEST_QUICK") ? 120 : 400;
    pretend_reset();
    for (int n = 0; n < cases; n++) {
        const int64_t Hkv = 1 + case_random() % 3;
        const AttnShape s = {
            1 + case_random() % 2,  Hkv * (1 + case_random() % 3), Hkv,
            1 + case_random() % 70, 1 + case_random() % 70,        1 + case_random() % 40};
        const AttnDtype dtype = (AttnDtype)(case_random() % 3);
        Case *c = case_new(s, dtype, layouts[case_random() % 4], 1);
        Plan p = {.device = n % 2 ? FLASH_ATTENTION_CUDA : FLASH_ATTENTION_CPU,
                  .ndim = s.B == 1 && case_random() % 2 ? 3 : 4,
                  .threads = 1 + (int)(case_random() % 3),
                  .mask_type = (FlashAttentionMask)(n / 2 % 4),
                  .mask_stride = case_random() % 3 == 0 ? 0 : s.Nk + case_random() % 3};
        Tensor *all[] = {&c->args.Q, &c->args.K, &c->args.V, &c->args.O};
        for (int t = 0; t < 4; t++)
            for (int dim = 0; dim < 3; dim++)
                if (case_random() % 4 == 0)
                    flip(all[t], dim);
        if (case_random() % 4 == 0)
            c->args.scale = (float)(int)(case_random() % 5) * 0.25f - 0.5f;
        case_align(c, (AttnMask)p.mask_type);
        run_and_judge(c, &p, "random case");
        case_free(c);
    }
}

/* One head, one batch or one row of memory that stands for many. */
TEST(test_stride_zero)
{
    pretend_reset();
    for (int device = 0; device < 2; device++)
        for (int dim = 0; dim < 3; dim++) {
            Case *c = case_new((AttnShape){2, 3, 3, 21, 34, 16}, ATTN_BF16, LAYOUT_BSHD, 1);
            const Plan p = {.device = (FlashAttentionDevice)device, .ndim = 4, .threads = 2};
            c->args.K.stride[dim] = c->args.V.stride[dim] = 0;
            c->args.Q.stride[(dim + 1) % 3] = 0;
            run_and_judge(c, &p, "stride 0");
            case_free(c);
        }
}

/* Lower-right with more queries than keys: the first rows see none. */
TEST(test_empty_rows)
{
    Case *c = case_new((AttnShape){1, 2, 1, 50, 20, 24}, ATTN_F16, LAYOUT_ODD, 1);
    const Plan p = {.ndim = 3,
                    .threads = 1,
                    .mask_type = FLASH_ATTENTION_MASK_CAUSAL_LOWER_RIGHT,
                    .mask_stride = 20};
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    run_and_judge(c, &p, "empty rows");
    for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < 30; i++) {
            assert_true(c->lse[h * 50 + i] == -INFINITY);
            for (int64_t x = 0; x < 24; x++)
                assert_true(case_get(&c->args.O, 0, i, h, x) == 0.0f);
        }
    case_free(c);
}

/* NULL is 1/sqrt(d), to the bit. */
TEST(test_default_scale)
{
    Case *c = case_new((AttnShape){1, 1, 1, 9, 9, 48}, ATTN_F32, LAYOUT_BSHD, 1);
    const FlashAttentionTensor t = describe_view(&c->args.Q, 4);
    FlashAttentionHandle *handle;
    FlashAttention *op;
    assert_int_equal(SUCCESS, flash_attention_create_handle(&handle, FLASH_ATTENTION_CPU, 0));
    assert_int_equal(SUCCESS, flash_attention_create(handle, &op, &t, &t, &t, &t, NULL,
                                                     FLASH_ATTENTION_MASK_NONE, NULL));
    Scratch scratch = op_scratch(op);
    assert_int_equal(SUCCESS, case_run(op, c, &scratch, NULL, c->lse));
    c->args.scale = 1 / sqrtf(48);
    case_judge(c, 0, 4, 1, "default scale");
    assert_int_equal(SUCCESS, flash_attention_destroy(op));
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
    workspace_free(scratch.memory);
    case_free(c);
}

/* 512 is the head dimension of a public operator's worked example, 1024 the most. */
TEST(test_wide_heads)
{
    for (int64_t d = 512; d <= 1024; d += 512) {
        Case *c = case_new((AttnShape){1, 2, 2, 5, 7, d}, ATTN_F32, LAYOUT_BHSD, 1);
        const Plan p = {.ndim = 4, .threads = 2};
        run_and_judge(c, &p, "wide heads");
        case_free(c);
    }
}

/* Its stride is never used; so no copy is made of it either, whatever it says. */
TEST(test_mask_of_one_row)
{
    static const int64_t strides[] = {9, 1, 0, -5, 20};
    Case *c = case_new((AttnShape){1, 2, 1, 1, 9, 8}, ATTN_F32, LAYOUT_BSHD, 1);
    for (int device = 0; device < 2; device++) {
        FlashAttentionHandle *handle;
        size_t bytes[5];
        assert_int_equal(SUCCESS,
                         flash_attention_create_handle(&handle, (FlashAttentionDevice)device, 0));
        for (int n = 0; n < 5; n++) {
            const FlashAttentionTensor mask = {
                FLASH_ATTENTION_BOOL, 2, {1, 9, 0, 0}, {strides[n], 1, 0, 0}};
            FlashAttention *op = op_like(handle, c, 4, FLASH_ATTENTION_MASK_FULL, &mask);
            assert_int_equal(SUCCESS, flash_attention_workspace_size(op, &bytes[n]));
            assert_int_equal(SUCCESS, flash_attention_destroy(op));
            assert_true(bytes[n] == bytes[0]);
        }
        assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
    }
    case_free(c);
}

/* Bits do not show how many threads there were; the workspace has room for each. */
TEST(test_threads_are_those_of_the_handle)
{
    Case *c = case_new((AttnShape){1, 4, 4, 20, 20, 16}, ATTN_F32, LAYOUT_BSHD, 1);
    size_t bytes[3];
    for (int threads = 1; threads <= 2; threads++) {
        FlashAttentionHandle *handle;
        assert_int_equal(SUCCESS, flash_attention_create_handle(&handle, FLASH_ATTENTION_CPU, 0));
        assert_int_equal(SUCCESS, flash_attention_set_threads(handle, threads));
        FlashAttention *op = op_like(handle, c, 4, FLASH_ATTENTION_MASK_NONE, NULL);
        assert_int_equal(SUCCESS, flash_attention_workspace_size(op, &bytes[threads]));
        assert_int_equal(SUCCESS, flash_attention_destroy(op));
        assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
    }
    assert_true(bytes[1] < bytes[2]);
    case_free(c);
}

TEST(test_nothing_is_left)
{
    assert_int_equal(0, pretend.host_blocks);
    assert_int_equal(0, pretend.device_blocks);
    assert_true(workspace_live() == 0);
}
