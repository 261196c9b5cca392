/* SPDX-License-Identifier: MIT
 *
 * words.cu: what a student writes works: vector types, half2 and bf162, constants, templates,
 * managed memory, streams and events. And however the program dies, it says where.
 *
 *     simt_words            all of the first; 0: good
 *     simt_words NAME       dies; test_words.py knows at which line
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

#define NEED(e)                                                                                    \
    if (!(e)) {                                                                                    \
        fprintf(stderr, "words.cu:%d: %s\n", __LINE__, #e);                                        \
        return 1;                                                                                  \
    }
#define CALL(e) NEED((e) == cudaSuccess)

static __constant__ float factors[2] = {2.0f, 3.0f};
static __device__ int counter;

/* --- vectors -----------------------------------------------------------------------------------*/

#define VECTOR(T)                                                                                  \
    {                                                                                              \
        const T##1 a = make_##T##1(1);                                                             \
        const T##2 b = make_##T##2(1, 2);                                                          \
        const T##3 c = make_##T##3(1, 2, 3);                                                       \
        T##4 d = make_##T##4(1, 2, 3, 4);                                                          \
        d.w = d.x;                                                                                 \
        sum += (int)(a.x + b.y + c.z + d.w + d.y);                                                 \
        size += (int)(sizeof a + sizeof b + sizeof c + sizeof d);                                  \
    }

static __global__ void vectors(int *o)
{
    int sum = 0, size = 0;
    VECTOR(char)
    VECTOR(uchar)
    VECTOR(short)
    VECTOR(ushort)
    VECTOR(int)
    VECTOR(uint)
    VECTOR(float)
    VECTOR(double)
    VECTOR(longlong)
    VECTOR(ulonglong)
    o[2 * threadIdx.x] = sum;
    o[2 * threadIdx.x + 1] = size;
}

/* --- 16 bits: ONE + ONE is rounded, which sums in float are not --------------------------------*/

template <class ONE, class PAIR> static __global__ void halves(float *o, PAIR p)
{
    const ONE one(1.0f), small(1.0f / 4096);
    ONE x = one + small; /* rounded to 1 by both types */
    x *= ONE(3.0f);
    x -= one;
    PAIR q = p * p + p;
    q += p;
    q = __hmax2(q, -p);
    o[0] = (float)x;
    o[1] = __low2float(q);
    o[2] = __high2float(q / p);
    o[3] = (float)__hfma(ONE(2.0f), ONE(3.0f), ONE(4.0f));
    o[4] = x > one && !(x < one) ? 1.0f : 0.0f;
    o[5] = (float)hexp(ONE(0.0f));
    o[6] = (float)__habs(-x);
}

/* --- templates, constants, variables -----------------------------------------------------------*/

template <int N, class T> struct Scale {
    static __device__ T of(T x)
    {
        return x * (T)N;
    }
};
template <int N, class T, template <int, class> class F>
static __global__ void scaled(T *o, const T *x, int n)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += blockDim.x * gridDim.x)
        o[i] = F<N, T>::of(x[i]) * (T)factors[1];
    atomicAdd(&counter, 1);
}

static int values(void)
{
    int *sums, from_device[2], count = 0;
    CALL(cudaMallocManaged(&sums, 64 * sizeof(int)))
    vectors<<<1, 32>>>(sums);
    CALL(cudaDeviceSynchronize())
    NEED(sums[0] == 10 * (1 + 2 + 3 + 1 + 2) &&
         sums[1] == 10 * (1 + 1 + 2 + 2 + 4 + 4 + 4 + 8 + 8 + 8))
    CALL(cudaFree(sums))

    float *o, got[7];
    CALL(cudaMalloc(&o, sizeof got))
    const float want[7] = {2.0f, 8.0f, 4.0f, 10.0f, 1.0f, 1.0f, 2.0f};
    halves<half, half2><<<1, 1>>>(o, __floats2half2_rn(2.0f, 2.0f));
    CALL(cudaMemcpy(got, o, sizeof got, cudaMemcpyDeviceToHost))
    NEED(memcmp(got, want, sizeof got) == 0)
    halves<nv_bfloat16, nv_bfloat162><<<1, 1>>>(o, __floats2bfloat162_rn(2.0f, 2.0f));
    CALL(cudaMemcpy(got, o, sizeof got, cudaMemcpyDeviceToHost))
    NEED(memcmp(got, want, sizeof got) == 0)
    CALL(cudaFree(o))

    double *x, *y;
    const float other[2] = {5.0f, 7.0f};
    CALL(cudaMallocManaged(&x, 100 * sizeof(double)))
    CALL(cudaMallocManaged(&y, 100 * sizeof(double)))
    for (int i = 0; i < 100; i++)
        x[i] = i;
    CALL(cudaMemcpyToSymbol(factors, other, sizeof other))
    scaled<3, double, Scale><<<2, 32>>>(y, x, 100);
    CALL(cudaGetLastError())
    CALL(cudaDeviceSynchronize())
    NEED(y[99] == 99.0 * 3 * 7)
    CALL(cudaMemcpyFromSymbol(&count, counter, sizeof count))
    NEED(count == 64)
    (void)from_device;
    CALL(cudaFree(x))
    CALL(cudaFree(y))
    return 0;
}

