/* SPDX-License-Identifier: MIT
 *
 * test_ring_head_streams: attention on a GPU, half of whose heads is in each stream (plays of
 * stream_play.h). Halves of two steps follow each in its stream; everything else waits for both,
 * and they for it.
 */
#include "stream_play.h"

/* Some of the own queries and of their heads see `keys`; m of their rows begins at V[1]. */
static int attend_with(RingRank *r, void *keys, int64_t tokens, int64_t heads)
{
    RingBlock q = ring_own_queries(r), k = ring_own_keys(r);
    q.rows = rooms(r)->V[1];
    q.tokens = tokens;
    q.heads = k.heads = heads;
    k.a = keys;
    return ring_attend(r, &q, &k, rooms(r)->O_state, r->lse);
}

static int attend(RingRank *r, void *keys)
{
    ring_stream(r, RING_BOTH_STREAMS);
    return attend_with(r, keys, r->nq, HEADS);
}

static int start_and_attend(RingRank *r)
{
    RingBlock q = ring_own_queries(r);
    q.rows = rooms(r)->V[1];
    ring_stream(r, RING_BOTH_STREAMS);
    return ring_start_state(r, &q, rooms(r)->O_state, r->lse) || attend(r, r->K) ? -1 : 0;
}

/* m of the first head, which is stream 0's, and of the last one. */
static float *m_of(RingRank *r, int half)
{
    return (float *)rooms(r)->V[1] + (half ? (HEADS - 1) * r->nq : 0);
}

/* Either stream may have what both halves have written. The maps are there after the first call. */
static int streams_behind_attention(RingRank *r)
{
    for (int stream = 0; stream < RING_STREAMS; stream++)
        if (start_and_attend(r) || attend(r, r->K) ||
            copy_in(r, stream, rooms(r)->K[0], m_of(r, 1 - stream)))
            return -1;
    return 0;
}

/* And both halves may read what either stream has written. */
static int attention_behind_streams(RingRank *r)
{
    const size_t bytes = ring_kv_bytes(r, r->rank);
    if (start_and_attend(r) || ring_copy(r, rooms(r)->K[0], bytes, r->K, bytes, bytes, 1))
        return -1;
    for (int stream = 0; stream < RING_STREAMS; stream++)
        if (copy_in(r, stream, rooms(r)->K[0], r->K) || attend(r, rooms(r)->K[0]))
            return -1;
    return 0;
}

/* The first of fewer heads is another stream's than it was, or both are one's: they come after
 * all. */
static int attention_of_fewer_heads(RingRank *r)
{
    return start_and_attend(r) || attend_with(r, r->K, r->nq, HEADS / 2) || attend(r, r->K) ||
                   attend_with(r, r->K, r->nq, 1)
               ? -1
               : 0;
}

/* So few queries that their keys are split: all heads are one kernel, behind both halves. Its map
 * and its workspace are there after the first call. */
static int split_keys_behind_both(RingRank *r)
{
    return start_and_attend(r) || attend_with(r, r->K, r->nq / 2, HEADS) || attend(r, r->K) ||
                   attend_with(r, r->K, r->nq / 2, HEADS)
               ? -1
               : 0;
}

/* What is asked for in one stream is in that one, with all of its heads. */
static int attention_in_one_stream(RingRank *r)
{
    for (int stream = 0; stream < RING_STREAMS; stream++) {
        if (start_and_attend(r))
            return -1;
        ring_stream(r, stream);
        for (int half = 0; half < RING_STREAMS; half++)
            if (attend_with(r, r->K, r->nq, HEADS) ||
                copy_in(r, stream, rooms(r)->K[0], m_of(r, half)))
                return -1;
    }
    return 0;
}

/* What it is for: half of the heads does not wait for what the other stream has to do, and so not
 * for the other half of this step or of an earlier one. A stranger in that queue, who writes keys,
 * shows it. */
static int a_stranger_in(RingRank *r, int stream)
{
    const CudaBackend *s = r->backend_state;
    if (start_and_attend(r) || attend(r, r->K) ||
        cudaMemsetAsync(rooms(r)->K[0], 0, PIECE, s->streams[stream]) || r->backend->mark(r, 0) < 0)
        return -1;
    return attend(r, rooms(r)->K[0]);
}

SCENE_OF(a_stranger_in_stream_0, a_stranger_in, 0)
SCENE_OF(a_stranger_in_stream_1, a_stranger_in, 1)

/* Both halves of attention, and then much more for one stream to do. */
static int attend_and_more(RingRank *r, int longer)
{
    const CudaBackend *s = r->backend_state;
    int status = start_and_attend(r) || attend(r, r->K);
    for (int n = 0; n < 32; n++)
        status |= cudaMemsetAsync(rooms(r)->K[1], 0, PIECE, s->streams[longer]);
    return status;
}

/* The end of a pass, which is timed, is that of both. */
static int an_end_behind(RingRank *r, int longer)
{
    const CudaBackend *s = r->backend_state;
    cudaEvent_t done;
    int status = attend_and_more(r, longer) || cudaEventCreate(&done) ||
                 cudaEventRecord(done, s->streams[longer]) || r->backend->finish(r);
    if (!status && !pretend_seen(done))
        status = ring_fail(r, "the end came before stream %d was there", longer);
    (void)cudaEventDestroy(done);
    return status ? -1 : 0;
}

static int an_end_behind_both(RingRank *r)
{
    return an_end_behind(r, 0) || an_end_behind(r, 1) ? -1 : 0;
}

/* Nor does a mark make the streams meet; its time is when both have done their halves. kind: of
 * work, or of a message that begins behind it. */
static int mark_behind_both(RingRank *r, int kind)
{
    const CudaBackend *s = r->backend_state;
    int status = 0;
    for (int longer = 0; longer < RING_STREAMS; longer++) {
        cudaEvent_t done;
        float ms = 0;
        status |= attend_and_more(r, longer) || cudaEventCreate(&done) ||
                  cudaEventRecord(done, s->streams[longer]);
        const int mark = r->backend->mark(r, kind);
        status |= mark < 0 || r->backend->finish(r) || cudaEventElapsedTime(&ms, s->start, done);
        if (!status && r->backend->mark_ms(r, mark) < s->start_ms + ms)
            status = ring_fail(r, "the mark came before stream %d was there", longer);
        (void)cudaEventDestroy(done);
    }
    return status ? -1 : 0;
}

SCENE_OF(a_mark_of_work, mark_behind_both, 0)
SCENE_OF(a_mark_of_a_message, mark_behind_both, 2)

enum { TOKENS = 8 }; /* of a rank: with so many queries their keys are not split */

PLAYS(test_streams_wait_for_attention, TOKENS, NULL, streams_behind_attention)
PLAYS(test_attention_waits_for_streams, TOKENS, NULL, attention_behind_streams)
PLAYS(test_other_work_is_not_halved, TOKENS, NULL, attention_of_fewer_heads, split_keys_behind_both,
      attention_in_one_stream)
PLAYS(test_halves_do_not_wait_for_each_other, TOKENS, "attention", a_stranger_in_stream_0,
      a_stranger_in_stream_1)
PLAYS(test_marks_wait_for_both, TOKENS, NULL, a_mark_of_work, a_mark_of_a_message)
PLAYS(test_the_end_waits_for_both, TOKENS, NULL, an_end_behind_both)
