/* SPDX-License-Identifier: MIT
 *
 * simulate.h: your own method. Write the two passes over rank.h, put them into a table, and
 * let the program run them as it runs its own, on threads of a child process:
 *
 *     #include "runtime/simulate.h"
 *
 *     static int forward(RingRank *r) { ... }      Q K V -> O lse
 *     static int backward(RingRank *r) { ... }     and dO -> dQ dK dV
 *     static const RingMethodTable mine = {NULL, forward, backward, NULL};
 *
 *     int ring_burst_abi_version = RING_BURST_ABI_VERSION;
 *     AttnStatus ring_burst_variant(const AttnArgs *args)
 *     {
 *         return ring_simulate(args, RING_METHOD_RING, &mine, 0);
 *     }
 *     AttnStatus ring_burst_variant_backward(const AttnArgs *args)
 *     {
 *         return ring_simulate(args, RING_METHOD_RING, &mine, 1);
 *     }
 *
 *     cc -shared -fPIC -I common -I common/attention -I 06_ring_burst mine.c -o mine.so
 *     ring_burst --variant-so mine.so --ranks 3 --causal --backward
 *
 * --ranks, --layout, --nodes, --partials, --seed-schedule, --inject, --verify-hops and --timeout
 * are those of the command line. The numbers are judged by the oracle, the bytes that the ranks
 * sent by the model of the method that it says it is; and Q, K, V, dO of a rank have to stay what
 * they were.
 *
 * Interface:
 * - RING_BURST_ABI_VERSION.
 * - ring_simulate: a pass over simulated ranks. ring_simulate_setup: the program's side.
 */
#ifndef RING_SIMULATE_H
#define RING_SIMULATE_H

#include "planner/plan.h"

/* A shared object for --variant-so exports `int ring_burst_abi_version = RING_BURST_ABI_VERSION;`,
 * `AttnStatus ring_burst_variant(const AttnArgs *)` and, for --backward,
 * `ring_burst_variant_backward`: the whole attention, by a method of its own or any other way. */
#define RING_BURST_ABI_VERSION 3

/* A rank failed, or sent what the model of `like` does not count. The sentence is on stderr
 * already, as it is wherever a variant gives this answer. */
#define RING_FAILED ATTN_CUDA_ERROR

/* Runs the forward pass, or (backward = 1) both, of which only the gradients are kept. method NULL:
 * the program's own. ATTN_OK, RING_FAILED, or with a sentence as well ATTN_SKIP: heads that Ulysses
 * cannot deal out; ATTN_NO_MEMORY: for the ranks themselves. */
AttnStatus ring_simulate(const AttnArgs *args, RingMethod like, const RingMethodTable *method,
                         int backward);
/* Ranks, layout and the rest for the calls that follow. */
void ring_simulate_setup(const RingSetup *setup);
#endif
