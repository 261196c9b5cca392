/* SPDX-License-Identifier: MIT
 *
 * wgmma_keys.cuh: what the Hopper rungs of the backward pass share: 64 keys of a warpgroup, and the
 * tiles of queries that they meet. (In the forward pass a block owns rows: wgmma_rows.cuh.) Who
 * loads, who waits for whom and in which order is what the rungs are about, and stands in them.
 *
 * A block has 128 keys, 64 for each of two warpgroups ("consumers"). The five products, for the
 * keys of a warpgroup and Br queries, [rows x columns]:
 *
 *     S^T  = K Q^T      [64 x Br]   both factors from shared memory
 *     dP^T = V dO^T     [64 x Br]   both factors from shared memory
 *     dV  += P^T dO     [64 x d]    P^T is where S^T was: in registers, as left factor
 *     dK  += dS^T Q     [64 x d]    dS^T from registers, too
 *     dQ   = dS K       [64 x 64]   over the keys of both warpgroups: dS goes through shared memory
 *
 * dQ of a tile is Br x d = 128 x 64 or 64 x 128. Each warpgroup has 64 x 64 of it, and each of its
 * warps 16 rows of these: 16 x 64 floats, a slab. In global memory the sums of dQ lie slab by slab,
 * [B][H][Nq / 64][4 warps][d / 64], and a slab lies as the accumulators do, [8 times 8 channels]
 * [32 lanes][4]: so a warp adds 512 bytes in a row.
 *
 * The budget:                   d = 64, Br = 128                d = 128, Br = 64
 *
 *     registers of a consumer   S 64, dP 64, dK 32, dV 32       S 32, dP 32, dK 64, dV 64
 *                               = 192 of 240                    = 192 of 240
 *     shared memory, KiB        K 16, V 16, Q 2 x 16, dO 2 x 16     K 32, V 32, Q 2 x 16, dO 2 x 16
 *                               dS 2 x 32, stats 2                  dS 2 x 16, stats 1
 *                               = 162 of 227                        = 161 of 227
 *
 * P, dS and dQ take the registers of S and dP. A tile has 2560 clocks of products for either d.
 *
 * Interface:
 * - WgmmaKeys: the constants of one kernel, and where things lie in shared memory.
 * - KeyMaps, make_key_maps (host): tensor maps. round_slabs (host): dQ, when all is added up.
 * - KeyWalk, start_walk, next_tile: the tiles of queries of a block. sees_all, rows_of_key.
 * - load_keys, load_Q, load_dO: orders to the copy engine. clear_unseen_rows.
 * - start_barriers, report, produce: the mbarriers, and all that a producer does (from v11 on).
 * - multiply_rows, add_product, multiply_dS_K: the products, each a group. start_sums.
 * - hide_pairs, exponentiate, multiply_by_P, round_factor, store_dS: between the products.
 * - dQ_slab, add_dQ: to global memory. store_gradients: the end of a block.
 * What v11 introduces (produce) stands in its file in the same words, and is its own there.
 */
#ifndef UNITS_WGMMA_KEYS_CUH
#define UNITS_WGMMA_KEYS_CUH

#include "units/backward_pass.cuh"
#include "units/hopper.cuh"

#define CONSUMER_THREADS 256
/* Named barriers: in 1 warpgroup 0 meets, in 2 warpgroup 1, in 3 both; v12 has 4 and 5. */
#define CONSUMERS_MEET 3
/* From v11 on warpgroups 0 and 1 compute and the third loads. Registers of each of their threads:
 * 256 x 240 and 128 x 24 are 64,512, of 65,536. */
#define PRODUCER           2
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240

