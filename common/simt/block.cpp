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
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

namespace context = boost::context::detail;

namespace simt
{
Launch launch_now;
Fiber *me;
unsigned long progress;
static context::fcontext_t scheduler;
static u32 polled; /* lanes of the warp whose turn it is that have polled a flag in this turn */

/* --- switching ---------------------------------------------------------------------------------*/

/* Who is jumped to keeps the place of who jumped: a fiber, or the scheduler (NULL). */
static void keep_place(context::transfer_t from)
{
    (from.data ? ((Fiber *)from.data)->context : scheduler) = from.fctx;
}

static inline void jump(Fiber *to)
{
    Fiber *from = me;
    me = to;
    progress += to && !to->spinning;
    keep_place(context::jump_fcontext(to ? to->context : scheduler, from));
}

/* To the next lane of the warp that can run: each runs until it waits or polls. */
static inline void leave(void)
{
    settle_writes();
    const u32 ready = me->block->ready[me->warp] & ~polled;
    jump(ready ? warp_of(*me->block, me->warp)[__builtin_ctz(ready)] : nullptr);
}

void wake(Fiber *f)
{
    f->block->ready[f->warp] |= 1u << f->lane;
}

/* Inline, as is rendezvous, where lanes shuffle: each return behind a change of fibers is one that
 * the processor guesses wrong. */
__attribute__((always_inline)) void wait_here(const char *what, u32 pc)
{
    Fiber *f = me;
    f->pc = pc;
    f->waits = what;
    f->block->ready[f->warp] &= ~(1u << f->lane);
    leave();
    f->waits = nullptr;
}

/* A thread that polls a flag: others must run, or the flag never changes. */
void spin(u32 pc)
{
    Fiber *f = me;
    f->spinning = true;
    f->pc = pc;
    polled |= 1u << f->lane;
    leave();
    f->spinning = false;
}

int lanes_of(int warp)
{
    return std::min(32, launch_now.threads - warp * 32);
}

/* --- instructions of a warp --------------------------------------------------------------------*/

/* The last lane has come. Not inline, so that what the others leave on their stacks is small. */
__attribute__((noinline)) static void act(Block &b, int warp, u32 mask, Collective_op op)
{
    settle_writes();
    if (flags.count && mask == b.alive[warp])
        merge_warp(b, warp);
    op(b, warp, mask);
    progress++;
    b.ready[warp] |= mask;
    b.meetings[warp].lanes &= ~mask;
}

/* Have all lanes of the mask come to the same? */
__attribute__((noinline, cold)) static bool all_agree(const Fiber *f)
{
    Fiber **row = warp_of(*f->block, f->warp);
    for (u32 left = f->mask; left; left &= left - 1) {
        const Fiber *other = row[__builtin_ctz(left)];
        if (other->op != f->op || other->mask != f->mask)
            return false;
    }
    return true;
}

__attribute__((always_inline)) void rendezvous(u32 mask, Collective_op op, void *argument,
                                               const char *what, u32 pc)
{
    Fiber *f = me;
    Meeting &m = f->block->meetings[f->warp];
    mask &= f->block->lanes[f->warp];
    f->argument = argument;
    f->op = op;
    f->mask = mask;
    f->pc = pc;
    if (!(mask >> f->lane & 1))
        finding(R_SHUFFLE, f, pc, " comes to %s, which its own mask does not name", what);
    m.is_mixed = m.lanes && (m.is_mixed || m.op != op || m.mask != mask);
    m.op = op;
    m.mask = mask;
    m.lanes |= 1u << f->lane;
    if ((m.lanes & mask) != mask || (m.is_mixed && !all_agree(f)))
        return wait_here(what, pc);
    act(*f->block, f->warp, mask, op);
}

static void op_sync(Block &b, int warp, u32 mask)
{
    Gathering all;
    for (u32 left = flags.check ? mask : 0; left; left &= left - 1)
        gather(all, warp_of(b, warp)[__builtin_ctz(left)], &b);
    const ClockRef now = std::make_shared<const Clock>(std::move(all.clock));
    for (u32 left = flags.check ? mask : 0; left; left &= left - 1) {
        Fiber *f = warp_of(b, warp)[__builtin_ctz(left)];
        f->base = now;
        f->clock++;
    }
}

void syncwarp(unsigned mask)
{
    rendezvous(mask, op_sync, nullptr, "__syncwarp", SIMT_PC);
}

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
static int source_of(Collective kind, int n, int width, int lane)
{
    const int lo = lane & -width;
    const int from = kind == SHFL       ? lo + (n & (width - 1))
                     : kind == SHFL_XOR ? lane ^ n
                     : kind == SHFL_UP  ? lane - n
                                        : lane + n;
    const bool outside = kind == SHFL_UP ? from < lo : from >= lo + width;
    return outside ? lane : from;
}

__attribute__((noinline, cold)) static u64 not_there(const Fiber *f, int from)
{
    finding(R_SHUFFLE, f, f->pc, " reads lane %d, which the mask does not name", from);
    return 0x7fc0dead7fc0dead;
}

static void op_exchange(Block &b, int warp, u32 mask)
{
    Meeting &m = b.meetings[warp];
    const long kind = (long)warp_of(b, warp)[__builtin_ctz(mask)]->argument;
    u32 sum = kind <= SHFL_DOWN ? 0 : folds[kind - BALLOT].start;
    for (u32 left = kind <= SHFL_DOWN ? 0 : mask; left; left &= left - 1) {
        const int i = __builtin_ctz(left);
        sum = folds[kind - BALLOT].add(sum, (u32)m.value[i], i);
    }
    for (u32 left = mask; left; left &= left - 1) {
        const int i = __builtin_ctz(left), from = m.from[i];
        m.result[i] = kind > SHFL_DOWN                ? sum
                      : from < 32 && mask >> from & 1 ? m.value[from]
                                                      : not_there(warp_of(b, warp)[i], from);
    }
    count_kind(K_SHUFFLE);
    trace(SHUFFLE, 0);
}

u64 collect(Collective kind, unsigned mask, u64 value, int argument, int width)
{
    const int lane = me->lane;
    Meeting &m = me->block->meetings[me->warp];
    m.from[lane] = source_of(kind, argument, width, lane);
    m.value[lane] = value;
    rendezvous(mask, op_exchange, (void *)kind, "a shuffle or vote of its warp", SIMT_PC);
    return m.result[lane];
}

unsigned active_mask(void)
{
    return me->block->alive[me->warp];
}

/* --- barriers of a block and of a cluster ------------------------------------------------------*/

static void arrive(Barrier &bar, u32 pc, bool relaxed = false)
{
    if (bar.came.empty())
        bar.pc = pc;
    bar.came.push_back(me);
    for (Block *b : me->block->cluster)
        if (flags.check && (b == me->block || bar.id == CLUSTER))
            (relaxed ? gather_inits : gather)(bar.gathering[b], me, b);
    me->clock++;
    trace(ARRIVE, pc, 0, phase_of(bar.id, bar.phase));
}

static void begin_wait(Barrier &bar, u32 pc)
{
    bar.waiting.push_back(me);
    trace(AWAIT, pc, 0, phase_of(bar.id, bar.phase));
}

/* All have come. Who only arrives learns nothing. */
static void release(Barrier &bar)
{
    for (auto &[b, all] : bar.gathering)
        bar.over[b] = std::make_shared<const Clock>(std::move(all.clock));
    bar.gathering.clear();
    count_kind(K_BARRIER, (long)(bar.came.size() + 31) / 32);
    std::map<std::pair<Block *, int>, int> lanes;
    if (flags.count)
        for (Fiber *f : bar.came)
            if (++lanes[{f->block, f->warp}] == lanes_of(f->warp))
                merge_warp(*f->block, f->warp);
    for (Fiber *f : bar.waiting) {
        bar.id == CLUSTER ? learn(f, bar.over[f->block]) : void(f->base = bar.over[f->block]);
        wake(f);
    }
    bar.waiting.clear();
    bar.came.clear();
    bar.expected = bar.yes = 0;
    bar.phase++;
    progress++;
}

/* Barrier 0 of a block and the one of a cluster count the threads that have not ended. */
static bool all_came(const Barrier &bar, int live)
{
    return !bar.came.empty() && (int)bar.came.size() >= live &&
           std::count_if(bar.came.begin(), bar.came.end(), [](Fiber *f) { return !f->done; }) >=
               live;
}

static bool look_at_block(Block &b)
{
    Barrier &bar = b.barriers[0];
    if (!all_came(bar, b.live))
        return false;
    const Fiber *first = bar.came[0];
    for (const Fiber *f : bar.came) /* by line: clang may have made two calls of one */
        if (f->line != first->line && f->line && first->line) {
            finding(R_BARRIER_SPLIT, {by(first, first->pc, ""), by(f, f->pc, "")});
            break;
        }
    if (b.live < launch_now.threads)
        finding(R_BARRIER_ENDED, first->pc, "%d threads of block %u wait, %d have ended", b.live,
                b.number, launch_now.threads - b.live);
    const int vote[] = {bar.yes, bar.yes == (int)bar.came.size(), bar.yes > 0};
    std::copy(vote, vote + 3, b.vote);
    release(bar);
    return true;
}

static void look_at_cluster(Block &b)
{
    Barrier &bar = b.cluster[0]->barriers[CLUSTER];
    int live = 0;
    for (const Block *other : b.cluster)
        live += other->live;
    if (all_came(bar, live))
        release(bar);
}

int syncthreads(int line, int kind, int predicate)
{
    Block &b = *me->block;
    Barrier &bar = b.barriers[0];
    const u32 pc = SIMT_PC;
    settle_writes();
    me->pc = pc;
    me->line = line;
    arrive(bar, pc);
    begin_wait(bar, pc);
    bar.yes += predicate != 0;
    if (!look_at_block(b))
        wait_here("__syncthreads", pc);
    return b.vote[kind];
}

/* --- a thread's life ---------------------------------------------------------------------------*/

uint3 index_of(Index of)
{
    const dim3 &d = of == blockDim_ ? launch_now.config.block : launch_now.config.grid;
    return of == threadIdx_ ? me->index : of == blockIdx_ ? me->block->index : uint3{d.x, d.y, d.z};
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
            finding(R_LIMIT, SIMT_PC, "%zu bytes of shared memory, a block has at most %d",
                    place + bytes, SMEM_MAX);
            stop(1);
        }
        b.static_bytes = place + bytes - dynamic;
        at = b.static_at.emplace(key, (u32)place).first;
    }
    return b.smem + at->second;
}

