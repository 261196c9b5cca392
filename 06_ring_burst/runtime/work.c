/* SPDX-License-Identifier: MIT
 *
 * work.c: a rank's memory and the small work on it: zeros, copies, sums, rounding.
 *
 * Memory is a result of this stage: how many tokens a rank can hold is the reason to have ranks at
 * all. So ring_alloc counts the most that is live at once, in either pass, and the tests compare
 * with the model: 20 bytes for each element of a bf16 rank's queries forward, 38 backward.
 *
 * Interface: ring_alloc, ring_free, RingBuffer, ring_method_state, ring_zero, ring_copy, ring_add,
 * ring_narrow, ring_narrow_to, ring_widen (rank.h); ring_take_buffer, ring_split_rows, ring_round,
 * ring_method_end (ring_world.h).
 */
#include "runtime/ring_world.h"

/* --- memory ------------------------------------------------------------------------------------*/

/* What is live counts, not what was allocated in all: a buffer that is freed before the next is
 * made costs its peak once. That is why methods close buffers as early as they can. */
void *ring_alloc(RingRank *r, size_t bytes, const char *what)
{
    size_t *peak = r->pass == RING_BACKWARD ? &r->peak_backward_bytes : &r->peak_bytes;
    void *p;
    if (r->failed)
        return NULL;
    p = r->backend->alloc(r, bytes);
    if (!p) {
        ring_fail(r, "memory is short: %zu bytes for %s", bytes, what);
        return NULL;
    }
    r->live_bytes += bytes;
    *peak = r->live_bytes > *peak ? r->live_bytes : *peak;
    return p;
}

/* After a failure nothing is in flight any more, so that memory can be given back. */
void ring_free(RingRank *r, void *p, size_t bytes)
{
    if (!p)
        return;
    if (!r->failed)
        ring_touch(r, p, bytes, RING_WRITES, "ring_free");
    if (r->backend->free)
        r->backend->free(r, p);
    r->live_bytes -= bytes;
}

/* --- buffers -----------------------------------------------------------------------------------*/

/* One that is open stays: a pass may find the buffers that the pass before has left, with what is
 * in them. */
void ring_open_buffer(RingRank *r, RingBuffer *b, size_t bytes, const char *what)
{
    RingLog *log = r->log;
    if (b->data || r->failed)
        return;
    if (ring_grow(r, &log->open, log->open_count, &log->open_room, sizeof *log->open, "buffers"))
        return;
    b->data = ring_alloc(r, bytes, what);
    b->bytes = bytes;
    if (b->data)
        log->open[log->open_count++] = *b;
}

void *ring_take_buffer(RingRank *r, RingBuffer *b, size_t *bytes)
{
    RingLog *log = r->log;
    const RingBuffer mine = *b;
    int n = log->open_count;
    while (n > 0 && log->open[n - 1].data != mine.data)
        n--;
    if (n > 0)
        log->open[n - 1] = log->open[--log->open_count];
    *b = (RingBuffer){0};
    *bytes = mine.bytes;
    return mine.data;
}

void ring_close_buffer(RingRank *r, RingBuffer *b)
{
    size_t bytes;
    void *data = ring_take_buffer(r, b, &bytes);
    ring_free(r, data, bytes);
}

/* In the log, which frees it if nobody else does. */
void *ring_method_state(RingRank *r, size_t bytes)
{
    return r->method = r->log->state = ring_keep(r, bytes);
}

void ring_method_end(RingRank *r)
{
    RingLog *log = r->log;
    while (log && log->open_count > 0) {
        const RingBuffer b = log->open[--log->open_count];
        ring_free(r, b.data, b.bytes);
    }
    if (log && log->state) {
        ring_unkeep(r, log->state);
        r->method = log->state = NULL;
    }
}

/* --- copies ------------------------------------------------------------------------------------*/

/* Every function from here on has the same beginning: has this rank failed, is the memory in
 * flight? Then the backend does the work: a loop on the CPU, a kernel in a queue on a GPU. */
int ring_zero(RingRank *r, void *p, size_t bytes)
{
    if (r->failed || ring_touch(r, p, bytes, RING_WRITES, "ring_zero") != 0)
        return -1;
    return bytes && r->backend->zero ? r->backend->zero(r, p, bytes) : 0;
}

