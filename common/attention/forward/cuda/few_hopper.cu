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
 *     stage. The first ones are on their way before the block has met: 128 KiB (d = 128).
 *   - Two warpgroups compute, one the even tiles and one the odd ones, each with m, l and O of its
 *     own: while one exponentiates, the other multiplies. What they have found is merged once, at
 *     the end.
 *   - Keys are cut into parts, as in few_queries.cu. Up to four parts are a cluster: blocks that
 *     run at the same time and reach each other's shared memory, and no second kernel has to start.
 *     More parts are merged as there, and three or four where clusters would need another round
 *     (clusters_are_late).
 *   - Each block of a cluster owns a share of the rows. Every warpgroup sends each row's m, l and O
 *     to the row's owner, once, by stores that the owner's mbarrier counts. So nobody waits for
 *     what it has itself in flight, and all blocks merge and write O.
 *   - K and V that do not fit the L2 are of no use there. L2 is told so (evict_first): it gives up
 *     their lines, and writes back fewer of what others have written, which takes the memory's
 *     time. K and V that do fit stay for the next step.
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
#define MOST_BLOCKS_Z 65535               /* of a grid, and as many in y */

/* One row tile, which both warpgroups read; the ring as in hopper_16bit.cuh. A stage is always of
 * the same warpgroup: who waits for a phase must have seen the one before it. Behind it what the
 * warpgroups send: a place for each row and warpgroup, O, then m and l. Rows begin at different
 * banks. */
template <int D> struct HopperFew : WgmmaTile<D, 64, 1, D == 64 ? 10 : 4> {
    typedef WgmmaTile<D, 64, 1, D == 64 ? 10 : 4> Tile;
    static const int PANELS = D / PANEL, Br = 64;
    static_assert(HopperFew::STAGES % GROUPS == 0, "a stage of two warpgroups");
    static const int ROW_BYTES = D * 4 + 64, SENT_BYTES = D * 4 + 8;
    static const int PLACES =
        GROUPS * (Br + 2); /* of 3 parts each has 22 rows, not 21 and a third */
    static const int SENT_FULL = Tile::ALL, SENT = (SENT_FULL + 8 + 127) / 128 * 128;
    static const int ALL = SENT + PLACES * ROW_BYTES;
    static_assert(ALL <= 227 * 1024, "what is sent fits behind the stages");
};

struct FewMaps {
    CUtensorMap Q, K, V;
};

/* What is the same for all blocks. The host divides: in a block nothing would be on its way from
 * memory meanwhile. */
struct FewPlan {
    KeyTiles keys;          /* of all parts */
    int part_tiles;         /* of a part; the last ones may have fewer, or none */
    int group, rows;        /* heads that read a kv head; these times queries */
    uint32_t group_inverse; /* query_of_row */
    int together, share;    /* parts of a cluster; the rows that each merges */
};

/* The query of row r < 64: r / group, as r * ceil(2^16 / group) / 2^16. */
static __device__ __forceinline__ int query_of_row(const FewPlan &plan, int r)
{
    return (int)((uint32_t)r * plan.group_inverse >> 16);
}

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

/* Each row of this warpgroup to its owner. state: the warpgroup's number in the cluster. */
template <class C>
static __device__ __forceinline__ void send_rows(const WarpgroupRows<C> &rows, const FewPlan &plan,
                                                 int state, uint32_t smem)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int r = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * e;
        float l = rows.l[e];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (r >= plan.rows)
            continue;
        const int owner = (r >= plan.share) + (r >= 2 * plan.share) + (r >= 3 * plan.share);
        const int place = state * plan.share + r - owner * plan.share;
        const uint32_t there = cluster_address(smem, owner), barrier = there + C::SENT_FULL;
        const uint32_t to = there + C::SENT + place * C::ROW_BYTES;
#pragma unroll
        for (int n = 0; n < C::D / 8; n += 2)
            send(to + n * 32 + t * 16, rows.O[n][2 * e], rows.O[n][2 * e + 1], rows.O[n + 1][2 * e],
                 rows.O[n + 1][2 * e + 1], barrier);
        if (t == 0)
            send(to + C::D * 4, rows.m[e], l, barrier);
    }
}

/* The sum of all states of `mine` rows, from `first` on: O and lse, or the state of their part. A
 * lane has four channels of a row as a lane of send_rows had them: x, x + 1, x + 8, x + 9. */
