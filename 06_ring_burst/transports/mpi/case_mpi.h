/* SPDX-License-Identifier: MIT
 *
 * case_mpi.h: over MPI a failure ends all processes, and the cases of --cases after it with them.
 * So what the user reads says which line it was.
 *
 * Interface: ring_mpi_case: before a case is run. In a build without MPI it does nothing.
 */
#ifndef RING_CASE_MPI_H
#define RING_CASE_MPI_H

#include "attn_config.h"
#include "cli/cli.h"

#ifdef HAVE_MPI
void ring_mpi_case(const Cli *cli, const CliCase *c);
#else
static inline void ring_mpi_case(const Cli *cli, const CliCase *c)
{
    (void)cli, (void)c;
}
#endif

#endif
