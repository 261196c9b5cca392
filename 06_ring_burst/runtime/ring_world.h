/* SPDX-License-Identifier: MIT
 *
 * ring_world.h: what lies behind rank.h. A transport carries messages, a backend owns memory
 * and computes, a log counts and remembers; a world starts the ranks.
 *
 * Interface:
 * - RingTransfer, ring_touch: one message of an exchange; who uses memory that is in flight?
 *   ring_host_send, ring_host_receive: results on their way to rank 0.
 * - RingTransport: sim (threads), mpi (processes). RingCarrier: NCCL, or copies between processes.
 *   RingBackend: host, or a GPU.
 * - RingLog: bytes for each pass, step, tensor; events; what is in flight. RingLink, ring_link:
 *   between two ranks.
 * - RingTask, ring_rank_main: one rank's whole run; ring_world_sim ...: all of them.
 * - ring_shard_read, ring_collect_...: between whole tensors and shards.
 * - RingTrailer, ring_fault_..., ring_trailers_...: what goes wrong between two ranks (fault.c).
 * - RingReport: what a run tells: times, bytes, memory, failure.
 */
#ifndef RING_WORLD_H
#define RING_WORLD_H

#include "attention/backward/backward_library.h"
#include "attention/forward/flash_library.h"
#include "attn_pairs.h"
#include "planner/plan.h"
#include "runtime/rank.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct RingTransfer {
    int sends; /* 1: to peer, 0: from peer */
    int peer;
    RingTensor tensor; /* between two ranks, messages of one tensor arrive in the order sent;
                          RING_TENSORS: results on their way to rank 0 */
    void *data;
    size_t bytes;
    double end_ms; /* host clock, if the transport knows when it was complete; else 0 */
    int event;     /* in the log; -1: none */
} RingTransfer;

/* What work does with memory. RING_ADDS: adds to it, in any order with others that add. */
typedef enum RingUse { RING_READS, RING_WRITES, RING_ADDS } RingUse;
/* Fails when [p, p + bytes) is in flight: being received (no touch), or sent (no writing); or when
 * the other stream uses it. */
int ring_touch(RingRank *r, const void *p, size_t bytes, RingUse how, const char *who);

/* Functions return 0, or -1 after ring_fail. */
typedef struct RingTransport {
    const char *name; /* "sim" "mpi" */
    /* Begins all transfers of x; may set x->ticket. Never blocks for a peer. */
    int (*start)(RingRank *r, RingExchange *x);
    /* All transfers of x are complete (host), or ordered before later work (GPU). Gives up after
     * setup.timeout_s, or when a peer is known to be gone, naming the peer and the tensor. */
    int (*wait)(RingRank *r, RingExchange *x);
    /* All ranks arrive before one leaves. */
    int (*barrier)(RingRank *r);
    /* Called once by ring_fail: the peers learn that this rank has failed, and none of its memory
     * is touched any more. */
    void (*abandon)(RingRank *r);
    /* --inject exit: the rank is gone without a word (a process ends here; a thread returns and
     * unwinds). */
    void (*leave)(RingRank *r);
    /* A step begins: r->pass, r->step. For who looks from outside; NULL: nobody does. */
    void (*note)(RingRank *r);
    /* For who waits for a GPU, many times: 0, or -1 after ring_fail when a peer has failed. NULL:
     * nobody else can fail. */
    int (*look)(RingRank *r);
} RingTransport;

/* Messages of a pass by other means than the transport's, which keeps everything else: NCCL, and
 * copies between GPUs of two processes. A backend's `open` sets r->carrier. */
typedef struct RingCarrier {
    int (*start)(RingRank *r, RingExchange *x); /* as the transport's */
    int (*wait)(RingRank *r, RingExchange *x);
    void (*abandon)(RingRank *r); /* called by ring_fail before the transport's; NULL: nothing */
} RingCarrier;

