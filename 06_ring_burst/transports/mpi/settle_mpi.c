/* SPDX-License-Identifier: MIT
 *
 * settle_mpi.c: the end of a run over MPI, and what ranks say to each other between two runs.
 *
 * After a run no message may be left over: the next run would take it for one of its own. So each
 * rank learns how many messages it was sent (an MPI_Ialltoall), and compares with what it has
 * taken.
 *
 * A rank that fails, or whose neighbour does not come, tells the user why, and MPI_Abort ends all
 * processes: nobody has to bring the others to an end, and nothing is left to clean up.
 *
 * Interface: mpi_end_open, mpi_end_close, mpi_settle, mpi_go ... (messages_mpi.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transports/mpi/mpi_end.h"
#include "transports/mpi/world_mpi.h"

enum { EXIT_STATUS = 3 /* EXIT_RUNTIME of cli.h */ };

#define PIECE_BYTES ((size_t)1 << 30) /* MPI counts in int */

/* --- an end ------------------------------------------------------------------------------------*/

/* Two communicators over the same processes: a message of one is never received in the other,
 * whatever its tag. So questions between runs cannot be mixed up with messages that a run has left
 * over. */
MpiEnd *mpi_end_open(HeartBoard *board, double timeout_s)
{
    MpiEnd *e = calloc(1, sizeof *e);
    const char *piece = getenv("ATTN_MPI_PIECE"); /* for tests: short pieces */
    if (!e)
        return NULL;
    e->board = board;
    e->piece = piece && atol(piece) > 0 && (size_t)atol(piece) < PIECE_BYTES ? (size_t)atol(piece)
                                                                             : PIECE_BYTES;
    e->timeout_s = timeout_s;
    if (MPI_Comm_dup(MPI_COMM_WORLD, &e->messages) != MPI_SUCCESS ||
        MPI_Comm_dup(MPI_COMM_WORLD, &e->control) != MPI_SUCCESS) {
        free(e);
        return NULL;
    }
    MPI_Comm_set_errhandler(e->messages, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(e->control, MPI_ERRORS_RETURN);
    MPI_Comm_rank(e->control, &e->rank);
    MPI_Comm_size(e->control, &e->world);
    return e;
}

void mpi_end_close(MpiEnd *e)
{
    MPI_Comm_free(&e->messages);
    MPI_Comm_free(&e->control);
    free(e);
}

/* The first sentence of all ranks is the one that the user reads (ring_mpi_report). */
void mpi_abort(const char *text)
{
    ring_mpi_report(text);
    MPI_Abort(MPI_COMM_WORLD, EXIT_STATUS);
    abort(); /* MPI_Abort does not return */
}

/* --- the end of a run --------------------------------------------------------------------------*/

/* What was sent is complete on the other side (mpi_finish has waited for it), so a message that
 * nobody has taken is here, or about to come. */
static int fail_left_over(RingRank *r, int64_t count)
{
    const MpiEnd *e = r->endpoint;
    MpiNap n = mpi_nap_begin();
    MPI_Status status;
    int found = 0, bytes = 0;
    while (!found && mpi_nap_seconds(&n) < e->timeout_s) {
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, e->messages, &found, &status);
        mpi_nap(&n);
    }
    if (!found)
        return ring_fail(r, "%lld messages did not come", (long long)count);
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    return ring_fail(r, "%lld message%s left over, the first one %s from rank %d, %d bytes",
                     (long long)count, count == 1 ? " was" : "s were", mpi_tag_name(status.MPI_TAG),
                     status.MPI_SOURCE, bytes);
}

int mpi_settle(RingRank *r)
{
    MpiEnd *e = r->endpoint;
    int64_t sent_to_me[RING_MAX_RANKS], left = -e->taken;
    if (e->flying)
        return ring_fail(r, "an exchange was started, and nobody waited for it");
    if (mpi_tell_counts(r, sent_to_me) != 0)
        return -1;
    for (int rank = 0; rank < e->world; rank++)
        left += sent_to_me[rank];
    return left == 0 ? 0 : fail_left_over(r, left);
}

/* --- between two runs --------------------------------------------------------------------------*/

/* Between two runs rank 0 asks the oracle and writes rows, for seconds or minutes; the others stand
 * here until it says that the next case begins, or that there is none. Only rank 0 opens the files
 * that results go to, and only rank 0 asks the oracle, so only rank 0 may find that a case cannot
 * run. It has told the user why, and the others pass over that line, or end, without a word. */
int mpi_go(MpiEnd *e, int next)
{
    MPI_Request request;
    MpiNap n = mpi_nap_begin();
    static int said[2]; /* by rank 0: its next run's line, 0 when this rank is there, and number */
    int done = said[0] > 0, code = MPI_SUCCESS;
    char text[128];
    heart_place(e->board, e->rank, (HeartPlace){RING_SETUP, e->runs > 0, HEART_IDLE, 0, 0});
    if (!done) {
        said[0] = ring_mpi_line(), said[1] = next;
        code = MPI_Ibcast(said, 2, MPI_INT, 0, e->control, &request);
    }
    while (code == MPI_SUCCESS && !done) {
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done)
            mpi_nap(&n);
    }
    if (code != MPI_SUCCESS) {
        snprintf(text, sizeof text, "rank %d, between two runs: MPI lost what rank 0 said",
                 e->rank);
        mpi_abort(text);
    }
    if (next != MPI_ENDS && said[0] > ring_mpi_line())
        return MPI_PASSED;
    said[0] = 0;
    if (said[1] != next && said[1] != MPI_GIVES_UP) {
        snprintf(text, sizeof text, "rank %d, between two runs: it %s while rank 0 %s", e->rank,
                 next ? "begins one" : "ends", said[1] ? "begins another" : "ends");
        mpi_abort(text);
    }
    return said[1];
}

void mpi_begin(MpiEnd *e, RingRank *r)
{
    r->endpoint = e;
    e->timeout_s = r->plan->setup.timeout_s;
    memset(e->sent, 0, sizeof e->sent);
    e->taken = 0;
    e->runs++;
    mpi_be_at(r, HEART_COMPUTE, 0, 0);
}
