/* SPDX-License-Identifier: MIT
 *
 * warp_keys.cuh: what a warp does with a tile of a backward pass on tensor cores: load it, multiply
 * it, recompute P and dS, add up the gradients. Stage 04's rungs v2 to v9 are made of it.
 *
 * Tiles lie in shared memory as rows of LD = D + 8 elements. The 8 that are never used shift each
 * row by 16 bytes against the one before: eight rows of 16 bytes, which ldmatrix reads at a time,
 * then fall into eight different groups of banks.
 *
 * A product needs a left and a right factor as fragments (mma.cuh). Both may lie with
 * the summation index k along a row or across the rows; ldmatrix transposes where it runs across.
 * Which row a lane names depends on the lane alone, and there are two cases:
 *
 *     k along, left;  k across, right     lane_plain:    row lane % 16, chunk lane / 16
 *     k across, left; k along, right      lane_crossed:  row lane % 8 + lane / 16 * 8,
 *                                                        chunk lane / 8 % 2
 *
 * Interface:
 * - lane_plain, lane_crossed, smem_address: where this lane points ldmatrix at.
 * - multiply_add: a product of two tiles. accumulate: the left factor is in registers.
 * - load_tile: rows of a tensor to shared memory.
 * - WarpKeys<D, WARPS, MT, Br, ROW_WARPS>: sizes of a tile whose warps own keys (from v3 on).
 *   LeftFactors, compute_scores, store_factor, KeyMask.
 * - WalkTile, first_tile, next_tile, end_of_walk: the tiles of queries that a block visits.
 *   copy_tile, copy_stats (from v4 on).
 * - add_dQ_rows, store_keys: gradients to memory. add_dQ_fragments, finish_fragments (from v5 on).
 * - tile_is_full (from v6 on).
 * What v2 to v6 introduce is written twice: in the rung's own file, in a namespace (v2, v3, ...),
 * so that the file shows its idea; and here, word for word, for the rungs after it.
 */
#ifndef UNITS_WARP_KEYS_CUH
#define UNITS_WARP_KEYS_CUH

#include "units/backward_pass.cuh"
#include "units/mma.cuh"

static __device__ __forceinline__ uint32_t smem_address(const void *smem)
{
    return (uint32_t)__cvta_generic_to_shared(smem);
}

/* Bytes from the first element of a tile with rows of ld elements. */
static __device__ __forceinline__ uint32_t lane_plain(int thread, int ld)
{
    return (uint32_t)(thread % 16 * ld + thread % 32 / 16 * 8) * 2;
}

static __device__ __forceinline__ uint32_t lane_crossed(int thread, int ld)
{
    return (uint32_t)((thread % 8 + thread % 32 / 16 * 8) * ld + thread / 8 % 2 * 8) * 2;
}

/* sum [M x 16 rows][N x 8 columns] += A B, K terms. A lies as [rows][k] (A_ALONG) or [k][rows], its
 * 16 rows m begin A_STEP * m after the first; B lies as [columns][k] (B_ALONG) or [k][columns]. */
template <typename T, bool A_ALONG, bool B_ALONG, int K, int LD_A, int LD_B, int A_STEP, int M,
          int N>
static __device__ __forceinline__ void multiply_add(float (&sum)[M][N][4], uint32_t A, uint32_t B)
{
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        uint32_t A_frag[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            if (A_ALONG)
                ldmatrix_x4(A_frag[m], A + (m * A_STEP * LD_A + k) * 2);
            else
                ldmatrix_x4_trans(A_frag[m], A + (k * LD_A + m * A_STEP) * 2);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t B_frag[4];
            if (B_ALONG)
                ldmatrix_x4(B_frag, B + (n * 8 * LD_B + k) * 2);
            else
                ldmatrix_x4_trans(B_frag, B + (k * LD_B + n * 8) * 2);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16816<T>(sum[m][n], A_frag[m], B_frag[0], B_frag[1]);
                mma_16816<T>(sum[m][n + 1], A_frag[m], B_frag[2], B_frag[3]);
            }
        }
    }
}

