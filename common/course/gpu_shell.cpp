/* SPDX-License-Identifier: MIT
 *
 * gpu_shell.cpp: what stands around a submission in CUDA that is judged without a GPU. compile.py
 * links it with the submission's kernels and common/simt; the submission's flash_simple_variant has
 * another name there.
 *
 * The host's side of a submission copies and launches. So Q, K and V are at addresses that nobody
 * can read, and a copy that begins there takes the true ones. What comes back is counted. Who
 * computes on the host has nothing to compute with.
 *
 * What the kernels did to memory goes to the judge beside the result, and the first rule of CUDA
 * that they broke, in words. The process can start no other, so places in the code are addresses.
 *
 * Interface: flash_cuda_variant (runner_contracts.h); __wrap_NAME: in place of NAME (compile.py).
 */
#include <cuda_runtime_api.h>
#include <simt_report.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { FINDING_BYTES = 1024, INPUTS = 3 };

extern "C" int submitted_variant(const float *Q, const float *K, const float *V, float *O,
                                 float *lse, int N, int d, int causal);

static char *finding_to;
static const char *truth[INPUTS];
static char *sealed[INPUTS];
static size_t sealed_bytes;
static double came_back;

/* Before the model reads its flags. */
__attribute__((constructor(101))) static void set_flags(void)
{
    setenv("SIMT_CHECK", "1", 1);
    setenv("SIMT_COUNT", "1", 1);
    setenv("SIMT_REGION", "256", 1);
    setenv("SIMT_SYMBOLIZER", "none", 1);
}

static void keep_finding(void)
{
    const char *title, *text = simt_finding(&title);
    const char *more = text && strstr(text, "the host's code uses an address")
                           ? "the host copies Q, K and V, and only kernels read them\n"
                           : "";
    if (text && finding_to)
        snprintf(finding_to, FINDING_BYTES, "%s\n%s%s", title, text, more);
}

/* --- the host's side ---------------------------------------------------------------------------*/

static int seal(const float *const inputs[], size_t bytes)
{
    sealed_bytes = bytes;
    for (int i = 0; i < INPUTS; i++) {
        truth[i] = (const char *)inputs[i];
        sealed[i] = (char *)mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (sealed[i] == MAP_FAILED)
            return -1;
    }
    return 0;
}

static const void *unsealed(const void *from, size_t bytes)
{
    for (int i = 0; i < INPUTS; i++) {
        const size_t at = (size_t)((const char *)from - sealed[i]);
        if (at <= sealed_bytes && bytes <= sealed_bytes - at)
            return truth[i] + at;
    }
    return from;
}

extern "C" {
cudaError_t __real_cudaMemcpy(void *, const void *, size_t, enum cudaMemcpyKind);
cudaError_t __real_cudaHostAlloc(void **, size_t, unsigned);
cudaError_t __real_simtMallocManaged(void **, size_t);

cudaError_t __wrap_cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    struct cudaPointerAttributes place;
    cudaPointerGetAttributes(&place, to);
    if (place.type != cudaMemoryTypeDevice)
        came_back += (double)bytes;
    return __real_cudaMemcpy(to, unsealed(from, bytes), bytes, kind);
}

cudaError_t __wrap_cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                   enum cudaMemcpyKind kind, cudaStream_t)
{
    return __wrap_cudaMemcpy(to, from, bytes, kind);
}

cudaError_t __wrap_cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                size_t width, size_t height, enum cudaMemcpyKind kind)
{
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < height && error == cudaSuccess; i++)
        error = __wrap_cudaMemcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch,
                                  width, kind);
    return error;
}

cudaError_t __wrap_cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                     size_t width, size_t height, enum cudaMemcpyKind kind,
                                     cudaStream_t)
{
    return __wrap_cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}

cudaError_t __wrap_cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    came_back += (double)bytes;
    return __real_cudaHostAlloc(p, bytes, flags);
}

cudaError_t __wrap_simtMallocManaged(void **p, size_t bytes)
{
    came_back += (double)bytes;
    return __real_simtMallocManaged(p, bytes);
}
}

/* --- the judge's side --------------------------------------------------------------------------*/

extern "C" int flash_cuda_variant(const float *Q, const float *K, const float *V, float *O,
                                  float *lse, int N, int d, int causal, double *counts,
                                  char *finding)
{
    static const char *const names[] = {"blocks",     "sectors read",     "sectors written",
                                        "wavefronts", "ideal wavefronts", "shared reads"};
    const float *inputs[INPUTS] = {Q, K, V};
    int status;
    finding_to = finding;
    finding[0] = 0;
    simt_at_stop = keep_finding;
    simt_no_report();
    if (seal(inputs, sizeof(float) * (size_t)N * (size_t)d) != 0)
        return -1;
    status = submitted_variant((float *)sealed[0], (float *)sealed[1], (float *)sealed[2], O, lse,
                               N, d, causal);
    cudaDeviceSynchronize();
    keep_finding();
    for (int n = 0; n < 6; n++)
        counts[n] = (double)simt_count(names[n]);
    counts[6] = came_back + (double)simt_kept();
    return status;
}
