/* SPDX-License-Identifier: MIT
 *
 * cost.h: what a run would cost, told before it runs. A pass of a ring takes
 *
 *     T = t_comp(0) + sum over steps of max(t_comp, a + bytes/BW) + tail
 *
 * because the next block travels while the current one is computed. That one line holds when all
 * ranks do the same at every step. Here the same rule is applied to every rank and every message:
 * the schedule of a method (schedule.h) is played through with these costs,
 *
 *     a call of a block kernel   call_s + bytes beside the products / memory +
 *                                (pairs + masked_keys * rows seen in part) 4 B H d / flops
 *                                (backward: 2.5 x pairs; scattered times as long where Hopper's
 *                                kernels do not run)
 *     a message                  latency + bytes / bandwidth, of the link inside or between nodes,
 *                                after both ends are ready and the link is free
 *
 * and every rank goes on when what it waits for is there. It gives times, and events like those of
 * a measured run, so that both can be drawn side by side.
 *
 * Interface:
 * - RingRates: speeds of a machine; ring_rates_default, ring_rates_read.
 * - RingWork, ring_block_work, ring_all_pairs, ring_plan_efficiency: visible pairs of blocks, and
 *   balance. ring_queries_travel: or keys. ring_hopper_takes: is a call one for Hopper?
 * - ring_model_case: a plan as the formulas of models/ want it.
 * - RingPrediction, ring_predict: a run of a plan.
 * - ring_choose, RING_WHY: --method auto.
 * - ring_bytes_agree, ring_memory_agrees: what ranks tell against the formulas.
 * - ring_hidden_share: of events, measured or predicted. ring_bytes_text: for a reader.
 */
#ifndef RING_COST_H
#define RING_COST_H

#include "harness/models/model_ring_bytes.h"
#include "runtime/ring_world.h"

typedef struct RingRates {
    double flops[2];     /* FLOP/s of the block kernel on large clean blocks: forward, backward */
    double scattered;    /* times as long where Hopper's kernel does not run; up to 1: no longer */
    double masked_keys;  /* keys that a query computes in vain in a run that it sees in part */
    double call_s;       /* of each call of a kernel */
    double memory;       /* bytes/s of states, sums and copies */
    double latency[2];   /* seconds of an empty message: inside a node, between nodes */
    double bandwidth[2]; /* bytes/s of a rank in one direction */
} RingRates;

/* Recorded rates: transport "nccl" or "copy" (Hopper GPUs of one host; NIC of 50 GB/s between
 * nodes), or one core each of a CPU ("sim", "mpi"). */
RingRates ring_rates_default(const char *transport, AttnDtype dtype);
/* A text file of lines "name value"; rates that it does not name keep their value. 0, or -1 with
 * one sentence in why. */
int ring_rates_read(RingRates *rates, const char *path, char why[256]);

/* --- work --------------------------------------------------------------------------------------*/

typedef struct RingWork {
    int64_t pairs;        /* visible, of one head and batch */
    int64_t partial_rows; /* queries counted for each run of keys of which they may see a part */
    AttnTile tile;
} RingWork;

/* Queries first .. first+tokens-1 of a rank against keys of another. Full masks are counted pair by
 * pair. */
RingWork ring_block_work(const RingPlan *plan, int q_rank, int64_t q_first, int64_t q_tokens,
                         int k_rank, int64_t k_first, int64_t k_tokens);
RingWork ring_pair_work(const RingPlan *plan, int q_rank, int k_rank); /* of whole shards */
int ring_queries_travel(const RingPlan *plan, RingPass pass);          /* burst; 0: keys do */
double ring_all_pairs(const RingPlan *plan); /* that the ranks have to compute together */
/* Useful share of a flat ring whose ranks wait for each other after every step: 1 = balanced. */
double ring_plan_efficiency(const RingPlan *plan);

/* Tokens of a rank, or (RING_EVERYBODY) of all ranks, one rank's behind the other's. */
typedef struct RingSpan {
    int owner;
    int64_t first, tokens;
} RingSpan;

/* Does Hopper's kernel take this call in 16 bits? It wants positions that grow with the index
 * (stage 03's key_rule.h, which the kernel itself asks), no mask array, no cap, d <= 256. */
int ring_hopper_takes(const RingPlan *plan, RingSpan q, RingSpan k);

/* The plan for the formulas of common/model_ring, while it lives. */
RingModelCase ring_model_case(const RingPlan *plan);

/* Did the ranks send what the model counts, and hold what it counts? A wrong answer can look right
 * (a gradient check passes when nothing moves at all); bytes that were never sent do not. To the
 * byte, for each rank, pass, tensor and kind of link; memory within 5 percent. m: of
 * ring_model_case. 1, or 0 with one sentence. */
int ring_bytes_agree(const RingModelCase *m, const RingReport *report, int backward, char *sentence,
                     size_t size);
int ring_memory_agrees(int64_t found, int64_t model, int rank, char *sentence, size_t size);

/* --- predictions -------------------------------------------------------------------------------*/

typedef struct RingPrediction {
    double ms[2];      /* forward, backward (0 without one): the slowest rank */
    double hidden[2];  /* share of the time of messages in which the same rank computes */
    RingReport report; /* events of all ranks, as a run tells them */
} RingPrediction;

/* 0, or -1: no memory. */
int ring_predict(RingPrediction *prediction, const RingPlan *plan, const RingRates *rates);
void ring_prediction_free(RingPrediction *prediction);

/* Share of the time in which messages of `pass` are under way that has a computation under way too.
 * No messages: 1. */
double ring_hidden_share(const RingEvent *events, int64_t count, RingPass pass);
double ring_hidden_mean(const RingReport *report, RingPass pass); /* over the ranks */
const char *ring_bytes_text(char text[32], int64_t bytes);        /* "1.54 kB" */

/* --- the choice --------------------------------------------------------------------------------*/

enum { RING_WHY = 1200 };

/* Sets setup->method, and setup->layout if free_layout. The backward pass counts if args->dO has
 * data. why: a table, some lines. 0, or -1 with one sentence in why: no plan can be made; or -2:
 * memory is short. */
int ring_choose(RingSetup *setup, int free_layout, const AttnArgs *args, const RingRates *rates,
                char why[RING_WHY]);
#endif
