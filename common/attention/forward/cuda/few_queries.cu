/* SPDX-License-Identifier: MIT
 *
 * few_queries.cu: the library's kernel for a few queries against many keys, f16 and bf16, sm_80 and
 * later. A model that writes text asks with one query a step, or with a handful of guessed ones.
 *
 * A key and a value serve `rows` = (queries) x (query heads of the group) rows of scores: 1 to 64
 * multiply-adds for each element that is read. Memory sets the time, and the kernel has one aim: to
 * read K and V once, with enough reads under way at any moment.
 *
 *   - The heads of a group and their queries are the rows of one tile (up to 64), so nobody else
 *     reads these keys. Row r is query r / group, head r % group of its group.
 *   - Keys are cut into parts, as many as blocks fill the GPU evenly (split_keys.cuh merges them).
 *   - A block has four warps and a ring of key tiles that cp.async fills two tiles ahead. Up to 16
 *     rows, each warp takes 16 of a tile's 64 keys for all rows: each has m, l and O of its own,
 *     and they meet once, at the end. With more rows the warps share rows, too: 2 x 2, 4 x 1.
 *   - Empty rows of a tile of 16 cost products, of which there are plenty to spare: at 64 rows the
 *     tensor cores are about half busy while memory delivers all it can.
 *
 * Budget of a block, d = 128: three stages of 64 keys, K and V, 96 KiB, of which 64 KiB are under
 * way. Little's law asks for 1 us x 4.8 TB/s / 132 = 36 KiB a multiprocessor.
 *
 * Interface:
 * - few_queries_takes, few_queries_splits, few_queries_run: see few_queries.cuh.
 */
#include "few_queries.cuh"
#include "scores.cuh"
#include "split_keys.cuh"
#include "units/mma.cuh"

#include "few_states.cuh" /* with what mma.cuh has */

namespace few
{

#define WARPS 4

/* ROW_TILES tiles of 16 rows; what warps are left over share a tile's keys. */
template <int D_, int ROW_TILES_> struct Tile {
    static const int D = D_, ROW_TILES = ROW_TILES_, KEY_WARPS = WARPS / ROW_TILES;
    static const int THREADS = 32 * WARPS, Br = 16 * ROW_TILES;
    static const int Bc = D <= 128 || KEY_WARPS > 2 ? 64 : 32, STAGES = 3;
    static const int WARP_KEYS = Bc / KEY_WARPS;
    static const bool Q_IN_REGISTERS = D <= 128; /* of 256 channels they would be 64 */
    static const int KEY_BYTES = Bc * D * 2, STAGE = 2 * KEY_BYTES, Q_BYTES = Br * D * 2;
    static const int SMEM = Q_BYTES + STAGES * STAGE;
    /* where the warps of a row tile meet: O, m and l of each */
    static const int PITCH = few::StateSize<D>::PITCH, MEET = KEY_WARPS * Br * PITCH * 4;
    static_assert(MEET <= SMEM && WARP_KEYS % 16 == 0, "the states have room in the stages");
};

/* O, m (in powers of two) and l of 16 rows, this warp's keys. l: this lane's share. */
template <class C> struct Rows {
    float O[C::D / 8][4], m[2], l[2];
};

/* Rows of T from `from` on to a swizzled tile: `count` rows exist, the rest and channels from d on
 * are zeros. row_offset(r): where row r begins. */
template <class C, typename T, class Offset>
static __device__ __forceinline__ void load_rows(uint32_t to_smem, const T *from, int rows,
                                                 int count, int d, Offset row_offset)
{
    const int CHUNKS = C::D / 8;
    const int chunk = threadIdx.x % CHUNKS;
#pragma unroll 4
    for (int r = threadIdx.x / CHUNKS; r < rows; r += C::THREADS / CHUNKS) {
        const bool exists = r < count && chunk * 8 < d;
        copy_async_16(to_smem + swizzle<C::D>(r, chunk),
                      exists ? from + row_offset(r) + chunk * 8 : from, exists);
    }
}

/* S = Q K^T for this warp's keys: 16 rows, WARP_KEYS columns. */
template <typename T, class C>
static __device__ __forceinline__ void multiply_QK(float (&S)[C::WARP_KEYS / 8][4],
                                                   const uint32_t (&Q_reg)[C::D / 16][4],
                                                   uint32_t Q_row, uint32_t K_smem, int key0)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < C::WARP_KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            S[n][e] = 0.0f;
#pragma unroll
    for (int n = 0; n < C::WARP_KEYS / 8; n += 2) {
        const int key = key0 + n * 8 + lane / 16 * 8 + lane % 8;
        const uint32_t row = K_smem + swizzle<C::D>(key, lane / 8 % 2);
#pragma unroll
        for (int k = 0; k < C::D / 16; k++) {
            uint32_t K[4], Q_smem[4];
            if (!C::Q_IN_REGISTERS)
                ldmatrix_x4(Q_smem, skip_chunks<C::D>(Q_row, k));
            const uint32_t *Q = C::Q_IN_REGISTERS ? Q_reg[k] : Q_smem;
            ldmatrix_x4(K, skip_chunks<C::D>(row, k));
            mma_16816<T>(S[n], Q, K[0], K[1]);
            mma_16816<T>(S[n + 1], Q, K[2], K[3]);
        }
    }
}

