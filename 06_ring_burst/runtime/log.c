/* SPDX-License-Identifier: MIT
 *
 * log.c: what a rank remembers of itself: bytes, events, where it stands, why it failed.
 *
 * A claim about communication ("the ring sends 2 (G-1) n Hkv d b bytes") is worth what its
 * measurement is worth. So every send is counted where all methods and transports pass, in
 * ring_start, and the tests compare the sums with the formulas of common/model_ring, to the byte.
 *
 * A failure has a place: rank, pass, step. Somebody whose run hangs on 8 GPUs asks "who, where,
 * waiting for what", and the sentence that ring_fail notes answers that. The first sentence stays;
 * what fails afterwards is only its consequence.
 *
 *     rank 2, forward step 3: waiting for K from rank 1: nothing within 60 s; rank 1 was ...
 *     `----- write_place ---'  `----------- what the caller of ring_fail says ------------
 *
 * When a rank is done it reports: threads simply leave their report in the world's; processes send
 * it to rank 0, numbers of fixed size and a list of events, whose length is sent before it. A run
 * that failed has no such last round of messages, and what is reported then comes from the
 * transport.
 *
 * Interface: ring_step, ring_fail (rank.h); ring_log_new, ring_log_free, ring_log_restart,
 * ring_log_event, ring_grow, ring_keep, ring_now_ms ..., ring_rank_report, ring_rank_release,
 * ring_report_gather, ring_report_free (ring_world.h).
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/ring_world.h"

/* The monotonic clock: it does not jump when somebody sets the time. All processes of a machine
 * read the same one, so the events of all ranks can be drawn on one axis. */
double ring_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

const char *ring_pass_name(RingPass pass)
{
    return pass == RING_FORWARD ? "forward" : pass == RING_BACKWARD ? "backward" : "set-up";
}

/* Zeros: nothing sent, nothing in flight. */
RingLog *ring_log_new(int trace)
{
    RingLog *log = calloc(1, sizeof *log);
    if (log) {
        log->trace = trace;
        log->stream = RING_BOTH_STREAMS;
    }
    return log;
}

void ring_log_free(RingLog *log)
{
    if (!log)
        return;
    for (int k = 0; k < log->kept_count; k++)
        free(log->kept[k]);
    free(log->kept);
    free(log->open);
    free(log->events);
    free(log->flights);
    for (int stream = 0; stream < RING_STREAMS; stream++)
        free(log->used[stream].uses);
    free(log);
}

void ring_log_restart(RingLog *log)
{
    memset(&log->traffic, 0, sizeof log->traffic);
    log->event_count = 0;
    log->fault_steps = log->fault_struck = 0; /* each round of a benchmark has the fault */
}

/* A full list doubles, so that an entry costs a copy now and then and not each time. */
int ring_grow(RingRank *r, void *list, int count, int *room, size_t size, const char *what)
{
    const int more = 2 * *room + 16;
    void *p;
    if (count < *room)
        return 0;
    memcpy(&p, list, sizeof p); /* a pointer to some type */
    p = realloc(p, (size_t)more * size);
    if (!p)
        return ring_fail(r, "out of memory for %s", what);
    memcpy(list, &p, sizeof p);
    *room = more;
    return 0;
}

/* A method written straight on cannot free its messages' lists when a call in the middle fails. So
 * they are noted here, and whatever is left goes when the rank goes. */
void *ring_keep(RingRank *r, size_t bytes)
{
    RingLog *log = r->log;
    void *p;
    if (ring_grow(r, &log->kept, log->kept_count, &log->kept_room, sizeof *log->kept, "messages"))
        return NULL;
    p = calloc(1, bytes ? bytes : 1);
    if (!p)
        return ring_fail(r, "out of memory for messages"), NULL;
    log->kept[log->kept_count++] = p;
    return p;
}

void ring_unkeep(RingRank *r, void *p)
{
    RingLog *log = r->log;
    int k = log->kept_count;
    while (k > 0 && log->kept[k - 1] != p)
        k--;
    if (!p || k == 0)
        return;
    log->kept[k - 1] = log->kept[--log->kept_count];
    free(p);
}

/* From the point of view of the rank that waits. A send is complete when its memory may be written
 * again: so one can wait for that too, and in a deadlock some rank does. */
const char *ring_transfer_words(const RingTransfer *t, char words[80])
{
    const char *name = ring_tensor_name(t->tensor);
    if (t->sends)
        snprintf(words, 80, "waiting until rank %d takes %s", t->peer, name);
    else
        snprintf(words, 80, "waiting for %s from rank %d", name, t->peer);
    return words;
}

