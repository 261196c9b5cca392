/* SPDX-License-Identifier: MIT
 *
 * v1_two_kernels: no atomics. One kernel owns rows and gives dQ, one owns keys and gives dK and dV.
 *
 *     own = queries, walks over keys:    S = Q K^T,  dP = dO V^T,  dQ += scale dS K
 *     own = keys, walks over queries:    S^T = K Q^T,  dP^T = V dO^T,
 *                                        dV += P^T dO,  dK += scale dS^T Q
 *
 * Whatever is summed up has one owner, which adds in the order of its walk: the same bits on every
 * run. The price: S and dP are computed twice, seven products instead of five.
 *
 * The second line is the first one with the roles exchanged. So there is one kernel, compiled for
 * each role, and a View that tells it who is who (two_views.cuh): its own rows, and the others, in
 * columns.
 *
 * As in stage 03's v2_register_tiles a thread keeps pieces of the results in registers, and all
 * factors come through shared memory in slices (product_f32.cuh). A tile takes STEPS of them:
 *
 *     S     32 channels of the own rows and of the others, for each 32 channels
 *     dV    some rows of the others (dO)                   only where keys own
 *     dP    32 channels of the own rows and of the others
 *     dQ dK some rows of the others (K or Q)
 *
 * While one is multiplied, cp.async brings the next into the other of two buffers. P and dS pass
 * through shared memory on their way from result to factor.
 *
 * Prediction (H200, f32, d=64, full): stage 03's kernel, of the same build, reaches 42 TFLOP/s. The
 * own rows are loaded again for each tile, by 4-byte copies: 35 executed, of which five of seven
 * count: 25 TFLOP/s.
 *
 * Interface:
 * - flash_backward_v1_two_kernels: f32, d <= 256, any shape, mask and layout.
 * - flash_backward_block_v1_two_kernels, flash_backward_two_kernels_run (block.cuh).
 */
#include "alloc.h"
#include "block.cuh"
#include "mma.cuh"
#include "product_f32.cuh"
#include "scores.cuh"
#include "two_views.cuh"

/* A thread holds ROWS x COLS of S and of dP, and ROWS x OUT/8 of one gradient or of two: together
 * at most 192 of 255 registers. D = 256 with two gradients does not fit: there a block holds half
 * of the channels and computes S and dP for them alone. */
template <int D_, bool KEYS_> struct GradientTile {
    static const bool KEYS = KEYS_; /* keys own */
    static const int D = D_, WARPS = 2, THREADS = WARPS * 32, BLOCKS = 4;
    static const int OUT = KEYS && D > 128 ? 128 : D;
    static const int ROWS = D <= (KEYS ? 64 : 128) ? 8 : 4, OWN = WARPS * 4 * ROWS;
    static const int HELD = ROWS * (OUT / 8) * (KEYS ? 2 : 1);
    static const int COLS = HELD + 2 * ROWS * 8 <= 192 ? 8 : 4, OTHER = COLS * 8;
    static const int QUERIES = KEYS ? OTHER : OWN; /* of a tile */
    static const int CHANNELS = 32, ROWS_OF_SLICE = OUT <= 64 ? OTHER : OUT == 96 ? 32 : 2048 / OUT;
    static const int LD_OWN = OWN + 4, LD_OTHER = OTHER + 4; /* transposed, as in stage 03 */
    static const int PAIR_OTHER = CHANNELS * LD_OWN, PAIR = PAIR_OTHER + CHANNELS * LD_OTHER;
    static const int BAND = ROWS_OF_SLICE * OUT;
    static const int BAND_W = ROWS_OF_SLICE * LD_OWN;
    static const int SLICE = PAIR > BAND ? PAIR : BAND;
    static const int SMEM = (OTHER * LD_OWN + 2 * SLICE) * (int)sizeof(float);
    /* where the steps of each product end */
    static const int S_END = D / CHANNELS, DV_END = S_END + (KEYS ? OTHER / ROWS_OF_SLICE : 0);
    static const int DP_END = DV_END + D / CHANNELS, STEPS = DP_END + OTHER / ROWS_OF_SLICE;
};