/* --- the host's side ---------------------------------------------------------------------------*/

static int queues(void)
{
    cudaStream_t a, b;
    cudaEvent_t from, to;
    float *p, *pinned, ms = -1.0f;
    size_t left, all;
    cudaPointerAttributes about;
    CALL(cudaStreamCreate(&a))
    CALL(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking))
    CALL(cudaEventCreate(&from))
    CALL(cudaEventCreateWithFlags(&to, cudaEventDefault))
    CALL(cudaMallocAsync(&p, 64 * sizeof(float), a))
    CALL(cudaMallocHost(&pinned, 64 * sizeof(float)))
    CALL(cudaMemsetAsync(p, 0, 64 * sizeof(float), a))
    CALL(cudaEventRecord(from, a))
    CALL(cudaStreamWaitEvent(b, from, 0))
    CALL(cudaMemcpyAsync(pinned, p, 64 * sizeof(float), cudaMemcpyDeviceToHost, b))
    CALL(cudaEventRecord(to, b))
    CALL(cudaStreamSynchronize(b))
    CALL(cudaStreamQuery(b))
    CALL(cudaEventSynchronize(to))
    CALL(cudaEventElapsedTime(&ms, from, to))
    NEED(ms >= 0.0f && pinned[63] == 0.0f)
    CALL(cudaMemGetInfo(&left, &all))
    NEED(left < all)
    CALL(cudaPointerGetAttributes(&about, p))
    NEED(about.type == cudaMemoryTypeDevice && about.devicePointer == p)
    CALL(cudaFreeAsync(p, a))
    CALL(cudaFreeHost(pinned))
    CALL(cudaEventDestroy(from))
    CALL(cudaEventDestroy(to))
    CALL(cudaStreamDestroy(a))
    CALL(cudaStreamDestroy(b))
    NEED(strcmp(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue") == 0)
    NEED(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0)
    NEED(cudaMemcpy(p, pinned, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue)
    NEED(cudaPeekAtLastError() == cudaErrorInvalidValue)
    NEED(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess)
    CALL(cudaDeviceReset())
    return 0;
}

/* --- deaths ------------------------------------------------------------------------------------*/

static __device__ int deep(int n) /* deep */
{
    volatile char room[4096];                    /* deep */
    room[n % 4096] = (char)n;                    /* deep */
    return n ? deep(n + 1) + room[n % 4096] : 0; /* deep */
}
static __global__ void overflows(int *o)
{
    o[threadIdx.x] = deep((int)threadIdx.x + 1);
}
static __global__ void aborts(int *o)
{
    if (threadIdx.x == 7)
        abort(); /* aborts */
    o[threadIdx.x] = 1;
}
static __global__ void traps(int *o)
{
    if (threadIdx.x == 7)
        __trap(); /* traps */
    o[threadIdx.x] = 1;
}
static __global__ void launches(int *o)
{
    traps<<<1, 1>>>(o); /* launches */
}

/* Two kernels of one name are counted apart. */
namespace left
{
static __global__ void twin(int *o)
{
    o[threadIdx.x] = 1;
}
static void start(int *o)
{
    twin<<<1, 32>>>(o);
}
} // namespace left
namespace right
{
static __global__ void twin(int *o)
{
    o[threadIdx.x] = o[threadIdx.x + 32] = 1;
}
static void start(int *o)
{
    twin<<<1, 32>>>(o);
}
} // namespace right

static int die(const char *name)
{
    int *o, *volatile nowhere = nullptr;
    volatile int zero = 0;
    CALL(cudaMalloc(&o, 64 * sizeof(int)))
    if (strcmp(name, "deep") == 0)
        overflows<<<1, 32>>>(o);
    else if (strcmp(name, "aborts") == 0)
        aborts<<<1, 32>>>(o);
    else if (strcmp(name, "traps") == 0)
        traps<<<1, 32>>>(o);
    else if (strcmp(name, "launches") == 0)
        launches<<<1, 1>>>(o);
    else if (strcmp(name, "twins") == 0)
        left::start(o), right::start(o);
    else if (strcmp(name, "host_nowhere") == 0)
        *nowhere = 1; /* host_nowhere */
    else if (strcmp(name, "host_divides") == 0)
        return 7 / zero; /* host_divides */
    else if (strcmp(name, "host_aborts") == 0)
        abort(); /* host_aborts */
    else if (strcmp(name, "host_asserts") == 0)
        assert(zero == 1); /* host_asserts */
    return 0;
}

int main(int argc, char **argv)
{
    return argc > 1 ? die(argv[1]) : values() || queues();
}