template <int D_> struct WgmmaKeys {
    static const int D = D_, Br = D == 64 ? 128 : 64, Bc = 128, STAGES = 2;
    static const int BOX = 64 * D * 2;           /* bytes of 64 rows: what a tensor map moves */
    static const int PANEL_BYTES = 64 * 128;     /* of a box of K or V */
    static const int ROW_PANEL_BYTES = Br * 128; /* of a tile of Q or dO */
    static const int ROWS_BYTES = Br * D * 2, STATS_BYTES = Br * 8;
    static const int dS_PANEL_BYTES = Bc * 128, dS_BYTES = Bc * Br * 2; /* [Br / 64][Bc][64] */
    static const int K = 0, V = K + 2 * BOX, Q = V + 2 * BOX, dO = Q + STAGES * ROWS_BYTES;
    static const int dS = dO + STAGES * ROWS_BYTES, STATS = dS + 2 * dS_BYTES;
    static const int KV_FULL = STATS + STAGES * STATS_BYTES;
    static const int Q_FULL = KV_FULL + 8, dO_FULL = Q_FULL + 8 * STAGES;
    static const int Q_FREE = dO_FULL + 8 * STAGES, dO_FREE = Q_FREE + 8 * STAGES;
    static const int dS_FULL = dO_FREE + 8 * STAGES, dS_FREE = dS_FULL + 8 * 2; /* from v12 on */
    static const int ALL = dS_FREE + 8 * 2;
    static_assert(ALL <= 227 * 1024, "tiles do not fit");
    static_assert(STAGES == 2, "dS has two places, and walks count tiles by twos");
    static_assert(dS_BYTES <= Q - K, "v12 reads K and V in place of the first dS");
};

/* --- host --------------------------------------------------------------------------------------*/

struct KeyMaps {
    CUtensorMap Q, K, V, dO, dK, dV; /* boxes of 64 rows */
};

/* Q, dO [B][Nq][H][D] and K, V, dK, dV [B][Nk][Hkv][D]. false: it failed, and stderr says why. */
template <typename T, int D>
static bool make_key_maps(KeyMaps *maps, const PassSizes &n, int Hkv, const void *Q, const void *K,
                          const void *V, const void *dO, void *dK, void *dV)
{
    const int B = n.B, H = n.H, Nq = n.band.Nq, Nk = n.band.Nk;
    return make_tile_map<T>(&maps->Q, Q, B, Nq, H, D, 64) &&
           make_tile_map<T>(&maps->K, K, B, Nk, Hkv, D, 64) &&
           make_tile_map<T>(&maps->V, V, B, Nk, Hkv, D, 64) &&
           make_tile_map<T>(&maps->dO, dO, B, Nq, H, D, 64) &&
           make_tile_map<T>(&maps->dK, dK, B, Nk, Hkv, D, 64) &&
           make_tile_map<T>(&maps->dV, dV, B, Nk, Hkv, D, 64) && launch_is_done(0, NULL);
}

/* dQ [B][Nq][H][D] = scale * dQ_sum. A thread has four lanes' floats of one 16 x 8 tile: eight
 * channels of rows g and g + 8; eight neighbouring threads have 64 channels. */
template <typename T, int D>
static __global__ void __launch_bounds__(256)
    slabs_kernel(const __grid_constant__ PassSizes size, float scale, const float *dQ_sum, T *dQ)
{
    const int64_t item = blockIdx.x * (int64_t)256 + threadIdx.x;
    const int Nq = size.band.Nq, Tr = divide_up(Nq, 64), H = size.H;
    const int n = item % 8, g = item / 8 % 8, panel = item / 64 % (D / 64), warp = item / D % 4;
    const int tile = (int)(item / (4 * D)), head = tile / Tr, i = tile % Tr * 64 + warp * 16 + g;
    if (head >= size.B * H)
        return;
    const float *from = dQ_sum + ((item / 64 * 8 + n) * 8 + g) * 16;
    T *to = dQ + (((int64_t)(head / H) * Nq + i) * H + head % H) * D + panel * 64 + n * 8;
    uint32_t rows[2][4]; /* g and g + 8 */
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const float4 lane = *reinterpret_cast<const float4 *>(from + 4 * t);
        rows[0][t] = pack2<T>(lane.x * scale, lane.y * scale);
        rows[1][t] = pack2<T>(lane.z * scale, lane.w * scale);
    }
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (i + 8 * e < Nq)
            *reinterpret_cast<uint4 *>(to + (int64_t)8 * e * H * D) =
                make_uint4(rows[e][0], rows[e][1], rows[e][2], rows[e][3]);
}

template <typename T, int D>
static void round_slabs(const PassSizes &n, float scale, const float *dQ_sum, T *dQ,
                        cudaStream_t stream)
{
    const int64_t items = (int64_t)n.B * n.H * divide_up(n.band.Nq, 64) * (4 * D);
    slabs_kernel<T, D><<<(unsigned)((items + 255) / 256), 256, 0, stream>>>(n, scale, dQ_sum, dQ);
}

/* --- the tiles of queries that a block visits --------------------------------------------------*/

