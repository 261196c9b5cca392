/* SPDX-License-Identifier: MIT
 *
 * block.cpp: a block's threads as fibers. A fiber runs until it must wait; the scheduler then takes
 * the next lane that can run. Lanes of a warp that meet at one instruction (a shuffle, an mma) do
 * it together: the last one to come does it for all (rendezvous).
 *
 * Several blocks are at work only where one needs another: in a cluster, or when all threads of the
 * ones that have begun wait or spin on a flag.
 */
#include "machine.h"

#include <boost/context/detail/fcontext.hpp>

#include <algorithm>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

namespace context = boost::context::detail;

namespace simt
{
Launch launch_now;
Block *block_now;
Fiber *me;
u32 launches;
unsigned long progress;
static context::fcontext_t scheduler;

/* --- switching ---------------------------------------------------------------------------------*/

static void leave(void)
{
    settle_writes();
    const context::transfer_t back = context::jump_fcontext(scheduler, nullptr);
    scheduler = back.fctx;
}

void wake(Fiber *f)
{
    f->waits = nullptr;
    f->block->ready[f->warp] |= 1u << f->lane;
}

void wait_here(const char *what, u32 pc)
{
    Fiber *f = me;
    f->waits = what;
    f->pc = pc;
    f->block->ready[f->warp] &= ~(1u << f->lane);
    leave();
}

/* A thread that polls a flag: others must run, or the flag never changes. */
void spin(u32 pc)
{
    Fiber *f = me;
    f->spinning = true;
    f->pc = pc;
    leave();
    f->spinning = false;
}

Fiber **warp_of(Block &b, int warp)
{
    return b.fibers.data() + warp * 32;
}

int lanes_of(int warp)
{
    return std::min(32, launch_now.threads - warp * 32);
}

/* --- instructions of a warp --------------------------------------------------------------------*/

void rendezvous(u32 mask, Collective_op op, void *argument, const char *what, u32 pc)
{
    Fiber *f = me;
    Block &b = *f->block;
    Fiber **row = warp_of(b, f->warp);
    const int n = lanes_of(f->warp);
    if (n < 32)
        mask &= (1u << n) - 1;
    f->argument = argument;
    f->op = op;
    f->mask = mask;
    f->pc = pc;
    if (!(mask >> f->lane & 1))
        report_finding(R_SHUFFLE, {pc, who(f) + " comes to " + what +
                                           ", which its own mask does "
                                           "not name"});
    for (int i = n - 1; i >= 0; i--) /* the last lane comes last */
        if ((mask >> i & 1) && row[i] != f &&
            (row[i]->done || row[i]->op != op || row[i]->mask != mask)) {
            wait_here(what, pc);
            return;
        }
    settle_writes();
    if (flags.count && mask == b.alive[f->warp])
        merge_warp(b, f->warp);
    op(b, f->warp, mask);
    progress++;
    for (int i = 0; i < n; i++)
        if (mask >> i & 1) {
            row[i]->op = nullptr;
            if (row[i] != f)
                wake(row[i]);
        }
}

static void op_sync(Block &b, int warp, u32 mask)
{
    std::vector<Fiber *> all;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1)
            all.push_back(warp_of(b, warp)[i]);
    sync_all(all, all);
}

void syncwarp(unsigned mask)
{
    rendezvous(mask, op_sync, nullptr, "__syncwarp", SIMT_PC);
}

struct Exchange {
    Collective kind;
    u64 value, result;
    int argument, width;
};

/* Votes and sums over a warp, by Collective from BALLOT on: where they start, and one lane more. */
static const struct {
    u32 start;
    u32 (*add)(u32 sum, u32 v, int lane);
} folds[] = {
    {0, [](u32 sum, u32 v, int lane) { return sum | (u32)(v != 0) << lane; }},
    {0, [](u32 sum, u32 v, int) { return (u32)(sum || v); }},
    {1, [](u32 sum, u32 v, int) { return (u32)(sum && v); }},
    {0, [](u32 sum, u32 v, int) { return std::max(sum, v); }},
    {0x80000000u, [](u32 sum, u32 v, int) { return (u32)std::max((int)sum, (int)v); }},
    {~0u, [](u32 sum, u32 v, int) { return std::min(sum, v); }},
    {0x7fffffffu, [](u32 sum, u32 v, int) { return (u32)std::min((int)sum, (int)v); }},
    {0, [](u32 sum, u32 v, int) { return sum + v; }},
    {0, [](u32 sum, u32 v, int) { return sum | v; }},
    {~0u, [](u32 sum, u32 v, int) { return sum & v; }},
    {0, [](u32 sum, u32 v, int) { return sum ^ v; }},
};

