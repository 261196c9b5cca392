/* SPDX-License-Identifier: MIT
 *
 * test_backward_blocks_gpu: test_flash_backward for the CUDA kernels that add to gradients. Any
 * split of the keys, in any order, and any split of the queries give the gradients of one pass,
 * within the oracle's bound; delta, the sums and the whole pass around a block as on the host.
 */
#include <math.h>

#include "gpu_main.h"
#include "gradient_device.h"

#include "../unit/judge_case.h"
#include "alloc.h"
#include "split_cases.h"

static void assert_sums_right(const Case *c, const Oracle *oracle, const BlockKernel *kernel,
                              FlashSums sums, const char *label)
{
    flash_sums_store(&c->args, sums);
    if (!case_agrees(c, oracle, 1, kernel->c, label))
        fail_msg("%s", kernel->name);
}

static void try_case(Case *c, const char *label, int world, int rank, int single_keys)
{
    const AttnShape *n = &c->args.shape;
    const FlashSums sums = sums_new(n);
    float *delta = run_forward(c);
    Oracle oracle = oracle_of(&c->args, 1, 4);
    for (int k = 0; k < BLOCK_KERNEL_COUNT; k++)
        for (int trial = 0; block_kernel_takes(&block_kernels[k], c->args.Q.dtype) && trial < 5;
             trial++) {
            const int queries = trial == 4; /* split the queries instead of the keys */
            KeySplit split = split_random(queries ? n->Nq : n->Nk, single_keys ? 7 : 1 + trial);
            if (small && trial != 2 + k % 2)
                continue;
            if (trial == 0 && world)
                split = split_evenly(n->Nk, world, rank);
            kernel_under_test = block_kernels[k].function;
            flash_sums_start(n, sums);
            for (int t = 0; t < split.count; t++)
                (queries ? add_queries : add_keys)(c, on_device, delta, split.first[t],
                                                   split.length[t], sums);
            assert_sums_right(c, &oracle, &block_kernels[k], sums, label);
        }
    oracle_free(&oracle);
    sums_free(sums);
    free(delta);
}

TEST(test_any_split_is_one_pass)
{
    try_options(small, try_case);
}

TEST(test_shards_of_a_ring)
{
    try_shards(small, try_case);
}

/* 1: the kernel under test is this one; a dtype that it takes. */
static int set_kernel(const BlockKernel *kernel, AttnDtype *dtype)
{
    *dtype = kernel->dtypes & 1 ? ATTN_F32 : ATTN_F16;
    kernel_under_test = kernel->function;
    return block_kernel_takes(kernel, *dtype);
}

TEST(test_a_call_adds)
{
    AttnDtype dtype;
    for (int k = 0; k < BLOCK_KERNEL_COUNT; k++)
        if (set_kernel(&block_kernels[k], &dtype))
            expect_a_call_adds(on_device, dtype, 150, 1e-5f);
}

TEST(test_a_block_that_nobody_sees)
{
    AttnDtype dtype;
    for (int masked = 0; masked < 2; masked++)
        for (int k = 0; k < BLOCK_KERNEL_COUNT; k++)
            if (set_kernel(&block_kernels[k], &dtype))
                expect_nothing_added(on_device, dtype, masked);
}

TEST(test_delta)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        Case *c = case_new((AttnShape){2, 3, 3, 37, 21, 75}, (AttnDtype)dtype,
                           dtype % 2 ? LAYOUT_ODD : LAYOUT_SBHD, 1);
        const int64_t rows = 2 * 3 * 37;
        float *delta = run_forward(c), *found = floats_new(rows);
        Copies copies = {.count = 0};
        AttnArgs a = args_up(&copies, &c->args);
        a.O = tensor_up(&copies, &c->args.O);
        float *delta_dev = floats_up(&copies, found, rows);
        assert_int_equal(ATTN_OK, flash_backward_delta_cuda(&a, delta_dev));
        assert_int_equal(0, device_synchronize());
        assert_int_equal(0, device_download(found, delta_dev, sizeof *found * (size_t)rows));
        for (int64_t row = 0; row < rows; row++)
            assert_true(fabsf(found[row] - delta[row]) <= 1e-5f);
        copies_free(&copies);
        free(delta);
        free(found);
        case_free(c);
    }
}

/* Bytes from the first element to the last, gaps included. */
static size_t bytes_of(const Tensor *t)
{
    const int64_t last =
        tensor_offset(t, t->shape[0] - 1, t->shape[1] - 1, t->shape[2] - 1) + t->shape[3];
    return (size_t)last * dtype_size(t->dtype);
}

