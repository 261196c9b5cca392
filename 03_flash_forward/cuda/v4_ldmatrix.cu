/* SPDX-License-Identifier: MIT
 *
 * v4_ldmatrix: v3 with fragments that are loaded four at a time.
 *
 *   - ldmatrix: one instruction of a warp loads four 8x8 matrices as fragments, transposed if asked
 *     (warp_tile.cuh). For 16 keys x 16 channels of V it replaces eight 2-byte loads and four moves
 *     of a thread.
 *   - Swizzle: the 16-byte chunks of row r are stored in the order chunk XOR (r mod 8). The 8 rows
 *     of an 8x8 matrix then lie in different banks without padding, and every tile keeps a size of
 *     2^n bytes. The one belongs to the other: ldmatrix reads whole 16-byte rows.
 *
 * Prediction (H200, bf16, N = 16384, full): for 16 keys x 16 channels of V, v3 issues 8 loads, 4
 * moves and 4 mma; here 1 load and 4 mma. Of K: 4 loads become 1. A tile and warp at d = 64 has 128
 * mma, and beside them 16 blocks of 16 x 16 of V and as many of K: 16 x 12 + 16 x 4 = 256
 * instructions become 32, of about 256 + 128 + 64 x 10 (softmax and mask): a fifth to a quarter
 * less time where issue slots limit. At d = 128 products weigh twice, the softmax once: a third.
 * Measured: docs/lab/03_rungs.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 * Namespace v4 holds what this rung adds. warp_tile.cuh has the same words for later rungs; here
 * v4:: is what runs.
 */
#include "problem.cuh"
#include "units/warp_tile.cuh"

namespace v4
{

/* Where this lane points ldmatrix at: Q, and K and V of stage 0. */
struct TileAddresses {
    uint32_t Q, K, V;
};

template <class C>
static __device__ __forceinline__ TileAddresses tile_addresses(uint32_t smem, int thread)
{
    const int lane = thread % 32;
    const uint32_t K_smem = smem + C::Q_BYTES, V_smem = K_smem + C::K_BYTES;
    return {smem + swizzle<C::D>(thread / 32 * 16 + lane % 16, lane / 16),
            K_smem + swizzle<C::D>(lane % 8 + lane / 16 * 8, lane / 8 % 2),
            V_smem + swizzle<C::D>(lane % 16, lane / 16)};
}

/* Channels 16k .. 16k + 15 of m16 tile mt. */
template <class C>
static __device__ __forceinline__ void load_Q(uint32_t (&Q_frag)[4], uint32_t Q_lane, int mt, int k)
{
    ldmatrix_x4(Q_frag, skip_chunks<C::D>(Q_lane, k) + mt * C::WARPS * 16 * C::D * 2);
}

/* S_reg = Q K_j^T. Q_reg: the fragments of Q, or NULL: they are loaded here, for each tile of keys
 * again. */
template <typename T, class C, bool Q_IN_REGISTERS, int MT0 = 0, int COUNT = C::MT>
static __device__ __forceinline__ void multiply_QK(float (&S_reg)[COUNT][C::Bc / 8][4],
                                                   const uint32_t (*Q_reg)[C::MT][4],
                                                   uint32_t Q_lane, uint32_t K_lane)
{
#pragma unroll
    for (int c = 0; c < COUNT; c++)
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                S_reg[c][n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < C::D / 16; k++) {
        uint32_t Q_frag[COUNT][4];
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            if (!Q_IN_REGISTERS)
                load_Q<C>(Q_frag[c], Q_lane, MT0 + c, k);
#pragma unroll
            for (int e = 0; Q_IN_REGISTERS && e < 4; e++)
                Q_frag[c][e] = Q_reg[k][MT0 + c][e];
        }
#pragma unroll
        for (int n = 0; n < C::Bc / 16; n++) {
            uint32_t K_frag[4];
            ldmatrix_x4(K_frag, skip_chunks<C::D>(K_lane, k) + n * 16 * C::D * 2);
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                mma_16816<T>(S_reg[c][2 * n], Q_frag[c], K_frag[0], K_frag[1]);
                mma_16816<T>(S_reg[c][2 * n + 1], Q_frag[c], K_frag[2], K_frag[3]);
            }
        }
    }
}