typedef struct RingBackend {
    const char *name; /* "cpu" "cuda" */
    /* Sets backend_state (GPU: streams, maps on the device) and makes room for the block kernels'
     * workspace, whose size goes to r->workspace_bytes; close undoes it, also after a failed open.
     * What peers may still read after this rank has failed goes later, in `release`, when all ranks
     * of this process have ended (NULL: nothing). */
    int (*open)(RingRank *r);
    void (*close)(RingRank *r);
    void (*release)(RingRank *r);
    void *(*alloc)(RingRank *r, size_t bytes);
    void (*free)(RingRank *r, void *p);
    /* Host <-> rank's memory; complete on return. */
    int (*upload)(RingRank *r, void *to, const void *from_host, size_t bytes);
    int (*download)(RingRank *r, void *to_host, const void *from, size_t bytes);
    /* Of this, only copy and add are counted in a rehearsal (rehearse.c), which has no other. */
    int (*zero)(RingRank *r, void *p, size_t bytes);
    int (*poison)(RingRank *r, void *p, size_t bytes); /* NaN in every dtype */
    int (*copy)(RingRank *r, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                size_t width, int64_t height);
    int (*start_state)(RingRank *r, float *O_state, int64_t count, float *lse, int64_t rows);
    /* args describe the pair of blocks completely (views, positions and mask in host memory; the
     * backend brings what is not data to its device). rows: of RingBlock, or NULLs; a backend whose
     * kernel resumes from (O, lse) leaves them alone, here and in finish_O. args->O not NULL: no
     * keys come after these; O may go there at once, and finish_O is called all the same. */
    int (*attend)(RingRank *r, const AttnArgs *args, float *O_state, FlashRows rows);
    int (*differentiate)(RingRank *r, const AttnArgs *args, const float *delta, FlashSums sums);
    int (*delta)(RingRank *r, const AttnArgs *args, float *delta);
    int (*finish_O)(RingRank *r, const AttnArgs *args, float *O_state, FlashRows rows);
    int (*add)(RingRank *r, float *to, const float *from, int64_t count);
    int (*narrow)(RingRank *r, void *to, void *p, int64_t count, AttnDtype dtype);
    int (*widen)(RingRank *r, void *p, int64_t count, AttnDtype dtype);
    /* The local baseline of a benchmark: this rank's queries over its own keys, without a mask, a
     * peer or a state to resume from, by the fastest whole kernel; O and lse, or dQ, dK, dV in the
     * dtype, which are there. NULL: none. */
    int (*baseline)(RingRank *r, RingPass pass);
    int (*finish)(RingRank *r); /* returns when all work and messages asked for are done */
    /* Clocks. A mark is a point in the queue of work (messages = 0) or of messages (1; 2: behind
     * the work asked for so far as well); its number is returned, -1 after a failure. After
     * `finish` mark_ms tells when it was reached, on one clock for all ranks of a machine.
     * forget_marks: before each round. On the CPU a mark is the time of the call; on a GPU it is an
     * event. */
    int (*mark)(RingRank *r, int messages);
    double (*mark_ms)(RingRank *r, int mark);
    void (*forget_marks)(RingRank *r);
    /* The messages of x travel behind the work asked for so far, although the transport gets them
     * later, when the host has asked for the next kernel (ring_post). NULL: the transport gets them
     * at once, since work is done when its function returns. */
    int (*put_off)(RingRank *r, const RingExchange *x);
    /* Messages between ranks that are threads of one process; NULL on the host, whose memory is
     * simply copied. ready: the point of the work queue behind which memory may travel (NULL: this
     * rank has failed). carry: queues a copy by rank `by`, behind both points; returns the point at
     * which it has arrived, NULL after a failure. follow: later work comes behind that point, at
     * which transfer t, whose memory was ready at `ready`, is complete. */
    void *(*ready)(RingRank *r, const void *p, size_t bytes);
    void *(*carry)(RingRank *by, void *to, void *to_ready, const void *from, void *from_ready,
                   size_t bytes);
    int (*follow)(RingRank *r, const RingTransfer *t, void *ready, void *arrived);
    void (*stream)(RingRank *r, int stream); /* ring_stream; NULL: there is one queue of work */
} RingBackend;

extern const RingBackend ring_backend_cpu;

/* --- what a rank remembers ---------------------------------------------------------------------*/

enum { RING_MAX_STEPS = 4 * RING_MAX_RANKS };

typedef enum RingEventKind {
    RING_EVENT_COMPUTE,
    RING_EVENT_SEND,
    RING_EVENT_RECEIVE
} RingEventKind;

typedef struct RingEvent {
    RingEventKind kind;
    RingPass pass;
    int step, peer; /* peer: owner of the keys (forward), or the other end of a message */
    RingTensor tensor;
    int start_mark, end_mark; /* of the backend; resolved after the round into: */
    double start_ms, end_ms;  /* one clock for all ranks of a machine */
    int64_t bytes;
    int masked; /* compute: AttnTile class of the pair of blocks */
} RingEvent;

typedef struct RingFlight { /* memory in flight */
    const char *data;
    size_t bytes;
    int sends, peer, step;
    RingTensor tensor;
    int exchange; /* its number */
} RingFlight;

