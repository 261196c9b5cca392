/* SPDX-License-Identifier: MIT
 *
 * pretend_device.h: a GPU that is host memory. It takes the place of
 * common/attention/op/device.c in tests, so that everything the operator does around a
 * kernel runs on any machine, with every failure on demand.
 *
 * Interface: pretend, what the device is like and does next; pretend_reset.
 */
#ifndef PRETEND_DEVICE_H
#define PRETEND_DEVICE_H

typedef struct PretendDevice {
    int count;                                                /* GPUs; -1: no CUDA in this build */
    int arch, oldest_arch;                                    /* of each GPU; of the kernels */
    int fail_host_alloc, fail_upload, fail_release, fail_run; /* 1: the next one fails */
    const void *foreign;            /* an address that is not the device's */
    int host_blocks, device_blocks; /* live ones */
} PretendDevice;

extern PretendDevice pretend;

void pretend_reset(void); /* one GPU, sm_90, kernels from sm_80; keeps the counts of live blocks */

#endif
