/* SPDX-License-Identifier: MIT
 *
 * v13_fused_delta: v12, but delta, lse and the zeros of dQ come from one kernel that moves 16 bytes
 * at a time.
 *
 * lse and delta of all rows, and zeros for dQ, were a kernel with 2 bytes a load and a memset: at
 * N = 1024 a tenth of the pass and more. Here one kernel does both, 16 bytes at a time. d / 8 lanes
 * take four rows together, 16 bytes a lane: so each lane has eight loads under way.
 *
 *     lane   0        1        ...  d/8 - 1     O, dO: a load of eight channels each
 *     row i  O, dO    O, dO         O, dO       four rows a lane: 8 loads, then the sums,
 *     i + 1  O, dO    ...                       then shuffles among the lanes of a row
 *
 * Prediction (H200, bf16, d = 64): 2 % at N = 16384, 10 % at N = 1024.
 * Measured: docs/lab/04_hopper.md, beside the prediction.
 *
 * Interface:
 * - RUNG at the end: f16 and bf16, d = 64 and 128, on sm_90.
 */
#include "problem.cuh"
#include "units/wgmma_turns.cuh"

#define ROWS_OF_LANE 4

/* From O, dO [B][Nq][H][D] and lse [B][H][Nq] to stats [B][H][Nq, padded], and zeros to dQ_sum.
 * In stats the rows of a head are neighbours, in O and dO the heads of a row. O and dO have more
 * bytes, so neighbouring threads have neighbouring heads. A row that sees no key (lse = -inf) may
 * hold anything in O and dO. zeros: how many float4 dQ_sum has. */
template <typename T, int D>
static __global__ void __launch_bounds__(256)
    prepare_kernel(const __grid_constant__ PassSizes n, const T *O, const T *dO, const float *lse,
                   float2 *stats, float *dQ_sum, int64_t zeros)
{
    const int LANES = D / 8, lane = threadIdx.x % LANES, H = n.H, Nq = n.band.Nq;
    const int padded = padded_rows(Nq);
    const int64_t item = (blockIdx.x * (int64_t)256 + threadIdx.x) / LANES;
    const int h = (int)(item % H), i0 = (int)(item / H % (padded / ROWS_OF_LANE)) * ROWS_OF_LANE;
    const int b = (int)(item / H / (padded / ROWS_OF_LANE));
    /* A block clears 32 KiB of dQ_sum. These are not the sums of the rows that it reads, but all
     * blocks together clear all sums. */
    const int64_t zero = blockIdx.x * (int64_t)(256 * 2 * ROWS_OF_LANE) + threadIdx.x;
#pragma unroll
    for (int k = 0; k < 2 * ROWS_OF_LANE; k++)
        if (zero + k * 256 < zeros)
            ((float4 *)dQ_sum)[zero + k * 256] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (b >= n.B)
        return; /* whole warps (padded is a multiple of 64): the shuffles below need all lanes */
    uint4 O_x[ROWS_OF_LANE], dO_x[ROWS_OF_LANE]; /* eight channels of each row */
#pragma unroll
    for (int r = 0; r < ROWS_OF_LANE; r++) {
        const int64_t at = (((int64_t)b * Nq + i0 + r) * H + h) * D + lane * 8;
        O_x[r] = dO_x[r] = make_uint4(0, 0, 0, 0);
        if (i0 + r < Nq) {
            O_x[r] = *(const uint4 *)(O + at);
            dO_x[r] = *(const uint4 *)(dO + at);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS_OF_LANE; r++) {
        const uint32_t O_r[4] = {O_x[r].x, O_x[r].y, O_x[r].z, O_x[r].w};
        const uint32_t dO_r[4] = {dO_x[r].x, dO_x[r].y, dO_x[r].z, dO_x[r].w};
        const int i = i0 + r;
        float2 pair = make_float2(INFINITY, 0.0f); /* P = 2^(s - inf) = 0 */
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const float2 o = unpack2<T>(O_r[x]), g = unpack2<T>(dO_r[x]);
            pair.y = fmaf(g.x, o.x, fmaf(g.y, o.y, pair.y));
        }
#pragma unroll
        for (int distance = LANES / 2; distance > 0; distance /= 2)
            pair.y += __shfl_xor_sync(0xffffffffu, pair.y, distance);
        if (lane != 0)
            continue;
        const float lse_i = i < Nq ? lse[(int64_t)(b * H + h) * Nq + i] : -INFINITY;
        if (lse_i == -INFINITY)
            pair.y = 0.0f;
        else
            pair.x = lse_i * (float)M_LOG2E;
        stats[(int64_t)(b * H + h) * padded + i] = pair;
    }
}