/* Where a block of keys is on its walk over `count` tiles. It is at queries i0 ... of head h. Each
 * head of the group has tiles from query `first` up to `end`, and one head comes after another. */
struct KeyWalk {
    int i0, h, first, end, count;
};

/* rows: queries that see any key of the block. */
template <class C>
static __device__ __forceinline__ KeyWalk start_walk(const KeyBlock &block, RowRange rows)
{
    KeyWalk walk;
    walk.i0 = walk.first = rows.begin / C::Br * C::Br;
    walk.end = rows.end;
    walk.h = block.h_kv * block.group;
    walk.count = rows.begin < rows.end ? block.group * divide_up(rows.end - walk.first, C::Br) : 0;
    return walk;
}

template <class C> static __device__ __forceinline__ void next_tile(KeyWalk &walk)
{
    walk.i0 += C::Br;
    if (walk.i0 >= walk.end) {
        walk.i0 = walk.first;
        walk.h++;
    }
}

/* Do all queries of the tile see all keys of the block? */
template <class C> static __device__ __forceinline__ bool sees_all(const Band &band, int i0, int j0)
{
    return j0 - (i0 + C::Br - 1) >= band.from && j0 + C::Bc - 1 - i0 <= band.to &&
           j0 + C::Bc <= band.Nk && i0 + C::Br <= band.Nq;
}

/* The queries that see one key. A key past the end has none: they begin behind all that exist. */
static __device__ __forceinline__ RowRange rows_of_key(const Band &band, int key)
{
    return {key < band.Nk ? key - band.to : 1 << 30, min(key - band.from + 1, band.Nq)};
}

/* --- orders to the copy engine, by one thread --------------------------------------------------*/

/* cp.async.bulk, global to shared memory: bytes, a multiple of 16, that count on `barrier`. */
static __device__ __forceinline__ void load_bytes(uint32_t to_smem, const void *from, int bytes,
                                                  uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to_smem),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* K and V: 64 keys of each consumer. */
template <class C>
static __device__ __forceinline__ void load_keys(const KeyMaps &maps, const KeyBlock &block,
                                                 uint32_t smem)
{
    barrier_expect(smem + C::KV_FULL, 4 * C::BOX);
    for (int half = 0; half < 2; half++) {
        load_tile(smem + C::K + half * C::BOX, &maps.K, block.b, block.h_kv, block.j0 + half * 64,
                  smem + C::KV_FULL);
        load_tile(smem + C::V + half * C::BOX, &maps.V, block.b, block.h_kv, block.j0 + half * 64,
                  smem + C::KV_FULL);
    }
}

/* Q and its stats. stats: of the head, of whole groups of 64 queries. Where a tile of 128 has only
 * 64 left, the stats of these are loaded twice: queries past the end are hidden anyway. */
template <class C>
static __device__ __forceinline__ void load_Q(const KeyMaps &maps, const KeyBlock &block,
                                              const KeyWalk &walk, const float2 *stats, int Nq,
                                              uint32_t smem, int stage)
{
    const uint32_t barrier = smem + C::Q_FULL + 8 * stage;
    barrier_expect(barrier, C::ROWS_BYTES + C::STATS_BYTES);
    for (int n = 0; n < C::Br; n += 64) {
        const int i = walk.i0 + n;
        load_tile(smem + C::Q + stage * C::ROWS_BYTES + n / 64 * C::BOX, &maps.Q, block.b, walk.h,
                  i, barrier);
        load_bytes(smem + C::STATS + stage * C::STATS_BYTES + n * 8, stats + (i < Nq ? i : walk.i0),
                   64 * 8, barrier);
    }
}

template <class C>
static __device__ __forceinline__ void load_dO(const KeyMaps &maps, const KeyBlock &block,
                                               const KeyWalk &walk, uint32_t smem, int stage)
{
    const uint32_t barrier = smem + C::dO_FULL + 8 * stage;
    barrier_expect(barrier, C::ROWS_BYTES);
    for (int n = 0; n < C::Br; n += 64)
        load_tile(smem + C::dO + stage * C::ROWS_BYTES + n / 64 * C::BOX, &maps.dO, block.b, walk.h,
                  walk.i0 + n, barrier);
}

