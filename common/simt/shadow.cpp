/* SPDX-License-Identifier: MIT
 *
 * shadow.cpp: every access to memory. clang calls a __tsan_ function before each (compile.py).
 *
 * Is the address inside of shared memory, or of what cudaMalloc gave? Is it a multiple of the size?
 * Does what is read hold a value? Is there an earlier access by another thread that nothing orders
 * before this one, and one of the two writes? Each "no" is a finding with both lines.
 *
 * What is written twice is compared afterwards, since equal values do no harm (settle_writes).
 */
#include "machine.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>

namespace simt
{
std::map<uintptr_t, Memory> memory; /* by its end */

/* --- addresses ---------------------------------------------------------------------------------*/

u32 shared_address(uintptr_t a)
{
    Block &b = *me->block;
    for (size_t r = 0; r < b.cluster.size(); r++) {
        const uintptr_t offset = a - (uintptr_t)b.cluster[r]->smem;
        if (offset < WINDOW - SMEM_BASE)
            return (b.cluster[r] == &b ? 0 : (u32)(r + 1) * WINDOW) + SMEM_BASE + (u32)offset;
    }
    return 0;
}

Block &block_of(u32 address)
{
    Block &b = *me->block;
    const u32 window = address / WINDOW;
    return window == 0 || window > b.cluster.size() ? b : *b.cluster[window - 1];
}

char *shared_at(u32 address)
{
    return block_of(address).smem + (address % WINDOW - SMEM_BASE) % WINDOW;
}

static Cell *shared_cell(u32 address)
{
    return &block_of(address).cells[(address % WINDOW) / 4];
}

/* By pages, each of which belongs to one allocation at most: what was asked for last. */
static struct Recent {
    uintptr_t page;
    Memory *memory;
} recent[64];

Memory *memory_of(uintptr_t a)
{
    auto &r = recent[a / 4096 % 64];
    if (r.memory && r.page == a / 4096 && a - r.memory->lo < r.memory->hi - r.memory->lo)
        return r.memory;
    auto at = memory.upper_bound(a);
    if (at == memory.end() || a < at->second.lo)
        return nullptr;
    r = {a / 4096, &at->second};
    return r.memory;
}

void forget(const Memory *m)
{
    memory.erase(m->hi);
    std::fill(std::begin(recent), std::end(recent), Recent());
}

/* --- races -------------------------------------------------------------------------------------*/

bool is_written_twice;
static struct {
    bool one_instruction;
    uintptr_t a;
    int size;
    char before[16];
    std::vector<Site> sites;
} written_twice;

void compare_writes(void)
{
    is_written_twice = false;
    const bool same =
        memcmp((void *)written_twice.a, written_twice.before, (size_t)written_twice.size) == 0;
    if (same && written_twice.one_instruction)
        return;
    finding(same ? R_SAME_VALUE : R_RACE_WW, written_twice.sites);
}

struct Touch {
    Fiber *f;
    bool write, shared;
    uintptr_t address; /* in this process */
    int size;
    const char *what;
    const Clock *as_of; /* what was known then, if the access was issued earlier */
    std::vector<More> &more;
    Access now;
};

static void open_writes(const Touch &t, const Access &a)
{
    if (is_written_twice)
        return;
    is_written_twice = true;
    written_twice.one_instruction =
        a.pc == t.now.pc && a.block == t.now.block && a.thread / 32 == t.f->warp;
    written_twice.a = t.address;
    written_twice.size = std::min(t.size, 16);
    memcpy(written_twice.before, (void *)t.address, (size_t)written_twice.size);
    written_twice.sites = {by(a, " writes%s", t.what), by(t.f, t.now.pc, " writes%s", t.what)};
}

static const char *verb(How how, bool write)
{
    return how == ATOMIC ? " changes (atomic)" : write ? " writes" : " reads";
}

/* For each thread of a block the moment up to which all has happened before this access. async: so
 * that the async proxy sees it. */
static inline const u32 *known(const Touch &t, u32 block, bool async = false)
{
    const Clock &c = t.as_of ? *t.as_of : *t.f->base;
    return block != t.now.block ? known_elsewhere(c, block) : async ? c.async.data() : c.at.data();
}

static inline bool concerns(const Touch &t, const Access &a)
{
    return (a.bytes & t.now.bytes) && !((a.how == ATOMIC || a.how == INIT) && t.now.how == ATOMIC);
}

/* The lanes whose read of these bytes need not have happened before. */
static inline u32 late_lanes(const Touch &t, const Access &a)
{
    if (!concerns(t, a))
        return 0;
    const u32 *at = known(t, a.block) + a.thread / 32 * 32;
    u32 late = 0;
    for (int l = 0; l < 32; l++)
        late |= (u32)(at[l] < a.clock) << l;
    if (a.block == t.now.block && a.thread / 32 == t.now.thread / 32)
        late &= ~t.now.lanes;
    return late & a.lanes;
}

__attribute__((noinline, cold)) static void race(Rule rule, const Touch &t, const Access &a,
                                                 bool written)
{
    if (rule == R_RACE_WW && t.now.how == PLAIN && a.how == PLAIN)
        open_writes(t, a);
    else if (rule == R_PROXY)
        finding(rule, {by(a, " writes"), by(t.f, t.now.pc, " has the async proxy %s%s",
                                            t.write ? "write" : "read", t.what)});
    else
        finding(rule, {by(a, "%s", verb(a.how, written)),
                       by(t.f, t.now.pc, "%s%s", verb(t.now.how, t.write), t.what)});
}

/* An earlier write: has it happened before this access? */
static inline void meet_writer(const Touch &t, const Access &a)
{
    if (!concerns(t, a))
        return;
    const bool own = a.thread == t.now.thread && a.block == t.now.block;
    const size_t slot = slot_of(a.thread);
    if (!own && known(t, a.block)[slot] < a.clock)
        race(t.write ? R_RACE_WW : R_RACE_WR, t, a, true);
    else if (t.now.how == ASYNC && a.how != ASYNC && known(t, a.block, true)[slot] < a.clock)
        race(R_PROXY, t, a, true);
}

static inline void meet_writers(const Touch &t, const Cell &c)
{
    meet_writer(t, c.writer);
    for (u32 at = c.writers; at; at = t.more[at].next)
        meet_writer(t, t.more[at].a);
}

static inline bool same_warp(const Access &a, const Access &b)
{
    return a.thread / 32 == b.thread / 32 && a.block == b.block;
}

/* Into a list, in the place of one that is past or that this one outdoes. */
static void put(std::vector<More> &more, u32 &list, const Access &by)
{
    u32 last = 0;
    for (u32 at = list; at; at = more[at].next) {
        Access &a = more[at].a;
        if (same_warp(a, by) && !(a.bytes & ~by.bytes))
            a.lanes &= ~by.lanes;
        if (!a.lanes || !a.bytes) {
            a = by;
            return;
        }
        last = at;
    }
    more.push_back({by, 0});
    (last ? more[last].next : list) = (u32)more.size() - 1;
}

static void touch_write(const Touch &t, Cell &c)
{
    meet_writers(t, c);
    Access read = c.reader;
    u32 late = late_lanes(t, read);
    c.reader.bytes &= (uint8_t)~t.now.bytes; /* what was done to these bytes is past */
    for (u32 w = c.warps; w; w &= w - 1) {
        bool all = true;
        for (u32 at = c.readers + (u32)__builtin_ctz(w); at; at = t.more[at].next) {
            Access &a = t.more[at].a;
            if (!late) {
                read = a;
                late = late_lanes(t, a);
            }
            all = !(a.bytes &= (uint8_t)~t.now.bytes) && all;
        }
        if (all)
            c.warps &= ~(w & -w);
    }
    if (late) {
        read.thread = (uint16_t)(read.thread / 32 * 32 + __builtin_ctz(late));
        race(R_RACE_RW, t, read, false);
    }
    for (u32 at = c.writers; at; at = t.more[at].next)
        t.more[at].a.bytes &= (uint8_t)~t.now.bytes;
    c.writer.bytes &= (uint8_t)~t.now.bytes;
    if (c.writer.bytes)
        put(t.more, c.writers, c.writer);
    c.writer = t.now;
    c.written |= t.now.bytes;
}

/* Another warp reads, or the same one later. The reader before is kept, unless who knows of the new
 * one knows of it as well; and of other blocks one reader only. */
static void keep_reader(const Touch &t, Cell &c)
{
    const Access &old = c.reader;
    if (old.block != t.now.block) {
        for (u32 w = c.warps; w; w &= w - 1)
            for (u32 at = c.readers + (u32)__builtin_ctz(w); at; at = t.more[at].next)
                t.more[at].a.bytes = 0;
        c.warps = 0;
    }
    if (!(old.bytes & ~t.now.bytes) && !late_lanes(t, old))
        return;
    if (!c.readers) {
        c.readers = (u32)t.more.size();
        t.more.resize(t.more.size() + (size_t)launch_now.warps);
    }
    u32 list = c.readers + old.thread / 32;
    put(t.more, list, old);
    c.warps |= 1u << old.thread / 32;
}

static inline void touch_read(const Touch &t, Cell &c)
{
    const Access &now = t.now;
    Access &last = c.reader;
    const bool together = last.clock == now.clock && same_warp(last, now) &&
                          last.bytes == now.bytes && last.how == PLAIN && now.how == PLAIN;
    if (together && (last.lanes & now.lanes))
        return; /* again, at the same moment: all has been asked */
    if ((c.written & now.bytes) != now.bytes)
        finding(R_UNWRITTEN, t.f, now.pc, " reads%s", t.what);
    else
        meet_writers(t, c);
    if (together) {
        last.lanes |= now.lanes;
        return;
    }
    if (last.bytes)
        keep_reader(t, c);
    last = now;
}

static inline void touch(Touch &&t, Cell *cells, uintptr_t offset, u32 epoch)
{
    const uintptr_t end = offset + (uintptr_t)t.size;
    for (uintptr_t at = offset & ~(uintptr_t)3; at < end; at += 4) {
        Cell &c = *cells++;
        if (c.epoch != epoch) { /* of an earlier block or launch: what was written stays so */
            const uint8_t written = t.shared ? 0 : c.written;
            c = Cell();
            c.epoch = epoch;
            c.written = written;
        }
        t.now.bytes = (uint8_t)((1u << std::min(end - at, (uintptr_t)4)) -
                                (1u << (at < offset ? offset - at : 0)));
        if (c.flight)
            finding(R_FLIGHT,
                    {site(c.flight, "a copy was issued that nobody has waited for"),
                     by(t.f, t.now.pc, "%s where it goes%s", verb(t.now.how, t.write), t.what)});
        if (t.write)
            touch_write(t, c);
        else
            touch_read(t, c);
    }
}

static inline Access access_by(const Fiber *f, u32 pc, How how)
{
    return {f->block->number, f->clock, pc, 1u << f->lane, (uint16_t)f->tid, how, 0};
}

/* A tile has arrived: the engine is the last writer. */
void write_by_engine(Block &b, u32 address, int size, u32 pc, How how)
{
    for (u32 a = address; flags.check && a < address + (u32)size; a += 4) {
        Cell &c = *shared_cell(a);
        c = Cell();
        c.epoch = b.epoch;
        c.written = 15;
        c.writer = {b.number, b.engine_clock, pc, 0, ENGINE, how, 15};
    }
}

/* Shared memory is read when the copy arrives: b's engine does it, as b's mbarrier tells. */
void read_by_engine(Block &b, const EngineCopy &c)
{
    check_shared(c.issuer, c.from, c.bytes, false, c.pc, ASYNC, " (copy engine)", c.clock.get());
    for (u32 a = c.from; flags.check && a < c.from + (u32)c.bytes; a += 4)
        shared_cell(a)->reader = {b.number, b.engine_clock, c.pc, 0, ENGINE, ASYNC, 15};
}

void set_flight(u32 address, int bytes, u32 pc)
{
    for (u32 a = address; flags.check && a < address + (u32)bytes; a += 4)
        shared_cell(a)->flight = pc;
}

/* --- bounds ------------------------------------------------------------------------------------*/

/* The largest power of two that divides a size, 16 at most: 4 of 12. */
static inline u32 alignment_of(int size)
{
    return (u32)std::min(size & -size, 16);
}

bool check_shared(Fiber *f, u32 address, int size, bool write, u32 pc, How how, const char *what,
                  const Clock *as_of)
{
    if (!flags.check)
        return true;
    Block &b = block_of(address);
    if (b.live == 0)
        finding(R_BOUNDS_SHARED, f, pc, "%s shared memory of block %u, which has ended%s",
                verb(how, write), b.number, what);
    const long at = (long)(address % WINDOW) - SMEM_BASE;
    const long dynamic = (long)launch_now.config.smem, statics = (long)b.static_bytes;
    const long lo = (dynamic + 127) / 128 * 128;
    if (address & (alignment_of(size) - 1))
        finding(R_MISALIGNED, f, pc, "%s %d bytes at byte %ld of shared memory%s", verb(how, write),
                size, at, what);
    if (at < 0 || (at + size > dynamic && (at < lo || at + size > lo + statics))) {
        finding(R_BOUNDS_SHARED, f, pc, "%s byte %ld of the %ld that the block has%s",
                verb(how, write), at, dynamic ? dynamic : statics, what);
        return false;
    }
    touch({f, write, true, (uintptr_t)b.smem + (uintptr_t)at, size, what, as_of, b.more,
           access_by(f, pc, how)},
          &b.cells[(address % WINDOW) / 4], address % WINDOW, b.epoch);
    return true;
}

static inline Cell *cells_of(Memory &m)
{
    if (m.cells.empty()) {
        Cell fresh = {};
        fresh.written = m.written;
        m.cells.resize((m.hi - m.lo) / 4 + 1, fresh);
    }
    return m.cells.data();
}

static std::unordered_map<uintptr_t, Cell> variable_cells; /* __device__ variables, by words */
static long kept_bytes;                                    /* written there */

bool check_global(Fiber *f, uintptr_t a, int size, bool write, u32 pc, How how, const char *what)
{
    if (!flags.check)
        return true;
    if (a & (alignment_of(size) - 1))
        finding(R_MISALIGNED, f, pc, "%s %d bytes of global memory, %d past a multiple of 16%s",
                verb(how, write), size, (int)(a % 16), what);
    if (a >= program_lo && a < program_hi) { /* a variable or a constant of the program */
        kept_bytes += write ? size : 0;
        for (uintptr_t at = a, next; at < a + (uintptr_t)size; at = next) {
            next = std::min(at / 4 * 4 + 4, a + (uintptr_t)size);
            Cell &c = variable_cells[at / 4];
            c.written = 15;
            touch({f, write, false, at, (int)(next - at), what, nullptr, launch_now.more,
                   access_by(f, pc, how)},
                  &c, at, launch_now.number);
        }
        return true;
    }
    if (a - (uintptr_t)launch_now.arguments < 4096) /* the kernel's parameters */
        return true;
    Memory *m = memory_of(a);
    if (!m || a + (uintptr_t)size > m->hi) {
        finding(R_BOUNDS_GLOBAL, f, pc, "%s%s %s", verb(how, write), what,
                m || memory_of(a - 256) ? "past the end of what cudaMalloc gave"
                                        : "at an address that cudaMalloc did not give");
        return false;
    }
    touch({f, write, false, a, size, what, nullptr, launch_now.more, access_by(f, pc, how)},
          cells_of(*m) + (a - m->lo) / 4, a - m->lo, launch_now.number);
    return true;
}

void mark_written(uintptr_t a, size_t bytes, bool written)
{
    Memory *m = flags.check && bytes ? memory_of(a) : nullptr;
    if (!m)
        return;
    const uintptr_t end = std::min(a + bytes, m->hi) - m->lo;
    if (m->cells.empty() && a == m->lo && end == m->hi - m->lo) {
        m->written = written ? 15 : 0;
        return;
    }
    Cell *cells = cells_of(*m);
    for (uintptr_t i = a - m->lo, next; i < end; i = next) {
        next = std::min(i / 4 * 4 + 4, end);
        const u32 bits = (2u << (next - 1) % 4) - (1u << i % 4);
        uint8_t &known = cells[i / 4].written;
        known = (uint8_t)(written ? known | bits : known & ~bits);
    }
}

/* --- clang's calls -----------------------------------------------------------------------------*/

/* Most reads say nothing new: the word was written before, as this thread knows, and a lane of its
 * warp reads it at this moment already. Then this lane joins that one. */
static inline bool joins_reader(const Fiber *f, uintptr_t a, int size)
{
    Block &b = *f->block;
    const uintptr_t at = a - (uintptr_t)b.smem;
    Memory *m = at < SMEM_MAX ? nullptr : memory_of(a);
    if (size < 4 || (a & (alignment_of(size) - 1)) ||
        (at >= SMEM_MAX && (!m || m->cells.empty() || a + (uintptr_t)size > m->hi)))
        return false;
    Cell *c = m ? &m->cells[(a - m->lo) / 4] : &b.cells[(at + SMEM_BASE) / 4];
    const u32 epoch = m ? launch_now.number : b.epoch;
    for (Cell *end = c + size / 4; c < end; c++) {
        const Access &w = c->writer;
        Access &r = c->reader;
        if (c->epoch != epoch || c->flight || c->writers || c->written != 15 ||
            r.clock != f->clock || r.thread / 32 != f->warp || r.bytes != 15 || r.how != PLAIN ||
            (w.thread != f->tid && f->base->at[slot_of(w.thread)] < w.clock) ||
            (w.bytes && w.block != b.number) || r.block != b.number)
            return false;
        r.lanes |= 1u << f->lane;
    }
    return true;
}

void log_access(Fiber *f, uintptr_t a, int size, bool write, bool shared, u32 pc)
{
    if (flags.count)
        f->log.push_back({a, pc, (uint8_t)size, write, shared, f->lane});
}

__attribute__((noinline)) static void look_closely(Fiber *f, uintptr_t a, int size, bool write,
                                                   u32 pc, How how)
{
    const u32 shared = shared_address(a);
    if (shared)
        check_shared(f, shared, size, write, pc, how);
    else
        check_global(f, a, size, write, pc, how);
    log_access(f, shared ? shared : a, size, write, shared != 0, pc);
    if (flags.count && shared && !write)
        count_shared_read(f);
}

__attribute__((noinline)) static void look(Fiber *f, uintptr_t a, int size, bool write, u32 pc,
                                           How how)
{
    if (given_up)
        no_progress(pc);
    settle_writes();
    if (flags.count || write || how != PLAIN || !joins_reader(f, a, size))
        look_closely(f, a, size, write, pc, how);
}

void access(uintptr_t a, int size, bool write, u32 pc, How how)
{
    Fiber *f = me;
    if (flags.stages)
        note_reached(pc);
    if (a - (uintptr_t)f->stack < STACK)
        return; /* a local variable */
    f->last_pc = pc;
    if (flags.check || flags.count || given_up)
        look(f, a, size, write, pc, how);
}

static void access_range(uintptr_t a, size_t n, bool write, u32 pc)
{
    while (n) {
        size_t k = 16;
        while (k > n || a % k)
            k /= 2;
        access(a, (int)k, write, pc, PLAIN);
        a += k, n -= k;
    }
}
} // namespace simt

