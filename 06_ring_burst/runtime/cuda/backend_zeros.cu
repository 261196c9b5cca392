/* SPDX-License-Identifier: MIT
 *
 * backend_zeros.cu: zeros that need not be read, or not even written.
 *
 * A pass over memory of the size of O in float32 takes a hundredth of the time of attention with
 * 8192 tokens a GPU, and a ring would make several of them only to begin and to end. So who asks
 * for zeros gets a note that this memory is zero, and they are written when somebody else is about
 * to touch it. For the largest pieces that is never:
 *
 *   - A state that has seen nothing is O = 0, m = -inf, l = 0. Nobody reads O where l is 0, and the
 *     kernels write all rows that see a key. So O is left as it is. (Where remote blocks are
 *     rounded,
 *     --partials bf16, all of it is read.)
 *   - dQ is added to zeros and rounded at the end. The backward kernel's own dQ stays in the
 *     workspace until then, and if nobody has touched the zeros it goes to the tensor at once
 *     (backend_blocks.cu).
 *   - dK and dV of the first remote block: the kernel writes what it would have added.
 *
 * Whoever else touches such memory comes through cuda_backend_settle, which calls the last
 * function.
 *
 * Interface: of RingBackend (ring_world.h) zero, start_state; cuda_backend_is_zero,
 * cuda_backend_begin_O, cuda_backend_forget_zeros, cuda_backend_touch (backend_internal.h).
 */
#include "runtime/cuda/backend_internal.h"
#include "runtime/cuda/small_work.h"

static int overlap(const CudaZeros *zeros, const void *p, size_t bytes)
{
    const char *a = (const char *)zeros->p, *b = (const char *)p;
    return a && b && a < b + bytes && b < a + zeros->bytes;
}

/* Async: it is put into the queue behind the work that was asked for, and this function returns.
 * Zeros asked for in one stream are written in it. If they were asked for in both streams, or in
 * the other one, that one may use them too: then they are written in both. */
static int write_zeros(RingRank *r, CudaZeros *zeros)
{
    const CudaZeros now = *zeros;
    const int stream = cuda_backend_of(r)->stream;
    zeros->p = NULL;
    if (!now.p)
        return 0;
    if (now.stream != stream)
        cuda_backend_stream(r, RING_BOTH_STREAMS);
    const cudaError_t error = cudaMemsetAsync((void *)now.p, 0, now.bytes, cuda_backend_work(r));
    cuda_backend_stream(r, stream);
    return cuda_backend_try(r, error, "zeros");
}

/* The note. The oldest one has to make room for it. */
int cuda_backend_zero(RingRank *r, void *p, size_t bytes)
{
    CudaBackend *s = cuda_backend_of(r);
    CudaZeros *note = &s->zeros[s->zero_next];
    cuda_backend_forget_zeros(s, p, bytes);
    cuda_backend_join(r); /* what the other stream has been asked for until now comes before them */
    if (cuda_backend_settle(r, p, bytes) != 0 || write_zeros(r, note) != 0)
        return -1;
    *note = (CudaZeros){p, bytes, s->stream};
    s->zero_next = (s->zero_next + 1) % CUDA_ZEROS;
    return 0;
}

int cuda_backend_is_zero(const CudaBackend *s, const void *p, size_t bytes)
{
    for (int n = 0; n < CUDA_ZEROS; n++)
        if (s->zeros[n].p == p && s->zeros[n].bytes == bytes)
            return 1;
    return 0;
}

/* A row that has seen nothing: lse = ln 0. */
int cuda_backend_start_state(RingRank *r, float *O_state, int64_t count, float *lse, int64_t rows)
{
    if (cuda_backend_zero(r, O_state, (size_t)count * sizeof *O_state) != 0)
        return -1;
    return cuda_backend_answer(r, launch_empty_rows(lse, rows, cuda_backend_work(r)),
                               "an empty state");
}

/* A kernel is about to continue this state. *first = 1: it has seen no key. rows_only: O is read in
 * rows that have seen a key, and in no others. */
int cuda_backend_begin_O(RingRank *r, const float *O_state, const AttnShape *n, int rows_only,
                         int *first)
{
    CudaBackend *s = cuda_backend_of(r);
    const size_t bytes = (size_t)(n->B * n->Nq * n->H * n->d) * sizeof *O_state;
    *first = cuda_backend_is_zero(s, O_state, bytes);
    if (*first && rows_only)
        cuda_backend_forget_zeros(s, O_state, bytes);
    return cuda_backend_touch(r, O_state, bytes);
}

/* All of this memory is about to be written, or has been given back: what lies inside of it. */
void cuda_backend_forget_zeros(CudaBackend *s, const void *p, size_t bytes)
{
    const char *begin = (const char *)p, *end = begin + bytes;
    for (int n = 0; n < CUDA_ZEROS; n++) {
        const char *zeros = (const char *)s->zeros[n].p;
        if (zeros && begin <= zeros && zeros + s->zeros[n].bytes <= end)
            s->zeros[n].p = NULL;
    }
}

int cuda_backend_touch(RingRank *r, const void *p, size_t bytes)
{
    CudaBackend *s = cuda_backend_of(r);
    for (int n = 0; n < CUDA_ZEROS; n++)
        if (overlap(&s->zeros[n], p, bytes) && write_zeros(r, &s->zeros[n]) != 0)
            return -1;
    return 0;
}
