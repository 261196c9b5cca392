/* SPDX-License-Identifier: MIT
 *
 * hopper_gradients: the 16-bit gradients on a GPU of compute capability 9.0: d up to 256 in eights,
 * positions that grow with the index (row_rule.cuh), no full mask, no cap, no --smem-limit (that
 * is a smaller GPU), a positive scale, rows that the copy engine can read. Into tensors, or sums
 * that several calls add to. --deterministic: ordered_dq.cuh. What is not like that is left to
 * gradients_16bit.cu.
 *
 * A pass in parts (flash_backward_cuda_begin): the queries alone say whether it is a case for these
 * kernels, since dQ has its own order in memory, and begin, add and end have to agree. Keys that
 * are none are added the portable way, in memory of their own, and their dQ is brought over.
 *
 * Interface: flash_gradients_hopper, flash_gradients_hopper_bytes, flash_gradients_hopper_tiles
 * (block.cuh).
 */
#include "alloc.h"
#include "block.cuh"
#include "harness/device/device.h"
#include "pair_keys.cuh"

using namespace hopper_backward;

template <int D> struct TileOf {
    typedef Ordered<StayingKeys<D>> C;
};
template <> struct TileOf<256> {
    typedef Ordered<PairKeys> C;
};

/* Channels of the kernel. */
static int channels_for(int64_t d)
{
    return d <= 64 ? 64 : d <= 128 ? 128 : 256;
}

static bool queries_for_hopper(const AttnArgs *a)
{
    const AttnShape *n = &a->shape;
    AttnArgs alone = *a; /* the rule of queries among themselves */
    RowRule rule;
    alone.positions_k = a->positions_q;
    alone.shape.Nk = n->Nq;
    return a->Q.dtype != ATTN_F32 && n->d % 8 == 0 && n->d <= 256 && !a->mask &&
           !(a->softcap > 0.0f) && a->scale > 0.0f && device_smem_limit() == 0 && n->B > 0 &&
           n->Nq > 0 && readable(&a->Q) && readable(&a->dO) && make_row_rule(&rule, &alone) &&
           cuda_capability() == 90; /* sm_90a code runs on no other GPU */
}

static bool keys_for_hopper(const AttnArgs *a, KeysWork *work)
{
    return a->shape.Nk > 0 && readable(&a->K) && readable(&a->V) &&
           (work->sums.dK || (readable(&a->dK) && readable(&a->dV))) &&
           make_row_rule(&work->rule, a);
}

#define SECTION_MIB 32 /* Q, dO and dQ of a section of heads */

/* Heads, of so many blocks each, whose tiles of keys are taken in turn. With a mask the longest
 * tiles of several heads come first: of as many as fit the L2 cache, but enough to fill the GPU's
 * places for blocks. In order and without a mask: those that fill it twice (ordered_dq.cuh). All
 * tiles alike: one head after another. */
static int heads_of_section(const AttnArgs *a, bool ordered, int blocks, int places)
{
    const AttnShape *n = &a->shape;
    const bool masked = a->rule.left >= 0 || a->rule.right >= 0;
    const int64_t heads = n->B * n->Hkv, bytes = n->H / n->Hkv * n->Nq * n->d * 8;
    if (!ordered && !masked)
        return 1;
    const int64_t least = ((masked ? 1 : 2) * places + blocks - 1) / blocks;
    const int64_t cached = ((int64_t)SECTION_MIB << 20) / bytes; /* Q 2, dO 2, dQ 4 */
    const int64_t fit = masked && cached > least ? cached : least;
    const int64_t sections = heads < fit ? 1 : heads / fit;
    return (int)((heads + sections - 1) / sections);
}

#define SHORT_TURN 2048 /* queries: between 1152, which gained, and 4096, which lost (d = 128) */

/* Does a thread for each warpgroup send dV and dK to their tensors (send_sums)? Who computes then
 * begins the next turn sooner, which short turns gain from. At d = 128 the loop over the tiles,
 * compiled with it, is a little slower, which long turns would lose by. */
static bool sends_sums(const AttnArgs *a, const KeysWork &work)
{
    const AttnShape *n = &a->shape;
    const bool window = a->rule.left >= 0 && a->rule.right >= 0;
    const int64_t left = window && a->rule.left < n->Nq ? a->rule.left : n->Nq;
    const int64_t right = window && a->rule.right < n->Nq ? a->rule.right : n->Nq;
    const int64_t most = left + right + 128; /* queries that see any of 128 keys */
    return !flash_backward_deterministic() && !work.sums.dK &&
           n->H / n->Hkv * (most < n->Nq ? most : n->Nq) <= SHORT_TURN;
}

