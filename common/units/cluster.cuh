/* SPDX-License-Identifier: MIT
 *
 * cluster.cuh: blocks of a cluster run at the same time, on neighbouring multiprocessors, and reach
 * each other's shared memory ("distributed shared memory").
 *
 * A block's shared memory has an address in the other blocks: cluster_address. With it a thread can
 * arrive at another block's mbarrier, and the copy engine can write there. Two rules: nobody
 * touches another block before it has begun and made its barriers, nor after it has ended. Hence
 * cluster_arrive and cluster_wait after barrier_init, and again at the end.
 *
 * Interface:
 * - cluster_arrive, cluster_wait: the barrier of all threads of a cluster. cluster_address.
 * - arrive_there, expect_there: barrier_arrive and barrier_expect in another block.
 * - copy_there: the copy engine, from this block's shared memory to another's. load_for_both: from
 *   global memory to both.
 */
#ifndef UNITS_CLUSTER_CUH
#define UNITS_CLUSTER_CUH

#include <cuda.h> /* CUtensorMap */
#include <stdint.h>

/* barrier.cluster: all threads of all blocks of the cluster, but those that have ended. Who waits
 * sees what the others wrote to shared memory before they arrived. */
static __device__ __forceinline__ void cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* mapa: where block `rank` of the cluster has what this block has at `smem`. */
static __device__ __forceinline__ uint32_t cluster_address(uint32_t smem, int rank)
{
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(smem), "r"(rank));
    return address;
}

/* mbarrier.arrive at an address of cluster_address. */
static __device__ __forceinline__ void arrive_there(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void expect_there(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

/* cp.async.bulk, shared to shared memory: `to` and `barrier` are of cluster_address. The barrier
 * there is the only one that learns when the copy is done, and that `from` is free again. */
static __device__ __forceinline__ void copy_there(uint32_t to, uint32_t from, int bytes,
                                                  uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "r"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* cp.async.bulk.tensor with multicast: a tile of some panels, from `panel` on, arrives at the same
 * place in two blocks of a cluster and counts on the barrier of each. It is read once. channel: 0,
 * but where the map has all channels of a head in one panel. */
static __device__ __forceinline__ void load_for_both(uint32_t to, const CUtensorMap *map, int b,
                                                     int h, int n, int channel, int panel,
                                                     uint32_t barrier)
{
    const uint16_t blocks = 3; /* a bit each */
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(channel), "r"(n), "r"(panel), "r"(h), "r"(b),
                 "h"(blocks)
                 : "memory");
}

#endif
