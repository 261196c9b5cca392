/* SPDX-License-Identifier: MIT
 *
 * v3_decode_window: few queries against a rolling cache of keys and values.
 *
 * When a model writes text it asks with one query a step. All kernels so far let a block of queries
 * share the keys that it loads; here there is nobody to share with but the query heads of a group
 * (GQA). Each key and each value is read once and used for R rows, R <= 8: about R FMA a byte. So
 * memory sets the time, and the kernel has one aim: enough loads under way at any moment.
 *
 *   - Keys are cut into parts, each a block of its own with a state (O, lse) in float32, and a
 *     second kernel merges the states (stage 03's split_keys.cuh): this stage's merge once more.
 *   - A row of K is spread over LANES lanes, 8 channels each. A warp has 32 / LANES rows side by
 *     side and UNROLL of them below each other, of K and of V at once, and fetches the next while
 *     it works on these. No barrier inside the walk: each group of lanes has its own m, l and O,
 *     and they meet at the end.
 *   - The sums over lanes share their work between lanes (decode_rows.cuh).
 *
 * One query has one position, so its keys are runs without a mask (decode_keys.cuh). In a cache of
 * window + 1 slots that is every slot, whatever the order in which it was filled.
 *
 * Prediction (H200, bf16, d = 128, H/Hkv = 4, window 4096): some 500 instructions of a warp for 8
 * keys of 512 bytes, 4 a clock: 7 TB/s if they never waited. Memory is slower: 80 to 90 % of what
 * a copy reaches.
 *
 * Interface:
 * - sliding_window_v3_decode_window: any number of queries, every dtype, d <= 256, any position
 *   maps and full mask; no clipping and no dropout.
 */
#include "alloc.h"
#include "decode_rows.cuh"
#include "library/cuda/window_cuda.h"
#include "split_keys.cuh"

/* Consecutive blocks: parts of one query's keys, then its other heads. */
template <class C>
static __device__ __forceinline__ DecodeWork decode_work(const AttnArgs &a, int splits)
{
    const int group = (int)(a.shape.H / a.shape.Hkv), chunks = (group + C::R - 1) / C::R;
    int64_t rest = blockIdx.x;
    DecodeWork work;
    work.split = (int)(rest % splits);
    rest /= splits;
    const int chunk = (int)(rest % chunks);
    rest /= chunks;
    work.i = (int)(rest % a.shape.Nq);
    rest /= a.shape.Nq;
    work.h_kv = (int)(rest % a.shape.Hkv);
    work.b = (int)(rest / a.shape.Hkv);
    work.h = work.h_kv * group + chunk * C::R;
    work.count = min(C::R, group - chunk * C::R);
    return work;
}

/* Q_smem [R][2][LANES][4]: a lane's eight channels as two float4, each beside its neighbours'. Rows
 * that do not exist are zeros. */
template <typename T, class C>
static __device__ __forceinline__ void load_queries(float *Q_smem, const AttnArgs &a,
                                                    DecodeWork work)
{
    const T *Q = (const T *)a.Q.data + tensor_offset(&a.Q, work.b, work.i, work.h);
    for (int at = threadIdx.x; at < C::R * C::CHANNELS; at += C::THREADS) {
        const int r = at / C::CHANNELS, half = at / (C::LANES * 4) % 2, lane = at / 4 % C::LANES;
        const int x = channel_of<T, C::LANES>(lane, half * 4 + at % 4);
        Q_smem[at] = r < work.count && x < a.shape.d ? (float)Q[r * a.Q.stride[2] + x] : 0.0f;
    }
}

/* Keys begin .. end - 1 of one segment, this group's share of them. stages: this thread's place in
 * [STAGES][K, V][UNROLL][LOADS][THREADS]. */
