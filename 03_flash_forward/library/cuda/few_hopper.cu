/* SPDX-License-Identifier: MIT
 *
 * few_hopper.cu: few queries against many keys on a GPU of compute capability 9.0: up to 64 rows,
 * queries times heads of a group, are the one row tile of a warpgroup.
 *
 * few_queries.cu has one warp for 16 rows: with 64 rows four warps read all of K and V from shared
 * memory, each for itself, and no unit hides the waits of another. Here wgmma reads a tile once for
 * all 64 rows, which costs 512 clocks of 1600 that memory takes to deliver it (d = 128: 32 KiB at
 * 36 bytes a ns a multiprocessor). So rows that are missing may be multiplied as zeros, and one
 * kernel is right for 1 to 64 of them.
 *
 *   - One thread is the producer: it orders tiles from the copy engine as long as there is a free
 *     stage. The first ones are on their way before the block has met: 192 KiB (d = 128).
 *   - Two warpgroups compute, one the even tiles and one the odd ones, each with m, l and O of its
 *     own: while one exponentiates, the other multiplies. They meet once, at the end.
 *   - Keys are cut into parts, and parts are merged, as in few_queries.cu.
 *
 * A warpgroup's tile, in clocks, d = 128: S 260, softmax 400, O 260, waits between them 100; two
 * take turns, so a tile is done each 520.
 *
 * Interface: few_hopper_run (few_queries.cuh).
 */
#include "few_queries.cuh"
#include "hopper_16bit.cuh"

#include "few_states.cuh" /* with what hopper.cuh has */

