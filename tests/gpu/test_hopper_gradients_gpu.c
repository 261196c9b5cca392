/* SPDX-License-Identifier: MIT
 *
 * test_hopper_gradients_gpu: the library's Hopper gradients (hopper_gradients.cu) by their own
 * name. The tests of the library judge whatever kernel it takes; these do not pass because it took
 * another one.
 *
 * - Lengths around the tiles, d = 64, 128 and 256 and between them, masks by positions, zigzag
 *   shards, GQA, three stride orders, every second case with --deterministic: within the oracle's
 *   bound, gaps untouched.
 * - --deterministic with more blocks than run at a time: the same bits each time.
 * - They take positions that grow, and refuse what they cannot do. (Sums, and a pass in parts:
 *   test_backward_blocks_gpu.)
 *
 *     test_hopper_gradients_gpu          all of it; with ATTN_TEST_QUICK less: enough for mistakes
 *     test_hopper_gradients_gpu small    few cases: for compute-sanitizer
 *
 * Exit status: 0 right, 1 wrong, 77 no GPU of compute capability 9.0, or no code for one.
 */
#define GPU_ARCH 90

#include "gpu_main.h"
#include "gradient_device.h"

#include "../unit/judge_case.h"
#include "attn_config.h"

#ifdef HAVE_SM90A
/* Queries and keys as a rank of a zigzag ring has them: an early and a late half each. */
static void make_zigzag(Case *c)
{
    const int64_t Nq = c->args.shape.Nq, Nk = c->args.shape.Nk, late = 3 * (Nq + Nk);
    c->segments_q[0] = (AttnSegment){0, (Nq + 1) / 2, 0, Nk / 4, 1};
    c->segments_q[1] = (AttnSegment){(Nq + 1) / 2, Nq / 2, 0, late - Nk / 4, 1};
    c->segments_k[0] = (AttnSegment){0, (Nk + 1) / 2, 0, 0, 1};
    c->segments_k[1] = (AttnSegment){(Nk + 1) / 2, Nk / 2, 0, late - 5, 1};
    c->args.positions_q.count = c->args.positions_k.count = 2;
}

/* The gradients of c, into its tensors. */
static AttnStatus run(Case *c)
{
    const Storage *host[] = {&c->dQ, &c->dK, &c->dV};
    Copies copies = {.count = 0};
    AttnArgs args = args_up(&copies, &c->args);
    Tensor *gradients[] = {&args.dQ, &args.dK, &args.dV};
    const size_t bytes = flash_gradients_hopper_bytes(&args.shape);
    void *workspace_dev = device_alloc(bytes);
    assert_non_null(workspace_dev);
    args.O = tensor_up(&copies, &c->args.O);
    for (int t = 0; t < 3; t++) {
        const ptrdiff_t before = (unsigned char *)host[t]->view.data - host[t]->base;
        gradients[t]->data =
            (unsigned char *)bytes_up(&copies, host[t]->base, host[t]->bytes) + before;
    }
    assert_int_equal(0, device_fill_bytes(workspace_dev, 0xFF, bytes));
    const FlashSums none = {NULL, NULL, NULL};
    const AttnStatus status =
        flash_gradients_hopper(&args, NULL, none, workspace_dev, GRADIENTS_ALL, 0);
    assert_int_equal(0, device_synchronize());
    for (int t = 0; t < 3; t++) {
        const ptrdiff_t before = (unsigned char *)host[t]->view.data - host[t]->base;
        assert_int_equal(0, device_download(host[t]->base,
                                            (unsigned char *)gradients[t]->data - before,
                                            host[t]->bytes));
    }
    device_free(workspace_dev);
    copies_free(&copies);
    return status;
}

TEST(test_shapes)
{
    static const int64_t lengths[] = {1, 2, 63, 64, 65, 127, 128, 129, 193, 255, 320, 500};
    static const int64_t heads[][2] = {{1, 1}, {2, 2}, {4, 1}, {6, 2}};
    static const AttnRule rules[] = {{-1, -1}, {-1, 0}, {20, 0}, {100, 7}, {0, 0}, {-1, 30}};
    static const TensorLayout layouts[] = {LAYOUT_BSHD, LAYOUT_SBHD, LAYOUT_BHSD};
    static const int64_t dims[] = {64, 128, 256, 40, 96, 200, 72, 8};
    for (int n = 0; n < (small ? 9 : quick() ? 60 : 240); n++) {
        const int64_t *h = heads[case_random() % 4];
        const AttnShape shape = {
            1 + case_random() % 2,       h[0],       h[1], lengths[case_random() % 12],
            lengths[case_random() % 12], dims[n % 8]};
        Case *c = case_new(shape, n % 4 ? ATTN_BF16 : ATTN_F16, layouts[case_random() % 3], 1);
        char label[80];
        case_align(c, case_random() % 2 ? ATTN_MASK_NONE : ATTN_MASK_CAUSAL_UPPER_LEFT);
        c->args.rule = rules[case_random() % 6];
        if (n % 5 == 4) {
            c->args.rule.left = n % 2 ? -1 : 60;
            c->args.rule.right = n % 2 ? 0 : -1;
            make_zigzag(c);
        }
        snprintf(label, sizeof label, "case %d: %d x %d, d = %d, %d/%d heads", n, (int)shape.Nq,
                 (int)shape.Nk, (int)shape.d, (int)h[0], (int)h[1]);
        free(run_forward(c));
        flash_backward_set_deterministic(n % 2);
        assert_int_equal(ATTN_OK, run(c));
        flash_backward_set_deterministic(0);
        case_judge(c, 1, 16, 2, label);
        assert_true(tensor_intact(&c->dQ) && tensor_intact(&c->dK) && tensor_intact(&c->dV));
        case_free(c);
    }
}

