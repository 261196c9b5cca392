/* SPDX-License-Identifier: MIT
 *
 * online.cu: one step of the online module as a kernel. A block of queries meets a block of keys,
 * and what comes out is merged into the global output, in place:
 *
 *     (O_ij, lse_ij) = attention of the rows over the keys of this block alone
 *     lse = max + log1p(exp(min - max))                      of lse_i and lse_ij
 *     O_i = exp(lse_i - lse) O_i + exp(lse_ij - lse) O_ij    rounded to the dtype of O
 *
 * Whatever was there before, the result is attention over the keys seen so far. So steps may come
 * in any order; and since every step rounds O_i, their number shows in the last digits (16 bits).
 *
 * A warp has ROWS rows. For S and P each lane has one key of a tile, for O it has channels lane,
 * lane + 32, ...; maximum and sum go over lanes by shuffles. This is stage 03's textbook step
 * (warp_row.cuh) with any dtype, and with a merge at its end that can start from any state.
 *
 * A row that sees no key of the block is left alone, to the bit: a step must not touch what it has
 * nothing to add to. That also keeps -inf - -inf, which is NaN, out of the merge.
 *
 * Interface:
 * - window_online_step_cuda, window_online_cuda_refuses (library/cpu/online_internal.h).
 * - window_start_cuda, window_step_cuda (window_cuda.h): the same for blocks of a whole problem.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "alloc.h"
#include "attention/window/cpu/online_internal.h"
#include "attn_pairs.h"
#include "harness/device/cuda_check.h"
#include "harness/device/device.h"
#include "window_cuda.h"

#define WARPS  8
#define ROWS   4 /* of a warp: its number, + WARPS, + 2 WARPS ... */
#define MOST_D 256
#define SLOTS  (MOST_D / 32) /* channels of a lane */
#define ALL    0xffffffffu

/* Keys of a tile: K and V of 32 keys in float32 do not fit at d = 256 (48 KiB of shared memory). */
static __host__ __device__ __forceinline__ int keys_of_tile(int64_t d)
{
    return d <= 128 ? 32 : 16;
}

/* What a row knows of this block: online softmax, O not yet divided by l. */
struct BlockRow {
    float m, l, O[SLOTS];
};

static __device__ __forceinline__ bool row_sees(const OnlineStep &s, int r, int c)
{
    const AttnPosition q = {0, s.q.position + r}, k = {0, s.k.position + c};
    return attn_visible(s.args.rule, q, k) && !(s.mask && s.mask[r * s.mask_ld + c]);
}

/* Row r against keys j0 ... of the block. K_smem, V_smem [Bc][d + 1] */
template <typename T>
static __device__ __forceinline__ void add_tile(BlockRow &row, const OnlineStep &s, const T *Q_row,
                                                const float *K_smem, const float *V_smem, int r,
                                                int j0, int Bc)
{
    const int lane = threadIdx.x % 32, d = (int)s.args.shape.d, c = lane % Bc;
    float qk = 0.0f;
#pragma unroll 4
    for (int x = 0; x < d; x++)
        qk = fmaf((float)Q_row[x], K_smem[c * (d + 1) + x], qk);
    float score = attn_score(&s.args, qk);
    if (lane >= Bc || j0 + c >= s.args.shape.Nk || !row_sees(s, r, j0 + c))
        score = -INFINITY;
    if (__all_sync(ALL, score == -INFINITY))
        return; /* nothing to add. (The maximum could not tell: fmaxf(-inf, NaN) is -inf.) */
    float m_new = score;
    for (int distance = 16; distance > 0; distance /= 2)
        m_new = fmaxf(m_new, __shfl_xor_sync(ALL, m_new, distance));
    m_new = fmaxf(m_new, row.m);
    const float p = expf(score - m_new), alpha = expf(row.m - m_new);
    float l_tile = p;
    for (int distance = 16; distance > 0; distance /= 2)
        l_tile += __shfl_xor_sync(ALL, l_tile, distance);
    row.m = m_new;
    row.l = alpha * row.l + l_tile;
#pragma unroll
    for (int n = 0; n < SLOTS; n++)
        row.O[n] *= alpha;
    for (int key = 0; key < Bc; key++) {
        const float p_key = __shfl_sync(ALL, p, key);
#pragma unroll
        for (int n = 0; n < SLOTS; n++)
            if (lane + 32 * n < d)
                row.O[n] = fmaf(p_key, V_smem[key * (d + 1) + lane + 32 * n], row.O[n]);
    }
}

/* lse_i and O_i of the global state, and this block's: log1p keeps what a small addend changes.
 * Not fmaxf and fminf: of NaN and a number both take the number. Compared, NaN stays. */
