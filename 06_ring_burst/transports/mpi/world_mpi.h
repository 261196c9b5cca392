/* SPDX-License-Identifier: MIT
 *
 * world_mpi.h: what a program does that may run as several processes (--transport mpi).
 *
 *     mpirun -n 4 ring_burst --transport mpi          each process is one rank
 *     ring_burst --transport mpi --ranks 4            becomes that mpirun
 *
 * Each rank reads the same command line and makes the same inputs from the same seed. Only rank 0
 * checks results, prints and writes files: the others are quiet.
 *
 *     ring_mpi_hush();                        first of all
 *     cli_parse(...)
 *     status = ring_mpi_enter(&cli, argc, argv);
 *     if (status != CLI_CONTINUE) return ring_mpi_status(status);
 *     ... ring_world_mpi for each case, by all ranks, in the same order;
 *         checks, tables, files: only if ring_mpi_rank() == 0 ...
 *     return ring_mpi_leave(status);
 *
 * Interface:
 * - ring_mpi_hush, ring_mpi_enter, ring_mpi_status, ring_mpi_leave, ring_mpi_rank.
 * - ring_mpi_is_over, ring_mpi_case: what is known of a case.
 * - ring_mpi_report, ring_mpi_line: for messages_mpi.c.
 * - ring_world_mpi: a run.
 */
#ifndef RING_WORLD_MPI_H
#define RING_WORLD_MPI_H

#include "harness/cli/cli.h"
#include "runtime/ring_world.h"

/* Under mpirun, ranks other than 0 print nothing from here on (ATTN_MPI_STDERR=1: their stderr
 * stays open, to see what a debugger or a sanitizer says). */
void ring_mpi_hush(void);
/* CLI_CONTINUE: go on, as a rank where a case has --transport mpi. Else the exit status of a
 * refusal, printed. Without mpirun a process that shall be ranks becomes it, and does not return.
 * Ranks other than 0 are left without --json, --save and --check. */
int ring_mpi_enter(Cli *cli, int argc, char **argv);
/* What to exit with after a refusal, which all ranks find: 0 for all but rank 0. mpirun kills the
 * others as soon as one ends with a status, even a rank 0 that is about to say what is wrong. */
int ring_mpi_status(int status);
/* All ranks leave together; returns the status to exit with: 0 for all but rank 0. */
int ring_mpi_leave(int status);
/* One sentence for the user, by whoever is first of all ranks. Safe in a signal handler. */
void ring_mpi_report(const char *sentence);
int ring_mpi_rank(void); /* 0 without mpirun */

/* Are this case's ranks processes? --transport mpi, and nccl under mpirun: GPUs of many
 * machines. */
int ring_mpi_is_over(const CliCase *c);
/* Before a case is run. A failure ends all processes, and the cases of --cases after it with them:
 * so what the user reads says which line it was. */
void ring_mpi_case(const Cli *cli, const CliCase *c);
/* Its line in --cases, 0 without. mpi_go returns MPI_PASSED where rank 0 is at a later one: it has
 * refused something in this one. */
int ring_mpi_line(void);
#define MPI_PASSED (-2)
/* This process is one rank of MPI_COMM_WORLD: --transport mpi, or nccl under mpirun, by the
 * backend. report is complete on rank 0. */
int ring_world_mpi(const RingTask *task, const RingBackend *backend, RingReport *report);
#endif
