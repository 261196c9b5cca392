/* SPDX-License-Identifier: MIT
 *
 * test_ring_collect.c: shards out of whole tensors and results back into them, in chunks.
 *
 * The method of this test computes nothing: O is Q, dQ is dO (in two halves with a gap between
 * them), dK is K, dV is V. So each result has to have the bytes of its input, wherever a chunk
 * ended: within a quarter, within a batch, behind the last token.
 */
#include "ring_sim_case.h"

#define GAP ((size_t)4096) /* between the halves of dQ */

static int same_forward(RingRank *r)
{
    const size_t bytes = ring_q_bytes(r, r->rank), rows = ring_row_bytes(r, r->rank);
    return ring_copy(r, r->O, bytes, r->Q, bytes, bytes, 1) || ring_zero(r, r->lse, rows) ? -1 : 0;
}

/* [B][nq][H][d] becomes quarters [B][tokens of the quarter][H][d]: 0 and 2, a gap, 1 and 3. */
static int split_gradient(RingRank *r)
{
    const int order[RING_QUARTERS] = {0, 2, 1, 3};
    const int64_t B = r->plan->shape.B;
    const size_t token = r->nq ? ring_q_bytes(r, r->rank) / (size_t)(B * r->nq) : 0;
    char *to;
    r->dQ_second = (size_t)(B * (r->nq / 2)) * token + GAP;
    r->dQ_bytes = (size_t)(B * r->nq) * token + GAP;
    r->dQ = to = ring_alloc(r, r->dQ_bytes, "dQ");
    for (int n = 0; n < RING_QUARTERS && !r->failed; n++) {
        const int64_t *cut = &r->plan->q[r->rank].cut[order[n]], first = cut[0];
        const size_t width = (size_t)(cut[1] - first) * token;
        to = n == 2 ? (char *)r->dQ + r->dQ_second : to;
        ring_copy(r, to, width, (char *)r->dO + (size_t)first * token, (size_t)r->nq * token, width,
                  B);
        to += (size_t)B * width;
    }
    return r->failed ? -1 : 0;
}

static int same_backward(RingRank *r)
{
    const size_t bytes = ring_kv_bytes(r, r->rank);
    r->dK_bytes = r->dV_bytes = bytes;
    r->dKV_whole = 1;
    r->dK = ring_alloc(r, bytes, "dK");
    r->dV = ring_alloc(r, bytes, "dV");
    return split_gradient(r) || ring_copy(r, r->dK, bytes, r->K, bytes, bytes, 1) ||
                   ring_copy(r, r->dV, bytes, r->V, bytes, bytes, 1)
               ? -1
               : 0;
}

static const RingMethodTable same = {.forward = same_forward, .backward = same_backward};

/* threads: of all ranks. */
static void run_same(AttnShape s, TensorLayout layout, RingLayout dealt, int ranks, int threads)
{
    RingSetup setup = sim_setup(ranks, dealt);
    setup.threads = threads;
    SimCase *c = sim_case(case_new(s, ATTN_F32, layout, 1), &setup, &same);
    const Case *p = c->problem;
    assert_int_equal(0, sim_run(c));
    assert_true(tensor_fingerprint(&p->O) == tensor_fingerprint(&p->Q));
    assert_true(tensor_fingerprint(&p->dQ) == tensor_fingerprint(&p->dO));
    assert_true(tensor_fingerprint(&p->dK) == tensor_fingerprint(&p->K));
    assert_true(tensor_fingerprint(&p->dV) == tensor_fingerprint(&p->V));
    sim_case_free(c);
}

/* Fewer tokens than ranks, one, and numbers that nothing divides. */
TEST(small_shards)
{
    static const int64_t tokens[] = {1, 2, 3, 7, 31};
    for (size_t n = 0; n < sizeof tokens / sizeof *tokens; n++)
        for (int layout = LAYOUT_BSHD; layout <= LAYOUT_ODD; layout++)
            for (int dealt = RING_CONTIGUOUS; dealt <= RING_STRIPED; dealt++)
                for (int ranks = 1; ranks <= 4; ranks++)
                    run_same((AttnShape){2, 4, 2, tokens[n], tokens[n] + 3, 5},
                             (TensorLayout)layout, (RingLayout)dealt, ranks, 1);
}

/* A token of Q has 2 MiB, so each rank has 5 or 6 chunks, one of which begins in the first half of
 * its dQ and ends in the second. Strides with gaps are moved head by head. And a token of more than
 * a chunk. */
TEST(many_chunks)
{
    const AttnShape shape = {2, 512, 1, 21, 17, 1024};
    if (quick()) /* under sanitizers: too much memory */
        return;
    run_same(shape, LAYOUT_BSHD, RING_ZIGZAG, 2, 1);
    run_same(shape, LAYOUT_ODD, RING_STRIPED, 2, 4);
    run_same(shape, LAYOUT_SBHD, RING_CONTIGUOUS, 1, 7);
    run_same((AttnShape){1, 2112, 1, 3, 2, 1024}, LAYOUT_BSHD, RING_CONTIGUOUS, 1, 1);
}

/* Where rank 0 has no memory for a result, the ranks run and send all the same. */
TEST(results_that_nobody_wants)
{
    const RingSetup setup = sim_setup(3, RING_ZIGZAG);
    SimCase *c = sim_case(sim_causal(7), &setup, &same);
    AttnArgs *args = &c->problem->args;
    float *const lse = args->lse;
    args->lse = NULL;
    args->O.data = args->dQ.data = args->dK.data = args->dV.data = NULL;
    assert_int_equal(0, sim_run(c));
    args->lse = lse;
    sim_case_free(c);
}
