/* SPDX-License-Identifier: MIT
 *
 * hopper.cuh: what sm_90a can do and C cannot say: one thin function for each PTX instruction.
 *
 * Four units work side by side in a Hopper multiprocessor, and these are their commands.
 *
 *   - The copy engine (TMA). One thread names a tile by a tensor map and five coordinates; the
 *     engine computes all addresses, fetches the tile, writes zeros for what lies outside the
 *     tensor, and swizzles it on the way. No register and no other thread takes part.
 *   - mbarriers: counters in shared memory that tell when a tile has come (the engine counts bytes)
 *     or when it is no longer needed (threads count themselves). A barrier runs through phases 0,
 *     1, 0, 1 ...; whoever waits says which phase has to be over.
 *   - The tensor cores. wgmma multiplies for a warpgroup (4 warps, 128 threads) at a time:
 *     C[64][n] += A[64][16] * B[16][n]. B is read from shared memory, A from shared memory or from
 *     registers, C stays in registers. It is asynchronous: issued, gathered into a group, and
 *     waited for by group.
 *   - The threads: softmax, and orders to the other three.
 *
 * A tile in shared memory. A row of a panel has 64 channels of 16 bits: 128 bytes, eight chunks of
 * 16, all 32 banks once. Chunk c of row r lies at place c ^ (r % 8) of its row ("128-byte
 * swizzle"): the same chunk of eight rows, or the eight chunks of one row, are eight different
 * bank groups. The pattern repeats every 8 rows = 1024 bytes, to which panels are aligned. d = 128
 * has two panels, one behind the other:  [d / 64][rows][64].
 *
 * C in registers: warp w of the group has rows 16 w ... 16 w + 15. With g = lane / 4, t = lane % 4
 * a lane holds of each 8 columns n
 *
 *     C[n][0], C[n][1]:  row g,      columns 8 n + 2 t, 8 n + 2 t + 1
 *     C[n][2], C[n][3]:  row g + 8,  the same columns
 *
 * which is the layout of mma.sync. With two neighbours packed into one register it is that of the
 * left factor A: P takes the place of S, and goes into the next product without a move.
 *
 * Source: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor copies",
 * "mbarrier", "setmaxnreg".
 *
 * Interface:
 * - make_tile_map<T> (host): the tensor map of [B][N][heads][d], tiles of `rows` rows of one head.
 *   encode_map (host): any other. launch_is_done (host): around a launch, for check builds.
 * - barrier_init, barrier_init_done, barrier_expect, barrier_arrive, barrier_wait: mbarriers.
 * - load_tile: TMA from global to shared memory. store_tile, store_tiles_read: back.
 *   fence_async: what threads have written becomes visible to the copy engine and to wgmma.
 * - tile_descriptor, row_tile_step, key_tile_step: operands of wgmma in shared memory.
 * - wgmma_begin, wgmma_commit, wgmma_wait<N>: the order around products.
 * - multiply_smem<T>: C = or += A B^T, A and B [rows][16 channels] in shared memory.
 *   multiply_registers<T>: C += A B, A in registers, B [16 keys][channels] in shared memory.
 * - pack2<T>, unpack2<T>: two floats to one register of two 16-bit elements, and back. exp2_sfu:
 *   2^x in one instruction.
 * - registers_give, registers_take: setmaxnreg. threads_sync, threads_arrive: named barriers.
 */
#ifndef UNITS_HOPPER_CUH
#define UNITS_HOPPER_CUH

#include <cuda.h> /* types of the driver's interface; nothing of it is linked */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>

#include <type_traits>

/* --- tensor maps (host) ------------------------------------------------------------------------*/

#define PANEL 64 /* channels of a panel: 128 bytes, the widest row that the engine swizzles */

template <typename T>
constexpr CUtensorMapDataType MAP_TYPE =
    std::is_same<T, __half>::value ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

/* cuTensorMapEncodeTiled, with the 128-byte swizzle and zeros for what lies outside. Dimensions go
 * from the innermost, which is contiguous, outwards. sizes [rank]; bytes [rank - 1]: from one index
 * to the next, of all but the innermost; box [rank]: the sizes of a tile. false: it failed, and
 * stderr says why. The driver's function is found at run time: so the program starts without it. */
static bool encode_map(CUtensorMap *map, CUtensorMapDataType type, int rank, const void *data,
                       const cuuint64_t *sizes, const cuuint64_t *bytes, const cuuint32_t *box)
{
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        !entry || found != cudaDriverEntryPointSuccess) {
        fprintf(stderr, "the driver has no cuTensorMapEncodeTiled (it came with CUDA 12.0)\n");
        return false;
    }
    const CUresult error = ((decltype(&cuTensorMapEncodeTiled))entry)(
        map, type, (cuuint32_t)rank, const_cast<void *>(data), sizes, bytes, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error != CUDA_SUCCESS)
        fprintf(stderr, "cuTensorMapEncodeTiled: error %d\n", (int)error);
    return error == CUDA_SUCCESS;
}

