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
 * And what a run tells is held against the formulas.
 *
 * Interface: ring_predict, ring_prediction_free, ring_hidden_share, ring_hidden_mean,
 * ring_bytes_agree, ring_memory_agrees, ring_bytes_text (cost.h).
 */
#include "planner/schedule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- how much is hidden ------------------------------------------------------------------------*/

/* The beginning or the end of an event. */
typedef struct Edge {
    double ms;
    int computes, change; /* +1: one more is under way */
} Edge;

/* For qsort. */
static int earlier(const void *a, const void *b)
{
    const Edge *x = a, *y = b;
    return (x->ms > y->ms) - (x->ms < y->ms);
}

/* From edge to edge: does something travel, and is something computed too? Messages overlap, and
 * two that travel at the same time cost that time once. This is the number behind "free": 1 means
 * that whenever something travelled the rank was computing. */
double ring_hidden_share(const RingEvent *events, int64_t count, RingPass pass)
{
    Edge *edges = malloc((2 * (size_t)count + 1) * sizeof *edges);
    int64_t n = 0;
    int under_way[2] = {0, 0}; /* messages, computations */
    double total = 0, hidden = 0;
    for (int64_t e = 0; edges && e < count; e++) {
        const int computes = events[e].kind == RING_EVENT_COMPUTE;
        if (events[e].pass != pass || events[e].end_ms <= events[e].start_ms)
            continue;
        edges[n++] = (Edge){events[e].start_ms, computes, +1};
        edges[n++] = (Edge){events[e].end_ms, computes, -1};
    }
    if (n > 0)
        qsort(edges, (size_t)n, sizeof *edges, earlier);
    for (int64_t i = 0; i < n; i++) {
        const double ms = i > 0 && under_way[0] > 0 ? edges[i].ms - edges[i - 1].ms : 0;
        total += ms;
        hidden += under_way[1] > 0 ? ms : 0;
        under_way[edges[i].computes] += edges[i].change;
    }
    free(edges);
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

/* --- against the formulas ----------------------------------------------------------------------*/

/* What rank g sent in a pass against the formulas. 1, or 0 with a sentence. */
static int bytes_agree(const RingModelCase *m, const RingTraffic *told, RingPass pass, int g,
                       char *sentence, size_t size)
{
    const RingModelBytes model = model_ring_sent(m, pass, g);
    for (int t = 0; t < RING_TENSORS; t++)
        if (told->sent[pass][t] != model.sent[t]) {
            snprintf(sentence, size,
                     "rank %d sent %" PRId64 " bytes of %s in the %s pass, the model says %" PRId64,
                     g, told->sent[pass][t], ring_tensor_name((RingTensor)t), ring_pass_name(pass),
                     model.sent[t]);
            return 0;
        }
    if (told->sent_inner[pass] != model.inner || told->sent_outer[pass] != model.outer) {
        snprintf(sentence, size,
                 "rank %d sent %" PRId64 " bytes inside its node and %" PRId64 " to others, the "
                 "model says %" PRId64 " and %" PRId64,
                 g, told->sent_inner[pass], told->sent_outer[pass], model.inner, model.outer);
        return 0;
    }
    return 1;
}

/* Every rank by itself: with 31 tokens on 4 ranks they do not send the same, and an error of one
 * rank could hide in a sum or a mean. */
int ring_bytes_agree(const RingModelCase *m, const RingReport *report, int backward, char *sentence,
                     size_t size)
{
    for (int g = 0; g < m->ranks; g++)
        if (!bytes_agree(m, &report->rank[g].traffic, RING_FORWARD, g, sentence, size) ||
            (backward &&
             !bytes_agree(m, &report->rank[g].traffic, RING_BACKWARD, g, sentence, size)))
            return 0;
    return 1;
}

int ring_memory_agrees(int64_t found, int64_t model, int rank, char *sentence, size_t size)
{
    if (llabs(found - model) * 20 <= model)
        return 1;
    snprintf(sentence, size, "rank %d held %" PRId64 " bytes, the model says %" PRId64, rank, found,
             model);
    return 0;
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