/* tile_smem [ROWS][D + 8] = rows first .. of one head, zeros for rows outside of begin .. end - 1:
 * memory there may hold NaN. base: row 0; rows lie `step` elements apart. */
template <typename T, int D, int ROWS, int THREADS>
static __device__ __forceinline__ void load_tile(unsigned char *tile_smem, const T *base,
                                                 int64_t step, int first, RowRange rows)
{
    for (int e = threadIdx.x; e < ROWS * (D / 8); e += THREADS) {
        const int r = e / (D / 8), x = e % (D / 8) * 8, row = first + r;
        uint4 chunk = make_uint4(0, 0, 0, 0);
        if (row >= rows.begin && row < rows.end)
            chunk = *reinterpret_cast<const uint4 *>(base + row * step + x);
        *reinterpret_cast<uint4 *>(tile_smem + (r * (D + 8) + x) * 2) = chunk;
    }
}

/* dK or dV of 16 keys from j0 on, times factor: nobody else has these keys. base: row 0 of a head
 * that has Nk, at the first channel. A lane holds two neighbouring channels of keys g and g + 8. */
template <typename T, int N>
static __device__ __forceinline__ void store_keys(T *base, int64_t step, int j0, int Nk,
                                                  const float (&sum)[N][4], float factor)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int j = j0 + g + 8 * e;
        if (j >= Nk)
            continue;
        T *row = base + j * step + 2 * t;
#pragma unroll
        for (int n = 0; n < N; n++)
            *reinterpret_cast<uint32_t *>(row + n * 8) =
                pack2<T>(sum[n][2 * e] * factor, sum[n][2 * e + 1] * factor);
    }
}

/* dQ_sum += dQ: 16 rows from i0 on. base: row 0 of a head that has Nq, at the first channel. */
template <int N>
static __device__ __forceinline__ void add_dQ_rows(float *base, int64_t step, int i0, int Nq,
                                                   const float (&dQ)[N][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int i = i0 + g + e / 2 * 8;
        if (i >= Nq)
            continue;
        float *row = base + i * step + 2 * t + e % 2;
#pragma unroll
        for (int n = 0; n < N; n++)
            atomicAdd(row + n * 8, dQ[n][e]);
    }
}

/* --- from v3 on: warps own keys ----------------------------------------------------------------*/

/* A block has Bc keys. A warp owns MT x 16 of them; the second 16 lie GROUPS * 16 after the first,
 * behind the first 16 of all warps. In dQ it has Br / ROW_WARPS rows and D / CHANNEL_WARPS
 * channels. PAIR = 2: two warps own the same keys (v9). CHUNK: queries whose scores are in
 * registers at a time. */
template <int D_, int WARPS_, int MT_, int Br_, int ROW_WARPS_, int PAIR_ = 1> struct WarpKeys {
    static const int D = D_, WARPS = WARPS_, THREADS = WARPS * 32, MT = MT_, Br = Br_;
    static const int PAIR = PAIR_, GROUPS = WARPS / PAIR, KEYS = GROUPS * 16, Bc = KEYS * MT;
    static const int LD = D + 8, LD_dS = Br + 8, CHUNK = 32;
    static const int CHANNEL_WARPS = WARPS / ROW_WARPS_;
    static const int dQ_M = Br / ROW_WARPS_ / 16, dQ_N = D / CHANNEL_WARPS / 8;
    static const int WARP_N = D / PAIR / 8; /* n8 tiles of dK and dV of a warp */
    /* bytes in shared memory */
    static const int KEY_TILE = Bc * LD * 2, ROW_TILE = Br * LD * 2, dS_TILE = Bc * LD_dS * 2;
    static const int STATS = Br * 8;
};

/* Which queries see this lane's keys: first[m][e] .. last[m][e] those of key m, g + 8e. Counted
 * from the first query of the tile. */
template <int MT> struct KeyMask {
    int first[MT][2], last[MT][2];
};