template <typename T, class C>
static __device__ __forceinline__ void merge_rows(const unsigned char *smem_bytes, int first,
                                                  int mine, const FewPlan &plan, const AttnArgs &a,
                                                  Work work, const SplitStates &parts)
{
    const int LANES = C::D / 4, lane = threadIdx.x % LANES, MOST = GROUPS * MOST_TOGETHER;
    const int d = (int)a.shape.d, states = GROUPS * plan.together;
    const int step = plan.share * C::ROW_BYTES; /* from a state to the next */
    const int64_t all_rows = a.shape.B * a.shape.H * a.shape.Nq;
    for (int r = threadIdx.x / LANES; r < mine; r += 128 * GROUPS / LANES) {
        const unsigned char *const row = smem_bytes + C::SENT + r * C::ROW_BYTES;
        float m[MOST], l[MOST], most = -INFINITY, sum = 0.0f, O[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int s = 0; s < MOST; s++) {
            float2 stats = make_float2(-INFINITY, 0.0f);
            if (s < states)
                stats = *reinterpret_cast<const float2 *>(row + s * step + C::D * 4);
            m[s] = stats.x;
            l[s] = stats.y;
            most = fmaxf(most, m[s]);
        }
        const float base = most == -INFINITY ? 0.0f : most;
#pragma unroll
        for (int s = 0; s < MOST; s++)
            if (s < states) {
                const float4 part = *reinterpret_cast<const float4 *>(row + s * step + lane * 16);
                const float factor = exp2_sfu(m[s] - base);
                sum += l[s] * factor;
                O[0] += part.x * factor;
                O[1] += part.y * factor;
                O[2] += part.z * factor;
                O[3] += part.w * factor;
            }
        const int i = query_of_row(plan, first + r);
        const int h = work.h_kv * plan.group + first + r - i * plan.group;
        const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum; /* nothing seen: O = 0 */
        T *const to = (T *)a.O.data + tensor_offset(&a.O, work.b, i, h);
        float *const part =
            parts.O + (work.split * all_rows + (work.b * a.shape.Nq + i) * a.shape.H + h) * d;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int x = lane / 4 * 16 + lane % 4 * 2 + c % 2 + c / 2 * 8;
            const float value = sum == 0.0f ? 0.0f : O[c] * inverse;
            if (x < d && parts.O)
                part[x] = value;
            else if (x < d)
                to[x] = T(value);
        }
        if (lane == 0) {
            const int64_t at = (work.b * a.shape.H + h) * a.shape.Nq + i;
            const float lse = sum == 0.0f ? -INFINITY : fmaf(most, (float)M_LN2, logf(sum));
            (parts.O ? parts.lse + work.split * all_rows : a.lse)[at] = lse;
        }
    }
}

/* One block: all rows of one kv head, one part of their keys. */
template <typename T, class C>
static __global__ void __launch_bounds__(THREADS, 1)
    few_hopper_kernel(const __grid_constant__ AttnArgs a, const __grid_constant__ FewMaps maps,
                      const __grid_constant__ SplitStates parts, AttnBand band,
                      const __grid_constant__ FewPlan plan, bool evict_first)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = (int)__reduce_max_sync(0xffffffffu, threadIdx.x / 128);
    const Work work = {(int)blockIdx.z, (int)blockIdx.y, (int)blockIdx.x};
    KeyTiles keys = plan.keys;
    keys.begin += work.split * plan.part_tiles;
    keys.end = min(keys.begin + plan.part_tiles, keys.end);
    const int rank = parts.O ? 0 : work.split, first = rank * plan.share;
    const int mine = max(min(plan.share, plan.rows - first), 0); /* rows that this block merges */
    const L2Policy policy = evict_first ? policy_evict_first() : policy_normal();
    successor_may_come();
    auto load_K = [&](int stage, int j) {
        const uint32_t barrier = smem + C::K_FULL + 8 * stage;
        barrier_expect(barrier, C::K_BYTES);
        load_rows<C::PANELS>(smem + C::K + stage * C::K_BYTES, C::K_PANEL, &maps.K, work.b,
                             work.h_kv, j * C::Bc, barrier, policy);
    };
    auto load_V = [&](int stage, int j) {
        const uint32_t barrier = smem + C::V_FULL + 8 * stage;
        barrier_expect(barrier, C::K_BYTES);
        load_rows<C::PANELS>(smem + C::V + stage * C::K_BYTES, C::K_PANEL, &maps.V, work.b,
                             work.h_kv, j * C::Bc, barrier, policy);
    };
    if (threadIdx.x == 128 * GROUPS) { /* what is free from the start comes before all meet */
        barrier_init(smem + C::SENT_FULL, 1);
        start_barriers<C>(smem);
        barrier_expect(smem + C::Q_FULL, C::PANELS * plan.rows * 128);
        load_rows<C::PANELS>(smem, C::Q_PANEL, &maps.Q, work.b, work.h_kv * plan.group, 0,
                             smem + C::Q_FULL);
        for (int stage = 0; stage < C::STAGES && keys.begin + stage < keys.end; stage++) {
            load_K(stage, keys.begin + stage);
            load_V(stage, keys.begin + stage);
        }
        barrier_expect(smem + C::SENT_FULL, GROUPS * plan.together * mine * C::SENT_BYTES);
    } else if (warpgroup < GROUPS) {
        clear_missing_rows<C>(smem_bytes, plan.rows);
    }
    __syncthreads();
    cluster_arrive_relaxed(); /* this block has begun, and its barriers are made */
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
        __syncwarp();
        cluster_wait();
        return;
    }
    WarpgroupRows<C> rows;
    RowEnds ends;
    const int r = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = query_of_row(plan, r + 8 * e);
        ends.first[e] = i + band.from;
        ends.last[e] = min(i + band.to, (int)a.shape.Nk - 1);
    }
    start_rows(rows);
    attend<T, C>(rows, keys, ends, smem, warpgroup, a.scale * (float)M_LOG2E);
    cluster_wait();
    send_rows(rows, plan, GROUPS * rank + warpgroup, smem);
    /* When all has come, nobody sends here any more: the block may end when it likes. */
    barrier_wait(smem + C::SENT_FULL, 0, WAIT_STATES);
    merge_rows<T, C>(smem_bytes, first, mine, plan, a, work, parts);
}

