/* SPDX-License-Identifier: MIT
 *
 * pretend_memory.c: memory of a pretended GPU, and who has used it when.
 *
 * Fresh memory is NaN, so that what nobody has written shows in the result. Beside each piece of
 * memory lie the uses that later ones have to come behind. What covers an older use, comes
 * behind it and forbids as much takes its place: who comes behind the new one comes behind both.
 *
 * Interface: pretend_note_uses, pretend_memory_end; of cuda_runtime_api.h memory, copies, devices.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "pretend_gpu.h"

typedef struct Use {
    const char *begin, *end;
    PretendUse how;
    int stream;
    uint32_t at;
    const char *name;
} Use;

typedef struct Piece {
    char *p;
    size_t bytes;
    Use *uses;
    int count, room;
    struct Piece *next;
} Piece;

static Piece *pieces;

/* --- who comes behind whom ---------------------------------------------------------------------*/

static Piece *piece_of(const char *p)
{
    Piece *piece = pieces;
    while (piece && (p < piece->p || p >= piece->p + piece->bytes))
        piece = piece->next;
    return piece;
}

static const char *does(PretendUse how)
{
    return how == PRETEND_READS ? "reads" : how == PRETEND_WRITES ? "writes" : "adds to";
}

static void compare(const Use *now, const Use *before, const PretendClock *clock)
{
    const int harmless = now->how == before->how && now->how != PRETEND_WRITES;
    if (!harmless && now->begin < before->end && before->begin < now->end &&
        before->at > clock->at[before->stream])
        pretend_problem("%s in stream %d %s what %s in stream %d %s, and neither waits for the "
                        "other",
                        now->name, now->stream, does(now->how), before->name, before->stream,
                        does(before->how));
}

/* Is `before` over for everybody who comes behind `now`? */
static int takes_the_place(const Use *now, const Use *before, const PretendClock *clock)
{
    return now->begin <= before->begin && before->end <= now->end &&
           before->at <= clock->at[before->stream] &&
           (now->how == PRETEND_WRITES || now->how == before->how);
}

static void add_use(Piece *piece, const Use *now, const PretendClock *clock)
{
    int left = 0;
    for (int n = 0; n < piece->count; n++)
        if (!takes_the_place(now, &piece->uses[n], clock))
            piece->uses[left++] = piece->uses[n];
    piece->count = left;
    if (piece->count == piece->room) {
        piece->room = 2 * piece->room + 16;
        piece->uses = pretend_need(realloc(piece->uses, (size_t)piece->room * sizeof *piece->uses));
    }
    piece->uses[piece->count++] = *now;
}

/* All are compared before any is added: a kernel may read and write the same. */
void pretend_note_uses(const PretendWork *work, int stream, const PretendClock *clock)
{
    for (int noting = 0; noting < 2; noting++)
        for (int n = 0; n < work->count; n++) {
            const PretendSpan *span = &work->spans[n];
            const Use now = {span->begin, span->begin + span->bytes, span->how,
                             stream,      clock->at[stream],         work->name};
            Piece *piece = piece_of(span->begin);
            if (!piece || now.end > piece->p + piece->bytes) {
                if (noting)
                    pretend_problem("%s in stream %d %s memory that is not the device's",
                                    work->name, stream, does(span->how));
                continue;
            }
            for (int u = 0; !noting && u < piece->count; u++)
                compare(&now, &piece->uses[u], clock);
            if (noting)
                add_use(piece, &now, clock);
        }
}

/* --- memory ------------------------------------------------------------------------------------*/

cudaError_t cudaMalloc(void **p_dev, size_t bytes)
{
    Piece *piece = pretend_need(calloc(1, sizeof *piece));
    piece->p = *p_dev = pretend_need(workspace_alloc(bytes));
    piece->bytes = bytes;
    pretend_lock();
    piece->next = pieces;
    pieces = piece;
    pretend_unlock();
    return cudaSuccess;
}

static void free_piece(Piece *piece)
{
    workspace_free(piece->p);
    free(piece->uses);
    free(piece);
}

/* CUDA would wait for the whole GPU here; who counts on that is told. */
cudaError_t cudaFree(void *p_dev)
{
    Piece **at = &pieces, *piece;
    if (!p_dev)
        return cudaSuccess;
    pretend_lock();
    while (*at && (*at)->p != p_dev)
        at = &(*at)->next;
    piece = *at;
    if (!piece) {
        pretend_problem("memory is freed that is not the device's");
    } else {
        for (int u = 0; u < piece->count; u++)
            if (piece->uses[u].at > pretend_done(piece->uses[u].stream))
                pretend_problem("memory is freed that %s in stream %d still %s",
                                piece->uses[u].name, piece->uses[u].stream,
                                does(piece->uses[u].how));
        *at = piece->next;
        free_piece(piece);
    }
    pretend_unlock();
    return cudaSuccess;
}

void pretend_memory_end(void)
{
    for (Piece *piece = pieces, *next; piece; piece = next) {
        pretend_problem("%zu bytes were not freed", piece->bytes);
        next = piece->next;
        free_piece(piece);
    }
    pieces = NULL;
}

/* --- copies ------------------------------------------------------------------------------------*/

typedef struct Copy {
    char *to;
    const char *from; /* NULL: zeros, or another value */
    size_t to_pitch, from_pitch, width, height;
    int value;
} Copy;

static void run_copy(void *context)
{
    const Copy *c = context;
    for (size_t row = 0; row < c->height; row++)
        if (c->from)
            memcpy(c->to + row * c->to_pitch, c->from + row * c->from_pitch, c->width);
        else
            memset(c->to + row * c->to_pitch, c->value, c->width);
}

static void uses_rows(PretendWork *work, const char *p, size_t pitch, const Copy *c, PretendUse how)
{
    const int together = pitch == c->width;
    for (size_t row = 0; row < (together ? 1 : c->height); row++)
        pretend_uses(work, p + row * pitch, together ? c->width * c->height : c->width, how);
}

static cudaError_t ask_copy(const char *name, Copy c, cudaMemcpyKind kind, cudaStream_t stream)
{
    PretendWork *work = pretend_work(name, run_copy, &c, sizeof c);
    if (c.from && kind != cudaMemcpyHostToDevice)
        uses_rows(work, c.from, c.from_pitch, &c, PRETEND_READS);
    if (kind != cudaMemcpyDeviceToHost)
        uses_rows(work, c.to, c.to_pitch, &c, PRETEND_WRITES);
    pretend_ask(work, stream);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return ask_copy("a copy", (Copy){to, from, bytes, bytes, bytes, 1, 0}, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    return ask_copy("a copy of rows", (Copy){to, from, to_pitch, from_pitch, width, height, 0},
                    kind, stream);
}

cudaError_t cudaMemsetAsync(void *p_dev, int value, size_t bytes, cudaStream_t stream)
{
    return ask_copy("a memset", (Copy){p_dev, NULL, bytes, bytes, bytes, 1, value},
                    cudaMemcpyDeviceToDevice, stream);
}

/* --- devices: as many as anybody asks for, which see each other's memory -----------------------*/

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = PRETEND_STREAMS;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)peer, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest)
{
    *lowest = *highest = 0;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorNotReady ? "not ready" : "pretended";
}