namespace few
{

#define GROUPS   2                   /* warpgroups that compute */
#define THREADS  (128 * GROUPS + 32) /* and a warp that loads */
#define ONCE_MIB 32                  /* as few_queries.cu */

/* One row tile, which both warpgroups read; the ring as in hopper_16bit.cuh. A stage is always of
 * the same warpgroup: who waits for a phase must have seen the one before it. */
template <int D> struct HopperFew : WgmmaTile<D, 64, 1, D == 64 ? 12 : 6> {
    static const int PANELS = D / PANEL, Br = 64;
    static_assert(HopperFew::STAGES % GROUPS == 0, "a stage of two warpgroups");
    static_assert(GROUPS * Br * StateSize<D>::PITCH * 4 <= HopperFew::END, "states fit the stages");
};

struct FewMaps {
    CUtensorMap Q, K, V;
};

/* createpolicy, see few_queries.cu. */
static __device__ __forceinline__ uint64_t policy_of_keys(const AttnArgs &a)
{
    uint64_t policy;
    if (a.shape.B * a.shape.Hkv * a.shape.Nk * a.shape.d >= (int64_t)ONCE_MIB << 18)
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    else
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* load_rows of hopper_tensor.cuh with a policy for the L2. */
template <int PANELS>
static __device__ __forceinline__ void load_rows_once(uint32_t to_smem, int panel_bytes,
                                                      const CUtensorMap *map, int b, int h, int n,
                                                      uint32_t barrier, uint64_t policy)
{
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(
                         to_smem + panel * panel_bytes),
                     "l"(map), "r"(barrier), "r"(panel * PANEL), "r"(h), "r"(n), "r"(b), "l"(policy)
                     : "memory");
}

/* Rows from `rows` on, which nobody loads: zeros. By the threads that compute. */
template <class C>
static __device__ __forceinline__ void clear_missing_rows(unsigned char *Q, int rows)
{
    const int chunks = (C::Br - rows) * 8;
    for (int chunk = threadIdx.x; chunk < C::PANELS * chunks; chunk += 128 * GROUPS)
        *reinterpret_cast<uint4 *>(Q + chunk / chunks * C::Q_PANEL + rows * 128 +
                                   chunk % chunks * 16) = make_uint4(0, 0, 0, 0);
    fence_for_tma();
}

/* Tiles of one warpgroup: each GROUPS-th, from its own number on. */
template <typename T, class C>
static __device__ __forceinline__ void attend(WarpgroupRows<C> &rows, const KeyTiles &keys,
                                              const RowEnds &ends, uint32_t smem, int warpgroup,
                                              float scale_log2)
{
    float S[C::Bc / 8][4], alpha[2];
    uint32_t P[C::Bc / 16][4];
    barrier_wait(smem + C::Q_FULL, 0, WAIT_Q);
    int stage = warpgroup, parity = 0;
#pragma unroll 1
    for (int j = keys.begin + warpgroup; j < keys.end; j += GROUPS) {
        bool grown;
        barrier_wait(smem + C::K_FULL + 8 * stage, parity, WAIT_K);
        wgmma_begin();
        multiply_QK<T, C>(S, smem, smem + C::K + stage * C::K_BYTES);
        wgmma_wait<0>(S);
        release(smem + C::K_FREE + 8 * stage);
        if (j * C::Bc >= keys.all_from && j * C::Bc + C::Bc - 1 <= keys.all_to) {
            grown = update_rows_lazily<C, false>(S, rows, alpha, scale_log2);
        } else {
            hide_scores<C>(S, ends, j);
            grown = update_rows_lazily<C, true>(S, rows, alpha, scale_log2);
        }
        round_P<T, C>(P, S);
        if (grown)
            rescale_O(rows, alpha);
        barrier_wait(smem + C::V_FULL + 8 * stage, parity, WAIT_V);
        wgmma_begin();
        multiply_PV<T, C>(rows, P, smem + C::V + stage * C::K_BYTES);
        wgmma_wait<0>(rows.O);
        release(smem + C::V_FREE + 8 * stage);
        stage += GROUPS;
        if (stage >= C::STAGES) {
            stage -= C::STAGES;
            parity ^= 1;
        }
    }
}

/* One block: all rows of one kv head, one part of their keys. */
template <typename T, class C>
static __global__ void __launch_bounds__(THREADS, 1)
    few_hopper_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ FewMaps maps,
                      const __grid_constant__ SplitStates parts, AttnBand band)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = (int)__reduce_max_sync(0xffffffffu, threadIdx.x / 128);
    const int group = (int)(a.shape.H / a.shape.Hkv), count = (int)a.shape.Nq * group;
    const Work work = work_of_block(a, parts.count);
    const KeyTiles keys = tiles_of_part<C::Bc>(a, band, work.split, parts.count);
    const uint64_t policy = policy_of_keys(a);
    successor_may_come();
    auto load_K = [&](int stage, int j) {
        const uint32_t barrier = smem + C::K_FULL + 8 * stage;
        barrier_expect(barrier, C::K_BYTES);
        load_rows_once<C::PANELS>(smem + C::K + stage * C::K_BYTES, C::K_PANEL, &maps.K, work.b,
                                  work.h_kv, j * C::Bc, barrier, policy);
    };
    auto load_V = [&](int stage, int j) {
        const uint32_t barrier = smem + C::V_FULL + 8 * stage;
        barrier_expect(barrier, C::K_BYTES);
        load_rows_once<C::PANELS>(smem + C::V + stage * C::K_BYTES, C::K_PANEL, &maps.V, work.b,
                                  work.h_kv, j * C::Bc, barrier, policy);
    };
    if (threadIdx.x == 128 * GROUPS) { /* what is free from the start comes before all meet */
        start_barriers<C>(smem);
        barrier_expect(smem + C::Q_FULL, C::PANELS * count * 128);
        load_rows<C::PANELS>(smem, C::Q_PANEL, &maps.Q, work.b, work.h_kv * group, 0,
                             smem + C::Q_FULL);
        for (int stage = 0; stage < C::STAGES && keys.begin + stage < keys.end; stage++) {
            load_K(stage, keys.begin + stage);
            load_V(stage, keys.begin + stage);
        }
    } else if (warpgroup < GROUPS) {
        clear_missing_rows<C>(smem_bytes, count);
    }
    __syncthreads();
    if (warpgroup == GROUPS) {
        if (threadIdx.x == 128 * GROUPS) {
            RingPlace place = {0, 0};
#pragma unroll 1
            for (int j = keys.begin + C::STAGES; j < keys.end; j++) {
                barrier_wait(smem + C::K_FREE + 8 * place.stage, place.parity, WAIT_FREE_K);
                load_K(place.stage, j);
                barrier_wait(smem + C::V_FREE + 8 * place.stage, place.parity, WAIT_FREE_V);
                load_V(place.stage, j);
                advance<C>(place);
            }
        }
        return;
    }
    WarpgroupRows<C> rows;
    RowEnds ends;
    const int r = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = (r + 8 * e) / group;
        ends.first[e] = i + band.from;
        ends.last[e] = min(i + band.to, (int)a.shape.Nk - 1);
    }
    start_rows(rows);
    attend<T, C>(rows, keys, ends, smem, warpgroup, a.scale * LOG2E);
    threads_sync(1, 128 * GROUPS); /* Q and all stages have been read */
    float *const states = reinterpret_cast<float *>(smem_bytes);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float *row = states + (warpgroup * C::Br + r + 8 * e) * StateSize<C::D>::PITCH;
        float l = rows.l[e];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (r + 8 * e >= count)
            continue;