/* Online softmax: P replaces S; O and l are rescaled to the new maximum. */
template <class C, bool MASKED>
static __device__ __forceinline__ void update_rows(float (&S)[C::WARP_KEYS / 8][4], Rows<C> &rows,
                                                   float scale_log2)
{
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float m_new = fmaxf(S[0][2 * e], S[0][2 * e + 1]);
#pragma unroll
        for (int n = 1; n < C::WARP_KEYS / 8; n++)
            m_new = fmaxf(m_new, fmaxf(S[n][2 * e], S[n][2 * e + 1]));
        m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 1));
        m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, 2));
        m_new = fmaxf(rows.m[e], m_new * scale_log2);
        /* A row that has seen nothing yet: -inf - -inf would be NaN. */
        const float base = MASKED && m_new == -INFINITY ? 0.0f : m_new;
        const float alpha = exp2_sfu(rows.m[e] - base);
        rows.m[e] = m_new;
        float l_tile = 0.0f;
#pragma unroll
        for (int n = 0; n < C::WARP_KEYS / 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++) {
                const float p = exp2_sfu(fmaf(S[n][2 * e + x], scale_log2, -base));
                S[n][2 * e + x] = p;
                l_tile += p;
            }
        rows.l[e] = rows.l[e] * alpha + l_tile;
        if (__any_sync(0xffffffffu, alpha != 1.0f))
#pragma unroll
            for (int n = 0; n < C::D / 8; n++) {
                rows.O[n][2 * e] *= alpha;
                rows.O[n][2 * e + 1] *= alpha;
            }
    }
}

/* O += P V. P, accumulated as C, is the left factor A of the next product. */
template <typename T, class C>
static __device__ __forceinline__ void
multiply_PV(Rows<C> &rows, const float (&P)[C::WARP_KEYS / 8][4], uint32_t V_smem, int key0)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < C::WARP_KEYS / 16; k++) {
        const uint32_t A[4] = {
            pack2<T>(P[2 * k][0], P[2 * k][1]), pack2<T>(P[2 * k][2], P[2 * k][3]),
            pack2<T>(P[2 * k + 1][0], P[2 * k + 1][1]), pack2<T>(P[2 * k + 1][2], P[2 * k + 1][3])};
        const int key = key0 + k * 16 + lane / 8 % 2 * 8 + lane % 8;
        const uint32_t row = V_smem + swizzle<C::D>(key, lane / 16);
#pragma unroll
        for (int n = 0; n < C::D / 8; n += 2) {
            uint32_t V[4];
            ldmatrix_x4_trans(V, skip_chunks<C::D>(row, n / 2));
            mma_16816<T>(rows.O[n], A, V[0], V[1]);
            mma_16816<T>(rows.O[n + 1], A, V[2], V[3]);
        }
    }
}

/* The warps of a row tile write their states [KEY_WARPS][Br][PITCH] and merge them: to O and lse,
 * or to the state of this part. */
template <typename T, class C>
static __device__ __forceinline__ void meet(Rows<C> &rows, float *states, const AttnArgs &a,
                                            Work work, const SplitStates &parts)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row_tile = warp % C::ROW_TILES, key_warp = warp / C::ROW_TILES;
    __syncthreads(); /* the stages have been read */
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float *row = states + (key_warp * C::Br + row_tile * 16 + lane / 4 + 8 * e) * C::PITCH;
        float l_row = rows.l[e];
        l_row += __shfl_xor_sync(0xffffffffu, l_row, 1);
        l_row += __shfl_xor_sync(0xffffffffu, l_row, 2);
