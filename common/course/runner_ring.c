/* SPDX-License-Identifier: MIT
 *
 * runner_ring.c: one rank of a ring method: RingPart for the submission, and its messages. A
 * message goes through an array that the judge sees, too: the judge copies it, counts it, and hands
 * it to the other rank's process when that one asks. No rank can see another's memory.
 *
 * Interface: runner_ring.h.
 */
#include "course/runner_ring.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring_method.h"

enum { MAX_WORLD = 64 };

/* What `harness` of a part points to. */
typedef struct Mailbox {
    unsigned char *data;
    size_t bytes;
    pthread_mutex_t one_at_a_time; /* threads of a submission may send, too */
} Mailbox;

/* Tells the judge and waits for its answer. No answer: it has ended the run. */
static void tell(RunnerSays says, int peer, size_t bytes)
{
    RunnerReply r;
    char answer = 0;
    ssize_t got;
    memset(&r, 0, sizeof r);
    r.says = (int)says;
    r.number = peer;
    r.address = bytes;
    if (write(RUNNER_CONTROL, &r, sizeof r) != (ssize_t)sizeof r)
        _exit(EXIT_FAILURE);
    while ((got = read(RUNNER_CONTROL, &answer, sizeof answer)) < 0 && errno == EINTR)
        ;
    if (got != 1)
        _exit(EXIT_FAILURE);
}

static void ring_send(const RingPart *part, int to, const void *data, size_t bytes)
{
    Mailbox *mailbox = part->harness;
    pthread_mutex_lock(&mailbox->one_at_a_time);
    if (bytes <= mailbox->bytes) /* the judge refuses a larger one */
        memcpy(mailbox->data, data, bytes);
    tell(RUNNER_SENDS, to, bytes);
    pthread_mutex_unlock(&mailbox->one_at_a_time);
}

static void ring_receive(const RingPart *part, int from, void *data, size_t bytes)
{
    Mailbox *mailbox = part->harness;
    pthread_mutex_lock(&mailbox->one_at_a_time);
    tell(RUNNER_RECEIVES, from, bytes);
    memcpy(data, mailbox->data, bytes);
    pthread_mutex_unlock(&mailbox->one_at_a_time);
}

int runner_call_ring(const RunnerCall *call)
{
    static Mailbox mailbox = {.one_at_a_time = PTHREAD_MUTEX_INITIALIZER};
    const int *position[MAX_WORLD];
    RingNumbers n;
    RingPart part;
    __typeof__(ring_method_variant) *function;
    if (call->bytes != sizeof n)
        return -1;
    memcpy(&n, call->numbers, sizeof n);
    memcpy(&function, &call->function, sizeof function);
    mailbox.data = runner_pointer(call, n.mailbox);
    mailbox.bytes = (size_t)n.mailbox_bytes;
    part = (RingPart){.rank = n.rank,
                      .world = n.world,
                      .H = n.H,
                      .Hkv = n.Hkv,
                      .d = n.d,
                      .tokens = runner_pointer(call, n.tokens),
                      .position = position,
                      .left = n.left,
                      .right = n.right,
                      .scale = n.scale,
                      .Q = runner_pointer(call, n.Q),
                      .K = runner_pointer(call, n.K),
                      .V = runner_pointer(call, n.V),
                      .O = runner_pointer(call, n.O),
                      .lse = runner_pointer(call, n.lse),
                      .dO = runner_pointer(call, n.dO),
                      .dQ = runner_pointer(call, n.dQ),
                      .dK = runner_pointer(call, n.dK),
                      .dV = runner_pointer(call, n.dV),
                      .send = ring_send,
                      .receive = ring_receive,
                      .harness = &mailbox};
    position[0] = runner_pointer(call, n.positions);
    for (int r = 1; r < n.world && r < MAX_WORLD; r++)
        position[r] = position[r - 1] + part.tokens[r - 1];
    return function(&part);
}
