/* SPDX-License-Identifier: MIT
 *
 * v2_one_read: the row stays on chip between its only read and its only write.
 *
 * v1 reads x twice because 32 lanes cannot hold a row. A whole block can: the register file of an
 * SM is 256 KiB, more than its shared memory. Each thread takes up to 32 columns into registers (64
 * of a row of 4096: two warps hold that row then and hardly wait for each other), replaces them by
 * exp(x - m_warp) in place, and when the row's state is known multiplies by one factor:
 *
 *     y_c = exp(x_c - m_warp) * (exp(m_warp - m) / l)      one exp and one access each way
 *
 *     columns up to      1024   2048   4096   8192   16384   32768
 *     threads/row          32    128     64    256     512    1024
 *
 * Bytes in flight. The copy rate of an H200 is about 4.2 TB/s, half of it reads: 16 bytes/ns for
 * each of 132 SMs. A load takes about 0.8 us under load, so 13 KiB must be under way at any time in
 * every SM (Little's law), and in practice two or three times that. While a row is reduced and
 * written, nothing of it is under way: a row of 32768 columns fills all registers, so no second
 * block could load meanwhile. Therefore each thread asks for its part of the block's *next* row
 * (cp.async: global to shared memory, past the registers) before it starts to compute. 1024 threads
 * hold 128 KiB in registers and have 128 KiB on the way. Each thread reads back only what it asked
 * for itself, so this double buffer needs no barrier.
 *
 * Prediction before measuring: compute per row of 32768 columns is about 14 instructions for each
 * element, 2.3 us of the 8.2 us that the bytes of a row take; hidden. The fetch stops while a
 * thread moves its 8 vectors to registers: about 2 %. Last round of 62.06 rows a block: 1.5 %.
 *
 * Interface: any rows, cols; float32; attention with this softmax.
 */
#include "problem_row_chunks.cuh"

#define ONE_READ_COLS 32768 /* the widest row that one block's registers hold */

/* Threads resident on an SM: with 32 columns each they need 64 registers, with 64 columns 96. */
#define SM_THREADS      1024
#define SM_WIDE_THREADS 640

/* How a thread gets its columns. */
enum { LOAD_SINGLE, LOAD_FOUR, LOAD_FOUR_AHEAD };

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
/* 16 bytes from global to shared memory, in the background and not through L1. */
static __device__ __forceinline__ void copy_async(float4 *to_smem, const float *from)
{
#ifdef __CUDA_ARCH__
    count_device(0, 4);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to_smem)),
                 "l"(from)
                 : "memory");
#endif
}
static __device__ __forceinline__ void copy_async_wait(void)
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
#else
/* sm_75 has no cp.async: the same data flow without the overlap. */
static __device__ __forceinline__ void copy_async(float4 *to_smem, const float *from)
{
    *to_smem = load_four(from);
}
static __device__ __forceinline__ void copy_async_wait(void)
{
}
#endif

/* Asks for this thread's part of one row. slots_smem: VECTORS slots, BLOCK_THREADS apart, so that
 * the lanes of a warp use neighbouring 16 bytes (no bank conflicts). */
template <int ROW_THREADS, int VECTORS, int BLOCK_THREADS>
static __device__ __forceinline__ void fetch_row(float4 *slots_smem, const float *x_row, int cols,
                                                 int t)
{
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        int c = 4 * (t + k * ROW_THREADS);
        if (c < cols)
            copy_async(slots_smem + k * BLOCK_THREADS, x_row + c);
    }
}

template <int ROW_THREADS, int VECTORS, int BLOCK_THREADS>
static __device__ __forceinline__ void take_row(float (&s_reg)[4 * VECTORS],
                                                const float4 *slots_smem, int cols, int t)
{
#pragma unroll
    for (int k = 0; k < VECTORS; k++) {
        float4 four = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (4 * (t + k * ROW_THREADS) < cols)
            four = slots_smem[k * BLOCK_THREADS];
        s_reg[4 * k] = four.x;
        s_reg[4 * k + 1] = four.y;
        s_reg[4 * k + 2] = four.z;
        s_reg[4 * k + 3] = four.w;
    }
}

/* s_reg becomes exp(s - m_warp); returns the state of the warp's part of the row. __expf is
 * 2^(x log2 e) in two instructions, expf takes about eight to stay exact for large |x|. Here
 * x <= 0, and rounding the product costs a relative error of |x| 2^-24: no more than the rounding
 * of the score itself, and it only grows where exp(x) has become negligible. */
