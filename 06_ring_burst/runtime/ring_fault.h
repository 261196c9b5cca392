/* SPDX-License-Identifier: MIT
 *
 * ring_fault.h: what goes wrong between two ranks, on purpose (--inject) and by accident
 * (--verify-hops): a lost, doubled, damaged or late message, a rank that is gone.
 *
 * With --verify-hops a trailer travels behind each message, in the same channel:
 *
 *     sender    data, trailer {number of the message in its channel, checksum of the data, step}
 *     receiver  data, trailer: is the number the next one? is it the checksum of what arrived?
 *
 * A damaged message shows in the checksum; a doubled one in the number, since the copy comes where
 * the next one is expected. A lost one leaves a gap in the numbers, or nothing comes at all, and
 * the receiver's time-out tells.
 *
 * Interface:
 * - ring_fault_step: --inject exit strikes at the beginning of a step.
 * - ring_fault_strike: the others change an exchange just before it starts.
 * - ring_trailers_add, ring_trailers_check: --verify-hops, before the start and after the wait.
 * - ring_fault_missed: the run is over and nothing was injected.
 */
#ifndef RING_FAULT_H
#define RING_FAULT_H

#include "runtime/ring_world.h"

typedef struct RingTrailer {
    int64_t number;
    uint64_t checksum, bytes;
    int32_t pass, step; /* of the sender */
} RingTrailer;

int ring_fault_step(RingRank *r);
int ring_fault_strike(RingRank *r, RingExchange *x);
int ring_fault_missed(RingRank *r);

int ring_trailers_add(RingRank *r, RingExchange *x);
int ring_trailers_check(RingRank *r, RingExchange *x);

/* Appends a transfer as it is (ring_send and ring_receive do after their checks). */
int ring_exchange_add(RingRank *r, RingExchange *x, RingTransfer transfer);

#endif