template <class C>
static __device__ __forceinline__ KeyMask<C::MT> mask_of_keys(const Band &band, int j0, int i0)
{
    const int key = threadIdx.x / 32 / C::PAIR * 16 + threadIdx.x % 32 / 4;
    KeyMask<C::MT> mask;
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int j = j0 + m * C::KEYS + key + 8 * e;
            mask.first[m][e] = j < band.Nk ? j - band.to - i0 : C::Br;
            mask.last[m][e] = j - band.from - i0;
        }
    return mask;
}

/* Left factors of dV and dK: P^T and dS^T, [MT x 16 keys][QUERIES]. */
template <int MT, int QUERIES> struct LeftFactors {
    uint32_t P[QUERIES / 16][MT][4], dS[QUERIES / 16][MT][4];
};

/* Columns 16k .. 16k + 15 of an accumulator are the left factor of the next product. */
template <typename T, int MT, int N>
static __device__ __forceinline__ void pack_factor(uint32_t (&A)[N / 2][MT][4],
                                                   const float (&sum)[MT][N][4])
{
#pragma unroll
    for (int k = 0; k < N / 2; k++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *pair = sum[m][2 * k + e / 2] + e % 2 * 2;
                A[k][m][e] = pack2<T>(pair[0], pair[1]);
            }
}

/* P^T = exp(S^T - lse) and dS^T = P^T * (dP^T - delta) of this warp's keys and QUERIES queries of
 * the tile from q0 on. K, V, Q, dO: where this lane points ldmatrix at, for Q and dO at q0. stats:
 * of the tile. delta costs nothing: the accumulator of dP starts at -delta. */
template <typename T, class C, bool MASKED, int QUERIES>
static __device__ __forceinline__ void
compute_scores(LeftFactors<C::MT, QUERIES> &f, uint32_t K, uint32_t V, uint32_t Q, uint32_t dO,
               const float2 *stats, int q0, const KeyMask<C::MT> &mask, float scale_log2)
{
    const int t = threadIdx.x % 4;
    float S[C::MT][QUERIES / 8][4], dP[C::MT][QUERIES / 8][4];
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        /* x, y: lse and delta of query 2t; z, w: of 2t + 1 */
        const float4 pair = *reinterpret_cast<const float4 *>(stats + q0 + n * 8 + 2 * t);
#pragma unroll
        for (int m = 0; m < C::MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                S[m][n][e] = 0.0f;
                dP[m][n][e] = e % 2 ? -pair.w : -pair.y;
            }
    }
    multiply_add<T, true, true, C::D, C::LD, C::LD, C::KEYS>(S, K, Q);
    multiply_add<T, true, true, C::D, C::LD, C::LD, C::KEYS>(dP, V, dO);
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        const float4 pair = *reinterpret_cast<const float4 *>(stats + q0 + n * 8 + 2 * t);
#pragma unroll
        for (int m = 0; m < C::MT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int query = q0 + n * 8 + 2 * t + e % 2;
                float s = S[m][n][e];
                if (MASKED && (query < mask.first[m][e / 2] || query > mask.last[m][e / 2]))
                    s = -INFINITY;
                S[m][n][e] = exp2_sfu(fmaf(s, scale_log2, e % 2 ? -pair.z : -pair.x));
                dP[m][n][e] *= S[m][n][e];
            }
    }
    pack_factor<T>(f.P, S);
    pack_factor<T>(f.dS, dP);
}

/* P^T or dS^T to a tile [Bc][Br + 8] in shared memory. Registers 0 and 1 of a factor are keys g and
 * g + 8 of queries 2t, 2t + 1; 2 and 3 the same of the next eight queries. */
template <class C, int K>
static __device__ __forceinline__ void store_factor(unsigned char *to,
                                                    const uint32_t (&A)[K][C::MT][4], int q0)
{
    const int key = threadIdx.x / 32 / C::PAIR * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < C::MT; m++)
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                *reinterpret_cast<uint32_t *>(
                    to +
                    ((m * C::KEYS + key + e % 2 * 8) * C::LD_dS + q0 + k * 16 + e / 2 * 8) * 2 +
                    t * 4) = A[k][m][e];
}

/* sum [MT x 16 keys][N x 8 channels] += A [keys][16 queries] * rows [16][channels]. rows: where
 * this lane points ldmatrix at (lane_plain). */
