/* SPDX-License-Identifier: MIT
 *
 * pretend_queues.c: streams and events of a pretended GPU.
 *
 * A stream is a list of things to do: work, the record of an event, a wait for such a record. As in
 * CUDA, who waits for an event waits for its last record at the time of asking; an event that was
 * never recorded holds nobody up.
 *
 * Which stream goes on is a matter of priorities, drawn from the seed and drawn anew now and then.
 * So a stream may stand still until everybody else is stuck, or rush ahead of all others.
 *
 * Interface: pretend_ask, pretend_done, pretend_queues_begin, pretend_queues_end (pretend_gpu.h);
 * of cuda_runtime_api.h streams and events.
 */
#include <stdlib.h>
#include <string.h>

#include "pretend_gpu.h"

typedef struct Item {
    PretendWork *work;  /* or NULL */
    cudaEvent_t record; /* or NULL */
    int behind;         /* a wait, if there is neither: for what this stream ... */
    uint32_t at;        /* ... has done; of a record: its number */
    struct Item *next;
} Item;

struct CUstream_st {
    int number, open;
    uint32_t asked, done;
    uint64_t priority;
    PretendClock clock; /* what comes next is behind all this */
    Item *first, **last;
};

struct CUevent_st {
    int stream; /* that it was last recorded in; -1: none */
    uint32_t at;
    PretendClock clock;
    double ms; /* when that was reached */
    int open;
    struct CUevent_st *next;
};

static struct CUstream_st streams[PRETEND_STREAMS];
static int stream_count;
static cudaEvent_t events;
static uint64_t random_state;
static double now_ms;

/* What a thread of the host has seen to be done, since the last pretend_gpu_begin: what it asks for
 * comes behind that. */
static unsigned round_number;
static _Thread_local struct {
    unsigned round;
    PretendClock clock;
} host;

uint32_t pretend_done(int stream)
{
    return streams[stream].done;
}

