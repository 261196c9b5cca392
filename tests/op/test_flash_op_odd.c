/* SPDX-License-Identifier: MIT
 *
 * test_flash_op_odd.c: descriptions made of odd numbers never crash, overflow or pass by mistake.
 *
 * Right descriptions get one to four of their numbers replaced from a box of nasty ones. What
 * create says is compared with a second opinion: the rules written down once more, in 128-bit
 * arithmetic and, for overlaps of out, by marking elements. UBSan watches in the sanitizer build.
 */
#include "op_case.h"

typedef __int128 Wide;

static int64_t nasty(void)
{
    /* clang-format off */
    static const int64_t box[] = {
        0, 1, -1, 2, 3, 4, 7, 8, 64, -8, 1024, 1025, INT32_MAX, INT64_C(1) << 31, INT64_C(1) << 32,
        INT64_C(1) << 43, INT64_C(1) << 62, INT64_MAX, INT64_MIN, INT64_MIN + 1};
    /* clang-format on */
    return box[case_random() % (sizeof box / sizeof *box)];
}

static void scramble(FlashAttentionTensor *t)
{
    const uint32_t which = case_random() % 16;
    if (which == 0)
        t->dtype = (FlashAttentionDtype)(case_random() % 7);
    else if (which == 1)
        t->ndim = (int)(case_random() % 8) - 1;
    else if (which < 8)
        t->shape[case_random() % 4] = nasty();
    else
        t->strides[case_random() % 4] = nasty();
}

/* --- second opinion ----------------------------------------------------------------------------*/

static int shape_is_good(const FlashAttentionTensor *t)
{
    Wide count = 1;
    if (t->ndim < 1 || t->ndim > 4)
        return 0;
    for (int n = 0; n < t->ndim; n++) {
        if (t->shape[n] < 1)
            return 0;
        count = count > (Wide)1 << 50 ? count : count * t->shape[n];
    }
    return count <= (Wide)1 << 44;
}

static int strides_are_good(const FlashAttentionTensor *t, int64_t bytes)
{
    Wide span = 0;
    for (int n = 0; n < t->ndim; n++) {
        const Wide stride = t->shape[n] == 1 ? 0 : (Wide)t->strides[n];
        span += (stride < 0 ? -stride : stride) * (t->shape[n] - 1);
        if (t->shape[n] > 1 && t->strides[n] == INT64_MIN)
            return 0;
    }
    return span * bytes <= (Wide)1 << 62 &&
           (t->shape[t->ndim - 1] == 1 || t->strides[t->ndim - 1] == 1);
}

/* Small tensors only: is an address used twice? */
static int marks_overlap(const FlashAttentionTensor *t)
{
    static unsigned char marks[1 << 16];
    int64_t size[4] = {1, 1, 1, 1}, stride[4] = {0, 0, 0, 0}, low = 0, high = 0;
    for (int n = 0; n < t->ndim; n++) {
        size[n] = t->shape[n];
        stride[n] = size[n] == 1 ? 0 : t->strides[n];
        *(stride[n] < 0 ? &low : &high) += stride[n] * (size[n] - 1);
    }
    assert_true(high - low < (int64_t)sizeof marks);
    memset(marks, 0, sizeof marks);
    for (int64_t a = 0; a < size[0]; a++)
        for (int64_t b = 0; b < size[1]; b++)
            for (int64_t c = 0; c < size[2]; c++)
                for (int64_t d = 0; d < size[3]; d++)
                    if (marks[a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3] -
                              low]++)
                        return 1;
    return 0;
}

static void expect_opinion(FlashAttentionStatus status, const FlashAttentionTensor *const t[4])
{
    static const int64_t bytes[] = {4, 2, 2, 1, 1};
    int good = 1;
    for (int n = 0; n < 4; n++)
        if ((unsigned)t[n]->dtype > 2 || t[n]->dtype != t[0]->dtype)
            good = 0;
    assert_true(good || status == FLASH_ATTENTION_BAD_TENSOR_DTYPE);
    if (!good)
        return;
    for (int n = 0; n < 4; n++)
        good = good && shape_is_good(t[n]) && t[n]->ndim == t[0]->ndim && t[0]->ndim > 2;
    for (int n = 0; good && n < t[0]->ndim; n++)
        good = t[0]->shape[n] == t[1]->shape[n] && t[2]->shape[n] == t[3]->shape[n];
    if (good) {
        const int64_t *q = t[1]->shape + t[0]->ndim - 3, *k = t[2]->shape + t[0]->ndim - 3;
        good = q[2] == k[2] && q[1] % k[1] == 0 && (t[0]->ndim == 3 || q[-1] == k[-1]);
    }
    assert_true(good == (status != FLASH_ATTENTION_BAD_TENSOR_SHAPE));
    if (!good)
        return;
    for (int n = 0; n < 4; n++)
        good = good && strides_are_good(t[n], bytes[t[n]->dtype]);
    if (status == SUCCESS || status == FLASH_ATTENTION_NOT_IMPLEMENTED)
        assert_true(good);
    else
        assert_int_equal(FLASH_ATTENTION_BAD_TENSOR_STRIDES, status);
    if (good && status == FLASH_ATTENTION_NOT_IMPLEMENTED)
        assert_true(t[1]->shape[t[1]->ndim - 1] > 1024);
}

