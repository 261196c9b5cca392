/* SPDX-License-Identifier: MIT
 *
 * host.cpp: the CUDA runtime's interface. A launch has ended when <<<>>> returns, so streams and
 * events have nothing to wait for. Device memory is open to the program's own code only while a
 * kernel runs or cudaMemcpy copies: a host that reads it through its pointer crashes here as it
 * would beside a GPU, and says so (report.cpp).
 */
#include "machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

namespace simt
{
static char *region, *region_end, *region_next; /* one stretch of addresses for all of it */
/* SIMT_REGION: its MiB, where a process may not have many addresses. */
static const size_t REGION =
    (getenv("SIMT_REGION") ? (size_t)atoi(getenv("SIMT_REGION")) << 20 : (size_t)64 << 30);
static std::map<size_t, std::vector<char *>> free_of_size;
static cudaError_t last_error, kernel_error;

/* kernels: they or a copy may read and write; else nobody. */
void open_memory(bool is_open)
{
    static int depth;
    depth += is_open ? 1 : -1;
    if (region_next > region && (is_open ? depth == 1 : depth == 0))
        mprotect(region, (size_t)(region_next - region),
                 is_open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static bool is_device(const void *p)
{
    return (char *)p >= region && (char *)p < region_end;
}

/* Pages of its own behind a page that nobody has, so that a wild index meets it. */
static char *take(size_t bytes)
{
    const size_t size = (bytes + 4095) / 4096 * 4096 + 4096;
    auto &list = free_of_size[size];
    if (!list.empty()) {
        char *p = list.back();
        list.pop_back();
        return p;
    }
    if (!region) {
        region = region_next = (char *)mmap(nullptr, REGION, PROT_NONE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (region == MAP_FAILED)
            return region = nullptr;
        region_end = region + REGION;
    }
    if (bytes > (size_t)4 << 30 || region_next + size > region_end)
        return nullptr;
    char *p = region_next;
    region_next += size;
    return p;
}

bool launch_is_allowed(const Config &c, const char *name, u32 pc)
{
    const dim3 &grid = c.grid;
    const unsigned long threads = (unsigned long)c.block.x * c.block.y * c.block.z;
    const bool fits = threads > 0 && threads <= MAX_THREADS;
    if (me)
        finding(R_LIMIT, pc,
                "a kernel launches %s: simt has no dynamic parallelism; launch it from the host",
                name);
    else if (!fits)
        finding(R_LIMIT, pc, "%lu threads in a block of %s, accepted are 1 to 1024", threads, name);
    else if (grid.x == 0 || grid.y - 1 > 65534 || grid.z - 1 > 65534)
        finding(R_LIMIT, pc, "a grid of %u x %u x %u blocks of %s", grid.x, grid.y, grid.z, name);
    else if (c.smem > SMEM_MAX)
        finding(R_LIMIT, pc, "%zu bytes of shared memory for %s, a block has at most %d", c.smem,
                name, SMEM_MAX);
    else
        return true;
    last_error = fits ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration;
    return false;
}

static cudaError_t finished(void)
{
    if (launch_now.failed)
        kernel_error = cudaErrorLaunchFailure;
    launch_now.failed = false;
    const cudaError_t error = kernel_error;
    kernel_error = cudaSuccess;
    return error;
}

static double nanoseconds(void)
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

long long clock_now(void)
{
    if (me)
        spin(SIMT_PC);
    return (long long)nanoseconds();
}

} // namespace simt

using namespace simt;

extern "C" {

/* --- memory ------------------------------------------------------------------------------------*/

static cudaError_t allocate(void **p, size_t bytes, bool managed)
{
    char *at = managed ? (char *)aligned_alloc(4096, (bytes + 8191) / 4096 * 4096) : take(bytes);
    if (!at)
        return last_error = cudaErrorMemoryAllocation;
    memory[(uintptr_t)at + bytes] = {(uintptr_t)at, (uintptr_t)at + bytes, {}, managed, 0};
    *p = at;
    simtPoison(at, bytes);
    mark_written((uintptr_t)at, bytes, managed); /* what the host writes there nobody sees */
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    Memory *m = memory_of((uintptr_t)p);
    if (!m || m->lo != (uintptr_t)p)
        return last_error = cudaErrorInvalidValue;
    const size_t bytes = m->hi - m->lo;
    if (m->managed)
        free(p);
    else
        free_of_size[(bytes + 4095) / 4096 * 4096 + 4096].push_back((char *)p);
    forget(m);
    return cudaSuccess;
}

/* Is it memory of the host, or as much of the device's? */
static bool is_range(const void *p, size_t n)
{
    const Memory *m = is_device(p) && n ? memory_of((uintptr_t)p) : nullptr;
    return !is_device(p) || !n || (m && (uintptr_t)p + n <= m->hi);
}

/* A GPU refuses a copy in the other direction than its kind says. */
static bool is_backwards(const void *to, const void *from, enum cudaMemcpyKind kind)
{
    return is_device(to) != is_device(from) &&
           kind == (is_device(to) ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind)
{
    if (!is_range(to, n) || !is_range(from, n) || is_backwards(to, from, kind))
        return last_error = cudaErrorInvalidValue;
    open_memory(true);
    memmove(to, from, n);
    open_memory(false);
    mark_written((uintptr_t)to, n, true);
    return finished();
}

cudaError_t cudaMemset(void *p, int v, size_t n)
{
    if (!is_range(p, n))
        return last_error = cudaErrorInvalidValue;
    open_memory(true);
    memset(p, v, n);
    open_memory(false);
    mark_written((uintptr_t)p, n, true);
    return finished();
}

cudaError_t simtPoison(void *p, size_t n)
{
    const cudaError_t error = cudaMemset(p, 0xff, n);
    mark_written((uintptr_t)p, n, false);
    return error;
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind k)
{
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < height && error == cudaSuccess; i++)
        error =
            cudaMemcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, k);
    return error;
}

/* --- what is the same for every call -----------------------------------------------------------*/

#define CALL(TYPE, NAME, PARAMETERS, RESULT)                                                       \
    TYPE NAME PARAMETERS                                                                           \
    {                                                                                              \
        return RESULT;                                                                             \
    }
CALL(cudaError_t, simtMalloc, (void **p, size_t bytes), allocate(p, bytes, false))
CALL(cudaError_t, simtMallocManaged, (void **p, size_t bytes), allocate(p, bytes, true))
CALL(cudaError_t, cudaHostAlloc, (void **p, size_t bytes, unsigned), allocate(p, bytes, true))
CALL(cudaError_t, cudaFreeHost, (void *p), cudaFree(p))
CALL(cudaError_t, cudaGetDeviceCount, (int *n), (*n = 1, cudaSuccess))
CALL(cudaError_t, cudaSetDevice, (int device), device ? cudaErrorInvalidValue : cudaSuccess)
CALL(cudaError_t, cudaGetDevice, (int *device), (*device = 0, cudaSuccess))
CALL(cudaError_t, cudaPeekAtLastError, (void), last_error)
/* A launch has ended when it returns, and so has a copy. */
CALL(cudaError_t, cudaDeviceSynchronize, (void), finished())
CALL(cudaError_t, cudaDeviceReset, (void), finished())
CALL(cudaError_t, cudaStreamSynchronize, (cudaStream_t), finished())
CALL(cudaError_t, cudaEventSynchronize, (cudaEvent_t), finished())
CALL(cudaError_t, cudaStreamQuery, (cudaStream_t), cudaSuccess)
CALL(cudaError_t, cudaEventQuery, (cudaEvent_t), cudaSuccess)
CALL(cudaError_t, cudaStreamWaitEvent, (cudaStream_t, cudaEvent_t, unsigned), cudaSuccess)
CALL(cudaError_t, cudaMemcpyAsync,
     (void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t),
     cudaMemcpy(to, from, n, kind))
CALL(cudaError_t, cudaMemsetAsync, (void *p, int v, size_t n, cudaStream_t), cudaMemset(p, v, n))
CALL(cudaError_t, cudaMemcpy2DAsync,
     (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
      enum cudaMemcpyKind kind, cudaStream_t),
     cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind))
CALL(cudaError_t, cudaStreamCreate, (cudaStream_t * s), (*s = nullptr, cudaSuccess))
CALL(cudaError_t, cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned), cudaStreamCreate(s))
CALL(cudaError_t, cudaStreamCreateWithPriority, (cudaStream_t * s, unsigned, int),
     cudaStreamCreate(s))
CALL(cudaError_t, cudaStreamDestroy, (cudaStream_t), cudaSuccess)
/* An event is a moment of the CPU's clock. */
CALL(cudaError_t, cudaEventCreate, (cudaEvent_t * e),
     (*e = (cudaEvent_t) new double(), cudaSuccess))
CALL(cudaError_t, cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned), cudaEventCreate(e))
CALL(cudaError_t, cudaEventDestroy, (cudaEvent_t e), (delete (double *)e, cudaSuccess))
CALL(cudaError_t, cudaEventRecord, (cudaEvent_t e, cudaStream_t),
     (*(double *)e = nanoseconds(), cudaSuccess))