#pragma unroll
        for (int n = 0; n < C::D / 8; n++)
            *(float2 *)(row + n * 8 + lane % 4 * 2) =
                make_float2(rows.O[n][2 * e], rows.O[n][2 * e + 1]);
        if (lane % 4 == 0) {
            row[C::D] = rows.m[e];
            row[C::D + 1] = l_row;
        }
    }
    __syncthreads();
    merge_states<T, C::D, C::KEY_WARPS, C::Br>(states, a, work, parts, WARPS);
}

/* One block: all rows of one kv head, one part of their keys. parts.O NULL: only one part. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, C::D <= 128 ? 2 : 1)
    few_queries_kernel(const __grid_constant__ AttnArgs a,
                       const __grid_constant__ SplitStates parts, AttnBand band)
{
    extern __shared__ __align__(1024) unsigned char smem_few[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_few), stages = smem + C::Q_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int group = (int)(a.shape.H / a.shape.Hkv), Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk;
    const int row_tile = warp % C::ROW_TILES, key0 = warp / C::ROW_TILES * C::WARP_KEYS;
    const Work work = work_of_block(a, parts.count);
    const KeyTiles keys = tiles_of_part<C::Bc>(a, band, work.split, parts.count);
    const float scale_log2 = exponent_scale(a);
    successor_may_come();

    const T *K = (const T *)a.K.data + tensor_offset(&a.K, work.b, 0, work.h_kv);
    const T *V = (const T *)a.V.data + tensor_offset(&a.V, work.b, 0, work.h_kv);
    auto fetch = [&](int j) {
        if (j < keys.end) {
            const uint32_t stage = stages + (j - keys.begin) % C::STAGES * C::STAGE;
            const int64_t key = (int64_t)j * C::Bc;
            const int count = Nk - j * C::Bc, d = (int)a.shape.d;
            load_rows<C>(stage, K + key * a.K.stride[1], C::Bc, count, d,
                         [&](int r) { return r * a.K.stride[1]; });
            load_rows<C>(stage + C::KEY_BYTES, V + key * a.V.stride[1], C::Bc, count, d,
                         [&](int r) { return r * a.V.stride[1]; });
        }
        copy_async_commit();
    };
    {
        const T *Q = (const T *)a.Q.data + tensor_offset(&a.Q, work.b, 0, work.h_kv * group);
        load_rows<C>(smem, Q, C::Br, Nq * group, (int)a.shape.d,
                     [&](int r) { return r / group * a.Q.stride[1] + r % group * a.Q.stride[2]; });
    }
#pragma unroll
    for (int n = 0; n + 1 < C::STAGES; n++)
        fetch(keys.begin + n);

    Rows<C> rows;
    uint32_t Q_reg[C::D / 16][4];
    const uint32_t Q_row = smem + swizzle<C::D>(row_tile * 16 + lane % 16, lane / 16);
    int from[2], to[2]; /* keys that this lane's rows see */
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = (row_tile * 16 + lane / 4 + 8 * e) / group;
        rows.m[e] = -INFINITY;
        rows.l[e] = 0.0f;
        from[e] = i + band.from;
        to[e] = min(i + band.to, Nk - 1);
#pragma unroll
        for (int n = 0; n < C::D / 8; n++)
            rows.O[n][2 * e] = rows.O[n][2 * e + 1] = 0.0f;
    }
#pragma unroll 1
    for (int j = keys.begin; j < keys.end; j++) {
        const uint32_t K_smem = stages + (j - keys.begin) % C::STAGES * C::STAGE;
        copy_async_wait<C::STAGES - 2>();
        __syncthreads(); /* tile j is there, and all warps are done with tile j - 1 */
        fetch(j + C::STAGES - 1);
        if (C::Q_IN_REGISTERS && j == keys.begin)
#pragma unroll
            for (int k = 0; k < C::D / 16; k++)
                ldmatrix_x4(Q_reg[k], skip_chunks<C::D>(Q_row, k));
        float S[C::WARP_KEYS / 8][4];
        multiply_QK<T, C>(S, Q_reg, Q_row, K_smem, key0);
        adjust_scores(S, a);
        if (j * C::Bc >= keys.all_from && j * C::Bc + C::Bc - 1 <= keys.all_to) {
            update_rows<C, false>(S, rows, scale_log2);
        } else {
            const int column = j * C::Bc + key0 + 2 * (lane % 4);
#pragma unroll
            for (int n = 0; n < C::WARP_KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (column + 8 * n + e % 2 < from[e / 2] || column + 8 * n + e % 2 > to[e / 2])
                        S[n][e] = -INFINITY;
            update_rows<C, true>(S, rows, scale_log2);
        }
        multiply_PV<T, C>(rows, S, K_smem + C::KEY_BYTES, key0);
    }
    copy_async_wait<0>(); /* Q, if there was no tile */
    meet<T, C>(rows, (float *)smem_few, a, work, parts);
}

