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
    Fiber *f = me;
    if (!flags.check)
        return;
    settle_writes();
    Clock c = this_moment(f);
    for (size_t t = 0; t < c.at.size(); t++)
        c.async[t] = std::max(c.async[t], c.at[t]);
    f->base = std::make_shared<const Clock>(std::move(c));
}

/* --- mbarriers ---------------------------------------------------------------------------------*/

static const char *const no_init = " uses an mbarrier that mbarrier.init has not made";

static Mbarrier *find(Block &b, u32 at, u32 pc)
{
    const auto m = b.mbarriers.find(at % WINDOW);
    if (m != b.mbarriers.end())
        return &m->second;
    report_finding(R_MBARRIER, {pc, who(me) + no_init});
    return nullptr;
}

/* The phase ends when all have arrived and all bytes are here. */
static void look(Mbarrier &m)
{
    if (m.pending > 0 || m.bytes != 0)
        return;
    m.phase++;
    m.pending = m.expected;
    if (flags.check)
        m.over = std::make_shared<const Clock>(m.gathering);
    for (size_t i = 0; i < m.waiting.size();) {
        if ((m.phase & 1) == (m.parity[i] & 1)) {
            i++;
            continue;
        }
        if (flags.check)
            learn(m.waiting[i], m.over);
        wake(m.waiting[i]);
        m.waiting.erase(m.waiting.begin() + (long)i);
        m.parity.erase(m.parity.begin() + (long)i);
    }
    progress++;
}

void mbarrier_init(u32 bar, int count)
{
    Block &b = *me->block;
    Mbarrier m = {};
    m.expected = m.pending = count;
    m.pc = SIMT_PC;
    m.gathering = new_clock();
    check_shared(me, bar, 8, true, m.pc, PLAIN, " (mbarrier.init)");
    settle_writes();
    b.mbarriers[bar % WINDOW] = m;
}

void mbarrier_invalidate(u32 bar)
{
    me->block->mbarriers.erase(bar % WINDOW);
}

/* An access to the mbarrier itself: it must have been made before, as all may see. */
static void use(u32 bar, u32 pc)
{
    settle_writes();
    check_shared(me, bar, 8, false, pc, ATOMIC, " (an mbarrier)");
}

void mbarrier_arrive(u32 bar, int bytes)
{
    const u32 pc = SIMT_PC;
    Mbarrier *m = find(*me->block, bar, pc);
    if (!m)
        return;
    use(bar, pc);
    trace(ARRIVE, pc, 0, phase_of(bar, m->phase));
    m->bytes += bytes;
    m->pending--;
    if (flags.check)
        join_thread(m->gathering, me);
    if (m->pending < 0)
        report_finding(R_MBARRIER, {m->pc, "the mbarrier counts " + std::to_string(m->expected)},
                       {pc, who(me) + " is one arrival too many"});
    count_kind(K_MBARRIER, 0);
    look(*m);
}

static void land(Block &b, Mbarrier &m)
{
    std::vector<EngineCopy> now;
    now.swap(m.copies);
    for (const EngineCopy &c : now) {
        for (const Piece &p : c.pieces) {
            memcpy(shared_at(p.to), p.bytes.data(), p.bytes.size());
            write_by_engine(b, p.to, (int)p.bytes.size(), c.pc);
        }
        if (flags.check)
            m.gathering.at[slot_of(ENGINE)] =
                std::max(m.gathering.at[slot_of(ENGINE)], b.engine_clock);
        b.engine_clock++;
        m.bytes -= c.bytes;
    }
    if (!now.empty())
        look(m);
}

bool mbarrier_poll(u32 bar, u32 parity)
{
    const u32 pc = SIMT_PC;
    Block &b = *me->block;
    Mbarrier *m = find(b, bar, pc);
    if (!m)
        return true;
    use(bar, pc);
    count_kind(K_MBARRIER, 0);
    trace(AWAIT, pc, 0, phase_of(bar, m->phase - ((m->phase ^ parity) & 1)));
    if ((m->phase & 1) == (parity & 1))
        land(b, *m);
    if ((m->phase & 1) != (parity & 1)) {
        if (flags.check && m->over)
            learn(me, m->over);
        return true;
    }
    m->waiting.push_back(me);
    m->parity.push_back(parity);
    wait_here(parity & 1 ? "the end of an odd phase of an mbarrier"
                         : "the end of an even phase of an mbarrier",
              pc);
    return true;
}