/* Sums become tensors as on the host, to the bit, and nothing is written into gaps. */
TEST(test_sums)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        Case *c = case_new((AttnShape){2, 4, 2, 37, 21, 75}, (AttnDtype)dtype,
                           dtype % 2 ? LAYOUT_ODD : LAYOUT_SBHD, 1);
        const AttnShape *n = &c->args.shape;
        FlashSums sums = sums_new(n);
        Copies copies = {.count = 0};
        AttnArgs a = c->args;
        const Tensor *host[3] = {&c->dQ.view, &c->dK.view, &c->dV.view};
        Tensor *on_gpu[3] = {&a.dQ, &a.dK, &a.dV};
        for (int t = 0; t < 3; t++) /* as they are now: NaN */
            *on_gpu[t] = tensor_up(&copies, host[t]);
        for (int64_t e = 0; e < query_floats(n); e++)
            sums.dQ[e] = case_normal() / 3;
        for (int64_t e = 0; e < key_floats(n); e++)
            sums.dK[e] = case_normal() / 3, sums.dV[e] = case_normal() * 7;
        flash_sums_store(&c->args, sums);
        const FlashSums sums_dev = {floats_up(&copies, sums.dQ, query_floats(n)),
                                    floats_up(&copies, sums.dK, key_floats(n)),
                                    floats_up(&copies, sums.dV, key_floats(n))};
        assert_int_equal(ATTN_OK, flash_sums_store_cuda(&a, sums_dev));
        assert_int_equal(0, device_synchronize());
        for (int t = 0; t < 3; t++) {
            unsigned char *bits = malloc(bytes_of(host[t]));
            assert_non_null(bits);
            assert_int_equal(0, device_download(bits, on_gpu[t]->data, bytes_of(host[t])));
            assert_memory_equal(host[t]->data, bits, bytes_of(host[t]));
            free(bits);
        }
        assert_int_equal(ATTN_OK, flash_sums_start_cuda(n, sums_dev, NULL));
        assert_int_equal(
            0, device_download(sums.dQ, sums_dev.dQ, sizeof(float) * (size_t)query_floats(n)));
        assert_int_equal(
            0, device_download(sums.dV, sums_dev.dV, sizeof(float) * (size_t)key_floats(n)));
        for (int64_t e = 0; e < query_floats(n); e++)
            assert_true(sums.dQ[e] == 0.0f);
        for (int64_t e = 0; e < key_floats(n); e++)
            assert_true(sums.dV[e] == 0.0f);
        copies_free(&copies);
        sums_free(sums);
        case_free(c);
    }
}

/* The whole pass in memory of the caller: delta made inside, no allocation, the tensors written. */
TEST(test_memory_of_the_caller)
{
    Case *c = case_new((AttnShape){1, 4, 2, 75, 260, 40}, ATTN_F32, LAYOUT_ODD, 1);
    const AttnShape *n = &c->args.shape;
    const FlashSums none = {NULL, NULL, NULL};
    const size_t bytes = flash_backward_cuda_workspace_bytes(n, ATTN_F32);
    Copies copies = {.count = 0};
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    free(run_forward(c));
    Oracle oracle = oracle_of(&c->args, 1, 4);
    AttnArgs a = args_up(&copies, &c->args);
    Storage *host[4] = {&c->O, &c->dQ, &c->dK, &c->dV};
    Tensor *on_gpu[4] = {&a.O, &a.dQ, &a.dK, &a.dV};
    for (int t = 0; t < 4; t++)
        *on_gpu[t] = tensor_up(&copies, &host[t]->view);
    void *workspace_dev = workspace_alloc_device(bytes);
    const size_t live = workspace_live();
    assert_non_null(workspace_dev);
    workspace_reset_peak();
    assert_int_equal(ATTN_OK, flash_backward_cuda_run(&a, NULL, none, workspace_dev));
    assert_int_equal(0, device_synchronize());
    assert_true(workspace_peak() == live);
    workspace_free_device(workspace_dev);
    workspace_settle(); /* looks at the fences around it */
    assert_true(workspace_intact());
    for (int t = 1; t < 4; t++)
        assert_int_equal(
            0, device_download(host[t]->view.data, on_gpu[t]->data, bytes_of(&host[t]->view)));
    assert_right(c, &oracle, 1, 4, "memory of the caller");
    assert_true(tensor_intact(&c->dQ) && tensor_intact(&c->dK) && tensor_intact(&c->dV));
    oracle_free(&oracle);
    copies_free(&copies);
    case_free(c);
}

/* --deterministic keeps its promise in every dtype: none is skipped. */
TEST(test_deterministic_is_not_skipped)
{
    flash_backward_set_deterministic(1);
    kernel_under_test = flash_backward_block_cuda;
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype += ATTN_BF16 - ATTN_F32) {
        Case *c = case_new((AttnShape){1, 1, 1, 5, 7, 8}, (AttnDtype)dtype, LAYOUT_BSHD, 1);
        const FlashSums sums = sums_new(&c->args.shape);
        float *delta = run_forward(c);
        assert_int_equal(ATTN_OK, on_device(&c->args, delta, sums));
        sums_free(sums);
        free(delta);
        case_free(c);
    }
    flash_backward_set_deterministic(0);
}
