/* SPDX-License-Identifier: MIT
 *
 * space_zeros.cu: zeros that need not be read, or not even written.
 *
 * A pass over memory of the size of O in float32 takes a hundredth of the time of attention with
 * 8192 tokens a GPU, and a ring would make several of them only to begin and to end. Two are saved:
 *
 *   - A state that has seen nothing is O = 0, lse = -inf. The kernel reads no O where lse is -inf,
 *     and writes all rows that see a key. So O is left as it is, and after the first visitor those
 *     rows are cleared that it did not reach: mostly none.
 *   - dQ that is added to zeros and rounded at the end: if nobody has written to these zeros, the
 *     backward kernel's own dQ can go to the tensor at once (space_blocks.cu). For that it has to
 *     be known what is zero still.
 *
 * Whoever else touches such memory comes through cuda_space_settle, which calls the last function.
 *
 * Interface: of RingSpace (ring_world.h) zero, start_state; cuda_space_is_zero, cuda_space_begin_O,
 * cuda_space_reached, cuda_space_write_zeros, cuda_space_touch (space_internal.h).
 */
#include "small_work.h"
#include "space_internal.h"

static int overlap(const void *p, size_t p_bytes, const void *q, size_t q_bytes)
{
    const char *a = (const char *)p, *b = (const char *)q;
    return p && q && a < b + q_bytes && b < a + p_bytes;
}

/* Async: it is put into the queue behind the work that was asked for, and this function returns. */
int cuda_space_zero(RingRank *r, void *p, size_t bytes)
{
    CudaSpace *s = cuda_space_of(r);
    if (cuda_space_settle(r, p, bytes) != 0 ||
        cuda_space_try(r, cudaMemsetAsync(p, 0, bytes, s->work), "zeros") != 0)
        return -1;
    s->zeros[s->zero_next] = (CudaZeros){p, bytes};
    s->zero_next = (s->zero_next + 1) % CUDA_ZEROS;
    return 0;
}

int cuda_space_is_zero(const CudaSpace *s, const void *p, size_t bytes)
{
    for (int n = 0; n < CUDA_ZEROS; n++)
        if (s->zeros[n].p == p && s->zeros[n].bytes == bytes)
            return 1;
    return 0;
}

/* A row that has seen nothing: lse = ln 0. One state at a time is left unwritten. */
int cuda_space_start_state(RingRank *r, float *O_state, int64_t count, float *lse, int64_t rows)
{
    CudaSpace *s = cuda_space_of(r);
    const size_t bytes = (size_t)count * sizeof *O_state;
    if (cuda_space_settle(r, O_state, bytes) != 0)
        return -1;
    if (!s->unwritten.p)
        s->unwritten = (CudaZeros){O_state, bytes};
    else if (cuda_space_try(r, cudaMemsetAsync(O_state, 0, bytes, s->work), "zeros") != 0)
        return -1;
    return cuda_space_answer(r, launch_empty_rows(lse, rows, s->work), "an empty state");
}

/* A kernel is about to continue this state. 1: none of its O is written, and all of its rows are
 * the kernel's; *first says so. */
int cuda_space_begin_O(RingRank *r, const float *O_state, const AttnShape *n, int *first)
{
    CudaSpace *s = cuda_space_of(r);
    const size_t bytes = (size_t)(n->B * n->Nq * n->H * n->d) * sizeof *O_state;
    *first = s->unwritten.p == O_state && s->unwritten.bytes == bytes;
    if (*first)
        s->unwritten.p = NULL;
    return *first ? 0 : cuda_space_write_zeros(r);
}

/* Behind that kernel. */
int cuda_space_reached(RingRank *r, float *O_state, const float *lse, const AttnShape *n)
{
    return cuda_space_answer(r, launch_clear_unseen(O_state, lse, n, cuda_space_of(r)->work),
                             "rows that see nothing");
}

int cuda_space_write_zeros(RingRank *r)
{
    CudaSpace *s = cuda_space_of(r);
    const CudaZeros O = s->unwritten;
    s->unwritten.p = NULL;
    return O.p ? cuda_space_try(r, cudaMemsetAsync((void *)O.p, 0, O.bytes, s->work), "zeros") : 0;
}

int cuda_space_touch(RingRank *r, const void *p, size_t bytes)
{
    CudaSpace *s = cuda_space_of(r);
    for (int n = 0; n < CUDA_ZEROS; n++)
        if (overlap(s->zeros[n].p, s->zeros[n].bytes, p, bytes))
            s->zeros[n].p = NULL;
    return overlap(s->unwritten.p, s->unwritten.bytes, p, bytes) ? cuda_space_write_zeros(r) : 0;
}
