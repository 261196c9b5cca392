/* SPDX-License-Identifier: MIT
 *
 * test_which_kernel: which kernels the libraries of stages 03 and 04 and the rungs of stage 05
 * launch for which case, on GPUs that are pretended. The functions of CUDA's runtime below stand in
 * front of the real ones; they tell the capability of a GPU that is not there, and note the names
 * of what is launched.
 *
 * - Before sm_80 nothing is launched for 16 bits, few queries or many, and the answer says so.
 * - On Hopper its kernels run where they may; --smem-limit is another GPU, and a refusal leaves no
 *   launch behind. The tiles that a row names are those of the kernel that was launched.
 * - Options that stage 05 has dealt with change nothing.
 * - No queries, no keys: no division by zero, and no grid without a block.
 * - Stage 05: the narrow window's kernel, and few queries; a launch for each pair of blocks that
 *   the window leaves; keys in as many parts as fill the GPU. What is refused launches nothing.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "unit.h"

#include "attention/backward/backward_library.h"
#include "attention/forward/cuda/block_kernels.cuh"
#include "attention/forward/flash_library.h"
#include "attention/window/window_library.h"
#include "attn_config.h"
#include "attn_options.h"
#include "attn_pairs.h"
#include "harness/device/device.h"
#include "harness/rung.h"
#include "harness/visits.h"
#include "problem.h"

CUDA_RUNG_FN(sliding_window, v0_online_block)
CUDA_RUNG_FN(sliding_window, v3_decode_window)

/* --- the GPU -----------------------------------------------------------------------------------*/

static struct {
    int major, minor, smem;
} gpu;

static char launched[1024]; /* the names of kernels, one behind the other */
static int empty_grids, launches;
static unsigned first_grid; /* blocks of the first launch since `launched` was empty */
static const char *last_name;
static bool evict_first; /* the last argument of few_hopper_kernel, when that was launched last */

static struct {
    const void *function;
    const char *name;
} kernels[2048];
static int kernel_count;

static struct {
    dim3 grid, block;
    size_t smem;
    cudaStream_t stream;
} configuration;

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *function, char *device, const char *name,
                            int limit, void *tid, void *bid, dim3 *block, dim3 *grid, int *size);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t smem,
                                     struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *smem, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t smem,
                               cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    (void)binary;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *function, char *device, const char *name,
                            int limit, void *tid, void *bid, dim3 *block, dim3 *grid, int *size)
{
    (void)handle, (void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid;
    (void)size;
    if (kernel_count == sizeof kernels / sizeof *kernels)
        abort();
    kernels[kernel_count].function = function;
    kernels[kernel_count++].name = name;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t smem, struct CUstream_st *stream)
{
    configuration.grid = grid;
    configuration.block = block;
    configuration.smem = smem;
    configuration.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *smem, void *stream)
{
    *grid = configuration.grid;
    *block = configuration.block;
    *smem = configuration.smem;
    *(cudaStream_t *)stream = configuration.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}

static cudaError_t note_launch(const void *function, dim3 grid)
{
    int k = 0;
    while (k < kernel_count && kernels[k].function != function)
        k++;
    assert_true(k < kernel_count);
    if (launched[0] == '\0')
        first_grid = grid.x;
    if (strlen(launched) + strlen(kernels[k].name) < sizeof launched)
        strcat(launched, kernels[k].name);
    last_name = kernels[k].name;
    launches++;
    empty_grids += (int64_t)grid.x * grid.y * grid.z == 0;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t smem,
                               cudaStream_t stream)
{
    (void)block, (void)args, (void)smem, (void)stream;
    return note_launch((const void *)kernel, grid);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **args)
{
    const cudaError_t error = note_launch(function, config->gridDim);
    if (strstr(last_name, "few_hopper_kernel"))
        evict_first = *(const bool *)args[5];
    return error;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int device)
{
    (void)device;
    *value = what == cudaDevAttrComputeCapabilityMajor         ? gpu.major
             : what == cudaDevAttrComputeCapabilityMinor       ? gpu.minor
             : what == cudaDevAttrMaxSharedMemoryPerBlockOptin ? gpu.smem
             : what == cudaDevAttrMultiProcessorCount          ? 132
             : what == cudaDevAttrL2CacheSize                  ? 60 << 20
                                                               : -1;
    assert_true(*value >= 0);
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *about, const void *function)
{
    (void)function;
    memset(about, 0, sizeof *about);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute what, int value)
{
    (void)function, (void)what;
    return value <= gpu.smem ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks,
                                                                   const void *function,
                                                                   int threads, size_t smem,
                                                                   unsigned flags)
{
    (void)function, (void)threads, (void)flags;
    *blocks = (int)((size_t)gpu.smem / (smem + 1024));
    return cudaSuccess;
}

/* Of an H200: clusters of one to four blocks that fill a multiprocessor each. */
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function,
                                           const cudaLaunchConfig_t *config)
{
    static const int most[] = {0, 132, 66, 39, 30};
    (void)function;
    *clusters = most[config->attrs[0].val.clusterDim.x];
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "pretended";
}

