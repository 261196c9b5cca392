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
 * - flash_forward_v4_ldmatrix: f16 and bf16, the plain problem.
 */
#include "warp_tile.cuh"

using namespace plain;

namespace v4
{

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
    ldmatrix_kernel(const __grid_constant__ AttnArgs a)
{
    extern __shared__ __align__(1024) unsigned char smem[]; /* Q, K_j, V_j */
    unsigned char *K_smem = smem + C::Q_BYTES, *V_smem = K_smem + C::K_BYTES;
    const TileAddresses at =
        tile_addresses<C>((uint32_t)__cvta_generic_to_shared(smem), threadIdx.x);
    const int Nq = (int)a.shape.Nq, Nk = (int)a.shape.Nk;
    const Band band = band_of(a);
    const BlockWork work = work_of_block(a, C::Br);
    const KeyTiles tiles = key_tiles<C::Br, C::Bc>(a, band, work.i0);
    const T *Q = head_of<const T>(a.Q, work.b, work.h);
    const T *K = head_of<const T>(a.K, work.b, work.h_kv);
    const T *V = head_of<const T>(a.V, work.b, work.h_kv);
    TileRows<C> rows;
    start_rows(rows);
    load_tile<T, C, C::Br>(smem, Q, a.Q.stride[1], work.i0, Nq);
#pragma unroll 1
    for (int j = tiles.begin; j < tiles.end; j++) {
        float S_reg[C::MT][C::Bc / 8][4];
        __syncthreads(); /* nobody reads the last tile any more */
        load_tile<T, C, C::Bc>(K_smem, K, a.K.stride[1], j * C::Bc, Nk);
        load_tile<T, C, C::Bc>(V_smem, V, a.V.stride[1], j * C::Bc, Nk);
        __syncthreads(); /* all of K_j and V_j is there, and Q */
        multiply_QK<T, C, false>(S_reg, NULL, at.Q, at.K);
        hide_scores<C>(S_reg, band, work.i0, j * C::Bc, Nk);
        update_rows<C>(S_reg, rows, a.scale);
        multiply_PV<T, C>(rows, S_reg, at.V);
    }
    store_rows<T>(rows, a, work, 1.0f);
}

template <typename T, int D> struct Launch {
    static AttnStatus run(const AttnArgs *a)
    {
        return launch<StagedTile<D, 1>>(ldmatrix_kernel<T, StagedTile<D, 1>>, a);
    }
};

} // namespace v4

FlashTiles flash_tiles_v4_ldmatrix(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, Tile<64>::Br, Tile<64>::Bc);
}

AttnStatus flash_forward_v4_ldmatrix(const AttnArgs *a)
{
    return run_for_16_bit<v4::Launch>(a);
}