void mbarrier_init_fence(void)
{
}

/* --- the copy engine ---------------------------------------------------------------------------*/

/* The 128-byte swizzle: bits 4 to 6 of an address are XORed with bits 7 to 9. */
static u32 swizzle(u32 a, u32 mode)
{
    if (mode == CU_TENSOR_MAP_SWIZZLE_128B)
        return a ^ (a >> 7 & 7) << 4;
    if (mode == CU_TENSOR_MAP_SWIZZLE_64B)
        return a ^ (a >> 7 & 3) << 4;
    return mode == CU_TENSOR_MAP_SWIZZLE_32B ? a ^ (a >> 7 & 1) << 4 : a;
}

/* For each 16 bytes of the box: their place in it, and in memory (NULL: outside of the tensor). */
template <class F> static void each_chunk(const SimtTensorMap &m, const int *at, F f)
{
    u32 place = 0;
    for (u32 i4 = 0; i4 < m.box[4]; i4++)
        for (u32 i3 = 0; i3 < m.box[3]; i3++)
            for (u32 i2 = 0; i2 < m.box[2]; i2++)
                for (u32 i1 = 0; i1 < m.box[1]; i1++) {
                    const long x[5] = {at[0], at[1] + (long)i1, at[2] + (long)i2, at[3] + (long)i3,
                                       at[4] + (long)i4};
                    char *p = m.base + x[0] * (long)m.element;
                    bool inside = true;
                    for (int i = 1; i < 5; i++) {
                        inside = inside && x[i] >= 0 && (u64)x[i] < m.sizes[i];
                        p += x[i] * (long)m.bytes[i - 1];
                    }
                    for (u32 k = 0; k < m.box[0] * m.element; k += 16, place += 16)
                        f(place,
                          inside && (u64)x[0] + k / m.element < m.sizes[0] ? p + k : nullptr);
                }
}

static bool is_map(const void *map, int rank, u32 pc)
{
    const SimtTensorMap &m = ((const CUtensorMap *)map)->m;
    if (m.base && m.rank == (u32)rank)
        return true;
    report_finding(R_BOUNDS_MAP,
                   {pc, who(me) + " names a tile by " + std::to_string(rank) +
                            " coordinates, the tensor map has " + std::to_string(m.rank)});
    return false;
}

static void engine_write(EngineCopy &c, u32 to, std::string piece, u32 pc)
{
    if (!check_shared(me, to, (int)piece.size(), true, pc, ASYNC, " (copy engine)"))
        return;
    set_flight(to, (int)piece.size(), pc);
    c.pieces.push_back({to, std::move(piece)});
}

static void issue(Mbarrier &m, EngineCopy &&c)
{
    m.copies.push_back(std::move(c));
    if (happens_now())
        land(*me->block, m);
}

void tma_load_issue(u32 to, const void *map, u32 bar, const int *at, int rank)
{
    const u32 pc = SIMT_PC;
    Mbarrier *m = find(*me->block, bar, pc);
    if (!m || !is_map(map, rank, pc))
        return;
    use(bar, pc);
    const SimtTensorMap &t = ((const CUtensorMap *)map)->m;
    const u32 align = t.swizzle ? 1024 : 128;
    if (to % align)
        report_finding(R_MISALIGNED, {pc, who(me) +
                                              " has a tile copied to an address that is no "
                                              "multiple of " +
                                              std::to_string(align)});
    EngineCopy c = {{}, 0, pc};
    long got = 0;
    each_chunk(t, at, [&](u32 place, char *p) {
        std::string piece(16, 0);
        c.bytes += 16;
        if (p && check_global(me, (uintptr_t)p, 16, false, pc, ASYNC, " (copy engine)")) {
            memcpy(&piece[0], p, 16);
            got += 16;
        }
        engine_write(c, swizzle(to + place, t.swizzle), piece, pc);
    });
    count_engine(pc, false, got, got / 32);
    trace(ENGINE_COPY, pc, c.bytes, phase_of(bar, m->phase));
    issue(*m, std::move(c));
}