static void thread_main(context::transfer_t from)
{
    keep_place(from);
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
        look_at_block(b);
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
    b->smem = (char *)map_memory(WINDOW);
    b->cells = (Cell *)map_memory(WINDOW / 4 * sizeof(Cell));
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
        bar = Barrier(), bar.id = (u32)(&bar - b.barriers);
    b.engine_clock = 1;
    b.random = (u32)flags.seed * 2654435761u + number;
    memset(b.smem, 0xff, WINDOW - 4096);
    b.epoch = ++epochs;
    b.more.assign(1, More());
    for (size_t i; (i = b.fibers.size()) < (size_t)T;) {
        b.fibers.push_back(new Fiber());
        /* where a stack may not grow to: if this fails, only one thing less is seen */
        (void)!mprotect(b.stacks + i * STACK, 4096, PROT_NONE);
    }
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
        /* not all at one place of their pages: they would fight for few lines of the cache */
        char *top = f.stack + STACK - i % 64 * 576;
        f.context = context::make_fcontext(top, (size_t)(top - f.stack) - 4096, thread_main);
    }
    for (int w = 0; w < launch_now.warps; w++)
        b.meetings[w].lanes = 0, b.ready[w] = b.alive[w] = b.lanes[w] = ~0u >> (32 - lanes_of(w));
}