template <int R, int C> static __device__ __forceinline__ void clear(float (&sum)[R][C])
{
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++)
            sum[r][c] = 0.0f;
}

/* One number for each query of the tile: a row of the own queries, or a column of the others. */
template <class C>
static __device__ __forceinline__ void load_numbers(float (&numbers)[C::KEYS ? C::COLS : C::ROWS],
                                                    const float *from_smem)
{
#pragma unroll
    for (int n = 0; n < (C::KEYS ? C::COLS : C::ROWS); n++)
        numbers[n] = from_smem[C::KEYS ? column_of(n) : row_of(n)];
}

/* Four rows of column c to W_smem, this thread's place in [OTHER][LD_OWN]. */
template <class C>
static __device__ __forceinline__ void store_fours(float *W_smem, int r, int c, const float (&w)[4])
{
    *reinterpret_cast<float4 *>(W_smem + column_of(c) * C::LD_OWN + row_of(r)) =
        make_float4(w[0], w[1], w[2], w[3]);
}

/* S_reg, raw products, becomes P times the slope of the cap, and P goes to W_smem if dV needs it.
 * lse_smem: from this thread's first query on. ASK: the tile is not clean. */
template <class C, bool ASK>
static __device__ __forceinline__ void
weigh(float (&S_reg)[C::ROWS][C::COLS], const AttnArgs &a, const RowMask<C::OWN, C::OTHER> &mask,
      const float *lse_smem, float *W_smem, int row0, int column0, int j)
{
    const float scale_log2 = exponent_scale(a);
    const bool capped = ASK && a.softcap > 0.0f;
    float base[C::KEYS ? C::COLS : C::ROWS];
    load_numbers<C>(base, lse_smem);
#pragma unroll
    for (int n = 0; n < (C::KEYS ? C::COLS : C::ROWS); n++) /* no key seen: P = 2^(-inf - 0) = 0 */
        base[n] = base[n] == -INFINITY ? 0.0f : base[n] * LOG2E;
    if (ASK)
        adjust_scores(S_reg, a);
#pragma unroll
    for (int word = 0; word < C::OTHER / 32; word++) {
        uint32_t bits[C::ROWS];
#pragma unroll
        for (int r = 0; ASK && r < C::ROWS; r++)
            bits[r] = row_bits(mask, row0 + row_of(r), word, j, 0) >> column0;
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int r4 = 0; r4 < C::ROWS; r4 += 4) {
                const int c = word * 4 + e;
                float P[4];
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const int r = r4 + n;
                    const float s = S_reg[r][c];
                    P[n] = exp2_sfu(fmaf(s, scale_log2, -base[C::KEYS ? c : r]));
                    if (ASK && !(bits[r] >> e & 1))
                        P[n] = 0.0f;
                    S_reg[r][c] = capped ? P[n] * (1.0f - s * s) : P[n]; /* s: the tanh */
                }
                if (C::KEYS)
                    store_fours<C>(W_smem, r4, c, P);
            }
    }
}

/* dS = weight * (dP - delta) to W_smem. */
template <class C>
static __device__ __forceinline__ void finish_dS(const float (&weight)[C::ROWS][C::COLS],
                                                 const float (&dP_reg)[C::ROWS][C::COLS],
                                                 const float *delta_smem, float *W_smem)
{
    float delta[C::KEYS ? C::COLS : C::ROWS];
    load_numbers<C>(delta, delta_smem);
#pragma unroll
    for (int c = 0; c < C::COLS; c++)
#pragma unroll
        for (int r4 = 0; r4 < C::ROWS; r4 += 4) {
            float dS[4];
#pragma unroll
            for (int n = 0; n < 4; n++)
                dS[n] = weight[r4 + n][c] * (dP_reg[r4 + n][c] - delta[C::KEYS ? c : r4 + n]);
            store_fours<C>(W_smem, r4, c, dS);
        }
}

