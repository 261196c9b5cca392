/* SPDX-License-Identifier: MIT
 *
 * rank_report.c: what a rank has to tell when it is done, and how rank 0 learns it.
 *
 * Threads simply leave their report in the world's; processes send it to rank 0. A run that failed
 * has no such last round of messages, and what is told then comes from the transport.
 *
 * A report is numbers of fixed size and a list of events, whose length is sent before it.
 *
 * Interface: ring_rank_report, ring_rank_release, ring_report_gather, ring_report_free
 * (ring_world.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/ring_world.h"

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
