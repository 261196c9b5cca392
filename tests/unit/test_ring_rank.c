/* SPDX-License-Identifier: MIT
 *
 * test_ring_rank: the small work of a rank: zeros, copies with pitches, sums, narrowing and
 * widening in place, rounding of partials, rows in halves.
 *
 * (What blocks of tokens see of each other: test_ring_methods, over all methods, layouts and
 * masks.)
 */
#include "ring_sim_case.h"

#include "alloc.h"

#define CHECK(r, condition)                                                                        \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return ring_fail((r), "line %d: %s", __LINE__, #condition);                            \
    } while (0)

/* cmocka's assertions belong to the main thread; a rank fails instead, and the run tells. */
static void run_checks(int (*checks)(RingRank *r), Case *problem, RingSetup setup)
{
    const RingMethodTable table = {.forward = checks};
    SimCase *c = sim_case(problem, &setup, &table);
    c->plan.backward = 0;
    if (sim_run(c) != 0)
        fail_msg("%s", c->report.failure);
    assert_int_equal(0, workspace_live());
    sim_case_free(c);
}

static Case *plain_problem(void)
{
    return case_option(&options[1], ATTN_F32, 2, 1); /* B 2, H 2 */
}

enum { COUNT = 37 };

static int check_small_work(RingRank *r)
{
    float a[COUNT], b[COUNT];
    char square[6][10], narrow[6][4];
    for (int e = 0; e < COUNT; e++)
        a[e] = 1.0f + (float)e / 1024, b[e] = (float)(e * e);
    CHECK(r, ring_add(r, a, b, COUNT) == 0 && a[7] == 50.0f + 7.0f / 1024);
    CHECK(r, ring_zero(r, b, sizeof b) == 0 && b[0] == 0.0f && b[COUNT - 1] == 0.0f);
    for (int row = 0; row < 6; row++)
        for (int e = 0; e < 10; e++)
            square[row][e] = (char)(10 * row + e);
    CHECK(r, ring_copy(r, narrow, 4, &square[0][3], 10, 4, 6) == 0);
    for (int row = 0; row < 6; row++)
        for (int e = 0; e < 4; e++)
            CHECK(r, narrow[row][e] == 10 * row + 3 + e);
    return 0;
}

static int check_rounding(RingRank *r)
{
    const AttnDtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    const int bf16 = r->plan->setup.partials == ATTN_BF16;
    float a[COUNT], exact[COUNT];
    for (int e = 0; e < COUNT; e++)
        exact[e] = 1.0f + (float)(e * e) / 4099;
    for (int n = 0; n < 3; n++) {
        const Tensor halves = {.data = a, .dtype = dtypes[n], .stride = {0, 0, 0, 1}};
        memcpy(a, exact, sizeof a);
        CHECK(r, ring_narrow(r, a, COUNT, dtypes[n]) == 0);
        for (int e = 0; e < COUNT; e++)
            CHECK(r, tensor_get(&halves, e) == dtype_round(dtypes[n], exact[e]));
        CHECK(r, ring_widen(r, a, COUNT, dtypes[n]) == 0);
        for (int e = 0; e < COUNT; e++)
            CHECK(r, a[e] == dtype_round(dtypes[n], exact[e]));
    }
    memcpy(a, exact, sizeof a);
    CHECK(r, ring_round(r, a, COUNT) == 0 && ring_size(r->partials) == (bf16 ? 2u : 4u));
    for (int e = 0; e < COUNT; e++)
        CHECK(r, a[e] == (bf16 ? dtype_round(ATTN_BF16, exact[e]) : exact[e]));
    return 0;
}

static int check_rows(RingRank *r)
{
    const int64_t heads = r->plan->shape.B * r->plan->shape.H, n = r->nq;
    const int64_t *cut = r->plan->q[r->rank].cut;
    float *rows = ring_alloc(r, ring_row_bytes(r, r->rank), "rows");
    float *halves = ring_alloc(r, ring_row_bytes(r, r->rank), "halves");
    int wrong = 0;
    for (int64_t e = 0; e < heads * n; e++)
        rows[e] = (float)e;
    CHECK(r, ring_split_rows(r, halves, rows) == 0);
    const float *at = halves;
    for (int n_th = 0; n_th < RING_QUARTERS; n_th++) {
        const int quarter = (const int[]){0, 2, 1, 3}[n_th];
        for (int64_t h = 0; h < heads; h++)
            for (int64_t t = cut[quarter]; t < cut[quarter + 1]; t++)
                wrong += rows[h * n + t] != *at++;
    }
    CHECK(r, at == halves + heads * n);
    ring_free(r, rows, ring_row_bytes(r, r->rank));
    ring_free(r, halves, ring_row_bytes(r, r->rank));
    CHECK(r, wrong == 0);
    return 0;
}

TEST(test_small_work)
{
    RingSetup setup = sim_setup(2, RING_STRIPED);
    run_checks(check_small_work, plain_problem(), setup);
    run_checks(check_rounding, plain_problem(), setup);
    run_checks(check_rows, case_option(&options[2], ATTN_F32, 3, 1), setup);
    setup.partials = ATTN_BF16;
    run_checks(check_rounding, plain_problem(), setup);
}
