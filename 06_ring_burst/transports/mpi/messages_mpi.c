/* SPDX-License-Identifier: MIT
 *
 * messages_mpi.c: messages between processes, by MPI_Isend and MPI_Irecv, and the end of a run.
 *
 * MPI promises what a ring needs: between two processes, messages with the same tag arrive in the
 * order in which they were sent (the tag is the tensor), and a non-blocking call returns at once.
 * What it does not promise is an end. MPI_Wait waits for ever for somebody who is gone, and burns a
 * core meanwhile. So every wait here is a loop around MPI_Testsome:
 *
 *     test; all there? done. Too late? Say who is missing. Else a nap.
 *
 * The nap matters: with 8 ranks on 2 cores a rank that spins takes the time of the one for whom it
 * waits. And one more thing that MPI does not promise: that messages move while a rank computes.
 * OpenMPI moves long ones only inside of its own calls. Bytes are hidden behind arithmetic by
 * hardware that copies by itself; that is why the overlap is measured on GPUs, not here.
 *
 * After a run no message may be left over: the next run would take it for one of its own. So each
 * rank learns how many messages it was sent (an MPI_Ialltoall), and compares with what it has
 * taken.
 *
 * A rank that fails, or whose neighbour does not come, tells the user why, and MPI_Abort ends all
 * processes: nobody has to bring the others to an end, no wait has to look for failures, and
 * nothing is left to clean up.
 *
 * Interface: see messages_mpi.h.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "transports/mpi/messages_mpi.h"
#include "transports/mpi/world_mpi.h"

enum { EXIT_STATUS = 3 /* EXIT_RUNTIME of cli.h */ };

#define PIECE_BYTES ((size_t)1 << 30) /* MPI counts in int */
#define MODESTY_S   0.5               /* how long somebody else may speak first */

/* At first it only lets others run, then it sleeps, up to a millisecond. */
static void nap(MpiNap *n)
{
    struct timespec time = {0, 20000};
    if (n->turns++ < 50) {
        sched_yield();
        return;
    }
    time.tv_nsec *= n->turns < 100 ? n->turns - 50 : 50;
    nanosleep(&time, NULL);
}

MpiNap mpi_nap_begin(void)
{
    return (MpiNap){ring_now_ms(), 0};
}

/* Time since the rank began to wait. */
static double nap_seconds(const MpiNap *n)
{
    return (ring_now_ms() - n->begin) / 1e3;
}

/* A receipt belongs to its tensor. */
static int tensor_of(int tag)
{
    return tag >= MPI_RECEIPT_TAG ? tag - MPI_RECEIPT_TAG : tag;
}

/* Who waits for a receipt is the one who sends the tensor. */
static int is_sender(const MpiPart *p)
{
    return p->tag >= MPI_RECEIPT_TAG ? !p->sends : p->sends;
}

static const char *tag_name(int tag)
{
    return ring_tensor_name((RingTensor)tensor_of(tag));
}

void mpi_be_at(RingRank *r, HeartOperation operation, int tensor, int peer)
{
    const MpiEnd *e = r->endpoint;
    heart_place(e->board, r->rank, (HeartPlace){r->pass, r->step, operation, tensor, peer});
}

/* --- tickets -----------------------------------------------------------------------------------*/

/* Four arrays, because MPI wants it so: requests in one piece, and beside them where it writes
 * which of them are done and what became of them. All open tickets hang in a list, so that
 * mpi_settle finds those that a failed rank has left behind. */
static MpiTicket *new_ticket(RingRank *r, int count)
{
    MpiEnd *e = r->endpoint;
    MpiTicket *t = calloc(1, sizeof *t);
    const size_t n = (size_t)(count > 0 ? count : 1);
    if (!t)
        return ring_fail(r, "out of memory for %d messages", count), NULL;
    t->part = calloc(n, sizeof *t->part);
    t->request = calloc(n, sizeof *t->request);
    t->status = calloc(n, sizeof *t->status);
    t->index = calloc(n, sizeof *t->index);
    t->next = e->flying;
    e->flying = t;
    if (!t->part || !t->request || !t->status || !t->index)
        return ring_fail(r, "out of memory for %d messages", count), NULL;
    return t;
}