void bulk_load_issue(u32 to, const void *from, u32 bytes, u32 bar)
{
    const u32 pc = SIMT_PC;
    Mbarrier *m = find(*me->block, bar, pc);
    if (!m)
        return;
    use(bar, pc);
    if ((to | bytes | (u32)(uintptr_t)from) % 16)
        report_finding(R_MISALIGNED, {pc, who(me) + " has bytes copied whose addresses or number "
                                                    "are no multiple of 16"});
    EngineCopy c = {{}, (int)bytes, pc};
    if (!check_global(me, (uintptr_t)from, (int)bytes, false, pc, ASYNC, " (copy engine)"))
        return;
    engine_write(c, to, std::string((const char *)from, bytes), pc);
    count_engine(pc, false, bytes, bytes / 32);
    trace(ENGINE_COPY, pc, bytes, phase_of(bar, m->phase));
    issue(*m, std::move(c));
}

static void store(const Store &s)
{
    each_chunk(s.map, s.at, [&](u32 place, char *p) {
        const u32 a = swizzle(s.from + place, s.map.swizzle);
        if (check_shared(me, a, 16, false, s.pc, ASYNC, " (copy engine)", s.clock.get()) && p &&
            check_global(me, (uintptr_t)p, 16, true, s.pc, ASYNC, " (copy engine)"))
            memcpy(p, shared_at(a), 16);
    });
}

void tma_store_issue(u32 from, const void *map, const int *at, int rank)
{
    const u32 pc = SIMT_PC;
    if (!is_map(map, rank, pc))
        return;
    Store s = {from, pc, ((const CUtensorMap *)map)->m, {}, me->base};
    memcpy(s.at, at, sizeof s.at);
    if (flags.check) { /* its own writes before this are in the clock of this moment */
        settle_writes();
        s.clock = std::make_shared<const Clock>(this_moment(me));
    }
    long put = 0;
    each_chunk(s.map, at, [&](u32, char *p) { put += p ? 16 : 0; });
    count_engine(pc, true, put, put / 32);
    trace(ENGINE_STORE, pc, put);
    if (happens_now())
        store(s);
    else
        me->stores.push_back(s);
}

void bulk_commit(void)
{
    trace(COMMIT, SIMT_PC, ENGINE_STORE);
    me->store_groups.push_back(std::move(me->stores));
    me->stores.clear();
}

void bulk_wait(int n)
{
    trace(WAIT, SIMT_PC, ENGINE_STORE, (u64)n);
    while ((int)me->store_groups.size() > n) {
        const std::vector<Store> group = std::move(me->store_groups[0]);
        me->store_groups.erase(me->store_groups.begin());
        for (const Store &s : group)
            store(s);
    }
}

/* --- wgmma -------------------------------------------------------------------------------------*/

static bool same_bits(const float *a, const std::vector<float> &b)
{
    return memcmp(a, b.data(), b.size() * sizeof(float)) == 0;
}

static void fill_pending(float *C, size_t n)
{
    const u32 u = 0x7fb5a5a5u;
    for (size_t i = 0; i < n; i++)
        memcpy(&C[i], &u, 4); /* not as a float: that might make it quiet */
}

static void need_fence(const Product &p, const Accumulator &a, bool is_known, bool changed)
{
    if (!me->wgmma_fenced)
        report_finding(R_WGMMA_FENCE,
                       {p.pc, who(me) + " issues a wgmma, and has never come to wgmma.fence"});
    else if (is_known && changed)
        report_finding(R_WGMMA_FENCE,
                       {a.pc, who(me) + " has waited for a wgmma with this accumulator"},
                       {p.pc, "issues the next, after it has changed the registers"});
}

static void op_products(Block &b, int warp, u32);

