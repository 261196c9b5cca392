/* SPDX-License-Identifier: MIT
 *
 * show.h: what the program shows beside its table: why a method was chosen, who holds what when.
 *
 * Interface:
 * - ring_show_choice: --method auto.
 * - ring_show_screen: --trace.
 * - ring_show_events, ring_show_probe: --trace-json, and whether its file can be written at all.
 */
#ifndef RING_TELL_H
#define RING_TELL_H

#include "show/results.h"

/* Names the method (and the layout, if the user did not) in the case and prints why, unless quiet.
 * EXIT_OK or EXIT_USAGE: nothing can compute this. */
int ring_show_choice(CliCase *c, const Problem *p, int quiet);
/* One screen of the method. EXIT_OK, also for a case that it cannot compute, or EXIT_RUNTIME. */
int ring_show_screen(const CliCase *c, const Problem *p, const Variant *v);
/* EXIT_OK or EXIT_USAGE; leaves nothing behind. */
int ring_show_probe(const char *path);
/* The measured events of a run and beside them those of the model. EXIT_OK, or EXIT_USAGE (the file
 * cannot be written) or EXIT_RUNTIME (memory). */
int ring_show_events(const CliCase *c, const RingRun *run);

#endif
