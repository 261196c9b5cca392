/* SPDX-License-Identifier: MIT
 *
 * test_ring_todo: the to-do list of the project in seed 002 (ring attention "wip"), every box a
 * test, on its own problem: 31 tokens, model dimension 8, ranks 1 and 4.
 *
 *     functions for splitting the sequence evenly among ranks
 *     basic test case with rank of 1 and 4 and check for equivalent output
 *     make it work with derived causal mask based on rank and chunk sizes
 *     output intermediates and figure out backwards with recompute and ring passes
 *     figure out striped attention
 *     figure out batch_isend_irecv
 *     cross attention
 */
#include "ring_method_case.h"

enum { TOKENS = 31, HEADS = 2, CHANNELS = 4, MORE_KEYS = 50 };

static Case *seed_case(int64_t Nk, AttnMask mask)
{
    Case *c =
        case_new((AttnShape){1, HEADS, HEADS, TOKENS, Nk, CHANNELS}, ATTN_F32, LAYOUT_BSHD, 1);
    case_align(c, mask);
    return c;
}

static RingPlan *plan_of(const Case *c, RingLayout layout, int ranks)
{
    const RingSetup setup = method_setup(RING_METHOD_RING, layout, ranks, 1);
    RingPlan *plan = malloc(sizeof *plan);
    char why[256];
    assert_non_null(plan);
    assert_int_equal(0, ring_plan_make(plan, &c->args, &setup, why));
    return plan;
}

static void plan_free(RingPlan *plan)
{
    ring_plan_free(plan);
    free(plan);
}

static void run(Case *c, RingMethod method, RingLayout layout, int ranks)
{
    static RingReport report;
    const RingSetup setup = method_setup(method, layout, ranks, 1);
    assert_true(method_run(c, &setup, 1, &report));
    ring_report_free(&report);
}

static void assert_right(const Case *c, const char *label)
{
    Check check = {.inputs_intact = 1, .storage_intact = 1, .pass = 1};
    Oracle oracle;
    assert_int_equal(0, oracle_run(&oracle, &c->args, 1, 1));
    check_outputs(&check, &oracle, NULL, &c->args, 1, 4);
    if (!check.pass)
        check_explain(&check, label, &c->args, stderr);
    oracle_free(&oracle);
    assert_true(check.pass);
}

/* Split and joined again: the same sequence. Evenly: 7 or 8 tokens each, no padding; zigzag's two
 * chunks are 3 or 4 each. */
TEST(box_split_the_sequence_evenly)
{
    Case *c = seed_case(TOKENS, ATTN_MASK_NONE);
    for (int layout = 0; layout < RING_LAYOUTS; layout++) {
        RingPlan *plan = plan_of(c, (RingLayout)layout, 4);
        int joined[TOKENS] = {0}, total = 0;
        for (int rank = 0; rank < 4; rank++) {
            const RingShard *s = &plan->q[rank];
            assert_true(s->tokens == 7 || s->tokens == 8);
            for (int64_t p = 0; p < s->count; p++)
                for (int64_t t = 0; t < s->pieces[p].length; t++, total++)
                    joined[s->pieces[p].global + t * s->pieces[p].stride]++;
        }
        assert_int_equal(TOKENS, total);
        for (int n = 0; n < TOKENS; n++)
            assert_int_equal(1, joined[n]);
        plan_free(plan);
    }
    case_free(c);
}

TEST(box_ranks_1_and_4_give_equivalent_output)
{
    const int64_t count = TOKENS * HEADS * CHANNELS;
    Case *one = seed_case(TOKENS, ATTN_MASK_NONE);
    run(one, RING_METHOD_RING, RING_CONTIGUOUS, 1);
    assert_right(one, "1 rank");
    for (int ranks = 4; ranks <= 8; ranks += 4) { /* 8 is upstream's default */
        float O[TOKENS * HEADS * CHANNELS];
        for (int64_t e = 0; e < count; e++)
            O[e] = tensor_get(&one->args.O, e);
        run(one, RING_METHOD_RING, RING_CONTIGUOUS, ranks);
        assert_right(one, "4 or 8 ranks");
        for (int64_t e = 0; e < count; e++)
            assert_true(fabsf(tensor_get(&one->args.O, e) - O[e]) <= 2e-6f);
    }
    case_free(one);
}

