/* SPDX-License-Identifier: MIT
 *
 * faults.cu: one small kernel for each thing that `check` says it finds, and beside it the right
 * program that must give no finding. test_faults.py reads the comment behind each name: what must
 * be reported, or `none`.
 *
 *     simt_faults NAME
 */
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>
#include <string.h>

struct Lock {
    int taken, blocks_done;
};

static __device__ unsigned shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

static __device__ void copy_16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}

static __device__ void copy_done(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* --- races in shared memory --------------------------------------------------------------------*/

static __global__ void race_wr(float *o)
{
    __shared__ float s[64];
    s[threadIdx.x] = 1.0f;                /* line A */
    o[threadIdx.x] = s[threadIdx.x ^ 32]; /* line B */
}
static __global__ void race_rw(float *o)
{
    __shared__ float s[64];
    s[threadIdx.x] = 1.0f;
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x ^ 32]; /* line A */
    s[threadIdx.x] = 2.0f;                /* line B */
}
static __global__ void race_ww(float *o)
{
    __shared__ float s[2];
    if (threadIdx.x % 32 == 0)
        s[0] = (float)threadIdx.x; /* line A */
    __syncthreads();
    o[threadIdx.x] = s[0];
}
static __global__ void same_value(float *o)
{
    __shared__ float s[2];
    s[0] = 3.0f; /* line A */
    __syncthreads();
    o[threadIdx.x] = s[0];
}
/* Of several lanes that read, the first is the one that has not met the writer since. */
static __global__ void first_of_three_readers(float *o)
{
    __shared__ float s[1];
    s[0] = 1.0f;
    __syncwarp();
    if (threadIdx.x < 3)
        o[threadIdx.x] = s[0]; /* line A */
    if (threadIdx.x == 1 || threadIdx.x == 2)
        __syncwarp(6);
    if (threadIdx.x == 2)
        s[0] = 2.0f; /* line B */
}
/* Bytes of one word: who has met the writer of the second has not met that of the first. */
static __global__ void first_byte_of_two(float *o)
{
    __shared__ unsigned char s[4];
    if (threadIdx.x < 2)
        s[threadIdx.x] = 1; /* line A */
    if (threadIdx.x == 1 || threadIdx.x == 2)
        __syncwarp(6);
    if (threadIdx.x == 2)
        o[0] = s[0]; /* line B */
}
static __global__ void own_byte_each(float *o)
{
    __shared__ unsigned char s[64];
    s[threadIdx.x] = 1;
    for (int i = 0; i < 3; i++)
        s[threadIdx.x] = (unsigned char)(s[threadIdx.x] + 1);
    o[threadIdx.x] = s[threadIdx.x];
}
static __global__ void barrier_between(float *o)
{
    __shared__ float s[64];
    s[threadIdx.x] = 1.0f;
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x ^ 32];
}
static __global__ void lanes_without_syncwarp(float *o)
{
    __shared__ float s[64];
    s[threadIdx.x] = 1.0f;               /* line A */
    o[threadIdx.x] = s[threadIdx.x ^ 1]; /* line B */
}
static __global__ void lanes_with_syncwarp(float *o)
{
    __shared__ float s[64];
    s[threadIdx.x] = 1.0f;
    __syncwarp();
    o[threadIdx.x] = s[threadIdx.x ^ 1];
}

/* --- races in global memory --------------------------------------------------------------------*/