/* What comes before the kernel of keys. */
template <typename T, int D>
static Pass prepare(const PassSizes &n, const T *O, const T *dO, const float *lse, void *work,
                    cudaStream_t stream)
{
    float2 *stats = (float2 *)work;
    float *dQ_sum = (float *)(stats + rows_of_pass(n));
    const int64_t zeros = rows_of_pass(n) * (D / 4);
    /* Each thread of a block loads 2 x ROWS_OF_LANE times 16 bytes and clears as many. A row of O
     * and of dO has 2 D bytes each, its sums have 4 D: blocks for all sums read all rows, too. */
    const int64_t of_block = 256 * 2 * ROWS_OF_LANE;
    static_assert(256 / (D / 8) * ROWS_OF_LANE * (D / 4) == 256 * 2 * ROWS_OF_LANE, "rows = sums");
    prepare_kernel<T, D><<<(unsigned)((zeros + of_block - 1) / of_block), 256, 0, stream>>>(
        n, O, dO, lse, stats, dQ_sum, zeros);
    return {stats, dQ_sum};
}

template <typename T, class C>
static __global__ void __launch_bounds__(128 + CONSUMER_THREADS, 1)
    turns_kernel(const __grid_constant__ Problem p, const __grid_constant__ Pass pass,
                 const __grid_constant__ KeyMaps maps)
{
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(smem_bytes);
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const Band band = {p.from, p.to, p.Nq, p.Nk};
    const KeyBlock block = block_of_keys(blockIdx.x, p.H, p.Hkv, p.Nk, C::Bc);
    const KeyWalk walk = start_walk<C>(block, rows_that_see(band, block.j0, C::Bc));
    if (threadIdx.x == 0)
        start_barriers<C>(smem);
    __syncthreads();
    if (warpgroup == PRODUCER) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % 128 == 0)
            produce<C>(maps, block, pass, p.H, p.Nq, walk, smem);
    } else {
        float dK[C::D / 8][4], dV[C::D / 8][4];
        registers_take<CONSUMER_REGISTERS>();
        consume_in_turns<T, C>(dK, dV, pass, band, block, p.H, p.scale, walk, smem_bytes,
                               warpgroup);
        store_gradients<T, C>(dK, dV, p.scale, maps, block, p.Nk, smem_bytes, warpgroup);
    }
}

static PassSizes sizes_of(const Problem *p)
{
    return {p->B, p->H, p->d, {p->from, p->to, p->Nq, p->Nk}};
}

template <typename T, int D> static void launch(const Problem *p)
{
    typedef WgmmaKeys<D> C;
    const PassSizes sizes = sizes_of(p);
    KeyMaps maps;
    if (!make_key_maps<T, D>(&maps, sizes, p->Hkv, p->Q, p->K, p->V, p->dO, p->dK, p->dV))
        return note_failure();
    if (!reserve_smem((const void *)turns_kernel<T, C>, C::ALL))
        return;
    const Pass pass =
        prepare<T, D>(sizes, (const T *)p->O, (const T *)p->dO, p->lse, p->work, stream_of(p));
    turns_kernel<T, C>
        <<<key_blocks(p, C::Bc), 128 + CONSUMER_THREADS, C::ALL, stream_of(p)>>>(*p, pass, maps);
    if (!launch_is_done(stream_of(p), "v13_fused_delta"))
        return note_failure();
    round_slabs<T, D>(sizes, p->scale, pass.dQ_sum, (T *)p->dQ, stream_of(p));
}

static void backward(const Problem *p)
{
    RUN_16_BIT(launch, p);
}

static int64_t work(const Problem *p, int)
{
    return pass_bytes(sizes_of(p), true);
}

static Tiles tiles(const Problem *p)
{
    return {p->d == 64 ? 128 : 64, 128};
}

RUNG(flash_backward, v13_fused_delta, "delta, lse and the zeros of dQ by one kernel", F16 | BF16,
     NULL, backward, work, tiles, SM90A | ATOMICS);