/* By one thread: a stage is free, and a dS full, when each warp of the consumers has said so. */
template <class C> static __device__ __forceinline__ void start_barriers(uint32_t smem)
{
    barrier_init(smem + C::KV_FULL, 1);
    for (int stage = 0; stage < C::STAGES; stage++) {
        barrier_init(smem + C::Q_FULL + 8 * stage, 1);
        barrier_init(smem + C::dO_FULL + 8 * stage, 1);
        barrier_init(smem + C::Q_FREE + 8 * stage, CONSUMER_THREADS / 32);
        barrier_init(smem + C::dO_FREE + 8 * stage, CONSUMER_THREADS / 32);
        barrier_init(smem + C::dS_FULL + 8 * stage, CONSUMER_THREADS / 32);
        barrier_init(smem + C::dS_FREE + 8 * stage, CONSUMER_THREADS / 32);
    }
    barrier_init_done();
}

/* By each warp of the consumers, when it no longer reads a stage, or has written its part of dS.
 * Each lane read stats or wrote dS, and lane 0 speaks for all 32: so they meet first. */
static __device__ __forceinline__ void report(uint32_t barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(barrier);
}

/* By the producer: all tiles, each as soon as its stage is free. */
template <class C>
static __device__ __forceinline__ void produce(const KeyMaps &maps, const KeyBlock &block,
                                               const Pass &pass, int H, int Nq, KeyWalk walk,
                                               uint32_t smem)
{
    load_keys<C>(maps, block, smem);
#pragma unroll 1
    for (int tile = 0; tile < walk.count; tile++) {
        const int stage = tile % 2, before = tile / 2 % 2 ^ 1;
        barrier_wait(smem + C::Q_FREE + 8 * stage, before, WAIT_FREE_Q);
        load_Q<C>(maps, block, walk, stats_of_head(pass, block.b * H + walk.h, Nq), Nq, smem,
                  stage);
        barrier_wait(smem + C::dO_FREE + 8 * stage, before, WAIT_FREE_dO);
        load_dO<C>(maps, block, walk, smem, stage);
        next_tile<C>(walk);
    }
}

/* By each warpgroup for itself, so that none has to wait for the other. Queries that see no key may
 * hold anything, and 0 * NaN is NaN: their rows of a tile of Q or dO become zeros. */
template <class C>
static __device__ __forceinline__ void clear_unseen_rows(unsigned char *tile, RowRange seeing,
                                                         int i0, int Nq)
{
    if (i0 >= seeing.begin && min(i0 + C::Br, Nq) <= seeing.end)
        return;
    for (int chunk = threadIdx.x % 128; chunk < C::ROWS_BYTES / 16; chunk += 128) {
        const int i = i0 + chunk / 8 % C::Br;
        if (i < seeing.begin || i >= seeing.end)
            *reinterpret_cast<uint4 *>(tile + chunk * 16) = make_uint4(0, 0, 0, 0);
    }
    fence_async();
    threads_sync(1 + threadIdx.x / 128, 128);
}

/* --- the products ------------------------------------------------------------------------------*/

/* Issues S^T = K Q^T or dP^T = V dO^T. keys: the warpgroup's box of K or V. */
template <typename T, class C>
static __device__ __forceinline__ void multiply_rows(float (&S)[C::Br / 8][4], uint32_t keys,
                                                     uint32_t rows)
{
    const uint64_t A = tile_descriptor(keys, C::PANEL_BYTES);
    const uint64_t B = tile_descriptor(rows, C::ROW_PANEL_BYTES);
    multiply_smem<T, 0>(S, A, B);
#pragma unroll
    for (int k = 1; k < C::D / 16; k++)
        multiply_smem<T, 1>(S, A + row_tile_step(k, C::PANEL_BYTES),
                            B + row_tile_step(k, C::ROW_PANEL_BYTES));
    wgmma_commit();
}

/* Issues dV += P^T dO or dK += dS^T Q. */
template <typename T, class C>
static __device__ __forceinline__ void
add_product(float (&sum)[C::D / 8][4], const uint32_t (&factor)[C::Br / 16][4], uint32_t rows)
{
    const uint64_t B = tile_descriptor(rows, C::ROW_PANEL_BYTES);
#pragma unroll
    for (int k = 0; k < C::Br / 16; k++)
        multiply_registers<T>(sum, factor[k], B + key_tile_step(k));
    wgmma_commit();
}

/* wgmma.mma_async m64n64k16 with both factors transposed: their rows are what the sum runs over. */
#define WGMMA_TRANSPOSED(N, TYPE, NAMES, ...)                                                      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES        \
                 "}, %32, %33, p, 1, 1, 1, 1;\n}\n"                                                \
                 : __VA_ARGS__                                                                     \
                 : "l"(A_desc), "l"(B_desc), "n"(ADD))