/* The portable kernel's dQ [B][Nq][H][d], which is scaled, to the slabs. */
static __global__ void __launch_bounds__(256)
    add_slabs_kernel(const __grid_constant__ AttnArgs a, float *dQ_sum, const float *dQ, int D)
{
    const int64_t item = blockIdx.x * (int64_t)256 + threadIdx.x, H = a.shape.H;
    const int x = (int)(item % a.shape.d), h = (int)(item / a.shape.d % H);
    const int64_t row = item / a.shape.d / H, i = row % a.shape.Nq, b = row / a.shape.Nq;
    const int Tr = divide_up((int)a.shape.Nq, 64), r = (int)(i % 64), e = r % 16 / 8;
    const int lane = r % 8 * 4 + x % 8 / 2;
    if (b >= a.shape.B)
        return;
    float *slab =
        dQ_sum + ((b * H + h) * Tr + i / 64) * (64 * D) + (r / 16 * (D / 64) + x / 64) * (16 * 64);
    slab[x % 64 / 8 * 128 + lane * 4 + 2 * e + x % 2] += dQ[item] / a.scale;
}

static AttnStatus add_other_keys(const AttnArgs *a, const float *delta_dev, const KeysWork &work,
                                 float *dQ_sum, int D)
{
    const cudaStream_t stream = (cudaStream_t)a->stream;
    const int64_t count = a->shape.B * a->shape.Nq * a->shape.H * a->shape.d;
    const size_t bytes = flash_gradients_portable_bytes(&a->shape);
    char *memory_dev = (char *)workspace_alloc_device(bytes + (size_t)count * sizeof(float));
    if (!memory_dev)
        return ATTN_NO_MEMORY;
    FlashSums sums = work.sums;
    sums.dQ = (float *)(memory_dev + bytes);
    AttnStatus status = ATTN_OK;
    if (cudaMemsetAsync(sums.dQ, 0, (size_t)count * sizeof(float), stream) != cudaSuccess)
        status = ATTN_CUDA_ERROR;
    if (status == ATTN_OK)
        status =
            flash_gradients_portable(a, delta_dev, sums, memory_dev, GRADIENTS_ALL, work.fresh);
    if (status == ATTN_OK) {
        add_slabs_kernel<<<(unsigned)((count + 255) / 256), 256, 0, stream>>>(*a, dQ_sum, sums.dQ,
                                                                              D);
        status = cudaGetLastError() == cudaSuccess ? ATTN_OK : ATTN_CUDA_ERROR;
    }
    workspace_free_device(memory_dev); /* kept until the kernels are done */
    return status;
}

typedef void (*KeysKernel)(AttnArgs, Pass, PanelMaps, KeysWork);

template <typename T, int D> static KeysKernel kernel_for(bool ordered, bool sent)
{
    if constexpr (D == 256)
        return ordered ? pair_kernel<T, true> : pair_kernel<T, false>;
    else
        return ordered ? keys_kernel<T, typename TileOf<D>::C, true, false>
               : sent  ? keys_kernel<T, typename TileOf<D>::C, false, true>
                       : keys_kernel<T, typename TileOf<D>::C, false, false>;
}

template <typename T, int D>
static AttnStatus add_gradients(const AttnArgs *a, KeysWork work, const Pass &pass, int parts)
{
    typedef typename TileOf<D>::C C;
    const cudaStream_t stream = (cudaStream_t)a->stream;
    const bool ordered = flash_backward_deterministic(), left = a->rule.left >= 0;
    const bool right = a->rule.right >= 0;
    int device = 0, places = 0;
    const int blocks = divide_up((int)a->shape.Nk, C::WALK_KEYS) * C::BLOCKS;
    const int64_t rows = rows_of_pass(&a->shape);
    const bool sent = sends_sums(a, work);
    const KeysKernel kernel = kernel_for<T, D>(ordered, sent);
    PanelMaps maps;
    AttnStatus status = make_maps<C>(&maps, a, D == 256 ? !work.sums.dK : sent);
    if (status == ATTN_OK)
        status = launch_is_done(0, NULL) ? ATTN_OK : ATTN_CUDA_ERROR;
    if (status != ATTN_OK)
        return status;
    if (ordered && !(parts & GRADIENTS_BEGIN))
        CUDA_TRY(cudaMemsetAsync(pass.dQ_sum + rows * D, 0, (size_t)order_ints(rows) * sizeof(int),
                                 stream));
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&places, cudaDevAttrMultiProcessorCount, device));
    if (ordered || parts == GRADIENTS_ALL)
        work.tickets = (int *)(pass.dQ_sum + rows * D) + rows / 64 * OWNERS;
    work.section = heads_of_section(a, ordered, blocks, places);
    work.of_head = blocks / C::BLOCKS;
    work.of_section = work.of_head * work.section;
    work.back = ordered ? left || right : left && !right; /* nobody waits; the longest first */
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = C::BLOCKS;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    const int64_t all = a->shape.B * a->shape.Hkv * blocks;
    work.count = (int)all;
    work.group = (int)(a->shape.H / a->shape.Hkv);
    config.gridDim = dim3((unsigned)(work.tickets && D < 256 && all > places ? places : all));
    config.blockDim = dim3(128 + CONSUMER_THREADS);
    config.dynamicSmemBytes = C::ALL;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = C::BLOCKS > 1;
    CUDA_TRY(cudaLaunchKernelEx(&config, kernel, *a, pass, maps, work));
    return launch_is_done(stream, "the library's Hopper gradients") ? ATTN_OK : ATTN_CUDA_ERROR;
}

