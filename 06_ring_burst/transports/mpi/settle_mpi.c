/* SPDX-License-Identifier: MIT
 *
 * settle_mpi.c: the end of a run over MPI, good or bad, and what ranks say to each other between
 * two runs.
 *
 * After a run no message may be left over: the next run would take it for one of its own. After a
 * failure there are many, and some on their way into memory that is about to be freed. So all ranks
 * settle:
 *
 *     cancel the receives that nobody has answered;
 *     take whatever arrives and throw it away, until the own sends are all taken;
 *     then tell each rank how many messages it was sent, and stop when all of them were taken.
 *
 * (Telling is an MPI_Ialltoall: it ends only when everybody has come that far, and everybody goes
 * on taking meanwhile, so nobody waits for a rank that waits for him.) After a run that went well
 * the same says whether a message was left over.
 *
 * A rank that does not come cannot be helped: the user is told, and MPI_Abort ends all processes.
 *
 * Interface: mpi_end_open, mpi_end_close, mpi_settle, mpi_go ... (messages_mpi.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transports/mpi/mpi_end.h"
#include "transports/mpi/world_mpi.h"

enum { GO_TAG = 1, EXIT_STATUS = 3 /* EXIT_RUNTIME of cli.h */ };

#define PIECE_BYTES ((size_t)1 << 30) /* MPI counts in int */
#define GRACE_S     3.0               /* after a failure: how long the others may take to stop */

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
    e->settled = 1;
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

int mpi_end_rank(const MpiEnd *e)
{
    return e->rank;
}

int mpi_end_world(const MpiEnd *e)
{
    return e->world;
}

HeartBoard *mpi_end_board(const MpiEnd *e)
{
    return e->board;
}

void mpi_abort(const char *text)
{
    ring_mpi_report(text);
    MPI_Abort(MPI_COMM_WORLD, EXIT_STATUS);
    abort(); /* MPI_Abort does not return */
}

/* --- settling ----------------------------------------------------------------------------------*/

typedef struct Scrap { /* a message that nobody wants any more */
    MPI_Request request;
    char *data;
    int count, peer, tag, bytes; /* how many there were; of the last one */
} Scrap;

/* A receive can be taken back as long as nothing has come for it. A send cannot (in practice), so
 * those have to be received by somebody. */
static void cancel_receives(MpiEnd *e)
{
    MpiTicket *t;
    int i;
    for (t = e->flying; t; t = t->next)
        for (i = 0; i < t->count; i++)
            if (t->request[i] != MPI_REQUEST_NULL && !t->part[i].sends)
                MPI_Cancel(&t->request[i]);
}

/* What is under way and done by now. Returns how many messages are not. The ticket is freed inside
 * the loop, hence `next`. */
static int look_at_all(MpiEnd *e)
{
    MpiTicket *t, *next;
    int left = 0, done, i;
    for (t = e->flying; t; t = next) {
        next = t->next;
        MPI_Testsome(t->count, t->request, &done, t->index, t->status);
        for (i = 0; i < done; i++) {
            int cancelled = 0;
            if (t->part[t->index[i]].sends)
                continue;
            MPI_Test_cancelled(&t->status[i], &cancelled);
            e->taken += !cancelled;
        }
        t->left = done == MPI_UNDEFINED ? 0 : t->left - done;
        left += t->left;
        if (t->left == 0)
            mpi_ticket_free(e, t);
    }
    return left;
}

/* Takes one message at a time: MPI_Improbe finds it, MPI_Imrecv receives just that one. */
static void take_scrap(MpiEnd *e, Scrap *s)
{
    MPI_Message message;
    MPI_Status status;
    int found = 1;
    while (found) {
        if (s->data) {
            MPI_Test(&s->request, &found, MPI_STATUS_IGNORE);
            if (!found)
                return;
            free(s->data);
            s->data = NULL;
            e->taken++;
        }
        MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, e->messages, &found, &message, &status);
        if (!found)
            return;
        MPI_Get_count(&status, MPI_BYTE, &s->bytes);
        s->peer = status.MPI_SOURCE;
        s->tag = status.MPI_TAG;
        s->count++;
        s->data = malloc((size_t)s->bytes + 1);
        if (!s->data)
            mpi_abort("out of memory for messages that were left over");
        MPI_Imrecv(s->data, s->bytes, MPI_BYTE, &message, &s->request);
    }
}

/* Somebody does not come. The one that failed first knows best why, so the others wait a second
 * longer. */
static void give_up_if_late(MpiEnd *e, RingRank *r, MpiNap *n, int *hurried)
{
    const double timeout = r->plan->setup.timeout_s;
    const int first = heart_failed(e->board);
    char culprit[128];
    if (first >= 0 && !*hurried) {
        *n = mpi_nap_begin();
        *hurried = 1;
    }
    if (first < 0 && mpi_silence(e, n) > timeout) {
        heart_blame(e->board, r->rank, culprit, sizeof culprit);
        ring_fail(r, "waiting for all ranks at the end of the run: not all came in %g s%s", timeout,
                  culprit);
        mpi_abort(r->failure);
    }
    if (first >= 0 && mpi_nap_seconds(n) >
                          (timeout < GRACE_S ? timeout : GRACE_S) + (first == e->rank ? 0.0 : 1.0))
        mpi_abort(r->failed ? r->failure : "a rank has failed, and another does not stop");
}