CALL(cudaError_t, cudaEventElapsedTime, (float *ms, cudaEvent_t a, cudaEvent_t b),
     (*ms = (float)((*(double *)b - *(double *)a) * 1e-6), cudaSuccess))

/* --- the device --------------------------------------------------------------------------------*/

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error != cudaSuccess ? error : finished();
}

static const int L2_BYTES = 1 << 20;

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int)
{
    memset(p, 0, sizeof *p);
    strcpy(p->name, "simt, a model on a CPU");
    p->major = 9;
    p->l2CacheSize = L2_BYTES;
    p->multiProcessorCount = 4;
    p->totalGlobalMem = (size_t)4 << 30;
    p->sharedMemPerBlockOptin = SMEM_MAX;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int)
{
    *v = a == cudaDevAttrComputeCapabilityMajor         ? 9
         : a == cudaDevAttrMultiProcessorCount          ? 4
         : a == cudaDevAttrMaxSharedMemoryPerBlockOptin ? SMEM_MAX
         : a == cudaDevAttrL2CacheSize                  ? L2_BYTES
                                                        : 0;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute a, int v)
{
    if (a == cudaFuncAttributeMaxDynamicSharedMemorySize && v > SMEM_MAX)
        return last_error = cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *)
{
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = MAX_THREADS;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    const Memory *m = memory_of((uintptr_t)p);
    a->device = 0;
    a->type = !m           ? cudaMemoryTypeUnregistered
              : m->managed ? cudaMemoryTypeManaged
                           : cudaMemoryTypeDevice;
    a->devicePointer = m ? (void *)p : nullptr;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all_bytes)
{
    *free_bytes = *all_bytes = (size_t)4 << 30;
    for (const auto &m : memory)
        *free_bytes -= std::min(*free_bytes, (size_t)(m.second.hi - m.second.lo));
    return cudaSuccess;
}