template <int FLOATS>
static __device__ __forceinline__ SoftmaxState exp_in_registers(float (&s_reg)[FLOATS])
{
    SoftmaxState state = softmax_empty();
#pragma unroll
    for (int e = 0; e < FLOATS; e++)
        state.m = fmaxf(state.m, s_reg[e]);
#pragma unroll
    for (int distance = WARP_LANES / 2; distance > 0; distance /= 2)
        state.m = fmaxf(state.m, __shfl_xor_sync(EVERY_LANE, state.m, distance));
    float shift = softmax_shift(state.m);
#pragma unroll
    for (int e = 0; e < FLOATS; e++) {
        s_reg[e] = __expf(s_reg[e] - shift);
        state.l += s_reg[e];
    }
#pragma unroll
    for (int distance = WARP_LANES / 2; distance > 0; distance /= 2)
        state.l += __shfl_xor_sync(EVERY_LANE, state.l, distance);
    return state;
}

template <int ROW_THREADS, int VECTORS, int BLOCK_THREADS, int LOAD>
static __global__ void
__launch_bounds__(BLOCK_THREADS, (VECTORS > 8 ? SM_WIDE_THREADS : SM_THREADS) / BLOCK_THREADS)
    one_read_kernel(const float *x, /* [rows][cols] */
                    float *y,       /* [rows][cols], may be x */
                    float *lse,     /* [rows] or NULL */
                    int64_t rows, int64_t cols)
{
    extern __shared__ float4 fetched_smem[]; /* [VECTORS][BLOCK_THREADS], LOAD_FOUR_AHEAD only */
    /* Two sets of slots, used in turn: a warp that is already in the next row does not overwrite
     * what a slow one still reads. */
    __shared__ SoftmaxState slots_smem[2][MAX_WARPS];
    const int rows_per_block = BLOCK_THREADS / ROW_THREADS;
    const int t = threadIdx.x % ROW_THREADS;
    const int64_t step = gridDim.x * (int64_t)rows_per_block;
    int64_t row = blockIdx.x * (int64_t)rows_per_block + threadIdx.x / ROW_THREADS;
    float4 *mine_smem = fetched_smem + threadIdx.x;
    int turn = 0;

    if (LOAD == LOAD_FOUR_AHEAD && row < rows)
        fetch_row<ROW_THREADS, VECTORS, BLOCK_THREADS>(mine_smem, x + row * cols, (int)cols, t);

    for (; row < rows; row += step, turn ^= 1) {
        float s_reg[4 * VECTORS];
        if (LOAD == LOAD_FOUR_AHEAD) {
            copy_async_wait();
            take_row<ROW_THREADS, VECTORS, BLOCK_THREADS>(s_reg, mine_smem, (int)cols, t);
            __syncwarp(); /* the slots have been read before the next copy may land in them */
            if (row + step < rows)
                fetch_row<ROW_THREADS, VECTORS, BLOCK_THREADS>(mine_smem, x + (row + step) * cols,
                                                               (int)cols, t);
        } else {
            load_chunk<LOAD == LOAD_FOUR, VECTORS>(s_reg, x + row * cols, (int)cols, t,
                                                   ROW_THREADS);
        }

        SoftmaxState warp_state = exp_in_registers(s_reg);
        SoftmaxState state = warp_state;
        if (ROW_THREADS > WARP_LANES)
            state = block_merge(warp_state, slots_smem[turn]);

        /* The warp's own maximum is at most the row's: the factor is at most 1 / l. A warp that saw
         * only -inf has nothing but zeros to scale. */
        float factor = expf(warp_state.m - softmax_shift(state.m)) * softmax_inverse(state);
        if (warp_state.m == -INFINITY)
            factor = softmax_inverse(state);
        store_chunk<LOAD != LOAD_SINGLE, VECTORS>(y + row * cols, s_reg, factor, (int)cols, t,
                                                  ROW_THREADS);
        if (t == 0 && lse)
            lse[row] = softmax_lse(state);
    }
}

/* Rows that do not fit: (m, l) in a first pass over the row, the result in a second one. */
template <int FOUR>
static __global__ void __launch_bounds__(SM_THREADS, 1)
    two_read_kernel(const float *x, /* [rows][cols] */
                    float *y,       /* [rows][cols], may be x */
                    float *lse,     /* [rows] or NULL */
                    int64_t rows, int64_t cols)
{
    __shared__ SoftmaxState slots_smem[2][MAX_WARPS];
    const int VECTORS = 4, chunk = SM_THREADS * 4 * VECTORS;
    const int t = threadIdx.x;
    int turn = 0;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
        const float *x_row = x + row * cols;
        SoftmaxState state = softmax_empty();
        float s_reg[4 * VECTORS];
        for (int64_t first = 0; first < cols; first += chunk) {
            int n = (int)(cols - first < chunk ? cols - first : chunk);
            load_chunk<FOUR, VECTORS>(s_reg, x_row + first, n, t, SM_THREADS);
            state = push_chunk(state, s_reg);
        }
        state = block_merge(warp_merge(state), slots_smem[turn]);

        float shift = softmax_shift(state.m);
        float inverse = softmax_inverse(state);
        for (int64_t first = 0; first < cols; first += chunk) {
            int n = (int)(cols - first < chunk ? cols - first : chunk);
            load_chunk<FOUR, VECTORS>(s_reg, x_row + first, n, t, SM_THREADS);
#pragma unroll
            for (int e = 0; e < 4 * VECTORS; e++)
                s_reg[e] = expf(s_reg[e] - shift);
            store_chunk<FOUR, VECTORS>(y + row * cols + first, s_reg, inverse, n, t, SM_THREADS);
        }
        if (t == 0 && lse)
            lse[row] = softmax_lse(state);
    }
}