void wgmma_issue(float *const *C, int n, Type type, const u32 *A, u64 A_desc, u64 B_desc, bool add,
                 bool trans_A, bool trans_B)
{
    Fiber *f = me;
    Product p = {C[0],    n,  type,    A != nullptr, add,    trans_A,
                 trans_B, {}, SIMT_PC, A_desc,       B_desc, f->base};
    for (int i = 0; i < n / 2; i++)
        if (C[i] != C[0] + i) {
            report_finding(R_LIMIT, {p.pc, "the accumulators of this wgmma are no array: simt "
                                           "cannot follow them"});
            stop(1);
        }
    if (A)
        memcpy(p.A, A, sizeof p.A);
    const auto before = f->operands.find(p.pc);
    if (A && flags.check && before != f->operands.end() && before->second.retired &&
        memcmp(before->second.A, A, sizeof p.A) != 0)
        report_finding(R_WGMMA_FENCE, {p.pc, who(f) + " has changed registers of A since the last "
                                                      "wgmma here"});
    if (A) {
        Operand &o = f->operands[p.pc];
        memcpy(o.A, A, sizeof o.A);
        o.retired = false;
    }
    const auto known = f->accumulators.find(C[0]);
    Accumulator &a = f->accumulators[C[0]];
    const size_t registers = (size_t)n / 2;
    if (a.pending == 0) {
        const bool is_known = known != f->accumulators.end() && a.values.size() == registers;
        if (flags.check)
            need_fence(p, a, is_known, is_known && !same_bits(C[0], a.values));
        a.values.assign(C[0], C[0] + registers);
        memcpy(a.values.data(), C[0], registers * sizeof(float));
        fill_pending(C[0], registers);
    }
    a.pending++;
    a.pc = p.pc;
    f->products.push_back(p);
    if (f->lane % 32 == 0)
        count_kind(K_WGMMA, 1, 2L * 16 * n * (type == is_e4m3 ? 32 : 16));
    trace(WGMMA, p.pc, 2L * 16 * n * 16); /* of bytes twice as many in the same time */
}

void wgmma_fence(void)
{
    me->wgmma_fenced = true;
    me->operands.clear();
    for (auto &a :
         me->accumulators) /* what the registers hold now is what the next product may use */
        if (a.second.pending == 0)
            memcpy(a.second.values.data(), a.first, a.second.values.size() * sizeof(float));
}

void wgmma_commit(void)
{
    trace(COMMIT, SIMT_PC, WGMMA);
    me->product_groups.push_back(std::move(me->products));
    me->products.clear();
    /* by line, since all lanes must do the same */
    const u32 by_line = (SIMT_PC ^ (u32)flags.seed) * 2654435761u;
    if (flags.early == 1 || (flags.early == 2 && by_line >> 31)) {
        int keep = 0;
        rendezvous(~0u, op_products, &keep, "wgmma.commit_group", SIMT_PC);
    }
}

/* One operand as to[k][rows]. In memory 8 rows of 128 bytes, swizzled, are 1024 bytes. */
static void load_operand(Fiber *f, const Product &p, float *to, int rows, int row0, u64 desc,
                         bool trans)
{
    const u32 start = (u32)(desc & 0x3fff) << 4, leading = (u32)(desc >> 16 & 0x3fff) << 4,
              stride = (u32)(desc >> 32 & 0x3fff) << 4;
    if (desc >> 62 != 1)
        report_finding(R_LIMIT, {p.pc, "simt knows operands of wgmma with the 128-byte swizzle "
                                       "only"});
    for (int i = 0; i < (trans ? 16 : rows); i++)
        for (int c = 0; c < (trans ? rows : 16); c += 8) {
            const int r = trans ? i : row0 + i, x = trans ? row0 + c : c;
            const u32 line = start + (u32)(r / 8) * stride + (u32)(r % 8) * 128;
            const u32 a = swizzle(trans ? line + (u32)(x / 64) * leading + (u32)(x % 64) * 2
                                        : line + (u32)x * 2,
                                  CU_TENSOR_MAP_SWIZZLE_128B);
            if (!check_shared(f, a, 16, false, p.pc, ASYNC, " (wgmma)", p.clock.get()))
                continue;
            const uint16_t *v = (const uint16_t *)shared_at(a);
            for (int e = 0; e < 8; e++)
                (trans ? to[i * rows + c + e] : to[(c + e) * rows + i]) = value_of(v[e], 0, p.type);
        }
}