/* The lane that a shuffle reads: of its own part of the warp, else itself. */
static int source_of(const Exchange &e, int lane)
{
    const int lo = lane / e.width * e.width, n = e.argument;
    const int from = e.kind == SHFL       ? lo + (n & (e.width - 1))
                     : e.kind == SHFL_XOR ? lane ^ n
                     : e.kind == SHFL_UP  ? lane - n
                                          : lane + n;
    const bool outside = e.kind == SHFL_UP ? from < lo : from >= lo + e.width;
    return outside ? lane : from;
}

static void op_exchange(Block &b, int warp, u32 mask)
{
    Fiber **row = warp_of(b, warp);
    const Collective kind = ((Exchange *)row[__builtin_ctz(mask)]->argument)->kind;
    const bool is_shuffle = kind <= SHFL_DOWN;
    u32 sum = is_shuffle ? 0 : folds[kind - BALLOT].start;
    for (int i = 0; i < 32 && !is_shuffle; i++)
        if (mask >> i & 1)
            sum = folds[kind - BALLOT].add(sum, (u32)((Exchange *)row[i]->argument)->value, i);
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1))
            continue;
        Exchange *e = (Exchange *)row[i]->argument;
        e->result = sum;
        if (!is_shuffle)
            continue;
        const int from = source_of(*e, i);
        if (from < 32 && mask >> from & 1) {
            e->result = ((Exchange *)row[from]->argument)->value;
            continue;
        }
        e->result = 0x7fc0dead7fc0dead;
        report_finding(R_SHUFFLE, {row[i]->pc, who(row[i]) + " reads lane " + std::to_string(from) +
                                                   ", which the mask does not name"});
    }
    count_kind(K_SHUFFLE);
    trace(SHUFFLE, 0);
}

u64 collect(Collective kind, unsigned mask, u64 value, int argument, int width)
{
    Exchange e = {kind, value, 0, argument, width};
    rendezvous(mask, op_exchange, &e, "a shuffle or vote of its warp", SIMT_PC);
    return e.result;
}

unsigned active_mask(void)
{
    return me->block->alive[me->warp];
}

/* --- barriers of the block ---------------------------------------------------------------------*/

static void arrive(Barrier &bar, u32 id, u32 pc, int line, bool waits)
{
    bar.came.push_back({me, pc, line, waits});
    trace(ARRIVE, pc, 0, phase_of(id, bar.phase));
    if (waits)
        trace(AWAIT, pc, 0, phase_of(id, bar.phase));
}

/* Who only arrives learns nothing. */
static void release(Block &b, Barrier &bar)
{
    std::vector<Fiber *> come, go;
    int lanes[32] = {};
    for (const Arrival &a : bar.came) {
        come.push_back(a.f);
        lanes[a.f->warp]++;
        if (a.waits) {
            go.push_back(a.f);
            wake(a.f);
        }
    }
    sync_all(come, go);
    count_kind(K_BARRIER, (long)(come.size() + 31) / 32);
    for (int w = 0; flags.count && w < launch_now.warps; w++)
        if (lanes[w] == lanes_of(w))
            merge_warp(b, w);
    const u32 phase = bar.phase + 1;
    std::copy(bar.vote, bar.vote + 3, b.vote);
    bar = Barrier();
    bar.phase = phase;
    progress++;
}