template <typename T, class C, int N>
static __device__ __forceinline__ void accumulate(float (&sum)[C::MT][N][4],
                                                  const uint32_t (&A)[C::MT][4], uint32_t rows)
{
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t B[4];
        ldmatrix_x4_trans(B, rows + n * 16);
#pragma unroll
        for (int m = 0; m < C::MT; m++) {
            mma_16816<T>(sum[m][n], A[m], B[0], B[1]);
            mma_16816<T>(sum[m][n + 1], A[m], B[2], B[3]);
        }
    }
}

/* dQ of this warp's rows and channels = dS K. dS, K: the tiles in shared memory. */
template <typename T, class C>
static __device__ __forceinline__ void multiply_dS_K(float (&dQ)[C::dQ_M][C::dQ_N][4], uint32_t dS,
                                                     uint32_t K, int thread)
{
    const int row_warp = thread / 32 / C::CHANNEL_WARPS,
              channel_warp = thread / 32 % C::CHANNEL_WARPS;
#pragma unroll
    for (int m = 0; m < C::dQ_M; m++)
#pragma unroll
        for (int n = 0; n < C::dQ_N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                dQ[m][n][e] = 0.0f;
    multiply_add<T, false, false, C::Bc, C::LD_dS, C::LD, 16>(
        dQ, dS + lane_crossed(thread, C::LD_dS) + row_warp * C::dQ_M * 32,
        K + lane_plain(thread, C::LD) + channel_warp * C::dQ_N * 16);
}

/* --- from v4 on: tiles that arrive in the background -------------------------------------------*/

/* A walk over the tiles of queries that see a block's keys: of one head of the group after
 * another. */
struct WalkTile {
    int h, i0;
};

/* Behind the last tile: h = end_of_walk. */
static __device__ __forceinline__ int end_of_walk(const KeyBlock &block)
{
    return (block.h_kv + 1) * block.group;
}

static __device__ __forceinline__ WalkTile first_tile(const KeyBlock &block, RowRange rows, int Br)
{
    WalkTile tile;
    tile.h = rows.begin < rows.end ? block.h_kv * block.group : end_of_walk(block);
    tile.i0 = rows.begin / Br * Br;
    return tile;
}

static __device__ __forceinline__ WalkTile next_tile(WalkTile tile, RowRange rows, int Br)
{
    tile.i0 += Br;
    if (tile.i0 >= rows.end) {
        tile.i0 = rows.begin / Br * Br;
        tile.h++;
    }
    return tile;
}

/* load_tile by cp.async; the caller commits. A thread keeps its chunk and walks down the rows. */
template <typename T, int D, int ROWS, int THREADS>
static __device__ __forceinline__ void copy_tile(uint32_t tile, const T *base, int64_t step,
                                                 int first, RowRange rows, int thread)
{
    const int CHUNKS = D / 8, STEP = THREADS / CHUNKS, r = thread / CHUNKS, x = thread % CHUNKS * 8;
    const T *from = base + (first + r) * step + x;
    tile += (r * (D + 8) + x) * 2;
#pragma unroll
    for (int n = 0; n < ROWS; n += STEP) {
        const int row = first + r + n, valid = row >= rows.begin && row < rows.end;
        copy_async_16(tile + n * (D + 8) * 2, valid ? from : base, valid);
        from += STEP * step;
    }
}

/* stats of COUNT queries, 16 bytes a thread. */
template <int COUNT>
static __device__ __forceinline__ void copy_stats(uint32_t to, const float2 *from, int thread)
{
    if (thread < COUNT / 2)
        copy_async_16(to + thread * 16, from + thread * 2, 1);
}

/* --- from v5 on: dQ in the order of the accumulators -------------------------------------------*/

/* In memory += c. From sm_90 on one instruction adds four floats. */
static __device__ __forceinline__ void add_4(float *to, const float (&c)[4])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(c[0]), "f"(c[1]),
                 "f"(c[2]), "f"(c[3])
                 : "memory");
#else
#pragma unroll
    for (int e = 0; e < 4; e++)
        atomicAdd(to + e, c[e]);
#endif
}