template <typename T, class C>
static __device__ __forceinline__ void walk_keys(DecodeRows<C> &rows, const float *Q_smem,
                                                 uint4 *stages, const AttnArgs &a, DecodeWork work,
                                                 int begin, int end, bool wide)
{
    const int group = threadIdx.x % 32 / C::LANES, d = (int)a.shape.d;
    const T *K = (const T *)a.K.data + tensor_offset(&a.K, work.b, 0, work.h_kv);
    const T *V = (const T *)a.V.data + tensor_offset(&a.V, work.b, 0, work.h_kv);
    const float scale_log2 = exponent_scale(a);
    /* The group's keys from j on into a stage; past the end nothing is under way. */
    auto fetch = [&](int stage, int j) {
        uint4 *to = stages + stage * C::STAGE;
#pragma unroll
        for (int n = 0; n < C::UNROLL && j - group < end; n++) {
            const int64_t key = j + n * C::GROUPS;
            fetch_channels<T, C::LANES>(to + n * C::LOADS * C::THREADS, C::THREADS,
                                        K + key * a.K.stride[1], K, d, key < end, wide);
            fetch_channels<T, C::LANES>(to + (C::UNROLL + n) * C::LOADS * C::THREADS, C::THREADS,
                                        V + key * a.V.stride[1], V, d, key < end, wide);
        }
        copy_async_commit();
    };
    const int ROUND = C::WARPS * C::STEP; /* keys of the block at a time */
    int j = begin + threadIdx.x / 32 * C::STEP + group, stage = 0;
#pragma unroll
    for (int n = 0; n + 1 < C::STAGES; n++)
        fetch(n, j + n * ROUND);
#pragma unroll 1
    for (; j - group < end; j += ROUND) { /* the same in all lanes of the warp */
        float K_reg[C::UNROLL][EIGHT], S[C::SCORES], P[C::HELD];
        const uint4 *now = stages + stage * C::STAGE;
        fetch(stage == 0 ? C::STAGES - 1 : stage - 1, j + (C::STAGES - 1) * ROUND);
        copy_async_wait<C::STAGES - 1>();
        stage = stage + 1 == C::STAGES ? 0 : stage + 1;
#pragma unroll
        for (int n = 0; n < C::UNROLL; n++)
            take_channels<T, C>(K_reg[n], now, n);
        multiply_keys<C>(S, K_reg, Q_smem);
        sum_and_share<C>(S);
#pragma unroll
        for (int v = 0; v < C::HELD; v++)
            P[v] = S[v];
        update_rows<C>(rows, P, a, work, j, end, scale_log2);
        add_values<T, C>(rows, P, now + C::UNROLL * C::LOADS * C::THREADS);
    }
}

/* Groups of a warp meet by shuffles, warps in shared memory: states [WARPS][R][CHANNELS + 2]. */
template <typename T, class C>
static __device__ __forceinline__ void meet(DecodeRows<C> &rows, float *states_smem)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    /* l of a row: the sum over the lanes that share it, each score once. */
    float l_row = threadIdx.x % C::COPIES == 0 ? rows.l : 0.0f;
#pragma unroll
    for (int distance = C::ROW_LANES / 2; distance > 0; distance /= 2)
        l_row += __shfl_xor_sync(0xffffffffu, l_row, distance);
    float m = rows.m;
#pragma unroll
    for (int distance = C::LANES; distance < 32; distance *= 2)
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, distance));
    const float weight = rows.m == -INFINITY ? 0.0f : exp2_sfu(rows.m - m);
    l_row *= weight;
#pragma unroll
    for (int distance = C::LANES; distance < 32; distance *= 2)
        l_row += __shfl_xor_sync(0xffffffffu, l_row, distance);
    __syncthreads(); /* the stages, in whose place the states come, have been read */
#pragma unroll
    for (int r = 0; r < C::R; r++) {
        float *state = states_smem + (warp * C::R + r) * (C::CHANNELS + 2);
        const float of_row = __shfl_sync(0xffffffffu, weight, r * C::ROW_LANES, C::LANES);
        if (lane == r * C::ROW_LANES) {
            state[C::CHANNELS] = m;
            state[C::CHANNELS + 1] = l_row;
        }
#pragma unroll
        for (int x = 0; x < EIGHT; x++) {
            float O = rows.O[r][x] * of_row;
#pragma unroll
            for (int distance = C::LANES; distance < 32; distance *= 2)
                O += __shfl_xor_sync(0xffffffffu, O, distance);
            if (lane < C::LANES)
                state[channel_of<T, C::LANES>(lane, x)] = O;
        }
    }
    __syncthreads();
}