/* Barrier 0 counts the threads that have not ended. True: all have come. */
static bool look_at_barrier_0(Block &b)
{
    Barrier &bar = b.barriers[0];
    if (bar.came.empty() || (int)bar.came.size() < b.live)
        return false;
    const Arrival first = bar.came[0];
    for (const Arrival &a : bar.came) /* by line: clang may have made two calls of one */
        if (a.line != first.line && a.line && first.line) { /* 0: bar.sync */
            report_finding(R_BARRIER_SPLIT, {first.pc, who(first.f)}, {a.pc, who(a.f)});
            break;
        }
    if (b.live < launch_now.threads)
        report_finding(R_BARRIER_ENDED,
                       {first.pc, std::to_string(b.live) + " threads of block " +
                                      std::to_string(b.number) + " wait, " +
                                      std::to_string(launch_now.threads - b.live) + " have ended"});
    release(b, bar);
    return true;
}

/* The barrier of a cluster counts the threads of all its blocks that have not ended. */
static void look_at_cluster(Block &b)
{
    ClusterBarrier &bar = b.cluster[0]->cluster_bar;
    int missing = 0;
    for (int r = 0; r < b.cluster_size; r++)
        missing += b.cluster[r]->live;
    for (Fiber *f : bar.came)
        missing -= !f->done;
    if (bar.came.empty() || missing > 0)
        return;
    bar.over = sync_all(bar.came, bar.waiting);
    for (Fiber *f : bar.waiting)
        wake(f);
    bar.waiting.clear();
    bar.came.clear();
    bar.phase++;
    progress++;
}

static int block_barrier(u32 pc, int line, int kind, int predicate)
{
    Block &b = *me->block;
    Barrier &bar = b.barriers[0];
    settle_writes();
    arrive(bar, 0, pc, line, true);
    bar.vote[0] += predicate != 0;
    bar.vote[1] = bar.vote[1] && predicate;
    bar.vote[2] = bar.vote[2] || predicate;
    if (!look_at_barrier_0(b))
        wait_here("__syncthreads", pc);
    return b.vote[kind];
}

void syncthreads(int line)
{
    block_barrier(SIMT_PC, line, 0, 0);
}

int syncthreads_vote(int kind, int predicate, int line)
{
    return block_barrier(SIMT_PC, line, kind, predicate);
}

static void op_meet(Block &, int, u32)
{
}

/* bar.sync, bar.arrive: by whole warps, so a lane alone does not arrive for its warp. */
void barrier_arrive(int id, int threads, bool wait, u32 pc)
{
    Block &b = *me->block;
    if (threads == 0)
        threads = launch_now.threads;
    if (id < 0 || id > 15 || threads % 32 != 0) {
        report_finding(R_BARRIER_COUNT, {pc, who(me) + ": barrier " + std::to_string(id) + " for " +
                                                 std::to_string(threads) + " threads"});
        return;
    }
    rendezvous(b.alive[me->warp], op_meet, nullptr, "the rest of its warp, for a named barrier",
               pc);
    Barrier &bar = b.barriers[id];
    if (bar.expected && bar.expected != threads)
        report_finding(R_BARRIER_COUNT,
                       {bar.came[0].pc, "barrier " + std::to_string(id) + " is for " +
                                            std::to_string(bar.expected) + " threads"},
                       {pc, who(me) + " says " + std::to_string(threads)});
    bar.expected = threads;
    arrive(bar, (u32)id, pc, 0, wait);
    if ((int)bar.came.size() >= threads)
        release(b, bar);
    else if (wait)
        wait_here("a named barrier", pc);
}

/* --- a thread's life ---------------------------------------------------------------------------*/

uint3 thread_idx(void)
{
    return me->index;
}
uint3 block_idx(void)
{
    return me->block->index;
}
uint3 block_dim(void)
{
    const dim3 &d = launch_now.config.block;
    return {d.x, d.y, d.z};
}
uint3 grid_dim(void)
{
    const dim3 &d = launch_now.config.grid;
    return {d.x, d.y, d.z};
}
void *dynamic_smem(void)
{
    return me->block->smem;
}

