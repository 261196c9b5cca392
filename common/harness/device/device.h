/* SPDX-License-Identifier: MIT
 *
 * device.h: GPU memory and timing for the harness. Without CUDA every call says "no device".
 *
 * Interface:
 * - device_count, device_name: what is there; any error counts as "no device".
 * - device_alloc ... device_fill_bytes: memory of the harness (variants use
 *   workspace_alloc_device).
 * - device_set_smem_limit ...: --smem-limit, a smaller GPU.
 * - device_timer_*: event pairs around a launch. device_flush_l2: overwrites more than the L2.
 */
#ifndef ATTN_DEVICE_H
#define ATTN_DEVICE_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

int device_built(void);    /* 1: this build has CUDA */
int device_is_model(void); /* 1: of simt, whose times mean nothing */
int device_count(void);
const char *device_name(void); /* of device 0, "" when none */
/* Current limits of its clocks, 0 when unknown. */
void device_clocks_khz(int *sm, int *memory);
/* Compute capability as 10*major + minor, 0 when none. */
int device_arch(void);

void *device_alloc(size_t bytes); /* harness memory: not counted as workspace; NULL on failure */
void device_free(void *p_dev);
/* 0 or -1 (message on stderr) */
int device_upload(void *to_dev, const void *from, size_t bytes);
int device_download(void *to, const void *from_dev, size_t bytes);
int device_fill_bytes(void *p_dev, int byte, size_t bytes);
/* `rows` rows of `width` bytes that lie `pitch` bytes apart, from device to device. */
int device_copy_rows(void *to_dev, size_t to_pitch, const void *from_dev, size_t from_pitch,
                     size_t width, int64_t rows);
/* 0: all launches since the last call were accepted, and device_note_failure was not called. */
int device_launched(void);
void device_note_failure(void);
int device_synchronize(void);
int device_flush_l2(void);

/* Bytes of shared memory that a block may have, 0 = what the device offers. A kernel that needs
 * more is not launched: ATTN_SKIP. */
void device_set_smem_limit(int64_t bytes);
int64_t device_smem_limit(void);
/* Launchers ask this. 1: `bytes` are too many, which device_smem_refused remembers (0: no refusal
 * since the limit was set). */
int device_smem_refuses(int64_t bytes);
int64_t device_smem_refused(void);
/* Writes why a kernel was refused, for want of shared memory; 0: none was. */
int device_smem_explain(char *text, size_t size);

typedef struct DeviceTimer DeviceTimer;
DeviceTimer *device_timer_new(void);
int device_timer_start(DeviceTimer *t);
double device_timer_stop_ms(DeviceTimer *t); /* waits; NaN on an error */
void device_timer_free(DeviceTimer *t);

#ifdef __cplusplus
}
#endif
#endif
