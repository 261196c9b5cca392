/* SPDX-License-Identifier: MIT
 *
 * v3_decode_window: one query against a rolling cache of keys and values.
 *
 * When a model writes text it asks with one query a step. All kernels so far let a block of queries
 * share the keys that it loads; one query has nobody to share with but the other query heads of its
 * group (GQA). Its row alone would keep one warp of the GPU busy. But attention is a sum that can
 * be merged, so the keys are cut into parts, and each part is a warp's:
 *
 *     visible keys    [ part 0 ][ part 1 ][ part 2 ] ...      each with a state (O, lse)
 *     second kernel   lse = log sum exp(lse_part),   O = sum exp(lse_part - lse) O_part
 *
 * A rolling cache needs nothing else. Token t lies in slot t % (window + 1), so the newest key is
 * beside the oldest: two segments of the position map. One query has one position, so of each
 * segment it sees one run of keys (key_plan.cuh), and parts are cut from these runs by count: where
 * the seam lies does not matter.
 *
 * Within a warp each lane has some of the channels: a row of K is read side by side, a score is a
 * sum over all lanes. To wait for one key at a time would take the time of memory's latency for
 * each, so the loads of AHEAD keys and values start together. The warps of a block work on
 * neighbouring heads: those of one group read the same keys at about the same time, and the L1
 * cache answers all but the first.
 *
 * It is short, not fast. Stage 03's library (few_queries.cu, few_hopper.cu), which v2_mma_window
 * calls, makes the heads of a group and their queries the rows of a tile on tensor cores: it reads
 * keys once for up to 64 rows, through a ring in shared memory.
 *
 * Prediction (H200, bf16, d = 128, H/Hkv = 4, 8 sequences, window 4096): some 550 instructions of a
 * warp for four keys and a head, a million keys in all, 4 x 132 a clock: 0.16 ms if no warp ever
 * waited, 0.2 to 0.25 ms with waits, and each further query as much again. Memory alone would need
 * 0.03.
 *
 * Interface:
 * - sliding_window_v3_decode_window: any number of queries, every dtype, d <= 256, any position
 *   maps and full mask; no clipping and no dropout.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "alloc.h"
#include "attention/forward/cuda/key_plan.cuh"
#include "attention/window/cuda/window_cuda.h"
#include "attn_options.h"
#include "attn_pairs.h"
#include "harness/device/cuda_check.h"
#include "sliding_window.h"

#define WARPS        4   /* of a block */
#define AHEAD        4   /* keys whose loads start together */
#define WORTH_A_PART 128 /* keys: with fewer, to merge the states would cost more than it brings */
#define WARPS_WANTED 32  /* on each multiprocessor */

/* What a warp works on: query i of head h, one part of its keys. */
struct WarpWork {
    int b, i, h, part;
};

/* Attention over some keys, unnormalised: of O this lane's channels lane, lane + 32, ... */
template <int CHANNELS> struct State {
    float m, l, O[CHANNELS];
};

/* A lane's channels of a row; zeros from d on and where the row does not exist. */
template <int CHANNELS, typename T>
static __device__ __forceinline__ void load_row(float (&to)[CHANNELS], const T *row, int d,
                                                bool exists)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        to[c] = exists && lane + 32 * c < d ? (float)row[lane + 32 * c] : 0.0f;
}

