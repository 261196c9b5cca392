/* SPDX-License-Identifier: MIT
 *
 * shadow.cpp: every access to memory. clang calls a __tsan_ function before each (compile.py).
 *
 * Is the address inside of shared memory, or of what cudaMalloc gave? Is it a multiple of the size?
 * Does what is read hold a value? Is there an earlier access by another thread that nothing orders
 * before this one, and one of the two writes? Each "no" is a finding with both lines.
 *
 * Reads by one warp are kept once a cell; what is written twice is compared afterwards, since equal
 * values do no harm (settle_writes).
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
    for (int r = 0; r < b.cluster_size; r++) {
        Block &other = *b.cluster[r];
        if (a - (uintptr_t)other.smem < WINDOW - SMEM_BASE)
            return (&other == &b ? 0 : (u32)(r + 1) * WINDOW) + SMEM_BASE +
                   (u32)(a - (uintptr_t)other.smem);
    }
    return 0;
}

static Block &block_of(u32 address)
{
    Block &b = *me->block;
    const u32 window = address / WINDOW;
    return window == 0 || (int)window > b.cluster_size ? b : *b.cluster[window - 1];
}

char *shared_at(u32 address)
{
    return block_of(address).smem + (address % WINDOW - SMEM_BASE) % WINDOW;
}

static Cell *shared_cell(u32 address)
{
    return &block_of(address).cells[(address % WINDOW) / 2];
}

Memory *memory_of(uintptr_t a)
{
    auto at = memory.upper_bound(a);
    return at == memory.end() || a < at->second.lo ? nullptr : &at->second;
}

std::string who(const Fiber *f)
{
    return "thread " + std::to_string(f->tid) + " of block " + std::to_string(f->block->number);
}

std::string who(const Access &a)
{
    return a.thread - 1 == ENGINE
               ? "the copy engine, in block " + std::to_string(a.block)
               : "thread " + std::to_string(a.thread - 1) + " of block " + std::to_string(a.block);
}

/* --- races -------------------------------------------------------------------------------------*/

static struct {
    bool is_open, one_instruction;
    uintptr_t a;
    int size;
    char before[16];
    Site first, second;
} written_twice;

void settle_writes(void)
{
    if (!written_twice.is_open)
        return;
    written_twice.is_open = false;
    const bool same =
        memcmp((void *)written_twice.a, written_twice.before, (size_t)written_twice.size) == 0;
    if (same && written_twice.one_instruction)
        return;
    report_finding(same ? R_SAME_VALUE : R_RACE_WW, written_twice.first, written_twice.second);
}

static void open_writes(const Fiber *f, const Access &a, uintptr_t address, int size, u32 pc,
                        const char *where)
{
    if (written_twice.is_open)
        return;
    written_twice.is_open = true;
    written_twice.one_instruction = a.pc == pc && a.block == f->block->number &&
                                    a.thread - 1 < ENGINE && (a.thread - 1) / 32 == f->warp;
    written_twice.a = address;
    written_twice.size = std::min(size, 16);
    memcpy(written_twice.before, (void *)address, (size_t)written_twice.size);
    written_twice.first = {a.pc, who(a) + " writes" + where};
    written_twice.second = {pc, who(f) + " writes" + where};
}

static const char *verb(How how, bool write)
{
    return how == ATOMIC ? " changes (atomic)" : write ? " writes" : " reads";
}

static bool conflicts(const Fiber *f, const Access &a, How how, uint8_t bytes, bool async,
                      const Clock *as_of)
{
    return a.thread && (a.bytes & bytes) && !(a.how == ATOMIC && how == ATOMIC) &&
           !happened(f, a, async, as_of);
}

static void keep_reader(Fiber *f, Cell &c)
{
    const Access &old = c.reader;
    if (!old.thread || (old.thread == f->tid + 1 && old.block == f->block->number))
        return;
    if (old.block != f->block->number) {
        c.other = old;
        c.readers = 0;
        return;
    }
    u32 at = c.readers;
    while (at && (launch_now.readers[at].a.thread - 1) / 32 != (old.thread - 1) / 32)
        at = launch_now.readers[at].next;
    if (at) {
        launch_now.readers[at].a = old;
    } else {
        launch_now.readers.push_back({old, c.readers});
        c.readers = (u32)launch_now.readers.size() - 1;
    }
}

