/* SPDX-License-Identifier: MIT
 *
 * transport_nccl.cu: messages between GPUs by NCCL.
 *
 * ncclSend and ncclRecv are kernels: they wait in a stream for their turn, and occupy a few
 * multiprocessors while they copy. A message that is to travel beside the attention therefore has a
 * stream of its own, and two events tie it to the stream of work:
 *
 *     work      ... attend(t-1) | ready ------------ attend(t) ------------ | attend(t+1)
 *     messages                  +-> group of sends and receives --> arrived +
 *
 * "ready": what is sent has been computed, and what is received into is not read any more.
 * "arrived": the next step may use it. All messages of an exchange form one NCCL group: a ring of
 * single sends, each waiting for its receiver, would wait for ever.
 *
 * How many multiprocessors they occupy is left to NCCL: up to 32 here. A block of the Hopper
 * kernels fills a multiprocessor, and one that finds none waits until the message is through. Many
 * blocks make that short, and few would make it long (docs/lab/06_several_gpus.md).
 *
 * The communicator is non-blocking: a call may answer "in progress", and is asked again until the
 * time-out; a rank that finds an error, or hears of one, aborts the communicator, which ends the
 * kernels that wait for a dead peer.
 *
 * Interface: transport_nccl.h.
 */
#include <nccl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/backend_cuda.h"
#include "transports/cuda/transport_nccl.h"

typedef struct NcclEnd {
    ncclComm_t comm;
    int aborted;
} NcclEnd;

typedef struct NcclTicket {
    cudaEvent_t ready, arrived;
} NcclTicket;

static NcclEnd *end_of(RingRank *r)
{
    return (NcclEnd *)r->carrier_end;
}

/* Ends the kernels that wait for a peer. A kernel that waits for a peer does so on the GPU, where
 * no time-out of ours reaches it. Aborting the communicator is the only way to make it return. */
static void abandon(RingRank *r)
{
    NcclEnd *end = end_of(r);
    if (end->comm && !end->aborted) {
        end->aborted = 1;
        (void)ncclCommAbort(end->comm);
    }
}

/* Until the communicator has done what `answer` left in progress. While it waits it looks round for
 * failures of others: the reason why a communicator does not answer is usually a rank that is
 * gone. */
static int settle(RingRank *r, ncclResult_t answer, const char *what)
{
    const double start = ring_now_ms(), limit = r->plan->setup.timeout_s * 1e3;
    NcclEnd *end = end_of(r);
    while (answer == ncclInProgress) {
        if (r->transport->look && r->transport->look(r) != 0)
            return -1;
        if (ring_now_ms() - start > limit)
            return ring_fail(r, "%s: no answer from NCCL in %g s", what, limit / 1e3);
        sched_yield();
        if (ncclCommGetAsyncError(end->comm, &answer) != ncclSuccess)
            return ring_fail(r, "%s: NCCL does not answer", what);
    }
    return answer == ncclSuccess
               ? 0
               : ring_fail(r, "%s: NCCL says: %s", what, ncclGetErrorString(answer));
}

/* --- messages ----------------------------------------------------------------------------------*/

/* A send and a receive meet by their order: the k-th send from rank 1 to rank 2 fits the k-th
 * receive of rank 2 from rank 1. NCCL has no tags. So both ends must name the tensors in the same
 * order, which they do, since both run the same lines. */
static int queue_transfer(RingRank *r, const RingTransfer *t, ncclResult_t *answer)
{
    CudaBackend *s = (CudaBackend *)r->backend_state;
    NcclEnd *end = end_of(r);
    if (t->sends)
        *answer = ncclSend(t->data, t->bytes, ncclUint8, t->peer, end->comm, s->messages);
    else
        *answer = ncclRecv(t->data, t->bytes, ncclUint8, t->peer, end->comm, s->messages);
    return *answer == ncclSuccess || *answer == ncclInProgress ? 0 : -1;
}

/* All messages in one group. */
static int queue_group(RingRank *r, const RingExchange *x)
{
    ncclResult_t answer = ncclSuccess;
    if (settle(r, ncclGroupStart(), "a group of messages") != 0)
        return -1;
    for (int i = 0; i < x->count; i++)
        if (queue_transfer(r, &x->list[i], &answer) != 0)
            break;
    const ncclResult_t grouped = ncclGroupEnd();
    if (settle(r, answer == ncclInProgress ? ncclSuccess : answer, "a message") != 0)
        return -1;
    return settle(r, grouped, "a group of messages");
}