/* --- host --------------------------------------------------------------------------------------*/

#define WORTH_A_PART 256 /* keys: with fewer, states would be some percent of what is read */
#define MOST_ROWS    64

static int64_t rows_of(const AttnShape *shape)
{
    return shape->Nq * (shape->H / shape->Hkv);
}

static int64_t blocks_of(const AttnShape *shape)
{
    return shape->B * shape->Hkv;
}

/* The most keys that the rows of a block can see. */
static int64_t most_keys(const AttnShape *shape, AttnRule rule)
{
    const int64_t Nk = shape->Nk;
    if (rule.left < 0 || rule.right < 0 || rule.left >= Nk || rule.right >= Nk)
        return Nk;
    return rule.left + rule.right + shape->Nq < Nk ? rule.left + rule.right + shape->Nq : Nk;
}

/* The number of parts with which all are done first. In units of a key's time in a block: every
 * round of blocks takes keys / splits, and a part more at the merge takes 16. */
static int best_splits(int64_t blocks, int64_t places, int64_t keys)
{
    int best = 1;
    int64_t least = 0, rounds = 0;
    for (int splits = 1; splits == 1 || (rounds < 3 && splits <= keys / WORTH_A_PART); splits++) {
        rounds = (blocks * splits + places - 1) / places;
        const int64_t cost = rounds * keys / splits + 16 * splits;
        if (splits == 1 || cost < least) {
            best = splits;
            least = cost;
        }
    }
    return best;
}

/* None before sm_80: there the products of a kernel are empty (mma.cuh). Shared memory of a block
 * may be less than an H200 has. */
template <class C> static AttnStatus room_for_blocks(int *places)
{
    int device = 0, major = 0, processors = 0, most = 0, each = 0;
    *places = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    CUDA_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    CUDA_TRY(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    if (major < 8 || C::SMEM > most || device_smem_refuses(C::SMEM))
        return ATTN_OK;
#ifdef HAVE_SM90A /* few_hopper.cu: a block fills a multiprocessor */
    if (C::D <= 128 && major == 9 && device_smem_limit() == 0) {
        *places = processors;
        return ATTN_OK;
    }
#endif
    const auto kernel = few_queries_kernel<__nv_bfloat16, C>;
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::SMEM));
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, C::THREADS, C::SMEM));
    /* With up to 16 rows 64 KiB under way keep a multiprocessor busy; more parts cost more than
     * they bring. */
    const int enough = (64 << 10) / ((C::STAGES - 1) * C::STAGE), wanted = enough > 1 ? enough : 1;
    *places = (C::ROW_TILES == 1 && each > wanted ? wanted : each) * processors;
    return ATTN_OK;
}

/* parts: 0 where the kernel does not fit on this GPU. */
template <class C> static AttnStatus count_parts(const AttnShape *shape, AttnRule rule, int *parts)
{
    int places = 0;
    const AttnStatus status = room_for_blocks<C>(&places);
    *parts = 0;
    if (status == ATTN_OK && places > 0)
        *parts = best_splits(blocks_of(shape), places, most_keys(shape, rule));
    return status;
}

/* Not in the kernel: positions lie in device memory, and the first load would wait for them. */
static AttnBand band_of_host(const AttnArgs *a)
{
    AttnArgs host = *a;
    host.positions_q.segments = a->positions_q.host;
    host.positions_k.segments = a->positions_k.host;
    return attn_band(&host);
}

