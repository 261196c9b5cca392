/* SPDX-License-Identifier: MIT
 *
 * pace.h: time, judged without a clock that the machine could disturb much: the learner's function
 * and a plain one take turns in one process, and the ratio of their shortest turns counts.
 *
 * Interface: refuse_slow(plain, yours, share, reason): the case ends if yours takes more than
 * `share` of the plain one's time. The turns end as soon as it takes less. Nothing is judged with
 * --asan, which makes both slow.
 */
#ifndef LEARN_PACE_H
#define LEARN_PACE_H

#include <time.h>

#include "learn.h"

#define MOST_TURNS 40

/* Of the processor, so that other programs count little. */
static inline double seconds_of(void (*body)(void))
{
    struct timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    body();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}

static inline void refuse_slow(void (*plain)(void), void (*yours)(void), double share,
                               const char *reason)
{
    double of_plain = INFINITY, of_yours = INFINITY;
    int turn;
#ifdef LEARN_ASAN
    return;
#endif
    for (turn = 0; turn < MOST_TURNS; turn++) {
        of_plain = fmin(of_plain, seconds_of(plain));
        of_yours = fmin(of_yours, seconds_of(yours));
        if (turn > 2 && of_yours <= share * of_plain)
            return;
    }
    refuse("slow",
           "The result is right, but it takes %.2f of the time of the plain loops, measured in "
           "turns; %.2f is enough. %s",
           of_yours / of_plain, share, reason);
}

#endif
