/* SPDX-License-Identifier: MIT
 *
 * pretend_gpu.c: streams, events and memory of a pretended GPU, and who has used it when.
 *
 * As in CUDA, who waits for an event waits for its last record at the time of asking; an event that
 * was never recorded holds nobody up. Fresh memory is NaN. Beside each piece of memory lie the uses
 * that later ones have to come behind. What covers an older use, comes behind it and forbids as
 * much takes its place: who comes behind the new one comes behind both.
 *
 * One lock for all of it: ranks are threads.
 *
 * Interface: pretend_gpu.h; cuda_runtime_api.h.
 */
#include "pretend_gpu.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"

enum { STREAMS = 64 };

typedef struct Clock { /* of each stream: so many things asked of it are done before */
    uint32_t at[STREAMS];
} Clock;

struct CUstream_st {
    int number, open;
    unsigned looked; /* so often since something was asked for */
    Clock clock;     /* what comes next is behind all this */
};

struct CUevent_st {
    int recorded, open;
    unsigned looked;
    Clock clock;
    struct CUevent_st *next;
};

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
    int count, size;
    struct Piece *next;
} Piece;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int problems;
static char first_problem[256];
static struct CUstream_st streams[STREAMS];
static int stream_count;
static cudaEvent_t events;
static Piece *pieces;
static unsigned looks; /* in vain, before something is there */
static Clock seen;     /* by any thread of the host */
static unsigned round_number;
static _Thread_local struct { /* what this one has seen: what it asks for comes behind that */
    unsigned round;
    Clock clock;
} host;

static void *need(void *p)
{
    if (!p)
        abort();
    return p;
}

void pretend_problem(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (problems++ == 0)
        vsnprintf(first_problem, sizeof first_problem, format, list);
    va_end(list);
}

/* --- clocks ------------------------------------------------------------------------------------*/

static void come_behind(Clock *clock, const Clock *other)
{
    for (int s = 0; s < stream_count; s++)
        if (clock->at[s] < other->at[s])
            clock->at[s] = other->at[s];
}

static Clock *host_clock(void)
{
    if (host.round != round_number) {
        memset(&host.clock, 0, sizeof host.clock);
        host.round = round_number;
    }
    return &host.clock;
}

static uint32_t ask(cudaStream_t stream)
{
    come_behind(&stream->clock, host_clock());
    stream->looked = 0;
    return ++stream->clock.at[stream->number];
}

