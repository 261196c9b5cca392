/* SPDX-License-Identifier: MIT
 *
 * backend_memory.cu: a rank's memory on a GPU: pieces that are kept, and copies.
 *
 * Interface: of RingBackend (ring_world.h) alloc, free, upload, download, poison, copy;
 * cuda_backend_owns, cuda_backend_piece_has (backend_internal.h).
 */
#include "runtime/cuda/backend_internal.h"

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
