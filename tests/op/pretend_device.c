/* SPDX-License-Identifier: MIT
 *
 * pretend_device.c: see pretend_device.h. The kernel is the CPU library: same contract, host
 * memory.
 */
#include "pretend_device.h"
#include "attention/forward/flash_library.h"

#include <stdlib.h>
#include <string.h>

#include "attention/op/op_internal.h"

PretendDevice pretend;

void pretend_reset(void)
{
    const int host = pretend.host_blocks, device = pretend.device_blocks;
    pretend = (PretendDevice){.count = 1, .arch = 90, .oldest_arch = 80};
    pretend.host_blocks = host;
    pretend.device_blocks = device;
}

static int fails(int *now)
{
    const int failed = *now;
    *now = 0;
    return failed;
}

void *op_host_alloc(size_t bytes)
{
    void *p = fails(&pretend.fail_host_alloc) ? NULL : calloc(1, bytes);
    pretend.host_blocks += p != NULL;
    return p;
}

void op_host_free(void *p)
{
    pretend.host_blocks -= p != NULL;
    free(p);
}

int op_default_threads(void)
{
    return 2;
}

int op_cuda_count(void)
{
    return pretend.count;
}

int op_cuda_arch(int device_id)
{
    (void)device_id;
    return pretend.arch;
}

int op_cuda_compiled_for(int arch, int dtype)
{
    return arch >= pretend.oldest_arch && (arch >= 80 || dtype <= FLASH_ATTENTION_F32);
}

void *op_cuda_upload(int device_id, const void *from, size_t bytes)
{
    void *p_dev = fails(&pretend.fail_upload) ? NULL : malloc(bytes);
    (void)device_id;
    if (p_dev) {
        memcpy(p_dev, from, bytes);
        pretend.device_blocks++;
    }
    return p_dev;
}

int op_cuda_release(int device_id, void *p_dev)
{
    (void)device_id;
    pretend.device_blocks -= p_dev != NULL;
    free(p_dev);
    return fails(&pretend.fail_release) ? -1 : 0;
}

int op_cuda_owns(int device_id, const void *p_dev)
{
    (void)device_id;
    return p_dev != pretend.foreign;
}

size_t op_cuda_workspace_bytes(int device_id, const AttnShape *shape, AttnDtype dtype)
{
    (void)device_id, (void)dtype;
    return flash_simd_workspace_bytes(shape, 1);
}

int op_cuda_run(int device_id, const OpCudaRun *run)
{
    const size_t Nk = (size_t)run->args->shape.Nk;
    (void)device_id;
    for (int64_t i = 0; run->mask_to && i < run->args->shape.Nq; i++)
        memcpy(run->mask_to + (size_t)i * Nk, run->mask_from + i * run->mask_stride, Nk);
    return fails(&pretend.fail_run) ? -1 : (int)flash_simd_run(run->args, NULL, run->workspace);
}