struct Touch {
    Fiber *f;
    u32 pc;
    bool write, shared;
    How how;
    uintptr_t address; /* in this process */
    int size;
    const char *what;
    const Clock *as_of;
};

static void touch_write(const Touch &t, Cell &c, const Access &now, const char *where)
{
    Fiber *f = t.f;
    if (conflicts(f, c.writer, t.how, now.bytes, false, t.as_of)) {
        if (t.how == PLAIN && c.writer.how == PLAIN)
            open_writes(f, c.writer, t.address, t.size, t.pc, where);
        else
            report_finding(R_RACE_WW, {c.writer.pc, who(c.writer) + verb(c.writer.how, true)},
                           {t.pc, who(f) + verb(t.how, true) + where});
    } else if (t.how == ASYNC && c.writer.thread && c.writer.how != ASYNC &&
               conflicts(f, c.writer, t.how, now.bytes, true, t.as_of))
        report_finding(R_PROXY, {c.writer.pc, who(c.writer) + " writes"},
                       {t.pc, who(f) + " has the async proxy write" + where});
    const Access *read = nullptr;
    for (const Access *a : {&c.reader, &c.other})
        if (conflicts(f, *a, t.how, now.bytes, false, t.as_of))
            read = a;
    for (u32 at = c.readers; at && !read; at = launch_now.readers[at].next)
        if (conflicts(f, launch_now.readers[at].a, t.how, now.bytes, false, t.as_of))
            read = &launch_now.readers[at].a;
    if (read)
        report_finding(R_RACE_RW, {read->pc, who(*read) + verb(read->how, false)},
                       {t.pc, who(f) + verb(t.how, true) + where});
    c.writer = now;
    c.reader = c.other = Access();
    c.readers = 0;
    c.written |= now.bytes;
}

static void touch_read(const Touch &t, Cell &c, const Access &now, const char *where)
{
    Fiber *f = t.f;
    const Access &last = c.reader;
    if (last.thread == now.thread && last.block == now.block && last.clock == now.clock &&
        last.how == PLAIN && now.how == PLAIN && last.bytes == now.bytes)
        return; /* again, at the same moment: all has been asked */
    if ((c.written & now.bytes) != now.bytes)
        report_finding(R_UNWRITTEN, {t.pc, who(f) + " reads" + where});
    else if (conflicts(f, c.writer, t.how, now.bytes, false, t.as_of))
        report_finding(R_RACE_WR, {c.writer.pc, who(c.writer) + verb(c.writer.how, true)},
                       {t.pc, who(f) + verb(t.how, false) + where});
    else if (t.how == ASYNC && c.writer.thread && c.writer.how != ASYNC &&
             conflicts(f, c.writer, t.how, now.bytes, true, t.as_of))
        report_finding(R_PROXY, {c.writer.pc, who(c.writer) + " writes"},
                       {t.pc, who(f) + " has the async proxy read" + where});
    keep_reader(f, c);
    c.reader = now;
}

static void touch(const Touch &t, Cell *cells, uintptr_t offset, u32 epoch)
{
    const uintptr_t end = offset + (uintptr_t)t.size;
    for (uintptr_t i = offset / 2; i < (end + 1) / 2; i++) {
        Cell &c = cells[i - offset / 2];
        if (c.epoch != epoch) { /* of an earlier block or launch: what was written stays so */
            const uint8_t written = t.shared ? 0 : c.written;
            c = Cell();
            c.epoch = epoch;
            c.written = written;
        }
        const uint8_t bytes = (uint8_t)((2 * i >= offset ? 1 : 0) | (2 * i + 1 < end ? 2 : 0));
        if (c.flight)
            report_finding(R_FLIGHT, {c.flight, "a copy was issued that nobody has waited for"},
                           {t.pc, who(t.f) + verb(t.how, t.write) + " where it goes" + t.what});
        const Access now = {t.f->block->number,       t.f->clock, t.pc,
                            (uint16_t)(t.f->tid + 1), t.how,      bytes};
        if (t.write)
            touch_write(t, c, now, t.what);
        else
            touch_read(t, c, now, t.what);
    }
}