/* factor * sums, stored or added: the own rows of head own_head, channels from out0 on. */
template <class C>
static __device__ __forceinline__ void store_gradient(const float (&sum)[C::ROWS][C::OUT / 8],
                                                      const Tensor &to, BlockWork work, int out0,
                                                      int row0, int column0, float factor, bool add)
{
#pragma unroll
    for (int r = 0; r < C::ROWS; r++) {
        const int row = work.i0 + row0 + row_of(r);
        if (row >= to.shape[1])
            continue;
        float *to_row = (float *)to.data + tensor_offset(&to, work.b, row, work.h);
#pragma unroll
        for (int x = 0; x < C::OUT / 8; x++) {
            const int channel = out0 + column0 + column_of(x);
            if (channel < to.shape[3])
                to_row[channel] = (add ? to_row[channel] : 0.0f) + factor * sum[r][x];
        }
    }
}

/* One block: OWN rows of one head, of the gradients OUT channels. */
template <class C>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    gradient_kernel(const __grid_constant__ View view)
{
    extern __shared__ __align__(16) float smem_f32[]; /* W [OTHER][LD_OWN], two slices */
    __shared__ __align__(16) float lse_smem[C::QUERIES], delta_smem[C::QUERIES];
    __shared__ RowMask<C::OWN, C::OTHER> mask;
    const AttnArgs &a = view.a;
    const int N_own = (int)a.shape.Nq, N_other = (int)a.shape.Nk, d = (int)a.shape.d;
    const int H = (int)a.shape.H, group = H / (int)a.shape.Hkv, out0 = blockIdx.y * C::OUT;
    const int row0 = threadIdx.x / 32 * 4 * C::ROWS + lane_row(), column0 = lane_column();
    float *slices = smem_f32 + C::OTHER * C::LD_OWN;
    float *W_own = smem_f32 + column0 * C::LD_OWN + row0; /* what this thread makes of it */
    const float *W_rows = smem_f32 + row0;                /* what it multiplies */
    const float *lse_own = lse_smem + (C::KEYS ? column0 : row0);
    const float *delta_own = delta_smem + (C::KEYS ? column0 : row0);
    const BlockWork work = longest_first<C>(view);
    const AttnRange q = attn_range(a.positions_q, work.i0, min(C::OWN, N_own - work.i0));
    const KeyTiles tiles = find_key_tiles<C::OTHER>(a, q);
    Walk walk;
    walk.head = C::KEYS ? work.h * group : work.h / group;
    walk.head_end = C::KEYS ? walk.head + group : walk.head + 1;
    walk.j = next_key_tile<C::OTHER>(a, tiles, q, tiles.end, &walk.clean);
    if (walk.j < 0 && view.add)
        return; /* nothing to add */
    publish_plan(mask, a, work, NULL, NULL, q, tiles);

    /* lse and delta of the tile's queries. Behind the last one: P = 2^(s - inf) = 0. */
    auto fetch_numbers = [&](int head, int i0, int Nq) {
        const int64_t row = ((int64_t)mask.work.b * H + head) * Nq + i0;
        for (int r = threadIdx.x; r < C::QUERIES; r += C::THREADS)
            if (i0 + r < Nq) {
                copy_async_4(lse_smem + r, a.lse + row + r);
                copy_async_4(delta_smem + r, view.delta + row + r);
            } else {
                lse_smem[r] = INFINITY;
                delta_smem[r] = 0.0f;
            }
    };
    /* Slice `step` of the tile that `walk` is at, into buffer `stage`. */
    int stage = 0;
    auto fetch = [&](int step) {
        const bool of_S = step < C::S_END || step >= C::DP_END;
        const Tensor &own = of_S ? view.own_S : view.own_dP;
        const Tensor &other = of_S ? view.other_S : view.other_dP;
        const int j0 = walk.j * C::OTHER;
        float *slice = slices + stage * C::SLICE;
        if (step < C::S_END || (step >= C::DV_END && step < C::DP_END)) {
            const int x = (step < C::S_END ? step : step - C::DV_END) * C::CHANNELS;
            load_tile_f32<true, C::OWN, C::CHANNELS, C::LD_OWN, C::THREADS>(
                slice,
                (const float *)own.data +
                    tensor_offset(&own, mask.work.b, mask.work.i0, mask.work.h) + x,
                own.stride[1], N_own - mask.work.i0, d - x);
            load_tile_f32<true, C::OTHER, C::CHANNELS, C::LD_OTHER, C::THREADS>(
                slice + C::PAIR_OTHER,
                (const float *)other.data + tensor_offset(&other, mask.work.b, j0, walk.head) + x,
                other.stride[1], N_other - j0, d - x);
        } else {
            const int row = j0 + (step - (of_S ? C::DP_END : C::S_END)) * C::ROWS_OF_SLICE;
            load_tile_f32<false, C::ROWS_OF_SLICE, C::OUT, C::OUT, C::THREADS>(
                slice,
                (const float *)other.data + tensor_offset(&other, mask.work.b, row, walk.head) +
                    out0,
                other.stride[1], N_other - row, d - out0);
        }
        if (C::KEYS && step == 0)
            fetch_numbers(walk.head, j0, N_other);
        copy_async_commit();
    };

    float S_reg[C::ROWS][C::COLS], dP_reg[C::ROWS][C::COLS];
    float sum_S[C::ROWS][C::OUT / 8] = {}; /* dQ or dK, without the scale */
    float sum_dP[C::KEYS ? C::ROWS : 4][C::KEYS ? C::OUT / 8 : 4] = {}; /* dV */
    __syncthreads();                                                    /* the plan is published */
    if (!C::KEYS)
        fetch_numbers(work.h, work.i0, N_own);
    if (walk.j >= 0)
        fetch(0);
    /* The slice that was fetched last; the one after it is fetched, of the next tile if next = 0. */
    auto take_slice = [&](int next) -> const float * {
        copy_async_wait<0>();
        __syncthreads(); /* the slice is here, and nobody reads the one before it any more */
        const float *slice = slices + stage * C::SLICE;
        stage ^= 1;
        if (walk.j >= 0)
            fetch(next);
        return slice;
    };
#pragma unroll 1
    while (walk.j >= 0) {
        const bool clean = walk.clean;
        const int j = walk.j;
        if (!clean && !mask.by_run)
            make_words<C>(mask, view, j);
        clear(S_reg);
#pragma unroll 1
        for (int step = 0; step < C::S_END; step++) { /* S = own_S other_S^T */
            const float *slice = take_slice(step + 1);
            multiply_add<C::CHANNELS, C::LD_OWN, C::LD_OTHER>(S_reg, slice + row0,
                                                              slice + C::PAIR_OTHER + column0);
        }
        if (clean)
            weigh<C, false>(S_reg, a, mask, lse_own, W_own, row0, column0, j);
        else
            weigh<C, true>(S_reg, a, mask, lse_own, W_own, row0, column0, j);
#pragma unroll 1
        for (int step = C::S_END; step < C::DV_END; step++) { /* dV += P^T dO */
            const float *slice = take_slice(step + 1);
            multiply_add<C::ROWS_OF_SLICE, C::LD_OWN, C::OUT>(
                sum_dP, W_rows + (step - C::S_END) * C::BAND_W, slice + column0);
        }
        clear(dP_reg);
#pragma unroll 1
        for (int step = C::DV_END; step < C::DP_END; step++) { /* dP = own_dP other_dP^T */
            const float *slice = take_slice(step + 1);
            multiply_add<C::CHANNELS, C::LD_OWN, C::LD_OTHER>(dP_reg, slice + row0,
                                                              slice + C::PAIR_OTHER + column0);
        }
        finish_dS<C>(S_reg, dP_reg, delta_own, W_own);
#pragma unroll 1
        for (int step = C::DP_END; step < C::STEPS; step++) { /* dQ += dS K, dK += dS^T Q */
            const bool last = step + 1 == C::STEPS;
            if (last)
                advance<C>(walk, view, mask);
            const float *slice = take_slice(last ? 0 : step + 1);
            multiply_add<C::ROWS_OF_SLICE, C::LD_OWN, C::OUT>(
                sum_S, W_rows + (step - C::DP_END) * C::BAND_W, slice + column0);
        }
    }
    copy_async_wait<0>(); /* without a tile, lse and delta have been asked for all the same */
    store_gradient<C>(sum_S, view.gradient_S, mask.work, out0, row0, column0, a.scale, view.add);
    if constexpr (C::KEYS)
        store_gradient<C>(sum_dP, view.gradient_dP, mask.work, out0, row0, column0, 1.0f, view.add);
}

