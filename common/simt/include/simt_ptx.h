/* SPDX-License-Identifier: MIT
 *
 * simt_ptx.h: what translate.py makes of asm: a call for each PTX instruction. Values go through
 * here by reference, what they mean stands in common/simt/ptx*.cpp.
 *
 * Interface: namespace simt_ptx.
 */
#pragma once

namespace simt_ptx
{
typedef uint32_t u32;
typedef uint64_t u64;
enum Type { is_bf16, is_f16, is_tf32, is_e4m3 };
enum Order { is_plain, is_trans };

void mma_sync(Type type, float *D, const u32 *A, const u32 *B, const float *C);
void matrices(u32 address, u32 *r, int count, bool trans, bool store);
void wgmma_issue(float *const *C, int n, Type type, const u32 *A, u64 A_desc, u64 B_desc, bool add,
                 bool trans_A, bool trans_B);
void wgmma_fence(void);
void wgmma_commit(void);
void wgmma_wait(int n);

void cp_async_issue(u32 to, const void *from, int bytes, int valid);
void cp_commit(void);
void cp_wait(int n);
void tma_load_issue(u32 to, const void *map, u32 bar, const int *at, int rank, u32 blocks);
void tma_store_issue(u32 from, const void *map, const int *at, int rank);
void bulk_issue(u32 to, uintptr_t from, bool is_global, u32 bytes, u32 bar);
void store_async(u32 to, const float *v, int count, u32 bar);
u64 make_policy(bool evict_first);
void check_policy(u64 policy);
void bulk_commit(void);
void bulk_wait(int n);
void proxy_fence(void);

void named_barrier(int id, int threads, bool wait);
void mbarrier_init(u32 bar, int count);
void mbarrier_init_fence(void);
void mbarrier_invalidate(u32 bar);
void mbarrier_arrive(u32 bar, int bytes);
void mbarrier_wait(u32 bar, u32 parity);
void cluster_arrive(bool relaxed);
void cluster_wait(void);
u32 map_to_block(u32 from, int rank);

void store_shared(u32 to, const void *v, int bytes);
u32 load_shared(u32 from);
void store_global(void *to, const void *v, int bytes);
void red_add(float *to, const float *v, int n);
int load_acquire(const int *p);
void store_flag(int *p, int v, bool release);
float exp2_approx(float x);
u32 pack(float low, float high, Type type);
u32 pack_e4m3(float x);

#define SIMT_PTX static inline SIMT_QUIET void
template <Type type>
SIMT_PTX mma(float &d0, float &d1, float &d2, float &d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
             u32 b1, float c0, float c1, float c2, float c3)
{
    const u32 A[4] = {a0, a1, a2, a3}, B[2] = {b0, b1};
    const float C[4] = {c0, c1, c2, c3};
    float D[4];
    mma_sync(type, D, A, B, C);
    d0 = D[0], d1 = D[1], d2 = D[2], d3 = D[3];
}
template <int n, Order order, class... R> SIMT_PTX ldmatrix(u32 at, R &...to)
{
    static_assert(sizeof...(R) == n, "a register for each matrix");
    u32 r[4], i = 0;
    matrices(at, r, n, order == is_trans, false);
    ((to = r[i++]), ...);
}
template <int n, Order order, class... R> SIMT_PTX stmatrix(u32 at, R... from)
{
    u32 r[n] = {from...};
    matrices(at, r, n, order == is_trans, true);
}
template <int n, Type type, int trans_A, int trans_B, class... F>
SIMT_PTX wgmma(u64 A_desc, u64 B_desc, int add, F &...c)
{
    static_assert(sizeof...(F) == n / 2, "an accumulator for each two columns");
    float *const C[] = {&c...};
    wgmma_issue(C, n, type, nullptr, A_desc, B_desc, add, trans_A, trans_B);
}
template <int n, Type type, int trans_B, class... F>
SIMT_PTX wgmma_registers(u32 a0, u32 a1, u32 a2, u32 a3, u64 B_desc, int add, F &...c)
{
    static_assert(sizeof...(F) == n / 2, "an accumulator for each two columns");
    const u32 A[4] = {a0, a1, a2, a3};
    float *const C[] = {&c...};
    wgmma_issue(C, n, type, A, 0, B_desc, add, false, trans_B);
}

template <class P> SIMT_PTX cp_async(u32 to, P from, int bytes, int valid)
{
    cp_async_issue(to, (const void *)from, bytes, valid);
}
template <int rank, class P, class... I>
SIMT_PTX tma_load(u32 to, P map, u32 bar, u32 blocks, I... index)
{
    static_assert(sizeof...(I) == rank, "a coordinate for each dimension");
    const int at[5] = {index...};
    tma_load_issue(to, (const void *)map, bar, at, rank, blocks);
}
template <int rank, class P, class... I>
SIMT_PTX tma_load_hinted(u32 to, P map, u32 bar, u64 policy, I... index)
{
    check_policy(policy);
    tma_load<rank>(to, map, bar, 0, index...);
}
template <class T> SIMT_PTX policy_evict_first(T &policy)
{
    policy = make_policy(true);
}
template <class T> SIMT_PTX policy_evict_normal(T &policy)
{
    policy = make_policy(false);
}
template <int rank, class P, class... I> SIMT_PTX tma_store(u32 from, P map, I... index)
{
    static_assert(sizeof...(I) == rank, "a coordinate for each dimension");
    const int at[5] = {index...};
    tma_store_issue(from, (const void *)map, at, rank);
}
template <class P> SIMT_PTX bulk_load(u32 to, P from, u32 bytes, u32 bar)
{
    bulk_issue(to, (uintptr_t)from, true, bytes, bar);
}
SIMT_PTX bulk_copy(u32 to, u32 from, u32 bytes, u32 bar)
{
    bulk_issue(to, from, false, bytes, bar);
}
SIMT_PTX cp_wait_all(void)
{
    cp_commit();
    cp_wait(0);
}
SIMT_PTX mbarrier_try(u32 &over, u32 bar, u32 parity)
{
    mbarrier_wait(bar, parity);
    over = 1;
}
template <class T> SIMT_PTX st_shared(u32 to, T v)
{
    static_assert(sizeof v == 4, "st.shared of 32 bits");
    store_shared(to, &v, 4);
}
template <class P, class T> SIMT_PTX st_global(P to, T v)
{
    static_assert(sizeof v == 4, "st.global of 32 bits");
    store_global((void *)to, &v, 4);
}
SIMT_PTX st_cluster(u32 to, float a, float b, float c, float d)
{
    const float v[4] = {a, b, c, d};
    store_shared(to, v, 16);
}
template <int n, class... F> SIMT_PTX st_async(u32 to, u32 bar, F... from)
{
    static_assert(sizeof...(F) == n, "a register for each number");
    const float v[n] = {from...};
    store_async(to, v, n, bar);
}
template <class T> SIMT_PTX ld_cluster(T &v, u32 from)
{
    static_assert(sizeof v == 4, "ld.shared::cluster of 32 bits");
    v = (T)load_shared(from);
}
SIMT_PTX map_shared(u32 &to, u32 from, int rank)
{
    to = map_to_block(from, rank);
}
template <class P> SIMT_PTX red_add_v4(P to, float a, float b, float c, float d)
{
    const float v[4] = {a, b, c, d};
    red_add((float *)to, v, 4);
}
template <class P> SIMT_PTX ld_acquire(int &v, P from)
{
    v = load_acquire((const int *)from);
}
template <class P> SIMT_PTX st_relaxed(P to, int v)
{
    store_flag((int *)to, v, false);
}
template <class P> SIMT_PTX st_release(P to, int v)
{
    store_flag((int *)to, v, true);
}
SIMT_PTX ex2(float &y, float x)
{
    simt::count_exp();
    y = exp2_approx(x);
}
SIMT_PTX tanh_approx(float &y, float x)
{
    y = tanhf(x);
}
template <Type type> SIMT_PTX cvt_x2(u32 &r, float high, float low)
{
    r = pack(low, high, type);
}
SIMT_PTX cvt_e4m3x4(u32 &r, float x0, float x1, float x2, float x3)
{
    r = pack_e4m3(x0) | pack_e4m3(x1) << 8 | pack_e4m3(x2) << 16 | pack_e4m3(x3) << 24;
}
SIMT_PTX cvt_tf32(u32 &r, float x)
{
    u32 u;
    __builtin_memcpy(&u, &x, 4);
    r = (u + 0x1000) & ~0x1fffu;
}
template <class T> SIMT_PTX mov(T &r, unsigned v)
{
    r = (T)v;
}
template <class T> SIMT_PTX mov_lane(T &r)
{
    r = (T)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
}
SIMT_PTX setmaxnreg(int)
{
}
SIMT_PTX nothing(void)
{
    __asm__ volatile("" ::: "memory");
}
#undef SIMT_PTX
} // namespace simt_ptx