/* dQ_sum [B][H][Tr][WARPS][dQ_M][dQ_N][32 lanes][4]: 512 neighbouring bytes for each tile of 16 x 8
 * elements. head: b * H + h. */
template <class C>
static __device__ __forceinline__ void add_dQ_fragments(float *dQ_sum, int head, int Tr, int i,
                                                        const float (&dQ)[C::dQ_M][C::dQ_N][4],
                                                        int thread)
{
    float *to = dQ_sum + ((int64_t)head * Tr + i) * (C::Br * C::D) +
                (thread / 32 * (C::dQ_M * C::dQ_N) * 32 + thread % 32) * 4;
#pragma unroll
    for (int m = 0; m < C::dQ_M; m++)
#pragma unroll
        for (int n = 0; n < C::dQ_N; n++)
            add_4(to + (m * C::dQ_N + n) * 128, dQ[m][n]);
}

/* dQ [B][Nq][H][D] = scale * dQ_sum, rounded, each element in its place. A thread takes four
 * neighbouring lanes' floats of one 16 x 8 tile: eight channels of row g and of row g + 8. */
template <typename T, class C>
static __global__ void __launch_bounds__(256)
    fragments_kernel(const __grid_constant__ PassSizes n, float scale, const float *dQ_sum, T *dQ)
{
    const int64_t item = blockIdx.x * (int64_t)256 + threadIdx.x; /* of 8 x 4 floats */
    const int64_t tile = item / (C::Br * C::D / 16);              /* [B][H][Tr] */
    const int rest = (int)(item % (C::Br * C::D / 16)), g = rest % 8, fragment = rest / 8;
    const int Nq = n.band.Nq, Tr = divide_up(Nq, C::Br), head = (int)(tile / Tr), b = head / n.H;
    if (b >= n.B)
        return;
    const int column = fragment % C::dQ_N, m = fragment / C::dQ_N % C::dQ_M;
    const int warp = fragment / C::dQ_N / C::dQ_M;
    const int i = (int)(tile % Tr) * C::Br + (warp / C::CHANNEL_WARPS * C::dQ_M + m) * 16 + g;
    const int x = (warp % C::CHANNEL_WARPS * C::dQ_N + column) * 8;
    const float *from = dQ_sum + item * 16;
    uint32_t low[4], high[4]; /* of rows g and g + 8 */
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const float4 lane = *reinterpret_cast<const float4 *>(from + 4 * t);
        low[t] = pack2<T>(lane.x * scale, lane.y * scale);
        high[t] = pack2<T>(lane.z * scale, lane.w * scale);
    }
    const int64_t step = (int64_t)n.H * C::D; /* row to row */
    T *row = dQ + ((int64_t)b * Nq + i) * step + head % n.H * C::D + x;
    if (i < Nq)
        *reinterpret_cast<uint4 *>(row) = make_uint4(low[0], low[1], low[2], low[3]);
    if (i + 8 < Nq)
        *reinterpret_cast<uint4 *>(row + 8 * step) = make_uint4(high[0], high[1], high[2], high[3]);
}

template <typename T, class C>
static inline void finish_fragments(const PassSizes &n, float scale, const float *dQ_sum, T *dQ,
                                    cudaStream_t stream)
{
    const int64_t tiles = (int64_t)n.B * n.H * divide_up(n.band.Nq, C::Br);
    const int64_t items = tiles * (C::Br * C::D / 16);
    const auto fragments = fragments_kernel<T, C>; /* that above: a call might find another */
    fragments<<<(unsigned)((items + 255) / 256), 256, 0, stream>>>(n, scale, dQ_sum, dQ);
}

/* --- from v6 on: no mask where it hides nothing ------------------------------------------------*/

/* Are all pairs of queries i0 .. and keys j0 .. of the tile seen, and do the keys exist? */
template <class C>
static __device__ __forceinline__ bool tile_is_full(const Band &band, int i0, int j0)
{
    return j0 - (i0 + C::Br - 1) >= band.from && j0 + C::Bc - 1 - i0 <= band.to &&
           j0 + C::Bc <= band.Nk;
}

#endif