/* Static shared memory lies behind the dynamic one, in the order in which it is met. */
void *static_smem(const void *key, size_t bytes, size_t align)
{
    Block &b = *me->block;
    const size_t dynamic = (launch_now.config.smem + 127) / 128 * 128;
    auto at = b.static_at.find(key);
    if (at == b.static_at.end()) {
        const size_t place = (dynamic + b.static_bytes + align - 1) / align * align;
        if (place + bytes > SMEM_MAX) {
            report_finding(R_LIMIT, {SIMT_PC, std::to_string(place + bytes) +
                                                  " bytes of shared "
                                                  "memory, a block has at most 232448"});
            stop(1);
        }
        b.static_bytes = place + bytes - dynamic;
        at = b.static_at.emplace(key, (u32)place).first;
    }
    return b.smem + at->second;
}

static void thread_main(context::transfer_t from)
{
    scheduler = from.fctx;
    launch_now.body(launch_now.arguments);
    Fiber *f = me;
    Block &b = *f->block;
    settle_writes();
    end_of_thread(f);
    f->done = true;
    b.live--;
    b.alive[f->warp] &= ~(1u << f->lane);
    b.ready[f->warp] &= ~(1u << f->lane);
    progress++;
    if (b.live)
        look_at_barrier_0(b);
    look_at_cluster(b);
    leave();
    abort();
}

/* --- a block's life ----------------------------------------------------------------------------*/

static std::vector<Block *> idle_blocks;
static u32 epochs;

static void *map_memory(size_t bytes)
{
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        perror("simt: mmap");
        exit(3);
    }
    return p;
}

static Block *take_block(void)
{
    if (!idle_blocks.empty()) {
        Block *b = idle_blocks.back();
        idle_blocks.pop_back();
        return b;
    }
    Block *b = new Block();
    b->stacks = (char *)map_memory((size_t)STACK * MAX_THREADS);
    for (int i = 0; i < MAX_THREADS; i++) /* where it may not go fails: only one thing less seen */
        (void)!mprotect(b->stacks + (size_t)i * STACK, 4096, PROT_NONE);
    b->smem = (char *)map_memory(WINDOW);
    return b;
}

static void begin_block(Block &b, u32 number)
{
    const Config &c = launch_now.config;
    const int T = launch_now.threads;
    b.number = number;
    b.index = {number % c.grid.x, number / c.grid.x % c.grid.y, number / c.grid.x / c.grid.y};
    b.live = T;
    b.static_bytes = 0;
    b.static_at.clear();
    b.mbarriers.clear();
    for (Barrier &bar : b.barriers)
        bar = Barrier();
    b.engine_clock = 1;
    b.random = (u32)flags.seed * 2654435761u + number;
    memset(b.smem, 0xff, WINDOW - 4096);
    if (flags.check)
        b.cells.resize(WINDOW / 4);
    b.epoch = ++epochs;
    b.more.assign(1, More());
    while ((int)b.fibers.size() < T)
        b.fibers.push_back(new Fiber());
    const ClockRef zero = flags.check ? std::make_shared<const Clock>(new_clock()) : nullptr;
    for (int i = 0; i < T; i++) {
        Fiber &f = *b.fibers[i];
        f = Fiber();
        f.tid = i, f.lane = i % 32, f.warp = i / 32;
        f.index = {i % c.block.x, i / c.block.x % c.block.y, i / (c.block.x * c.block.y)};
        f.block = &b;
        f.clock = 1;
        f.base = zero;
        f.stack = b.stacks + (size_t)i * STACK;
        f.context = context::make_fcontext(f.stack + STACK, STACK - 4096, thread_main);
    }
    for (int w = 0; w < launch_now.warps; w++)
        b.ready[w] = b.alive[w] = lanes_of(w) == 32 ? ~0u : (1u << lanes_of(w)) - 1;
}

u32 next_random(u32 &state)
{
    state = state * 1664525u + 1013904223u;
    return state >> 16;
}