cudaError_t cudaMemsetAsync(void *p_dev, int value, size_t bytes, cudaStream_t stream)
{
    (void)p_dev, (void)value, (void)bytes, (void)stream;
    return cudaSuccess;
}

static CUresult encode_nothing(void)
{
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **entry, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)name, (void)version, (void)flags;
    *(CUresult(**)(void))entry = encode_nothing; /* more arguments than it asks for */
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

void *workspace_alloc_device(size_t bytes);
void workspace_free_device(void *p_dev);

void *workspace_alloc_device(size_t bytes)
{
    (void)bytes;
    return (void *)256;
}

void workspace_free_device(void *p_dev)
{
    (void)p_dev;
}

/* --- cases -------------------------------------------------------------------------------------*/

static AttnSegment segments[2];
static const AttnOptions done_with = {.temperature = 1.0f, .clip_high = 1.0f};

static void on_gpu(int arch)
{
    gpu.major = arch / 10;
    gpu.minor = arch % 10;
    gpu.smem = arch == 90 ? 227 << 10 : arch == 80 ? 163 << 10 : 64 << 10;
    device_set_smem_limit(0);
}

static Tensor tensor(int64_t B, int64_t N, int64_t H, int64_t d, AttnDtype dtype)
{
    return (Tensor){(void *)4096, dtype, {B, N, H, d}, {N * H * d, H * d, d, 1}};
}

/* Causal, lower right: pointers to nowhere, which nobody follows. */
static AttnArgs case_of(int64_t Nq, int64_t Nk, int64_t d, AttnDtype dtype)
{
    const int64_t B = 8, H = 8, Hkv = 4;
    AttnArgs a = {.shape = {B, H, Hkv, Nq, Nk, d}, .scale = 0.1f, .rule = {-1, 0}};
    segments[0] = (AttnSegment){0, Nq, 0, Nk - Nq, 1};
    segments[1] = (AttnSegment){0, Nk, 0, 0, 1};
    a.positions_q = attn_positions(&segments[0], 1);
    a.positions_k = attn_positions(&segments[1], 1);
    a.Q = a.O = a.dO = a.dQ = tensor(B, Nq, H, d, dtype);
    a.K = a.V = a.dK = a.dV = tensor(B, Nk, Hkv, d, dtype);
    a.lse = (float *)4096;
    return a;
}

static AttnStatus forward(const AttnArgs *a)
{
    launched[0] = '\0';
    return flash_forward_library_cuda(a);
}

static AttnStatus backward(const AttnArgs *a)
{
    launched[0] = '\0';
    return flash_backward_library_cuda(a);
}

TEST(test_before_sm_80_nothing_is_launched)
{
    const int64_t queries[] = {1, 1, 16, 16, 500, 500};
    on_gpu(75);
    for (int n = 0; n < 6; n++) {
        const AttnArgs half = case_of(queries[n], 5000, n % 2 ? 64 : 128, ATTN_BF16);
        assert_int_equal(ATTN_SKIP, forward(&half));
        assert_string_equal("", launched);
        assert_int_equal(ATTN_SKIP, backward(&half));
        assert_string_equal("", launched);
        const AttnArgs whole = case_of(queries[n], 5000, n % 2 ? 64 : 128, ATTN_F32);
        assert_int_equal(ATTN_OK, forward(&whole));
        assert_non_null(strstr(launched, "attention_f32_kernel"));
    }
}

#ifdef HAVE_SM90A
#define FEW_ON_HOPPER "few_hopper_kernel"
#define HAVE_CLUSTERS 1 /* up to four parts merge in shared memory */
#else
#define FEW_ON_HOPPER "few_queries_kernel"
#define HAVE_CLUSTERS 0
#endif

static void expect(AttnStatus status, const char *kernel)
{
    assert_int_equal(ATTN_OK, status);
    if (!strstr(launched, kernel))
        print_message("%s was expected, and launched was %s\n", kernel, launched);
    assert_non_null(strstr(launched, kernel));
}

