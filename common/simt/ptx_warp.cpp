/* SPDX-License-Identifier: MIT
 *
 * ptx_warp.cpp: what a warp does together (mma.sync, ldmatrix), cp.async, and single instructions.
 *
 * Who holds which element of a fragment stands in PTX's chapter on mma: lane 4 g + t holds of
 * A (16 x 16) rows g and g + 8, columns 2 t, 2 t + 1 and the same + 8; of B (16 x 8) column g; of
 * C and D (16 x 8) columns 2 t, 2 t + 1 of rows g and g + 8.
 *
 * A cp.async moves nothing when it is issued (unless SIMT_EARLY asks): it does so at the last
 * moment that the rules allow, when its thread waits for it.
 */
#include "machine.h"

#include <cmath>
#include <cstring>

namespace simt
{
bool is_pending(float x)
{
    u32 u;
    memcpy(&u, &x, 4);
    return (u & 0x7fbfffffu) == pending_bits;
}

void check_pending(float x, u32 pc)
{
    if (!flags.check || !me || !is_pending(x))
        return;
    const auto &groups = me->products.groups;
    const auto &oldest = groups.empty() || groups[0].empty() ? me->products.open : groups[0];
    if (!oldest.empty())
        finding(R_WGMMA_WAIT, {site(oldest[0].pc, "a wgmma was issued that nobody has waited for"),
                               by(me, pc, " uses its accumulator")});
}

bool happens_now(void)
{
    return flags.early == 1 || (flags.early == 2 && (next_random(me->block->random) >> 4 & 1));
}
} // namespace simt

namespace simt_ptx
{
using namespace simt;

/* --- mma.sync ----------------------------------------------------------------------------------*/

struct Mma {
    Type type;
    float *D;
    const u32 *A, *B;
    const float *C;
};

u32 A_of[16][32], B_of[256][32];

int size_of(Type type)
{
    return type == is_e4m3 ? 1 : type == is_tf32 ? 4 : 2;
}

/* A register has 4 bytes, neighbours in k. Registers of A go 8 rows down, then 16 bytes on; of B
 * 16 bytes on. */
void take_fragment(u32 (*to)[32], const u32 *r, int registers, int lane, Type type)
{
    const int size = size_of(type);
    for (int i = 0; i < registers; i++) {
        const int down = registers == 4 ? i % 2 : 0, on = registers == 4 ? i / 2 : i;
        for (int e = 0; e < 4 / size; e++)
            to[lane / 4 + 8 * down][(lane % 4 * 4 + 16 * on) / size + e] =
                size == 4 ? r[i] : r[i] >> 8 * size * e & ((1u << 8 * size) - 1);
    }
}

static float tf32(u32 bits)
{
    float f;
    bits &= ~0x1fffu;
    memcpy(&f, &bits, 4);
    return f;
}

void multiply(Type type, float (*C)[256], int n)
{
    static float A[16][16], B[16][256];
    const auto value = [type](u32 bits) {
        return type == is_tf32   ? tf32(bits)
               : type == is_bf16 ? simt_from_bfloat16((unsigned short)bits)
                                 : simt_from_half((unsigned short)bits);
    };
    const int depth = 32 / size_of(type);
    for (int k = 0; k < depth; k++) {
        for (int i = 0; i < 16; i++)
            A[i][k] = value(A_of[i][k]);
        for (int j = 0; j < n; j++)
            B[k][j] = value(B_of[j][k]);
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < depth; k++)
            for (int j = 0; j < n; j++)
                C[i][j] += A[i][k] * B[k][j];
}

static void op_mma(Block &b, int warp, u32)
{
    static float C[16][256];
    Fiber **row = warp_of(b, warp);
    const Type type = ((Mma *)row[0]->argument)->type;
    const long flops = 2L * 16 * 8 * 32 / size_of(type);
    for (int l = 0; l < 32; l++) {
        const Mma &m = *(Mma *)row[l]->argument;
        take_fragment(A_of, m.A, 4, l, type);
        take_fragment(B_of, m.B, 2, l, type);
        for (int i = 0; i < 4; i++)
            C[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2] = m.C[i];
    }
    multiply(type, C, 8);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++)
            ((Mma *)row[l]->argument)->D[i] = C[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2];
    count_kind(K_MMA, 1, flops);
    trace(MMA, 0, flops);
}

void mma_sync(Type type, float *D, const u32 *A, const u32 *B, const float *C)
{
    Mma m = {type, D, A, B, C};
    for (int i = 0; i < 4; i++)
        check_pending(C[i], SIMT_PC);
    rendezvous(~0u, op_mma, &m, "mma.sync", SIMT_PC);
}

/* --- ldmatrix, stmatrix ------------------------------------------------------------------------*/

struct Matrices {
    u32 address, *r;
    int count;
    bool trans, store;
};

