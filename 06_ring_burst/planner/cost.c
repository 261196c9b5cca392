/* SPDX-License-Identifier: MIT
 *
 * cost.c: a run that is only predicted, told like one that was measured: times and events.
 *
 * Three files make a prediction. A timetable says what each rank does, and in which order
 * (rehearse.c); a player gives every line of it a beginning and an end (schedule.c); and
 * here both become a RingReport, which is what a run fills in too. So whatever can be asked of a
 * run can be asked of a prediction, by the same code: who waited, what was hidden, a picture.
 *
 * What is hidden? On one line the spans in which a rank computes, on another one those in which a
 * message of its own is under way. The share of the second line that lies under the first:
 *
 *     computes    ========    ========      ====
 *     messages      ----------  --    ----
 *     hidden        xxxxxx      xx                       8 of 16: a half
 *
 * Interface: ring_predict, ring_prediction_free, ring_hidden_share, ring_hidden_mean,
 * ring_bytes_text (cost.h).
 */
#include "attn_pairs.h"
#include "planner/schedule.h"
#include "tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- how much is hidden ------------------------------------------------------------------------*/

typedef struct Span {
    double start, end;
} Span;

/* For qsort: by the beginning. */
static int earlier(const void *a, const void *b)
{
    const Span *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* Events of a kind as spans that do not overlap, in order. Returns how many. Sends and receives of
 * a rank overlap, and two messages that travel at the same time cost that time once. So overlapping
 * spans become one before anything is measured. */
static int64_t merged_spans(Span *spans, const RingEvent *events, int64_t count, RingPass pass,
                            int computing)
{
    int64_t n = 0, kept = 0;
    for (int64_t e = 0; e < count; e++)
        if (events[e].pass == pass && (events[e].kind == RING_EVENT_COMPUTE) == computing &&
            events[e].end_ms > events[e].start_ms)
            spans[n++] = (Span){events[e].start_ms, events[e].end_ms};
    qsort(spans, (size_t)n, sizeof *spans, earlier);
    for (int64_t i = 0; i < n; i++) {
        if (kept && spans[i].start <= spans[kept - 1].end) {
            if (spans[i].end > spans[kept - 1].end)
                spans[kept - 1].end = spans[i].end;
        } else {
            spans[kept++] = spans[i];
        }
    }
    return kept;
}

/* The time in which something travels, and the part of it in which something is computed too. Both
 * lists are in order, so two fingers that only move forwards are enough. This is the number behind
 * "free": 1 means that whenever something travelled the rank was computing. */
double ring_hidden_share(const RingEvent *events, int64_t count, RingPass pass)
{
    Span *messages = malloc(((size_t)count + 1) * sizeof *messages);
    Span *work = malloc(((size_t)count + 1) * sizeof *work);
    double total = 0, hidden = 0;
    if (messages && work) {
        const int64_t m = merged_spans(messages, events, count, pass, 0);
        const int64_t w = merged_spans(work, events, count, pass, 1);
        for (int64_t i = 0, j = 0; i < m; i++) {
            total += messages[i].end - messages[i].start;
            while (j < w && work[j].end <= messages[i].start)
                j++;
            for (int64_t k = j; k < w && work[k].start < messages[i].end; k++) {
                const double from =
                    work[k].start > messages[i].start ? work[k].start : messages[i].start;
                const double to = work[k].end < messages[i].end ? work[k].end : messages[i].end;
                hidden += to - from;
            }
        }
    }
    free(messages);
    free(work);
    return total > 0 ? hidden / total : 1;
}

double ring_hidden_mean(const RingReport *report, RingPass pass)
{
    double sum = 0;
    for (int r = 0; r < report->ranks; r++)
        sum += ring_hidden_share(report->events[r], report->event_count[r], pass);
    return sum / report->ranks;
}

/* --- events ------------------------------------------------------------------------------------*/

/* Room for all events of both passes of a rank. The lists grow by what the second pass adds to the
 * first. */
static int make_room(RingReport *report, const RingSchedule *s)
{
    for (int r = 0; r < s->ranks; r++) {
        const size_t most = (size_t)(report->event_count[r] + s->count[r]) + 1;
        RingEvent *events = realloc(report->events[r], most * sizeof *events);
        if (!events)
            return -1;
        report->events[r] = events;
    }
    return 0;
}

/* There is room: make_room has counted. */
static void add_event(RingReport *report, int rank, RingEvent event)
{
    report->events[rank][report->event_count[rank]++] = event;
}

/* The remote block: whose keys, or whose queries where the keys are the rank's own. Ulysses has no
 * remote block: everybody's tokens, some heads. Nor has small work. */
static int remote(const RingAction *a, int rank)
{
    if (a->kind == RING_ACT_MEMORY)
        return RING_EVERYBODY;
    return a->k.owner == rank ? a->q.owner : a->k.owner;
}

/* Every message is an event at both ends, as soon as both are ready. Reads the player's result,
 * line by line, and says it in the words of a run: seconds become milliseconds, a message becomes
 * two events. */
static void report_schedule(RingReport *report, const RingSchedule *s, double start_ms)
{
    for (int r = 0; r < s->ranks; r++)
        for (int64_t n = 0; n < s->count[r]; n++) {
            const RingAction *a = &s->actions[r][n];
            const RingMessage *m = a->message >= 0 ? &s->messages[a->message] : NULL;
            if ((a->kind == RING_ACT_COMPUTE || a->kind == RING_ACT_MEMORY) && a->end > a->start) {
                add_event(report, r,
                          (RingEvent){.kind = RING_EVENT_COMPUTE,
                                      .pass = s->pass,
                                      .step = a->step,
                                      .peer = remote(a, r),
                                      .start_ms = start_ms + 1e3 * a->start,
                                      .end_ms = start_ms + 1e3 * a->end,
                                      .masked = (int)a->work.tile});
            } else if (a->kind == RING_ACT_START) {
                add_event(report, r,
                          (RingEvent){.kind = m->from == r ? RING_EVENT_SEND : RING_EVENT_RECEIVE,
                                      .pass = s->pass,
                                      .step = a->step,
                                      .peer = m->from == r ? m->to : m->from,
                                      .tensor = m->tensor,
                                      .start_ms = start_ms + 1e3 * m->start,
                                      .end_ms = start_ms + 1e3 * m->end,
                                      .bytes = m->bytes});
            }
        }
}

/* The passes one after the other, on one axis of time, as in a run. */
int ring_predict(RingPrediction *prediction, const RingPlan *plan, const RingRates *rates)
{
    RingReport *report = &prediction->report;
    double start_ms = 0;
    memset(prediction, 0, sizeof *prediction);
    report->ranks = plan->setup.ranks;
    for (int pass = RING_FORWARD; pass <= (plan->backward ? RING_BACKWARD : RING_FORWARD); pass++) {
        const int p = pass == RING_BACKWARD;
        RingSchedule s;
        if (ring_schedule_make(&s, plan, (RingPass)pass) != 0) {
            ring_prediction_free(prediction);
            return -1;
        }
        prediction->ms[p] = 1e3 * ring_schedule_run(&s, rates);
        if (prediction->ms[p] < 0 || make_room(report, &s) != 0) {
            ring_schedule_free(&s);
            ring_prediction_free(prediction);
            return -1;
        }
        report_schedule(report, &s, start_ms);
        start_ms += prediction->ms[p];
        prediction->hidden[p] = ring_hidden_mean(report, (RingPass)pass);
        ring_schedule_free(&s);
    }
    return 0;
}

void ring_prediction_free(RingPrediction *prediction)
{
    for (int r = 0; r < prediction->report.ranks; r++)
        free(prediction->report.events[r]);
    memset(prediction, 0, sizeof *prediction);
}

/* --- words -------------------------------------------------------------------------------------*/

const char *ring_bytes_text(char text[32], int64_t bytes)
{
    const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1000 && unit < 4) {
        value /= 1000;
        unit++;
    }
    snprintf(text, 32, unit ? "%.3g %s" : "%.0f %s", value, units[unit]);
    return text;
}