template <class C> static AttnStatus launch_gradient(const AttnArgs *a, const View *view)
{
    const int64_t tiles = tile_count(view->a.shape.Nq, C::OWN);
    const dim3 grid((unsigned)(a->shape.B * view->own_S.shape[2] * tiles), C::D / C::OUT);
    const AttnStatus status = reserve_smem(gradient_kernel<C>, C::SMEM);
    if (status != ATTN_OK)
        return status;
    gradient_kernel<C><<<grid, C::THREADS, C::SMEM, (cudaStream_t)a->stream>>>(*view);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

template <typename T, int D> struct LaunchRows {
    typedef GradientTile<D, false> C;
    static AttnStatus run(const AttnArgs *a, const View *view)
    {
        return launch_gradient<C>(a, view);
    }
};

template <typename T, int D> struct LaunchKeys {
    typedef GradientTile<D, true> C;
    static AttnStatus run(const AttnArgs *a, const View *view)
    {
        return launch_gradient<C>(a, view);
    }
};

/* For the byte model: the own rows of either kernel. */
template <typename T, int D> struct OwnTiles {
    struct C {
        static const int Br = GradientTile<D, false>::OWN, Bc = GradientTile<D, true>::OWN;
    };
};

FlashTiles flash_backward_tiles_v1_two_kernels(const AttnArgs *a)
{
    return tiles_for_dim<OwnTiles, float>(a);
}

AttnStatus flash_backward_two_kernels_run(const AttnArgs *a, const float *delta_dev,
                                          FlashSums sums_dev)
{
    if (a->Q.dtype != ATTN_F32)
        return ATTN_SKIP;
    View rows = view_of_queries(a, delta_dev), keys = view_of_keys(a, delta_dev);
    if (sums_dev.dQ) {
        rows.gradient_S = tensor_of_sums(sums_dev.dQ, &a->Q);
        keys.gradient_S = tensor_of_sums(sums_dev.dK, &a->K);
        keys.gradient_dP = tensor_of_sums(sums_dev.dV, &a->V);
        rows.add = keys.add = true;
    }
    const AttnStatus status = run_for_dim<LaunchRows, float>(a, &rows);
    return status == ATTN_OK ? run_for_dim<LaunchKeys, float>(a, &keys) : status;
}

AttnStatus flash_backward_block_v1_two_kernels(const AttnArgs *a, const float *delta_dev,
                                               FlashSums sums_dev)
{
    return flash_backward_two_kernels_run(a, delta_dev, sums_dev);
}

AttnStatus flash_backward_v1_two_kernels(const AttnArgs *a)
{
    const int64_t rows = a->shape.B * a->shape.H * a->shape.Nq;
    const FlashSums none = {NULL, NULL, NULL};
    float *delta_dev = (float *)workspace_alloc_device((size_t)rows * sizeof *delta_dev);
    if (!delta_dev)
        return ATTN_NO_MEMORY;
    AttnStatus status = flash_backward_delta_cuda(a, delta_dev);
    if (status == ATTN_OK)
        status = flash_backward_two_kernels_run(a, delta_dev, none);
    workspace_free_device(delta_dev); /* kept until the kernels are done */
    return status;
}