using namespace simt;

extern "C" {
/* In a section of their own: reach.cpp finds who calls one. */
#define SIMT_HOOK __attribute__((section("simt_hooks")))
#define HOOK(NAME, CALL)                                                                           \
    SIMT_HOOK void __tsan_##NAME(void *p)                                                          \
    {                                                                                              \
        const uintptr_t a = (uintptr_t)p;                                                          \
        if (me)                                                                                    \
            CALL;                                                                                  \
    }
/* Unaligned: the type promises no more than its own alignment: a structure of two ints is 8 bytes
 * anywhere. A volatile access is how a flag is polled or set. */
#define HOOKS(N)                                                                                   \
    HOOK(read##N, access(a, N, false, SIMT_PC, PLAIN))                                             \
    HOOK(write##N, access(a, N, true, SIMT_PC, PLAIN))                                             \
    HOOK(unaligned_read##N, access_range(a, N, false, SIMT_PC))                                    \
    HOOK(unaligned_write##N, access_range(a, N, true, SIMT_PC))                                    \
    HOOK(volatile_read##N, read_flag(a, N, SIMT_PC))                                               \
    HOOK(volatile_write##N, write_flag(a, N, SIMT_PC))                                             \
    HOOK(unaligned_volatile_read##N, read_flag(a, N, SIMT_PC))                                     \
    HOOK(unaligned_volatile_write##N, write_flag(a, N, SIMT_PC))
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

SIMT_HOOK void *__tsan_memmove(void *to, const void *from, size_t n)
{
    if (me) {
        access_range((uintptr_t)from, n, false, SIMT_PC);
        access_range((uintptr_t)to, n, true, SIMT_PC);
    }
    return memmove(to, from, n);
}
SIMT_HOOK void *__tsan_memcpy(void *, const void *, size_t)
    __attribute__((alias("__tsan_memmove")));
SIMT_HOOK void *__tsan_memset(void *to, int c, size_t n)
{
    if (me)
        access_range((uintptr_t)to, n, true, SIMT_PC);
    return memset(to, c, n);
}
/* What clang also calls: at the start, and for objects with virtual functions. */
void __tsan_init(void)
{
}
void __tsan_vptr_update(void **, void *) __attribute__((alias("__tsan_init")));
void __tsan_vptr_read(void **) __attribute__((alias("__tsan_init")));
/* Only for static variables of functions: a flag that clang tests before it fills them. */
int __tsan_atomic32_load(const volatile int *p, int)
{
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
void __tsan_atomic32_store(volatile int *p, int v, int)
{
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);
}
char __tsan_atomic8_load(const volatile char *p, int)
{
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

/* -fsanitize=array-bounds: an index past the end of an array whose size clang knows. */
void __ubsan_handle_out_of_bounds(void *, uintptr_t index)
{
    if (me)
        finding(R_BOUNDS_LOCAL, me, SIMT_PC, " uses index %ld of an array that ends before it",
                (long)index);
}

long simt_kept(void)
{
    return kept_bytes;
}
}