static const struct Error {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
#define ERROR(NAME, TEXT)                                                                          \
    {                                                                                              \
        NAME, #NAME, TEXT                                                                          \
    }
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorNotSupported, "operation not supported")};

static const char *told(cudaError_t error, const char *Error::*what)
{
    for (const Error &e : errors)
        if (e.code == error)
            return e.*what;
    return "unrecognized error code";
}
CALL(const char *, cudaGetErrorString, (cudaError_t error), told(error, &Error::text))
CALL(const char *, cudaGetErrorName, (cudaError_t error), told(error, &Error::name))

/* --- tensor maps -------------------------------------------------------------------------------*/

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *base, const cuuint64_t *sizes, const cuuint64_t *bytes,
                                const cuuint32_t *box, const cuuint32_t *, CUtensorMapInterleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill)
{
    SimtTensorMap &m = map->m;
    memset(map, 0, sizeof *map);
    m.base = (char *)base;
    m.rank = rank;
    m.swizzle = swizzle;
    m.element = type == CU_TENSOR_MAP_DATA_TYPE_UINT8     ? 1
                : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4
                                                          : 2;
    if (rank < 1 || rank > 5 || (uintptr_t)base % 16)
        return CUDA_ERROR_INVALID_VALUE;
    for (u32 i = 0; i < 5; i++) {
        m.sizes[i] = i < rank ? sizes[i] : 1;
        m.box[i] = i < rank ? box[i] : 1;
        m.bytes[i] = i + 1 < rank ? bytes[i] : 0;
        if (m.box[i] == 0 || m.box[i] > 256 || m.bytes[i] % 16)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **p, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *result)
{
    *p = (void *)cuTensorMapEncodeTiled;
    *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
}
