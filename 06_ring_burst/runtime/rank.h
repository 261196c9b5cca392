/* SPDX-License-Identifier: MIT
 *
 * rank.h: all that a method sees of the world: one rank, its shard, blocks that travel to other
 * ranks, and attention between blocks of tokens. Whether ranks are threads, processes or GPUs, and
 * where memory lies, is behind it (ring_world.h); only what lies there calls the library.
 *
 * Two queues. A rank's work (attention, copies, sums) runs in the order in which it is asked for.
 * Messages run beside it: ring_start orders them after the work asked for so far (in a stream: of
 * this stream), and ring_wait orders later work after them. On the CPU work is done when its
 * function returns and ring_wait blocks; on a GPU both are streams with events between them, and
 * the host runs ahead. Between start and wait the memory of a send must not be written and that of
 * a receive not be touched: every function here fails where it is.
 *
 * A rank that has failed does nothing any more: its functions return -1 (rank->failure tells why)
 * or nothing. So a method is written straight on, as if all went well. It asks r->failed once in
 * each round of a loop, and where memory may be missing.
 *
 * Interface:
 * - RingRank: a rank. RingMethodTable, RING_METHOD: a method.    - ring_at, ring_status.
 * - RingBuffer, ring_open_buffer ...: counted memory.    - ring_method_state.
 * - RingBlock, ring_own_queries ...: some tokens of some rank.
 * - RingExchange, ring_send, ring_receive, ring_start, ring_wait: messages. ring_send_keys,
 *   RingKeys, ...: blocks as messages, and where they arrive.
 * - RingState, ring_see_keys ...: forward. ring_attend, ring_start_state, ring_finish_O: its parts.
 * - ring_open_delta, ring_differentiate, ring_give_dQ ...: backward.
 * - ring_zero, ring_copy, ring_add, ring_narrow, ring_widen: the small work between them.
 * - ring_step, ring_stream, ring_fail.
 */
#ifndef RING_RANK_H
#define RING_RANK_H

#include <stddef.h>
#include <stdint.h>

#include "harness/models/ring_tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RING_MAX_RANKS 64 /* of one process or one mpirun */

typedef struct RingRank {
    int rank, world; /* this one, of so many */
    int nodes;       /* of world / nodes ranks each, rank after rank */
    /* How far keys travel in a ring: to ranks rank+1 .. rank+hops_up (queries that come later), and
     * to rank-1 .. rank-hops_down (a right side of a window). Together at most world-1. */
    int hops_up, hops_down;
    int backward;                       /* 1: a backward pass follows the forward pass */
    int64_t B, H, Hkv, d;               /* batches, heads, kv heads, channels of a head */
    int dtype, partials;                /* AttnDtype: of tensors; of sums that travel */
    const int64_t *q_tokens, *k_tokens; /* [world] of each rank */
    int64_t nq, nk;                     /* of this one */
    /* This rank's shard, contiguous, in the backend's memory. Inputs are never written. */
    void *Q, *dO; /* [B][nq][H][d] dtype; dO NULL without a backward pass */
    void *K, *V;  /* [B][nk][Hkv][d] dtype */
    /* Results of the forward pass, inputs of the backward pass. */
    void *O;    /* [B][nq][H][d] dtype; who needs it no more may free it and set NULL */
    float *lse; /* [B][H][nq] */
    /* Results of the backward pass, allocated by the method (..._bytes), freed by who runs it:
     * [B][n][heads][d] dtype in one piece (..._whole = 1), or the two halves of a sum that has
     * travelled, of which half 1 begins at byte ..._second. */
    void *dQ, *dK, *dV;
    size_t dQ_bytes, dK_bytes, dV_bytes, dQ_second, dKV_second;
    int dQ_whole, dKV_whole;
    void *method; /* what a method keeps between its passes: ring_method_state */
    int failed;
    char failure[256]; /* "rank 2, forward step 3: waiting for K from rank 1: ..." */

    /* What lies behind; no method looks at it. */
    RingPass pass;
    int step, threads;
    const struct RingPlan *plan;
    const struct RingTransport *transport;
    const struct RingCarrier *carrier; /* of messages in a pass; NULL: the transport */
    const struct RingBackend *backend; /* host or GPU: who allocates and computes */
    void *endpoint, *carrier_end, *backend_state;
    struct RingLog *log; /* bytes, events */
    uint8_t *mask;       /* a pair of blocks' part of a full mask, in host memory */
    size_t mask_bytes, live_bytes, peak_bytes, peak_backward_bytes, workspace_bytes;
} RingRank;

