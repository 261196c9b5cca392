/* SPDX-License-Identifier: MIT
 *
 * trace.cpp: a block in model ticks: which warp waits, copies, multiplies, and when.
 *
 * What the first lane of each warp does is written down while the kernel runs, with the accesses of
 * its whole warp. Afterwards the block is played again on a simple multiprocessor: the table below
 * says how long everything takes. Four quarters each issue one instruction a tick and have a tensor
 * core; shared memory does one wavefront a tick; a copy by threads or by the engine lands when its
 * bytes and its latency are over. A warp waits for results where its next instruction is of another
 * kind. So the picture depends on the text, its data and the table, not on the order in which
 * fibers ran. Arithmetic that is no call (a += b * c) takes no time: clang does not tell of it.
 *
 * As JSON (Chrome's trace format, ui.perfetto.dev): a process for each kernel, a thread for each
 * warp, one for copies and one for the tensor cores; ts and dur are ticks. Beside traceEvents:
 *
 *     "requests": [{"kernel": ..., "line": "v1_fa2.cu:65 > warp_row.cuh:55", "space": "shared",
 *                   "write": false, "bytes": 4, "cost": 32, "ideal": 1, "addresses": [1024, ...]}]
 *
 * the first warp's first request of each line: cost in wavefronts (shared) or sectors (global), and
 * a byte address for each lane: a lane of shared memory asks for bank address / 4 % 32, one of
 * global memory for sector address / 32 (0 is the first sector of the request).
 *
 * Interface: machine.h.
 */
#include "machine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>

