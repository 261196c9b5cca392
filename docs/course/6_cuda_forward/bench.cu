/* SPDX-License-Identifier: MIT
 *
 * bench.cu: how fast is a kernel of assignment 6? It is measured beside two matrix products of
 * cuBLAS that do the same number of multiplications in float32: S = Q K^T and O = S V, with S in
 * device memory and no softmax. A kernel that comes near them is a good one.
 *
 *     bench SUBMISSION.so [-N tokens] [-d 64|128] [--causal] [--seed S]
 *
 * Both are timed turn by turn, 20 times after 3 that do not count, and medians are compared. Q, K
 * and V change places from call to call, and O is cleared before each, so that no call can give an
 * earlier one's result. Some rows of the last timed call are compared with float64: a wrong kernel
 * gets no time. (The judge looks at all rows, of one head.) ./ladder grade calls this program for
 * cases with of=cublas and reads its last line.
 *
 * Exit: 0 measured; 1 the submission is wrong; 2 bad usage; 3 CUDA failed; 77 there is no GPU.
 *
 * Interface: main; flash_device_variant comes from the submission.
 */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

typedef int (*DeviceVariant)(const float *Q, const float *K, const float *V, float *O, float *lse,
                             int heads, int N, int d, int causal, cudaStream_t stream);

enum { HEADS = 16, WARMUP = 3, TIMED = 20, CALLS = WARMUP + TIMED };

typedef struct Sizes {
    int N, d, causal;
} Sizes;

static void check(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench: %s failed\n", what);
        exit(3);
    }
}

/* Milliseconds of one call; NaN: what it started on the GPU failed. */
template <typename Work> static float time_once(Work work)
{
    cudaEvent_t start, stop;
    float ms;
    check(cudaEventCreate(&start) == cudaSuccess && cudaEventCreate(&stop) == cudaSuccess,
          "cudaEventCreate");
    cudaEventRecord(start);
    work();
    cudaEventRecord(stop);
    if (cudaEventSynchronize(stop) != cudaSuccess ||
        cudaEventElapsedTime(&ms, start, stop) != cudaSuccess)
        ms = NAN;
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    return ms;
}

static float median(std::vector<float> ms)
{
    std::nth_element(ms.begin(), ms.begin() + (long)ms.size() / 2, ms.end());
    return ms[ms.size() / 2];
}

/* Largest error of O [heads][N][d] in some rows of some heads. */
static double worst_error(Sizes n, const std::vector<float> &Q, const std::vector<float> &K,
                          const std::vector<float> &V, const std::vector<float> &O)
{
    const size_t N = (size_t)n.N, width = (size_t)n.d;
    double worst = 0.0;
    std::vector<double> p(N);
    for (size_t head = 0; head < HEADS; head += 5)
        for (size_t i = 7 % N; i < N; i += N / 4 + 1) {
            const size_t base = head * N * width, keys = n.causal ? i + 1 : N;
            double sum = 0.0;
            for (size_t key = 0; key < keys; key++) {
                double s = 0.0;
                for (size_t x = 0; x < width; x++)
                    s += (double)Q[base + i * width + x] * K[base + key * width + x];
                sum += p[key] = exp(s / sqrt((double)width));
            }
            for (size_t x = 0; x < width; x++) {
                double o = 0.0;
                for (size_t key = 0; key < keys; key++)
                    o += p[key] / sum * V[base + key * width + x];
                const double error = fabs(o - O[base + i * width + x]);
                worst = error <= worst ? worst : error; /* a NaN is kept */
            }
        }
    return worst;
}

static Sizes read_flags(int words, char **word)
{
    Sizes n = {4096, 64, 0};
    for (int a = 2; a < words; a++) {
        const bool more = a + 1 < words;
        if (strcmp(word[a], "-N") == 0 && more)
            n.N = atoi(word[++a]);
        else if (strcmp(word[a], "-d") == 0 && more)
            n.d = atoi(word[++a]);
        else if (strcmp(word[a], "--causal") == 0)
            n.causal = 1;
        else if (strcmp(word[a], "--seed") == 0 && more)
            srand((unsigned)strtoull(word[++a], NULL, 10));
        else
            n.N = 0;
    }
    if (words < 2 || n.N < 1 || n.N > 32768 || n.d < 1 || n.d > 256) {
        fprintf(stderr, "bench: accepted is bench SUBMISSION.so [-N tokens] [-d channels] "
                        "[--causal] [--seed S]\n");
        exit(2);
    }
    return n;
}

static DeviceVariant load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *function = library ? dlsym(library, "flash_device_variant") : NULL;
    DeviceVariant variant;
    if (!function) {
        fprintf(stderr, "bench: %s has no function flash_device_variant\n", path);
        exit(1);
    }
    memcpy(&variant, &function, sizeof variant);
    return variant;
}

