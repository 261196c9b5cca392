/* SPDX-License-Identifier: MIT
 *
 * ring_rank.h: what a method sees of the world: one rank, its shard, messages to other ranks, and
 * attention between blocks of tokens. The methods are written once, over this header; whether
 * ranks are threads, MPI processes or GPUs, and where memory lies, is behind it.
 *
 * Two queues. A rank's work (attention, copies, sums) runs in the order in which it is asked for.
 * Messages run beside it: ring_start orders them after the work asked for so far (in a stream: of
 * this stream), and ring_wait orders later work after them. On the CPU work is done when its
 * function returns and ring_wait blocks; on a GPU both are streams with events between them and the
 * host runs ahead. Between start and wait the memory of a send must not be written and that of a
 * receive not be touched: every function here asks ring_touch (ring_world.h), which knows what is
 * in flight. The queue of work has two streams, for the two halves of a sum that travels
 * (ring_stream).
 *
 * All functions return 0, or -1 when this rank has failed: rank->failure tells why. From then on
 * they all return -1 and do nothing, so that a method need not ask after every call.
 *
 * Interface:
 * - RingRank, RingMethodTable: a rank; the passes of a method.
 * - RingExchange, ring_send, ring_receive, ring_start, ring_wait: messages.
 * - ring_alloc, RingBuffer: counted memory, on the rank's device. ring_method_state.
 * - RingBlock, ring_own_queries, ring_own_keys, ring_block_half: some tokens of some rank.
 * - ring_attend, ring_differentiate: the block kernels of stages 03 and 04.
 * - ring_delta, ring_zero, ring_copy, ring_add, ring_narrow, ring_widen, ring_round, ring_finish_O:
 *   the small work between them.
 * - ring_step, ring_stream, ring_fail.
 */
#ifndef RING_RANK_H
#define RING_RANK_H

#include "ring_burst.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gradients of a shard that travel do so in two halves: while one half is on its way the other is
 * computed. Half h has quarters h and h + 2 of the shard (RingShard.cut; why: shard.c). In memory a
 * half is contiguous, one quarter [B][tokens of the quarter][heads][d] behind the other. */
enum { RING_HALVES = 2, RING_QUARTERS = 4 };

/* Streams of the queue of work, one for each half: see ring_stream. */
enum { RING_STREAMS = RING_HALVES, RING_BOTH_STREAMS = -1 };

typedef struct RingRank {
    int rank, world;
    const RingPlan *plan;
    const struct RingTransport *transport;
    const struct RingCarrier *carrier; /* of messages in a pass; NULL: the transport */
    const struct RingBackend *backend; /* host or GPU: who allocates and computes */
    void *endpoint, *carrier_end;      /* the transport's, and the carrier's */
    void *backend_state;               /* the backend's: streams, workspace */
    int threads;                       /* of this rank */

    int64_t nq, nk; /* tokens of this rank */
    /* This rank's shard, contiguous, in the backend's memory. Inputs are never written. */
    void *Q, *dO; /* [B][nq][H][d] dtype; dO NULL without a backward */
    void *K, *V;  /* [B][nk][Hkv][d] dtype */
    /* Results of the forward pass, inputs of the backward pass. */
    void *O;    /* [B][nq][H][d] dtype */
    float *lse; /* [B][H][nq] */
    /* A backward pass that needs O no more frees it and sets NULL: the task has fetched it by then,
     * and makes a new one for the next forward pass. */
    /* Results of the backward pass, allocated by the method (..._bytes), freed by the task: float32
     * sums, rounded to the dtype in place. Gradients that travelled are halves, each rounded for
     * itself, in place or into the free place; half 1 begins at byte ..._second. The others
     * (..._whole = 1) are one tensor [B][n][heads][d] in the dtype. */
    void *dQ, *dK, *dV;
    size_t dQ_bytes, dK_bytes, dV_bytes, dQ_second, dKV_second;
    int dQ_whole, dKV_whole;

    uint8_t *mask; /* a pair of blocks' part of a full mask, in host memory */
    size_t mask_bytes;

    RingPass pass;
    int step;            /* of the pass, 0 ... */
    void *method;        /* what a method keeps between its passes: ring_method_state, or its own */
    struct RingLog *log; /* bytes, events */
    size_t live_bytes, peak_bytes, peak_backward_bytes; /* of ring_alloc */
    size_t workspace_bytes;                             /* of the block kernels, beside these */
    int failed;
    char failure[256]; /* "rank 2, forward step 3, waiting for K from rank 1: ..." */
} RingRank;

