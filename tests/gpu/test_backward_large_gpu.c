/* SPDX-License-Identifier: MIT
 *
 * test_backward_large_gpu: gradients of more than 2^31 elements, where a 32-bit index wraps around.
 *
 *     many queries   Q, O, dO and dQ [1][524388][32][128]; dO is zero but in sampled rows, so these
 *                    alone make dK and dV, and all of their gradients are known
 *     many keys      K, V, dK and dV of that size, heads outermost; queries at positions all along
 *                    the keys, each with a window, so that every key that counts is known
 *
 * O and lse are those of stage 03 on the device. What the oracle needs is downloaded: a small case
 * with the positions of the large one.
 *
 * Exit status: 0 right, 1 wrong, 77 no device, or less than 100 GiB on it.
 */
#include "large_case.h"

#include "alloc.h"
#include "check.h"
#include "flash_backward.h"
#include "flash_forward.h"

static const struct {
    const char *name;
    AttnFn backward;
    unsigned dtypes;
    double c;
} variants[] = {
    {"v0_atomics", flash_backward_v0_atomics, 1, 4},
    {"v1_two_kernels", flash_backward_v1_two_kernels, 1, 4},
    {"v2_mma", flash_backward_v2_mma, 6, 16},
    {"v3_cp_async", flash_backward_v3_cp_async, 6, 16},
    {"v4_clean_tiles", flash_backward_v4_clean_tiles, 6, 16},
};

/* Rows at .. of a host tensor become rows first .. of all heads of a large one. */
static void put_rows(const Tensor *large, int64_t first, const Tensor *host, int64_t at,
                     int64_t count)
{
    const size_t size = dtype_size(large->dtype), row = (size_t)large->shape[3] * size;
    for (int64_t h = 0; h < large->shape[2]; h++)
        assert_int_equal(
            cudaSuccess,
            cudaMemcpy2D((char *)large->data + tensor_offset(large, 0, first, h) * (int64_t)size,
                         (size_t)large->stride[1] * size,
                         (const char *)host->data + tensor_offset(host, 0, at, h) * (int64_t)size,
                         (size_t)host->stride[1] * size, row, (size_t)count,
                         cudaMemcpyHostToDevice));
}

static void gradients_new(Large *g, int heads_outside)
{
    AttnArgs *a = &g->args;
    const AttnDtype dtype = a->Q.dtype;
    a->dO = large_tensor(dtype, a->shape.Nq, HEADS, 128, 0);
    a->dQ = large_tensor(dtype, a->shape.Nq, HEADS, 128, 0);
    a->dK = large_tensor(dtype, a->shape.Nk, HEADS, 128, heads_outside);
    a->dV = large_tensor(dtype, a->shape.Nk, HEADS, 128, heads_outside);
    assert_int_equal(0, device_fill_bytes(a->dO.data, 0, large_bytes(&a->dO)));
}

static void gradients_free(Large *g)
{
    device_free(g->args.dO.data);
    device_free(g->args.dQ.data);
    device_free(g->args.dK.data);
    device_free(g->args.dV.data);
    large_free(g);
    workspace_trim();
}

/* Sampled queries and keys with their positions, and a dO that the large case gets too. */
static Case *small_case(const Large *g, const Sample *queries, const Sample *keys)
{
    const AttnArgs *a = &g->args;
    const AttnShape shape = {1, HEADS, HEADS, queries->count, keys->count, 128};
    Case *c = case_new(shape, a->Q.dtype, LAYOUT_BSHD, 1);
    c->args.rule = a->rule;
    c->args.positions_k.count = keys->runs;
    assert_true(keys->runs <= 16);
    for (int64_t r = 0, at = 0; r < keys->runs; at += keys->length[r++]) {
        c->segments_k[r] = (AttnSegment){at, keys->length[r], 0, keys->first[r], 1};
        fetch_rows(&a->K, keys->first[r], &c->args.K, at, keys->length[r]);
        fetch_rows(&a->V, keys->first[r], &c->args.V, at, keys->length[r]);
    }
    for (int64_t r = 0, at = 0; r < queries->runs; at += queries->length[r++]) {
        fetch_rows(&a->Q, queries->first[r], &c->args.Q, at, queries->length[r]);
        put_rows(&a->dO, queries->first[r], &c->args.dO, at, queries->length[r]);
    }
    if (a->rule.left >= 0) { /* the queries are all there, in their segments */
        c->args.positions_q.count = a->positions_q.count;
        memcpy(c->segments_q, g->segments, sizeof(AttnSegment) * (size_t)a->positions_q.count);
    }
    return c;
}