int main(int words, char **word)
{
    const Sizes n = read_flags(words, word);
    const size_t count = (size_t)HEADS * (size_t)n.N * (size_t)n.d, bytes = count * sizeof(float);
    const size_t rows = (size_t)HEADS * (size_t)n.N * sizeof(float);
    const long long step = (long long)n.N * n.d, square = (long long)n.N * n.N;
    const double pairs = n.causal ? 0.5 * n.N * (n.N + 1.0) : (double)square;
    const float one = 1.0f, zero = 0.0f;
    std::vector<float> in[3], O(count), mine, products;
    float *dev[3], *O_dev, *lse_dev, *S_dev;
    cublasHandle_t blas;
    int devices = 0;
    cudaGetDeviceCount(&devices); /* leaves 0 where there is no driver */
    if (devices == 0) {
        fprintf(stderr, "bench: found no GPU, accepted is a machine with one\n");
        return 77;
    }
    const DeviceVariant variant = load(word[1]);
    for (int t = 0; t < 3; t++) {
        in[t].resize(count);
        for (float &x : in[t])
            x = 4.0f * (float)rand() / (float)RAND_MAX - 2.0f;
        check(cudaMalloc(&dev[t], bytes) == cudaSuccess &&
                  cudaMemcpy(dev[t], in[t].data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess,
              "cudaMalloc");
    }
    check(cudaMalloc(&O_dev, bytes) == cudaSuccess && cudaMalloc(&lse_dev, rows) == cudaSuccess &&
              cudaMalloc(&S_dev, (size_t)HEADS * (size_t)square * sizeof(float)) == cudaSuccess &&
              cublasCreate(&blas) == CUBLAS_STATUS_SUCCESS,
          "cudaMalloc");
    for (int call = 0; call < CALLS; call++) {
        const float *Q = dev[call % 3], *K = dev[(call + 1) % 3], *V = dev[(call + 2) % 3];
        int failed = 0;
        const float theirs = time_once([&] {
            check(cublasSgemmStridedBatched(blas, CUBLAS_OP_T, CUBLAS_OP_N, n.N, n.N, n.d, &one, K,
                                            n.d, step, Q, n.d, step, &zero, S_dev, n.N, square,
                                            HEADS) == CUBLAS_STATUS_SUCCESS &&
                      cublasSgemmStridedBatched(blas, CUBLAS_OP_N, CUBLAS_OP_N, n.d, n.N, n.N, &one,
                                                V, n.d, step, S_dev, n.N, square, &zero, O_dev, n.d,
                                                step, HEADS) == CUBLAS_STATUS_SUCCESS,
                  "cuBLAS");
        });
        check(cudaMemset(O_dev, 0xFF, bytes) == cudaSuccess &&
                  cudaMemset(lse_dev, 0xFF, rows) == cudaSuccess &&
                  cudaDeviceSynchronize() == cudaSuccess,
              "cudaMemset");
        const float own = time_once(
            [&] { failed = variant(Q, K, V, O_dev, lse_dev, HEADS, n.N, n.d, n.causal, 0); });
        check(theirs > 0.0f, "cuBLAS");
        if (failed || !(own > 0.0f)) {
            fprintf(stderr, "bench: flash_device_variant returned %d, its kernel: %s\n", failed,
                    cudaGetErrorString(cudaGetLastError()));
            return 1;
        }
        if (call >= WARMUP) {
            products.push_back(theirs);
            mine.push_back(own);
        }
    }
    check(cudaMemcpy(O.data(), O_dev, bytes, cudaMemcpyDeviceToHost) == cudaSuccess, "cudaMemcpy");
    const double error = worst_error(n, in[(CALLS - 1) % 3], in[CALLS % 3], in[(CALLS + 1) % 3], O);
    if (!(error < 1e-4)) {
        fprintf(stderr,
                "bench: found an error of %g, accepted is less than 1e-4: make it right before you "
                "make it fast\n",
                error);
        return 1;
    }
    /* The products compute all pairs, so a causal kernel has its rate of visible ones compared. */
    const double work = 4e-6 * HEADS * n.d, own_ms = median(mine), their_ms = median(products);
    const double own_rate = work * pairs / own_ms, their_rate = work * (double)square / their_ms;
    printf("%d heads, N = %d, d = %d, float32%s\n", HEADS, n.N, n.d, n.causal ? ", causal" : "");
    printf("  mine          %9.3f ms  %8.1f GFLOP/s\n", own_ms, own_rate);
    printf("  two products  %9.3f ms  %8.1f GFLOP/s\n", their_ms, their_rate);
    printf("  speed         %9.3f of the two products\n", own_rate / their_rate);
    return 0;
}
