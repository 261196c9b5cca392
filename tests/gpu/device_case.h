/* SPDX-License-Identifier: MIT
 *
 * device_case.h: a case of tests/unit/oracle_case.h in device memory.
 *
 * The whole storage is copied, gaps included, so that they hold NaN there too, and a block of keys
 * (key_blocks.h) is a pointer further into it, as on the host.
 *
 * Interface:
 * - DeviceCase, device_case_new, device_case_free: the tensors, lse and a state O_state.
 * - device_case_args: host arguments of the case, or of a block of it, as device arguments.
 * - device_case_state_up, device_case_state_down: lse and O_state between host and device.
 * - Kernel, kernels: everything that resumes on a GPU.
 */
#ifndef DEVICE_CASE_H
#define DEVICE_CASE_H

#include "../unit/key_blocks.h"

#include "harness/device/device.h"

#include "attention/forward/cuda/block_kernels.cuh"

typedef struct DeviceCase {
    const Case *host;
    unsigned char *Q_dev, *K_dev, *V_dev, *O_dev, *mask_dev;
    float *lse_dev, *O_state_dev;
    AttnSegment *segments_dev; /* 16 of the queries, 16 of the keys */
    size_t rows, elements;     /* of lse, of O_state */
} DeviceCase;

static inline unsigned char *device_copy_of(const void *from, size_t bytes)
{
    unsigned char *p_dev = device_alloc(bytes);
    assert_non_null(p_dev);
    assert_int_equal(0, from ? device_upload(p_dev, from, bytes)
                             : device_fill_bytes(p_dev, 0xFF, bytes));
    return p_dev;
}

static inline DeviceCase *device_case_new(const Case *c)
{
    const AttnShape *n = &c->args.shape;
    DeviceCase *d = calloc(1, sizeof *d);
    assert_non_null(d);
    d->host = c;
    d->rows = (size_t)(n->B * n->H * n->Nq);
    d->elements = d->rows * (size_t)n->d;
    d->Q_dev = device_copy_of(c->Q.base, c->Q.bytes);
    d->K_dev = device_copy_of(c->K.base, c->K.bytes);
    d->V_dev = device_copy_of(c->V.base, c->V.bytes);
    d->O_dev = device_copy_of(NULL, c->O.bytes);
    d->mask_dev = device_copy_of(NULL, (size_t)(n->Nq * n->Nk));
    d->lse_dev = (float *)device_copy_of(NULL, d->rows * sizeof *d->lse_dev);
    d->O_state_dev = (float *)device_copy_of(NULL, d->elements * sizeof *d->O_state_dev);
    d->segments_dev = (AttnSegment *)device_copy_of(NULL, 32 * sizeof *d->segments_dev);
    return d;
}

static inline void device_case_free(DeviceCase *d)
{
    void *all[] = {d->Q_dev,    d->K_dev,   d->V_dev,       d->O_dev,
                   d->mask_dev, d->lse_dev, d->O_state_dev, d->segments_dev};
    for (size_t t = 0; t < sizeof all / sizeof *all; t++)
        device_free(all[t]);
    free(d);
}

/* host: d->host->args or a block of them. Mask and segments are uploaded: one call at a time. */
static inline AttnArgs device_case_args(const DeviceCase *d, const AttnArgs *host)
{
    AttnArgs a = *host;
    a.Q.data = d->Q_dev + ((unsigned char *)host->Q.data - d->host->Q.base);
    a.K.data = d->K_dev + ((unsigned char *)host->K.data - d->host->K.base);
    a.V.data = d->V_dev + ((unsigned char *)host->V.data - d->host->V.base);
    if (host->O.data)
        a.O.data = d->O_dev + ((unsigned char *)host->O.data - d->host->O.base);
    a.lse = d->lse_dev;
    a.dO.data = a.dQ.data = a.dK.data = a.dV.data = NULL; /* they are on the host */
    if (host->mask) {
        assert_int_equal(
            0, device_upload(d->mask_dev, host->mask, (size_t)(host->shape.Nq * host->shape.Nk)));
        a.mask = d->mask_dev;
    }
    assert_int_equal(0, device_upload(d->segments_dev, host->positions_q.segments,
                                      sizeof(AttnSegment) * (size_t)host->positions_q.count));
    assert_int_equal(0, device_upload(d->segments_dev + 16, host->positions_k.segments,
                                      sizeof(AttnSegment) * (size_t)host->positions_k.count));
    a.positions_q.segments = d->segments_dev;
    a.positions_k.segments = d->segments_dev + 16;
    return a;
}

static inline void device_case_state_up(DeviceCase *d, const float *O_state)
{
    assert_int_equal(0, device_upload(d->lse_dev, d->host->lse, d->rows * sizeof(float)));
    assert_int_equal(0, device_upload(d->O_state_dev, O_state, d->elements * sizeof(float)));
}

static inline void device_case_state_down(const DeviceCase *d, float *O_state)
{
    assert_int_equal(0, device_synchronize());
    assert_int_equal(0, device_download(d->host->lse, d->lse_dev, d->rows * sizeof(float)));
    assert_int_equal(0, device_download(O_state, d->O_state_dev, d->elements * sizeof(float)));
}

/* --- kernels that resume -----------------------------------------------------------------------*/

typedef struct Kernel {
    const char *name;
    AttnStatus (*function)(const AttnArgs *args, float *O_state_dev);
    unsigned dtypes; /* bits 1 << AttnDtype */
    double c;        /* of the bound (oracle.h): 16 on tensor cores */
} Kernel;

static const Kernel kernels[] = {
    {"flash_block_cuda, f32", flash_block_cuda, 1, 4},
    {"flash_block_cuda, 16 bit", flash_block_cuda, 6, 16},
};

#define KERNEL_COUNT ((int)(sizeof kernels / sizeof *kernels))

/* Tensor cores need sm_80. */
static inline int kernel_takes(const Kernel *kernel, AttnDtype dtype)
{
    return kernel->dtypes >> dtype & 1 && (dtype == ATTN_F32 || device_arch() >= 80);
}

#endif