/* Each lane that can run runs once. False: all that ran were spinning, or none ran. */
static bool run_ready(Block &b, bool &spins)
{
    const unsigned long before = progress;
    int order[32];
    const int W = launch_now.warps;
    for (int w = 0; w < W; w++)
        order[w] = flags.seed < 0 ? W - 1 - w : w;
    if (flags.seed > 0)
        for (int w = W - 1; w > 0; w--)
            std::swap(order[w], order[next_random(b.random) % (u32)(w + 1)]);
    block_now = &b;
    for (int k = 0; k < W; k++) {
        const int w = order[k];
        for (u32 ran = 0; b.ready[w] & ~ran;) {
            const int lane = __builtin_ctz(b.ready[w] & ~ran);
            ran |= 1u << lane;
            me = warp_of(b, w)[lane];
            if (!me->spinning)
                progress++;
            const context::transfer_t t = context::jump_fcontext(me->context, nullptr);
            me->context = t.fctx;
            if (me->spinning)
                spins = true;
            else
                ran &= ~(1u << lane); /* it waits, so it is not ready; or it was woken */
            me = nullptr;
        }
    }
    return progress != before;
}

static void describe_waiting(const std::vector<Block *> &resident, Rule rule)
{
    struct Group {
        int count = 0;
        Fiber *first = nullptr;
    };
    std::map<std::pair<u32, std::string>, Group> groups;
    int ended = 0;
    for (Block *b : resident)
        for (int i = 0; i < launch_now.threads; i++) {
            Fiber *f = b->fibers[i];
            ended += f->done;
            if (f->done)
                continue;
            Group &g = groups[{f->pc, f->waits ? f->waits : "a value that another thread writes"}];
            if (g.count++ == 0)
                g.first = f;
        }
    std::vector<Site> sites;
    for (auto &g : groups) {
        char text[200];
        snprintf(text, sizeof text, "%d thread%s (the first is %s) wait%s for %s", g.second.count,
                 g.second.count == 1 ? "" : "s", who(g.second.first).c_str(),
                 g.second.count == 1 ? "s" : "", g.first.second.c_str());
        sites.push_back({g.first.first, text});
    }
    if (ended)
        sites.push_back({0, std::to_string(ended) + " threads have ended"});
    sites.resize(std::max(sites.size(), (size_t)2));
    report_finding(rule, sites[0], sites[1], {sites.begin() + 2, sites.end()});
    launch_now.failed = true;
}

/* --- a launch ----------------------------------------------------------------------------------*/

static unsigned long seen_progress, seen_ended, blocks_ended;
static int idle_seconds, seconds_of_block;

volatile sig_atomic_t given_up;

/* Once in each second of CPU time: has anything happened but spinning? A signal may come while the
 * runtime has the heap's lock, and a report needs memory: so the next access of the kernel reports,
 * and only where a second went by without one this handler does. */
static void tick(int, siginfo_t *, void *where)
{
    if (!launch_now.body || blocks_ended != seen_ended) {
        seen_ended = blocks_ended;
        seconds_of_block = 0;
    }
    seconds_of_block++; /* a loop with a barrier in it does move, and never ends */
    if (!launch_now.body || progress != seen_progress) {
        seen_progress = progress;
        idle_seconds = 0;
        if (!launch_now.body || !me || seconds_of_block < 6 * flags.seconds)
            return;
        idle_seconds = flags.seconds;
    }
    if (++idle_seconds < flags.seconds || !me || given_up++ == 0)
        return;
    no_progress(kernel_line(me, where)); /* a loop that touches no memory */
}

void no_progress(u32 pc)
{
    Fiber *f = me;
    me = nullptr;
    report_finding(R_NO_PROGRESS, {pc, who(f) + " has been here, or in a loop around it, for " +
                                           std::to_string(flags.seconds) + " s of CPU time"});
    stop(1);
}

void watch(void)
{
    struct sigaction act = {};
    act.sa_sigaction = tick;
    act.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(SIGVTALRM, &act, nullptr);
    const itimerval every = {{1, 0}, {1, 0}};
    setitimer(ITIMER_VIRTUAL, &every, nullptr);
}

static void begin_cluster(std::vector<Block *> &resident, u32 first, int size)
{
    Block **cluster = new Block *[size];
    for (int r = 0; r < size; r++) {
        Block *b = take_block();
        cluster[r] = b;
        b->cluster = cluster;
        b->cluster_size = size;
        b->rank = r;
        b->cluster_bar = ClusterBarrier();
        begin_block(*b, first + (u32)r);
        resident.push_back(b);
    }
}

