/* SPDX-License-Identifier: MIT
 *
 * ptx_async.cpp: who works beside the threads: the copy engine (TMA), which reports to mbarriers,
 * and the tensor cores of a warpgroup (wgmma).
 *
 * All happens at the last moment that the rules allow: a tile arrives when somebody waits on its
 * mbarrier; a product reads its operands and writes C when it is waited for (until then C holds a
 * NaN of its own kind, which is recognised when it is used); a store of a tile reads shared memory
 * when its group is waited for. SIMT_EARLY=1: all at the first moment; 2: by seed.
 *
 * The async proxy sees what threads have written only through fence.proxy.async: an access from
 * here asks the second half of the clock (machine.h).
 */
#include "machine.h"
#include "tensor_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace simt_ptx
{
using namespace simt;

void proxy_fence(void)
{
    raise_own(&Clock::async);
}

/* --- mbarriers ---------------------------------------------------------------------------------*/

/* NULL: there is none. It must have been made before, as all may see. */
static Mbarrier *use(u32 bar, u32 pc)
{
    Block &b = block_of(bar);
    const auto m = b.mbarriers.find(bar % WINDOW);
    if (m == b.mbarriers.end()) {
        finding(R_MBARRIER, me, pc, " uses an mbarrier that mbarrier.init has not made");
        return nullptr;
    }
    settle_writes();
    check_shared(me, bar, 8, false, pc, ATOMIC, " (an mbarrier)");
    if (flags.check && !knows_init(me, m->second.made))
        finding(R_RACE_WR, {by(m->second.made, " makes an mbarrier"), by(me, pc, " uses it")});
    return &m->second;
}

/* The phase ends when all have arrived and all bytes are here. */
static void look(Mbarrier &m)
{
    if (m.pending > 0 || m.bytes != 0)
        return;
    m.phase++;
    m.pending = m.expected;
    if (flags.check)
        m.over = std::make_shared<const Clock>(m.gathering.clock);
    for (Fiber *f : m.waiting) {
        learn(f, m.over);
        wake(f);
    }
    m.waiting.clear();
    progress++;
}

void mbarrier_init(u32 bar, int count)
{
    Mbarrier m = {};
    m.expected = m.pending = count;
    m.pc = SIMT_PC;
    m.gathering.clock = new_clock();
    m.made = {me->block->number, me->clock, m.pc, 0, (uint16_t)me->tid, INIT, 0};
    check_shared(me, bar, 8, true, m.pc, INIT, " (mbarrier.init)");
    settle_writes();
    me->block->mbarriers[bar % WINDOW] = m;
}

void mbarrier_init_fence(void)
{
    me->inits = me->clock++;
}

void mbarrier_invalidate(u32 bar)
{
    me->block->mbarriers.erase(bar % WINDOW);
}

void mbarrier_arrive(u32 bar, int bytes)
{
    const u32 pc = SIMT_PC;
    Mbarrier *m = use(bar, pc);
    if (!m)
        return;
    trace(ARRIVE, pc, 0, phase_of(bar, m->phase));
    m->bytes += bytes;
    m->pending--;
    if (flags.check)
        gather(m->gathering, me, &block_of(bar));
    me->clock++;
    if (m->pending < 0)
        finding(R_MBARRIER, {site(m->pc, "the mbarrier counts %d", m->expected),
                             by(me, pc, " is one arrival too many")});
    count_kind(K_MBARRIER, 0);
    look(*m);
}

static void land(Block &b, Mbarrier &m)
{
    const std::vector<EngineCopy> now = std::move(m.copies);
    m.copies.clear();
    for (const EngineCopy &c : now) {
        if (c.from)
            read_by_engine(b, c);
        for (const Piece &p : c.pieces) {
            memcpy(shared_at(p.to), c.from ? shared_at(c.from) : p.bytes.data(), p.bytes.size());
            write_by_engine(b, p.to, (int)p.bytes.size(), c.pc, c.how);
        }
        u32 &known = m.gathering.clock.at[slot_of(ENGINE)];
        known = std::max(known, b.engine_clock++);
        m.bytes -= c.bytes;
    }
    if (!now.empty())
        look(m);
}

void mbarrier_wait(u32 bar, u32 parity)
{
    const u32 pc = SIMT_PC;
    Mbarrier *m = use(bar, pc);
    if (!m)
        return;
    count_kind(K_MBARRIER, 0);
    trace(AWAIT, pc, 0, phase_of(bar, m->phase - ((m->phase ^ parity) & 1)));
    if ((m->phase & 1) == (parity & 1))
        land(block_of(bar), *m);
    if ((m->phase & 1) != (parity & 1))
        return learn(me, m->over);
    m->waiting.push_back(me);
    wait_here(parity & 1 ? "the end of an odd phase of an mbarrier"
                         : "the end of an even phase of an mbarrier",
              pc);
}

/* --- the copy engine ---------------------------------------------------------------------------*/

/* Of 128 bytes: bits 4 to 6 of an address are XORed with bits 7 to 9; of 64 and 32: fewer bits. */
static u32 swizzle(u32 a, u32 mode)
{
    static const u32 bits[] = {0, 1, 3, 7}; /* by CUtensorMapSwizzle */
    return a ^ (a >> 7 & bits[mode]) << 4;
}

/* For each 16 bytes of the box: their place in it, and in memory (NULL: outside of the tensor). */
template <class F> static void each_chunk(const SimtTensorMap &m, const int *at, F f)
{
    const u32 rows = m.box[1] * m.box[2] * m.box[3] * m.box[4];
    u32 place = 0;
    for (u32 row = 0; row < rows; row++) {
        char *p = m.base + at[0] * (long)m.element;
        bool inside = true;
        for (u32 i = 1, rest = row; i < 5; rest /= m.box[i++]) {
            const long x = at[i] + (long)(rest % m.box[i]);
            inside = inside && x >= 0 && (u64)x < m.sizes[i];
            p += x * (long)m.bytes[i - 1];
        }
        for (u32 k = 0; k < m.box[0] * m.element; k += 16, place += 16)
            f(place, inside && (u64)at[0] + k / m.element < m.sizes[0] ? p + k : nullptr);
    }
}

/* NULL: it has another rank. */
static const SimtTensorMap *map_of(const void *map, int rank, u32 pc)
{
    const SimtTensorMap &m = ((const CUtensorMap *)map)->m;
    if (m.base && m.rank == (u32)rank)
        return &m;
    finding(R_BOUNDS_MAP, me, pc, " names a tile by %d coordinates, the tensor map has %u", rank,
            m.rank);
    return nullptr;
}

static const char *const engine = " (copy engine)";

/* What this thread knows now, its own writes with it. */
static ClockRef moment(void)
{
    if (!flags.check)
        return nullptr;
    settle_writes();
    return std::make_shared<const Clock>(this_moment(me));
}

/* The same for all blocks of the cluster: copies land when any of them runs. */
static u32 of_cluster(u32 address)
{
    const u32 rank = me->block->number % (u32)me->block->cluster.size();
    return address < WINDOW ? map_to_block(address, (int)rank) : address;
}

static void engine_write(EngineCopy &c, u32 to, std::string piece)
{
    const int size = (int)piece.size();
    if (!check_shared(me, to, size, true, c.pc, c.how, c.how == ASYNC ? engine : " (st.async)"))
        return;
    set_flight(to, size, c.pc);
    c.pieces.push_back({of_cluster(to), std::move(piece)});
}

static void leave(u32 bar, Mbarrier &m, EngineCopy &&c)
{
    m.copies.push_back(std::move(c));
    if (happens_now())
        land(block_of(bar), m);
}

/* got: bytes that were read. */
static void issue(u32 bar, Mbarrier &m, EngineCopy &&c, long got)
{
    count_engine(c.pc, false, got, got / 32);
    trace(ENGINE_COPY, c.pc, c.bytes, phase_of(bar, m.phase));
    leave(bar, m, std::move(c));
}

static void load_tile(u32 to, const void *map, u32 bar, const int *at, int rank, u32 pc)
{
    Mbarrier *m = use(bar, pc);
    const SimtTensorMap *t = m ? map_of(map, rank, pc) : nullptr;
    if (!t)
        return;
    const u32 align = t->swizzle ? 1024 : 128;
    if (to % align)
        finding(R_MISALIGNED, me, pc, " has a tile copied to an address that is no multiple of %u",
                align);
    EngineCopy c = {{}, 0, pc, 0, me, nullptr};
    long got = 0;
    each_chunk(*t, at, [&](u32 place, char *p) {
        const bool is_there = p && check_global(me, (uintptr_t)p, 16, false, pc, ASYNC, engine);
        c.bytes += 16;
        got += is_there ? 16 : 0;
        engine_write(c, swizzle(to + place, t->swizzle),
                     is_there ? std::string(p, 16) : std::string(16, 0));
    });
    issue(bar, *m, std::move(c), got);
}

/* blocks: 0: this one, else a bit for each block of the cluster. */
void tma_load_issue(u32 to, const void *map, u32 bar, const int *at, int rank, u32 blocks)
{
    const u32 pc = SIMT_PC;
    if (blocks == 0)
        load_tile(to, map, bar, at, rank, pc);
    for (int block = 0; block < (int)me->block->cluster.size(); block++)
        if (blocks >> block & 1)
            load_tile(map_to_block(to, block), map, map_to_block(bar, block), at, rank, pc);
}

/* Of global memory; or of shared memory, which is read when the copy arrives. */
void bulk_issue(u32 to, uintptr_t from, bool is_global, u32 bytes, u32 bar)
{
    const u32 pc = SIMT_PC;
    Mbarrier *m = use(bar, pc);
    if (!m)
        return;
    if ((to | bytes | from) % 16)
        finding(R_MISALIGNED, me, pc,
                " has bytes copied whose addresses or number are no multiple of 16");
    EngineCopy c = {{}, (int)bytes, pc, 0, me, nullptr};
    std::string piece(bytes, 0);
    if (!is_global) {
        c.from = of_cluster((u32)from);
        c.clock = moment();
    } else if (check_global(me, from, (int)bytes, false, pc, ASYNC, engine)) {
        memcpy(&piece[0], (const char *)from, bytes);
    } else {
        return;
    }
    engine_write(c, to, std::move(piece));
    issue(bar, *m, std::move(c), is_global ? bytes : 0);
}

/* st.async. The barrier lies where the bytes go. */
void store_async(u32 to, const float *v, int count, u32 bar)
{
    const u32 pc = SIMT_PC;
    Mbarrier *m = use(bar, pc);
    if (!m)
        return;
    if (&block_of(to) != &block_of(bar))
        finding(R_MBARRIER, me, pc, " has bytes counted in another block than where they go");
    for (int i = 0; i < count; i++)
        check_pending(v[i], pc);
    EngineCopy c = {{}, 4 * count, pc, 0, me, nullptr, PLAIN};
    log_access(me, to, c.bytes, true, true, pc);
    engine_write(c, to, std::string((const char *)v, (size_t)c.bytes));
    leave(bar, *m, std::move(c));
}

/* createpolicy: L2 is not modelled, so a policy is nothing but a number that this has made. */
static const u64 policies[] = {0x12f0000000000000, 0x1000000000000000};

u64 make_policy(bool evict_first)
{
    return policies[evict_first ? 0 : 1];
}

void check_policy(u64 policy)
{
    if (policy != policies[0] && policy != policies[1])
        finding(R_LIMIT, me, SIMT_PC, " has a cache policy that createpolicy has not made");
}

static void store(const Store &s)
{
    each_chunk(s.map, s.at, [&](u32 place, char *p) {
        const u32 a = swizzle(s.from + place, s.map.swizzle);
        if (check_shared(me, a, 16, false, s.pc, ASYNC, engine, s.clock.get()) && p &&
            check_global(me, (uintptr_t)p, 16, true, s.pc, ASYNC, engine))
            memcpy(p, shared_at(a), 16);
    });
}

void tma_store_issue(u32 from, const void *map, const int *at, int rank)
{
    const u32 pc = SIMT_PC;
    const SimtTensorMap *m = map_of(map, rank, pc);
    if (!m)
        return;
    const Store s = {from, pc, *m, {at[0], at[1], at[2], at[3], at[4]}, moment()};
    long put = 0;
    each_chunk(s.map, at, [&](u32, char *p) { put += p ? 16 : 0; });
    count_engine(pc, true, put, put / 32);
    trace(ENGINE_STORE, pc, put);
    if (happens_now())
        store(s);
    else
        me->stores.open.push_back(s);
}

void bulk_commit(void)
{
    trace(COMMIT, SIMT_PC, ENGINE_STORE);
    me->stores.commit();
}

void bulk_wait(int n)
{
    trace(WAIT, SIMT_PC, ENGINE_STORE, (u64)n);
    me->stores.wait(n, store);
}

/* --- wgmma -------------------------------------------------------------------------------------*/

/* Is there a wgmma.fence since the registers of A and C have changed? */
static void need_fence(const Product &p, const Accumulator *a)
{
    const auto before = me->operands.find(p.pc);
    if (p.from_registers && before != me->operands.end() && before->second.retired &&
        memcmp(before->second.A, p.A, sizeof p.A) != 0)
        finding(R_WGMMA_FENCE, me, p.pc, " has changed registers of A since the last wgmma here");
    if (a && a->pending > 0)
        return;
    if (!me->wgmma_fenced)
        finding(R_WGMMA_FENCE, me, p.pc, " issues a wgmma, and has never come to wgmma.fence");
    else if (a && a->values.size() == (size_t)p.n / 2 &&
             memcmp(p.C, a->values.data(), a->values.size() * sizeof(float)) != 0)
        finding(R_WGMMA_FENCE, {by(me, a->pc, " has waited for a wgmma with this accumulator"),
                                site(p.pc, "issues the next, after it has changed the registers")});
}

static void op_products(Block &b, int warp, u32);

void wgmma_issue(float *const *C, int n, Type type, const u32 *A, u64 A_desc, u64 B_desc, bool add,
                 bool trans_A, bool trans_B)
{
    Fiber *f = me;
    Product p = {C[0],    n,  type,    A != nullptr, add,    trans_A,
                 trans_B, {}, SIMT_PC, A_desc,       B_desc, f->base};
    const size_t registers = (size_t)n / 2;
    for (size_t i = 0; i < registers; i++)
        if (C[i] != C[0] + i) {
            finding(R_LIMIT, p.pc,
                    "the accumulators of this wgmma are no array: simt cannot follow them");
            stop(1);
        }
    if (A)
        memcpy(p.A, A, sizeof p.A);
    const auto known = f->accumulators.find(C[0]);
    if (flags.check)
        need_fence(p, known == f->accumulators.end() ? nullptr : &known->second);
    if (A) {
        Operand &o = f->operands[p.pc];
        memcpy(o.A, A, sizeof o.A);
        o.retired = false;
    }
    Accumulator &a = f->accumulators[C[0]];
    if (a.pending++ == 0) {
        a.values.resize(registers);
        memcpy(a.values.data(), C[0], registers * sizeof(float));
        for (size_t i = 0; i < registers; i++)
            memcpy(C[i], &pending_bits, 4); /* not as a float: that might make it quiet */
    }
    a.pc = p.pc;
    f->products.open.push_back(p);
    if (f->lane == 0)
        count_kind(K_WGMMA, 1, 2L * 16 * n * (type == is_e4m3 ? 32 : 16));
    trace(WGMMA, p.pc, 2L * 16 * n * 16); /* of bytes twice as many in the same time */
}

void wgmma_fence(void)
{
    me->wgmma_fenced = true;
    me->operands.clear();
    for (auto &a : me->accumulators) /* what they hold now is what the next product may use */
        if (a.second.pending == 0)
            memcpy(a.second.values.data(), a.first, a.second.values.size() * sizeof(float));
}

void wgmma_commit(void)
{
    trace(COMMIT, SIMT_PC, WGMMA);
    me->products.commit();
    /* by line, since all lanes must do the same */
    const u32 by_line = (SIMT_PC ^ (u32)flags.seed) * 2654435761u;
    if (flags.early == 1 || (flags.early == 2 && by_line >> 31)) {
        int keep = 0;
        rendezvous(~0u, op_products, &keep, "wgmma.commit_group", SIMT_PC);
    }
}

/* One operand: rows row0 .. row0 + rows - 1. In memory 8 rows of 128 bytes, swizzled, are 1024
 * bytes; transposed, such a row holds 64 rows of one k. */
static void load_operand(Fiber *f, const Product &p, u32 (*to)[32], int rows, int row0, u64 desc,
                         bool trans)
{
    const u32 start = (u32)(desc & 0x3fff) << 4, leading = (u32)(desc >> 16 & 0x3fff) << 4,
              stride = (u32)(desc >> 32 & 0x3fff) << 4;
    const u32 size = (u32)size_of(p.type), depth = 32 / size, chunk = 16 / size;
    if (desc >> 62 != 1)
        finding(R_LIMIT, p.pc, "simt knows operands of wgmma with the 128-byte swizzle only");
    for (u32 i = 0; i < (trans ? depth : (u32)rows); i++)
        for (u32 c = 0; c < (trans ? (u32)rows : depth); c += chunk) {
            const u32 r = trans ? i : (u32)row0 + i, x = trans ? (u32)row0 + c : c;
            const u32 a = swizzle(start + r / 8 * stride + r % 8 * 128 +
                                      (trans ? x / 64 * leading : 0) + x % 64 * size,
                                  CU_TENSOR_MAP_SWIZZLE_128B);
            if (!check_shared(f, a, 16, false, p.pc, ASYNC, " (wgmma)", p.clock.get()))
                continue;
            const char *v = shared_at(a);
            for (u32 e = 0; e < chunk; e++) {
                u32 &o = trans ? to[c + e][i] : to[i][c + e];
                o = 0;
                memcpy(&o, v + e * size, size);
            }
        }
}

/* A byte that is NaN makes NaN. */
static bool to_numbers(TensorSumNumber *to, const u32 *from)
{
    bool nan = false;
    for (int k = 0; k < 32; k++) {
        to[k] = tensor_sum_number((uint8_t)from[k]);
        nan = nan || (from[k] & 0x7f) == 0x7f;
    }
    return nan;
}

/* Of bytes, 32 to a step: tensor_sum.h. */
static void multiply_bytes(float (*C)[256], int n)
{
    static TensorSumNumber A[16][32], B[32];
    bool nan[16];
    for (int i = 0; i < 16; i++)
        nan[i] = to_numbers(A[i], A_of[i]);
    for (int j = 0; j < n; j++) {
        const bool nan_B = to_numbers(B, B_of[j]);
        for (int i = 0; i < 16; i++)
            C[i][j] =
                nan[i] || nan_B || !std::isfinite(C[i][j]) ? NAN : tensor_sum(A[i], B, C[i][j]);
    }
}

/* One warp's 16 rows of product q of the oldest group. */
static void do_product(Fiber **row, int warp, size_t q)
{
    static float C[16][256];
    const Product &p = row[0]->products.groups[0][q];
    for (int l = 0; l < 32 && p.from_registers; l++)
        take_fragment(A_of, row[l]->products.groups[0][q].A, 4, l, p.type);
    if (!p.from_registers)
        load_operand(row[0], p, A_of, 16, warp % 4 * 16, p.A_desc, p.trans_A);
    load_operand(row[0], p, B_of, p.n, 0, p.B_desc, p.trans_B);
    /* lane l has columns 2 (l % 4) and the next of rows l / 4 and 8 more, of each 8 columns */
    const auto each = [&](auto f) {
        for (int l = 0; l < 32; l++) {
            const Product &own = row[l]->products.groups[0][q];
            float *c = row[l]->accumulators[own.C].values.data();
            for (int e = 0; e < p.n / 2; e++)
                f(own, C[l / 4 + e / 2 % 2 * 8][e / 4 * 8 + 2 * (l % 4) + e % 2], c[e]);
        }
    };
    const bool bytes = p.type == is_e4m3;
    each([=](const Product &own, float &sum, float &c) { sum = bytes && own.add ? c : 0.0f; });
    if (bytes)
        multiply_bytes(C, p.n);
    else
        multiply(p.type, C, p.n);
    each([=](const Product &own, float &sum, float &c) { c = own.add && !bytes ? c + sum : sum; });
}

static void retire(Fiber *f, const Product &p)
{
    Accumulator &a = f->accumulators[p.C];
    if (--a.pending > 0)
        return;
    if (!std::all_of(p.C, p.C + a.values.size(), is_pending))
        finding(R_WGMMA_WAIT, {site(p.pc, "a wgmma was issued that nobody has waited for"),
                               by(f, f->pc,
                                  " has changed its accumulator before this "
                                  "wait")});
    memcpy(p.C, a.values.data(), a.values.size() * sizeof(float));
    a.pc = f->pc;
}

static void op_products(Block &b, int warp, u32)
{
    Fiber **row = warp_of(b, warp);
    const int keep = *(int *)row[0]->argument;
    while ((int)row[0]->products.groups.size() > keep) {
        for (size_t q = 0; q < row[0]->products.groups[0].size(); q++) {
            do_product(row, warp, q);
            for (int l = 0; l < 32; l++)
                retire(row[l], row[l]->products.groups[0][q]);
        }
        for (int l = 0; l < 32; l++) {
            row[l]->products.groups.erase(row[l]->products.groups.begin());
            for (auto &o : row[l]->operands)
                o.second.retired = true;
        }
    }
}

void wgmma_wait(int n)
{
    trace(WAIT, SIMT_PC, WGMMA, (u64)n);
    rendezvous(~0u, op_products, &n, "wgmma.wait_group", SIMT_PC);
}
} // namespace simt_ptx

namespace simt
{
/* Copies land for those who already wait, when nobody else can go on. */
bool land_for_waiters(Block &b)
{
    for (auto &m : b.mbarriers)
        if (!m.second.waiting.empty() && !m.second.copies.empty()) {
            me = m.second.waiting[0];
            simt_ptx::land(b, m.second);
            me = nullptr;
            return true;
        }
    return false;
}

template <class T>
static void all_done(const Fiber *f, const Async<T> &work, const char *not_waited,
                     const char *not_committed)
{
    for (const auto &group : work.groups)
        for (const T &t : group)
            finding(R_NOT_WAITED, f, t.pc, " ends, and %s", not_waited);
    for (const T &t : work.open)
        finding(R_NOT_WAITED, f, t.pc, " ends, and has not committed this %s", not_committed);
}

void end_of_thread(Fiber *f)
{
    if (!flags.check)
        return;
    all_done(f, f->copies, "has not waited for this copy", "copy");
    all_done(f, f->stores, "the engine may still read this tile", "store");
}
} // namespace simt