/* One warp's 16 rows of product q of the oldest group. */
static void multiply(Fiber **row, int warp, size_t q)
{
    static float A[16 * 16], B[16 * 256], C[16][256];
    Fiber *f = row[0];
    const Product &p = f->product_groups[0][q];
    if (p.from_registers) {
        for (int l = 0; l < 32; l++)
            for (int x = 0; x < 2; x++)
                for (int i = 0; i < 4; i++)
                    A[(2 * (l % 4) + x + i / 2 * 8) * 16 + l / 4 + i % 2 * 8] =
                        value_of(row[l]->product_groups[0][q].A[i], x, p.type);
    } else {
        load_operand(f, p, A, 16, warp % 4 * 16, p.A_desc, p.trans_A);
    }
    load_operand(f, p, B, p.n, 0, p.B_desc, p.trans_B);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < p.n; j++)
            C[i][j] = 0;
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < p.n; j++)
                C[i][j] += A[k * 16 + i] * B[k * p.n + j];
    for (int l = 0; l < 32; l++) {
        const Product &own = row[l]->product_groups[0][q];
        float *c = row[l]->accumulators[own.C].values.data();
        for (int j = 0; j < p.n / 8; j++)
            for (int e = 0; e < 4; e++) {
                const float v = C[l / 4 + e / 2 * 8][8 * j + 2 * (l % 4) + e % 2];
                c[4 * j + e] = own.add ? c[4 * j + e] + v : v;
            }
    }
}

/* The same of bytes, 32 to a step: tensor_sum.h. A byte that is NaN makes NaN. */
static void load_bytes(Fiber *f, const Product &p, uint8_t (*to)[32], int rows, int row0, u64 desc)
{
    const u32 start = (u32)(desc & 0x3fff) << 4, stride = (u32)(desc >> 32 & 0x3fff) << 4;
    if (desc >> 62 != 1)
        report_finding(R_LIMIT, {p.pc, "simt knows operands of wgmma with the 128-byte swizzle "
                                       "only"});
    for (int i = 0; i < rows; i++)
        for (u32 c = 0; c < 32; c += 16) {
            const u32 r = (u32)(row0 + i);
            const u32 a =
                swizzle(start + r / 8 * stride + r % 8 * 128 + c, CU_TENSOR_MAP_SWIZZLE_128B);
            if (!flags.check ||
                check_shared(f, a, 16, false, p.pc, ASYNC, " (wgmma)", p.clock.get()))
                memcpy(&to[i][c], shared_at(a), 16);
        }
}

static bool to_numbers(TensorSumNumber *to, const uint8_t *from)
{
    bool nan = false;
    for (int k = 0; k < 32; k++) {
        to[k] = tensor_sum_number(from[k]);
        nan = nan || (from[k] & 0x7f) == 0x7f;
    }
    return nan;
}

static void multiply_bytes(Fiber **row, int warp, size_t q)
{
    static uint8_t A[16][32], B[256][32];
    static TensorSumNumber a[16][32], b[256][32];
    bool nan_a[16], nan_b[256];
    const Product &p = row[0]->product_groups[0][q];
    if (p.from_registers) {
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++)
                memcpy(&A[l / 4 + i % 2 * 8][l % 4 * 4 + i / 2 * 16],
                       &row[l]->product_groups[0][q].A[i], 4);
    } else {
        load_bytes(row[0], p, A, 16, warp % 4 * 16, p.A_desc);
    }
    load_bytes(row[0], p, B, p.n, 0, p.B_desc);
    for (int i = 0; i < 16; i++)
        nan_a[i] = to_numbers(a[i], A[i]);
    for (int j = 0; j < p.n; j++)
        nan_b[j] = to_numbers(b[j], B[j]);
    for (int l = 0; l < 32; l++) {
        const Product &own = row[l]->product_groups[0][q];
        float *c = row[l]->accumulators[own.C].values.data();
        for (int at = 0; at < p.n / 2; at++) {
            const int i = l / 4 + at / 2 % 2 * 8, j = at / 4 * 8 + 2 * (l % 4) + at % 2;
            const float before = own.add ? c[at] : 0.0f;
            c[at] = nan_a[i] || nan_b[j] || !std::isfinite(before) ? NAN
                                                                   : tensor_sum(a[i], b[j], before);
        }
    }
}