/* 192 blocks of keys (d = 256: 384): later ones start when earlier ones end. */
TEST(test_same_bits_in_order)
{
    static const AttnRule rules[] = {{-1, -1}, {-1, 0}, {200, 0}};
    for (int n = 0; n < (small ? 0 : 9); n++) {
        const AttnShape shape = {2, 12, 12, 900, 1000, 64 << n / 3};
        Case *c = case_new(shape, n % 2 ? ATTN_F16 : ATTN_BF16, LAYOUT_BSHD, 1);
        void *first[3] = {NULL, NULL, NULL};
        const Storage *host[] = {&c->dQ, &c->dK, &c->dV};
        case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
        c->args.rule = rules[n % 3];
        free(run_forward(c));
        flash_backward_set_deterministic(1);
        for (int again = 0; again < (quick() ? 10 : 50); again++) {
            assert_int_equal(ATTN_OK, run(c));
            for (int t = 0; t < 3; t++)
                assert_repeats(&first[t], host[t]->base, host[t]->bytes);
        }
        flash_backward_set_deterministic(0);
        for (int t = 0; t < 3; t++)
            free(first[t]);
        case_free(c);
    }
}

/* Each fourth position, queries two behind keys, and a window of one: rows see nothing. What their
 * dO holds is nobody's gradient. */
TEST(test_rows_between_keys)
{
    Case *c = case_new((AttnShape){1, 2, 1, 70, 90, 64}, ATTN_BF16, LAYOUT_BSHD, 1);
    Tensor *const gradients[] = {&c->args.dQ, &c->args.dK, &c->args.dV};
    c->segments_q[0].stride = c->segments_k[0].stride = 4;
    c->segments_q[0].position = 2;
    c->segments_k[0].position = 0;
    c->args.rule = (AttnRule){1, 1};
    free(run_forward(c));
    memset(c->args.dO.data, 0xFF, (size_t)(70 * 2 * 64) * 2); /* NaN */
    assert_int_equal(ATTN_OK, run(c));
    for (int t = 0; t < 3; t++)
        for (int64_t e = 0; e < (t == 0 ? 70 * 2 : 90) * 64; e++)
            assert_true(tensor_get(gradients[t], e) == 0.0f);
    case_free(c);
}

static AttnStatus status_of(Case *c)
{
    free(run_forward(c));
    const AttnStatus status = run(c);
    case_free(c);
    return status;
}

TEST(test_what_they_take)
{
    const AttnShape shape = {1, 2, 1, 70, 90, 64}, odd = {1, 2, 1, 70, 90, 70};
    Case *c = case_new(shape, ATTN_BF16, LAYOUT_BSHD, 1);
    assert_int_equal(ATTN_OK, status_of(c));
    c = case_new(odd, ATTN_BF16, LAYOUT_BSHD, 1);
    assert_int_equal(ATTN_SKIP, status_of(c));
    c = case_new(shape, ATTN_BF16, LAYOUT_BSHD, 1);
    case_mask(c);
    assert_int_equal(ATTN_SKIP, status_of(c));
    c = case_new(shape, ATTN_BF16, LAYOUT_BSHD, 1);
    c->args.softcap = 2.0f;
    assert_int_equal(ATTN_SKIP, status_of(c));
    c = case_new(shape, ATTN_BF16, LAYOUT_ODD, 1);
    assert_int_equal(ATTN_SKIP, status_of(c));
    c = case_new(shape, ATTN_BF16, LAYOUT_BSHD, 1);
    c->segments_k[0].stride = 2;
    assert_int_equal(ATTN_SKIP, status_of(c));
    c = case_new(shape, ATTN_BF16, LAYOUT_BSHD, 1);
    device_set_smem_limit(101376); /* the smaller GPU that --smem-limit stands for */
    assert_int_equal(ATTN_SKIP, status_of(c));
    device_set_smem_limit(0);
}
#endif
