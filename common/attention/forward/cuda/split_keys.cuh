/* SPDX-License-Identifier: MIT
 *
 * split_keys.cuh: what to do when there are fewer row tiles than places for blocks.
 *
 * One new query, 32 heads and 100000 keys are 32 blocks, and an H200 has 132 multiprocessors: most
 * of the GPU would watch. So the keys of a row tile are cut into `splits` parts (if there is room
 * for two of each, and keys enough), each a block of its own with a state (O, lse) in float32, and
 * a second kernel merges the states of a row:
 *
 *     lse = ln sum_s exp(lse_s)             O = sum_s exp(lse_s - lse) O_s
 *
 * It is stage 02's merge of two halves of a row, with vectors. A state that the caller resumes from
 * is one part more, with the weight l exp(m) where it is unnormalised. The number of parts depends
 * on shape and GPU alone and their order is fixed: results are equal bit for bit from run to run.
 *
 * Interface:
 * - count_splits: how many parts, 1 = no need. split_bytes: room for their states.
 * - split_states, merge_splits<T>.
 */
#ifndef FLASH_FORWARD_SPLIT_KEYS_CUH
#define FLASH_FORWARD_SPLIT_KEYS_CUH

#include "dispatch.cuh"
#include "split_states.cuh"
#include "units/mma.cuh"

#define SPLIT_MIN_TILES 4 /* key tiles that are worth a block's start and the merge */
#define MERGED          4 /* channels that a lane merges at a time */

/* places: blocks that the GPU holds at a time. */
static inline int count_splits(const AttnShape *shape, FlashTiles tiles, int64_t places)
{
    const int64_t blocks = shape->B * shape->H * tiles.Tr;
    const int64_t room = blocks ? places / blocks : 1, worth = tiles.Tc / SPLIT_MIN_TILES;
    const int64_t splits = room < worth ? room : worth;
    return splits < 1 ? 1 : (int)splits;
}

/* States of the parts: O [splits][B][Nq][H][d], then lse [splits][B][H][Nq], float32. */
static inline size_t split_bytes(const AttnShape *shape, int splits)
{
    const int64_t rows = shape->B * shape->H * shape->Nq;
    return splits == 1 ? 0 : (size_t)(splits * rows * (shape->d + 1)) * sizeof(float);
}

static SplitStates split_states(const AttnShape *shape, int splits, void *workspace)
{
    SplitStates parts;
    parts.count = splits;
    parts.O = (float *)workspace;
    parts.lse = parts.O + splits * shape->B * shape->H * shape->Nq * shape->d;
    return parts;
}

/* One warp for each row. O_state NULL: the result goes to O; otherwise the state is merged in and
 * overwritten. A row that no part has seen keeps its state, or becomes O = 0, lse = -inf. Weights
 * are powers of two, and m of an unnormalised state is taken over as it is: in natural units it
 * would be rounded again whenever keys come. */
template <typename T>
static __global__ void __launch_bounds__(128)
    merge_splits_kernel(const __grid_constant__ AttnArgs a, SplitStates parts, float *O_state,
                        FlashRows state)
{
    const int64_t H = a.shape.H, Nq = a.shape.Nq, d = a.shape.d, rows = a.shape.B * H * Nq;
    const int64_t row = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32; /* [B][H][Nq] */
    const int lane = threadIdx.x % 32;
    wait_for_predecessor();
    if (row >= rows)
        return;
    const int64_t b = row / (H * Nq), h = row / Nq % H, i = row % Nq;
    const int64_t state_row = ((b * Nq + i) * H + h) * d;
    float m_old = -INFINITY, l_old = 0.0f;
    if (O_state) {
        m_old = state.m ? state.m[row] : a.lse[row] * (float)M_LOG2E;
        l_old = state.m ? state.l[row] : m_old != -INFINITY ? 1.0f : 0.0f;
    }

    /* A lane looks at every 32nd part, and the warp adds up what the lanes found. */
    float m = m_old;
    for (int s = lane; s < parts.count; s += 32)
        m = fmaxf(m, parts.lse[s * rows + row] * (float)M_LOG2E);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, distance));
    const float base = m == -INFINITY ? 0.0f : m, old = exp2f(m_old - base);
    float l = lane == 0 ? l_old * old : 0.0f;
    for (int s = lane; s < parts.count; s += 32)
        l += exp2f(fmaf(parts.lse[s * rows + row], (float)M_LOG2E, -base));
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        l += __shfl_xor_sync(0xffffffffu, l, distance);
    const float inverse = state.m ? 1.0f : l == 0.0f ? 0.0f : 1.0f / l;
    for (int64_t x0 = lane; x0 < d; x0 += 32 * MERGED) {
        float O[MERGED];
#pragma unroll
        for (int n = 0; n < MERGED; n++)
            O[n] = l_old != 0.0f && x0 + 32 * n < d ? old * O_state[state_row + x0 + 32 * n] : 0.0f;
#pragma unroll 8 /* so many loads are under way at a time */
        for (int s = 0; s < parts.count; s++) {
            const float weight = exp2f(fmaf(parts.lse[s * rows + row], (float)M_LOG2E, -base));
            const float *O_part = parts.O + s * rows * d + state_row + x0;
#pragma unroll
            for (int n = 0; n < MERGED; n++)
                O[n] += x0 + 32 * n < d ? weight * O_part[32 * n] : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < MERGED; n++) {
            if (x0 + 32 * n < d && O_state)
                O_state[state_row + x0 + 32 * n] = O[n] * inverse;
            else if (x0 + 32 * n < d)
                ((T *)a.O.data)[tensor_offset(&a.O, b, i, h) + x0 + 32 * n] = T(O[n] * inverse);
        }
    }
    __syncwarp(); /* all lanes have read m_old and l_old */
    if (lane == 0) {
        a.lse[row] = l == 0.0f ? -INFINITY : fmaf(base, (float)M_LN2, logf(l));
        if (state.m) {
            state.m[row] = m;
            state.l[row] = l;
        }
    }
}

template <typename T>
static AttnStatus merge_splits(const AttnArgs *a, SplitStates parts, float *O_state,
                               FlashRows state)
{
    const int64_t rows = a->shape.B * a->shape.H * a->shape.Nq;
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    int device = 0, major = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = (unsigned)((rows + 3) / 4);
    config.blockDim = 128;
    config.stream = (cudaStream_t)a->stream;
    config.attrs = &early;
    config.numAttrs = major >= 9;
    CUDA_TRY(cudaLaunchKernelEx(&config, merge_splits_kernel<T>, *a, parts, O_state, state));
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

#endif
