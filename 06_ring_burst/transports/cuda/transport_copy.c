/* SPDX-License-Identifier: MIT
 *
 * transport_copy.c: --link copy under mpirun: messages between processes as copies between their
 * GPUs.
 *
 * Only words travel over MPI, a few hundred bytes for each message; the data goes from one GPU's
 * memory to the other's:
 *
 *     sender                                receiver
 *     ring_start: notice ---------------->  queues the copy, behind both ranks' work
 *                 receipt <---------------- when that is done
 *     ring_wait:  queues what comes after   ring_wait: queues what comes after
 *
 * Hosts wait for words here, never for data: a receipt says that the copy is in a queue, and by
 * which event the sender's GPU will know of its end. So both hosts run ahead of their GPUs.
 *
 * Whoever waits for one exchange looks after all that are open: a rank whose neighbour waits for
 * the receipt of another one would otherwise wait for that neighbour, and it for him.
 *
 * All else, barriers, results, failures, is the mpi transport's, the sentences of a rank that waits
 * too long as well: to MPI a notice is K, and a receipt is K being taken.
 *
 * Interface: ring_copy_join (messages_mpi.h).
 */
#include <string.h>

#include "transports/cuda/share.h"
#include "transports/mpi/messages_mpi.h"

typedef struct CopyPart { /* one transfer */
    MpiTicket *in, *out;  /* words on their way; NULL: none, or not any more */
    ShareNotice notice;
    ShareReceipt receipt;
    void *arrived; /* event of the copy's end; NULL: it is not queued yet */
} CopyPart;

typedef struct CopyTicket {
    struct CopyTicket *next;
    const RingTransfer *list;
    int count, ready; /* event: all work asked for before ring_start is done */
    CopyPart part[];
} CopyTicket;

static CopyTicket *open_tickets; /* of the one rank of this process, the oldest first */

/* --- words -------------------------------------------------------------------------------------*/

static MpiTicket *post(RingRank *r, const RingTransfer *t, int sends, void *words, size_t bytes,
                       int tag)
{
    const RingTransfer message = {.sends = sends,
                                  .peer = t->peer,
                                  .tensor = (RingTensor)(tag + (int)t->tensor),
                                  .data = words,
                                  .bytes = bytes};
    return mpi_post(r, &message, 1);
}

/* A sender posts the receive for its receipt at once; the receipt itself is sent by `came`. */
static int post_part(RingRank *r, const RingTransfer *t, int ready, CopyPart *p)
{
    if (t->sends) {
        if (cuda_share_announce(r, t->data, t->bytes, ready, &p->notice) != 0)
            return -1;
        p->in = post(r, t, 0, &p->receipt, sizeof p->receipt, MPI_RECEIPT_TAG);
        p->out = p->in ? post(r, t, 1, &p->notice, sizeof p->notice, 0) : NULL;
        return p->out ? 0 : -1;
    }
    p->in = post(r, t, 0, &p->notice, sizeof p->notice, 0);
    return p->in ? 0 : -1;
}

/* A notice: queue the copy and say so. A receipt: the copy is queued over there. */
static int came(RingRank *r, const CopyTicket *ticket, const RingTransfer *t, CopyPart *p)
{
    if (t->sends) {
        p->arrived = cuda_share_arrived(r, t->peer, &p->receipt);
        return p->arrived ? 0 : -1;
    }
    if (p->notice.bytes != t->bytes)
        return ring_fail(r, "%s from rank %d: found %zu bytes, expected were %zu",
                         ring_tensor_name(t->tensor), t->peer, (size_t)p->notice.bytes, t->bytes);
    p->arrived = cuda_share_take(r, t->peer, &p->notice, t->data, ticket->ready, &p->receipt);
    if (p->arrived)
        p->out = post(r, t, 1, &p->receipt, sizeof p->receipt, MPI_RECEIPT_TAG);
    return p->out ? 0 : -1;
}

/* What has come by now, of all that is open. After a failure the tickets of MPI are gone: whoever
 * gets -1 must not look at them any more. */
static int look_after_all(RingRank *r)
{
    for (CopyTicket *ticket = open_tickets; ticket; ticket = ticket->next)
        for (int i = 0; i < ticket->count; i++) {
            CopyPart *p = &ticket->part[i];
            const int sent = p->out ? mpi_test(r, p->out) : 0;
            const int got = sent >= 0 && p->in ? mpi_test(r, p->in) : 0;
            if (sent < 0 || got < 0)
                return -1;
            p->out = sent ? NULL : p->out;
            p->in = got ? NULL : p->in;
            if (got && came(r, ticket, &ticket->list[i], p) != 0)
                return -1;
        }
    return 0;
}

/* --- start, wait -------------------------------------------------------------------------------*/

static int copy_start(RingRank *r, RingExchange *x)
{
    CopyTicket *ticket = ring_keep(r, sizeof *ticket + (size_t)x->count * sizeof ticket->part[0]);
    CopyTicket **last = &open_tickets;
    if (!ticket)
        return -1;
    ticket->list = x->list;
    ticket->count = x->count;
    ticket->ready = cuda_share_ready(r, x->list, x->count);
    if (ticket->ready < 0)
        return -1;
    for (int i = 0; i < x->count; i++)
        if (post_part(r, &x->list[i], ticket->ready, &ticket->part[i]) != 0)
            return -1;
    while (*last)
        last = &(*last)->next;
    *last = ticket;
    x->ticket = ticket;
    return look_after_all(r);
}

static MpiTicket *first_pending(const CopyTicket *ticket)
{
    for (int i = 0; i < ticket->count; i++)
        if (ticket->part[i].in || ticket->part[i].out)
            return ticket->part[i].in ? ticket->part[i].in : ticket->part[i].out;
    return NULL;
}

static void take_out(const CopyTicket *ticket)
{
    CopyTicket **at = &open_tickets;
    while (*at != ticket)
        at = &(*at)->next;
    *at = ticket->next;
}

/* "Wait": until all copies are queued somewhere; this rank's later work is queued behind them. */
static int copy_wait(RingRank *r, RingExchange *x)
{
    CopyTicket *ticket = x->ticket;
    const MpiTicket *pending;
    const MpiPart *shown = NULL;
    MpiNap nap = mpi_nap_begin();
    if (look_after_all(r) != 0)
        return -1;
    while ((pending = first_pending(ticket)) != NULL)
        if (mpi_turn(r, pending, &nap, &shown) != 0 || look_after_all(r) != 0)
            return -1;
    mpi_be_at(r, HEART_COMPUTE, 0, 0);
    take_out(ticket);
    for (int i = 0; i < ticket->count; i++)
        if (r->backend->follow(r, &x->list[i], cuda_share_event(r, ticket->ready),
                               ticket->part[i].arrived) != 0)
            return -1;
    ring_unkeep(r, ticket);
    return 0;
}

int ring_copy_join(RingRank *r)
{
    static const RingCarrier copies = {copy_start, copy_wait, NULL};
    const HeartBoard *board = ((const MpiEnd *)r->endpoint)->board;
    for (int peer = 0; peer < r->world; peer++)
        if (board->slot[peer].state == HEART_ABSENT)
            return ring_fail(r,
                             "rank %d is on another machine, whose GPUs' memory --link copy cannot "
                             "reach; accepted there is --link nccl",
                             peer);
    open_tickets = NULL; /* what a run that failed left behind is freed with its log */
    r->carrier = &copies;
    return 0;
}
