/* SPDX-License-Identifier: MIT
 *
 * test_hopper_gpu: the library's Hopper kernel (hopper_16bit.cu) by its own name. The tests of the
 * library judge whatever kernel it takes; these do not pass because it took another one.
 *
 * - Lengths around its tiles, head dimensions that fill a panel and that do not, every stride order
 *   whose rows lie on 16 bytes, d that is no multiple of 8 in such rows, masks, GQA with its heads
 *   folded into rows, O of odd strides: within the oracle's bound, gaps untouched, and the same
 *   bits when it runs again.
 * - It takes plain cases and the shards of a ring, and refuses masks, caps and unaligned rows.
 *
 *     test_hopper_gpu          all of it
 *     test_hopper_gpu small    few cases: for compute-sanitizer
 *
 * Exit status: 0 right, 1 wrong, 77 no GPU of compute capability 9.0, or no code for one.
 */
#define GPU_ARCH 90

#include "device_case.h"
#include "gpu_main.h"

#include "../unit/judge_case.h"
#include "attn_config.h"

#ifdef HAVE_SM90A
static AttnStatus run(DeviceCase *d)
{
    const AttnArgs args = device_case_args(d, &d->host->args);
    const FlashHeads all = {0, (int)(args.shape.B * args.shape.H)};
    const FlashRows none = {NULL, NULL, NULL};
    const AttnStatus status = flash_block_hopper(&args, NULL, none, all, 0);
    assert_int_equal(0, device_synchronize());
    return status;
}

static void judge(Case *c, const char *label)
{
    DeviceCase *d = device_case_new(c);
    void *O = NULL;
    for (int again = 0; again < 2; again++) {
        assert_int_equal(0, device_fill_bytes(d->O_dev, 0xFF, c->O.bytes));
        assert_int_equal(ATTN_OK, run(d));
        assert_int_equal(0, device_download(c->O.base, d->O_dev, c->O.bytes));
        assert_int_equal(0, device_download(c->lse, d->lse_dev, d->rows * sizeof(float)));
        assert_repeats(&O, c->O.base, c->O.bytes);
    }
    case_judge(c, 0, 16, 2, label);
    assert_true(tensor_intact(&c->O));
    free(O);
    device_case_free(d);
}

/* O one element further than 16 bytes allow: threads store it. */
static void move_O(Case *c)
{
    const AttnShape *n = &c->args.shape;
    tensor_free(&c->O);
    assert_int_equal(0, tensor_new(&c->O, c->args.Q.dtype, LAYOUT_ODD, n->B, n->Nq, n->H, n->d));
    c->args.O = c->O.view;
}

/* Fewer channels, with the same strides: rows stay on 16 bytes, and what follows in them belongs to
 * somebody else. The copy engine writes 16 bytes at a time. */
static void narrow(Case *c, int64_t d)
{
    AttnArgs *a = &c->args;
    a->shape.d = a->Q.shape[3] = a->K.shape[3] = a->V.shape[3] = a->O.shape[3] = d;
    c->O.view.shape[3] = d;
}

TEST(test_shapes)
{
    static const int64_t lengths[] = {1, 2, 63, 64, 65, 79, 81, 127, 129, 193, 255, 320, 500};
    static const int64_t dims[] = {64, 128, 256, 8, 40, 72, 96, 136, 200};
    static const int64_t heads[][2] = {{1, 1}, {2, 2}, {4, 1}, {6, 2}, {16, 2}};
    static const AttnRule rules[] = {{-1, -1}, {-1, 0}, {20, 0}, {100, 7}, {0, 0}, {-1, 30}};
    static const TensorLayout layouts[] = {LAYOUT_BSHD, LAYOUT_SBHD, LAYOUT_BHSD};
    for (int n = 0; n < (small ? 12 : 400); n++) {
        const int64_t *h = heads[case_random() % 5];
        const AttnShape shape = {1 + case_random() % 2,
                                 h[0],
                                 h[1],
                                 lengths[case_random() % 13],
                                 lengths[case_random() % 13],
                                 n % 2 ? dims[n / 2 % 3] : dims[case_random() % 9]};
        Case *c = case_new(shape, n % 3 ? ATTN_BF16 : ATTN_F16, layouts[case_random() % 3], 1);
        char label[80];
        case_align(c, case_random() % 2 ? ATTN_MASK_NONE : ATTN_MASK_CAUSAL_UPPER_LEFT);
        c->args.rule = rules[case_random() % 6];
        if (case_random() % 4 == 0)
            narrow(c, shape.d - 1 - case_random() % 7);
        if (case_random() % 6 == 0)
            move_O(c);
        snprintf(label, sizeof label, "case %d: %d x %d, d = %d of %d, %d/%d heads", n,
                 (int)shape.Nq, (int)shape.Nk, (int)c->args.shape.d, (int)shape.d, (int)h[0],
                 (int)h[1]);
        judge(c, label);
        case_free(c);
    }
}

TEST(test_shards)
{
    int taken = 0;
    for (int n = 0; n < SHARD_COUNT; n += small ? 4 : 1) {
        Case *c = shard_new(&shards[n], ATTN_BF16, LAYOUT_BSHD);
        DeviceCase *d = device_case_new(c);
        const AttnStatus status = run(d);
        device_case_free(d);
        assert_true(status == ATTN_OK || status == ATTN_SKIP);
        if (status == ATTN_OK)
            judge(c, shards[n].name);
        taken += status == ATTN_OK;
        case_free(c);
    }
    assert_true(taken > 0);
}

static AttnStatus status_of(Case *c)
{
    DeviceCase *d = device_case_new(c);
    const AttnStatus status = run(d);
    device_case_free(d);
    case_free(c);
    return status;
}

TEST(test_what_it_takes)
{
    const AttnShape shape = {1, 2, 1, 70, 90, 64};
    Case *c = case_new(shape, ATTN_BF16, LAYOUT_BSHD, 1);
    assert_int_equal(ATTN_OK, status_of(c));
    c = case_new(shape, ATTN_F32, LAYOUT_BSHD, 1);
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
    c->segments_k[0].stride = -1; /* rows see runs, but they do not grow */
    assert_int_equal(ATTN_SKIP, status_of(c));
    c = case_new(shape, ATTN_BF16, LAYOUT_BSHD, 1);
    device_set_smem_limit(101376); /* the smaller GPU that --smem-limit stands for */
    assert_int_equal(ATTN_SKIP, status_of(c));
    device_set_smem_limit(0);
}
#endif