/* The sum over all lanes, in all lanes. */
static __device__ __forceinline__ float sum_of_lanes(float x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

/* Keys begin .. end - 1 join the state: the online softmax, AHEAD keys a step. */
template <int CHANNELS, typename T>
static __device__ __forceinline__ void add_keys(State<CHANNELS> &state, const float (&q)[CHANNELS],
                                                const AttnArgs &a, WarpWork work, int begin,
                                                int end)
{
    const int d = (int)a.shape.d, h_kv = work.h / (int)(a.shape.H / a.shape.Hkv);
    const T *K = (const T *)a.K.data + tensor_offset(&a.K, work.b, 0, h_kv);
    const T *V = (const T *)a.V.data + tensor_offset(&a.V, work.b, 0, h_kv);
#pragma unroll 1
    for (int j = begin; j < end; j += AHEAD) {
        float K_reg[AHEAD][CHANNELS], V_reg[AHEAD][CHANNELS], S[AHEAD], m_new = state.m;
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            load_row(K_reg[n], K + (j + n) * a.K.stride[1], d, j + n < end);
            load_row(V_reg[n], V + (j + n) * a.V.stride[1], d, j + n < end);
        }
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const int64_t pair = work.i * a.shape.Nk + j + n;
            float qk = 0.0f;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++)
                qk = fmaf(q[c], K_reg[n][c], qk);
            qk = sum_of_lanes(qk);
            S[n] = j + n < end && !(a.mask && a.mask[pair]) ? attn_score(&a, qk) : -INFINITY;
            m_new = fmaxf(m_new, S[n]);
        }
        const float base = m_new == -INFINITY ? 0.0f : m_new; /* -inf - -inf would be NaN */
        const float alpha = expf(state.m - base);
        state.m = m_new;
        state.l *= alpha;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
            state.O[c] *= alpha;
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const float P = expf(S[n] - base);
            state.l += P;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++)
                state.O[c] = fmaf(P, V_reg[n][c], state.O[c]);
        }
    }
}

/* states [parts][B][Nq][H][d + 1]: O of a part, then its lse. */
static __device__ __forceinline__ float *state_of(float *states, const AttnArgs &a, WarpWork work)
{
    const int64_t row = (work.b * a.shape.Nq + work.i) * a.shape.H + work.h;
    const int64_t rows = a.shape.B * a.shape.Nq * a.shape.H;
    return states + (work.part * rows + row) * (a.shape.d + 1);
}

/* This warp's work: heads first, so that a group's lie side by side. False: there is none. */
static __device__ __forceinline__ bool find_work(WarpWork &work, const AttnArgs &a, int parts)
{
    int64_t rest = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32;
    work.h = (int)(rest % a.shape.H);
    rest /= a.shape.H;
    work.part = (int)(rest % parts);
    rest /= parts;
    work.i = (int)(rest % a.shape.Nq);
    work.b = (int)(rest / a.shape.Nq);
    return work.b < a.shape.B;
}

/* One warp: one part of the keys of one row. */
template <int CHANNELS, typename T>
static __global__ void __launch_bounds__(32 * WARPS)
    decode_kernel(const __grid_constant__ AttnArgs a, float *states, int parts)
{
    WarpWork work;
    if (!find_work(work, a, parts))
        return;
    const AttnPosition q_position = attn_position(a.positions_q, work.i);
    const int lane = threadIdx.x % 32, d = (int)a.shape.d;
    float q[CHANNELS];
    State<CHANNELS> state = {-INFINITY, 0.0f, {}};
    load_row(q, (const T *)a.Q.data + tensor_offset(&a.Q, work.b, work.i, work.h), d, true);
    /* This part: visible keys skip .. skip + left - 1, counted over all segments. */
    int visible = 0;
    for (int64_t s = 0; s < a.positions_k.count; s++) {
        const plan::VisibleRun run =
            plan::visible_run(a.rule, a.positions_k.segments[s], q_position);
        visible += run.end - run.begin;
    }
    const int share = (visible + parts - 1) / parts;
    int skip = work.part * share, left = min(share, visible - skip);
    for (int64_t s = 0; s < a.positions_k.count && left > 0; s++) {
        const plan::VisibleRun run =
            plan::visible_run(a.rule, a.positions_k.segments[s], q_position);
        const int begin = min(run.begin + skip, run.end), end = min(begin + left, run.end);
        skip -= begin - run.begin;
        left -= end - begin;
        add_keys<CHANNELS, T>(state, q, a, work, begin, end);
    }
    float *part = state_of(states, a, work);
    const float inverse = state.l == 0.0f ? 0.0f : 1.0f / state.l; /* nothing seen: O = 0 */
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        if (lane + 32 * c < d)
            part[lane + 32 * c] = state.O[c] * inverse;
    if (lane == 0)
        part[d] = state.l == 0.0f ? -INFINITY : state.m + logf(state.l);
}