static __global__ void blocks_add_plainly(float *o)
{
    if (threadIdx.x == 0)
        o[0] += 1.0f; /* line A */
}
static __global__ void blocks_add_atomically(float *o)
{
    atomicAdd(&o[0], 1.0f);
}
static __global__ void blocks_lock(float *o, Lock *lock)
{
    if (threadIdx.x == 0) {
        while (atomicCAS(&lock->taken, 0, 1) != 0)
            ;
        __threadfence();
        o[0] += 1.0f;
        __threadfence();
        atomicExch(&lock->taken, 0);
    }
}
static __global__ void blocks_lock_without_fence(float *o, Lock *lock)
{
    if (threadIdx.x == 0) {
        while (atomicCAS(&lock->taken, 0, 1) != 0)
            ;
        o[0] += 1.0f; /* line A */
        atomicExch(&lock->taken, 0);
    }
}
template <bool FENCE> static __device__ void last_block(float *o, Lock *lock)
{
    __shared__ int is_last;
    o[blockIdx.x * 64 + threadIdx.x] = 1.0f;
    if (FENCE)
        __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = atomicAdd(&lock->blocks_done, 1) == (int)gridDim.x - 1;
    __syncthreads();
    if (is_last && threadIdx.x == 0)
        for (int i = 1; i < 64 * (int)gridDim.x; i++)
            o[0] += o[i];
}
static __global__ void last_block_sums(float *o, Lock *lock)
{
    last_block<true>(o, lock);
}
static __global__ void last_block_without_fence(float *o, Lock *lock)
{
    last_block<false>(o, lock);
}
static __global__ void blocks_wait_for_the_next(float *o, Lock *lock)
{
    volatile int *done = &lock->blocks_done; /* the last block begins */
    if (threadIdx.x == 0)
        while (*done != (int)(gridDim.x - 1 - blockIdx.x))
            ;
    __syncthreads();
    __threadfence();
    o[threadIdx.x] += 1.0f;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        *done = *done + 1;
}

/* --- memory ------------------------------------------------------------------------------------*/

static __global__ void unwritten_shared(float *o)
{
    __shared__ float s[64];
    if (threadIdx.x < 63)
        s[threadIdx.x] = 1.0f;
    __syncthreads();
    o[threadIdx.x] = s[63 - threadIdx.x]; /* line A */
}
static __global__ void unwritten_device(float *o)
{
    o[threadIdx.x] = o[threadIdx.x + 64]; /* line A */
}
static __global__ void out_of_shared(float *o)
{
    extern __shared__ float s[];
    s[threadIdx.x + 1] = 1.0f; /* line A */
    o[threadIdx.x] = 0.0f;
}
static __global__ void out_of_global(float *o)
{
    o[1024 + 1024 * threadIdx.x] = 1.0f; /* line A */
}
static __global__ void out_of_array(float *o, int n)
{
    float a[4] = {1, 2, 3, 4};
    o[threadIdx.x] = a[threadIdx.x % 4 + n]; /* line A */
}
static __global__ void host_memory(float *o, const float *host)
{
    o[threadIdx.x] = host[threadIdx.x]; /* line A */
}
static __global__ void misaligned(float *o)
{
    *(float4 *)(o + 1 + 4 * threadIdx.x) = make_float4(1, 2, 3, 4); /* line A */
}
struct Two {
    int a, b;
};
static __global__ void two_anywhere(Two *o)
{
    Two *odd = (Two *)((int *)o + 1 + 4 * threadIdx.x);
    odd[0] = odd[1];
}
static __global__ void divides_by_zero(int *o)
{
    o[threadIdx.x] = 7 / o[threadIdx.x]; /* line A */
}
static __global__ void no_address(float **o)
{
    o[0][0] = 1.0f; /* line A */
}
static __global__ void asserts(float *o)
{
    assert(o[0] == 1.0f); /* line A */
}

/* --- barriers ----------------------------------------------------------------------------------*/