/* The map says where X [B][N][heads][d], contiguous, lies and that a tile has `rows` rows of one
 * head, all panels. Dimensions: channel of a panel, row, panel, head, batch; so the tile arrives as
 * [panel][row][64]. Rows past N read as zeros and are not written. */
template <typename T>
static bool make_tile_map(CUtensorMap *map, const void *X, int B, int N, int heads, int d, int rows)
{
    const cuuint64_t head = (cuuint64_t)d * sizeof(T), row = heads * head;
    const cuuint64_t sizes[5] = {PANEL, (cuuint64_t)N, (cuuint64_t)d / PANEL, (cuuint64_t)heads,
                                 (cuuint64_t)B};
    const cuuint64_t bytes[4] = {row, PANEL * sizeof(T), head, N * row};
    const cuuint32_t box[5] = {PANEL, (cuuint32_t)rows, (cuuint32_t)d / PANEL, 1, 1};
    return encode_map(map, MAP_TYPE<T>, 5, X, sizes, bytes, box);
}

/* --- waits that end ----------------------------------------------------------------------------*/

/* What a thread waits for: an argument of every barrier_wait, for the message of a check build. */
enum HopperWait { WAIT_Q = 1, WAIT_K, WAIT_V, WAIT_dO, WAIT_dS, WAIT_dQ, WAIT_STATES };
enum HopperRoom { WAIT_FREE_Q = 17, WAIT_FREE_K, WAIT_FREE_V, WAIT_FREE_dO, WAIT_FREE_dS };

#ifdef HOPPER_WAIT_LIMIT
/* Check builds: after HOPPER_WAIT_LIMIT tries, who waits and for what is written to memory of the
 * host, which survives what follows: a store to address 0 ends the kernel. (printf would not do: a
 * kernel that may call a function cannot keep products in flight, and ptxas serialises them, C7510.
 * Nor would the instruction trap: with one in the kernel ptxas ignores setmaxnreg, and spills.) */
static __device__ int *hopper_stuck_dev;

static __device__ __forceinline__ void report_stuck(int what)
{
    *(volatile int *)hopper_stuck_dev = what << 24 | (int)(threadIdx.x << 14) | 1;
    __threadfence_system();
    asm volatile("st.global.u32 [%0], %1;" ::"l"(0ull), "r"(0) : "memory");
}

/* Before a launch (kernel NULL) and after it. false: it has failed, and stderr says why. */
static inline bool launch_is_done(cudaStream_t stream, const char *kernel)
{
    static const char *const names[] = {"", "Q", "K", "V", "dO", "dS", "its turn for dQ", "states"};
    static volatile int *stuck = NULL;
    cudaError_t error = cudaSuccess;
    if (!stuck) { /* before the first launch */
        error = cudaHostAlloc((void **)&stuck, sizeof *stuck, cudaHostAllocMapped);
        if (error == cudaSuccess) {
            *stuck = 0;
            error = cudaMemcpyToSymbol(hopper_stuck_dev, (const void *)&stuck, sizeof stuck);
        }
    }
    if (kernel)
        error = cudaStreamSynchronize(stream);
    if (kernel && *stuck)
        fprintf(stderr, "%s: thread %d of warpgroup %d waited in vain for %s%s\n", kernel,
                *stuck >> 14 & 127, *stuck >> 21 & 7, *stuck >> 28 ? "the place of " : "",
                names[*stuck >> 24 & 15]);
    if (error != cudaSuccess)
        fprintf(stderr, "%s: %s\n", kernel ? kernel : "a check build", cudaGetErrorString(error));
    return error == cudaSuccess;
}
#else
static inline bool launch_is_done(cudaStream_t, const char *)
{
    return true;
}
#endif

/* --- mbarriers ---------------------------------------------------------------------------------*/

/* mbarrier.init: a phase is over after `arrivals` arrivals, and all bytes that were announced. */
static __device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* fence.mbarrier_init: the copy engine sees the barriers. (The threads do after __syncthreads.) */
static __device__ __forceinline__ void barrier_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* mbarrier.arrive.expect_tx: one arrival, and `bytes` more that this phase has to wait for. */
static __device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* mbarrier.arrive: one arrival. What this thread did before is visible to who waits. */
static __device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* mbarrier.try_wait.parity: has the phase of this parity ended? The hardware lets the thread sleep
 * for a while before it answers no. A fresh barrier is in phase 0, and the phase before, of parity
 * 1, counts as over: who waits for a stage to become free for the first time need not wait. */