int ring_log_event(RingRank *r, const RingEvent *event)
{
    RingLog *log = r->log;
    if (!log->trace || ring_grow(r, &log->events, log->event_count, &log->event_room,
                                 sizeof *log->events, "a trace") != 0)
        return -1;
    log->events[log->event_count] = *event;
    log->events[log->event_count].pass = r->pass;
    log->events[log->event_count].step = r->step;
    return log->event_count++;
}

/* The place where a fault can strike, and where others can see how far this rank has come. */
int ring_step(RingRank *r, int step)
{
    if (r->failed)
        return -1;
    if (step < 0 || step >= RING_MAX_STEPS)
        return ring_fail(r, "there is no step %d", step);
    r->step = step;
    r->log->fault_steps++;
    if (r->transport->note)
        r->transport->note(r);
    return ring_fault_step(r);
}

/* "rank 2, forward step 3: "; what is said follows. Returns its length. */
static int write_place(RingRank *r)
{
    const size_t room = sizeof r->failure;
    if (r->pass != RING_SETUP)
        return snprintf(r->failure, room, "rank %d, %s step %d: ", r->rank, ring_pass_name(r->pass),
                        r->step);
    return snprintf(r->failure, room, "rank %d, %s: ", r->rank,
                    r->log && r->log->fault_steps > 0 ? "outside of a pass" : "set-up");
}

/* The transport is told last, since `abandon` may wake up other ranks, and they will want to read
 * what is written here. */
int ring_fail(RingRank *r, const char *format, ...)
{
    va_list list;
    int written;
    if (r->failed)
        return -1;
    r->failed = 1;
    written = write_place(r);
    va_start(list, format);
    vsnprintf(r->failure + written, sizeof r->failure - (size_t)written, format, list);
    va_end(list);
    if (r->carrier && r->carrier->abandon)
        r->carrier->abandon(r);
    if (r->transport && r->transport->abandon)
        r->transport->abandon(r);
    return -1;
}

/* --- reports -----------------------------------------------------------------------------------*/

/* After ring_rank_report: the log holds what is told. */
void ring_rank_release(RingRank *r)
{
    if (r->backend->release)
        r->backend->release(r);
    ring_log_free(r->log);
    r->log = NULL;
}

void ring_rank_report(RingRank *r, RingReport *report)
{
    RingRankReport *to = &report->rank[r->rank];
    RingLog *log = r->log;
    *to = (RingRankReport){.rank = r->rank,
                           .failed = r->failed,
                           .peak_bytes = r->peak_bytes,
                           .peak_backward_bytes = r->peak_backward_bytes,
                           .workspace_bytes = r->workspace_bytes};
    if (!r->backend->carry) /* on the host the part of the mask lies in the rank's memory */
        to->workspace_bytes += r->mask_bytes;
    snprintf(to->failure, sizeof to->failure, "%s", r->failure);
    if (!log)
        return;
    to->traffic = log->traffic;
    report->events[r->rank] = log->events;
    report->event_count[r->rank] = log->event_count;
    log->events = NULL;
    log->event_count = log->event_room = 0;
}

/* Rank 0 receives one rank's numbers and then its events. In the order in which the rank sends:
 * numbers, then how many events, then the events. There is no type in a message; both sides know
 * what comes next. */
static int receive_report(RingRank *r, RingReport *report, int rank)
{
    int64_t count;
    size_t bytes;
    if (ring_host_receive(r, rank, &report->rank[rank], sizeof report->rank[rank]) != 0 ||
        ring_host_receive(r, rank, &count, sizeof count) != 0)
        return -1;
    bytes = (size_t)count * sizeof *report->events[rank];
    if (bytes == 0)
        return 0;
    report->events[rank] = malloc(bytes);
    if (!report->events[rank])
        return ring_fail(r, "out of memory for the events of rank %d", rank);
    report->event_count[rank] = count;
    return ring_host_receive(r, rank, report->events[rank], bytes);
}

/* Rank 0 listens to one rank after the other. The others send and are done. */
int ring_report_gather(RingRank *r, RingReport *report)
{
    report->ranks = r->world;
    ring_rank_report(r, report);
    if (r->rank != 0) {
        const int64_t count = report->event_count[r->rank];
        const size_t bytes = (size_t)count * sizeof *report->events[r->rank];
        if (ring_host_send(r, 0, &report->rank[r->rank], sizeof report->rank[0]) != 0 ||
            ring_host_send(r, 0, &count, sizeof count) != 0)
            return -1;
        return bytes ? ring_host_send(r, 0, report->events[r->rank], bytes) : 0;
    }
    for (int rank = 1; rank < r->world; rank++)
        if (receive_report(r, report, rank) != 0)
            return -1;
    return 0;
}

void ring_report_free(RingReport *report)
{
    for (int rank = 0; rank < RING_MAX_RANKS; rank++)
        free(report->events[rank]);
    memset(report->events, 0, sizeof report->events);
}
