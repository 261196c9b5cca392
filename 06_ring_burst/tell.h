/* SPDX-License-Identifier: MIT
 *
 * tell.h: what the program shows beside its table: why a method was chosen, who holds what when.
 *
 * Interface:
 * - ring_tell_choice: --method auto.
 * - ring_tell_screen: --trace.
 * - ring_tell_events, ring_tell_probe: --trace-json, and whether its file can be written at all.
 */
#ifndef RING_TELL_H
#define RING_TELL_H

#include "outcome.h"

/* Names the method (and the layout, if the user did not) in the case and prints why, unless quiet.
 * EXIT_OK or EXIT_USAGE: nothing can compute this. */
int ring_tell_choice(CliCase *c, const Problem *p, int quiet);
/* One screen of the method. EXIT_OK, also for a case that it cannot compute, or EXIT_RUNTIME. */
int ring_tell_screen(const CliCase *c, const Problem *p, const Variant *v);
/* EXIT_OK or EXIT_USAGE; leaves nothing behind. */
int ring_tell_probe(const char *path);
/* The measured events of a run and beside them those of the model. EXIT_OK, or EXIT_USAGE (the file
 * cannot be written) or EXIT_RUNTIME (memory). */
int ring_tell_events(const CliCase *c, const RingRun *run);

#endif