static __device__ __forceinline__ bool barrier_try(uint32_t barrier, uint32_t parity)
{
    uint32_t over;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return over;
}

/* Waits until the phase of this parity has ended: until the bytes are there, or the arrivals. */
static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity,
                                                    [[maybe_unused]] int what)
{
#ifdef HOPPER_WAIT_LIMIT
    for (int tries = 0; !barrier_try(barrier, parity); tries++)
        if (tries == HOPPER_WAIT_LIMIT)
            report_stuck(what);
#else
    while (!barrier_try(barrier, parity)) {
    }
#endif
}

/* --- the copy engine ---------------------------------------------------------------------------*/

/* cp.async.bulk.tensor, global to shared memory: the tile of `map` from row n of head h, batch b.
 * Nothing is waited for: its bytes, also those of rows past the end, count on `barrier`. */
static __device__ __forceinline__ void load_tile(uint32_t to_smem, const CUtensorMap *map, int b,
                                                 int h, int n, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %3, %5, %6}], [%2];" ::"r"(to_smem),
                 "l"(map), "r"(barrier), "r"(0), "r"(n), "r"(h), "r"(b)
                 : "memory");
}

/* cp.async.bulk.tensor, shared to global memory; rows past the end are left out. Then
 * cp.async.bulk.commit_group: store_tiles_read can wait for it. */
static __device__ __forceinline__ void store_tile(uint32_t from_smem, const CUtensorMap *map, int b,
                                                  int h, int n)
{
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
                 "[%1, {%2, %3, %2, %4, %5}], [%0];" ::"r"(from_smem),
                 "l"(map), "r"(0), "r"(n), "r"(h), "r"(b)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* cp.async.bulk.wait_group.read: the engine has read all that this thread told it to store. A block
 * may not end, nor its shared memory be written, before that. */
static __device__ __forceinline__ void store_tiles_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* fence.proxy.async: the copy engine and the tensor cores read shared memory through the async
 * proxy. They see what this thread wrote with ordinary stores only after this fence. */
static __device__ __forceinline__ void fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* --- wgmma -------------------------------------------------------------------------------------*/

/* The matrix descriptor of a panel in shared memory: bits 0-13 address / 16; bits 16-29 "leading"
 * and bits 32-45 "stride" distance / 16; bits 62-63 = 1: 128-byte swizzle. "Stride" is that from 8
 * rows to the next 8: 1024 bytes. "Leading" is used where B is read by column (V: its row is a key,
 * but the sum runs over keys): from one panel of 64 channels to the next. */
static __device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, int panel_bytes)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(panel_bytes >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* What to add to a descriptor for channels 16 k ... of Q or K: 32 bytes inside a row of a panel
 * (the swizzle is undone on the address, whatever it starts from), or the next panel. */
static __device__ __forceinline__ uint64_t row_tile_step(int k, int panel_bytes)
{
    return (uint64_t)((k / 4 * panel_bytes + k % 4 * 32) >> 4);
}

/* The same for keys 16 k ... of V: 16 rows of 128 bytes. */
static __device__ __forceinline__ uint64_t key_tile_step(int k)
{
    return (uint64_t)(k * 16 * 128 >> 4);
}

/* wgmma.fence: registers that this warp has written or read before are free for the products that
 * follow. Needed before the first product, and again when threads have touched C or A. */
static __device__ __forceinline__ void wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* wgmma.commit_group: the products issued since the last commit are one group. */
static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* wgmma.wait_group: at most N of the latest groups are still at work. C is the result of the group
 * that this is about: the empty instructions tell the compiler that it changes only here, not
 * where the product was issued; else it might read C too early. */
template <int N, int TILES> static __device__ __forceinline__ void wgmma_wait(float (&C)[TILES][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#pragma unroll
    for (int n = 0; n < TILES; n++)
        asm volatile("" : "+f"(C[n][0]), "+f"(C[n][1]), "+f"(C[n][2]), "+f"(C[n][3])::"memory");
}

/* An operand list has to be written out: 8 columns of C are 4 registers of each lane. */
#define COLUMNS_8(C, n)  "+f"(C[n][0]), "+f"(C[n][1]), "+f"(C[n][2]), "+f"(C[n][3])
#define COLUMNS_16(C, n) COLUMNS_8(C, n), COLUMNS_8(C, n + 1)
#define COLUMNS_32(C, n) COLUMNS_16(C, n), COLUMNS_16(C, n + 2)
#define COLUMNS_64(C, n) COLUMNS_32(C, n), COLUMNS_32(C, n + 4)
#define NAMES_64                                                                                   \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                       \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_80 NAMES_64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NAMES_128                                                                                  \
    NAMES_80 ",%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"                                   \
             "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* wgmma.mma_async m64nNk16, A and B from shared memory, both with the channels in a row. The
 * operand p ("scale-d") says whether to add to C or to begin with zero; then the signs of A and B,
 * and whether A and B are transposed: 0, 0. Nothing is waited for. */
#define WGMMA_SMEM(N, TYPE, NAMES, A_NAME, B_NAME, P_NAME, ...)                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P_NAME ", 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES        \
                 "}, " A_NAME ", " B_NAME ", p, 1, 1, 0, 0;\n}\n"                                  \
                 : __VA_ARGS__                                                                     \
                 : "l"(A_desc), "l"(B_desc), "n"(ADD))
/* The same with A in registers and B transposed (its rows are keys, which the sum runs over). */
#define WGMMA_REGISTERS(N, TYPE, NAMES, A_NAMES, B_NAME, ...)                                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES        \
                 "}, {" A_NAMES "}, " B_NAME ", 1, 1, 1, 1;\n"                                     \
                 : __VA_ARGS__                                                                     \
                 : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B_desc))