/* A tile has arrived: the engine is the last writer. */
void write_by_engine(Block &b, u32 address, int size, u32 pc)
{
    for (u32 a = address; a < address + (u32)size; a += 2) {
        Cell &c = *shared_cell(a);
        c = Cell();
        c.epoch = b.epoch;
        c.written = 3;
        c.writer = {b.number, b.engine_clock, pc, ENGINE + 1, ASYNC, 3};
    }
}

void set_flight(u32 address, int bytes, u32 pc)
{
    for (u32 a = address; a < address + (u32)bytes; a += 2)
        shared_cell(a)->flight = pc;
}

/* --- bounds ------------------------------------------------------------------------------------*/

bool check_shared(Fiber *f, u32 address, int size, bool write, u32 pc, How how, const char *what,
                  const Clock *as_of)
{
    Block &b = block_of(address);
    const long at = (long)(address % WINDOW) - SMEM_BASE;
    const long dynamic = (long)launch_now.config.smem, statics = (long)b.static_bytes;
    const long lo = (dynamic + 127) / 128 * 128;
    if (address % (u32)std::min(size, 16))
        report_finding(R_MISALIGNED, {pc, who(f) + verb(how, write) + " " + std::to_string(size) +
                                              " bytes at byte " + std::to_string(at) +
                                              " of shared memory" + what});
    if (at < 0 || (at + size > dynamic && (at < lo || at + size > lo + statics))) {
        report_finding(R_BOUNDS_SHARED,
                       {pc, who(f) + verb(how, write) + " byte " + std::to_string(at) + " of the " +
                                std::to_string(dynamic ? dynamic : statics) +
                                " that the block has" + what});
        return false;
    }
    touch({f, pc, write, true, how, (uintptr_t)shared_at(address), size, what, as_of},
          shared_cell(address), address % WINDOW, b.epoch);
    return true;
}

static std::unordered_map<uintptr_t, Cell> variable_cells; /* __device__ variables, by pairs */

bool check_global(Fiber *f, uintptr_t a, int size, bool write, u32 pc, How how, const char *what)
{
    if (a % (uintptr_t)std::min(size & -size, 16)) /* of 12 bytes, a multiple of 4 */
        report_finding(R_MISALIGNED, {pc, who(f) + verb(how, write) + " " + std::to_string(size) +
                                              " bytes of global memory, " + std::to_string(a % 16) +
                                              " past a multiple of 16" + what});
    if (a >= program_lo && a < program_hi) { /* a variable or a constant of the program */
        for (int i = 0; i < size; i += 2) {
            Cell &c = variable_cells[(a + (uintptr_t)i) / 2];
            c.written = 3;
            touch({f, pc, write, false, how, a + (uintptr_t)i, std::min(2, size), what, nullptr},
                  &c, a + (uintptr_t)i, launch_now.number);
        }
        return true;
    }
    if (a - (uintptr_t)launch_now.arguments < 4096) /* the kernel's parameters */
        return true;
    Memory *m = memory_of(a);
    if (!m || a + (uintptr_t)size > m->hi) {
        std::string text = who(f) + verb(how, write) + what;
        const bool behind = m || (memory_of(a - 256) != nullptr);
        if (behind)
            text += " past the end of what cudaMalloc gave";
        else
            text += " at an address that cudaMalloc did not give";
        report_finding(R_BOUNDS_GLOBAL, {pc, text});
        return false;
    }
    if (m->cells.empty())
        m->cells.resize((m->hi - m->lo) / 2 + 1);
    touch({f, pc, write, false, how, a, size, what, nullptr}, &m->cells[(a - m->lo) / 2], a - m->lo,
          launch_now.number);
    return true;
}

void mark_written(uintptr_t a, size_t bytes, bool written)
{
    Memory *m = flags.check && bytes ? memory_of(a) : nullptr;
    if (!m)
        return;
    if (m->cells.empty())
        m->cells.resize((m->hi - m->lo) / 2 + 1);
    const uintptr_t end = std::min(a + bytes, m->hi);
    for (uintptr_t i = a; i < end; i++) {
        Cell &c = m->cells[(i - m->lo) / 2];
        const uint8_t bit = (i - m->lo) % 2 ? 2 : 1;
        c.written = written ? c.written | bit : c.written & (uint8_t)~bit;
    }
}

