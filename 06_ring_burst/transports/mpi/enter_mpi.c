/* SPDX-License-Identifier: MIT
 *
 * enter_mpi.c: which of the processes of --transport mpi is this one? A rank, when mpirun started
 * it; else the one that starts mpirun and watches over it (launch_mpi.c).
 *
 *     ring_burst --transport mpi          starts mpirun, watches, ends with its status
 *       `- mpirun -n 4 ring_burst ...
 *            |- rank 0                    computes, checks, prints
 *            `- ranks 1, 2, 3             compute
 *
 * Interface: ring_mpi_enter, ring_mpi_is_over (world_mpi.h).
 */
#include <stdlib.h>

#include "transports/mpi/heartbeat.h"
#include "transports/mpi/world_mpi.h"

enum { DEFAULT_RANKS = 4 };

int ring_mpi_is_over(const CliCase *c)
{
    return c->ring.transport == CLI_MPI ||
           (c->ring.transport == CLI_NCCL && ring_mpi_under_mpirun());
}

/* The number of ranks for which all cases with --transport mpi ask. 0: they do not say; -1: they
 * ask for different numbers. */
static int wanted_ranks(const Cli *cli, double *timeout_s)
{
    int i, first = -1;
    for (i = 0; i < cli->case_count; i++) {
        const CliRing *r = &cli->cases[i].ring;
        if (!ring_mpi_is_over(&cli->cases[i]))
            continue;
        if (first >= 0 && (r->ranks_given != cli->cases[first].ring.ranks_given ||
                           (r->ranks_given && r->ranks != cli->cases[first].ring.ranks))) {
            cli_refuse("--cases: found different --ranks in lines %d and %d, accepted is one "
                       "number of ranks for all cases over mpi",
                       cli->cases[first].line, cli->cases[i].line);
            return -1;
        }
        first = first < 0 ? i : first;
        *timeout_s = r->timeout_s > *timeout_s ? r->timeout_s : *timeout_s;
    }
    return first >= 0 && cli->cases[first].ring.ranks_given ? (int)cli->cases[first].ring.ranks : 0;
}

/* All but rank 0: what is computed by one process only, checked, shown or written is not theirs. */
static void take_part_only(Cli *cli)
{
    int i, kept = 0;
    for (i = 0; i < cli->case_count; i++) {
        CliCase *c = &cli->cases[i];
        if (!ring_mpi_is_over(c))
            continue;
        c->check = 0;
        c->save_dir = c->ring.trace_json = NULL;
        cli->cases[kept++] = *c;
    }
    cli->case_count = kept;
    cli->quiet = 1;
    cli->json_file = NULL;
}

/* From here on this process is one of many that run the same main. */
static int become_rank(Cli *cli, int ranks, double timeout_s)
{
    char why[256];
    int i;
    if (ring_mpi_join(ranks, timeout_s, why) != 0)
        return cli_refuse("%s", why);
    for (i = 0; i < cli->case_count; i++)
        if (ring_mpi_is_over(&cli->cases[i]))
            cli->cases[i].ring.ranks = ring_mpi_ranks();
    if (ring_mpi_rank() > 0)
        take_part_only(cli);
    return CLI_CONTINUE;
}

/* This process has been started by an mpirun that has been started by us, and does not know its
 * rank. To start another mpirun would be a chain without an end. All of its like say it once. */
static int refuse_to_nest(const char *path)
{
    static const char why[] = "--transport mpi: found an mpirun that tells no process its rank, "
                              "accepted is that of OpenMPI or MPICH";
    HeartBoard *board = heart_open(path);
    if (board)
        heart_report(board, why);
    else
        cli_refuse("%s", why);
    heart_close(board);
    return EXIT_RUNTIME;
}

/* Whoever is under mpirun finds its rank in the environment; a program cannot ask MPI before it has
 * called MPI_Init, and the one that the user started must not call it. */
static int enter(Cli *cli, int argc, char **argv)
{
    double timeout_s = 0.0;
    int i, ranks, mpi = 0;
    for (i = 0; i < cli->case_count; i++)
        mpi += ring_mpi_is_over(&cli->cases[i]);
    if (!mpi && ring_mpi_under_mpirun())
        return cli_refuse("--transport: found sim, the default, under mpirun, accepted is mpi or "
                          "nccl, or sim without mpirun");
    if (!mpi)
        return CLI_CONTINUE;
    if ((ranks = wanted_ranks(cli, &timeout_s)) < 0)
        return EXIT_USAGE;
    if (ring_mpi_under_mpirun())
        return become_rank(cli, ranks, timeout_s);
    if (getenv("RING_MPI_BOARD")) /* set by launch_mpi.c */
        return refuse_to_nest(getenv("RING_MPI_BOARD"));
    return ring_mpi_launch(ranks > 0 ? ranks : DEFAULT_RANKS, timeout_s, argc, argv);
}

int ring_mpi_enter(Cli *cli, int argc, char **argv)
{
    const int status = enter(cli, argc, argv);
    if (status != CLI_CONTINUE) /* as cli_parse does */
        cli_free(cli);
    return status;
}