static void ticket_free(MpiEnd *e, MpiTicket *t)
{
    MpiTicket **at = &e->flying;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    free(t->part);
    free(t->request);
    free(t->status);
    free(t->index);
    free(t);
}

/* Errors come back as numbers and do not end the program, since the communicator was told so
 * (MPI_ERRORS_RETURN): the sentence that names rank and step is ours to say. */
static int fail_with(RingRank *r, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    return ring_fail(r, "%s: MPI says %.100s", what, text);
}

/* Starts one message as pieces that MPI can count. MPI counts bytes in an int, so a message of more
 * than 1 GiB goes in pieces; those of one message have the same tag, and MPI keeps their order.
 * `tag` says which tensor, `x->peer` which rank: MPI finds the receive that fits both, whatever
 * else is on its way. */
static int post(RingRank *r, MpiTicket *t, const RingTransfer *x, int transfer)
{
    MpiEnd *e = r->endpoint;
    const int tag = (int)x->tensor;
    char *data = x->data;
    size_t left = x->bytes;
    while (left > 0) {
        const int bytes = (int)(left < e->piece ? left : e->piece);
        MPI_Request *request = &t->request[t->count];
        const int code = x->sends
                             ? MPI_Isend(data, bytes, MPI_BYTE, x->peer, tag, e->messages, request)
                             : MPI_Irecv(data, bytes, MPI_BYTE, x->peer, tag, e->messages, request);
        if (code != MPI_SUCCESS)
            return fail_with(r, tag_name(tag), code);
        t->part[t->count++] = (MpiPart){x->sends, x->peer, tag, bytes, transfer};
        t->left++;
        e->sent[x->peer] += x->sends;
        data += bytes;
        left -= (size_t)bytes;
    }
    return 0;
}

/* All of a list; receives first, so that what arrives has a place. A message that comes before its
 * receive is posted has to be put somewhere: MPI copies it into a buffer of its own, and copies it
 * again when the receive comes; or, if it is long, it lets the sender wait. A receive that is
 * posted first costs neither. */
MpiTicket *mpi_post(RingRank *r, const RingTransfer *list, int count)
{
    MpiEnd *e = r->endpoint;
    MpiTicket *t;
    int i, sends, parts = 0;
    for (i = 0; i < count; i++)
        parts += (int)((list[i].bytes + e->piece - 1) / e->piece);
    t = new_ticket(r, parts);
    if (!t)
        return NULL;
    for (sends = 0; sends <= 1; sends++)
        for (i = 0; i < count; i++)
            if (list[i].sends == sends && post(r, t, &list[i], i) != 0)
                return NULL;
    return t;
}

/* One message is complete: is it what was expected? */
static int land(RingRank *r, const MpiPart *p, const MPI_Status *status)
{
    int bytes = 0;
    if (p->sends && status->MPI_ERROR != MPI_SUCCESS)
        return fail_with(r, tag_name(p->tag), status->MPI_ERROR);
    if (p->sends)
        return 0;
    ((MpiEnd *)r->endpoint)->taken++;
    if (status->MPI_ERROR == MPI_ERR_TRUNCATE)
        return ring_fail(r, "%s from rank %d is longer than the %d bytes that were due",
                         tag_name(p->tag), p->peer, p->bytes);
    if (status->MPI_ERROR != MPI_SUCCESS)
        return fail_with(r, tag_name(p->tag), status->MPI_ERROR);
    MPI_Get_count(status, MPI_BYTE, &bytes);
    if (bytes != p->bytes)
        return ring_fail(r, "%s from rank %d has %d bytes, %d were due", tag_name(p->tag), p->peer,
                         bytes, p->bytes);
    return 0;
}

/* What has become complete by now. list (may be NULL): whose transfers get their time. MPI_Testsome
 * asks and returns at once. It is also the place where OpenMPI moves bytes. */
