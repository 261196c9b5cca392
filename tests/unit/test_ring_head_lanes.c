/* SPDX-License-Identifier: MIT
 *
 * test_ring_head_lanes: attention on a GPU, half of whose heads is in each lane (plays of
 * lane_play.h). Halves of two steps follow each in its lane; everything else waits for both, and
 * they for it.
 */
#include "lane_play.h"

/* The own queries see `keys`; m of their rows begins at V[1]. */
static int attend(RingRank *r, void *keys)
{
    RingBlock q = ring_own_queries(r), k = ring_own_keys(r);
    q.rows = rooms(r)->V[1];
    k.a = keys;
    ring_lane(r, RING_BOTH_LANES);
    return ring_attend(r, &q, &k, rooms(r)->O_state, r->lse);
}

static int start_and_attend(RingRank *r)
{
    RingBlock q = ring_own_queries(r);
    q.rows = rooms(r)->V[1];
    ring_lane(r, RING_BOTH_LANES);
    return ring_start_state(r, &q, rooms(r)->O_state, r->lse) || attend(r, r->K) ? -1 : 0;
}

/* m of the first head, which is lane 0's, and of the last one. */
static float *m_of(RingRank *r, int half)
{
    return (float *)rooms(r)->V[1] + (half ? (HEADS - 1) * r->nq : 0);
}

/* Either lane may have what both halves have written. The maps are there after the first call. */
static int lanes_behind_attention(RingRank *r)
{
    for (int lane = 0; lane < RING_LANES; lane++)
        if (start_and_attend(r) || attend(r, r->K) ||
            copy_in(r, lane, rooms(r)->K[0], m_of(r, 1 - lane)))
            return -1;
    return 0;
}

/* And both halves may read what either lane has written. */
static int attention_behind_lanes(RingRank *r)
{
    const size_t bytes = ring_kv_bytes(r, r->rank);
    if (start_and_attend(r) || ring_copy(r, rooms(r)->K[0], bytes, r->K, bytes, bytes, 1))
        return -1;
    for (int lane = 0; lane < RING_LANES; lane++)
        if (copy_in(r, lane, rooms(r)->K[0], r->K) || attend(r, rooms(r)->K[0]))
            return -1;
    return 0;
}

/* What it is for: the first half of the heads does not wait for what lane 1 has to do, and so not
 * for the other half of an earlier step. A stranger in that queue, who writes keys, shows it. */
static int a_stranger_in_lane_1(RingRank *r)
{
    const CudaSpace *s = r->space_state;
    if (start_and_attend(r) || attend(r, r->K) ||
        cudaMemsetAsync(rooms(r)->K[0], 0, PIECE, s->lanes[1]) || r->space->mark(r, 0) < 0)
        return -1;
    return attend(r, rooms(r)->K[0]);
}

/* Nor does a mark make the lanes meet; its time is when both have done their halves. */
static int a_mark_behind_both(RingRank *r)
{
    const CudaSpace *s = r->space_state;
    cudaEvent_t done[RING_LANES];
    int status = start_and_attend(r) || attend(r, r->K), mark = -1;
    for (int lane = 0; lane < RING_LANES; lane++)
        status |= cudaEventCreate(&done[lane]) || cudaEventRecord(done[lane], s->lanes[lane]);
    if (!status)
        mark = r->space->mark(r, 0);
    status |= mark < 0 || r->space->finish(r);
    for (int lane = 0; lane < RING_LANES; lane++) {
        float ms = 0;
        status |= cudaEventElapsedTime(&ms, s->start, done[lane]) != cudaSuccess;
        if (!status && r->space->mark_ms(r, mark) < s->start_ms + ms)
            return ring_fail(r, "the mark came before lane %d was there", lane);
        (void)cudaEventDestroy(done[lane]);
    }
    return status ? -1 : 0;
}

enum { TOKENS = 8 }; /* of a rank: with so many queries their keys are not split */

static void test_lanes_wait_for_attention(void **unused)
{
    (void)unused;
    play_with(lanes_behind_attention, TOKENS, NULL);
}

static void test_attention_waits_for_lanes(void **unused)
{
    (void)unused;
    play_with(attention_behind_lanes, TOKENS, NULL);
}

static void test_halves_do_not_wait_for_each_other(void **unused)
{
    (void)unused;
    play_with(a_stranger_in_lane_1, TOKENS, "attention");
}

static void test_marks_wait_for_both(void **unused)
{
    (void)unused;
    play_with(a_mark_behind_both, TOKENS, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_wait_for_attention),
        cmocka_unit_test(test_attention_waits_for_lanes),
        cmocka_unit_test(test_halves_do_not_wait_for_each_other),
        cmocka_unit_test(test_marks_wait_for_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
