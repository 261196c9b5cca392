/* SPDX-License-Identifier: MIT
 *
 * hopper_tensor.cuh: tiles of tensors of any stride order and head dimension for the copy engine.
 *
 * The rungs describe a head as whole panels of 64 channels. Here d may be anything up to the D that
 * the kernel was compiled for, and what lies behind the channels of a row belongs to somebody else,
 * so d is a limit of its own: a panel is one copy, and the engine writes zeros for channels from d
 * on, as it does for rows from N on. On the way back it leaves both out, but writes 16 bytes at a
 * time: with d = 59 those of channels 56 to 63, so that d must be a multiple of 8.
 *
 * Interface:
 * - on_hopper, copies_by_engine (host): is this a GPU for it; can the engine read and write this
 *   tensor?
 * - make_head_map (host): its tensor map. load_rows, store_rows_of_panel, store_rows_end: a tile.
 * - L2Policy, policy_evict_first, policy_normal; load_rows with one of them.
 * - write_smem: one word of a tile.
 * - cluster_arrive_relaxed, send: between the blocks of a cluster (cluster.cuh).
 */
#ifndef FLASH_FORWARD_HOPPER_TENSOR_CUH
#define FLASH_FORWARD_HOPPER_TENSOR_CUH

#include "attn.h"
#include "harness/device/cuda_check.h"
#include "units/cluster.cuh"
#include "units/hopper.cuh"

/* sm_90a code runs on no other GPU than one of compute capability 9.0. */
static bool on_hopper(void)
{
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
               cudaSuccess &&
           major == 9 && minor == 0;
}

/* The engine wants steps that are multiples of 16 bytes and less than 2^40; a step of 0 (the same
 * row again and again) is left to others. */
static bool copies_by_engine(const Tensor *t)
{
    const int64_t limit = (int64_t)1 << 39;
    for (int n = 0; n < 3; n++)
        if (t->shape[n] > 1 &&
            (t->stride[n] % 8 != 0 || t->stride[n] <= 0 || t->stride[n] >= limit))
            return false;
    return (uintptr_t)t->data % 16 == 0 && t->shape[1] < 1 << 29;
}

/* The map for tiles of 64 channels, `heads` heads and `rows` rows, which come in
 * this order. Dimensions, innermost first: channel, head, row, batch. Nobody steps in a dimension
 * of size 1. */
static AttnStatus make_head_map(CUtensorMap *map, const Tensor *t, int heads, int rows)
{
    const cuuint64_t sizes[4] = {(cuuint64_t)t->shape[3], (cuuint64_t)t->shape[2],
                                 (cuuint64_t)t->shape[1], (cuuint64_t)t->shape[0]};
    const cuuint64_t bytes[3] = {t->shape[2] > 1 ? (cuuint64_t)t->stride[2] * 2 : 16,
                                 t->shape[1] > 1 ? (cuuint64_t)t->stride[1] * 2 : 16,
                                 t->shape[0] > 1 ? (cuuint64_t)t->stride[0] * 2 : 16};
    const cuuint32_t box[4] = {PANEL, (cuuint32_t)heads, (cuuint32_t)rows, 1};
    const CUtensorMapDataType type =
        t->dtype == ATTN_BF16 ? MAP_TYPE<__nv_bfloat16> : MAP_TYPE<__half>;
    return encode_map(map, type, 4, t->data, sizes, bytes, box) ? ATTN_OK : ATTN_CUDA_ERROR;
}

/* cp.async.bulk.tensor, global to shared memory: all PANELS panels of a tile from row n of head h,
 * batch b. Their bytes count on `barrier`, zeros too. */
template <int PANELS>
static __device__ __forceinline__ void load_rows(uint32_t to_smem, int panel_bytes,
                                                 const CUtensorMap *map, int b, int h, int n,
                                                 uint32_t barrier)
{
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to_smem + panel * panel_bytes),
                     "l"(map), "r"(barrier), "r"(panel * PANEL), "r"(h), "r"(n), "r"(b)
                     : "memory");
}

/* createpolicy: what L2 does with the lines of a copy. evict_first: it gives them up before others.
 * normal: as without a policy. */
typedef uint64_t L2Policy;

static __device__ __forceinline__ L2Policy policy_evict_first(void)
{
    L2Policy policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

static __device__ __forceinline__ L2Policy policy_normal(void)
{
    L2Policy policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

template <int PANELS>
static __device__ __forceinline__ void load_rows(uint32_t to_smem, int panel_bytes,
                                                 const CUtensorMap *map, int b, int h, int n,
                                                 uint32_t barrier, L2Policy policy)
{
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(
                         to_smem + panel * panel_bytes),
                     "l"(map), "r"(barrier), "r"(panel * PANEL), "r"(h), "r"(n), "r"(b), "l"(policy)
                     : "memory");
}

/* cp.async.bulk.tensor, shared to global memory: one panel. Rows from N and channels from d (a
 * multiple of 8) on are left out. store_rows_end must follow the last one. */
static __device__ __forceinline__ void
store_rows_of_panel(uint32_t from_smem, int panel, const CUtensorMap *map, int b, int h, int n)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
                 "[%1, {%2, %3, %4, %5}], [%0];" ::"r"(from_smem),
                 "l"(map), "r"(panel * PANEL), "r"(h), "r"(n), "r"(b)
                 : "memory");
}

/* cp.async.bulk.commit_group: store_tiles_read can wait for them. */
static __device__ __forceinline__ void store_rows_end(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* st.shared */
static __device__ __forceinline__ void write_smem(uint32_t to, uint32_t word)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

/* barrier.cluster.arrive that promises nothing but that this thread has come, and what
 * barrier_init_done says of mbarriers. It waits for no memory. cluster_wait as ever. */
static __device__ __forceinline__ void cluster_arrive_relaxed(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/* st.async: to the shared memory of a block of the cluster, this one or another, whose `barrier`
 * counts the bytes when they are there. Both are of cluster_address. */
static __device__ __forceinline__ void send(uint32_t to, float a, float b, float c, float d,
                                            uint32_t barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void send(uint32_t to, float a, float b, uint32_t barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
                 "[%0], {%1, %2}, [%3];" ::"r"(to),
                 "f"(a), "f"(b), "r"(barrier)
                 : "memory");
}

#endif
