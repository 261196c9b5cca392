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
 *   - Keys are cut into parts, as in few_queries.cu. Up to four parts are a cluster: blocks that
 *     run at the same time and reach each other's shared memory. The first merges what the others
 *     have put there, and no second kernel has to start. More parts are merged as there, and three
 *     or four where clusters would need another round (clusters_are_late).
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

#define GROUPS        2                   /* warpgroups that compute */
#define THREADS       (128 * GROUPS + 32) /* and a warp that loads */
#define MOST_TOGETHER 4                   /* parts of a cluster */

/* One row tile, which both warpgroups read; the ring as in hopper_16bit.cuh. A stage is always of
 * the same warpgroup: who waits for a phase must have seen the one before it. */
template <int D> struct HopperFew : WgmmaTile<D, 64, 1, D == 64 ? 12 : 6> {
    static const int PANELS = D / PANEL, Br = 64;
    static_assert(HopperFew::STAGES % GROUPS == 0, "a stage of two warpgroups");
    static const int STATE_BYTES = (D / 8 + 1) * 128 * 16; /* of put_state */
    static_assert(MOST_TOGETHER * STATE_BYTES <= HopperFew::END, "states fit the stages");
};

struct FewMaps {
    CUtensorMap Q, K, V;
};

/* Rows from `rows` on, which nobody loads: zeros. By the threads that compute. */
template <class C>
static __device__ __forceinline__ void clear_missing_rows(unsigned char *Q, int rows)
{
    const int chunks = (C::Br - rows) * 8;
    for (int chunk = threadIdx.x; chunk < C::PANELS * chunks; chunk += 128 * GROUPS)
        *reinterpret_cast<uint4 *>(Q + chunk / chunks * C::Q_PANEL + rows * 128 +
                                   chunk % chunks * 16) = make_uint4(0, 0, 0, 0);
    fence_async();
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

/* A warpgroup's state, as its lanes hold it, to the shared memory of this block or another one of
 * the cluster: 16 bytes of each lane side by side, so that a warp writes whole lines. */
template <class C>
static __device__ __forceinline__ void put_state(const WarpgroupRows<C> &rows, uint32_t to)
{
    const uint32_t mine = to + threadIdx.x % 128 * 16;
#pragma unroll
    for (int n = 0; n < C::D / 8; n++)
        write_cluster(mine + n * 2048, rows.O[n][0], rows.O[n][1], rows.O[n][2], rows.O[n][3]);
    write_cluster(mine + C::D / 8 * 2048, rows.m[0], rows.m[1], rows.l[0], rows.l[1]);
}

/* The sum of two states of the same rows. l is still that of each lane's keys. */
template <class C>
static __device__ __forceinline__ void add_state(WarpgroupRows<C> &rows, uint32_t from)
{
    const float4 *other =
        reinterpret_cast<const float4 *>(__cvta_shared_to_generic(from)) + threadIdx.x % 128;
    const float4 m_and_l = other[C::D / 8 * 128];
    const float m[2] = {m_and_l.x, m_and_l.y}, l[2] = {m_and_l.z, m_and_l.w};
    float factor[2], other_factor[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float most = fmaxf(rows.m[e], m[e]), base = most == -INFINITY ? 0.0f : most;
        factor[e] = exp2_sfu(rows.m[e] - base);
        other_factor[e] = exp2_sfu(m[e] - base);
        rows.m[e] = most;
        rows.l[e] = rows.l[e] * factor[e] + l[e] * other_factor[e];
    }
#pragma unroll
    for (int n = 0; n < C::D / 8; n++) {
        const float4 O = other[n * 128];
        rows.O[n][0] = rows.O[n][0] * factor[0] + O.x * other_factor[0];
        rows.O[n][1] = rows.O[n][1] * factor[0] + O.y * other_factor[0];
        rows.O[n][2] = rows.O[n][2] * factor[1] + O.z * other_factor[1];
        rows.O[n][3] = rows.O[n][3] * factor[1] + O.w * other_factor[1];
    }
}

/* O and lse of this lane's rows, or the state of their part. */
template <typename T, class C>
static __device__ __forceinline__ void finish_rows(const WarpgroupRows<C> &rows, const AttnArgs &a,
                                                   Work work, const SplitStates &parts)
{
    const int group = (int)(a.shape.H / a.shape.Hkv), d = (int)a.shape.d, t = threadIdx.x % 4;
    const int64_t all_rows = a.shape.B * a.shape.H * a.shape.Nq;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int r = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * e;
        const int i = r / group, h = work.h_kv * group + r % group;
        float l = rows.l[e];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (i >= (int)a.shape.Nq)
            continue;
        const float inverse = l == 0.0f ? 0.0f : 1.0f / l; /* nothing seen: O = 0 */
        T *const O = (T *)a.O.data + tensor_offset(&a.O, work.b, i, h);
        float *const part =
            parts.O + (work.split * all_rows + (work.b * a.shape.Nq + i) * a.shape.H + h) * d;
#pragma unroll
        for (int n = 0; n < C::D / 8; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int x = 8 * n + 2 * t + c;
                const float value = l == 0.0f ? 0.0f : rows.O[n][2 * e + c] * inverse;
                if (x < d && parts.O)
                    part[x] = value;
                else if (x < d)
                    O[x] = T(value);
            }
        if (t == 0) {
            const int64_t at = (work.b * a.shape.H + h) * a.shape.Nq + i;
            const float lse = l == 0.0f ? -INFINITY : fmaf(rows.m[e], (float)M_LN2, logf(l));
            (parts.O ? parts.lse + work.split * all_rows : a.lse)[at] = lse;
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
    successor_may_come();
    auto load_K = [&](int stage, int j) {
        const uint32_t barrier = smem + C::K_FULL + 8 * stage;
        barrier_expect(barrier, C::K_BYTES);
        load_rows<C::PANELS>(smem + C::K + stage * C::K_BYTES, C::K_PANEL, &maps.K, work.b,
                             work.h_kv, j * C::Bc, barrier);
    };
    auto load_V = [&](int stage, int j) {
        const uint32_t barrier = smem + C::V_FULL + 8 * stage;
        barrier_expect(barrier, C::K_BYTES);
        load_rows<C::PANELS>(smem + C::V + stage * C::K_BYTES, C::K_PANEL, &maps.V, work.b,
                             work.h_kv, j * C::Bc, barrier);
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
    const int r = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = (r + 8 * e) / group;
        ends.first[e] = i + band.from;
        ends.last[e] = min(i + band.to, (int)a.shape.Nk - 1);
    }
    start_rows(rows);
    attend<T, C>(rows, keys, ends, smem, warpgroup, a.scale * (float)M_LOG2E);
    /* The second warpgroup's state goes to the first, and of parts that are a cluster all to the
     * first block. The stages are free when everybody has read Q, K and V. */
    const int together = parts.O ? 1 : parts.count;
    threads_sync(1, 128 * GROUPS);
    if (together > 1)
        cluster_arrive();
    if (warpgroup == 1)
        put_state(rows, smem);
    threads_sync(1, 128 * GROUPS);
    if (warpgroup == 1)
        return;
    add_state(rows, smem);
    if (together > 1) {
        cluster_wait();
        if (work.split > 0)
            put_state(rows, cluster_address(smem + work.split * C::STATE_BYTES, 0));
        cluster_arrive();
        cluster_wait();
        if (work.split > 0)
            return;
        for (int split = 1; split < together; split++)
            add_state(rows, smem + split * C::STATE_BYTES);
    }
    finish_rows<T>(rows, a, work, parts);
}

/* --- host --------------------------------------------------------------------------------------*/

/* The blocks of a cluster share a group of multiprocessors, and groups are of unequal size: 132
 * multiprocessors hold 132 single blocks at a time, or 66 clusters of two, but only 39 of three or
 * 30 of four. *late: as clusters these blocks need more rounds than as single blocks. */
static AttnStatus clusters_are_late(const void *kernel, const cudaLaunchConfig_t *config, int count,
                                    bool *late)
{
    int device = 0, processors = 0, together = 0;
    const int blocks = (int)config->gridDim.x;
    *late = false;
    if (count < 3)
        return ATTN_OK;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    CUDA_TRY(cudaOccupancyMaxActiveClusters(&together, kernel, config));
    *late = together == 0 ||
            (blocks / count + together - 1) / together > (blocks + processors - 1) / processors;
    return ATTN_OK;
}

template <typename T, class C>
static AttnStatus launch_few(const AttnArgs *a, SplitStates parts, AttnBand band)
{
    FewMaps maps = {};
    bool late = false;
    const int group = (int)(a->shape.H / a->shape.Hkv);
    AttnStatus status = make_head_map(&maps.Q, &a->Q, group, (int)a->shape.Nq);
    if (status == ATTN_OK)
        status = make_head_map(&maps.K, &a->K, 1, C::Bc);
    if (status == ATTN_OK)
        status = make_head_map(&maps.V, &a->V, 1, C::Bc);
    if (status == ATTN_OK)
        status = cuda_reserve_smem((const void *)few_hopper_kernel<T, C>, C::ALL);
    if (status == ATTN_OK)
        status = launch_is_done(0, NULL) ? ATTN_OK : ATTN_CUDA_ERROR;
    if (status != ATTN_OK)
        return status;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = parts.O ? 1 : (unsigned)parts.count;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(a->shape.B * a->shape.Hkv * parts.count));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = C::ALL;
    config.stream = (cudaStream_t)a->stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    status = clusters_are_late((const void *)few_hopper_kernel<T, C>, &config,
                               (int)cluster.val.clusterDim.x, &late);
    if (status != ATTN_OK || late)
        return late ? ATTN_SKIP : status;
    CUDA_TRY(cudaLaunchKernelEx(&config, few_hopper_kernel<T, C>, *a, maps, parts, band));
    return launch_is_done((cudaStream_t)a->stream, "the kernel of few queries") ? ATTN_OK
                                                                                : ATTN_CUDA_ERROR;
}

template <typename T> static AttnStatus run_few(const AttnArgs *a, SplitStates parts, AttnBand band)
{
    return a->shape.d <= 64 ? launch_few<T, HopperFew<64>>(a, parts, band)
                            : launch_few<T, HopperFew<128>>(a, parts, band);
}

} // namespace few

/* few_queries_takes has been asked. parts.O NULL: O and lse go to the tensors, unless clusters are
 * late. */
AttnStatus few_hopper_run(const AttnArgs *a, SplitStates parts, AttnBand band)
{
    if (!on_hopper() || a->shape.Nk == 0 || a->shape.d > 128 || a->softcap != 0.0f ||
        !(a->scale > 0.0f) || device_smem_limit() != 0 ||
        (!parts.O && parts.count > MOST_TOGETHER) || !copies_by_engine(&a->Q) ||
        !copies_by_engine(&a->K) || !copies_by_engine(&a->V))
        return ATTN_SKIP;
    if (a->Q.dtype == ATTN_BF16)
        return few::run_few<__nv_bfloat16>(a, parts, band);
#ifdef ATTN_NO_CUDA_F16
    return ATTN_SKIP;
#else
    return few::run_few<__half>(a, parts, band);
#endif
}