u32 next_random(u32 &state)
{
    state = state * 1664525u + 1013904223u;
    return state >> 16;
}

/* 0 .. n - 1: as they are (0), backwards (1) or by chance (2). */
static std::vector<u32> order_of(u32 n, int how, u32 &random)
{
    std::vector<u32> order(n);
    std::iota(order.begin(), order.end(), 0);
    if (how == 1)
        std::reverse(order.begin(), order.end());
    for (u32 i = n; how == 2 && i-- > 1;)
        std::swap(order[i], order[next_random(random) % (i + 1)]);
    return order;
}

/* Each lane that can run runs once. False: all that ran were spinning, or none ran. */
static bool run_ready(Block &b, bool &spins)
{
    const unsigned long before = progress;
    const int how = flags.seed > 0 ? 2 : flags.seed < 0;
    for (u32 w : order_of((u32)launch_now.warps, how, b.random)) {
        polled = 0;
        if (b.ready[w])
            jump(warp_of(b, (int)w)[__builtin_ctz(b.ready[w])]);
        spins = spins || polled;
    }
    return progress != before;
}

static void describe_waiting(const std::vector<Block *> &resident, Rule rule)
{
    std::map<std::pair<u32, std::string>, std::vector<Fiber *>> groups;
    int ended = 0;
    for (Block *b : resident)
        for (int i = 0; i < launch_now.threads; i++) {
            Fiber *f = b->fibers[i];
            ended += f->done;
            if (!f->done)
                groups[{f->pc, f->waits ? f->waits : "a value that another thread writes"}]
                    .push_back(f);
        }
    std::vector<Site> sites;
    for (const auto &[where, all] : groups)
        sites.push_back(site(where.first, "%zu thread%s (the first is %s) wait%s for %s",
                             all.size(), s_of((long)all.size()), by(all[0], 0, "").text.c_str(),
                             all.size() == 1 ? "s" : "", where.second.c_str()));
    if (ended)
        sites.push_back(site(0, "%d threads have ended", ended));
    finding(rule, sites);
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
    finding(R_NO_PROGRESS, f, pc, " has been here, or in a loop around it, for %d s of CPU time",
            flags.seconds);
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
    std::vector<Block *> cluster;
    for (int r = 0; r < size; r++)
        cluster.push_back(take_block());
    for (Block *b : cluster) {
        b->cluster = cluster;
        begin_block(*b, first++);
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
    const int threads = (int)(c.block.x * c.block.y * c.block.z);
    const u32 number = launch_now.number + 1;
    launch_now = {c,      name,     SIMT_PC, body, arguments, threads, (threads + 31) / 32,
                  number, {More()}, false};
    clocks_forget();
    count_launch();
    const int cluster = (int)(c.cluster.x * c.cluster.y * c.cluster.z);
    const u32 clusters = c.grid.x * c.grid.y * c.grid.z / (u32)cluster;
    u32 random = (u32)flags.seed + 1;
    open_memory(true);
    run_blocks(order_of(clusters, flags.blocks, random), cluster);
    launch_now.body = nullptr;
    open_memory(false);
}
} // namespace simt