static void see(const Clock *clock)
{
    come_behind(host_clock(), clock);
    come_behind(&seen, clock);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    ask(stream);
    event->recorded = 1;
    event->looked = 0;
    event->clock = stream->clock;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    if (event->recorded) {
        ask(stream);
        come_behind(&stream->clock, &event->clock);
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static cudaError_t look(unsigned *looked, const Clock *clock)
{
    pthread_mutex_lock(&lock);
    const int there = (*looked)++ >= looks;
    if (there)
        see(clock);
    pthread_mutex_unlock(&lock);
    return there ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return look(&stream->looked, &stream->clock);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return event->recorded ? look(&event->looked, &event->clock) : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    while (cudaEventQuery(event) != cudaSuccess)
        continue;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = 0;
    for (int s = 0; s < stream_count; s++)
        *ms += (float)to->clock.at[s] - (float)from->clock.at[s];
    return from->recorded && to->recorded ? cudaSuccess : cudaErrorNotReady;
}

static int is_seen(const Clock *clock)
{
    for (int s = 0; s < stream_count; s++)
        if (clock->at[s] > seen.at[s])
            return 0;
    return 1;
}

int pretend_seen(cudaEvent_t event)
{
    pthread_mutex_lock(&lock);
    const int there = is_seen(&event->clock);
    pthread_mutex_unlock(&lock);
    return there;
}

/* --- uses of memory ----------------------------------------------------------------------------*/

static const char *does(PretendUse how)
{
    return how == PRETEND_READS ? "reads" : how == PRETEND_WRITES ? "writes" : "adds to";
}

static void compare(const Use *now, const Use *before, const Clock *clock)
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
static int takes_the_place(const Use *now, const Use *before, const Clock *clock)
{
    return now->begin <= before->begin && before->end <= now->end &&
           before->at <= clock->at[before->stream] &&
           (now->how == PRETEND_WRITES || now->how == before->how);
}

static void add_use(Piece *piece, const Use *now, const Clock *clock)
{
    int left = 0;
    for (int n = 0; n < piece->count; n++)
        if (!takes_the_place(now, &piece->uses[n], clock))
            piece->uses[left++] = piece->uses[n];
    piece->count = left;
    if (piece->count == piece->size) {
        piece->size = 2 * piece->size + 16;
        piece->uses = need(realloc(piece->uses, (size_t)piece->size * sizeof *piece->uses));
    }
    piece->uses[piece->count++] = *now;
}

void pretend_uses(PretendWork *work, const void *p, size_t bytes, PretendUse how)
{
    if (!p || bytes == 0)
        return;
    if (work->count == work->size) {
        work->size = 2 * work->size + 16;
        work->spans = need(realloc(work->spans, (size_t)work->size * sizeof *work->spans));
    }
    work->spans[work->count++] = (PretendSpan){p, bytes, how};
}

/* All are compared before any is added: a kernel may read and write the same. */
void pretend_ask(PretendWork *work, cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    const uint32_t at = ask(stream);
    for (int adding = 0; adding < 2; adding++)
        for (int n = 0; n < work->count; n++) {
            const PretendSpan *span = &work->spans[n];
            const Use now = {span->begin, span->begin + span->bytes, span->how, stream->number, at,
                             work->name};
            Piece *piece = pieces;
            while (piece && (now.begin < piece->p || now.end > piece->p + piece->bytes))
                piece = piece->next;
            if (!piece && adding)
                pretend_problem("%s in stream %d %s memory that is not the device's", work->name,
                                stream->number, does(span->how));
            for (int u = 0; piece && !adding && u < piece->count; u++)
                compare(&now, &piece->uses[u], &stream->clock);
            if (piece && adding)
                add_use(piece, &now, &stream->clock);
        }
    free(work->spans);
    *work = (PretendWork){.name = work->name};
    pthread_mutex_unlock(&lock);
}

/* --- memory ------------------------------------------------------------------------------------*/

cudaError_t cudaMalloc(void **p_dev, size_t bytes)
{
    Piece *piece = need(calloc(1, sizeof *piece));
    piece->p = *p_dev = need(workspace_alloc(bytes));
    piece->bytes = bytes;
    pthread_mutex_lock(&lock);
    piece->next = pieces;
    pieces = piece;
    pthread_mutex_unlock(&lock);
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
    Piece **at = &pieces;
    if (!p_dev)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    while (*at && (*at)->p != p_dev)
        at = &(*at)->next;
    if (*at) {
        Piece *piece = *at;
        for (int u = 0; u < piece->count; u++)
            if (piece->uses[u].at > seen.at[piece->uses[u].stream])
                pretend_problem("memory is freed that %s in stream %d still %s",
                                piece->uses[u].name, piece->uses[u].stream,
                                does(piece->uses[u].how));
        *at = piece->next;
        free_piece(piece);
    } else {
        pretend_problem("memory is freed that is not the device's");
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    PretendWork work = {.name = "a copy"};
    for (size_t row = 0; row < height; row++) {
        char *to_row = (char *)to + row * to_pitch;
        const char *from_row = (const char *)from + row * from_pitch;
        if (kind != cudaMemcpyHostToDevice)
            pretend_uses(&work, from_row, width, PRETEND_READS);
        if (kind != cudaMemcpyDeviceToHost)
            pretend_uses(&work, to_row, width, PRETEND_WRITES);
        pthread_mutex_lock(&lock);
        memcpy(to_row, from_row, width);
        pthread_mutex_unlock(&lock);
    }
    pretend_ask(&work, stream);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemsetAsync(void *p_dev, int value, size_t bytes, cudaStream_t stream)
{
    PretendWork work = {.name = "a memset"};
    pretend_uses(&work, p_dev, bytes, PRETEND_WRITES);
    pthread_mutex_lock(&lock);
    memset(p_dev, value, bytes);
    pthread_mutex_unlock(&lock);
    pretend_ask(&work, stream);
    return cudaSuccess;
}

/* --- making, giving back -----------------------------------------------------------------------*/

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    pthread_mutex_lock(&lock);
    if (stream_count == STREAMS)
        abort();
    *stream = &streams[stream_count];
    **stream = (struct CUstream_st){.number = stream_count++, .open = 1};
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    if (!stream->open || !is_seen(&stream->clock))
        pretend_problem("stream %d is destroyed with work in it, or twice", stream->number);
    stream->open = 0;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = need(calloc(1, sizeof **event));
    (*event)->open = 1;
    pthread_mutex_lock(&lock);
    (*event)->next = events;
    events = *event;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    pthread_mutex_lock(&lock);
    if (!event->open || !is_seen(&event->clock))
        pretend_problem("an event is destroyed before it was reached, or twice");
    event->open = 0;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

void pretend_gpu_begin(uint64_t seed)
{
    pthread_mutex_lock(&lock);
    problems = stream_count = 0;
    first_problem[0] = '\0';
    looks = (unsigned)(seed % 4);
    memset(&seen, 0, sizeof seen);
    round_number++;
    pthread_mutex_unlock(&lock);
}

int pretend_gpu_end(char words[256])
{
    for (Piece *piece = pieces, *next; piece; piece = next) {
        pretend_problem("%zu bytes were not freed", piece->bytes);
        next = piece->next;
        free_piece(piece);
    }
    for (int s = 0; s < stream_count; s++)
        if (streams[s].open)
            pretend_problem("stream %d was not destroyed", s);
    for (cudaEvent_t event = events, next; event; event = next) {
        if (event->open)
            pretend_problem("an event was not destroyed");
        next = event->next;
        free(event);
    }
    pieces = NULL;
    events = NULL;
    memcpy(words, first_problem, sizeof first_problem);
    return problems;
}

/* --- devices: as many as anybody asks for, which see each other's memory -----------------------*/

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = STREAMS;
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
