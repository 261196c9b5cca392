/* SPDX-License-Identifier: MIT
 *
 * ring_tensors.h: what travels between ranks (stage 06), and in which pass.
 *
 * Interface: RingTensor, RingPass.
 */
#ifndef ATTN_RING_TENSORS_H
#define ATTN_RING_TENSORS_H

/* What travels or is counted, and the name of the channel it travels in. */
typedef enum RingTensor {
    RING_Q,
    RING_K,
    RING_V,
    RING_O,
    RING_LSE,
    RING_DELTA,
    RING_DO,
    RING_DQ,
    RING_DK,
    RING_DV,
    RING_TENSORS
} RingTensor;

typedef enum RingPass { RING_SETUP, RING_FORWARD, RING_BACKWARD, RING_PASSES } RingPass;

#endif