/* Merges the warps' states of each row and writes it: to O and lse, or to this part's state. */
template <typename T, class C>
static __device__ __forceinline__ void store_rows(const float *states_smem, const AttnArgs &a,
                                                  DecodeWork work, const SplitStates &parts)
{
    const int64_t all_rows = a.shape.B * a.shape.H * a.shape.Nq;
    for (int e = threadIdx.x; e < work.count * C::CHANNELS; e += C::THREADS) {
        const int r = e / C::CHANNELS, x = e % C::CHANNELS, PITCH = C::CHANNELS + 2;
        const float *state = states_smem + r * PITCH;
        float m = -INFINITY, l_row = 0.0f, O = 0.0f;
        for (int w = 0; w < C::WARPS; w++)
            m = fmaxf(m, state[w * C::R * PITCH + C::CHANNELS]);
        const float base = m == -INFINITY ? 0.0f : m;
        for (int w = 0; w < C::WARPS; w++) {
            const float *of_warp = state + w * C::R * PITCH;
            const float weight = exp2_sfu(of_warp[C::CHANNELS] - base);
            l_row += weight * of_warp[C::CHANNELS + 1];
            O += weight * of_warp[x];
        }
        const BlockWork row = {work.b, work.h + r, work.h_kv, 0};
        const int64_t lse_at = lse_row(a, row, work.i);
        const float lse = l_row == 0.0f ? -INFINITY : m * LN2 + logf(l_row);
        O = l_row == 0.0f ? 0.0f : O / l_row; /* nothing seen: O = 0 */
        if (x == 0)
            (parts.count > 1 ? parts.lse + work.split * all_rows : a.lse)[lse_at] = lse;
        if (x < a.shape.d && parts.count > 1)
            parts.O[work.split * all_rows * a.shape.d + state_row(a, row, work.i) + x] = O;
        else if (x < a.shape.d)
            ((T *)a.O.data)[tensor_offset(&a.O, work.b, work.i, work.h + r) + x] = T(O);
    }
}

/* One block: up to R heads of a group, one query, one part of its keys. */
template <typename T, class C>
static __global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    decode_kernel(const __grid_constant__ AttnArgs a, SplitStates parts, bool wide)
{
    extern __shared__ __align__(16) float smem_f32[]; /* Q; stages of K and V, or the states */
    float *Q_smem = smem_f32, *states_smem = smem_f32 + C::Q_FLOATS;
    uint4 *stages = reinterpret_cast<uint4 *>(states_smem) + threadIdx.x;
    const DecodeWork work = decode_work<C>(a, parts.count);
    const AttnPosition q = attn_position(a.positions_q, work.i);
    DecodeRows<C> rows;
    load_queries<T, C>(Q_smem, a, work);
    rows.m = -INFINITY;
    rows.l = 0.0f;
#pragma unroll
    for (int r = 0; r < C::R; r++)
#pragma unroll
        for (int x = 0; x < EIGHT; x++)
            rows.O[r][x] = 0.0f;
    /* This part: visible keys first .. first + share - 1, counted over all segments. */
    int visible = 0;
    for (int64_t s = 0; s < a.positions_k.count; s++) {
        const plan::VisibleRun run = plan::visible_run(a.rule, a.positions_k.segments[s], q);
        visible += run.end - run.begin;
    }
    const int share = (visible + parts.count - 1) / parts.count;
    int skip = work.split * share, left = min(share, visible - skip);
    __syncthreads(); /* Q is here */
    for (int64_t s = 0; s < a.positions_k.count && left > 0; s++) {
        const plan::VisibleRun run = plan::visible_run(a.rule, a.positions_k.segments[s], q);
        const int begin = min(run.begin + skip, run.end), end = min(begin + left, run.end);
        skip -= begin - run.begin;
        left -= end - begin;
        if (begin < end)
            walk_keys<T, C>(rows, Q_smem, stages, a, work, begin, end, wide);
    }
    meet<T, C>(rows, states_smem);
    store_rows<T, C>(states_smem, a, work, parts);
}

/* --- host --------------------------------------------------------------------------------------*/

#define WORTH_A_PART 256 /* keys: then the states are some percent of what is read */
#define WAVES        4 /* so many times as many blocks as fit: the last ones end nearly together */