static void end_block(Block *b)
{
    if (flags.count) {
        for (int w = 0; w < launch_now.warps; w++)
            merge_warp(*b, w);
        count_mbarriers(*b);
    }
    if (flags.stages)
        note_stages(*b);
    idle_blocks.push_back(b);
    blocks_ended++;
}

/* All blocks. Resident ones go on as long as they can; when none can, a further one begins. */
static void run_blocks(const std::vector<u32> &order, int cluster)
{
    std::vector<Block *> resident;
    size_t next = 0;
    const size_t most = 256; /* a GPU has room for some hundred small blocks */
    while ((next < order.size() || !resident.empty()) && !launch_now.failed) {
        if (resident.empty())
            begin_cluster(resident, order[next++] * (u32)cluster, cluster);
        bool moved = false, spins = false;
        for (size_t i = 0; i < resident.size() && !launch_now.failed; i++)
            moved = run_ready(*resident[i], spins) || moved;
        if (std::all_of(resident.begin(), resident.end(), [](Block *b) { return b->live == 0; })) {
            for (Block *b : resident)
                end_block(b);
            resident.clear();
            continue;
        }
        if (moved)
            continue;
        bool landed = false;
        for (Block *b : resident)
            landed = landed || land_for_waiters(*b);
        if (landed)
            continue;
        if (next < order.size() && resident.size() < most)
            begin_cluster(resident, order[next++] * (u32)cluster, cluster);
        else if (!spins)
            describe_waiting(resident, R_DEADLOCK);
        else if (idle_seconds >= flags.seconds)
            describe_waiting(resident, R_NO_PROGRESS);
    }
    for (Block *b : resident)
        idle_blocks.push_back(b);
}

bool launch_is_allowed(const Config &c, const char *name, u32 pc); /* host.cpp */
void open_memory(bool to_kernels);

void run(const Config &c, const char *name, void (*body)(void *), void *arguments)
{
    report_at_exit();
    if (!launch_is_allowed(c, name, SIMT_PC))
        return;
    static const bool watched = (watch(), true);
    (void)watched;
    launch_now.config = c;
    launch_now.name = name;
    launch_now.pc = SIMT_PC;
    launch_now.arguments = arguments;
    launch_now.threads = (int)(c.block.x * c.block.y * c.block.z);
    launch_now.warps = (launch_now.threads + 31) / 32;
    launch_now.number = ++launches;
    launch_now.more.assign(1, More());
    launch_now.failed = false;
    launch_now.body = body;
    clocks_forget();
    count_launch();
    const int cluster = (int)(c.cluster.x * c.cluster.y * c.cluster.z);
    const u32 clusters = c.grid.x * c.grid.y * c.grid.z / (u32)cluster;
    std::vector<u32> order(clusters);
    for (u32 i = 0; i < clusters; i++)
        order[i] = flags.blocks == 1 ? clusters - 1 - i : i;
    u32 random = (u32)flags.seed + 1;
    if (flags.blocks == 2)
        for (u32 i = clusters - 1; i > 0; i--)
            std::swap(order[i], order[next_random(random) % (i + 1)]);
    open_memory(true);
    run_blocks(order, cluster);
    launch_now.body = nullptr;
    open_memory(false);
}
} // namespace simt

namespace simt_ptx
{
using namespace simt;

void named_barrier(int id, int threads, bool wait)
{
    barrier_arrive(id, threads, wait, SIMT_PC);
}

/* --- clusters: several blocks that run side by side -------------------------------------------*/

void cluster_arrive(void)
{
    ClusterBarrier &bar = me->block->cluster[0]->cluster_bar;
    me->cluster_phase = bar.phase;
    bar.came.push_back(me);
    look_at_cluster(*me->block);
}

void cluster_wait(void)
{
    ClusterBarrier &bar = me->block->cluster[0]->cluster_bar;
    if (bar.phase != me->cluster_phase) {
        learn(me, bar.over[me->block]);
        return;
    }
    bar.waiting.push_back(me);
    wait_here("a barrier of its cluster", SIMT_PC);
}

/* A shared address of another block of the cluster. */
u32 map_to_block(u32 from, int rank)
{
    return from % WINDOW + (u32)(rank + 1) * WINDOW;
}

void grid_dependency(void)
{
}
} // namespace simt_ptx