static __global__ void barrier_in_a_branch(float *o)
{
    if (threadIdx.x < 32)
        __syncthreads(); /* line A */
    else
        __syncthreads(); /* line B */
    o[threadIdx.x] = 1.0f;
}
static __global__ void barrier_not_for_all(float *o)
{
    if (threadIdx.x < 32)
        return;
    __syncthreads(); /* line A */
    o[threadIdx.x] = 1.0f;
}
static __global__ void deadlock(float *o)
{
    if (threadIdx.x < 32)
        asm volatile("bar.sync 1, 64;" ::: "memory"); /* line A */
    else
        asm volatile("bar.sync 2, 64;" ::: "memory"); /* line B */
    o[threadIdx.x] = 1.0f;
}
static __global__ void barrier_count(float *o)
{
    if (threadIdx.x < 32)
        asm volatile("bar.sync 1, 64;" ::: "memory"); /* line A */
    else
        asm volatile("bar.sync 1, 32;" ::: "memory"); /* line B */
    o[threadIdx.x] = 1.0f;
}
/* Who has only arrived goes on: what it writes then is not ordered before who waits. */
static __global__ void writes_behind_arrive(float *o)
{
    __shared__ float s[64];
    s[threadIdx.x] = 1.0f;
    if (threadIdx.x < 32) {
        asm volatile("bar.arrive 1, 64;" ::: "memory");
        s[threadIdx.x] = 2.0f; /* line A */
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        o[threadIdx.x] = s[threadIdx.x - 32]; /* line B */
    }
}
static __global__ void named_barrier(float *o)
{
    __shared__ float s[64];
    s[threadIdx.x] = 1.0f;
    asm volatile("bar.sync 1, 64;" ::: "memory");
    o[threadIdx.x] = s[threadIdx.x ^ 32];
}
static __global__ void spins_forever(float *o, Lock *lock)
{
    while (*(volatile int *)&lock->taken == 0) /* line A */
        ;
    o[threadIdx.x] = 1.0f;
}
static __global__ void loops_forever(float *o)
{
    for (int i = 0; o[threadIdx.x] < 1.0f; i++) /* line A */
        o[64 + threadIdx.x] = (float)i;
}
static __global__ void barriers_forever(float *o)
{
    for (int i = 0; i >= 0; i = (i + 1) % 64) {
        __syncthreads();
        o[threadIdx.x] = (float)i;
    }
}
static __global__ void lane_is_missing(float *o)
{
    float v = 1.0f;
    if (threadIdx.x != 5)
        v = __shfl_xor_sync(0xffffffffu, v, 1); /* line A */
    o[threadIdx.x] = v;
}
static __global__ void lane_not_in_mask(float *o)
{
    float v = 1.0f;
    if (threadIdx.x % 32 < 16)
        v = __shfl_sync(0xffffu, v, 16); /* line A */
    o[threadIdx.x] = v;
}

/* --- copies ------------------------------------------------------------------------------------*/

static __global__ void copy_not_waited_for(float *o)
{
    __shared__ __align__(16) float s[256];
    copy_16(s + 4 * threadIdx.x, o + 4 * threadIdx.x);
    asm volatile("cp.async.commit_group;" ::: "memory");
    o[256 + threadIdx.x] = s[4 * threadIdx.x]; /* line A */
    copy_done();
}
static __global__ void copy_without_barrier(float *o)
{
    __shared__ __align__(16) float s[256];
    copy_16(s + 4 * threadIdx.x, o + 4 * threadIdx.x);
    copy_done();
    o[256 + threadIdx.x] = s[4 * (threadIdx.x ^ 32)]; /* line A */
}
static __global__ void copy_waited_for(float *o)
{
    __shared__ __align__(16) float s[256];
    copy_16(s + 4 * threadIdx.x, o + 4 * threadIdx.x);
    copy_done();
    __syncthreads();
    o[256 + threadIdx.x] = s[4 * (threadIdx.x ^ 32)];
}
static __global__ void copy_at_the_end(float *o)
{
    __shared__ __align__(16) float s[256];
    copy_16(s + 4 * threadIdx.x, o + 4 * threadIdx.x);
    asm volatile("cp.async.commit_group;" ::: "memory");
}
static __global__ void mbarrier_not_made(float *o)
{
    __shared__ __align__(8) unsigned long long bar;
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&bar)) /* A */
                     : "memory");
    o[threadIdx.x] = 1.0f;
}
static __global__ void mbarrier_too_often(float *o)
{
    __shared__ __align__(8) unsigned long long bar;
    const unsigned at = shared_address(&bar);
    if (threadIdx.x == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(2) : "memory");
    __syncthreads();
    /* expects bytes that never come, so the phase stays open */
    if (threadIdx.x < 3)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(16)
                     : "memory");
    o[threadIdx.x] = 1.0f;
}

/* --- clusters: two blocks, the second writes to shared memory of the first, or reads it --------*/

static __device__ void cluster_barrier(bool wait)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    if (wait)
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

