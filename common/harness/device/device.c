/* SPDX-License-Identifier: MIT
 *
 * device.c: GPU memory and timing for the harness. Without CUDA (no_cuda.h) there is no device.
 * See device.h.
 */
#include "harness/device/device.h"

#include "alloc.h"
#include "alloc_wanted.h"
#include "attn_config.h"
#ifdef HAVE_CUDA
#include <cuda_runtime_api.h>
#else
#include "harness/device/no_cuda.h"
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int device_built(void)
{
#ifdef HAVE_CUDA
    return 1;
#else
    return 0;
#endif
}

int device_is_model(void)
{
#ifdef HAVE_SIMT
    return 1;
#else
    return 0;
#endif
}

struct DeviceTimer {
    cudaEvent_t start, stop;
};

static int tell(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return 0;
    fprintf(stderr, "device: %s: %s\n", what, cudaGetErrorString(error));
    return -1;
}

/* Any error counts as "no device": a driver that is missing or too old answers with one. */
int device_count(void)
{
    static int count = -1;
    if (count < 0 && cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        count = 0;
    }
    return count;
}

static const struct cudaDeviceProp *properties(void)
{
    static struct cudaDeviceProp p;
    static int state; /* 0 not asked, 1 known, -1 none */
    if (state == 0)
        state = device_count() > 0 && cudaGetDeviceProperties(&p, 0) == cudaSuccess ? 1 : -1;
    return state == 1 ? &p : NULL;
}

const char *device_name(void)
{
    return properties() ? properties()->name : "";
}

int device_arch(void)
{
    return properties() ? properties()->major * 10 + properties()->minor : 0;
}

void device_clocks_khz(int *sm, int *memory)
{
    *sm = *memory = 0;
    if (device_count() > 0) {
        cudaDeviceGetAttribute(sm, cudaDevAttrClockRate, 0);
        cudaDeviceGetAttribute(memory, cudaDevAttrMemoryClockRate, 0);
    }
}

void *device_alloc(size_t bytes)
{
    void *p_dev = NULL;
    if (device_count() == 0)
        return NULL;
    if (cudaMalloc(&p_dev, bytes ? bytes : 1) == cudaSuccess)
        return p_dev;
    workspace_trim();         /* perhaps a variant's workspace is in the way */
    (void)cudaGetLastError(); /* a failed allocation is not sticky */
    if (cudaMalloc(&p_dev, bytes ? bytes : 1) == cudaSuccess)
        return p_dev;
    (void)cudaGetLastError();
    workspace_refuse(bytes);
    return NULL;
}

void device_free(void *p_dev)
{
    if (p_dev)
        (void)cudaFree(p_dev);
}

int device_upload(void *to_dev, const void *from, size_t bytes)
{
    return tell(cudaMemcpy(to_dev, from, bytes, cudaMemcpyHostToDevice), "upload");
}

int device_download(void *to, const void *from_dev, size_t bytes)
{
    return tell(cudaMemcpy(to, from_dev, bytes, cudaMemcpyDeviceToHost), "download");
}

int device_fill_bytes(void *p_dev, int byte, size_t bytes)
{
#ifdef HAVE_SIMT
    if (byte == 0xFF) /* nobody may read it before it is written */
        return tell(simtPoison(p_dev, bytes), "fill");
#endif
    return tell(cudaMemset(p_dev, byte, bytes), "fill");
}

int device_copy_rows(void *to_dev, size_t to_pitch, const void *from_dev, size_t from_pitch,
                     size_t width, int64_t rows)
{
    return tell(cudaMemcpy2D(to_dev, to_pitch, from_dev, from_pitch, width, (size_t)rows,
                             cudaMemcpyDeviceToDevice),
                "copy of rows");
}

static int noted_failure;

void device_note_failure(void)
{
    noted_failure = 1;
}

int device_launched(void)
{
    const int failed = noted_failure;
    noted_failure = 0;
    return tell(cudaGetLastError(), "launch") | -failed;
}

int device_synchronize(void)
{
    return tell(cudaDeviceSynchronize(), "synchronize");
}

/* Writing twice the L2's size leaves none of an earlier run's data in it. */
int device_flush_l2(void)
{
    static void *junk_dev;
    static size_t bytes;
    if (!junk_dev) {
        bytes = properties() ? 2 * (size_t)properties()->l2CacheSize : 0;
        junk_dev = bytes ? device_alloc(bytes) : NULL;
    }
    return junk_dev ? tell(cudaMemsetAsync(junk_dev, 0, bytes, 0), "flush of the L2") : -1;
}

DeviceTimer *device_timer_new(void)
{
    DeviceTimer *t = calloc(1, sizeof *t);
    if (t && (tell(cudaEventCreate(&t->start), "event") != 0 ||
              tell(cudaEventCreate(&t->stop), "event") != 0)) {
        free(t);
        return NULL;
    }
    return t;
}

int device_timer_start(DeviceTimer *t)
{
    return tell(cudaEventRecord(t->start, 0), "event");
}

double device_timer_stop_ms(DeviceTimer *t)
{
    float ms = NAN;
    if (tell(cudaEventRecord(t->stop, 0), "event") != 0 ||
        tell(cudaEventSynchronize(t->stop), "kernel") != 0 ||
        tell(cudaEventElapsedTime(&ms, t->start, t->stop), "event") != 0)
        return NAN;
    return ms;
}

void device_timer_free(DeviceTimer *t)
{
    if (t) {
        cudaEventDestroy(t->start);
        cudaEventDestroy(t->stop);
    }
    free(t);
}
