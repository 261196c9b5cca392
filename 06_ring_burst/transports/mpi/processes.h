/* SPDX-License-Identifier: MIT
 *
 * processes.h: world_mpi.h, or what stands for it in a build without MPI: one process, which is
 * rank 0 and does all the talking.
 *
 * Interface: see world_mpi.h.
 */
#ifndef RING_PROCESSES_H
#define RING_PROCESSES_H

#include "attn_config.h"

#ifdef HAVE_MPI
#include "transports/mpi/world_mpi.h"
#else
#include "harness/cli/cli.h"
#include "runtime/ring_world.h"

#define ring_mpi_hush()         ((void)0)
#define ring_mpi_status(status) (status)
#define ring_mpi_rank()         0
#define ring_mpi_is_over(c)     0
#define ring_mpi_case(cli, c)   ((void)0)
#define ring_mpi_enter          NULL /* hooks of StageMain */
#define ring_mpi_leave          NULL

static inline int ring_world_mpi(const RingTask *task, const RingBackend *backend,
                                 RingReport *report)
{
    (void)task, (void)backend, (void)report;
    return -1;
}

#endif
#endif
