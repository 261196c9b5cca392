/* SPDX-License-Identifier: MIT
 *
 * backend_memory.cu: a rank's memory on a GPU: pieces that are kept, copies, and zeros that need
 * not be read, or not even written.
 *
 * A pass over memory of the size of O in float32 takes a hundredth of the time of attention with
 * 8192 tokens a GPU, and a ring would make several of them only to begin and to end. So who asks
 * for zeros gets a note that this memory is zero, and they are written when somebody else is about
 * to touch it. For the largest pieces that is never:
 *
 *   - A state that has seen nothing is O = 0, m = -inf, l = 0. Nobody reads O where l is 0, and the
 *     kernels write all rows that see a key. So O is left as it is. (Where remote blocks are
 *     rounded, --partials bf16, all of it is read.)
 *   - dQ is added to zeros and rounded at the end. The backward kernel's own dQ stays in the
 *     workspace until then, and if nobody has touched the zeros it goes to the tensor at once
 *     (backend_blocks.cu).
 *   - dK and dV of the first remote block: the kernel writes what it would have added.
 *
 * Whoever else touches such memory comes through cuda_backend_settle, which calls the last
 * function.
 *
 * Interface: of RingBackend (ring_world.h) alloc, free, upload, download, poison, copy, zero,
 * start_state; cuda_backend_owns, cuda_backend_piece_has, cuda_backend_is_zero,
 * cuda_backend_begin_O, cuda_backend_forget_zeros, cuda_backend_touch (backend_internal.h).
 */
#include "runtime/cuda/backend_internal.h"
#include "runtime/cuda/small_work.h"

#define SHARED_BLOCK ((size_t)2 << 20)

/* Small pieces of cudaMalloc lie together in blocks of 2 MiB, and a handle for other processes is
 * one of the whole block, with the neighbours in it. A piece that is a block has none. */
static size_t room_for(const CudaBackend *s, size_t bytes)
{
    const size_t least = bytes ? bytes : 1;
    return s->share ? (least + SHARED_BLOCK - 1) / SHARED_BLOCK * SHARED_BLOCK : least;
}

/* Linear search in a list of a few dozen pieces, beside a kernel of milliseconds. */
void *cuda_backend_alloc(RingRank *r, size_t bytes)
{
    CudaBackend *s = cuda_backend_of(r);
    void *p_dev = NULL;
    for (int p = 0; p < s->piece_count; p++)
        if (!s->pieces[p].used && s->pieces[p].bytes == bytes) {
            s->pieces[p].used = 1;
            return s->pieces[p].p_dev;
        }
    if (ring_grow(r, &s->pieces, s->piece_count, &s->piece_room, sizeof *s->pieces,
                  "the list of device memory") != 0 ||
        cudaMalloc(&p_dev, room_for(s, bytes)) != cudaSuccess) {
        (void)cudaGetLastError(); /* the caller tells that memory is short */
        return NULL;
    }
    s->pieces[s->piece_count++] = (DevicePiece){p_dev, bytes, 1, 0, {}};
    return p_dev;
}

/* Only marked as free: the GPU may still be working on it, and whoever gets it next will queue
 * behind. */
void cuda_backend_free(RingRank *r, void *p_dev)
{
    CudaBackend *s = cuda_backend_of(r);
    if (p_dev && s->sums.dQ == p_dev)
        s->sums.dQ = NULL; /* nobody has asked for this dQ */
    if (!r->failed)
        cuda_backend_join(r); /* whoever gets it comes behind both streams */
    for (int p = 0; p < s->piece_count; p++)
        if (s->pieces[p].p_dev == p_dev) {
            s->pieces[p].used = 0;
            cuda_backend_forget_zeros(s, p_dev, s->pieces[p].bytes);
        }
}

int cuda_backend_piece_has(const DevicePiece *piece, const void *p)
{
    const char *at = (const char *)p, *begin = (const char *)piece->p_dev;
    return begin <= at && at < begin + piece->bytes;
}

int cuda_backend_owns(const CudaBackend *s, const void *p)
{
    for (int n = 0; n < s->piece_count; n++)
        if (cuda_backend_piece_has(&s->pieces[n], p))
            return 1;
    return 0;
}

/* The copy is queued when the queue is empty, or the driver would block until it is. The stream,
 * not the default one: work of other ranks on this GPU goes on meanwhile. */
static int copy_now(RingRank *r, void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                    const char *what)
{
    if (cuda_backend_drain(r, 1) != 0 ||
        cuda_backend_try(r, cudaMemcpyAsync(to, from, bytes, kind, cuda_backend_work(r)), what) !=
            0)
        return -1;
    return cuda_backend_drain(r, 1);
}

int cuda_backend_upload(RingRank *r, void *to, const void *from_host, size_t bytes)
{
    if (cuda_backend_touch(r, to, bytes) != 0)
        return -1;
    return copy_now(r, to, from_host, bytes, cudaMemcpyHostToDevice, "upload");
}

int cuda_backend_download(RingRank *r, void *to_host, const void *from, size_t bytes)
{
    if (cuda_backend_settle(r, from, bytes) != 0)
        return -1;
    return copy_now(r, to_host, from, bytes, cudaMemcpyDeviceToHost, "download");
}

/* Async, as all work: it is put into the queue and this function returns. Of all bits set each
 * dtype makes a NaN. */
int cuda_backend_poison(RingRank *r, void *p, size_t bytes)
{
    if (cuda_backend_settle(r, p, bytes) != 0)
        return -1;
    return cuda_backend_try(r, cudaMemsetAsync(p, 0xFF, bytes, cuda_backend_work(r)), "NaN");
}

int cuda_backend_copy(RingRank *r, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                      size_t width, int64_t height)
{
    if (width == 0 || height == 0)
        return 0;
    if (cuda_backend_settle(r, to, to_pitch * (size_t)height) != 0 ||
        cuda_backend_settle(r, from, from_pitch * (size_t)height) != 0)
        return -1;
    return cuda_backend_try(r,
                            cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, (size_t)height,
                                              cudaMemcpyDeviceToDevice, cuda_backend_work(r)),
                            "copy");
}

/* --- zeros -------------------------------------------------------------------------------------*/

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