/* A method. open and close may be NULL; what open allocates lives through all rounds. */
typedef struct RingMethodTable {
    int (*open)(RingRank *r);
    int (*forward)(RingRank *r);  /* Q K V -> O lse */
    int (*backward)(RingRank *r); /* Q K V O lse dO -> dQ dK dV; after a forward pass */
    void (*close)(RingRank *r);
} RingMethodTable;

/* The last line of a method registers it: its name, its idea, RING_CPU_ONLY, RING_COPIES (it brings
 * tensors into another order) or 0. table.c names it once more. */
typedef struct RingMethodRow {
    RingMethodTable passes;
    const char *idea;
    int flags;
} RingMethodRow;
enum { RING_CPU_ONLY = 1, RING_COPIES = 2 };
#define RING_METHOD(name, idea, flags)                                                             \
    extern const RingMethodRow ring_row_##name;                                                    \
    const RingMethodRow ring_row_##name = {{NULL, forward, backward, NULL}, idea, flags}

/* The rank `distance` places further on in the ring; negative: back. */
static inline int ring_at(const RingRank *r, int distance)
{
    return ((r->rank + distance) % r->world + r->world) % r->world;
}

static inline int ring_status(const RingRank *r)
{
    return r->failed ? -1 : 0;
}

/* --- memory ------------------------------------------------------------------------------------*/

/* Counted, not zeroed (poisoned with NaN on the host). NULL: memory is short and the rank has
 * failed. 0 bytes give a pointer too. */
void *ring_alloc(RingRank *r, size_t bytes, const char *what);
void ring_free(RingRank *r, void *p, size_t bytes); /* NULL is allowed */

/* The same with its size, all zeros where it is not open. What a method's last pass leaves open,
 * or a failure, is closed for it. */
typedef struct RingBuffer {
    void *data;
    size_t bytes;
} RingBuffer;

void ring_open_buffer(RingRank *r, RingBuffer *b, size_t bytes, const char *what);
void ring_close_buffer(RingRank *r, RingBuffer *b); /* one that is not open: nothing happens */
/* r->method: zeros in host memory, until the method's last pass has ended. NULL: the rank has
 * failed. */
void *ring_method_state(RingRank *r, size_t bytes);

int64_t ring_q_count(const RingRank *r, int64_t tokens);  /* B tokens H d elements */
int64_t ring_kv_count(const RingRank *r, int64_t tokens); /* B tokens Hkv d elements */
size_t ring_q_bytes(const RingRank *r, int owner);        /* of a rank's Q in the dtype */
size_t ring_kv_bytes(const RingRank *r, int owner);       /* of its K or V */
size_t ring_row_bytes(const RingRank *r, int owner);      /* B H nq float32: of its lse or delta */
size_t ring_size(int dtype);                              /* of one element: 2 or 4 bytes */
/* The largest shard of any rank: what a buffer for remote blocks must hold. */
int64_t ring_max_nq(const RingRank *r);
int64_t ring_max_nk(const RingRank *r);

/* --- blocks ------------------------------------------------------------------------------------*/

/* As an owner: all tokens of all ranks, rank after rank, each rank's in its local order. */
enum { RING_EVERYBODY = -1 };

/* Local tokens first .. first+tokens-1 of rank `owner`: as queries (Q, dO, lse, delta) or as keys
 * (K, V). */
typedef struct RingBlock {
    int owner; /* or RING_EVERYBODY */
    int half;  /* 1, 2: half 0 or 1 of these tokens, a whole shard; 0: all of them */
    int64_t first, tokens;
    int64_t batch_stride; /* in tokens: those of the whole shard */
    int64_t heads;        /* H or Hkv; of everybody's tokens (Ulysses) this rank's share of them */
    void *a;              /* Q, or K: [B][tokens][heads][d] */
    void *b;              /* dO, or V: likewise */
    float *lse, *delta; /* queries: [B][H][tokens], contiguous; whole ones that travel: in halves */
    /* Queries that meet their last keys: where O [B][tokens][H][d] in the dtype goes. Who computes
     * may put it there at once, and ring_finish_O finds it done. NULL: there are more to come. */
    void *O;
    /* Queries: [3][B][H][tokens] m, l and what l lost to rounding, of a state that loses nothing
     * from block to block; NULL: the state is (O, lse). */
    float *rows;
} RingBlock;