/* An event is a flag in a queue. cudaEventRecord(ready, work): raise it when the work asked for so
 * far is done. cudaStreamWaitEvent(messages, ready): nothing that is put into `messages` from here
 * on begins before. The host does not wait for either: it goes on, ahead of the GPU. */
static int start(RingRank *r, RingExchange *x)
{
    CudaBackend *s = (CudaBackend *)r->backend_state;
    NcclTicket *ticket = (NcclTicket *)ring_keep(r, sizeof *ticket);
    if (!ticket)
        return -1;
    x->ticket = ticket;
    for (int i = 0; i < x->count; i++)
        if (cuda_backend_settle(r, x->list[i].data, x->list[i].bytes) != 0)
            return -1;
    if (cuda_backend_event(r, &ticket->ready) != 0 ||
        cuda_backend_event(r, &ticket->arrived) != 0 ||
        cuda_backend_try(r, cudaEventRecord(ticket->ready, s->before), "an event") != 0 ||
        cuda_backend_try(r, cudaStreamWaitEvent(s->messages, ticket->ready, 0), "messages") != 0 ||
        queue_group(r, x) != 0)
        return -1;
    return cuda_backend_try(r, cudaEventRecord(ticket->arrived, s->messages), "an event");
}

/* A message that does not come is told as the first one of its group that this rank should get.
 * "Wait" for the GPU, not for the host: later work is queued behind `arrived`. */
static int wait_for(RingRank *r, RingExchange *x)
{
    NcclTicket *ticket = (NcclTicket *)x->ticket;
    ncclResult_t state = ncclSuccess;
    int first = 0;
    if (ncclCommGetAsyncError(end_of(r)->comm, &state) != ncclSuccess ||
        (state != ncclSuccess && state != ncclInProgress))
        return ring_fail(r, "NCCL says: %s", ncclGetErrorString(state));
    while (first < x->count - 1 && x->list[first].sends)
        first++;
    const int status = cuda_backend_await(r, &x->list[first], ticket->ready, ticket->arrived);
    ring_unkeep(r, ticket);
    return status;
}

static const RingCarrier carrier = {start, wait_for, abandon};

/* --- joining -----------------------------------------------------------------------------------*/

/* Rank 0 makes the name of the communicator, the others hear it over the host's transport. */
static int share_name(RingRank *r, ncclUniqueId *name)
{
    if (r->rank > 0)
        return ring_host_receive(r, 0, name, sizeof *name);
    if (ncclGetUniqueId(name) != ncclSuccess)
        return ring_fail(r, "NCCL cannot begin");
    for (int peer = 1; peer < r->world; peer++)
        if (ring_host_send(r, peer, name, sizeof *name) != 0)
            return -1;
    return 0;
}

/* blocking = 0: calls return at once with "in progress", and settle asks until they are done. With
 * blocking calls a rank that dies while the communicator is made would stop all others for ever. */
int ring_nccl_join(RingRank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId name;
    NcclEnd *end = (NcclEnd *)calloc(1, sizeof *end);
    if (!end)
        return ring_fail(r, "out of memory");
    memset(&name, 0, sizeof name);
    if (share_name(r, &name) != 0) {
        free(end);
        return -1;
    }
    r->carrier = &carrier;
    r->carrier_end = end;
    config.blocking = 0;
    return settle(r, ncclCommInitRankConfig(&end->comm, r->world, name, r->rank, &config),
                  "a communicator");
}

/* Finalize waits until all messages are through; abort does not. */
void ring_nccl_part(RingRank *r)
{
    NcclEnd *end = end_of(r);
    if (!end)
        return;
    if (end->comm && !end->aborted) {
        if (!r->failed)
            (void)settle(r, ncclCommFinalize(end->comm), "the end of a communicator");
        if (!end->aborted)
            (void)(r->failed ? ncclCommAbort(end->comm) : ncclCommDestroy(end->comm));
    }
    r->carrier = NULL;
    r->carrier_end = NULL;
    free(end);
}