static __device__ void exchange(float *o, float *s, bool wait)
{
    cluster_barrier(true);
    if (threadIdx.x >= 32)
        return; /* the barrier counts those that have not ended */
    if (blockIdx.x % 2 == 1) {
        unsigned to;
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(to)
            : "r"(shared_address(s + 4 * threadIdx.x)), "r"(0));
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(1.0f),
                     "f"(2.0f), "f"(3.0f), "f"(4.0f)
                     : "memory");
    }
    cluster_barrier(wait);
    if (blockIdx.x % 2 == 0)
        o[32 * blockIdx.x + threadIdx.x] = s[4 * threadIdx.x];
}

static __global__ void cluster_waits(float *o)
{
    __shared__ __align__(16) float s[128];
    exchange(o, s, true);
}

static __global__ void cluster_does_not_wait(float *o)
{
    __shared__ __align__(16) float s[128];
    exchange(o, s, false);
}

static __device__ void look_there(float *o, int *s, bool wait)
{
    unsigned from;
    int seen;
    if (blockIdx.x % 2 == 0)
        s[threadIdx.x] = 1;
    if (wait)
        cluster_barrier(true);
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(from)
        : "r"(shared_address(s + threadIdx.x)), "r"(0));
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(seen) : "r"(from) : "memory");
    o[64 * blockIdx.x + threadIdx.x] = (float)seen;
    cluster_barrier(true);
}

static __global__ void cluster_reads(float *o)
{
    __shared__ int s[64];
    look_there(o, s, true);
}

static __global__ void cluster_reads_too_early(float *o)
{
    __shared__ int s[64];
    look_there(o, s, false);
}

/* The second block sends to the first (st.async), which has announced the bytes. The cluster's
 * barrier tells of the mbarrier alone. */
static __device__ void send_and_wait(float *o, bool meet, bool fence, int bytes, bool wait)
{
    __shared__ __align__(16) float s[256];
    __shared__ __align__(8) unsigned long long bar;
    const unsigned here = shared_address(&bar);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(here), "r"(1) : "memory");
        if (fence)
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(here),
                     "r"(bytes)
                     : "memory");
    }
    __syncthreads();
    if (meet) {
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }
    if (blockIdx.x % 2 == 1) {
        unsigned to, there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(to)
            : "r"(shared_address(s + 4 * threadIdx.x)), "r"(0));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(0));
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                     "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                     "f"(1.0f), "f"(2.0f), "f"(3.0f), "f"(4.0f), "r"(there)
                     : "memory");
    } else {
        unsigned over = 0;
        while (wait && !over)
            asm volatile("{\n.reg .pred p;\n"
                         "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, p;\n}\n" /* A */
                         : "=r"(over)
                         : "r"(here), "r"(0)
                         : "memory");
        o[64 * blockIdx.x + threadIdx.x] = s[4 * (threadIdx.x ^ 32)]; /* B */
    }
    if (!wait) /* too late */
        cluster_barrier(true);
}

static __global__ void sent_and_waited_for(float *o)
{
    send_and_wait(o, true, true, 64 * 16, true);
}

static __global__ void sent_and_not_waited_for(float *o)
{
    send_and_wait(o, true, true, 64 * 16, false);
}

static __global__ void sent_fewer_bytes_announced(float *o)
{
    send_and_wait(o, true, true, 64 * 8, true);
}

static __global__ void sent_more_bytes_announced(float *o)
{
    send_and_wait(o, true, true, 64 * 16 + 8, true);
}

static __global__ void sent_before_the_first_barrier(float *o)
{
    send_and_wait(o, false, true, 64 * 16, true);
}

static __global__ void sent_without_a_fence(float *o)
{
    send_and_wait(o, true, false, 64 * 16, true);
}

/* A relaxed arrival tells of nothing that was written. */
static __global__ void cluster_arrives_relaxed(float *o)
{
    __shared__ int s[64];
    unsigned from;
    int seen;
    s[threadIdx.x] = 1; /* A */
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(from)
        : "r"(shared_address(s + threadIdx.x)), "r"(1 - (int)blockIdx.x % 2));
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(seen) : "r"(from) : "memory"); /* B */
    o[64 * blockIdx.x + threadIdx.x] = (float)seen;
    cluster_barrier(true);
}