/* A method. open and close may be NULL; what open allocates lives through all rounds. */
typedef struct RingMethodTable {
    int (*open)(RingRank *r);
    int (*forward)(RingRank *r);  /* Q K V -> O lse */
    int (*backward)(RingRank *r); /* Q K V O lse dO -> dQ dK dV; after a forward */
    void (*close)(RingRank *r);
} RingMethodTable;
const RingMethodTable *ring_method(RingMethod method);

/* --- messages ----------------------------------------------------------------------------------*/

/* Messages that start together (no order among them: what one group call or MPI_Waitall takes).
 * Zero-filled = empty; ring_wait empties it for the next use. */
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

/* --- memory ------------------------------------------------------------------------------------*/

/* Counted in live_bytes and peak_bytes; not zeroed (poisoned with NaN on the host). NULL: memory is
 * short and the rank has failed. 0 bytes give a pointer too. */
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
/* The memory, which is not the buffer's any more; *bytes: its size. */
void *ring_take_buffer(RingRank *r, RingBuffer *b, size_t *bytes);
/* r->method: zeros in host memory, until the method's last pass has ended. NULL: the rank has
 * failed. */
void *ring_method_state(RingRank *r, size_t bytes);

/* --- blocks ------------------------------------------------------------------------------------*/

/* As an owner: all tokens of all ranks, rank after rank, each rank's in its local order. */
enum { RING_EVERYBODY = -1 };

/* Local tokens first .. first+tokens-1 of rank `owner`: as queries (Q, dO, lse, delta) or as keys
 * (K, V). A block of a whole shard is contiguous; a quarter keeps the shard's batch stride. */
typedef struct RingBlock {
    int owner; /* or RING_EVERYBODY */
    int half;  /* 1, 2: half 0 or 1 of these tokens, a whole shard; 0: all of them */
    int64_t first, tokens;
    int64_t batch_stride; /* in tokens: those of the whole shard */
    int64_t heads;        /* H or Hkv; of everybody's tokens (Ulysses) this rank's share of them */
    void *a;              /* Q, or K */
    void *b;              /* dO, or V */
    float *lse, *delta; /* queries: [B][H][tokens], contiguous; whole ones that travel: in halves */
    /* Queries that meet their last keys: where O [B][tokens][H][d] in the dtype goes. Who computes
     * may put it there at once, and ring_finish_O finds it done. NULL: there are more to come. */
    void *O;
    /* Queries: [3][B][H][tokens] m, l and l_rest (FlashRows) of a state that loses nothing from
     * block to block; NULL: the state is (O, lse). */
    float *rows;
} RingBlock;

RingBlock ring_own_queries(RingRank *r); /* delta NULL */
RingBlock ring_own_keys(RingRank *r);
/* A remote shard of `owner` that lies in a and b. */
RingBlock ring_remote_queries(RingRank *r, int owner, void *Q, void *dO, float *lse, float *delta);
RingBlock ring_remote_keys(RingRank *r, int owner, void *K, void *V);
/* Half 0 or 1 of a block that is a whole shard, for ring_differentiate. For queries, lse and delta
 * must be in halves already (ring_split_rows). */
RingBlock ring_block_half(const RingBlock *whole, int half);
int64_t ring_half_tokens(int64_t tokens, int half); /* tokens/2, or the rest */
/* Tokens of its half before the quarter. */
int64_t ring_quarter_place(const RingShard *shard, int quarter);