static void retire(Fiber *f, const Product &p)
{
    Accumulator &a = f->accumulators[p.C];
    if (--a.pending > 0)
        return;
    bool untouched = true;
    for (size_t i = 0; i < a.values.size(); i++)
        untouched = untouched && is_pending(p.C[i]);
    if (!untouched)
        report_finding(R_WGMMA_WAIT, {p.pc, "a wgmma was issued that nobody has waited for"},
                       {f->pc, who(f) + " has changed its accumulator before this wait"});
    memcpy(p.C, a.values.data(), a.values.size() * sizeof(float));
    a.pc = f->pc;
}

static void op_products(Block &b, int warp, u32)
{
    Fiber **row = warp_of(b, warp);
    const int keep = *(int *)row[0]->argument;
    while ((int)row[0]->product_groups.size() > keep) {
        for (size_t q = 0; q < row[0]->product_groups[0].size(); q++) {
            const bool bytes = row[0]->product_groups[0][q].type == simt_ptx::is_e4m3;
            (bytes ? multiply_bytes : multiply)(row, warp, q);
            for (int l = 0; l < 32; l++)
                retire(row[l], row[l]->product_groups[0][q]);
        }
        for (int l = 0; l < 32; l++) {
            row[l]->product_groups.erase(row[l]->product_groups.begin());
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

/* By kernel and place in shared memory: the line that made the mbarrier, and its most phases in a
 * block. Place 0: the most groups of cp.async that a thread waited for. */
static std::map<std::pair<std::string, u32>, std::pair<u32, u32>> stages;

static void note_stage(u32 place, u32 pc, u32 uses)
{
    auto &s = stages[{launch_now.name, place}];
    s = {pc, std::max(s.second, uses)};
}

void note_stages(const Block &b)
{
    for (const auto &m : b.mbarriers)
        note_stage(m.first, m.second.pc, m.second.phase);
    for (int i = 0; i < launch_now.threads; i++)
        if (b.fibers[i]->groups_done)
            note_stage(0, 0, b.fibers[i]->groups_done);
}

/* A mistake in a ring of stages shows when a stage is used again. */
void print_stages(FILE *to)
{
    for (const auto &s : stages)
        if (s.first.second == 0)
            fprintf(to, "simt: a thread of %s waited for up to %u groups of copies\n",
                    s.first.first.c_str(), s.second.second);
    std::map<std::pair<std::string, std::string>, std::vector<u32>> uses;
    for (const auto &s : stages)
        if (s.first.second)
            uses[{s.first.first, place(s.second.first)}].push_back(s.second.second);
    for (const auto &u : uses) {
        const auto less =
            std::count_if(u.second.begin(), u.second.end(), [](u32 phases) { return phases < 3; });
        fprintf(to,
                "simt: %zu mbarriers of %s, made at %s: %zu used three times or more, %ld less\n",
                u.second.size(), u.first.first.c_str(), u.first.second.c_str(),
                u.second.size() - (size_t)less, (long)less);
    }
}

void end_of_thread(Fiber *f)
{
    if (!flags.check)
        return;
    for (const auto &group : f->groups)
        for (const Copy &c : group)
            report_finding(R_NOT_WAITED,
                           {c.pc, who(f) + " ends, and has not waited for this copy"});
    for (const Copy &c : f->open)
        report_finding(R_NOT_WAITED, {c.pc, who(f) + " ends, and has not committed this copy"});
    for (const auto &group : f->store_groups)
        for (const Store &s : group)
            report_finding(R_NOT_WAITED,
                           {s.pc, who(f) + " ends, and the engine may still read this tile"});
    for (const Store &s : f->stores)
        report_finding(R_NOT_WAITED, {s.pc, who(f) + " ends, and has not committed this store"});
}
} // namespace simt