template <typename T>
static __device__ __forceinline__ void merge_row(const BlockRow &row, T *O_i, float *lse_i, int d)
{
    const int lane = threadIdx.x % 32;
    if (row.l == 0.0f)
        return; /* no key of this block is visible */
    const float lse_old = *lse_i, lse_ij = row.m + logf(row.l);
    const float high = lse_old > lse_ij ? lse_old : lse_ij;
    const float low = lse_old > lse_ij ? lse_ij : lse_old;
    const float lse_new = high + log1pf(expf(low - high));
    /* exp(lse_old - lse_new) and the other, not from a rounded lse_new: their sum is 1 */
    const float of_old = 1.0f / (1.0f + expf(lse_ij - lse_old));
    const float of_block = 1.0f / (1.0f + expf(lse_old - lse_ij)) / row.l;
#pragma unroll
    for (int n = 0; n < SLOTS; n++)
        if (lane + 32 * n < d) {
            T *O = O_i + lane + 32 * n;
            *O = T(of_old * (float)*O + of_block * row.O[n]);
        }
    __syncwarp(); /* all lanes have read lse_old */
    if (lane == 0)
        *lse_i = lse_new;
}

/* Tile rows j0 ... of one head to tile_smem [Bc][d + 1]; keys that the block does not have: 0. */
template <typename T>
static __device__ __forceinline__ void load_keys(float *tile_smem, const Tensor &t, int64_t b,
                                                 int64_t h, int j0, int Bc)
{
    const int d = (int)t.shape[3], N = (int)t.shape[1];
    const T *base = (const T *)t.data + tensor_offset(&t, b, j0, h);
    for (int c = threadIdx.x / 32; c < Bc; c += WARPS)
        for (int x = threadIdx.x % 32; x < d; x += 32)
            tile_smem[c * (d + 1) + x] = j0 + c < N ? (float)base[c * t.stride[1] + x] : 0.0f;
}

/* One block: WARPS * ROWS rows of one head. */
template <typename T>
static __global__ void __launch_bounds__(WARPS * 32)
    step_kernel(const __grid_constant__ OnlineStep s)
{
    extern __shared__ float smem_f32[]; /* K, V [Bc][d + 1] */
    const AttnArgs &a = s.args;
    const int d = (int)a.shape.d, Bc = keys_of_tile(d), Nk = (int)a.shape.Nk;
    const int tiles = ((int)a.shape.Nq + WARPS * ROWS - 1) / (WARPS * ROWS);
    const int64_t head = blockIdx.x / tiles, b = head / a.shape.H, h = head % a.shape.H;
    const int64_t h_kv = h / (a.shape.H / a.shape.Hkv);
    const int r0 = (int)(blockIdx.x % tiles) * WARPS * ROWS + threadIdx.x / 32;
    float *K_smem = smem_f32, *V_smem = smem_f32 + Bc * (d + 1);
    const T *Q = (const T *)a.Q.data + tensor_offset(&a.Q, b, 0, h);
    BlockRow rows[ROWS];
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        rows[n].m = -INFINITY;
        rows[n].l = 0.0f;
#pragma unroll
        for (int x = 0; x < SLOTS; x++)
            rows[n].O[x] = 0.0f;
    }
    for (int j0 = 0; j0 < Nk; j0 += Bc) {
        __syncthreads(); /* nobody reads the last tile any more */
        load_keys<T>(K_smem, a.K, b, h_kv, j0, Bc);
        load_keys<T>(V_smem, a.V, b, h_kv, j0, Bc);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            const int r = r0 + n * WARPS;
            if (r < a.shape.Nq) /* the same for all lanes of the warp */
                add_tile<T>(rows[n], s, Q + r * a.Q.stride[1], K_smem, V_smem, r, j0, Bc);
        }
    }
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        const int r = r0 + n * WARPS;
        if (r < a.shape.Nq)
            merge_row<T>(rows[n], (T *)a.O.data + tensor_offset(&a.O, b, r, h),
                         s.lse + head * s.lse_ld + r, d);
    }
}

/* K and V of a tile, with a column more than channels: 32 rows, 32 banks. */
static int64_t smem_of_step(int64_t d)
{
    return 2 * keys_of_tile(d) * (d + 1) * (int64_t)sizeof(float);
}