static void launch_pairs(void (*kernel)(float *), float *o)
{
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = 2;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(4);
    config.blockDim = dim3(64);
    config.attrs = &cluster;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, o);
}

/* --- what a student writes works ---------------------------------------------------------------*/

static __constant__ float factors[2] = {2.0f, 3.0f};

static __global__ void words_of_cuda(float *o)
{
    __shared__ float tile[2][32], other[64];
    const half2 h = __floats2half2_rn(1.5f, 2.5f);
    const __nv_bfloat162 b = __floats2bfloat162_rn(1.0f, 2.0f);
    const float2 f = __half22float2(__hfma2(h, h, h));
    const float3 three = make_float3(1, 2, 3);
    const uchar4 bytes = make_uchar4(1, 2, 3, 4);
    tile[threadIdx.x / 32][threadIdx.x % 32] = factors[0] * (float)bytes.w + three.z;
    other[threadIdx.x] = f.x + __low2float(b + b);
    const int all = __syncthreads_count(threadIdx.x < 10);
    if (threadIdx.x == 0)
        printf("block %d: %d\n", (int)blockIdx.x, all);
    o[threadIdx.x] = tile[threadIdx.x / 32][threadIdx.x % 32] + other[threadIdx.x] + (float)all;
}

/* Each tile of 8 sums its ranks; the block's barrier orders what its tiles wrote. */
static __global__ void groups(float *o)
{
    __shared__ float sums[8];
    const auto block = cooperative_groups::this_thread_block();
    const auto tile = cooperative_groups::tiled_partition<8>(block);
    const int sum =
        cooperative_groups::reduce(tile, (int)tile.thread_rank(), cooperative_groups::plus<int>());
    assert(sum == 28 && block.size() == 64);
    if (tile.thread_rank() == 0)
        sums[tile.meta_group_rank()] = (float)sum;
    block.sync();
    o[block.thread_rank()] = sums[block.thread_rank() % 8];
}

static __global__ void votes_and_sums(float *o)
{
    const unsigned all = ~0u, lane = threadIdx.x % 32;
    const int sign = (int)lane - 16;
    assert(__ballot_sync(all, lane & 1) == 0xaaaaaaaau);
    assert(__any_sync(all, lane == 5) && !__any_sync(all, lane > 31));
    assert(__all_sync(all, lane < 32) && !__all_sync(all, lane < 31));
    assert(__reduce_max_sync(all, lane) == 31 && __reduce_max_sync(all, sign - 16) == -1);
    assert(__reduce_min_sync(all, lane + 1) == 1 && __reduce_min_sync(all, sign) == -16);
    assert(__reduce_add_sync(all, lane) == 496 && __reduce_or_sync(all, 1u << lane) == ~0u);
    assert(__reduce_and_sync(all, lane | 32) == 32 && __reduce_xor_sync(all, lane + 1) == 32);
    assert(__shfl_up_sync(all, lane, 3) == (lane < 3 ? lane : lane - 3));
    assert(__shfl_down_sync(all, lane, 3) == (lane > 28 ? lane : lane + 3));
    assert(__shfl_sync(all, lane, 13, 8) == lane / 8 * 8 + 5);
    assert(__shfl_xor_sync(all, lane, 9, 8) == (lane % 32 / 8 % 2 ? (lane ^ 9) : lane));
    assert(__syncthreads_and(threadIdx.x < 64) && !__syncthreads_and(threadIdx.x < 63));
    assert(__syncthreads_or(threadIdx.x == 63) && __syncthreads_count(threadIdx.x < 10) == 10);
    o[threadIdx.x] = 1.0f;
}