RingBlock ring_own_queries(RingRank *r); /* delta NULL */
RingBlock ring_own_keys(RingRank *r);
/* A remote shard of `owner` that lies in K and V. */
RingBlock ring_remote_keys(RingRank *r, int owner, void *K, void *V);

/* Sums that travel do so in two halves: while one half is on its way the other is computed. Half h
 * has quarters h and h + 2 of the shard (why: shard.c). In memory a half is contiguous, one quarter
 * [B][tokens of the quarter][heads][d] behind the other. */
enum { RING_HALVES = 2, RING_QUARTERS = 4 };

/* Half 0 or 1 of a block that is a whole shard, for ring_differentiate. For queries, lse and delta
 * must be in halves already (ring_open_split_delta). */
RingBlock ring_block_half(const RingBlock *whole, int half);
int64_t ring_half_tokens(int64_t tokens, int half); /* tokens/2, or the rest */
/* Of rank owner's queries, or (keys = 1) keys. */
int64_t ring_quarter_tokens(const RingRank *r, int owner, int keys, int quarter);

/* --- messages ----------------------------------------------------------------------------------*/

/* Messages that start together (no order among them: what one group call or MPI_Waitall takes).
 * Zero-filled = empty; ring_wait empties it for the next use. What stands in it is the business of
 * who carries it. */
typedef struct RingExchange {
    struct RingTransfer *list;
    int count, room;
    int started; /* 0, or a number of its own */
    int step;
    struct RingTrailer *trailers; /* --verify-hops: behind each transfer stands its trailer's */
    int expected;                 /* trailers[n + expected]: what is due with trailer n */
    void *damaged;                /* --inject corrupt: the copy that is sent instead */
    void *ticket;                 /* the transport's */
} RingExchange;

/* Adds a transfer. Nothing happens before ring_start. 0 bytes, or a peer that is the rank itself:
 * not added. */
int ring_send(RingRank *r, RingExchange *x, int peer, RingTensor tensor, const void *data,
              size_t bytes);
int ring_receive(RingRank *r, RingExchange *x, int peer, RingTensor tensor, void *data,
                 size_t bytes);
int ring_start(RingRank *r, RingExchange *x);
int ring_wait(RingRank *r, RingExchange *x); /* one that was not started: nothing to wait for */

typedef struct RingKeys { /* receive buffers for K and V of any rank */
    RingBuffer K, V;
} RingKeys;

typedef struct RingQueries { /* likewise for Q, dO, lse and delta */
    RingBuffer Q, dO, lse, delta;
} RingQueries;

/* The first `count` of some buffers; those that are open stay. */
void ring_open_keys(RingRank *r, RingKeys *buffers, int count);
void ring_close_keys(RingRank *r, RingKeys *buffers, int count);
void ring_open_queries(RingRank *r, RingQueries *buffers, int count);
/* Add the messages of a block to an exchange, two for keys, four for queries. *arriving: what will
 * stand in `buffer` after it, the block of rank `owner`. */
void ring_send_keys(RingRank *r, RingExchange *x, int peer, const RingBlock *k);
void ring_receive_keys(RingRank *r, RingExchange *x, int peer, int owner, const RingKeys *buffer,
                       RingBlock *arriving);
void ring_send_queries(RingRank *r, RingExchange *x, int peer, const RingBlock *q);
void ring_receive_queries(RingRank *r, RingExchange *x, int peer, int owner,
                          const RingQueries *buffer, RingBlock *arriving);

/* --- forward -----------------------------------------------------------------------------------*/

/* Attention of this rank's queries over the keys seen so far; lse is r->lse. */
typedef struct RingState {
    RingBlock q;
    RingBuffer O, rows;
} RingState;

void ring_open_state(RingRank *r, RingState *state); /* no keys: O = 0, lse = -inf */
void ring_see_keys(RingRank *r, RingState *state, const RingBlock *k);
/* No others come after them: O may become r->O on the way. */
void ring_see_last_keys(RingRank *r, RingState *state, const RingBlock *k);
void ring_close_state(RingRank *r, RingState *state); /* r->O = the state, rounded */

