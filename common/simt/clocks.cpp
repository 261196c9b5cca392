/* SPDX-License-Identifier: MIT
 *
 * clocks.cpp: what has happened before what.
 *
 * A thread's moments are numbered: f->clock is the present one. Its knowledge is shared with those
 * who came from the same barrier (f->base, never changed, only replaced). An access by thread t at
 * moment c has happened before whatever f does now if f's clock says at[t] >= c.
 *
 * Other blocks are known only through memory: __threadfence makes what this thread knows ready to
 * be published; an atomic (or a volatile or relaxed store) after it, of the same thread or behind a
 * barrier, publishes that at its address; an atomic (or a volatile or acquiring load) at the same
 * address learns it. A store that comes after the fence is not covered by it.
 */
#include "machine.h"

#include <algorithm>

namespace simt
{
static std::unordered_map<uintptr_t, std::shared_ptr<const Known>> published; /* by address */

Clock new_clock(void)
{
    Clock c = {};
    c.at.assign(slot_of(ENGINE) + 1, 0);
    c.async = c.at;
    return c;
}

void raise(std::vector<u32> &a, const std::vector<u32> &b)
{
    a.resize(std::max(a.size(), b.size()));
    for (size_t t = 0; t < b.size(); t++)
        a[t] = std::max(a[t], b[t]);
}

static std::shared_ptr<const Known> join_known(const std::shared_ptr<const Known> &a,
                                               const std::shared_ptr<const Known> &b)
{
    if (!b || a == b)
        return a;
    if (!a)
        return b;
    auto sum = std::make_shared<Known>(*a);
    for (const auto &block : *b) {
        ClockRef &mine = sum->insert(block).first->second;
        if (mine == block.second)
            continue;
        Clock both = *mine;
        raise(both.at, block.second->at);
        raise(both.inits, block.second->inits);
        mine = std::make_shared<const Clock>(both);
    }
    return sum;
}

void join(Clock &into, const Clock &from)
{
    raise(into.at, from.at);
    raise(into.async, from.async);
    raise(into.fenced, from.fenced);
    raise(into.inits, from.inits);
    into.known = join_known(into.known, from.known);
}

Clock this_moment(Fiber *f)
{
    Clock now = *f->base;
    now.at[slot_of(f->tid)] = f->clock++;
    return now;
}

void learn(Fiber *f, const ClockRef &what)
{
    if (!what || what == f->base)
        return;
    Clock sum = *f->base;
    join(sum, *what);
    f->base = std::make_shared<const Clock>(std::move(sum));
}

/* What a block's threads know, as knowledge for another block. */
static std::shared_ptr<const Known> as_known(u32 block, Clock c)
{
    c.known = nullptr;
    return std::make_shared<const Known>(
        Known{{block, std::make_shared<const Clock>(std::move(c))}});
}

void gather(Gathering &g, const Fiber *f, const Block *of)
{
    Clock &into = g.clock;
    if (into.at.empty())
        into = new_clock();
    if (f->block == of) {
        if (f->base != g.last)
            join(into, *f->base);
        g.last = f->base;
        into.at[slot_of(f->tid)] = std::max(into.at[slot_of(f->tid)], f->clock);
    } else {
        Clock now = *f->base;
        now.at[slot_of(f->tid)] = f->clock;
        into.known = join_known(join_known(into.known, f->base->known),
                                as_known(f->block->number, std::move(now)));
        const auto back = into.known->find(of->number);
        if (back != into.known->end())
            raise(into.at, back->second->at);
    }
}

/* fence.mbarrier_init covers what this thread has made, and nothing else. */
void gather_inits(Gathering &g, const Fiber *f, const Block *of)
{
    Clock told = new_clock();
    told.inits = told.at;
    told.inits[slot_of(f->tid)] = f->inits;
    if (g.clock.at.empty())
        g.clock = new_clock();
    if (f->block == of)
        raise(g.clock.inits, told.inits);
    else
        g.clock.known = join_known(g.clock.known, as_known(f->block->number, std::move(told)));
}

bool knows_init(const Fiber *f, const Access &made)
{
    const Clock *c = f->base.get();
    const size_t slot = slot_of(made.thread);
    if (made.block == f->block->number && made.thread == f->tid)
        return true;
    if (made.block != f->block->number) {
        if (!c->known || !c->known->count(made.block))
            return false;
        c = c->known->at(made.block).get();
    }
    return c->at[slot] >= made.clock || (c->inits.size() > slot && c->inits[slot] >= made.clock);
}

/* What is known of another block's threads. */
const u32 *known_elsewhere(const Clock &c, u32 block)
{
    static const u32 nothing[MAX_THREADS + 1] = {};
    if (!c.known)
        return nothing;
    const auto at = c.known->find(block);
    return at == c.known->end() ? nothing : at->second->at.data();
}

/* --- between blocks, and through flags inside of one ------------------------------------------*/

void raise_own(std::vector<u32> Clock::*which)
{
    if (!flags.check || !me)
        return;
    settle_writes();
    Clock now = this_moment(me);
    raise(now.*which, now.at);
    me->base = std::make_shared<const Clock>(std::move(now));
}

void fence(void)
{
    raise_own(&Clock::fenced);
}

/* What is fenced, by this thread or by those whom it has met at a barrier since. */
void publish(Fiber *f, uintptr_t address, bool is_rmw)
{
    if (!flags.check)
        return;
    std::shared_ptr<const Known> told = f->base->known;
    if (!f->base->fenced.empty()) {
        Clock fenced = new_clock();
        fenced.at = f->base->fenced;
        told = join_known(told, as_known(f->block->number, std::move(fenced)));
    }
    auto &at = published[address];
    at = is_rmw ? join_known(at, told) : told;
}

void acquire(Fiber *f, uintptr_t address)
{
    if (!flags.check)
        return;
    const auto at = published.find(address);
    if (at == published.end() || !at->second)
        return;
    Clock sum = *f->base;
    sum.known = join_known(sum.known, at->second);
    const auto own = at->second->find(f->block->number);
    if (own != at->second->end())
        join(sum, *own->second);
    f->base = std::make_shared<const Clock>(std::move(sum));
}

/* Who polls a flag must let others run. */
void read_flag(uintptr_t address, int size, u32 pc)
{
    access(address, size, false, pc, ATOMIC);
    spin(pc);
    acquire(me, address);
}

void write_flag(uintptr_t address, int size, u32 pc)
{
    access(address, size, true, pc, ATOMIC);
    publish(me, address, false);
    progress++;
}

void clocks_forget(void)
{
    published.clear();
}

/* --- atomics -----------------------------------------------------------------------------------*/

/* One thread of the CPU does all: plain reads and writes are atomic here. */
template <class T, class F> static T change(T *p, u32 pc, F f)
{
    if (me) {
        access((uintptr_t)p, sizeof(T), true, pc, ATOMIC);
        acquire(me, (uintptr_t)p);
        publish(me, (uintptr_t)p, true);
        count_kind(K_ATOMIC, 0);
    }
    const T old = *p, now = f(old);
    *p = now;
    if (memcmp(&old, &now, sizeof(T)) != 0)
        progress++;
    else if (me)
        spin(pc);
    return old;
}

#define ATOMIC_OP(NAME, T, VALUE)                                                                  \
    T NAME(T *p, T v)                                                                              \
    {                                                                                              \
        return change(p, SIMT_PC, [=](T old) { return VALUE; });                                   \
    }
ATOMIC_OP(atomic_add, float, old + v)
ATOMIC_OP(atomic_add, double, old + v)
ATOMIC_OP(atomic_add, int, old + v)
ATOMIC_OP(atomic_add, unsigned, old + v)
ATOMIC_OP(atomic_add, u64, old + v)
ATOMIC_OP(atomic_max, int, std::max(old, v))
ATOMIC_OP(atomic_max, unsigned, std::max(old, v))
ATOMIC_OP(atomic_min, int, std::min(old, v))
ATOMIC_OP(atomic_min, unsigned, std::min(old, v))
ATOMIC_OP(atomic_exch, int, (void(old), v))
ATOMIC_OP(atomic_exch, unsigned, (void(old), v))
ATOMIC_OP(atomic_exch, float, (void(old), v))
ATOMIC_OP(atomic_inc, unsigned, old >= v ? 0 : old + 1)
ATOMIC_OP(atomic_or, int, old | v)
ATOMIC_OP(atomic_or, unsigned, old | v)
#define ATOMIC_CAS(T)                                                                              \
    T atomic_cas(T *p, T compare, T v)                                                             \
    {                                                                                              \
        return change(p, SIMT_PC, [=](T old) { return old == compare ? v : old; });                \
    }
ATOMIC_CAS(int)
ATOMIC_CAS(unsigned)
ATOMIC_CAS(u64)
} // namespace simt

namespace simt_ptx
{
using namespace simt;

void red_add(float *to, const float *v, int n)
{
    access((uintptr_t)to, 4 * n, true, SIMT_PC, ATOMIC);
    count_kind(K_ATOMIC, 0);
    for (int i = 0; i < n; i++)
        to[i] += v[i];
}

int load_acquire(const int *p)
{
    read_flag((uintptr_t)p, 4, SIMT_PC);
    return *(const volatile int *)p;
}

void store_flag(int *p, int v, bool release)
{
    if (release)
        fence();
    write_flag((uintptr_t)p, 4, SIMT_PC);
    *p = v;
}
} // namespace simt_ptx
