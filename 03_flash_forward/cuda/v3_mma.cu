/* SPDX-License-Identifier: MIT
 *
 * v3_mma: the loops of v1, the products on tensor cores.
 *
 * A tensor core does in one instruction of a warp (mma.m16n8k16, mma.cuh) what takes a warp 64 FMA
 * instructions. Inputs are 16-bit, sums are float32. What changes against v2:
 *   - The layout of registers is not ours to choose. A row of S lies in the four lanes of a quad
 *     (warp_tile.cuh).
 *   - P never sees shared memory: the accumulators of S, exponentiated and rounded to 16 bits, are
 *     already laid out as the left factor of P V.
 *   - V is needed "by column": a fragment register holds channel x of two neighbouring keys, which
 *     lie a row apart in shared memory. Here: two 2-byte loads and a move for each register.
 *
 * Rows in shared memory are padded by 16 bytes: then the 8 rows x 4 words that a warp reads at a
 * time fall into 32 different banks.
 *
 * Still plain: load a tile, wait, compute, wait. The tensor cores idle during each load unless
 * another block of the multiprocessor has work.
 *
 * Prediction (H200, bf16, N = 16384, full): a warp's share of a tile is 128 mma for each of the two
 * products at d = 128, 64 at d = 64, of 16 clocks each on one of four tensor cores. V costs 4 loads
 * of 2 bytes and 2 moves for every 2 mma, K 2 loads of 4 bytes for every 2 mma. Shared memory
 * serves one load instruction a clock to all four: 4 x (4 + 2) = 24 clocks for what takes the
 * tensor cores 64. So loads do not limit; the waits do, with two blocks to hide them: a quarter
 * of the 800 TFLOP/s that mma.sync reaches, 150 to 200 TFLOP/s, at d = 128 as at 64.
 * Measured: docs/lab/03_rungs.md, beside the prediction.
 * Two premises were wrong: mma.sync takes about 8 clocks (16 would be 237 TFLOP/s in all, and v8
 * has 361), and it stops near half of the 990 TFLOP/s of the data sheet, not at 800.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128.
 */
#include "problem.cuh"
#include "units/warp_tile.cuh"

template <int D_> struct PaddedTile : Tile<D_> {
    static const int LD = D_ + 8, SMEM = (Tile<D_>::Br + 2 * Tile<D_>::Bc) * LD * 2;
};

/* ROWS rows from `first` of a head to tile_smem [ROWS][LD]. What lies behind the last row becomes
 * zeros: memory there may hold NaN, and 0 * NaN is NaN. */
template <typename T, class C, int ROWS>
static __device__ __forceinline__ void load_tile(T *tile_smem, const T *base, int64_t stride,
                                                 int first, int N)
{
    const int CHUNKS = C::D / 8; /* of 16 bytes, the most that one load instruction moves */
    for (int e = threadIdx.x; e < ROWS * CHUNKS; e += C::THREADS) {
        const int r = e / CHUNKS, x = e % CHUNKS * 8;
        uint4 chunk = make_uint4(0, 0, 0, 0);
        if (first + r < N)
            chunk = *reinterpret_cast<const uint4 *>(base + (first + r) * stride + x);
        *reinterpret_cast<uint4 *>(tile_smem + r * C::LD + x) = chunk;
    }
}

/* Two neighbouring elements as one register. */
template <typename T> static __device__ __forceinline__ uint32_t load_pair(const T *from)
{
    return *reinterpret_cast<const uint32_t *>(from);
}

/* Two elements that lie `step` apart as one register. */
template <typename T>
static __device__ __forceinline__ uint32_t gather_pair(const T *from, int step)
{
    const uint16_t *bits = reinterpret_cast<const uint16_t *>(from);
    return bits[0] | (uint32_t)bits[step] << 16;
}