typedef struct RingStreamUse { /* memory that a stream uses */
    const char *data;
    size_t bytes;
    RingUse how;
} RingStreamUse;

typedef struct RingStreamList {
    RingStreamUse *uses;
    int count, room;
} RingStreamList;

typedef enum RingLink { RING_INNER, RING_OUTER } RingLink;

/* Inside a node or between nodes: neighbours in number are neighbours in the machine room. */
static inline RingLink ring_link(const RingSetup *setup, int a, int b)
{
    const int size = setup->ranks / setup->nodes;
    return a / size == b / size ? RING_INNER : RING_OUTER;
}

/* What a rank has sent. */
typedef struct RingTraffic {
    int64_t sent[RING_PASSES][RING_TENSORS]; /* payload bytes */
    int64_t sent_step[RING_PASSES][RING_MAX_STEPS];
    int64_t sent_inner[RING_PASSES], sent_outer[RING_PASSES]; /* inside a node, between nodes */
    int64_t messages[RING_PASSES];
} RingTraffic;

typedef struct RingLog {
    RingTraffic traffic;
    RingEvent *events;
    int event_count, event_room;
    RingFlight *flights;
    int flight_count, flight_room;
    int64_t hop_number[RING_MAX_RANKS][2][RING_TENSORS]; /* verify_hops: messages to / from peer */
    int exchanges;                                       /* started so far */
    RingExchange *put_off; /* started, and not handed to the transport yet */
    int fault_steps;       /* begun in this round, both passes: what --inject counts */
    int fault_struck;      /* the fault has been injected, in this round */
    int trace;             /* keep events */
    void **kept;           /* ring_keep */
    RingBuffer *open;      /* ring_open_buffer */
    int open_count, open_room;
    void *state; /* ring_method_state */
    int kept_count, kept_room;
    int stream;                        /* ring_stream */
    RingStreamList used[RING_STREAMS]; /* since something was asked for in both */
    /* Of a rehearsal (rehearse.c): the pairs of blocks are written down, not computed. */
    int (*meet)(RingRank *r, const RingBlock *q, const RingBlock *k);
} RingLog;

/* Host memory to and from a peer, by the transport, outside of any pass. Complete on return. */
int ring_host_send(RingRank *r, int peer, const void *data, size_t bytes);
int ring_host_receive(RingRank *r, int peer, void *data, size_t bytes);

RingBlock ring_remote_queries(RingRank *r, int owner, void *Q, void *dO, float *lse, float *delta);
/* Tokens of its half before the quarter. */
int64_t ring_quarter_place(const RingShard *shard, int quarter);
/* A quarter of a block that is the whole of this shard. */
RingBlock ring_block_quarter(const RingRank *r, const RingShard *shard, const RingBlock *whole,
                             int quarter);

/* Hands over what ring_start has put off: behind a kernel that was asked for, and before any other
 * message or wait. */
int ring_post(RingRank *r);

/* What was noted of uses in streams is over. */
void ring_streams_forget(RingLog *log);

/* With --partials bf16: rounds float32 values to bf16 and keeps them as float32; else nothing. */
int ring_round(RingRank *r, float *p, int64_t count);
/* [B][H][n] of the own queries -> the same values in halves: [B][H][tokens of the quarter] for
 * quarters 0, 2, 1, 3. */
int ring_split_rows(RingRank *r, float *halves, const float *rows);
/* A buffer's memory, which is not the buffer's any more; *bytes: its size. */
void *ring_take_buffer(RingRank *r, RingBuffer *b, size_t *bytes);
/* A method's last pass has ended: its buffers and its state go. */
void ring_method_end(RingRank *r);

RingLog *ring_log_new(int trace);
void ring_log_free(RingLog *log);
/* Before a round: bytes, messages, events, times and the count of steps start at zero, and a fault
 * can strike again. What is in flight and hop numbers go on. */
void ring_log_restart(RingLog *log);
/* list: the address of a pointer to [*room], of which `count` are used. There is room for one more
 * then. -1: the rank has failed, and the list stays. */
int ring_grow(RingRank *r, void *list, int count, int *room, size_t size, const char *what);
/* An event of this rank's step; its number, -1 without a trace. */
int ring_log_event(RingRank *r, const RingEvent *event);
/* Zeroed host memory for the book-keeping of messages, which a method that fails leaves behind:
 * freed with the log at the latest. NULL: the rank has failed. */
