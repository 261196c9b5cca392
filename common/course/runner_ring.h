/* SPDX-License-Identifier: MIT
 *
 * runner_ring.h: the numbers of a call of a ring method, as the judge writes them and the runner
 * reads them.
 *
 * Interface:
 * - RingNumbers.
 * - runner_call_ring: the row of the contract for runner_contracts.c.
 */
#ifndef ATTN_RUNNER_RING_H
#define ATTN_RUNNER_RING_H

#include "course/runner.h"

typedef struct RingNumbers {
    RunnerPointer Q, K, V, O, lse, dO, dQ, dK, dV;
    RunnerPointer tokens, positions; /* int32: [world], and all ranks' positions in a row */
    RunnerPointer mailbox;
    int64_t mailbox_bytes;
    int32_t rank, world, H, Hkv, d, left, right;
    float scale;
} RingNumbers;

int runner_call_ring(const RunnerCall *call);

#endif
