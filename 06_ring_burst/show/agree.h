/* SPDX-License-Identifier: MIT
 *
 * agree.h: did the ranks send what the model counts, and hold what it counts? A wrong answer can
 * look right (a gradient check passes when nothing moves at all); bytes that were never sent do
 * not.
 *
 * Interface:
 * - ring_bytes_agree: to the byte, for each rank, pass, tensor and kind of link.
 * - ring_memory_agrees: within 5 percent.
 */
#ifndef RING_AGREE_H
#define RING_AGREE_H

#include "planner/cost.h"

/* m: of ring_model_case. 1, or 0 with one sentence. */
int ring_bytes_agree(const RingModelCase *m, const RingReport *report, int backward, char *sentence,
                     size_t size);
int ring_memory_agrees(int64_t found, int64_t model, int rank, char *sentence, size_t size);

#endif
