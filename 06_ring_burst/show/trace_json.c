/* SPDX-License-Identifier: MIT
 *
 * trace_json.c: events as Chrome's trace format, which Perfetto reads too: a list of spans with a
 * process (here: a rank) and a thread (here: what it does).
 *
 * Messages of a rank overlap, as do halves of a remote block on a GPU (exchange.c), and spans of a
 * thread may not. So each of the three has as many tracks as are needed: a span takes the first one
 * that is free at its start.
 *
 *     {"ph":"X","pid":2,"tid":0,"ts":1200,"dur":350,"name":"with rank 1", ...    rank 2 computes
 *     {"ph":"X","pid":2,"tid":16,"ts":1190,"dur":80,"name":"K to rank 3", ...    and sends
 *
 * ts and dur are microseconds. Open the file at ui.perfetto.dev, or give it to figures.py --trace.
 *
 * Interface: ring_trace_json (trace.h).
 */
#include "show/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Streams of a group, and the process number of rank 0 of a prediction: behind all measured
 * ones. */
enum { STREAMS = 16, PREDICTED = 1000 };

typedef struct Page {
    FILE *f;
    int written;
} Page;

/* A comma before each event but the first: JSON allows none behind the last. */
static void begin(Page *p)
{
    fputs(p->written++ ? ",\n" : "\n", p->f);
}

/* ph M: metadata. Perfetto shows the names at the left edge. */
static void name_process(Page *p, int process, int rank, const char *kind)
{
    begin(p);
    fprintf(p->f,
            "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank %d, "
            "%s\"}},\n"
            "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,"
            "\"args\":{\"sort_index\":%d}}",
            process, rank, kind, process, process);
}

/* A thread is a number, group * STREAMS + track; here it gets a name. */
static void name_streams(Page *p, int process, int group, const char *what, int tracks)
{
    for (int track = 0; track < tracks; track++) {
        begin(p);
        fprintf(p->f,
                "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":"
                "\"%s",
                process, group * STREAMS + track, what);
        if (tracks > 1)
            fprintf(p->f, " %d", track);
        fputs("\"}}", p->f);
    }
}

/* ph X: a span, with its beginning and its length in microseconds. */
static void write_event(Page *p, const RingEvent *e, int process, int thread, double zero_ms)
{
    static const char *const seen[] = {"nothing", "in part", "all"};
    begin(p);
    fprintf(p->f, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\",",
            process, thread, 1e3 * (e->start_ms - zero_ms), 1e3 * (e->end_ms - e->start_ms),
            ring_pass_name(e->pass));
    if (e->kind == RING_EVENT_COMPUTE) {
        if (e->masked == ATTN_TILE_SKIP)
            fputs("\"name\":\"sums and copies\",", p->f);
        else if (e->peer >= 0)
            fprintf(p->f, "\"name\":\"with rank %d\",", e->peer);
        else
            fputs("\"name\":\"all tokens\",", p->f);
        fprintf(p->f, "\"args\":{\"step\":%d,\"peer\":%d,\"seen\":\"%s\"}}", e->step, e->peer,
                seen[e->masked]);
        return;
    }
    fprintf(p->f,
            "\"name\":\"%s %s rank %d\",\"args\":{\"step\":%d,\"peer\":%d,\"tensor\":\"%s\","
            "\"bytes\":%" PRId64 "}}",
            ring_tensor_name(e->tensor), e->kind == RING_EVENT_SEND ? "to" : "from", e->peer,
            e->step, e->peer, ring_tensor_name(e->tensor), e->bytes);
}

static int by_start(const void *a, const void *b)
{
    const RingEvent *x = *(const RingEvent *const *)a, *y = *(const RingEvent *const *)b;
    return x->start_ms != y->start_ms ? (x->start_ms > y->start_ms ? 1 : -1) : x < y ? -1 : x > y;
}

/* The first track that is free; the last one takes what is left. */
static int take_stream(double *busy_until, const RingEvent *e, int *tracks)
{
    int track = 0;
    while (track < STREAMS - 1 && busy_until[track] > e->start_ms)
        track++;
    busy_until[track] = e->end_ms;
    *tracks = track + 1 > *tracks ? track + 1 : *tracks;
    return track;
}

/* Spans in the order of their beginning, or the first free track would not be free. */
static int write_rank(Page *p, const RingReport *report, int rank, int process, double zero_ms)
{
    static const char *const groups[] = {"computes", "sends", "receives"};
    const int64_t count = report->event_count[rank];
    const RingEvent **sorted = malloc(((size_t)count + 1) * sizeof *sorted);
    double busy[3][STREAMS];
    int tracks[3] = {1, 1, 1};
    if (!sorted)
        return -1;
    for (int g = 0; g < 3; g++)
        for (int track = 0; track < STREAMS; track++)
            busy[g][track] = -INFINITY;
    for (int64_t n = 0; n < count; n++)
        sorted[n] = &report->events[rank][n];
    qsort(sorted, (size_t)count, sizeof *sorted, by_start);
    for (int64_t n = 0; n < count; n++) {
        const int group = sorted[n]->kind;
        write_event(p, sorted[n], process,
                    group * STREAMS + take_stream(busy[group], sorted[n], &tracks[group]), zero_ms);
    }
    for (int g = 0; g < 3; g++)
        name_streams(p, process, g, groups[g], tracks[g]);
    free(sorted);
    return 0;
}

/* A run begins at 0, whatever its clock said. */
static int write_report(Page *p, const RingReport *report, const char *kind, int first_process)
{
    double zero_ms = INFINITY;
    for (int r = 0; r < report->ranks; r++)
        for (int64_t n = 0; n < report->event_count[r]; n++)
            zero_ms = fmin(zero_ms, report->events[r][n].start_ms);
    for (int r = 0; r < report->ranks; r++) {
        name_process(p, first_process + r, r, kind);
        if (write_rank(p, report, r, first_process + r, zero_ms) != 0)
            return -1;
    }
    return 0;
}

/* Measured ranks are processes 0, 1, ..., the model's are 1000, 1001, ...: two groups of the same
 * picture. */
int ring_trace_json(const char *path, const RingPlan *plan, const RingReport *measured,
                    const RingReport *predicted, char why[256])
{
    Page p = {.f = fopen(path, "w")};
    struct stat s;
    int status = 0, broken; /* -1: no memory for a list; the disk is full */
    if (!p.f) {
        snprintf(why, 256, "%.150s cannot be written: %s", path, strerror(errno));
        return -1;
    }
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", p.f);
    if (write_report(&p, measured, "measured", 0) != 0 ||
        write_report(&p, predicted, "model", PREDICTED) != 0)
        status = -1;
    fprintf(p.f,
            "\n],\"otherData\":{\"method\":\"%s\",\"layout\":\"%s\",\"ranks\":%d,\"nodes\":%d}}\n",
            ring_method_name(plan->setup.method), ring_layout_name(plan->setup.layout),
            plan->setup.ranks, plan->setup.nodes);
    broken = ferror(p.f);
    if (fclose(p.f) == 0 && !broken && status == 0)
        return 0;
    snprintf(why, 256, "%.150s cannot be written: %s", path,
             status ? "memory is short" : strerror(errno));
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode))
        unlink(path); /* half a trace is no trace */
    return -1;
}