static int look(RingRank *r, MpiTicket *t, RingTransfer *list)
{
    int i, done = 0, result = 0;
    const int code = MPI_Testsome(t->count, t->request, &done, t->index, t->status);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS)
        return fail_with(r, "MPI_Testsome", code);
    for (i = 0; i < done; i++) {
        if (code == MPI_SUCCESS)
            t->status[i].MPI_ERROR = MPI_SUCCESS; /* MPI sets it only when something is wrong */
        if (list)
            list[t->part[t->index[i]].transfer].end_ms = ring_now_ms();
    }
    t->left = done == MPI_UNDEFINED ? 0 : t->left - done;
    for (i = 0; i < done && result == 0; i++)
        result = land(r, &t->part[t->index[i]], &t->status[i]);
    return result;
}

/* --- waiting -----------------------------------------------------------------------------------*/

/* For the sentence: what the rank is waiting for. */
static const MpiPart *first_pending(const MpiTicket *t)
{
    int i = 0;
    while (i < t->count - 1 && t->request[i] == MPI_REQUEST_NULL)
        i++;
    return &t->part[i];
}

/* Often several ranks wait too long at the same time, all because of one of them. So a rank that
 * finds another waiting rank further behind lets that one speak first, for a moment. */
static int too_late(RingRank *r, const MpiPart *p, double seconds)
{
    const MpiEnd *e = r->endpoint;
    const double limit = r->plan->setup.timeout_s;
    char why[128];
    const int culprit = heart_blame(e->board, r->rank, why, sizeof why);
    if (culprit != r->rank && seconds < limit + MODESTY_S &&
        heart_read(e->board, culprit).operation >= HEART_RECEIVE)
        return 0;
    if (p->tag == MPI_MEETING_TAG)
        return ring_fail(r, "waiting for all ranks: not all came in %g s%s", limit, why);
    return ring_fail(r, "%s %s %s rank %d: %s in %g s%s", is_sender(p) ? "sending" : "waiting for",
                     tag_name(p->tag), is_sender(p) ? "to" : "from", p->peer,
                     is_sender(p) ? "not taken" : "nothing came", limit, why);
}

/* Where many ranks share few cores, a rank that is slow is not one that is gone: time counts from
 * the last sign of life of any rank. */
static double silence_of(const MpiEnd *e, const MpiNap *n)
{
    const double waited = nap_seconds(n), silence = heart_silence(e->board);
    return waited < silence ? waited : silence;
}

int mpi_turn(RingRank *r, const MpiTicket *t, MpiNap *n, const MpiPart **shown)
{
    const MpiEnd *e = r->endpoint;
    const MpiPart *p = first_pending(t);
    if (p != *shown)
        mpi_be_at(r,
                  p->tag == MPI_MEETING_TAG ? HEART_MEET
                  : is_sender(p)            ? HEART_SEND
                                            : HEART_RECEIVE,
                  tensor_of(p->tag), p->peer);
    *shown = p;
    if (silence_of(e, n) > r->plan->setup.timeout_s && too_late(r, p, silence_of(e, n)) != 0)
        return -1;
    nap(n);
    return 0;
}

/* Two ways out: all is there, or it takes too long. There is no third, and that is why nothing
 * hangs. */
static int finish_messages(RingRank *r, MpiTicket *t, RingTransfer *list)
{
    const MpiPart *shown = NULL;
    MpiNap n = mpi_nap_begin();
    while (t->left > 0) {
        if (look(r, t, list) != 0)
            return -1;
        if (t->left > 0 && mpi_turn(r, t, &n, &shown) != 0)
            return -1;
    }
    ticket_free(r->endpoint, t);
    mpi_be_at(r, HEART_COMPUTE, 0, 0);
    return 0;
}

/* Of one request, which all ranks make together and each waits for like for a message. */
static MpiTicket *new_meeting(RingRank *r)
{
    MpiTicket *t = r->failed ? NULL : new_ticket(r, 1);
    if (t) {
        t->part[0] = (MpiPart){.sends = 1, .tag = MPI_MEETING_TAG};
        t->count = t->left = 1;
    }
    return t;
}

static int mpi_barrier(RingRank *r)
{
    MpiTicket *t = new_meeting(r);
    if (!t)
        return -1;
    const int code = MPI_Ibarrier(((MpiEnd *)r->endpoint)->control, &t->request[0]);
    return code == MPI_SUCCESS ? finish_messages(r, t, NULL) : fail_with(r, "MPI_Ibarrier", code);
}