template <typename T, int D>
static AttnStatus run_parts(const AttnArgs *a, const float *delta_dev, const KeysWork &work,
                            bool keys, float *workspace_dev, int parts)
{
    typedef typename TileOf<D>::C C;
    const Pass pass = place_pass(&a->shape, workspace_dev);
    const KeysKernel kernel = kernel_for<T, D>(flash_backward_deterministic(), sends_sums(a, work));
    AttnStatus status =
        cuda_reserve_smem((const void *)kernel, C::ALL); /* before anything is done */
    if (status == ATTN_OK && (parts & GRADIENTS_BEGIN))
        status = prepare_pass<T, D>(a, delta_dev, pass,
                                    order_ints(rows_of_pass(&a->shape)) * sizeof(int));
    if (status == ATTN_OK && (parts & GRADIENTS_ADD))
        status = keys ? add_gradients<T, D>(a, work, pass, parts)
                      : add_other_keys(a, delta_dev, work, pass.dQ_sum, D);
    if (status == ATTN_OK && (parts & GRADIENTS_END))
        status = finish_dQ<T, D>(a, pass, work.sums.dQ);
    return status;
}

template <typename T>
static AttnStatus run(const AttnArgs *a, const float *delta_dev, const KeysWork &work, bool keys,
                      float *workspace_dev, int parts)
{
    const int D = channels_for(a->shape.d);
    return D == 64    ? run_parts<T, 64>(a, delta_dev, work, keys, workspace_dev, parts)
           : D == 128 ? run_parts<T, 128>(a, delta_dev, work, keys, workspace_dev, parts)
                      : run_parts<T, 256>(a, delta_dev, work, keys, workspace_dev, parts);
}

AttnStatus flash_gradients_hopper(const AttnArgs *a, const float *delta_dev, FlashSums sums_dev,
                                  void *workspace_dev, int parts, int fresh)
{
    KeysWork work = {};
    work.sums = sums_dev;
    work.fresh = fresh != 0;
    if (!queries_for_hopper(a))
        return ATTN_SKIP;
    const bool keys = !(parts & GRADIENTS_ADD) || keys_for_hopper(a, &work);
    if (!keys && parts == GRADIENTS_ALL)
        return ATTN_SKIP;
#ifdef ATTN_GPU_SAMPLE
    return run<__nv_bfloat16>(a, delta_dev, work, keys, (float *)workspace_dev, parts);
#else
    return a->Q.dtype == ATTN_F16
               ? run<__half>(a, delta_dev, work, keys, (float *)workspace_dev, parts)
               : run<__nv_bfloat16>(a, delta_dev, work, keys, (float *)workspace_dev, parts);
#endif
}

size_t flash_gradients_hopper_bytes(const AttnShape *n)
{
    return pass_floats(n, channels_for(n->d)) * sizeof(float) +
           order_ints(rows_of_pass(n)) * sizeof(int);
}

int flash_gradients_hopper_tiles(const AttnArgs *a, FlashTiles *tiles)
{
    KeysWork work = {};
    const int D = channels_for(a->shape.d);
    if (!queries_for_hopper(a) || !keys_for_hopper(a, &work))
        return 0;
    *tiles = flash_tiles_of(&a->shape, D == 64 ? 128 : 64, 128); /* d = 256: of both blocks */
    return 1;
}