/* Row by row, since what lies between two rows may well be on its way, or another stream's. */
static int touch_rows(RingRank *r, const void *p, size_t pitch, size_t width, int64_t height,
                      RingUse how)
{
    const int in_one_stream = r->log->stream != RING_BOTH_STREAMS;
    if (!in_one_stream && width > 0 && height > 0)
        ring_streams_forget(r->log);
    for (int64_t row = 0; (in_one_stream || r->log->flight_count > 0) && row < height; row++)
        if (ring_touch(r, (const char *)p + (size_t)row * pitch, width, how, "ring_copy") != 0)
            return -1;
    return 0;
}

int ring_copy(RingRank *r, void *to, size_t to_pitch, const void *from, size_t from_pitch,
              size_t width, int64_t height)
{
    if (r->failed || touch_rows(r, to, to_pitch, width, height, RING_WRITES) != 0 ||
        touch_rows(r, from, from_pitch, width, height, RING_READS) != 0)
        return -1;
    if (width == 0 || height <= 0)
        return 0;
    return r->backend->copy(r, to, to_pitch, from, from_pitch, width, height);
}

/* rows [B][H][n]: a quarter of each row, row after row. As a copy with pitches: the rows are n
 * floats apart where they come from, and as many as a quarter has where they go. */
int ring_split_rows(RingRank *r, float *halves, const float *rows)
{
    const RingShard *shard = &r->plan->q[r->rank];
    const int64_t height = r->plan->shape.B * r->plan->shape.H, *cut = shard->cut;
    const size_t pitch = (size_t)shard->tokens * sizeof(float);
    for (int quarter = 0; quarter < RING_QUARTERS; quarter++) {
        const int64_t before = quarter % 2 ? ring_half_tokens(shard->tokens, 0) : 0;
        float *to = halves + height * (before + ring_quarter_place(shard, quarter));
        const size_t width = (size_t)(cut[quarter + 1] - cut[quarter]) * sizeof(float);
        if (ring_copy(r, to, width, rows + cut[quarter], pitch, width, height) != 0)
            return -1;
    }
    return 0;
}

/* --- sums and rounding -------------------------------------------------------------------------*/

int ring_add(RingRank *r, float *to, const float *from, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof(float);
    if (r->failed || ring_touch(r, to, bytes, RING_WRITES, "ring_add") != 0 ||
        ring_touch(r, from, bytes, RING_READS, "ring_add") != 0)
        return -1;
    return count ? r->backend->add(r, to, from, count) : 0;
}

int ring_narrow_to(RingRank *r, void *to, float *p, int64_t count, int dtype)
{
    const size_t from_bytes = (size_t)count * sizeof(float);
    const size_t to_bytes = (size_t)count * ring_size(dtype);
    if (r->failed ||
        ring_touch(r, p, from_bytes, to == p ? RING_WRITES : RING_READS, "ring_narrow") != 0 ||
        ring_touch(r, to, to_bytes, RING_WRITES, "ring_narrow") != 0)
        return -1;
    return count && r->backend->narrow ? r->backend->narrow(r, to, p, count, (AttnDtype)dtype) : 0;
}

/* In place: a sum that is about to be sent would otherwise need a second buffer of half its
 * size. */
int ring_narrow(RingRank *r, void *p, int64_t count, int dtype)
{
    return ring_narrow_to(r, p, p, count, dtype);
}

int ring_widen(RingRank *r, void *p, int64_t count, int dtype)
{
    if (r->failed ||
        ring_touch(r, p, (size_t)count * sizeof(float), RING_WRITES, "ring_widen") != 0)
        return -1;
    return count && r->backend->widen ? r->backend->widen(r, p, count, (AttnDtype)dtype) : 0;
}

/* There and back: the values are those of bf16, the type is float32. It shows what rounding O after
 * each remote block costs, without a second set of kernels for bf16 states. */
int ring_round(RingRank *r, float *p, int64_t count)
{
    if (r->partials == ATTN_F32)
        return ring_status(r);
    return ring_narrow(r, p, count, r->partials) != 0 ? -1 : ring_widen(r, p, count, r->partials);
}