static int exchange_counts(RingRank *r, int64_t *sent_to_me)
{
    MpiEnd *e = r->endpoint;
    MpiTicket *t = new_meeting(r);
    if (!t)
        return -1;
    const int code = MPI_Ialltoall(e->sent, 1, MPI_INT64_T, sent_to_me, 1, MPI_INT64_T, e->control,
                                   &t->request[0]);
    return code == MPI_SUCCESS ? finish_messages(r, t, NULL) : fail_with(r, "MPI_Ialltoall", code);
}

int mpi_test(RingRank *r, MpiTicket *t)
{
    if (t->left > 0 && look(r, t, NULL) != 0)
        return -1;
    if (t->left > 0)
        return 0;
    ticket_free(r->endpoint, t);
    return 1;
}

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
static void abort_all(const char *text)
{
    ring_mpi_report(text);
    MPI_Abort(MPI_COMM_WORLD, EXIT_STATUS);
    abort(); /* MPI_Abort does not return */
}

/* --- the end of a run --------------------------------------------------------------------------*/

/* What was sent is complete on the other side (finish_messages has waited), so a message that
 * nobody has taken is here, or about to come. */
static int fail_left_over(RingRank *r, int64_t count)
{
    const MpiEnd *e = r->endpoint;
    MpiNap n = mpi_nap_begin();
    MPI_Status status;
    int found = 0, bytes = 0;
    while (!found && nap_seconds(&n) < e->timeout_s) {
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, e->messages, &found, &status);
        nap(&n);
    }
    if (!found)
        return ring_fail(r, "%lld messages did not come", (long long)count);
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    return ring_fail(r, "%lld message%s left over, the first one %s from rank %d, %d bytes",
                     (long long)count, count == 1 ? " was" : "s were", tag_name(status.MPI_TAG),
                     status.MPI_SOURCE, bytes);
}

int mpi_settle(RingRank *r)
{
    MpiEnd *e = r->endpoint;
    int64_t sent_to_me[RING_MAX_RANKS], left = -e->taken;
    if (e->flying)
        return ring_fail(r, "an exchange was started, and nobody waited for it");
    if (exchange_counts(r, sent_to_me) != 0)
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
            nap(&n);
    }
    if (code != MPI_SUCCESS) {
        snprintf(text, sizeof text, "rank %d, between two runs: MPI lost what rank 0 said",
                 e->rank);
        abort_all(text);
    }
    if (next != MPI_ENDS && said[0] > ring_mpi_line())
        return MPI_PASSED;
    said[0] = 0;
    if (said[1] != next && said[1] != MPI_GIVES_UP) {
        snprintf(text, sizeof text, "rank %d, between two runs: it %s while rank 0 %s", e->rank,
                 next ? "begins one" : "ends", said[1] ? "begins another" : "ends");
        abort_all(text);
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

/* --- the transport -----------------------------------------------------------------------------*/

static int mpi_start(RingRank *r, RingExchange *x)
{
    x->ticket = mpi_post(r, x->list, x->count);
    return x->ticket ? 0 : -1;
}

static int mpi_wait(RingRank *r, RingExchange *x)
{
    return finish_messages(r, x->ticket, x->list);
}

/* The other ranks wait for messages that will not come, so all end together. */
static void mpi_abandon(RingRank *r)
{
    abort_all(r->failure);
}

/* As a crash would: no MPI_Finalize, no message, no clean-up. mpirun sees the exit status and ends
 * the others. */
static void mpi_leave(RingRank *r)
{
    (void)r;
    _exit(EXIT_STATUS);
}

static void mpi_note(RingRank *r)
{
    mpi_be_at(r, HEART_COMPUTE, 0, 0);
}

const RingTransport ring_transport_mpi = {.name = "mpi",
                                          .start = mpi_start,
                                          .wait = mpi_wait,
                                          .barrier = mpi_barrier,
                                          .abandon = mpi_abandon,
                                          .leave = mpi_leave,
                                          .note = mpi_note};
