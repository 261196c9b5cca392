/* SPDX-License-Identifier: MIT
 *
 * sim.h: ranks that are threads of one process, and the messages between them.
 *
 * A transfer is posted twice: by the rank that sends and by the rank that receives. The two posts
 * meet in a channel (from, to, tensor), in the order in which each side posted, and the message can
 * be copied from one rank's memory to the other's:
 *
 *     rank 1: send K to 2       -> | channel 1 -> 2, K | <-       rank 2: receive K from 1
 *                                  first with first, second with second
 *
 * No copy is kept in between. A sender that overwrites its data too early damages the message, and
 * a receiver that looks too early finds what was there before, as on a real network.
 *
 * Interface:
 * - SimWorld, SimEndpoint, SimPost: all ranks; one; its half of a message.
 * - ring_transport_sim: the transport.
 * - sim_carry, sim_deliver: messages. sim_can_go_on ...: who waits for whom. sim_turn_pass,
 *   sim_turn_offer: who runs next when only one may.
 */
#ifndef RING_SIM_H
#define RING_SIM_H

#include <pthread.h>

#include "runtime/ring_world.h"

enum { SIM_HOST_CHANNEL = RING_TENSORS, SIM_CHANNELS }; /* results on their way to rank 0 */

typedef struct SimPost {
    int sends, from, to, channel;
    void *data;
    size_t bytes;
    int complete;  /* 1: the message has arrived */
    RingPass pass; /* where its rank posted it */
    int step;
    size_t partner_bytes; /* what the other side thinks its size is, and where that was posted */
    RingPass partner_pass;
    int partner_step;
    double end_ms;           /* when it arrived */
    void *ready, *arrived;   /* with a GPU: points of its queues (RingBackend) */
    struct SimPost *partner; /* the other half, once they have met */
    struct SimPost *next;    /* in the channel, or under way */
} SimPost;

typedef struct SimTicket {
    int count;
    SimPost post[];
} SimTicket;

typedef enum SimState {
    SIM_RUNNING,
    SIM_IN_EXCHANGE, /* waiting for its ticket */
    SIM_IN_BARRIER,
    SIM_ENDED,  /* as it should */
    SIM_FAILED, /* and has said why */
    SIM_GONE    /* --inject exit: without a word */
} SimState;

typedef struct SimEndpoint {
    struct SimWorld *world;
    RingRank *rank;
    SimState state;
    RingPass pass; /* where it was when it last sent or waited in a pass */
    int step;
    int outside;         /* it is not in a pass now */
    SimTicket *ticket;   /* waited for */
    int barrier_round;   /* of the barrier waited in */
    int copies;          /* messages from or to this rank's memory that are being copied now */
    pthread_cond_t call; /* something has changed for this rank */
} SimEndpoint;

typedef struct SimWorld {
    pthread_mutex_t lock;
    int ranks;
    SimEndpoint endpoints[RING_MAX_RANKS];
    SimPost **channels; /* [from][to][channel]: posts that have not met, first first */
    int in_barrier, barrier_round;
    double heard_ms; /* of any rank, that it does something */
    int failed, deadlock;
    char failure[512]; /* what went wrong first */
    /* only with an adversarial schedule */
    int scheduled, turn;
    uint64_t random, fingerprint;
    unsigned patience;  /* 0: messages arrive only when nobody can run; 7: soon */
    SimPost *under_way; /* a list: the receivers' halves of messages that have met */
    int under_way_count;
} SimWorld;

extern const RingTransport ring_transport_sim;
void sim_rank_ends(SimEndpoint *e);
void sim_carry(RingRank *by, SimPost *receive); /* copies; also without the lock */

/* From here on: locked. The message is there: both ranks learn it. */
void sim_deliver(SimWorld *world, SimPost *receive);
void sim_call_all(SimWorld *world);
const SimPost *sim_missing(const SimTicket *ticket); /* the first that has not arrived, or NULL */
RingTransfer sim_transfer(const SimPost *post);
int sim_can_go_on(const SimEndpoint *e); /* it runs, or what it waits for is there, or never will */
void sim_look_for_deadlock(SimWorld *world);
/* Why a wait (for a post, or NULL: for all ranks) ended without success. */
void sim_give_reason(const RingRank *r, const SimPost *post, int late, char text[96]);
void sim_turn_pass(SimEndpoint *e); /* returns when this rank may run again, or the world failed */
void sim_turn_offer(SimWorld *world, SimPost *receive); /* a message that can be delivered */

#endif