namespace simt
{
/* Ticks. Those of a Hopper card, rounded: a model to compare two texts by, not a time. */
enum {
    SHARED = 30,   /* from a read to its result, and a wavefront a tick */
    GLOBAL = 500,  /* likewise, and BYTES a tick */
    LATENCY = 700, /* a copy's latency */
    BYTES = 64,    /* a tick, of all global reads and copies of a block */
    PRODUCT = 30,  /* from the last product to its result */
    FLOPS = 1024,  /* a tick, of a quarter's tensor core by wgmma; mma.sync: two thirds */
    SPECIAL = 8,   /* an exp of a warp: a quarter does 4 lanes a tick */
    MEETING = 20,  /* from the last arrival at a barrier to the first instruction behind it */
    QUARTERS = 4,
    COLUMNS = 80
};
static const char *const table =
    "issue 1, shared 30 + wavefronts, global 500 + bytes / 64, copies "
    "700 + bytes / 64,\n  wgmma 1024 FLOPs a tick and quarter, mma two "
    "thirds of it, exp 8, barrier 20; other arithmetic 0";

struct Event {
    Act act;
    u32 pc;
    long n;
    u64 key;
    size_t at; /* before which access of its lane */
};
struct Request {
    int warp;
    u32 pc;
    bool shared, write;
    int size;
    long cost, ideal;
    std::vector<uintptr_t> addresses;
};
enum State { IDLE, MULTIPLIES, COMPUTES, SHARES, LOADS, COPIES, WAITS };
static const char letter[] = " mesgc.";
static const char *const state_name[] = {
    "", "multiplies", "exp, shuffle", "shared memory", "global memory", "copies", "waits"};
struct Span {
    size_t row;
    long from, to;
    State state;
    u32 pc;
};
struct Picture { /* of a kernel's first launch */
    std::string name;
    u32 block;
    std::vector<std::vector<Event>> warps;
    std::vector<std::vector<Event>> marks; /* not yet among the warp's accesses */
    std::map<u32, Request> requests;
    std::set<u32> copies; /* lines of cp.async, whose reads are no loads */
    std::vector<Span> spans;
    long ticks, tensor;
    bool stalled;
};
static std::vector<Picture *> pictures;
static Picture *now; /* NULL: this launch is not traced */

void trace_launch(void)
{
    now = nullptr;
    if (!flags.trace)
        return;
    for (const Picture *p : pictures)
        if (p->name == launch_now.name)
            return;
    const Config &c = launch_now.config;
    now = new Picture();
    now->name = launch_now.name;
    now->block = std::min((u32)std::max(flags.block, 0), c.grid.x * c.grid.y * c.grid.z - 1);
    now->warps.resize((size_t)launch_now.warps);
    now->marks.resize((size_t)launch_now.warps);
    pictures.push_back(now);
}

static bool is_traced(const Block &b)
{
    return now && b.number == now->block;
}

/* Called by each lane, or for its whole warp by the one that did the work. */
void trace(Act act, u32 pc, long n, u64 key)
{
    if (!now || !is_traced(*me->block))
        return;
    const Fiber *first = warp_of(*me->block, me->warp)[0];
    const bool whole = act == MMA || act == SHUFFLE || act == SHARED_READ || act == SHARED_WRITE;
    if (me != first && !whole)
        return;
    if (act == COPY)
        now->copies.insert(pc);
    now->marks[(size_t)me->warp].push_back({act, pc ? pc : first->pc, n, key, first->log.size()});
}

/* The first of the first warp, whichever comes first. */
static void keep_request(int warp, const std::vector<Log> &l, long cost, long ideal)
{
    const auto known = now->requests.find(l[0].pc);
    if (known != now->requests.end() && known->second.warp <= warp)
        return;
    Request r = {warp, l[0].pc, l[0].shared != 0, l[0].write != 0, l[0].size, cost, ideal, {}};
    uintptr_t base = l[0].a;
    for (const Log &x : l)
        base = std::min(base, x.a);
    base = r.shared ? 0 : base / 32 * 32;
    for (const Log &x : l)
        r.addresses.push_back(x.a - base);
    now->requests[r.pc] = r;
}

static long request(int warp, const std::vector<Log> &l)
{
    long ideal;
    const long cost = cost_of(l.data(), (int)l.size(), &ideal);
    keep_request(warp, l, cost, ideal);
    return cost;
}

void trace_request(u32 pc, const Log *l, int n)
{
    if (now && is_traced(*me->block))
        trace(l->write ? SHARED_WRITE : SHARED_READ, pc, request(me->warp, {l, l + n}));
}

/* The accesses of the first lane since the last time, each with its warp's, and what lies between.
 */
void trace_merge(Block &b, int warp)
{
    if (!is_traced(b))
        return;
    Fiber **f = warp_of(b, warp);
    std::vector<Event> &to = now->warps[(size_t)warp], &marks = now->marks[(size_t)warp];
    Requests requests = requests_of(b, warp);
    std::unordered_map<u32, u32> visits;
    size_t m = 0;
    for (size_t k = 0; k <= f[0]->log.size(); k++) {
        for (; m < marks.size() && marks[m].at <= k; m++)
            to.push_back(marks[m]);
        if (k == f[0]->log.size())
            break;
        const Log &l = f[0]->log[k];
        const long cost = request(warp, requests[{l.pc, visits[l.pc]++}]);
        if (now->copies.count(l.pc))
            continue;
        const Act act = l.shared ? (l.write ? SHARED_WRITE : SHARED_READ)
                                 : (l.write ? GLOBAL_WRITE : GLOBAL_READ);
        to.push_back({act, l.pc, cost, 0, 0});
    }
    marks.clear();
}

/* --- playing it again --------------------------------------------------------------------------*/

struct Groups {    /* of asynchronous work of one kind */
    long open = 0; /* when the work that is not yet committed is done */
    std::deque<long> done;
};
struct Runner {
    size_t next = 0;
    long now = 0, ready[SHUFFLE + 1] = {};
    Groups copies, products, stores;
    bool blocked = false;
};

struct Machine {
    Picture &p;
    std::vector<Runner> warps;
    std::map<u64, long> missing, over; /* of a phase: arrivals and copies; its end so far */
    std::map<u64, std::vector<size_t>> waiting;
    long issue[QUARTERS] = {}, tensor[QUARTERS] = {}, special[QUARTERS] = {};
    long shared = 0, memory = 0, engine = 0;