/* As many blocks as fit on the GPU at once; each walks over the rows with that stride. 0: CUDA says
 * why. */
template <typename Kernel> static int resident_blocks(Kernel kernel, int block_threads, size_t smem)
{
    int device = 0, sms = 0, per_sm = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (smem > 0) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
    }
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, block_threads, smem);
    return sms * per_sm;
}

template <int ROW_THREADS, int VECTORS, int LOAD>
static void launch_one_read(const SoftmaxArgs *args)
{
    /* A warp needs no barrier, so four rows share a block; wider rows have a block of their own. */
    const int block_threads = ROW_THREADS == WARP_LANES ? 128 : ROW_THREADS;
    const int rows_per_block = block_threads / ROW_THREADS;
    const size_t smem = LOAD == LOAD_FOUR_AHEAD ? sizeof(float4) * VECTORS * block_threads : 0;
    auto kernel = one_read_kernel<ROW_THREADS, VECTORS, block_threads, LOAD>;
    cudaStream_t stream = (cudaStream_t)args->stream;
    /* Asked once for each kernel: the questions cost some microseconds each. */
    static int blocks = 0;
    if (blocks == 0)
        blocks = resident_blocks(kernel, block_threads, smem);
    int64_t needed = (args->rows + rows_per_block - 1) / rows_per_block;
    unsigned grid = (unsigned)(needed < blocks ? needed : blocks);
    kernel<<<grid, block_threads, smem, stream>>>(args->x, args->y, args->lse, args->rows,
                                                  args->cols);
    collect_counts(stream);
}

/* The smallest class that holds the row. */
template <int LOAD> static void launch_by_cols(const SoftmaxArgs *args)
{
    if (args->cols <= 128)
        return launch_one_read<32, 1, LOAD>(args);
    if (args->cols <= 256)
        return launch_one_read<32, 2, LOAD>(args);
    if (args->cols <= 512)
        return launch_one_read<32, 4, LOAD>(args);
    if (args->cols <= 1024)
        return launch_one_read<32, 8, LOAD>(args);
    if (args->cols <= 2048)
        return launch_one_read<128, 4, LOAD>(args);
    if (args->cols <= 4096) /* ten rows an SM: while some compute, others load, without a fetch */
        return launch_one_read < 64, 16, LOAD == LOAD_SINGLE ? LOAD_SINGLE : LOAD_FOUR > (args);
    if (args->cols <= 8192)
        return launch_one_read<256, 8, LOAD>(args);
    if (args->cols <= 16384)
        return launch_one_read<512, 8, LOAD>(args);
    launch_one_read<1024, 8, LOAD>(args);
}

static void launch_two_read(const SoftmaxArgs *args)
{
    cudaStream_t stream = (cudaStream_t)args->stream;
    unsigned grid = (unsigned)(args->rows < 65536 ? args->rows : 65536);
    if (is_aligned_for_four(args))
        two_read_kernel<1>
            <<<grid, SM_THREADS, 0, stream>>>(args->x, args->y, args->lse, args->rows, args->cols);
    else
        two_read_kernel<0>
            <<<grid, SM_THREADS, 0, stream>>>(args->x, args->y, args->lse, args->rows, args->cols);
    collect_counts(stream);
}

static void softmax(const SoftmaxArgs *args)
{
    int device = 0, smem_limit = 0;
    if (args->cols > ONE_READ_COLS)
        return launch_two_read(args);
    if (!is_aligned_for_four(args))
        return launch_by_cols<LOAD_SINGLE>(args);
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&smem_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    /* The two widest classes need 64 and 128 KiB for the next row. A GPU without them loads each
     * row when its turn comes. */
    int class_bytes = args->cols > 16384 ? 131072 : args->cols > 8192 ? 65536 : 32768;
    if (class_bytes + (int)sizeof(SoftmaxState) * 2 * MAX_WARPS > smem_limit)
        return launch_by_cols<LOAD_FOUR>(args);
    launch_by_cols<LOAD_FOUR_AHEAD>(args);
}

RUNG_ROWS(tiled_softmax, v2_one_read, "the row stays in registers: one read, one write", softmax,
          NULL, 2, ONE_READ_COLS);