#define BY_TYPE(WGMMA, N, ...)                                                                     \
    do {                                                                                           \
        if constexpr (std::is_same<T, __half>::value)                                              \
            WGMMA(N, "f16", __VA_ARGS__);                                                          \
        else                                                                                       \
            WGMMA(N, "bf16", __VA_ARGS__);                                                         \
    } while (0)

/* C[64][8 TILES] = (ADD: +=) A[64][16] B[8 TILES][16]^T */
template <typename T, int ADD, int TILES>
static __device__ __forceinline__ void multiply_smem(float (&C)[TILES][4], uint64_t A_desc,
                                                     uint64_t B_desc)
{
    if constexpr (TILES == 8)
        BY_TYPE(WGMMA_SMEM, 64, NAMES_64, "%32", "%33", "%34", COLUMNS_64(C, 0));
    else if constexpr (TILES == 10)
        BY_TYPE(WGMMA_SMEM, 80, NAMES_80, "%40", "%41", "%42", COLUMNS_64(C, 0), COLUMNS_16(C, 8));
    else if constexpr (TILES == 16)
        BY_TYPE(WGMMA_SMEM, 128, NAMES_128, "%64", "%65", "%66", COLUMNS_64(C, 0),
                COLUMNS_64(C, 8));
    else
        static_assert(TILES < 0, "multiply_smem: no instruction is written out for this width");
}

/* C[64][8 TILES] += A[64][16] B[16][8 TILES] */
template <typename T, int TILES>
static __device__ __forceinline__ void multiply_registers(float (&C)[TILES][4],
                                                          const uint32_t (&A)[4], uint64_t B_desc)
{
    if constexpr (TILES == 8)
        BY_TYPE(WGMMA_REGISTERS, 64, NAMES_64, "%32,%33,%34,%35", "%36", COLUMNS_64(C, 0));
    else if constexpr (TILES == 16)
        BY_TYPE(WGMMA_REGISTERS, 128, NAMES_128, "%64,%65,%66,%67", "%68", COLUMNS_64(C, 0),
                COLUMNS_64(C, 8));
    else
        static_assert(TILES < 0, "multiply_registers: d = 64 and 128");
}

/* --- for the softmax ---------------------------------------------------------------------------*/

/* cvt.rn.bf16x2.f32, cvt.rn.f16x2.f32: `low` in the low half, as the neighbour in memory. */
template <typename T> static __device__ __forceinline__ uint32_t pack2(float low, float high)
{
    uint32_t both;
    if constexpr (std::is_same<T, __half>::value)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

/* Two elements of a register, the low half first. */
template <typename T> static __device__ __forceinline__ float2 unpack2(uint32_t both)
{
    if constexpr (std::is_same<T, __half>::value)
        return __half22float2(*reinterpret_cast<const __half2 *>(&both));
    else
        return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000));
}

/* ex2.approx: 2^x by the special-function unit: error 2 ulp, 2^-inf = 0. */
static __device__ __forceinline__ float exp2_sfu(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* --- warpgroups --------------------------------------------------------------------------------*/

/* setmaxnreg.dec and .inc, by all 128 threads of a warpgroup: registers a thread goes back to the
 * multiprocessor's pool, or is taken from it (waits until there are enough). */
template <int COUNT> static __device__ __forceinline__ void registers_give(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> static __device__ __forceinline__ void registers_take(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* bar.sync: waits until `threads` threads have come to hardware barrier `id` (1 to 15; 0 is that of
 * __syncthreads). bar.arrive: comes there, too, and goes on without waiting. */
static __device__ __forceinline__ void threads_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void threads_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#endif