/* --- clang's calls -----------------------------------------------------------------------------*/

void access(uintptr_t a, int size, bool write, u32 pc, How how)
{
    Fiber *f = me;
    if (a - (uintptr_t)f->block->stacks < (uintptr_t)STACK * MAX_THREADS)
        return; /* a local variable */
    f->last_pc = pc;
    if (given_up)
        no_progress(pc);
    if (!flags.check && !flags.count)
        return;
    const u32 shared = shared_address(a);
    if (flags.check) {
        settle_writes();
        if (shared)
            check_shared(f, shared, size, write, pc, how);
        else
            check_global(f, a, size, write, pc, how);
    }
    if (flags.count)
        f->log.push_back(
            {shared ? shared : a, pc, (uint8_t)size, write, shared != 0, (uint8_t)f->lane});
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
void __tsan_init(void)
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void)
{
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **)
{
}

#define HOOK(NAME, N, WRITE, HOW)                                                                  \
    void __tsan_##NAME##N(void *a)                                                                 \
    {                                                                                              \
        if (me)                                                                                    \
            access((uintptr_t)a, N, WRITE, SIMT_PC, HOW);                                          \
    }
/* A volatile access is how a flag is polled or set. */
#define HOOK_VOLATILE(NAME, N)                                                                     \
    void __tsan_##NAME##read##N(void *a)                                                           \
    {                                                                                              \
        if (!me)                                                                                   \
            return;                                                                                \
        access((uintptr_t)a, N, false, SIMT_PC, ATOMIC);                                           \
        spin(SIMT_PC);                                                                             \
        acquire(me, (uintptr_t)a);                                                                 \
    }                                                                                              \
    void __tsan_##NAME##write##N(void *a)                                                          \
    {                                                                                              \
        if (!me)                                                                                   \
            return;                                                                                \
        access((uintptr_t)a, N, true, SIMT_PC, ATOMIC);                                            \
        publish(me, (uintptr_t)a, false);                                                          \
        progress++;                                                                                \
    }
#define HOOKS(N)                                                                                   \
    HOOK(read, N, false, PLAIN)                                                                    \
    HOOK(write, N, true, PLAIN)                                                                    \
    HOOK(unaligned_read, N, false, PLAIN)                                                          \
    HOOK(unaligned_write, N, true, PLAIN)                                                          \
    HOOK_VOLATILE(volatile_, N)                                                                    \
    HOOK_VOLATILE(unaligned_volatile_, N)                                                          \
    void __tsan_read_write##N(void *a)                                                             \
    {                                                                                              \
        if (!me)                                                                                   \
            return;                                                                                \
        access((uintptr_t)a, N, false, SIMT_PC, PLAIN);                                            \
        access((uintptr_t)a, N, true, SIMT_PC, PLAIN);                                             \
    }                                                                                              \
    void __tsan_unaligned_read_write##N(void *a)                                                   \
    {                                                                                              \
        if (!me)                                                                                   \
            return;                                                                                \
        access((uintptr_t)a, N, false, SIMT_PC, PLAIN);                                            \
        access((uintptr_t)a, N, true, SIMT_PC, PLAIN);                                             \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

void *__tsan_memcpy(void *to, const void *from, size_t n)
{
    if (me) {
        access_range((uintptr_t)from, n, false, SIMT_PC);
        access_range((uintptr_t)to, n, true, SIMT_PC);
    }
    return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n)
{
    if (me) {
        access_range((uintptr_t)from, n, false, SIMT_PC);
        access_range((uintptr_t)to, n, true, SIMT_PC);
    }
    return memmove(to, from, n);
}
void *__tsan_memset(void *to, int c, size_t n)
{
    if (me)
        access_range((uintptr_t)to, n, true, SIMT_PC);
    return memset(to, c, n);
}
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
struct OutOfBounds {
    const char *file;
    u32 line, column;
};
void __ubsan_handle_out_of_bounds(OutOfBounds *data, uintptr_t index)
{
    if (me)
        report_finding(R_BOUNDS_LOCAL,
                       {SIMT_PC, who(me) + " uses index " + std::to_string((long)index) +
                                     " of an array that ends before it"});
    (void)data;
}
}