/* splitmix64, as in world_sim.c */
static uint64_t draw(void)
{
    uint64_t z = random_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static void come_behind(PretendClock *clock, const PretendClock *other)
{
    for (int s = 0; s < stream_count; s++)
        if (clock->at[s] < other->at[s])
            clock->at[s] = other->at[s];
}

static PretendClock *host_clock(void)
{
    if (host.round != round_number) {
        memset(&host.clock, 0, sizeof host.clock);
        host.round = round_number;
    }
    return &host.clock;
}

/* --- asking ------------------------------------------------------------------------------------*/

static Item *append(cudaStream_t stream)
{
    Item *item = pretend_need(calloc(1, sizeof *item));
    come_behind(&stream->clock, host_clock());
    stream->clock.at[stream->number] = ++stream->asked;
    *stream->last = item;
    stream->last = &item->next;
    return item;
}

void pretend_ask(PretendWork *work, cudaStream_t stream)
{
    pretend_lock();
    append(stream)->work = work;
    pretend_note_uses(work, stream->number, &stream->clock);
    pretend_unlock();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    Item *item;
    pretend_lock();
    item = append(stream);
    item->record = event;
    item->at = stream->asked;
    event->stream = stream->number;
    event->at = stream->asked;
    event->clock = stream->clock;
    pretend_unlock();
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    pretend_lock();
    if (event->stream >= 0) {
        Item *item = append(stream);
        item->behind = event->stream;
        item->at = event->at;
        come_behind(&stream->clock, &event->clock);
    }
    pretend_unlock();
    return cudaSuccess;
}

/* --- doing -------------------------------------------------------------------------------------*/

static int can_run(const Item *item)
{
    return item && (item->work || item->record || streams[item->behind].done >= item->at);
}

static void free_item(Item *item)
{
    if (item->work) {
        free(item->work->context);
        free(item->work->spans);
        free(item->work);
    }
    free(item);
}

/* The first thing of some stream. 0: none can go on. */
static int do_one(void)
{
    cudaStream_t chosen = NULL;
    for (int s = 0; s < stream_count; s++)
        if (can_run(streams[s].first) && (!chosen || streams[s].priority > chosen->priority))
            chosen = &streams[s];
    if (!chosen)
        return 0;
    if (draw() % 8 == 0)
        chosen->priority = draw();
    Item *item = chosen->first;
    now_ms += 1e-3;
    if (item->work)
        item->work->run(item->work->context);
    if (item->record && item->record->at == item->at && item->record->stream == chosen->number)
        item->record->ms = now_ms;
    chosen->first = item->next;
    if (!chosen->first)
        chosen->last = &chosen->first;
    chosen->done++;
    free_item(item);
    return 1;
}

/* Locked. All waits are for what was asked for before, so somebody can always go on. */
static cudaError_t do_some(void)
{
    for (uint64_t left = 1 + draw() % 16; left > 0; left--)
        if (!do_one())
            return cudaErrorUnknown;
    return cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;
    pretend_lock();
    if (stream->first && do_some() == cudaErrorUnknown && stream->first) {
        pretend_problem("no stream can go on");
        error = cudaErrorUnknown;
    } else if (stream->first) {
        error = cudaErrorNotReady;
    } else {
        come_behind(host_clock(), &stream->clock);
    }
    pretend_unlock();
    return error;
}

static int reached(cudaEvent_t event)
{
    const int yes = event->stream < 0 || streams[event->stream].done >= event->at;
    if (yes && event->stream >= 0)
        come_behind(host_clock(), &event->clock);
    return yes;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    pretend_lock();
    const cudaError_t error = reached(event) ? cudaSuccess : cudaErrorNotReady;
    pretend_unlock();
    return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    int moves = 1, done;
    pretend_lock();
    while (!(done = reached(event)) && moves)
        moves = do_one();
    if (!done)
        pretend_problem("no stream can go on");
    pretend_unlock();
    return done ? cudaSuccess : cudaErrorUnknown;
}

/* --- making, giving back -----------------------------------------------------------------------*/

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    pretend_lock();
    if (stream_count == PRETEND_STREAMS)
        abort();
    *stream = &streams[stream_count];
    **stream = (struct CUstream_st){.number = stream_count, .open = 1, .priority = draw()};
    (*stream)->last = &(*stream)->first;
    stream_count++;
    pretend_unlock();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    pretend_lock();
    if (stream->first || !stream->open)
        pretend_problem("stream %d is destroyed with work in it, or twice", stream->number);
    stream->open = 0;
    pretend_unlock();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = pretend_need(calloc(1, sizeof **event));
    (*event)->stream = -1;
    (*event)->open = 1;
    pretend_lock();
    (*event)->next = events;
    events = *event;
    pretend_unlock();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    pretend_lock();
    if (!event->open || (event->stream >= 0 && streams[event->stream].done < event->at))
        pretend_problem("an event is destroyed before it was reached, or twice");
    event->open = 0;
    pretend_unlock();
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    pretend_lock();
    const int both = from->stream >= 0 && to->stream >= 0 && reached(from) && reached(to);
    *ms = (float)(to->ms - from->ms);
    pretend_unlock();
    return both ? cudaSuccess : cudaErrorNotReady;
}

void pretend_queues_begin(uint64_t seed)
{
    round_number++;
    random_state = seed;
    stream_count = 0;
}

void pretend_queues_end(void)
{
    for (int s = 0; s < stream_count; s++) {
        if (streams[s].open)
            pretend_problem("stream %d was not destroyed", s);
        for (Item *item = streams[s].first, *next; item; item = next) {
            next = item->next;
            free_item(item);
        }
    }
    for (cudaEvent_t event = events, next; event; event = next) {
        if (event->open)
            pretend_problem("an event was not destroyed");
        next = event->next;
        free(event);
    }
    events = NULL;
}
