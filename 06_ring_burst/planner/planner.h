/* SPDX-License-Identifier: MIT
 *
 * planner.h: --method auto. Chooses method and layout for a shape and a machine, and says why.
 *
 * Interface: ring_choose, RING_WHY.
 */
#ifndef RING_PLANNER_H
#define RING_PLANNER_H

#include "planner/cost.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RING_WHY = 1200 };

/* Sets setup->method if it is RING_METHOD_AUTO, and setup->layout if free_layout. The backward pass
 * counts if args->dO has data. why: one paragraph without line breaks. 0, or -1 with one sentence
 * in why: nothing can compute this; or -2: memory is short. */
int ring_choose(RingSetup *setup, int free_layout, const AttnArgs *args, const RingRates *rates,
                char why[RING_WHY]);

#ifdef __cplusplus
}
#endif
#endif
