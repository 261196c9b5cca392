/* SPDX-License-Identifier: MIT
 *
 * gpu.h: what examiners of steps on the GPU add to learn.h. The learner's kernels run in a model of
 * a GPU (common/simt), so that races, barriers, sectors and wavefronts are seen anywhere.
 *
 * A case has limits beside its sizes: `--most-sectors-read 64 --least-shuffles 5`; their names are
 * in gpu.c. The least is what the idea of the step needs: without it a kernel that has no shared
 * memory at all would pass a limit of bank conflicts. --early, --seed, --blocks choose an order of
 * copies, warps and blocks.
 *
 * Interface:
 * - on_device: an array on the device. back: one for an output, which end_kernels() copies back.
 * - bf16_on_device: the same of rounded floats. round_bf16: makes floats that it does not change.
 * - end_kernels: after the last launch. What breaks a rule of the machine ends the case here.
 */
#ifndef LEARN_GPU_H
#define LEARN_GPU_H

#include "learn.h"

float *on_device(const float *x, long count);
float *back(const Output *out);
void *bf16_on_device(const float *x, long count);
void round_bf16(float *x, long count);
void end_kernels(void);

#endif