void *ring_keep(RingRank *r, size_t bytes);
void ring_unkeep(RingRank *r, void *p);    /* NULL is allowed */
const char *ring_pass_name(RingPass pass); /* "forward" */
/* "waiting for K from rank 1", "waiting until rank 2 takes K" */
const char *ring_transfer_words(const RingTransfer *t, char words[80]);
double ring_now_ms(void); /* host clock of the machine */

/* --- faults ------------------------------------------------------------------------------------*/

typedef struct RingTrailer { /* travels behind a message: --verify-hops */
    int64_t number;
    uint64_t checksum, bytes;
    int32_t pass, step; /* of the sender */
} RingTrailer;

int ring_fault_step(RingRank *r);                      /* --inject exit: when a step begins */
int ring_fault_strike(RingRank *r, RingExchange *x);   /* the others: just before it starts */
int ring_fault_missed(RingRank *r);                    /* the run is over: nothing was injected */
int ring_trailers_add(RingRank *r, RingExchange *x);   /* before the start */
int ring_trailers_check(RingRank *r, RingExchange *x); /* after the wait */
/* Appends a transfer as it is (ring_send and ring_receive do after their checks). */
int ring_exchange_add(RingRank *r, RingExchange *x, RingTransfer transfer);

/* --- runs --------------------------------------------------------------------------------------*/

/* The whole attention in host memory; every rank (of every process) reads its shard from it, since
 * the same seed gives the same inputs everywhere. Outputs are written on rank 0's process only. */
typedef struct RingTask {
    const RingPlan *plan;
    const AttnArgs *args;             /* Q K V dO, and O lse dQ dK dV to be written */
    int warmup, rounds;               /* rounds >= 1 are timed; the outputs are those of the last */
    int trace;                        /* keep events */
    const RingMethodTable *method;    /* NULL: the plan's */
    double *forward_ms, *backward_ms; /* [rounds], slowest rank; backward NULL without one */
    /* The backend's local baseline after each round: so many calls, on all ranks at once; ms of
     * one. */
    int baseline_calls;
    double *baseline_ms,
        *baseline_backward_ms; /* [rounds], as above; NULL with baseline_calls = 0 */
} RingTask;

/* to [B][shard tokens][heads][d] = those tokens of `from`, whatever its strides, in the rank's own
 * memory. */
int ring_shard_read(RingRank *r, void *to, const Tensor *from, const RingShard *shard);
/* All ranks call them: results of all into the whole tensors on rank 0; ms [count]: this rank's, on
 * rank 0 afterwards those of the slowest. */
int ring_collect_forward(RingRank *r, const RingTask *task);
int ring_collect_backward(RingRank *r, const RingTask *task);
int ring_collect_times(RingRank *r, double *ms, int count);

/* What one rank tells when it is done; the world collects them all on rank 0's process. */
typedef struct RingRankReport {
    int rank, failed;
    char failure[256];
    RingTraffic traffic;
    size_t peak_bytes, peak_backward_bytes, workspace_bytes;
} RingRankReport;

typedef struct RingReport {
    int ranks;
    RingRankReport rank[RING_MAX_RANKS];
    RingEvent *events[RING_MAX_RANKS]; /* with task.trace; of the last round */
    int64_t event_count[RING_MAX_RANKS];
    int failed;
    char failure[512]; /* the first thing that went wrong, with rank, step, operation; or the
                          deadlock's who waits for whom */
    uint64_t schedule; /* sim with --seed-schedule: a fingerprint of the order of everything */
} RingReport;

const RingMethodRow *ring_method_row(RingMethod method); /* NULL: there is none */
const RingMethodTable *ring_method(RingMethod method);   /* its passes */

/* The plain numbers of a rank that has its rank, world and plan. */
void ring_rank_numbers(RingRank *r);
/* One rank from its shard to its results: set-up, rounds, results to rank 0. The caller has set
 * rank, world, plan, transport, endpoint, backend and threads; log, failure and counts are there to
 * be read until ring_rank_release. */
int ring_rank_main(RingRank *r, const RingTask *task);
void ring_rank_release(RingRank *r);
/* What this rank has to tell. Its events change hands. */
void ring_rank_report(RingRank *r, RingReport *report);
/* All ranks call it after a run without failures: rank 0's report gets what the others have to
 * tell, by host messages. */
int ring_report_gather(RingRank *r, RingReport *report);

/* Ranks as threads of this process, memory and arithmetic of `backend`. 0, or -1:
 * report->failure. */
int ring_world_sim(const RingTask *task, const RingBackend *backend, RingReport *report);
void ring_report_free(RingReport *report);

#ifdef __cplusplus
}
#endif
#endif
