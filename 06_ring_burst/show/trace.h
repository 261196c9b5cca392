/* SPDX-License-Identifier: MIT
 *
 * trace.h: a run to look at: which rank has which block and which mask at each step, as one screen
 * of text; and its events as a file for Perfetto or Chrome (ui.perfetto.dev, chrome://tracing).
 *
 * Interface: ring_trace_screen, ring_trace_steps, ring_trace_json.
 */
#ifndef RING_TRACE_H
#define RING_TRACE_H

#include "planner/cost.h"

#include <stdio.h>

/* --trace. Up to 4 ranks fit 80 x 24. 0, or -1: no memory. */
int ring_trace_screen(FILE *out, const RingPlan *plan);

/* --trace --step: a page for each step (report/pages.h). Up to 8 ranks fit 80 x 24. 0, or -1: no
 * memory. */
int ring_trace_steps(FILE *out, const RingPlan *plan);

/* --trace-json. Each report is a group of processes, one for each rank, with a line each for
 * computing, sending and receiving. 0, or -1 with one sentence in why. */
int ring_trace_json(const char *path, const RingPlan *plan, const RingReport *measured,
                    const RingReport *predicted, char why[256]);
#endif