/* One warp: the parts of one row, merged. */
template <typename T>
static __global__ void __launch_bounds__(32 * WARPS)
    merge_kernel(const __grid_constant__ AttnArgs a, float *states, int parts)
{
    WarpWork work;
    if (!find_work(work, a, 1))
        return;
    const int lane = threadIdx.x % 32, d = (int)a.shape.d;
    float m = -INFINITY, l = 0.0f;
    for (work.part = 0; work.part < parts; work.part++)
        m = fmaxf(m, state_of(states, a, work)[d]);
    const float base = m == -INFINITY ? 0.0f : m;
    for (work.part = 0; work.part < parts; work.part++)
        l += expf(state_of(states, a, work)[d] - base);
    for (int x = lane; x < d; x += 32) {
        float O = 0.0f;
        for (work.part = 0; work.part < parts; work.part++) {
            const float *part = state_of(states, a, work);
            const float weight = expf(part[d] - base);
            O = fmaf(weight, part[x], O);
        }
        ((T *)a.O.data)[tensor_offset(&a.O, work.b, work.i, work.h) + x] =
            T(l == 0.0f ? 0.0f : O / l);
    }
    if (lane == 0)
        a.lse[(work.b * a.shape.H + work.h) * a.shape.Nq + work.i] =
            l == 0.0f ? -INFINITY : m + logf(l);
}

/* --- host --------------------------------------------------------------------------------------*/

/* The most keys that a query can see. */
static int64_t most_keys(const AttnArgs *a)
{
    const int64_t Nk = a->shape.Nk;
    if (a->rule.left < 0 || a->rule.right < 0 || a->rule.left >= Nk || a->rule.right >= Nk)
        return Nk;
    return a->rule.left + a->rule.right + 1 < Nk ? a->rule.left + a->rule.right + 1 : Nk;
}

/* As many as give each multiprocessor its warps, if each has enough keys. */
static int count_parts(const AttnArgs *a, int64_t rows, int processors)
{
    const int64_t wanted = (WARPS_WANTED * (int64_t)processors + rows - 1) / rows;
    const int64_t worth = most_keys(a) / WORTH_A_PART;
    const int64_t parts = wanted < worth ? wanted : worth;
    return parts < 1 ? 1 : (int)parts;
}

template <int CHANNELS, typename T> static AttnStatus launch_decode(const AttnArgs *a)
{
    const int64_t rows = a->shape.B * a->shape.Nq * a->shape.H;
    const cudaStream_t stream = (cudaStream_t)a->stream;
    int device = 0, processors = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    const int parts = count_parts(a, rows, processors);
    float *states_dev =
        (float *)workspace_alloc_device((size_t)(parts * rows * (a->shape.d + 1)) * sizeof(float));
    if (!states_dev)
        return ATTN_NO_MEMORY;
    decode_kernel<CHANNELS, T>
        <<<(unsigned)((rows * parts + WARPS - 1) / WARPS), 32 * WARPS, 0, stream>>>(*a, states_dev,
                                                                                    parts);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) {
        merge_kernel<T><<<(unsigned)((rows + WARPS - 1) / WARPS), 32 * WARPS, 0, stream>>>(
            *a, states_dev, parts);
        error = cudaGetLastError();
    }
    workspace_free_device(states_dev); /* kept until the kernels are done */
    CUDA_TRY(error);
    return ATTN_OK;
}

template <typename T> static AttnStatus decode_channels(const AttnArgs *a)
{
    if (a->shape.d <= 64)
        return launch_decode<2, T>(a);
    return a->shape.d <= 128 ? launch_decode<4, T>(a) : launch_decode<8, T>(a);
}

static AttnStatus decode(const AttnArgs *a)
{
    if (a->Q.dtype == ATTN_F32)
        return decode_channels<float>(a);
    return a->Q.dtype == ATTN_F16 ? decode_channels<__half>(a) : decode_channels<__nv_bfloat16>(a);
}

AttnStatus sliding_window_v3_decode_window(const AttnArgs *args)
{
    if (attn_clips(args) || attn_drops(args)) {
        window_set_skip_reason("v3_decode_window knows no clipping and no dropout: both need the "
                               "final weights, and a warp sees those of its part of the keys");
        return ATTN_SKIP;
    }
    return args->shape.d > 256 ? ATTN_SKIP : window_plain_run_cuda(args, decode);
}