/* --- host --------------------------------------------------------------------------------------*/

/* The blocks of a cluster share a group of multiprocessors, and groups are of unequal size: 132
 * multiprocessors hold 132 single blocks at a time, or 66 clusters of two, but only 39 of three or
 * 30 of four. *late: as clusters these blocks need more rounds than as single blocks. */
static AttnStatus clusters_are_late(const void *kernel, const cudaLaunchConfig_t *config, int count,
                                    bool *late)
{
    int device = 0, processors = 0, together = 0;
    const int blocks = (int)(config->gridDim.x * config->gridDim.y * config->gridDim.z);
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

/* Are K and V, so many keys of each head, more than the L2 holds? */
static AttnStatus reads_evict_first(const AttnArgs *a, int64_t keys, bool *evict_first)
{
    int device = 0, L2 = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&L2, cudaDevAttrL2CacheSize, device));
    const int64_t bytes = 2 * a->shape.B * a->shape.Hkv * keys * a->shape.d * 2;
    *evict_first = bytes > L2;
    return ATTN_OK;
}

template <class C> static FewPlan plan_of(const AttnArgs *a, SplitStates parts, AttnBand band)
{
    FewPlan plan;
    plan.keys = tiles_of_part<C::Bc>(*a, band, 0, 1);
    plan.part_tiles = (plan.keys.end - plan.keys.begin + parts.count - 1) / parts.count;
    plan.group = (int)(a->shape.H / a->shape.Hkv);
    plan.rows = (int)a->shape.Nq * plan.group;
    plan.group_inverse = (uint32_t)((65536 + plan.group - 1) / plan.group);
    plan.together = parts.O ? 1 : parts.count;
    plan.share = (plan.rows + plan.together - 1) / plan.together;
    return plan;
}

template <typename T, class C>
static AttnStatus launch_few(const AttnArgs *a, SplitStates parts, AttnBand band)
{
    FewMaps maps = {};
    const FewPlan plan = plan_of<C>(a, parts, band);
    bool late = false, evict_first = false;
    AttnStatus status =
        reads_evict_first(a, (int64_t)(plan.keys.end - plan.keys.begin) * C::Bc, &evict_first);
    if (status == ATTN_OK)
        status = make_head_map(&maps.Q, &a->Q, plan.group, (int)a->shape.Nq);
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
    cluster.val.clusterDim.x = (unsigned)plan.together;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)parts.count, (unsigned)a->shape.Hkv, (unsigned)a->shape.B);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = C::ALL;
    config.stream = (cudaStream_t)a->stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    status =
        clusters_are_late((const void *)few_hopper_kernel<T, C>, &config, plan.together, &late);
    if (status != ATTN_OK || late)
        return late ? ATTN_SKIP : status;
    CUDA_TRY(cudaLaunchKernelEx(&config, few_hopper_kernel<T, C>, *a, maps, parts, band, plan,
                                evict_first));
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
        !(a->scale > 0.0f) || device_smem_limit() != 0 || a->shape.B > MOST_BLOCKS_Z ||
        a->shape.Hkv > MOST_BLOCKS_Z || (!parts.O && parts.count > MOST_TOGETHER) ||
        !copies_by_engine(&a->Q) || !copies_by_engine(&a->K) || !copies_by_engine(&a->V))
        return ATTN_SKIP;
    if (a->Q.dtype == ATTN_BF16)
        return few::run_few<__nv_bfloat16>(a, parts, band);
#ifdef ATTN_NO_CUDA_F16
    return ATTN_SKIP;
#else
    return few::run_few<__half>(a, parts, band);
#endif
}