template <typename T, int ADD>
static __device__ __forceinline__ void multiply_transposed(float (&C)[8][4], uint64_t A_desc,
                                                           uint64_t B_desc)
{
    BY_TYPE(WGMMA_TRANSPOSED, 64, NAMES_64, COLUMNS_64(C, 0));
}

/* Issues this warpgroup's 64 x 64 of dQ = dS K. dS, K: of the block. */
template <typename T, class C>
static __device__ __forceinline__ void multiply_dS_K(float (&dQ)[8][4], uint32_t dS, uint32_t K,
                                                     int warpgroup)
{
    const uint64_t A =
        tile_descriptor(dS + (C::D == 64 ? warpgroup * C::dS_PANEL_BYTES : 0), C::dS_PANEL_BYTES);
    const uint64_t B =
        tile_descriptor(K + (C::D == 64 ? 0 : warpgroup * C::PANEL_BYTES), C::PANEL_BYTES);
    multiply_transposed<T, 0>(dQ, A, B);
#pragma unroll
    for (int k = 1; k < C::Bc / 16; k++)
        multiply_transposed<T, 1>(dQ, A + key_tile_step(k),
                                  B + (k / 4 * (C::BOX >> 4)) + key_tile_step(k % 4));
    wgmma_commit();
}

/* --- between the products ----------------------------------------------------------------------*/

/* Scores of pairs that are not seen become -inf. seen: the queries that see this lane's keys. */
template <class C>
static __device__ __forceinline__ void hide_pairs(float (&S)[C::Br / 8][4],
                                                  const RowRange (&seen)[2], int i0)
{
    const int query = i0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        /* 8 n + x, which the compiler knows, against two limits, which it does not. */
        const int first = seen[e].begin - query, last = seen[e].end - 1 - query;
#pragma unroll
        for (int n = 0; n < C::Br / 8; n++)
#pragma unroll
            for (int x = 0; x < 2; x++)
                if (8 * n + x < first || 8 * n + x > last)
                    S[n][2 * e + x] = -INFINITY;
    }
}

/* P^T = 2^(scale_log2 S^T - lse log2(e)). stats: of the tile. */
template <class C>
static __device__ __forceinline__ void exponentiate(float (&S)[C::Br / 8][4], const float2 *stats,
                                                    float scale_log2)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < C::Br / 8; n++) {
        /* x, y: lse log2(e) and delta of query 2t; z, w: of 2t + 1 */
        const float4 pair = *reinterpret_cast<const float4 *>(stats + n * 8 + 2 * t);
#pragma unroll
        for (int e = 0; e < 4; e++)
            S[n][e] = exp2_sfu(fmaf(S[n][e], scale_log2, e % 2 ? -pair.z : -pair.x));
    }
}

/* dS^T = P^T (dP^T - delta) */
template <class C>
static __device__ __forceinline__ void
multiply_by_P(float (&dP)[C::Br / 8][4], const float (&P)[C::Br / 8][4], const float2 *stats)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < C::Br / 8; n++) {
        const float4 pair = *reinterpret_cast<const float4 *>(stats + n * 8 + 2 * t);
#pragma unroll
        for (int e = 0; e < 4; e++)
            dP[n][e] = P[n][e] * (dP[n][e] - (e % 2 ? pair.w : pair.y));
    }
}

/* P^T or dS^T as the left factor of the next product: two column tiles are one tile of A. */
template <typename T, class C>
static __device__ __forceinline__ void round_factor(uint32_t (&A)[C::Br / 16][4],
                                                    const float (&sum)[C::Br / 8][4])
{
#pragma unroll
    for (int k = 0; k < C::Br / 16; k++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            A[k][e] = pack2<T>(sum[2 * k + e / 2][e % 2 * 2], sum[2 * k + e / 2][e % 2 * 2 + 1]);
}

/* stmatrix: four 8 x 8 tiles of 16 bits to shared memory. Lane 8 m + r says where row r of tile m
 * goes; the tiles come in the layout of C, two neighbours in a register. */
static __device__ __forceinline__ void store_matrices(uint32_t to_smem, const uint32_t (&tiles)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to_smem),
                 "r"(tiles[0]), "r"(tiles[1]), "r"(tiles[2]), "r"(tiles[3])
                 : "memory");
}

