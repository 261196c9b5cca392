/* SPDX-License-Identifier: MIT
 *
 * team.h: threads of one parallel region that share a head, or do not.
 *
 * Interface:
 * - AttnTeam, attn_team: what is a thread's own where all of them share one head after the other.
 * - attn_team_wait: comes back when all threads of the team are here.
 */
#ifndef ATTENTION_TEAM_H
#define ATTENTION_TEAM_H

#include "attn.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* Queries i0 .. i1-1 and keys j0 .. j1-1. Not shared: all of them, of heads that a thread has to
 * itself. */
typedef struct AttnTeam {
    int thread, threads; /* threads: that share a head */
    int64_t i0, i1, j0, j1;
} AttnTeam;

static inline AttnTeam attn_team(const AttnShape *shape, int shared)
{
    AttnTeam team = {0, 1, 0, shape->Nq, 0, shape->Nk};
#ifdef _OPENMP
    team.thread = omp_get_thread_num();
    team.threads = shared ? omp_get_num_threads() : 1; /* there may be fewer than asked for */
#else
    (void)shared;
#endif
    if (team.threads > 1) {
        team.i0 = shape->Nq * team.thread / team.threads;
        team.i1 = shape->Nq * (team.thread + 1) / team.threads;
        team.j0 = shape->Nk * team.thread / team.threads;
        team.j1 = shape->Nk * (team.thread + 1) / team.threads;
    }
    return team;
}

static inline void attn_team_wait(const AttnTeam *team)
{
#ifdef _OPENMP
    if (team->threads > 1) {
#pragma omp barrier
    }
#else
    (void)team;
#endif
}

#endif