template <typename T, class C>
static AttnStatus launch(const AttnArgs *a, SplitStates parts, AttnBand band)
{
    const AttnStatus status = reserve_smem(few_queries_kernel<T, C>, C::SMEM);
    if (status != ATTN_OK)
        return status;
    few_queries_kernel<T, C><<<(unsigned)(blocks_of(&a->shape) * parts.count), C::THREADS, C::SMEM,
                               (cudaStream_t)a->stream>>>(*a, parts, band);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

/* The smallest tile of rows that holds all of them. */
template <typename T, int D>
static AttnStatus run_dim(const AttnArgs *a, SplitStates parts, AttnBand band)
{
    const int64_t rows = rows_of(&a->shape);
    if (rows <= 16)
        return launch<T, Tile<D, 1>>(a, parts, band);
    return rows <= 32 ? launch<T, Tile<D, 2>>(a, parts, band)
                      : launch<T, Tile<D, 4>>(a, parts, band);
}

template <int D> static AttnStatus parts_of(const AttnShape *shape, AttnRule rule, int *parts)
{
    const int64_t rows = rows_of(shape);
    if (rows <= 16)
        return count_parts<Tile<D, 1>>(shape, rule, parts);
    return rows <= 32 ? count_parts<Tile<D, 2>>(shape, rule, parts)
                      : count_parts<Tile<D, 4>>(shape, rule, parts);
}

template <typename T> static AttnStatus run_mma(const AttnArgs *a, SplitStates parts, AttnBand band)
{
    if (a->shape.d <= 64)
        return run_dim<T, 64>(a, parts, band);
    if (a->shape.d <= 128)
        return run_dim<T, 128>(a, parts, band);
#ifdef ATTN_GPU_SAMPLE
    return ATTN_SKIP;
#else
    return run_dim<T, 256>(a, parts, band);
#endif
}

template <typename T>
static AttnStatus run_dtype(const AttnArgs *a, float *O_state, FlashRows state, void *workspace,
                            int splits)
{
    const AttnBand band = band_of_host(a);
    SplitStates parts = {NULL, NULL, splits};
    AttnStatus status = O_state ? ATTN_SKIP : few_hopper_run(a, parts, band);
    if (status != ATTN_SKIP)
        return status;
    if (splits > 1 || O_state)
        parts = split_states(&a->shape, splits, workspace);
    status = few_hopper_run(a, parts, band);
    if (status == ATTN_SKIP)
        status = run_mma<T>(a, parts, band);
    return status == ATTN_OK && parts.O ? merge_splits<T>(a, parts, O_state, state) : status;
}

} // namespace few

AttnStatus few_queries_splits(const AttnShape *shape, AttnRule rule, int *splits)
{
    *splits = 0;
    if (few::rows_of(shape) > MOST_ROWS || shape->Nk > 1 << 29)
        return ATTN_OK;
    if (shape->d <= 64)
        return few::parts_of<64>(shape, rule, splits);
    if (shape->d <= 128)
        return few::parts_of<128>(shape, rule, splits);
#ifdef ATTN_GPU_SAMPLE
    return ATTN_OK;
#else
    return shape->d <= 256 ? few::parts_of<256>(shape, rule, splits) : ATTN_OK;
#endif
}

/* One segment each, of one sequence, and positions that grow by 1. */
static bool plain_positions(const AttnArgs *a)
{
    const AttnSegment *q = a->positions_q.host, *k = a->positions_k.host;
    return q && k && a->positions_q.count == 1 && a->positions_k.count == 1 &&
           q->sequence == k->sequence && (q->length == 1 || q->stride == 1) &&
           (k->length == 1 || k->stride == 1);
}

bool few_queries_takes(const AttnArgs *a)
{
    return a->Q.dtype != ATTN_F32 && !a->mask && plain_positions(a) &&
           few::rows_of(&a->shape) > 0 && few::rows_of(&a->shape) <= MOST_ROWS &&
           all_rows_on_16_bytes(a);
}

/* A part alone has a state, too, for a caller that resumes. */
size_t few_queries_bytes(const AttnShape *shape, int splits)
{
    return splits == 0 ? 0
                       : (size_t)(splits * shape->B * shape->H * shape->Nq * (shape->d + 1)) *
                             sizeof(float);
}

FlashTiles few_queries_tiles(const AttnArgs *a, int splits)
{
    const int64_t rows = few::rows_of(&a->shape), group = a->shape.H / a->shape.Hkv;
    const int64_t Bc =
        a->shape.d <= 128 || rows <= 16 ? few::Tile<128, 1>::Bc : few::Tile<256, 2>::Bc;
    FlashTiles tiles = flash_tiles_of(&a->shape, (rows + group - 1) / group, Bc);
    tiles.splits = splits;
    return tiles;
}

AttnStatus few_queries_run(const AttnArgs *a, float *O_state_dev, FlashRows rows_dev,
                           void *workspace_dev, int splits)
{
#ifdef ATTN_NO_CUDA_F16 /* a machine without a GPU that asks whether all compiles */
    if (a->Q.dtype == ATTN_F16)
        return ATTN_SKIP;
    return few::run_dtype<__nv_bfloat16>(a, O_state_dev, rows_dev, workspace_dev, splits);
#else
    return a->Q.dtype == ATTN_F16
               ? few::run_dtype<__half>(a, O_state_dev, rows_dev, workspace_dev, splits)
               : few::run_dtype<__nv_bfloat16>(a, O_state_dev, rows_dev, workspace_dev, splits);
#endif
}