TEST(test_odd_descriptions)
{
    const int rounds = getenv("ATTN_TEST_QUICK") ? 20000 : 100000;
    FlashAttentionHandle *handle;
    int made = 0;
    assert_int_equal(SUCCESS, flash_attention_create_handle(&handle, FLASH_ATTENTION_CPU, 0));
    for (int n = 0; n < rounds; n++) {
        const int64_t q_shape[] = {2, 4, 4, 8}, k_shape[] = {2, 3, 2, 8};
        const int ndim = 3 + n % 2;
        FlashAttentionTensor out, q, k, v;
        FlashAttention *op = NULL;
        size_t bytes = 0;
        assert_int_equal(SUCCESS, flash_attention_describe(&q, (FlashAttentionDtype)(n / 2 % 3),
                                                           ndim, q_shape + 4 - ndim, NULL));
        assert_int_equal(SUCCESS, flash_attention_describe(&k, (FlashAttentionDtype)(n / 2 % 3),
                                                           ndim, k_shape + 4 - ndim, NULL));
        out = q;
        v = k;
        FlashAttentionTensor *const t[] = {&out, &q, &k, &v};
        for (uint32_t m = case_random() % 4 + 1; m > 0; m--) {
            const uint32_t which = case_random() % 4;
            scramble(t[which]);
            if (case_random() % 2) /* both of a pair, so that more gets past the comparison */
                *t[which ^ 1] = *t[which];
        }
        const FlashAttentionStatus status = flash_attention_create(
            handle, &op, &out, &q, &k, &v, NULL, (FlashAttentionMask)(n % 4 == 1 ? 3 : 0), NULL);
        assert_true((op != NULL) == (status == SUCCESS));
        expect_opinion(status, (const FlashAttentionTensor *const *)t);
        if (op) {
            assert_int_equal(SUCCESS, flash_attention_workspace_size(op, &bytes));
            assert_true(bytes > 0 && bytes < (size_t)1 << 62);
            made++;
        }
        assert_int_equal(SUCCESS, flash_attention_destroy(op));
    }
    assert_true(made > rounds / 50); /* else the test looks at refusals only */
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
}

/* Strides of out from a small box: what is accepted has no element twice; what is refused either
 * has, or is one of the few that the simple rule gives up on. */
TEST(test_overlaps_of_out)
{
    static const int64_t box[] = {0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 25, 48, -3, -4, -6, -12, -24};
    const int64_t shape[] = {2, 4, 2, 3};
    FlashAttentionHandle *handle;
    FlashAttentionTensor q, out;
    int accepted = 0, refused = 0, too_careful = 0;
    assert_int_equal(SUCCESS, flash_attention_create_handle(&handle, FLASH_ATTENTION_CPU, 0));
    assert_int_equal(SUCCESS, flash_attention_describe(&q, FLASH_ATTENTION_F32, 4, shape, NULL));
    for (int a = 0; a < 18; a++)
        for (int b = 0; b < 18; b++)
            for (int c = 0; c < 18; c++) {
                FlashAttention *op;
                out = q;
                out.strides[0] = box[a], out.strides[1] = box[b], out.strides[2] = box[c];
                const FlashAttentionStatus status = flash_attention_create(
                    handle, &op, &out, &q, &q, &q, NULL, FLASH_ATTENTION_MASK_NONE, NULL);
                const int twice = marks_overlap(&out);
                if (status == SUCCESS) {
                    assert_false(twice);
                    accepted++;
                } else {
                    assert_int_equal(FLASH_ATTENTION_BAD_TENSOR_STRIDES, status);
                    refused += twice;
                    too_careful += !twice;
                }
                assert_int_equal(SUCCESS, flash_attention_destroy(op));
            }
    assert_true(accepted > 100 && refused > 1000 && too_careful < accepted / 5);
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
}