    Machine(Picture &p) : p(p), warps(p.warps.size())
    {
    }
    void span(size_t row, long from, long to, State state, u32 pc)
    {
        if (to > from)
            p.spans.push_back({row, from, to, state, pc});
        p.ticks = std::max(p.ticks, to);
    }
    void arrive(u64 key, long when)
    {
        over[key] = std::max(over[key], when);
        if (--missing[key] > 0)
            return;
        for (size_t w : waiting[key]) {
            const long go = std::max(warps[w].now, over[key] + MEETING);
            const Event &e = p.warps[w][warps[w].next - 1];
            span(w, warps[w].now, go, WAITS, e.pc);
            warps[w].now = go;
            warps[w].blocked = false;
        }
        waiting.erase(key);
    }
    Groups &groups(Runner &r, Act of)
    {
        return of == COPY ? r.copies : of == WGMMA ? r.products : r.stores;
    }
    long multiply(size_t q, long start, long flops, long rate)
    {
        const long from = std::max(start, tensor[q]), to = from + flops / rate;
        tensor[q] = to;
        span(p.warps.size() + 1, from, to, MULTIPLIES, 0);
        p.tensor += to - from;
        return to + PRODUCT;
    }
    long copy(long &free_at, long start, long bytes)
    {
        const long from = std::max(start, free_at);
        free_at = from + (bytes + BYTES - 1) / BYTES;
        span(p.warps.size(), start, free_at + LATENCY, COPIES, 0);
        return free_at + LATENCY;
    }
    void begin(const Event &e, Runner &r, size_t q, long start);
    bool step(size_t w);
    void play(void);
};

static State state_of(Act a)
{
    static const State of[] = {LOADS,      LOADS,    SHARES,   SHARES,   MULTIPLIES,
                               MULTIPLIES, COMPUTES, COMPUTES, COPIES,   COPIES,
                               COPIES,     COMPUTES, COMPUTES, COMPUTES, WAITS};
    return of[a];
}

/* What an instruction that is issued at `start` keeps busy, and when its result is there. */
void Machine::begin(const Event &e, Runner &r, size_t q, long start)
{
    switch (e.act) {
    case SHARED_READ:
    case SHARED_WRITE:
    case SHUFFLE:
        shared = std::max(shared, start) + std::max(e.n, 1L);
        r.ready[e.act] = e.act == SHARED_WRITE ? shared : shared + SHARED;
        break;
    case GLOBAL_READ:
    case GLOBAL_WRITE:
        memory = std::max(memory, start) + (e.n * 32 + BYTES - 1) / BYTES;
        if (e.act == GLOBAL_READ)
            r.ready[e.act] = memory + GLOBAL;
        break;
    case MMA:
        r.ready[MMA] = multiply(q, start, e.n, FLOPS * 2 / 3);
        break;
    case WGMMA:
        r.products.open = multiply(q, start, e.n, FLOPS);
        break;
    case EXP:
        special[q] = std::max(special[q], start) + SPECIAL;
        r.ready[EXP] = special[q];
        break;
    case COPY:
        r.copies.open = copy(memory, start, e.n);
        break;
    case ENGINE_COPY:
        arrive(e.key, copy(engine, start, e.n));
        break;
    case ENGINE_STORE:
        r.stores.open = copy(engine, start, e.n);
        break;
    case ARRIVE:
        arrive(e.key, start);
        break;
    default:
        break;
    }
}

/* One event of a warp, at the moment that it has come to; false: it only got to a later one. */
bool Machine::step(size_t w)
{
    Runner &r = warps[w];
    const Event &e = p.warps[w][r.next];
    const size_t q = w % QUARTERS;
    for (int a = 0; a <= SHUFFLE; a++) /* results of another kind */
        if (a != e.act && r.ready[a] > r.now) {
            span(w, r.now, r.ready[a], state_of((Act)a), e.pc);
            r.now = r.ready[a];
            return false;
        }
    if (e.act == COMMIT || e.act == WAIT) {
        Groups &g = groups(r, (Act)e.n);
        r.next++;
        if (e.act == COMMIT) {
            g.done.push_back(g.open);
            return true;
        }
        while (g.done.size() > e.key) {
            if (g.done.front() > r.now) {
                span(w, r.now, g.done.front(), e.n == WGMMA ? MULTIPLIES : WAITS, e.pc);
                r.now = g.done.front();
            }
            g.done.pop_front();
        }
        return true;
    }
    if (e.act == AWAIT) {
        r.next++;
        const auto m = missing.find(e.key);
        if (m != missing.end() && m->second > 0) {
            r.blocked = true;
            waiting[e.key].push_back(w);
        } else if (m != missing.end() && over[e.key] + MEETING > r.now) {
            span(w, r.now, over[e.key] + MEETING, WAITS, e.pc);
            r.now = over[e.key] + MEETING;
        }
        return true;
    }
    if (issue[q] > r.now) {
        span(w, r.now, issue[q], state_of(e.act), e.pc);
        r.now = issue[q];
        return false;
    }
    const long start = r.now;
    issue[q] = r.now = start + 1;
    r.next++;
    span(w, start, r.now, state_of(e.act), e.pc);
    begin(e, r, q, start);
    return true;
}

/* Always the warp that is furthest behind: what several want goes to who comes first. */
void Machine::play(void)
{
    for (const auto &warp : p.warps)
        for (const Event &e : warp)
            if (e.act == ARRIVE || e.act == ENGINE_COPY)
                missing[e.key]++;
    for (;;) {
        size_t best = warps.size();
        bool all_done = true;
        for (size_t w = 0; w < warps.size(); w++) {
            const bool done = warps[w].next == p.warps[w].size() && !warps[w].blocked;
            all_done = all_done && done;
            if (!done && !warps[w].blocked &&
                (best == warps.size() || warps[w].now < warps[best].now))
                best = w;
        }
        p.stalled = !all_done && best == warps.size();
        if (best == warps.size())
            return;
        step(best);
    }
}

/* --- as text -----------------------------------------------------------------------------------*/

static void print_rows(FILE *to, const Picture &p)
{
    const size_t W = p.warps.size();
    const double width = (double)std::max(p.ticks, 1L) / COLUMNS;
    std::vector<std::vector<double>> share((W + 2) * COLUMNS, std::vector<double>(WAITS + 1));
    for (const Span &s : p.spans)
        for (int c = (int)((double)s.from / width); c < COLUMNS && c * width < (double)s.to; c++)
            share[s.row * COLUMNS + (size_t)c][s.state] +=
                std::min((double)s.to, (c + 1) * width) - std::max((double)s.from, c * width);
    for (size_t row = 0; row < W + 2; row++) {
        char text[COLUMNS + 1] = "", name[16];
        for (size_t c = 0; c < COLUMNS; c++) {
            const std::vector<double> &v = share[row * COLUMNS + c];
            const size_t most = (size_t)(std::max_element(v.begin(), v.end()) - v.begin());
            const double busy = v[most] / width / (row == W + 1 ? QUARTERS : 1);
            text[c] = row < W    ? letter[most]
                      : busy > 0 ? (char)('0' + std::min(9, (int)(busy * 10)))
                                 : ' ';
        }
        snprintf(name, sizeof name, "warp %zu", row);
        fprintf(to, "  %-12s %s\n", row < W ? name : row == W ? "copies" : "tensor cores", text);
    }
}

static void print_waits(FILE *to, const Picture &p)
{
    std::map<std::string, long> by;
    long waits = 0, all = 0;
    for (const Span &s : p.spans)
        if (s.row < p.warps.size()) {
            all += s.to - s.from;
            if (s.state == WAITS) {
                by[place(s.pc)] += s.to - s.from;
                waits += s.to - s.from;
            }
        }
    std::vector<std::pair<long, std::string>> most;
    for (const auto &b : by)
        most.push_back({-b.second, b.first});
    std::sort(most.begin(), most.end());
    fprintf(to, "  tensor cores busy %.0f %% of %ld ticks; warps wait %.0f %% of their time",
            100.0 * (double)p.tensor / (double)std::max(QUARTERS * p.ticks, 1L), p.ticks,
            100.0 * (double)waits / (double)std::max(all, 1L));
    fprintf(to, most.empty() ? "\n" : ", most of it at\n");
    for (size_t i = 0; i < most.size() && i < 4; i++)
        fprintf(to, "    %-70s %3.0f %%\n", most[i].second.c_str(),
                -100.0 * (double)most[i].first / (double)std::max(all, 1L));
}

/* Spans of one row that touch and are of one kind are one; its line is that of the longest. */
static std::vector<Span> joined(const Picture &p)
{
    std::vector<Span> out;
    std::vector<Span> sorted = p.spans;
    std::stable_sort(sorted.begin(), sorted.end(), [](const Span &a, const Span &b) {
        return a.row != b.row ? a.row < b.row : a.from < b.from;
    });
    long longest = 0;
    for (const Span &s : sorted) {
        if (out.empty() || out.back().row != s.row || out.back().state != s.state ||
            out.back().to < s.from) {
            out.push_back(s);
            longest = s.to - s.from;
            continue;
        }
        if (s.to - s.from > longest) {
            longest = s.to - s.from;
            out.back().pc = s.pc;
        }
        out.back().to = std::max(out.back().to, s.to);
    }
    return out;
}

static void write_json(void)
{
    FILE *to = fopen(flags.json.c_str(), "w");
    if (!to) {
        fprintf(stderr, "simt: cannot write %s: %s\n", flags.json.c_str(), strerror(errno));
        stop(2);
    }
    fprintf(to, "{\"otherData\":{\"device\":\"simt\",\"unit\":\"model ticks\"},\"traceEvents\":[");
    const char *comma = "\n";
    for (size_t k = 0; k < pictures.size(); k++) {
        const Picture &p = *pictures[k];
        fprintf(to,
                "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%zu,\"args\":{\"name\":"
                "\"%s, block %u\",\"ticks\":%ld,\"tensor\":%ld}}",
                comma, k, p.name.c_str(), p.block, p.ticks, p.tensor);
        comma = ",\n";
        for (size_t row = 0; row < p.warps.size() + 2; row++)
            fprintf(to,
                    ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%zu,\"tid\":%zu,"
                    "\"args\":{\"name\":\"%s%s\"}}",
                    k, row,
                    row < p.warps.size()    ? "warp "
                    : row == p.warps.size() ? "copies"
                                            : "tensor cores",
                    row < p.warps.size() ? std::to_string(row).c_str() : "");
        for (const Span &s : joined(p))
            fprintf(to,
                    ",\n{\"ph\":\"X\",\"pid\":%zu,\"tid\":%zu,\"ts\":%ld,\"dur\":%ld,\"name\":"
                    "\"%s\",\"args\":{\"line\":\"%s\"}}",
                    k, s.row, s.from, s.to - s.from, state_name[s.state], place(s.pc).c_str());
    }
    fprintf(to, "\n],\"requests\":[");
    comma = "\n";
    for (const Picture *p : pictures) {
        std::set<std::string> seen; /* clang may have made several accesses of one */
        for (const auto &entry : p->requests) {
            const Request &r = entry.second;
            char head[400];
            snprintf(head, sizeof head,
                     "{\"kernel\":\"%.80s\",\"line\":\"%.120s\",\"space\":\"%s\",\"write\":%s,"
                     "\"bytes\":%d,\"cost\":%ld,\"ideal\":%ld,\"addresses\":[",
                     p->name.c_str(), place(r.pc).c_str(), r.shared ? "shared" : "global",
                     r.write ? "true" : "false", r.size, r.cost, r.ideal);
            if (!seen.insert(head).second)
                continue;
            fprintf(to, "%s%s", comma, head);
            for (size_t i = 0; i < r.addresses.size(); i++)
                fprintf(to, "%s%lu", i ? "," : "", (unsigned long)r.addresses[i]);
            fprintf(to, "]}");
            comma = ",\n";
        }
    }
    fprintf(to, "\n]}\n");
    fclose(to);
}

void print_trace(FILE *to)
{
    const Picture *longest = nullptr;
    for (Picture *p : pictures) {
        Machine(*p).play();
        if (!longest || p->ticks > longest->ticks)
            longest = p;
    }
    if (!longest)
        return;
    std::vector<u32> pcs;
    for (const Picture *p : pictures) {
        for (const Span &s : p->spans)
            pcs.push_back(s.pc);
        for (const auto &r : p->requests)
            pcs.push_back(r.first);
    }
    symbolize(pcs);
    for (const Picture *p : pictures)
        fprintf(to, "trace: kernel %s, block %u: %ld model ticks%s\n", p->name.c_str(), p->block,
                p->ticks,
                p->stalled ? "; the picture ends early: a lane that is not its warp's first did "
                             "what others wait for"
                           : "");
    print_rows(to, *longest);
    fprintf(to,
            "  a column is %.0f ticks: m multiplies, e exp or shuffle, s shared memory, g global "
            "memory,\n  c copies, . waits; below: copies on their way, tensor cores busy in "
            "tenths\n",
            (double)longest->ticks / COLUMNS);
    print_waits(to, *longest);
    fprintf(to, "  ticks: %s\n", table);
    if (!flags.json.empty())
        write_json();
}
} // namespace simt