/* All ranks turn in this loop until all can leave it. What makes it end: each takes whatever comes,
 * so every send ends; then each tells the others how many it has sent, and who has taken that many
 * is done. */
int mpi_settle(RingRank *r)
{
    MpiEnd *e = r->endpoint;
    MPI_Request question = MPI_REQUEST_NULL;
    Scrap scrap = {MPI_REQUEST_NULL, NULL, 0, 0, 0, 0};
    MpiNap n = mpi_nap_begin();
    int64_t sent_to_me[RING_MAX_RANKS], due = 0;
    const int forgotten = e->flying != NULL;
    int rank, asked = 0, answered = 0, hurried = 0;
    if (e->settled)
        return 0;
    e->settled = 1;
    if (!r->failed)
        mpi_be_at(r, HEART_MEET, 0, 0);
    cancel_receives(e);
    while (!answered || e->taken < due) {
        take_scrap(e, &scrap);
        if (look_at_all(e) == 0 && !asked) {
            MPI_Ialltoall(e->sent, 1, MPI_INT64_T, sent_to_me, 1, MPI_INT64_T, e->control,
                          &question);
            asked = 1;
        }
        if (asked && !answered) {
            MPI_Test(&question, &answered, MPI_STATUS_IGNORE);
            for (rank = 0; answered && rank < e->world; rank++)
                due += sent_to_me[rank];
        }
        give_up_if_late(e, r, &n, &hurried);
        mpi_nap(&n);
    }
    if (r->failed)
        return -1;
    if (forgotten)
        return ring_fail(r, "an exchange was started, and nobody waited for it");
    if (scrap.count > 0)
        return ring_fail(r, "%d message%s left over, the last one %s from rank %d, %d bytes",
                         scrap.count, scrap.count == 1 ? " was" : "s were", mpi_tag_name(scrap.tag),
                         scrap.peer, scrap.bytes);
    return 0;
}

/* --- between two runs --------------------------------------------------------------------------*/

/* All ranks are on their way to here. As mpi_finish: no call of MPI that could wait for ever. */
static void await(MpiEnd *e, MPI_Request *request, const char *what)
{
    MpiNap n = mpi_nap_begin();
    int done = 0;
    heart_place(e->board, e->rank, (HeartPlace){RING_SETUP, 0, HEART_MEET, 0, 0});
    while (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        if (mpi_silence(e, &n) > e->timeout_s) {
            char text[512], culprit[128];
            heart_blame(e->board, e->rank, culprit, sizeof culprit);
            snprintf(text, sizeof text,
                     "rank %d, at the end of a run: waiting for %s: not all ranks came in %g s%s",
                     e->rank, what, e->timeout_s, culprit);
            mpi_abort(text);
        }
        mpi_nap(&n);
    }
}

/* Between two runs rank 0 asks the oracle and writes rows, for seconds or minutes; the others stand
 * here until it says that the next case begins, or that there is none. Rank 0 alone opens the files
 * that results go to, so it alone may find that a case cannot be: then the others end with it, and
 * what it has said to the user is all that there is to say. */
int mpi_go(MpiEnd *e, int next)
{
    MPI_Request request;
    MpiNap n = mpi_nap_begin();
    int rank, said = next, done = 0;
    char text[128];
    heart_place(e->board, e->rank, (HeartPlace){RING_SETUP, e->runs > 0, HEART_IDLE, 0, 0});
    if (e->rank == 0) {
        heart_clear(e->board);
        for (rank = 1; rank < e->world; rank++)
            MPI_Send(&next, 1, MPI_INT, rank, GO_TAG, e->control); /* short: does not block */
        return next;
    }
    MPI_Irecv(&said, 1, MPI_INT, 0, GO_TAG, e->control, &request);
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        mpi_nap(&n);
    if (said != next && said != MPI_GIVES_UP) {
        snprintf(text, sizeof text, "rank %d, between two runs: it %s while rank 0 %s", e->rank,
                 next ? "begins one" : "ends", said ? "begins another" : "ends");
        mpi_abort(text);
    }
    return said;
}

void mpi_begin(MpiEnd *e, RingRank *r)
{
    r->endpoint = e;
    e->timeout_s = r->plan->setup.timeout_s;
    memset(e->sent, 0, sizeof e->sent);
    e->taken = 0;
    e->settled = 0;
    e->runs++;
    mpi_be_at(r, HEART_COMPUTE, 0, 0);
}

/* Has anybody failed? All ranks get the same answer, so all of them go the same way from here. */
int mpi_worst(MpiEnd *e, int failed)
{
    MPI_Request request;
    int worst = failed;
    MPI_Iallreduce(&failed, &worst, 1, MPI_INT, MPI_MAX, e->control, &request);
    await(e, &request, "the outcome of the run");
    return worst;
}

/* all[rank] of every rank to rank 0, as bytes: all ranks run one program on one kind of CPU. */
void mpi_collect(MpiEnd *e, RingRankReport *all)
{
    MPI_Request request;
    const int bytes = (int)sizeof *all;
    MPI_Igather(e->rank == 0 ? MPI_IN_PLACE : &all[e->rank], bytes, MPI_BYTE, all, bytes, MPI_BYTE,
                0, e->control, &request);
    await(e, &request, "the reports of all ranks");
}