static AttnStatus launch_step(const OnlineStep *s)
{
    const AttnShape *n = &s->args.shape;
    const int64_t tiles = (n->Nq + WARPS * ROWS - 1) / (WARPS * ROWS);
    const unsigned blocks = (unsigned)(n->B * n->H * tiles);
    const size_t smem = (size_t)smem_of_step(n->d);
    const cudaStream_t stream = (cudaStream_t)s->args.stream;
    if (s->args.Q.dtype == ATTN_F32)
        step_kernel<float><<<blocks, WARPS * 32, smem, stream>>>(*s);
    else if (s->args.Q.dtype == ATTN_F16)
        step_kernel<__half><<<blocks, WARPS * 32, smem, stream>>>(*s);
    else
        step_kernel<__nv_bfloat16><<<blocks, WARPS * 32, smem, stream>>>(*s);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

WindowStatus window_online_step_cuda(const OnlineStep *step)
{
    OnlineStep plain = *step;
    AttnOptions options;
    void *memory;
    AttnArgs args = step->args; /* its scale has the temperature in it already */
    AttnOptions norm;
    if (args.options) {
        norm = *args.options;
        norm.temperature = 1.0f;
        args.options = &norm;
    }
    AttnStatus status = window_make_plain_cuda(&args, &plain.args, &options, &memory);
    if (status == ATTN_OK)
        status = launch_step(&plain);
    workspace_free_device(memory); /* kept until the kernels are done */
    return status == ATTN_OK          ? WINDOW_OK
           : status == ATTN_NO_MEMORY ? WINDOW_NO_MEMORY
                                      : WINDOW_FAILED;
}

WindowStatus window_online_cuda_refuses(const WindowOnlineConfig *config, char error[WINDOW_ERROR])
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return window_refuse(error, WINDOW_NOT_SUPPORTED, "on_cuda: found no CUDA device");
    if (config->base.head_dim > MOST_D)
        return window_refuse(error, WINDOW_NOT_SUPPORTED,
                             "head_dim: found %lld, on_cuda accepts at most %d",
                             (long long)config->base.head_dim, MOST_D);
    return WINDOW_OK;
}

/* --- blocks of a whole problem -----------------------------------------------------------------*/

/* One warp: one row of O, and its lse. */
template <typename T>
static __global__ void __launch_bounds__(256)
    start_kernel(const __grid_constant__ Tensor O, float *lse /* [B][H][Nq] */)
{
    const int64_t N = O.shape[1], H = O.shape[2];
    const int64_t row = blockIdx.x * (int64_t)8 + threadIdx.x / 32;
    const int64_t b = row / (H * N), h = row / N % H, i = row % N;
    if (b >= O.shape[0])
        return;
    for (int x = threadIdx.x % 32; x < O.shape[3]; x += 32)
        ((T *)O.data)[tensor_offset(&O, b, i, h) + x] = T(0.0f);
    if (threadIdx.x % 32 == 0)
        lse[row] = -INFINITY;
}

AttnStatus window_start_cuda(const AttnArgs *a)
{
    const int64_t rows = a->shape.B * a->shape.H * a->shape.Nq;
    const unsigned blocks = (unsigned)((rows + 7) / 8);
    const cudaStream_t stream = (cudaStream_t)a->stream;
    if (a->shape.d > MOST_D || device_smem_refuses(smem_of_step(a->shape.d)))
        return ATTN_SKIP;
    if (a->O.dtype == ATTN_F32)
        start_kernel<float><<<blocks, 256, 0, stream>>>(a->O, a->lse);
    else if (a->O.dtype == ATTN_F16)
        start_kernel<__half><<<blocks, 256, 0, stream>>>(a->O, a->lse);
    else
        start_kernel<__nv_bfloat16><<<blocks, 256, 0, stream>>>(a->O, a->lse);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

/* Tokens first .. first + count - 1. */
static Tensor tokens_of(const Tensor *t, int64_t first, int64_t count)
{
    Tensor part = *t;
    part.data = (char *)t->data + first * t->stride[1] * (t->dtype == ATTN_F32 ? 4 : 2);
    part.shape[1] = count;
    return part;
}

/* Visibility is asked of the own positions of the runs: row 0 stands at q.position. */
AttnStatus window_step_cuda(const AttnArgs *a, AttnSegment q, AttnSegment k)
{
    const AttnRange of_q = {0, q.position, q.position + q.length - 1};
    const AttnRange of_k = {0, k.position, k.position + k.length - 1};
    OnlineStep step;
    if (attn_tile_class(a->rule, of_q, of_k) == ATTN_TILE_SKIP)
        return ATTN_OK;
    step.args = *a;
    step.args.shape.Nq = q.length;
    step.args.shape.Nk = k.length;
    step.args.Q = tokens_of(&a->Q, q.first, q.length);
    step.args.O = tokens_of(&a->O, q.first, q.length);
    step.args.K = tokens_of(&a->K, k.first, k.length);
    step.args.V = tokens_of(&a->V, k.first, k.length);
    step.q = q;
    step.k = k;
    step.lse = a->lse + q.first;
    step.lse_ld = a->shape.Nq;
    step.mask = a->mask ? a->mask + q.first * a->shape.Nk + k.first : NULL;
    step.mask_ld = a->shape.Nk;
    return launch_step(&step);
}