static void op_matrices(Block &b, int warp, u32)
{
    Fiber **row = warp_of(b, warp);
    const Matrices &m0 = *(Matrices *)row[0]->argument;
    const u32 pc = row[0]->pc;
    const int n = 8 * m0.count;
    const char *what = m0.store ? " (stmatrix)" : " (ldmatrix)";
    static char junk[16];
    char *at[32];
    Log log[32];
    for (int l = 0; l < n; l++) { /* lane l names row l: 16 bytes */
        const Matrices &m = *(Matrices *)row[l]->argument;
        const bool ok = check_shared(row[l], m.address, 16, m.store, pc, PLAIN, what);
        at[l] = ok ? shared_at(m.address) : junk;
        log[l] = {m.address, pc, 16, m0.store, true, (uint8_t)l};
    }
    if (flags.count)
        count_access(pc, log, n);
    trace_request(pc, log, n);
    count_kind(m0.store ? K_STMATRIX : K_LDMATRIX);
    for (int l = 0; l < 32; l++) {
        const Matrices &m = *(Matrices *)row[l]->argument;
        const int g = l / 4, t = l % 4;
        for (int i = 0; i < m0.count; i++)
            for (int x = 0; x < 2; x++) {
                uint16_t *p = (uint16_t *)(m0.trans ? at[8 * i + 2 * t + x] + 2 * g
                                                    : at[8 * i + g] + 4 * t + 2 * x);
                if (m0.store)
                    *p = (uint16_t)(m.r[i] >> 16 * x);
                else
                    m.r[i] = (x ? m.r[i] : 0) | (u32)*p << 16 * x;
            }
    }
}

void matrices(u32 address, u32 *r, int count, bool trans, bool store)
{
    Matrices m = {address, r, count, trans, store};
    rendezvous(~0u, op_matrices, &m, store ? "stmatrix" : "ldmatrix", SIMT_PC);
}

/* --- cp.async ----------------------------------------------------------------------------------*/

static void move(const Copy &c)
{
    char *to = shared_at(c.to);
    if (c.valid)
        memcpy(to, c.from, (size_t)c.valid);
    memset(to + c.valid, 0, (size_t)(c.bytes - c.valid));
}

void cp_async_issue(u32 to, const void *from, int bytes, int valid)
{
    Fiber *f = me;
    const u32 pc = SIMT_PC;
    settle_writes();
    if (!check_shared(f, to, bytes, true, pc, PLAIN, " (cp.async)") ||
        (valid && !check_global(f, (uintptr_t)from, valid, false, pc, PLAIN, " (cp.async)")))
        return;
    set_flight(to, bytes, pc);
    if (valid)
        log_access(f, (uintptr_t)from, bytes, false, false, pc);
    count_kind(K_CP_ASYNC, 0);
    trace(COPY, pc, 32L * valid);
    Copy c = {to, pc, (const char *)from, bytes, valid};
    if (happens_now()) {
        move(c);
        c.from = nullptr;
    }
    f->copies.open.push_back(c);
}

void cp_commit(void)
{
    trace(COMMIT, SIMT_PC, COPY);
    me->copies.commit();
}

void cp_wait(int n)
{
    trace(WAIT, SIMT_PC, COPY, (u64)n);
    settle_writes();
    me->copies.wait(n, [](const Copy &c) {
        if (c.from)
            move(c);
        set_flight(c.to, c.bytes, 0);
        check_shared(me, c.to, c.bytes, true, c.pc, PLAIN, " (cp.async)");
    });
    settle_writes();
}

/* --- single instructions -----------------------------------------------------------------------*/

/* NULL: it is out of bounds. */
static char *shared_access(u32 address, int bytes, bool write, u32 pc)
{
    settle_writes();
    if (!check_shared(me, address, bytes, write, pc, PLAIN))
        return nullptr;
    log_access(me, address, bytes, write, true, pc);
    return shared_at(address);
}

void store_shared(u32 to, const void *v, int bytes)
{
    char *p = shared_access(to, bytes, true, SIMT_PC);
    for (int i = 0; p && i < bytes; i += 4)
        check_pending(((const float *)v)[i / 4], SIMT_PC);
    if (p)
        memcpy(p, v, (size_t)bytes);
}

u32 load_shared(u32 from)
{
    u32 v = 0;
    if (const char *p = shared_access(from, 4, false, SIMT_PC))
        memcpy(&v, p, 4);
    return v;
}

void store_global(void *to, const void *v, int bytes)
{
    access((uintptr_t)to, bytes, true, SIMT_PC, PLAIN);
    memcpy(to, v, (size_t)bytes);
}

float exp2_approx(float x)
{
    check_pending(x, SIMT_PC);
    const float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.0f : y;
}

u32 pack(float low, float high, Type type)
{
    check_pending(low, SIMT_PC);
    check_pending(high, SIMT_PC);
    if (type == is_bf16)
        return simt_to_bfloat16(low) | (u32)simt_to_bfloat16(high) << 16;
    return simt_to_half(low) | (u32)simt_to_half(high) << 16;
}
/* To the nearest, ties to even; above 448 to 448. */
u32 pack_e4m3(float x)
{
    check_pending(x, SIMT_PC);
    const float size = fabsf(x);
    const u32 sign = std::signbit(x) ? 0x80 : 0;
    if (!(size < 448.0f))
        return std::isnan(x) ? 0x7f : sign | 0x7e;
    const int e = size < 0x1p-6f ? -6 : ilogbf(size); /* 3 bits of fraction, and none below 2^-9 */
    return sign | (u32)((e + 6) * 8 + (int)nearbyintf(ldexpf(size, 3 - e)));
}
} // namespace simt_ptx

namespace simt
{
void count_exp(void)
{
    if (!me)
        return;
    count_kind(K_EXP, 0);
    trace(EXP, SIMT_PC);
}
} // namespace simt
