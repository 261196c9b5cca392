/* SPDX-License-Identifier: MIT
 *
 * watch_ring.h: put before a method of stage 06 (clang -include), it remembers the line of C that
 * asks for attention in each step of each rank, while the method writes down its timetable.
 *
 * Interface: ring_line; macros in the place of what a method calls.
 */
#ifndef WATCH_RING_H
#define WATCH_RING_H

#include "runtime/rank.h"

void ring_line(const RingRank *r, const char *file, const char *function, int line);

#define HERE(r)                                 ring_line(r, __FILE__, __func__, __LINE__)
#define ring_see_keys(r, s, k)                  (HERE(r), ring_see_keys(r, s, k))
#define ring_see_last_keys(r, s, k)             (HERE(r), ring_see_last_keys(r, s, k))
#define ring_differentiate(r, q, k, dQ, dK, dV) (HERE(r), ring_differentiate(r, q, k, dQ, dK, dV))
#endif