/* The most keys that a query can see. */
static int64_t most_keys(const AttnArgs *a)
{
    const int64_t Nk = a->shape.Nk;
    if (a->rule.left < 0 || a->rule.right < 0 || a->rule.left >= Nk || a->rule.right >= Nk)
        return Nk;
    return a->rule.left + a->rule.right + 1 < Nk ? a->rule.left + a->rule.right + 1 : Nk;
}

template <class C> static int count_parts(const AttnArgs *a, int64_t blocks, int64_t places)
{
    const int64_t wanted = (WAVES * places + blocks - 1) / blocks;
    const int64_t worth = most_keys(a) / WORTH_A_PART;
    const int64_t parts = wanted < worth ? wanted : worth;
    return parts < 1 ? 1 : (int)parts;
}

template <typename T, class C> static AttnStatus launch_decode(const AttnArgs *a)
{
    const int64_t chunks = (a->shape.H / a->shape.Hkv + C::R - 1) / C::R;
    const int64_t blocks = a->shape.B * a->shape.Hkv * a->shape.Nq * chunks;
    const bool wide = rows_on_16_bytes(&a->K) && rows_on_16_bytes(&a->V);
    const AttnStatus reserved = reserve_smem(decode_kernel<T, C>, C::SMEM);
    int device = 0, processors = 0, per_processor = 0;
    if (reserved != ATTN_OK)
        return reserved;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, decode_kernel<T, C>,
                                                           C::THREADS, C::SMEM));
    const int parts = count_parts<C>(a, blocks, (int64_t)processors * per_processor);
    const size_t bytes = split_bytes(&a->shape, parts);
    void *workspace_dev = bytes ? workspace_alloc_device(bytes) : NULL;
    if (bytes && !workspace_dev)
        return ATTN_NO_MEMORY;
    const SplitStates states = split_states(&a->shape, parts, workspace_dev);
    decode_kernel<T, C>
        <<<(unsigned)(blocks * parts), C::THREADS, C::SMEM, (cudaStream_t)a->stream>>>(*a, states,
                                                                                       wide);
    const cudaError_t error = cudaGetLastError();
    AttnStatus status = ATTN_OK;
    if (error == cudaSuccess && parts > 1)
        status = merge_splits<T>(a, states, NULL, no_rows());
    workspace_free_device(workspace_dev); /* kept until the kernels are done */
    CUDA_TRY(error);
    return status;
}

/* Rows of a block: as many as a group has query heads, if that is one, up to 4, or more. */
template <typename T, int LANES> static AttnStatus decode_rows(const AttnArgs *a)
{
    const int64_t group = a->shape.H / a->shape.Hkv;
    if (group == 1)
        return launch_decode<T, DecodeTile<T, LANES, 1>>(a);
    return group <= 4 ? launch_decode<T, DecodeTile<T, LANES, 4>>(a)
                      : launch_decode<T, DecodeTile<T, LANES, 8>>(a);
}

template <typename T> static AttnStatus decode_channels(const AttnArgs *a)
{
#ifdef ATTN_GPU_SAMPLE /* a machine without a GPU that asks whether all compiles */
    return decode_rows<T, 16>(a);
#else
    const int64_t d = a->shape.d;
    if (d <= 64)
        return decode_rows<T, 8>(a);
    if (d <= 128)
        return decode_rows<T, 16>(a);
    return d <= 256 ? decode_rows<T, 32>(a) : ATTN_SKIP;
#endif
}

static AttnStatus decode(const AttnArgs *a)
{
    if (a->Q.dtype == ATTN_F32)
        return decode_channels<float>(a);
#ifdef ATTN_GPU_SAMPLE
    return decode_channels<__nv_bfloat16>(a);
#else
    return a->Q.dtype == ATTN_F16 ? decode_channels<__half>(a) : decode_channels<__nv_bfloat16>(a);
#endif
}

AttnStatus sliding_window_v3_decode_window(const AttnArgs *args)
{
    if (window_clips(args) || window_drops(args)) {
        window_set_skip_reason("v3_decode_window knows no clipping and no dropout: both need the "
                               "final weights, and a block sees those of its part of the keys");
        return ATTN_SKIP;
    }
    return window_plain_run_cuda(args, decode);
}