/* The last 4 bytes are zeroed, not read. */
static __global__ void pipeline_waited_for(float *o)
{
    __shared__ alignas(16) float tile[64][4];
    o[threadIdx.x] = 1.0f;
    __pipeline_memcpy_async(tile[threadIdx.x], o + 64 + threadIdx.x * 4, 16, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    assert(tile[threadIdx.x][3] == 0.0f);
    o[threadIdx.x] = tile[threadIdx.x][0];
}
static __global__ void pipeline_not_waited_for(float *o)
{
    __shared__ alignas(16) float tile[64][4];
    __pipeline_memcpy_async(tile[threadIdx.x], o + 64 + threadIdx.x * 4, 16); /* line A */
    __pipeline_commit();
    o[threadIdx.x] = tile[threadIdx.x][0];
    __pipeline_wait_prior(0);
}

/* -----------------------------------------------------------------------------------------------*/

enum { FLOATS = 1024 };
static float *o, *fresh;
static Lock *lock;
static float *on_host;

/* as written: a launch is no operator */
// clang-format off
#define FAULT(NAME, ...)                                                                           \
    if (strcmp(name, #NAME) == 0) {                                                                \
        NAME<<<__VA_ARGS__;                                                                        \
        return 1;                                                                                  \
    }

/* What is launched in another way. */
static int run_other(const char *name)
{
    if (strcmp(name, "too_many_threads") == 0)
        barrier_between<<<1, 2048>>>(o);           /* more than the machine has: */
    else if (strcmp(name, "too_much_shared") == 0)
        out_of_shared<<<1, 64, 300000>>>(o);       /* more than the machine has: */
    else if (strcmp(name, "cluster_waits") == 0)
        launch_pairs(cluster_waits, o);            /* none: */
    else if (strcmp(name, "cluster_does_not_wait") == 0)
        launch_pairs(cluster_does_not_wait, o);    /* read of memory that nobody wrote: */
    else if (strcmp(name, "cluster_reads") == 0)
        launch_pairs(cluster_reads, o);            /* none: */
    else if (strcmp(name, "cluster_reads_too_early") == 0)
        launch_pairs(cluster_reads_too_early, o);  /* race: */
    else if (strcmp(name, "sent_and_waited_for") == 0)
        launch_pairs(sent_and_waited_for, o);      /* none: */
    else if (strcmp(name, "sent_and_not_waited_for") == 0)
        launch_pairs(sent_and_not_waited_for, o); /* use of bytes of a copy: */
    else if (strcmp(name, "sent_fewer_bytes_announced") == 0)
        launch_pairs(sent_fewer_bytes_announced, o); /* deadlock: */
    else if (strcmp(name, "sent_more_bytes_announced") == 0)
        launch_pairs(sent_more_bytes_announced, o); /* deadlock: */
    else if (strcmp(name, "sent_before_the_first_barrier") == 0)
        launch_pairs(sent_before_the_first_barrier, o); /* race: */
    else if (strcmp(name, "sent_without_a_fence") == 0)
        launch_pairs(sent_without_a_fence, o);     /* race: */
    else if (strcmp(name, "cluster_arrives_relaxed") == 0)
        launch_pairs(cluster_arrives_relaxed, o);  /* race: */
    else if (strcmp(name, "host_reads_device") == 0)
        on_host[0] = *(volatile float *)o;         /* a kernel reads or writes memory: */
    else
        return 0;
    return 1;
}

static int run(const char *name)
{
    FAULT(race_wr, 1, 64>>>(o))                    /* race: written, then read: A B */
    FAULT(race_rw, 1, 64>>>(o))                    /* race: read, then written: A B */
    FAULT(race_ww, 1, 64>>>(o))                    /* race: written twice: A A */
    FAULT(same_value, 1, 64>>>(o))                 /* warning: the same value written twice: A A */
    FAULT(first_of_three_readers, 1, 32>>>(o))     /* race: read, then written: A B */
    FAULT(first_byte_of_two, 1, 32>>>(o))          /* race: written, then read: A B */
    FAULT(own_byte_each, 1, 64>>>(o))              /* none */
    FAULT(barrier_between, 1, 64>>>(o))            /* none */
    FAULT(lanes_without_syncwarp, 1, 64>>>(o))     /* race: written, then read: A B */
    FAULT(lanes_with_syncwarp, 1, 64>>>(o))        /* none */
    FAULT(blocks_add_plainly, 64, 32>>>(o))        /* race: A A */
    FAULT(blocks_add_atomically, 64, 32>>>(o))     /* none */
    FAULT(blocks_lock, 64, 32>>>(o, lock))         /* none */
    FAULT(blocks_lock_without_fence, 8, 32>>>(o, lock)) /* race: A A */
    FAULT(last_block_sums, 8, 64>>>(o, lock))      /* none */
    FAULT(last_block_without_fence, 8, 64>>>(o, lock)) /* race: */
    FAULT(blocks_wait_for_the_next, 8, 64>>>(o, lock)) /* none */
    FAULT(unwritten_shared, 1, 64>>>(o))           /* read of memory that nobody wrote: A */
    FAULT(unwritten_device, 1, 64>>>(fresh))       /* read of memory that nobody wrote: A */
    FAULT(out_of_shared, 1, 64, 256>>>(o))         /* out of bounds of shared memory: A */
    FAULT(out_of_global, 1, 32>>>(o))              /* out of bounds of global memory: A */
    FAULT(out_of_array, 1, 32>>>(o, 1))            /* out of bounds of an array: A */
    FAULT(host_memory, 1, 32>>>(o, on_host))       /* out of bounds of global memory: A */
    FAULT(misaligned, 1, 32>>>(o))                 /* misaligned access: A */
    FAULT(two_anywhere, 1, 32>>>((Two *)o))        /* none */
    FAULT(divides_by_zero, 1, 32>>>((int *)o))     /* crash: A */
    FAULT(no_address, 1, 32>>>((float **)o))       /* crash: A */
    FAULT(asserts, 1, 32>>>(o))                    /* assertion failed: A */
    FAULT(barrier_in_a_branch, 1, 64>>>(o))        /* a barrier in a branch: A B */
    FAULT(barrier_not_for_all, 1, 64>>>(o))        /* a barrier that some threads: A */
    FAULT(deadlock, 1, 64>>>(o))                   /* deadlock: A B */
    FAULT(barrier_count, 1, 64>>>(o))              /* wrong count of a named barrier: A B */
    FAULT(named_barrier, 1, 64>>>(o))              /* none */
    FAULT(writes_behind_arrive, 1, 64>>>(o))       /* race: written, then read: A B */
    FAULT(spins_forever, 1, 64>>>(o, lock))        /* no progress: A */
    FAULT(loops_forever, 1, 64>>>(o))              /* no progress: */
    FAULT(barriers_forever, 1, 64>>>(o))           /* no progress: */
    FAULT(lane_is_missing, 1, 32>>>(o))            /* deadlock: A */
    FAULT(lane_not_in_mask, 1, 32>>>(o))           /* a lane is missing: A */
    FAULT(copy_not_waited_for, 1, 64>>>(o))        /* use of bytes of a copy: A */
    FAULT(copy_without_barrier, 1, 64>>>(o))       /* race: written, then read: A */
    FAULT(copy_waited_for, 1, 64>>>(o))            /* none */
    FAULT(groups, 1, 64>>>(o))                     /* none */
    FAULT(pipeline_waited_for, 1, 64>>>(o))        /* none */
    FAULT(pipeline_not_waited_for, 1, 64>>>(o))    /* use of bytes of a copy: A */
    FAULT(copy_at_the_end, 1, 64>>>(o))            /* a thread ends before its asynch: */
    FAULT(mbarrier_not_made, 1, 32>>>(o))          /* wrong use of an mbarrier: */
    FAULT(mbarrier_too_often, 1, 32>>>(o))         /* wrong use of an mbarrier: */
    FAULT(words_of_cuda, 1, 64>>>(o))              /* none */
    FAULT(votes_and_sums, 1, 64>>>(o))             /* none */
    return run_other(name);
}
// clang-format on

int main(int argc, char **argv)
{
    cudaMalloc(&o, FLOATS * sizeof(float));
    cudaMalloc(&fresh, FLOATS * sizeof(float));
    cudaMalloc(&lock, sizeof(Lock));
    on_host = new float[64]();
    cudaMemset(o, 0, FLOATS * sizeof(float));
    cudaMemset(lock, 0, sizeof(Lock));
    if (argc < 2 || !run(argv[1]))
        return 2;
    cudaDeviceSynchronize();
    return 0;
}