#pragma unroll
        for (int n = 0; n < C::D / 8; n++)
            *reinterpret_cast<float2 *>(row + n * 8 + t * 2) =
                make_float2(rows.O[n][2 * e], rows.O[n][2 * e + 1]);
        if (t == 0) {
            row[C::D] = rows.m[e];
            row[C::D + 1] = l;
        }
    }
    threads_sync(1, 128 * GROUPS);
    merge_states<T, C::D, GROUPS, C::Br>(states, a, work, parts, 4 * GROUPS);
}

/* --- host --------------------------------------------------------------------------------------*/

template <typename T, class C>
static AttnStatus launch_few(const AttnArgs *a, SplitStates parts, AttnBand band)
{
    FewMaps maps = {};
    const int group = (int)(a->shape.H / a->shape.Hkv);
    AttnStatus status = make_head_map(&maps.Q, &a->Q, group, (int)a->shape.Nq);
    if (status == ATTN_OK)
        status = make_head_map(&maps.K, &a->K, 1, C::Bc);
    if (status == ATTN_OK)
        status = make_head_map(&maps.V, &a->V, 1, C::Bc);
    if (status == ATTN_OK)
        status = take_smem(few_hopper_kernel<T, C>, C::ALL);
    if (status == ATTN_OK)
        status = launch_is_done(0, NULL);
    if (status != ATTN_OK)
        return status;
    few_hopper_kernel<T, C><<<(unsigned)(a->shape.B * a->shape.Hkv * parts.count), THREADS, C::ALL,
                              (cudaStream_t)a->stream>>>(*a, maps, parts, band);
    CUDA_TRY_LAUNCH();
    return launch_is_done((cudaStream_t)a->stream, "the kernel of few queries");
}

template <typename T> static AttnStatus run_few(const AttnArgs *a, SplitStates parts, AttnBand band)
{
    return a->shape.d <= 64 ? launch_few<T, HopperFew<64>>(a, parts, band)
                            : launch_few<T, HopperFew<128>>(a, parts, band);
}

} // namespace few

/* few_queries_takes has been asked. */
AttnStatus few_hopper_run(const AttnArgs *a, SplitStates parts, AttnBand band)
{
    if (!on_hopper() || a->shape.d > 128 || a->softcap != 0.0f || !(a->scale > 0.0f) ||
        flash_smem_limit() != 0 || !copies_by_engine(&a->Q) || !copies_by_engine(&a->K) ||
        !copies_by_engine(&a->V))
        return ATTN_SKIP;
    if (a->Q.dtype == ATTN_BF16)
        return few::run_few<__nv_bfloat16>(a, parts, band);
#ifdef ATTN_NO_CUDA_F16
    return ATTN_SKIP;
#else
    return few::run_few<__half>(a, parts, band);
#endif
}
