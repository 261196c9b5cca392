/* SPDX-License-Identifier: MIT
 *
 * test_ring_rank: the small work of a rank, and blocks of tokens against the kernels themselves.
 *
 * - Zeros, copies with pitches, sums, narrowing and widening in place, rounding of partials.
 * - A shard's quarters, everybody's tokens and any cut of a shard see what positions and the full
 *   mask say: (O, lse) and gradients equal those of the block kernels on gathered tensors, bit for
 *   bit.
 */
#include "ring_sim_case.h"

#include "alloc.h"
#include "attn_pairs.h"

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

/* --- small work --------------------------------------------------------------------------------*/

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

/* --- blocks ------------------------------------------------------------------------------------*/

/* Local tokens first .. first+tokens-1 of a list of shards as a problem of their own: gathered
 * tensor [B][tokens][heads][d], positions, and which row of the whole each token is. */
typedef struct Cut {
    Tensor data;
    AttnSegment *segments; /* one for each token: no run is trusted */
    int64_t *global;
    int64_t tokens;
} Cut;

static void cut_tokens(Cut *cut, const RingShard *shards, int count, int64_t first, int64_t tokens,
                       const Tensor *whole)
{
    const size_t row = (size_t)whole->shape[3] * dtype_size(whole->dtype);
    int64_t base = 0;
    *cut = (Cut){*whole, calloc((size_t)tokens, sizeof *cut->segments),
                 calloc((size_t)tokens, sizeof *cut->global), tokens};
    cut->data.shape[1] = tokens;
    cut->data.stride[2] = whole->shape[3];
    cut->data.stride[1] = whole->shape[2] * whole->shape[3];
    cut->data.stride[0] = tokens * cut->data.stride[1];
    cut->data.data = calloc((size_t)(whole->shape[0] * tokens * whole->shape[2] + 1), row);
    for (int s = 0; s < count; base += shards[s++].tokens)
        for (int64_t local = 0; local < shards[s].tokens; local++) {
            const int64_t t = base + local - first;
            const AttnPositions map = attn_positions(shards[s].segments, shards[s].count);
            const AttnPosition where = attn_position(map, local);
            const RingPiece *piece = shards[s].pieces;
            if (t < 0 || t >= tokens)
                continue;
            while (local >= piece->first + piece->length)
                piece++;
            cut->global[t] = piece->global + (local - piece->first) * piece->stride;
            cut->segments[t] = (AttnSegment){t, 1, where.sequence, where.position, 1};
            for (int64_t b = 0; b < whole->shape[0]; b++)
                for (int64_t h = 0; h < whole->shape[2]; h++)
                    memcpy((char *)cut->data.data + (size_t)tensor_offset(&cut->data, b, t, h) *
                                                        dtype_size(whole->dtype),
                           (const char *)whole->data +
                               (size_t)tensor_offset(whole, b, cut->global[t], h) *
                                   dtype_size(whole->dtype),
                           row);
        }
}

static void cut_free(Cut *cut)
{
    free(cut->data.data);
    free(cut->segments);
    free(cut->global);
}

static const AttnArgs *whole_args; /* of the case under test */

/* Both ways from the same state: through a block, and the kernel on gathered tensors. 0: the same
 * bits. */
static int compare_pair(RingRank *r, const RingBlock *q, const RingBlock *k, const Cut *q_cut,
                        const Cut *k_cut)
{
    const AttnShape *n = &r->plan->shape;
    const size_t sums = (size_t)(n->B * q->tokens * n->H * n->d) * sizeof(float);
    const size_t rows = (size_t)(n->B * n->H * q->tokens) * sizeof(float);
    float *O[2], *lse[2];
    uint8_t *mask = malloc((size_t)(q->tokens * k->tokens + 1));
    AttnArgs args = *whole_args;
    int status = 0;
    args.shape.Nq = q->tokens;
    args.shape.Nk = k->tokens;
    args.Q = q_cut->data;
    args.K = args.V = k_cut->data;
    args.positions_q = attn_positions(q_cut->segments, q->tokens);
    args.positions_k = attn_positions(k_cut->segments, k->tokens);
    args.threads = 1;
    for (int64_t i = 0; args.mask && i < q->tokens; i++)
        for (int64_t j = 0; j < k->tokens; j++)
            mask[i * k->tokens + j] = whole_args->mask[q_cut->global[i] * n->Nk + k_cut->global[j]];
    args.mask = args.mask ? mask : NULL;
    for (int way = 0; way < 2; way++) {
        O[way] = malloc(sums + 1);
        lse[way] = malloc(rows + 1);
        ring_start_state(r, q, O[way], lse[way]);
    }
    args.lse = lse[1];
    if (q->tokens > 0 && k->tokens > 0)
        status = flash_block_cpu(&args, O[1]) != ATTN_OK;
    status |= ring_attend(r, q, k, O[0], lse[0]) != 0 || memcmp(O[0], O[1], sums) != 0 ||
              memcmp(lse[0], lse[1], rows) != 0;
    for (int way = 0; way < 2; way++) {
        free(O[way]);
        free(lse[way]);
    }
    free(mask);
    return status;
}

/* Remote blocks are gathered here instead of sent; V = K, so that one tensor does for both. */
static int check_pair(RingRank *r, int owner, int64_t first, int64_t tokens)
{
    const RingPlan *plan = r->plan;
    const int everybody = owner == RING_EVERYBODY;
    const RingShard *shards = everybody ? plan->k : &plan->k[owner];
    Cut q_cut, k_cut;
    RingBlock q = ring_own_queries(r), k = {.owner = owner,
                                            .first = first,
                                            .tokens = tokens,
                                            .batch_stride = tokens,
                                            .heads = plan->shape.Hkv};
    int status;
    cut_tokens(&k_cut, shards, everybody ? r->world : 1, first, tokens, &whole_args->K);
    cut_tokens(&q_cut, &plan->q[r->rank], 1, 0, r->nq, &whole_args->Q);
    k.a = k.b = k_cut.data.data;
    status = compare_pair(r, &q, &k, &q_cut, &k_cut);
    const int whole = !everybody && tokens == shards->tokens;
    for (int quarter = 0; quarter < RING_QUARTERS && whole && status == 0; quarter++) {
        const RingBlock part = ring_block_quarter(r, shards, &k, quarter);
        Cut part_cut;
        cut_tokens(&part_cut, shards, everybody ? r->world : 1, part.first, part.tokens,
                   &whole_args->K);
        status = compare_pair(r, &q, &part, &q_cut, &part_cut);
        cut_free(&part_cut);
    }
    cut_free(&q_cut);
    cut_free(&k_cut);
    return status;
}

static int check_blocks(RingRank *r)
{
    int64_t all = 0;
    for (int owner = 0; owner < r->world; owner++) {
        const int64_t tokens = r->plan->k[owner].tokens;
        all += tokens;
        CHECK(r, check_pair(r, owner, 0, tokens) == 0);
        if (tokens > 2)
            CHECK(r, check_pair(r, owner, 1, tokens - 2) == 0);
    }
    CHECK(r, check_pair(r, RING_EVERYBODY, 0, all) == 0);
    return 0;
}

TEST(test_blocks_see_what_they_should)
{
    for (int n = 0; n < OPTION_COUNT; n++)
        for (int layout = 0; layout < RING_LAYOUTS; layout++) {
            Case *problem = case_option(&options[n], (AttnDtype)(n % 3), 2, 1);
            whole_args = &problem->args;
            run_checks(check_blocks, problem, sim_setup(1 + n % 4, (RingLayout)layout));
        }
}