TEST(test_kernels_and_their_tiles)
{
    const AttnArgs many = case_of(500, 500, 128, ATTN_BF16);
    AttnArgs few = case_of(4, 5000, 128, ATTN_BF16), some = case_of(4, 200, 128, ATTN_BF16);
    on_gpu(80);
    expect(forward(&many), "attention_16bit_kernel");
    expect(backward(&many), "gradients_kernel");
    expect(forward(&few), "few_queries_kernel");
#ifdef HAVE_SM90A
    on_gpu(90);
    expect(forward(&many), "hopper_kernel");
    assert_int_equal(64 * 3, flash_tiles_library_cuda(&many).Br);
    expect(backward(&many), "keys_kernel");
    device_set_smem_limit(101376);
    expect(forward(&many), "attention_16bit_kernel");
    assert_true(flash_tiles_library_cuda(&many).Br != 64 * 3);
    expect(backward(&many), "gradients_kernel");
    assert_null(strstr(launched, "hopper_backward"));
    assert_true(flash_backward_tiles_library_cuda(&many).Bc < 128);
#endif
    on_gpu(90);
    few.shape.B = 1;
    expect(forward(&few), FEW_ON_HOPPER);
    assert_non_null(strstr(launched, "merge_splits_kernel"));
    assert_true(flash_tiles_library_cuda(&few).splits > 4);
    few.shape.B = 16;
    expect(forward(&few), FEW_ON_HOPPER);
    assert_int_equal(HAVE_CLUSTERS, !strstr(launched, "merge_splits_kernel"));
    assert_true(flash_tiles_library_cuda(&few).splits > 1);
    assert_true(flash_tiles_library_cuda(&few).splits <= 4);
    few = case_of(4, 2000, 128, ATTN_BF16);
    for (few.shape.B = 7; few.shape.B <= 8; few.shape.B++) { /* room for 28 clusters, not for 32 */
        expect(forward(&few), FEW_ON_HOPPER);
        assert_int_equal(HAVE_CLUSTERS && few.shape.B == 7,
                         !strstr(launched, "merge_splits_kernel"));
        assert_int_equal(4, flash_tiles_library_cuda(&few).splits);
    }
#ifdef HAVE_SM90A
    few = case_of(4, 4096, 128, ATTN_BF16); /* 8 MiB of K and V; the L2 has 60 */
    few.shape.B = 7;
    expect(forward(&few), FEW_ON_HOPPER);
    assert_false(evict_first);
    few.shape.B = 8;
    expect(forward(&few), FEW_ON_HOPPER);
    assert_true(evict_first);
    few.rule.left = 2000; /* half of the keys are read */
    expect(forward(&few), FEW_ON_HOPPER);
    assert_false(evict_first);
    few.shape.B = 65536; /* more than a grid may have in z */
    expect(forward(&few), "few_queries_kernel");
#endif
    expect(forward(&some), FEW_ON_HOPPER); /* one part: too few keys for two */
    assert_null(strstr(launched, "merge_splits_kernel"));
    const FlashTiles tiles = flash_tiles_library_cuda(&some);
    assert_true(tiles.splits == 1 && tiles.Br == 4 && tiles.Bc == 64);
}

#ifdef HAVE_SM90A
extern const Rung rung_flash_backward_v13_fused_delta;

TEST(test_a_refusal_leaves_nothing_behind)
{
    const Problem p = {.B = 2,
                       .H = 4,
                       .Hkv = 2,
                       .Nq = 500,
                       .Nk = 500,
                       .d = 128,
                       .scale = 1.0f,
                       .from = -(1 << 30),
                       .to = 1 << 30,
                       .dtype = BF16};
    on_gpu(90);
    device_set_smem_limit(101376);
    launched[0] = '\0';
    rung_flash_backward_v13_fused_delta.backward(&p);
    assert_string_equal("", launched);
    assert_true(device_smem_refused() > 101376);
}

TEST(test_options_that_are_dealt_with)
{
    AttnArgs many = case_of(500, 500, 128, ATTN_BF16);
    on_gpu(90);
    many.options = &done_with;
    expect(forward(&many), "hopper_kernel");
    expect(backward(&many), "keys_kernel");
    AttnArgs few = case_of(4, 5000, 128, ATTN_BF16);
    few.options = &done_with;
    expect(forward(&few), FEW_ON_HOPPER);
    few.softcap = 20.0f;
    expect(forward(&few), "few_queries_kernel");
}
#endif

/* --- stage 05 ----------------------------------------------------------------------------------*/

