/* SPDX-License-Identifier: MIT
 *
 * transport_mpi.c: the mpi transport, put together from the messages of messages_mpi.c.
 *
 * Interface: ring_transport_mpi (messages_mpi.h).
 */
#include <unistd.h>

#include "transports/mpi/messages_mpi.h"

/* -1: each message in the channel of its own tensor. */
static int mpi_start(RingRank *r, RingExchange *x)
{
    x->ticket = mpi_post(r, x->list, x->count, -1);
    return x->ticket ? 0 : -1;
}

static int mpi_wait(RingRank *r, RingExchange *x)
{
    return mpi_finish(r, x->ticket, x->list);
}

/* One message to or from somebody, from beginning to end. */
static int talk(RingRank *r, RingTransfer transfer, int tag)
{
    MpiTicket *t;
    if (r->failed)
        return -1;
    t = mpi_post(r, &transfer, 1, tag);
    return t ? mpi_finish(r, t, NULL) : -1;
}

/* Results have a tag of their own: they must not be taken for a tensor of the next pass. */
static int mpi_host_send(RingRank *r, int peer, const void *data, size_t bytes)
{
    return talk(r, (RingTransfer){.sends = 1, .peer = peer, .data = (void *)data, .bytes = bytes},
                MPI_RESULTS_TAG);
}

static int mpi_host_receive(RingRank *r, int peer, void *data, size_t bytes)
{
    return talk(r, (RingTransfer){.peer = peer, .data = data, .bytes = bytes}, MPI_RESULTS_TAG);
}

/* Round k: a signal to the rank 2^k further on and one from the rank 2^k behind. After round k each
 * rank has heard, at second hand, of the 2^(k+1) - 1 ranks behind it; after log2 G rounds, rounded
 * up, of all. */
static int mpi_barrier(RingRank *r)
{
    char out = 1, in = 0;
    int apart;
    for (apart = 1; apart < r->world; apart *= 2) {
        const RingTransfer signals[2] = {
            {.peer = (r->rank - apart + r->world) % r->world, .data = &in, .bytes = 1},
            {.sends = 1, .peer = (r->rank + apart) % r->world, .data = &out, .bytes = 1}};
        MpiTicket *t = r->failed ? NULL : mpi_post(r, signals, 2, MPI_BARRIER_TAG);
        if (!t || mpi_finish(r, t, NULL) != 0)
            return -1;
    }
    return r->failed ? -1 : 0;
}

/* The other ranks wait for messages that will not come, so all end together. */
static void mpi_abandon(RingRank *r)
{
    mpi_abort(r->failure);
}

/* As a crash would: no MPI_Finalize, no message, no clean-up. mpirun sees the exit status and ends
 * the others. */
static void mpi_leave(RingRank *r)
{
    (void)r;
    _exit(3); /* EXIT_RUNTIME of cli.h */
}

static void mpi_note(RingRank *r)
{
    mpi_be_at(r, HEART_COMPUTE, 0, 0);
}

const RingTransport ring_transport_mpi = {.name = "mpi",
                                          .start = mpi_start,
                                          .wait = mpi_wait,
                                          .barrier = mpi_barrier,
                                          .host_send = mpi_host_send,
                                          .host_receive = mpi_host_receive,
                                          .abandon = mpi_abandon,
                                          .leave = mpi_leave,
                                          .note = mpi_note};