/* Outputs of the sampled rows and keys into the small case. */
static void fetch_outputs(const Large *g, const Sample *queries, const Sample *keys, Case *c)
{
    const AttnArgs *a = &g->args;
    for (int64_t r = 0, at = 0; r < queries->runs; at += queries->length[r++]) {
        const size_t bytes = sizeof(float) * (size_t)queries->length[r];
        fetch_rows(&a->O, queries->first[r], &c->args.O, at, queries->length[r]);
        fetch_rows(&a->dQ, queries->first[r], &c->args.dQ, at, queries->length[r]);
        for (int64_t h = 0; h < HEADS; h++)
            assert_int_equal(0,
                             device_download(c->lse + h * queries->count + at,
                                             a->lse + h * a->shape.Nq + queries->first[r], bytes));
    }
    for (int64_t r = 0, at = 0; r < keys->runs; at += keys->length[r++]) {
        fetch_rows(&a->dK, keys->first[r], &c->args.dK, at, keys->length[r]);
        fetch_rows(&a->dV, keys->first[r], &c->args.dV, at, keys->length[r]);
    }
}

static void run_all(Large *g, const Sample *queries, const Sample *keys)
{
    AttnArgs *a = &g->args;
    const AttnDtype dtype = a->Q.dtype;
    Case *c = small_case(g, queries, keys);
    Oracle oracle;
    assert_int_equal(0, oracle_run(&oracle, &c->args, 1, 4));
    assert_int_equal(queries->count, oracle.rows.count); /* all of the sample, no sample of it */
    assert_int_equal(keys->count, oracle.keys.count);
    assert_int_equal(ATTN_OK, (dtype == ATTN_F32 ? flash_forward_v2_register_tiles
                                                 : flash_forward_v5_clean_tiles)(a));
    for (size_t n = 0; n < sizeof variants / sizeof *variants; n++) {
        const Tensor *written[] = {&a->dQ, &a->dK, &a->dV};
        Check check = {.inputs_intact = 1, .storage_intact = 1, .pass = 1};
        if (!(variants[n].dtypes >> dtype & 1))
            continue;
        for (int t = 0; t < 3; t++)
            assert_int_equal(0, device_fill_bytes(written[t]->data, 0xFF, large_bytes(written[t])));
        assert_int_equal(ATTN_OK, variants[n].backward(a));
        assert_int_equal(0, device_synchronize());
        fetch_outputs(g, queries, keys, c);
        check_outputs(&check, &oracle, NULL, &c->args, 1, variants[n].c);
        print_message("%s: worst error %.2f of its bound\n", variants[n].name, check.bound_ratio);
        if (!check.pass)
            check_explain(&check, variants[n].name, &c->args, stderr);
        assert_true(check.pass);
        workspace_trim(); /* gigabytes */
    }
    oracle_free(&oracle);
    case_free(c);
}

static void many_queries(AttnDtype dtype)
{
    Sample queries = {.runs = 0}, keys = {.runs = 0};
    Large g;
    large_new(&g, dtype, TOKENS, 65, 0);
    gradients_new(&g, 0);
    g.segments[0] = (AttnSegment){0, TOKENS, 0, 0, 1};
    large_positions(&g, 1);
    sample_tokens(&queries);
    sample_add(&keys, 0, 65, 65);
    run_all(&g, &queries, &keys);
    gradients_free(&g);
}

static void many_keys(AttnDtype dtype)
{
    Sample queries = {.runs = 0}, keys = {.runs = 0};
    Large g;
    large_new(&g, dtype, 7 * 32, TOKENS, 1);
    gradients_new(&g, 1);
    g.args.rule = (AttnRule){40, 24};
    large_places(&g, &keys);
    large_positions(&g, 7);
    sample_add(&queries, 0, 7 * 32, 7 * 32);
    run_all(&g, &queries, &keys);
    gradients_free(&g);
}

static void test_many_queries_f16(void **unused)
{
    (void)unused;
    many_queries(ATTN_F16);
}

static void test_many_keys_f16(void **unused)
{
    (void)unused;
    many_keys(ATTN_F16);
}

static void test_many_queries_f32(void **unused)
{
    (void)unused;
    many_queries(ATTN_F32);
}

static void test_many_keys_f32(void **unused)
{
    (void)unused;
    many_keys(ATTN_F32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_queries_f16),
        cmocka_unit_test(test_many_keys_f16),
        cmocka_unit_test(test_many_queries_f32),
        cmocka_unit_test(test_many_keys_f32),
    };
    size_t available = 0, all = 0;
    if (device_count() == 0) {
        printf("no CUDA device\n");
        return 77;
    }
    if (cudaMemGetInfo(&available, &all) != cudaSuccess || available >> 30 < 100) {
        printf("less than 100 GiB of device memory are free\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