/* S_reg = Q K_j^T of this warp's rows. Q_smem [Br][LD], K_smem [Bc][LD] */
template <typename T, class C>
static __device__ __forceinline__ void multiply_QK(float (&S_reg)[C::MT][C::Bc / 8][4],
                                                   const T *Q_smem, const T *K_smem)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int mt = 0; mt < C::MT; mt++)
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                S_reg[mt][n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < C::D / 16; k++) {
        uint32_t Q_frag[C::MT][4];
#pragma unroll
        for (int mt = 0; mt < C::MT; mt++) {
            const T *Q_row = Q_smem + first_row_of<C>(mt, threadIdx.x) * C::LD + k * 16 + 2 * t;
            Q_frag[mt][0] = load_pair(Q_row);
            Q_frag[mt][1] = load_pair(Q_row + 8 * C::LD);
            Q_frag[mt][2] = load_pair(Q_row + 8);
            Q_frag[mt][3] = load_pair(Q_row + 8 * C::LD + 8);
        }
#pragma unroll
        for (int n = 0; n < C::Bc / 8; n++) {
            const T *K_row = K_smem + (n * 8 + g) * C::LD + k * 16 + 2 * t;
            const uint32_t b0 = load_pair(K_row), b1 = load_pair(K_row + 8);
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++)
                mma_16816<T>(S_reg[mt][n], Q_frag[mt], b0, b1);
        }
    }
}

/* O += P V_j. V_smem [Bc][LD] */
template <typename T, class C>
static __device__ __forceinline__ void
multiply_PV(TileRows<C> &rows, const float (&P_reg)[C::MT][C::Bc / 8][4], const T *V_smem)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < C::Bc / 16; k++) {
        uint32_t P_frag[C::MT][4];
        pack_P<T, C>(P_frag, P_reg, k);
#pragma unroll
        for (int n = 0; n < C::D / 8; n++) {
            const T *V_column = V_smem + (k * 16 + 2 * t) * C::LD + n * 8 + g;
            const uint32_t b0 = gather_pair(V_column, C::LD);
            const uint32_t b1 = gather_pair(V_column + 8 * C::LD, C::LD);
#pragma unroll
            for (int mt = 0; mt < C::MT; mt++)
                mma_16816<T>(rows.O_reg[mt][n], P_frag[mt], b0, b1);
        }
    }
}

/* One block: Br rows of one head. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, 2)
    mma_kernel(const __grid_constant__ Problem p)
{
    extern __shared__ __align__(16) unsigned char smem[];
    T *Q_smem = (T *)smem, *K_smem = Q_smem + C::Br * C::LD, *V_smem = K_smem + C::Bc * C::LD;
    const BlockWork work = work_of_block(p, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(p, work.i0);
    const int64_t Q_step = (int64_t)p.H * C::D, K_step = (int64_t)p.Hkv * C::D; /* row to row */
    const T *Q = queries_of((const T *)p.Q, p, work);
    const T *K = keys_of((const T *)p.K, p, work), *V = keys_of((const T *)p.V, p, work);
    TileRows<C> rows;
    start_rows(rows);
    load_tile<T, C, C::Br>(Q_smem, Q, Q_step, work.i0, p.Nq);
#pragma unroll 1
    for (int j = tiles.begin; j < tiles.end; j++) {
        float S_reg[C::MT][C::Bc / 8][4];
        __syncthreads(); /* nobody reads the last tile any more */
        load_tile<T, C, C::Bc>(K_smem, K, K_step, j * C::Bc, p.Nk);
        load_tile<T, C, C::Bc>(V_smem, V, K_step, j * C::Bc, p.Nk);
        __syncthreads(); /* all of K_j and V_j is there, and Q */
        multiply_QK<T, C>(S_reg, Q_smem, K_smem);
        hide_scores<C>(S_reg, p.from, p.to, work.i0, j * C::Bc, p.Nk);
        update_rows<C>(S_reg, rows, p.scale);
        multiply_PV<T, C>(rows, S_reg, V_smem);
    }
    const BlockWork done = work_of_block(p, C::Br); /* once more: no registers were kept for it */
    store_rows(rows, queries_of((T *)p.O, p, done), Q_step, p.lse + lse_row(&p, done.b, done.h, 0),
               done.i0, p.Nq, 1.0f);
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef PaddedTile<D> C;
    if (reserve_smem((const void *)mma_kernel<T, C>, C::SMEM))
        mma_kernel<T, C><<<row_blocks(p, C::Br), C::THREADS, C::SMEM, stream_of(p)>>>(*p);
}

static void forward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static Tiles tiles(const Problem *)
{
    return {Tile<64>::Br, Tile<64>::Bc};
}

RUNG(flash_forward, v3_mma, "tensor cores, P stays in registers", F16 | BF16, forward, NULL, NULL,
     tiles, SM80);