size_t ring_q_bytes(const RingRank *r, int owner);        /* B nq H d in the dtype */
size_t ring_kv_bytes(const RingRank *r, int owner);       /* B nk Hkv d in the dtype: K or V */
size_t ring_row_bytes(const RingRank *r, int owner);      /* B H nq float32: lse or delta */
int64_t ring_q_count(const RingRank *r, int64_t tokens);  /* B tokens H d elements */
int64_t ring_kv_count(const RingRank *r, int64_t tokens); /* B tokens Hkv d elements */
/* The largest shard of any rank: what a buffer for remote blocks must hold. */
int64_t ring_max_nq(const RingRank *r);
int64_t ring_max_nk(const RingRank *r);

/* --- work --------------------------------------------------------------------------------------*/

/* Adds the keys of `k` to the state O_state [B][q tokens][H][d] float32, lse [B][H][q tokens], and
 * q->rows. Nothing is done for a pair of blocks that cannot see each other. With q->rows O_state is
 * not divided before ring_finish_O; lse is always that of the keys so far. */
int ring_attend(RingRank *r, const RingBlock *q, const RingBlock *k, float *O_state, float *lse);
/* An empty state: zeros, -inf. */
int ring_start_state(RingRank *r, const RingBlock *q, float *O_state, float *lse);
/* O [B][q tokens][H][d] in the dtype = the state, rounded. The state is used up. */
int ring_finish_O(RingRank *r, const RingBlock *q, void *O, float *O_state);
/* Adds what the pairs of q and k give. dQ [B][q tokens][H][d], dK, dV [B][k tokens][Hkv][d],
 * float32, contiguous; of a half, quarter by quarter. q needs dO, lse, delta. Invisible pairs of
 * blocks: nothing. */
int ring_differentiate(RingRank *r, const RingBlock *q, const RingBlock *k, float *dQ, float *dK,
                       float *dV);
/* delta [B][H][q tokens] = rowsum(dO * O), O [B][q tokens][H][d] finished. */
int ring_delta(RingRank *r, const RingBlock *q, const void *O, float *delta);
/* [B][H][n] of the own queries -> the same values in halves: [B][H][tokens of the quarter] for
 * quarters 0, 2, 1, 3. */
int ring_split_rows(RingRank *r, float *halves, const float *rows);
int ring_zero(RingRank *r, void *p, size_t bytes);
/* height rows of width bytes; pitches in bytes. */
int ring_copy(RingRank *r, void *to, size_t to_pitch, const void *from, size_t from_pitch,
              size_t width, int64_t height);
int ring_add(RingRank *r, float *to, const float *from, int64_t count);
/* float32 -> dtype in the same place (element k then lies at k * size of dtype); widen: back. */
int ring_narrow(RingRank *r, void *p, int64_t count, AttnDtype dtype);
/* The same to another place, to [count] dtype; p stays. */
int ring_narrow_to(RingRank *r, void *to, float *p, int64_t count, AttnDtype dtype);
int ring_widen(RingRank *r, void *p, int64_t count, AttnDtype dtype);
/* With --partials bf16: rounds float32 values to bf16 and keeps them as float32; else nothing. */
int ring_round(RingRank *r, float *p, int64_t count);
size_t ring_partial_size(const RingRank *r); /* bytes of a travelling gradient: 4, or 2 */

/* --- book-keeping ------------------------------------------------------------------------------*/

/* From here on bytes, events and failures belong to this step of the pass. */
int ring_step(RingRank *r, int step);
/* From here on work, ring_start and ring_wait belong to stream 0 or 1. They come after all earlier
 * work of this stream, and after all that was asked for in both. Between the two streams there is
 * no order. A GPU then works on what one stream has where the other one leaves multiprocessors
 * idle. RING_BOTH_STREAMS (so it begins): after everything, before everything. Two streams may add
 * to the same dQ (ring_differentiate); anything else that one of them writes the other must not
 * touch. */
void ring_stream(RingRank *r, int stream);
/* -1, after noting where the rank is and what it says. */
int ring_fail(RingRank *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