static AttnStatus run_window(AttnFn variant, const AttnArgs *a)
{
    launched[0] = '\0';
    launches = 0;
    return variant(a);
}

TEST(test_windows_and_few_queries)
{
    AttnArgs many = case_of(500, 500, 128, ATTN_BF16), few = case_of(4, 5000, 128, ATTN_BF16);
    on_gpu(90);
    many.rule.left = 100;
    few.rule.left = 4000;
    expect(run_window(sliding_window_library_cuda, &many), "hopper_kernel");
    expect(run_window(sliding_window_library_cuda, &few), FEW_ON_HOPPER);
}

/* 64 rows, 132 multiprocessors of 32 warps each: 66 parts would fill them. */
TEST(test_keys_in_parts)
{
    AttnArgs a = case_of(1, 100000, 128, ATTN_BF16);
    on_gpu(90);
    expect(run_window(sliding_window_v3_decode_window, &a), "merge_kernel");
    assert_true(launches == 2 && strstr(launched, "decode_kernel"));
    assert_int_equal(64 * 66 / 4, first_grid); /* four warps a block */
    a.rule.left = 1023;
    assert_int_equal(ATTN_OK, run_window(sliding_window_v3_decode_window, &a));
    assert_int_equal(64 * 8 / 4, first_grid); /* 128 keys are worth a part */
    a.rule.left = 5;
    assert_int_equal(ATTN_OK, run_window(sliding_window_v3_decode_window, &a));
    assert_int_equal(64 / 4, first_grid);
    const AttnOptions drops = {.temperature = 1.0f, .clip_high = 1.0f, .dropout = 0.1f};
    a.options = &drops;
    assert_int_equal(ATTN_SKIP, run_window(sliding_window_v3_decode_window, &a));
    assert_int_equal(0, launches);
}

TEST(test_a_launch_for_each_visible_pair_of_blocks)
{
    AttnArgs a = case_of(256, 256, 64, ATTN_F32);
    on_gpu(90);
    assert_int_equal(ATTN_OK, run_window(sliding_window_v0_online_block, &a));
    assert_int_equal(1 + 4 + 3 + 2 + 1, launches); /* the start, then the lower triangle */
    a.rule.left = 64;
    assert_int_equal(ATTN_OK, run_window(sliding_window_v0_online_block, &a));
    assert_int_equal(1 + 4 + 3, launches); /* row 64 i sees key 64 i - 64, not one before */
    a.rule.left = 65;
    assert_int_equal(ATTN_OK, run_window(sliding_window_v0_online_block, &a));
    assert_int_equal(1 + 4 + 3 + 2, launches);
    device_set_smem_limit(1000);
    assert_int_equal(ATTN_SKIP, run_window(sliding_window_v0_online_block, &a));
    assert_true(launches == 0 && device_smem_refused() > 1000);
    segments[1].stride = -1;
    device_set_smem_limit(0);
    assert_int_equal(ATTN_SKIP, run_window(sliding_window_v0_online_block, &a));
    assert_int_equal(0, launches);
}

TEST(test_nothing_to_do)
{
    static const int archs[] = {75, 80, 90};
    for (int n = 0; n < 3 * 3 * 2 * 2; n++) {
        const int empty = n / 3 % 3; /* queries, keys, both */
        const AttnDtype dtype = n / 9 % 2 ? ATTN_F32 : ATTN_BF16;
        AttnArgs a = case_of(empty == 1 ? 70 : 0, empty == 0 ? 70 : 0, 128, dtype);
        on_gpu(archs[n % 3]);
        if (n / 18)
            a.rule.right = -1;
        (void)flash_cuda_workspace_bytes(&a.shape, dtype);
        (void)flash_backward_cuda_workspace_bytes(&a.shape, dtype);
        (void)flash_tiles_library_cuda(&a);
        (void)flash_backward_tiles_library_cuda(&a);
        const AttnStatus ahead = forward(&a), back = backward(&a);
        assert_true(ahead == ATTN_OK || (ahead == ATTN_SKIP && archs[n % 3] < 80));
        assert_true(back == ATTN_OK || (back == ATTN_SKIP && archs[n % 3] < 80));
        const FlashSums sums = {(float *)4096, (float *)4096, (float *)4096};
        assert_int_equal(ATTN_OK, flash_sums_store_cuda(&a, sums));
        assert_int_equal(ATTN_OK, flash_cuda_rows_store(&a, sums.dQ, (FlashRows){0}));
        assert_int_equal(0, empty_grids);
    }
}