/* The parts of it, with memory of one's own. Adds the keys of `k` to the state O_state
 * [B][q tokens][H][d] float32, lse [B][H][q tokens], and q->rows. Nothing is done for a pair of
 * blocks that cannot see each other. With q->rows O_state is not divided before ring_finish_O; lse
 * is always that of the keys so far. */
int ring_attend(RingRank *r, const RingBlock *q, const RingBlock *k, float *O_state, float *lse);
/* An empty state: zeros, -inf. */
int ring_start_state(RingRank *r, const RingBlock *q, float *O_state, float *lse);
/* O [B][q tokens][H][d] in the dtype = the state, rounded. The state is used up. */
int ring_finish_O(RingRank *r, const RingBlock *q, void *O, float *O_state);

/* --- backward ----------------------------------------------------------------------------------*/

/* delta [B][H][q tokens] = rowsum(dO * O), O [B][q tokens][H][d] finished. */
int ring_delta(RingRank *r, const RingBlock *q, const void *O, float *delta);
/* *q: this rank's queries with delta, which lies in `delta`. */
void ring_open_delta(RingRank *r, RingBlock *q, RingBuffer *delta);
/* The same with lse and delta in halves: [B][H][tokens of the quarter] for quarters 0, 2, 1, 3. O
 * is freed. */
void ring_open_split_delta(RingRank *r, RingBlock *q, RingBuffer *lse, RingBuffer *delta);
/* Adds what the pairs of q and k give. dQ [B][q tokens][H][d], dK, dV [B][k tokens][Hkv][d],
 * float32, contiguous; of a half, quarter by quarter. q needs dO, lse, delta. Invisible pairs of
 * blocks: nothing. */
int ring_differentiate(RingRank *r, const RingBlock *q, const RingBlock *k, float *dQ, float *dK,
                       float *dV);
/* Nothing has to travel: the whole backward pass. */
void ring_backward_local(RingRank *r);

/* A gradient in the dtype becomes r->dQ, or r->dK and r->dV. The buffers are empty then. */
void ring_hand_over_dQ(RingRank *r, RingBuffer *dQ);
void ring_hand_over_dKV(RingRank *r, RingBuffer *dK, RingBuffer *dV);
/* The same for finished sums, which are rounded. */
void ring_give_dQ(RingRank *r, RingBuffer *dQ);
void ring_give_dKV(RingRank *r, RingBuffer *dK, RingBuffer *dV);

/* --- small work --------------------------------------------------------------------------------*/

int ring_zero(RingRank *r, void *p, size_t bytes);
/* height rows of width bytes; pitches in bytes. */
int ring_copy(RingRank *r, void *to, size_t to_pitch, const void *from, size_t from_pitch,
              size_t width, int64_t height);
int ring_add(RingRank *r, float *to, const float *from, int64_t count);
/* float32 -> dtype in the same place (element k then lies at k * size of dtype); widen: back. */
int ring_narrow(RingRank *r, void *p, int64_t count, int dtype);
/* The same to another place, to [count] dtype; p stays. */
int ring_narrow_to(RingRank *r, void *to, float *p, int64_t count, int dtype);
int ring_widen(RingRank *r, void *p, int64_t count, int dtype);

/* --- book-keeping ------------------------------------------------------------------------------*/

/* From here on bytes, events and failures belong to this step of the pass. */
int ring_step(RingRank *r, int step);
/* From here on work, ring_start and ring_wait belong to stream 0 or 1, one for each half of a sum.
 * They come after all earlier work of this stream, and after all that was asked for in both.
 * Between the two streams there is no order. A GPU then works on what one stream has where the
 * other one leaves multiprocessors idle. RING_BOTH_STREAMS (so it begins): after everything, before
 * everything. Two streams may add to the same dQ (ring_differentiate); anything else that one of
 * them writes the other must not touch. */
enum { RING_STREAMS = RING_HALVES, RING_BOTH_STREAMS = -1 };
void ring_stream(RingRank *r, int stream);
/* -1, after noting where the rank is and what it says. */
int ring_fail(RingRank *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