/* dS^T of this warpgroup's keys to the tile at dS: a lane names row lane % 16 of its warp's 16
 * keys, and the chunk of eight queries that is to stand there. */
template <class C>
static __device__ __forceinline__ void store_dS(uint32_t dS, const uint32_t (&A)[C::Br / 16][4],
                                                int warpgroup)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const uint32_t row = dS + (64 * warpgroup + 16 * warp + lane % 16) * 128;
#pragma unroll
    for (int k = 0; k < C::Br / 16; k++)
        store_matrices(row + k / 4 * C::dS_PANEL_BYTES + ((k % 4 * 2 + lane / 16) ^ lane % 8) * 16,
                       A[k]);
}

/* --- to global memory --------------------------------------------------------------------------*/

/* Where this warp's slab of dQ is added up, or NULL: a tile of 128 queries may have its last 64
 * behind the end. head: b * H + h. */
template <class C>
static __device__ __forceinline__ float *dQ_slab(float *dQ_sum, int head, int Nq, int i0,
                                                 int warpgroup)
{
    const int i = i0 / 64 + (C::D == 64 ? warpgroup : 0), warp = threadIdx.x % 128 / 32;
    const int Tr = divide_up(Nq, 64);
    const int64_t tile = (int64_t)head * Tr + i;
    const int slab = warp * (C::D / 64) + (C::D == 64 ? 0 : warpgroup);
    return i < Tr ? dQ_sum + tile * (64 * C::D) + slab * (16 * 64) : NULL;
}

/* red.global.add.v4.f32 */
static __device__ __forceinline__ void add_4(float *to, const float (&c)[4])
{
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(c[0]), "f"(c[1]),
                 "f"(c[2]), "f"(c[3])
                 : "memory");
}

/* From registers. */
static __device__ __forceinline__ void add_dQ(float *to, const float (&dQ)[8][4])
{
    if (to)
#pragma unroll
        for (int n = 0; n < 8; n++)
            add_4(to + (n * 32 + threadIdx.x % 32) * 4, dQ[n]);
}

template <class C>
static __device__ __forceinline__ void start_sums(float (&dK)[C::D / 8][4],
                                                  float (&dV)[C::D / 8][4])
{
#pragma unroll
    for (int n = 0; n < C::D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            dK[n][e] = dV[n][e] = 0.0f;
}

/* 64 keys of dK or dV, times factor, to `box` in shared memory. */
template <typename T, class C>
static __device__ __forceinline__ void round_keys(const float (&sum)[C::D / 8][4], float factor,
                                                  unsigned char *box)
{
    const int warp = threadIdx.x % 128 / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
        for (int n = 0; n < C::D / 8; n++) /* chunk n % 8 of panel n / 8, swizzled */
            *reinterpret_cast<uint32_t *>(
                box + n / 8 * C::PANEL_BYTES + (16 * warp + g + 8 * e) * 128 + (n % 8 ^ g) * 16 +
                t * 4) = pack2<T>(sum[n][2 * e] * factor, sum[n][2 * e + 1] * factor);
}

/* dK and dV of this warpgroup's keys. They leave through the shared memory of K and V, so all
 * consumers meet first: nobody reads these any more. Rows past the end are left out. */
template <typename T, class C>
static __device__ __forceinline__ void store_gradients(const float (&dK)[C::D / 8][4],
                                                       const float (&dV)[C::D / 8][4], float scale,
                                                       const KeyMaps &maps, const KeyBlock &block,
                                                       int Nk, unsigned char *smem, int warpgroup)
{
    unsigned char *K = smem + C::K + warpgroup * C::BOX, *V = smem + C::V + warpgroup * C::BOX;
    const int j = block.j0 + 64 * warpgroup;
    threads_sync(CONSUMERS_MEET, CONSUMER_THREADS);
    round_keys<T, C>(dK, scale, K);
    round_keys<T, C>(dV, 1.0f, V);
    fence_async();
    threads_sync(1 + warpgroup, 128);
    if (threadIdx.x % 128 == 0 && j < Nk) {
        store_tile((uint32_t)__cvta_generic_to_shared(K), &maps.dK, block.b, block.h_kv, j);
        store_tile((uint32_t)__cvta_generic_to_shared(V), &maps.dV, block.b, block.h_kv, j);
        store_tiles_read(); /* a block may not end before */
    }
}

#endif
