/* SPDX-License-Identifier: MIT
 *
 * gpus.h: whose memory and arithmetic the ranks of a row have: the host's, or a GPU's in a build
 * with CUDA.
 *
 *     row     --transport          ranks
 *     cpu     sim, mpi             threads or processes
 *     cuda    sim                  streams of one GPU
 *     cuda    nccl                 one GPU each, messages by NCCL; threads, or under mpirun
 *                                  processes, also of many machines
 *     cuda    nccl --link copy     one GPU each, messages by the GPUs' copy engines; threads, or
 *                                  under mpirun processes, of one machine
 *
 * Interface: ring_backend_of, ring_backend_refuses.
 */
#ifndef RING_GPUS_H
#define RING_GPUS_H

#include <stdio.h>

#include "attn_config.h"
#include "cli/cli.h"
#include "runtime/ring_world.h"
#include "transports/mpi/processes.h"

#ifdef HAVE_CUDA
#include "runtime/cuda/backend_cuda.h"
#endif

static inline const RingBackend *ring_backend_of(const CliCase *c, const Variant *v)
{
    if (v->device == ON_CPU)
        return &ring_backend_cpu;
#ifdef HAVE_CUDA
    if (c->ring.transport != CLI_NCCL)
        return &ring_backend_cuda;
#ifdef HAVE_MPI
    if (c->ring.link == CLI_LINK_COPY && ring_mpi_is_over(c))
        return &ring_backend_shared;
#endif
    if (c->ring.link == CLI_LINK_COPY)
        return &ring_backend_gpus;
#endif
#ifdef HAVE_NCCL
    return &ring_backend_nccl;
#else
    (void)c;
    return NULL; /* cli_parse has refused it */
#endif
}

/* 1, with half a sentence: what ranks on GPUs do not do, or more than is here (*absent). */
static inline int ring_backend_refuses(const CliCase *c, const Variant *v, int64_t d, char why[256],
                                       int *absent)
{
    const CliRing *r = &c->ring;
    *absent = 0;
    if (v->device == ON_CPU)
        return 0;
    if (d > CLI_MAX_D_CUDA) {
        snprintf(why, 256, "a head may have %d channels on a GPU", CLI_MAX_D_CUDA);
        return 1;
    }
    if (r->adversarial || r->inject || r->verify_hops) {
        snprintf(why, 256, "schedules, faults and checksums are for ranks on the CPU");
        return 1;
    }
#ifdef HAVE_CUDA
    /* NCCL under mpirun finds ways to GPUs of other machines; copy engines do not */
    if (r->transport == CLI_NCCL && (!ring_mpi_is_over(c) || r->link == CLI_LINK_COPY) &&
        !ring_gpus_reach_each_other((int)r->ranks, why)) {
        *absent = 1;
        return 1;
    }
#endif
    return 0;
}

#endif