/* What rank r sees of rank j's keys follows from r, j and the chunks alone. */
TEST(box_causal_mask_from_rank_and_chunk)
{
    Case *c = seed_case(TOKENS, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    RingPlan *contiguous = plan_of(c, RING_CONTIGUOUS, 4), *striped = plan_of(c, RING_STRIPED, 4);
    for (int e = 0; e < 16; e++) {
        const int r = e / 4, j = e % 4;
        const AttnPositions q = {striped->q[r].segments, striped->q[r].count};
        const AttnPositions k = {striped->k[j].segments, striped->k[j].count};
        assert_int_equal(j < r    ? ATTN_TILE_CLEAN
                         : j == r ? ATTN_TILE_MASKED
                                  : ATTN_TILE_SKIP,
                         ring_pair_class(contiguous, r, j));
        for (int64_t a = 0; a < striped->q[r].tokens; a++)
            for (int64_t b = 0; b < striped->k[j].tokens; b++)
                assert_int_equal(
                    b <= (j <= r ? a : a - 1),
                    attn_visible(c->args.rule, attn_position(q, a), attn_position(k, b)));
    }
    plan_free(contiguous);
    plan_free(striped);
    for (int layout = 0; layout < RING_LAYOUTS; layout++) {
        run(c, RING_METHOD_RING, (RingLayout)layout, 4);
        assert_right(c, ring_layout_name((RingLayout)layout));
    }
    case_free(c);
}

/* Loss = sum of dO * O, over 4 ranks. */
static double loss(Case *c)
{
    double sum = 0;
    c->args.dO.data = NULL; /* forward only */
    run(c, RING_METHOD_RING, RING_ZIGZAG, 4);
    c->args.dO = c->dO.view;
    for (int64_t e = 0; e < TOKENS * HEADS * CHANNELS; e++)
        sum += (double)tensor_get(&c->args.O, e) * (double)tensor_get(&c->args.dO, e);
    return sum;
}

/* Gradients against differences of the loss. They are those of one attention over all ranks: a step
 * in the first key is felt by the queries of every rank. */
TEST(box_backward_with_recompute_and_ring_passes)
{
    enum { EVERY = 31, COUNT = TOKENS * HEADS * CHANNELS / EVERY };
    const double step = 0x1p-6;
    Case *c = seed_case(TOKENS, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    const Tensor *inputs[] = {&c->args.Q, &c->args.K, &c->args.V};
    const Tensor *results[] = {&c->args.dQ, &c->args.dK, &c->args.dV};
    float gradients[3][COUNT];
    run(c, RING_METHOD_RING, RING_ZIGZAG, 4);
    assert_right(c, "4 ranks");
    for (int e = 0; e < 3 * COUNT; e++)
        gradients[e / COUNT][e % COUNT] = tensor_get(results[e / COUNT], e % COUNT * EVERY);
    for (int n = 0; n < 3; n++)
        for (int e = 0; e < COUNT; e++) {
            const float x = tensor_get(inputs[n], e * EVERY), gradient = gradients[n][e];
            double up, down;
            tensor_set(inputs[n], e * EVERY, x + (float)step);
            up = loss(c);
            tensor_set(inputs[n], e * EVERY, x - (float)step);
            down = loss(c);
            tensor_set(inputs[n], e * EVERY, x);
            assert_true(fabs((up - down) / (2 * step) - gradient) <= 1e-3 * (1 + fabsf(gradient)));
        }
    case_free(c);
}

/* Right, and balanced: with stripes every rank has nearly as many visible pairs as any other. */
TEST(box_striped_attention)
{
    Case *c = seed_case(TOKENS, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    RingPlan *plan = plan_of(c, RING_STRIPED, 4);
    for (int method = RING_METHOD_RING; method <= RING_METHOD_ALLGATHER; method++) {
        run(c, (RingMethod)method, RING_STRIPED, 4);
        assert_right(c, ring_method_name((RingMethod)method));
    }
    for (int r = 0; r < 4; r++) {
        int64_t pairs = 0;
        for (int64_t t = 0; t < plan->q[r].tokens; t++)
            pairs += r + 4 * t + 1;                /* token n sees n + 1 keys */
        assert_true(pairs >= 112 && pairs <= 136); /* 496 / 4 = 124; contiguous: 28 to 220 */
    }
    plan_free(plan);
    case_free(c);
}

/* Sends and receives are posted together before the work of a step, and no order in which they
 * happen to be carried out blocks or changes anything. */
TEST(box_batched_sends_and_receives)
{
    static RingReport report;
    Case *c = seed_case(TOKENS, ATTN_MASK_NONE);
    RingSetup setup = method_setup(RING_METHOD_RING, RING_CONTIGUOUS, 4, 1);
    RingPlan *plan = plan_of(c, RING_CONTIGUOUS, 4);
    const RingTask task = {.plan = plan, .args = &c->args, .rounds = 1, .trace = 1};
    int sends = 0;
    Bits bits;
    assert_int_equal(0, ring_world_sim(&task, &ring_backend_cpu, &report));
    bits = bits_of(c);
    for (int rank = 0; rank < 4; rank++)
        for (int64_t s = 0; s < report.event_count[rank]; s++)
            for (int64_t w = 0; w < report.event_count[rank]; w++) {
                const RingEvent *send = &report.events[rank][s], *work = &report.events[rank][w];
                if (send->kind != RING_EVENT_SEND || work->kind != RING_EVENT_COMPUTE ||
                    send->pass != work->pass || send->step != work->step || send->tensor > RING_V)
                    continue;
                sends++;
                assert_true(send->start_ms <= work->start_ms);
            }
    assert_int_equal(4 * (3 * 2 + 3 * 2 * RING_HALVES), sends); /* K, V; one kernel, then halves */
    ring_report_free(&report);
    plan_free(plan);
    setup.adversarial = 1;
    for (; setup.schedule_seed < 20; setup.schedule_seed++) {
        assert_true(method_run(c, &setup, 1, &report));
        assert_true(bits_equal(bits, bits_of(c)));
        ring_report_free(&report);
    }
    case_free(c);
}

/* Queries and keys of different lengths, each dealt out for itself. */
TEST(box_cross_attention)
{
    for (int method = RING_METHOD_RING; method <= RING_METHOD_ALLGATHER; method++)
        for (int layout = 0; layout < RING_LAYOUTS; layout++) {
            Case *c = seed_case(MORE_KEYS, ATTN_MASK_NONE);
            run(c, (RingMethod)method, (RingLayout)layout, 4);
            assert_right(c, ring_method_name((RingMethod)method));
            case_free(c);
        }
}

int main(void)
{
    return RUN_TESTS(box_split_the_sequence_evenly, box_ranks_1_and_4_give_equivalent_output,
                     box_causal_mask_from_rank_and_chunk,
                     box_backward_with_recompute_and_ring_passes, box_striped_attention,
                     box_batched_sends_and_receives, box_cross_attention);
}
