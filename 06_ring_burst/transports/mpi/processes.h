/* SPDX-License-Identifier: MIT
 *
 * processes.h: world_mpi.h, or what stands for it in a build without MPI: one process, which is
 * rank 0 and does all the talking.
 *
 * Interface: ring_mpi_hush, ring_mpi_enter, ring_mpi_status, ring_mpi_leave, ring_mpi_rank,
 * ring_mpi_is_over, ring_world_processes.
 */
#ifndef RING_PROCESSES_H
#define RING_PROCESSES_H

#include "attn_config.h"

#ifdef HAVE_MPI
#include "transports/mpi/world_mpi.h"
#else
#include "cli/cli.h"
#include "runtime/ring_world.h"

static inline void ring_mpi_hush(void)
{
}

static inline int ring_mpi_enter(Cli *cli, int argc, char **argv)
{
    (void)cli, (void)argc, (void)argv;
    return CLI_CONTINUE;
}

static inline int ring_mpi_status(int status)
{
    return status;
}

static inline int ring_mpi_leave(int status)
{
    return status;
}

static inline int ring_mpi_rank(void)
{
    return 0;
}

static inline int ring_mpi_is_over(const CliCase *c)
{
    (void)c;
    return 0;
}

#endif

/* This process as a rank of a run; without MPI cli_parse has refused --transport mpi. */
static inline int ring_world_processes(const RingTask *task, const RingBackend *backend,
                                       RingReport *report)
{
#ifdef HAVE_MPI
    return ring_world_mpi(task, backend, report);
#else
    (void)task, (void)backend, (void)report;
    return -1;
#endif
}

#endif