namespace simt_ptx
{
using namespace simt;

static void op_meet(Block &, int, u32)
{
}

/* bar.sync, bar.arrive: by whole warps, so a lane alone does not arrive for its warp. */
void named_barrier(int id, int threads, bool wait)
{
    Block &b = *me->block;
    const u32 pc = SIMT_PC;
    if (threads == 0)
        threads = launch_now.threads;
    if (id < 0 || id > 15 || threads % 32 != 0)
        return finding(R_BARRIER_COUNT, me, pc, ": barrier %d for %d threads", id, threads);
    rendezvous(b.alive[me->warp], op_meet, nullptr, "the rest of its warp, for a named barrier",
               pc);
    Barrier &bar = b.barriers[id];
    if (bar.expected && bar.expected != threads)
        finding(R_BARRIER_COUNT, {site(bar.pc, "barrier %d is for %d threads", id, bar.expected),
                                  by(me, pc, " says %d", threads)});
    bar.expected = threads;
    me->line = 0;
    arrive(bar, pc);
    if (wait)
        begin_wait(bar, pc);
    if ((int)bar.came.size() >= threads)
        release(bar);
    else if (wait)
        wait_here("a named barrier", pc);
}

/* --- clusters: several blocks that run side by side -------------------------------------------*/

void cluster_arrive(bool relaxed)
{
    Barrier &bar = me->block->cluster[0]->barriers[CLUSTER];
    me->cluster_phase = bar.phase;
    arrive(bar, SIMT_PC, relaxed);
    look_at_cluster(*me->block);
}

void cluster_wait(void)
{
    Barrier &bar = me->block->cluster[0]->barriers[CLUSTER];
    if (bar.phase != me->cluster_phase) {
        learn(me, bar.over[me->block]);
        return;
    }
    begin_wait(bar, SIMT_PC);
    wait_here("a barrier of its cluster", SIMT_PC);
}

/* A shared address of another block of the cluster. */
u32 map_to_block(u32 from, int rank)
{
    return from % WINDOW + (u32)(rank + 1) * WINDOW;
}
} // namespace simt_ptx