/* O += P V_j. V is transposed on its way to the registers. */
template <typename T, class C, int MT0 = 0, int COUNT = C::MT>
static __device__ __forceinline__ void
multiply_PV(TileRows<C> &rows, const float (&P_reg)[COUNT][C::Bc / 8][4], uint32_t V_lane)
{
#pragma unroll
    for (int k = 0; k < C::Bc / 16; k++) {
        uint32_t P_frag[COUNT][4];
        pack_P<T, C, COUNT>(P_frag, P_reg, k);
#pragma unroll
        for (int n = 0; n < C::D / 16; n++) {
            uint32_t V_frag[4];
            ldmatrix_x4_trans(V_frag, skip_chunks<C::D>(V_lane, n) + k * 16 * C::D * 2);
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                mma_16816<T>(rows.O_reg[MT0 + c][2 * n], P_frag[c], V_frag[0], V_frag[1]);
                mma_16816<T>(rows.O_reg[MT0 + c][2 * n + 1], P_frag[c], V_frag[2], V_frag[3]);
            }
        }
    }
}

} // namespace v4

/* ROWS rows from `first` of a head to a swizzled tile; zeros behind the last row. */
template <typename T, class C, int ROWS>
static __device__ __forceinline__ void load_tile(unsigned char *tile_smem, const T *base,
                                                 int64_t stride, int first, int N)
{
    const int CHUNKS = C::D / 8; /* of 16 bytes */
    for (int e = threadIdx.x; e < ROWS * CHUNKS; e += C::THREADS) {
        const int r = e / CHUNKS, x = e % CHUNKS;
        uint4 chunk = make_uint4(0, 0, 0, 0);
        if (first + r < N)
            chunk = *reinterpret_cast<const uint4 *>(base + (first + r) * stride + x * 8);
        *reinterpret_cast<uint4 *>(tile_smem + swizzle<C::D>(r, x)) = chunk;
    }
}

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    ldmatrix_kernel(const __grid_constant__ Problem p)
{
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K_j, V_j */
    unsigned char *K_smem = smem + C::Q_BYTES, *V_smem = K_smem + C::K_BYTES;
    const v4::TileAddresses at =
        v4::tile_addresses<C>((uint32_t)__cvta_generic_to_shared(smem), threadIdx.x);
    const BlockWork work = work_of_block(p, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const T *Q = queries_of((const T *)p.Q, p, work);
    const T *K = keys_of((const T *)p.K, p, work), *V = keys_of((const T *)p.V, p, work);
    TileRows<C> rows;
    start_rows(rows);
    load_tile<T, C, C::Br>(smem, Q, Q_step, work.i0, p.Nq);
#pragma unroll 1
    for (int j = tiles.begin; j < tiles.end; j++) {
        float S_reg[C::MT][C::Bc / 8][4];
        __syncthreads(); /* nobody reads the last tile any more */
        load_tile<T, C, C::Bc>(K_smem, K, K_step, j * C::Bc, p.Nk);
        load_tile<T, C, C::Bc>(V_smem, V, K_step, j * C::Bc, p.Nk);
        __syncthreads(); /* all of K_j and V_j is there, and Q */
        v4::multiply_QK<T, C, false>(S_reg, NULL, at.Q, at.K);
        hide_scores<C>(S_reg, p.from, p.to, work.i0, j * C::Bc, p.Nk);
        update_rows<C>(S_reg, rows, p.scale);
        v4::multiply_PV<T, C>(rows, S_reg, at.V);
    }
    const BlockWork done = work_of_block(p, C::Br); /* once more: no registers were kept for it */
    store_rows(rows, queries_of((T *)p.O, p, done), Q_step, p.lse + lse_row(&p, done.b, done.h, 0),
               done.i0, p.Nq, 1.0f);
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef StagedTile<D, 1> C;
    if (reserve_smem((const void *)ldmatrix_kernel<T, C>, C::SMEM))
        ldmatrix_kernel<T, C><<<row_blocks(p, C::Br), C::THREADS, C::SMEM, stream_of(p)>>>(*p);
}

static void forward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static Tiles tiles(const Problem *)
{
    return {Tile<64>::Br, Tile<64>::Bc};
}

RUNG(flash_forward, v4_ldmatrix, "four fragments a load, from swizzled shared memory", F16 | BF16,
     forward, NULL, NULL, tiles, SM80);
