/* SPDX-License-Identifier: MIT
 *
 * runner_contracts.c: how a runner calls a function of a submission: a row for each prototype.
 *
 * - "attn": AttnStatus f(const AttnArgs *), what every stage has.
 * - The small contracts: their prototypes are those of the course's headers, so a header that
 *   changes and a call that does not cannot both compile.
 * - One rank of a ring method: RingPart for the submission, and its messages. A message goes
 *   through an array that the judge sees, too: the judge copies it, counts it, and hands it to the
 *   other rank's process when that one asks. No rank can see another's memory.
 *
 * Interface: runner_contract (runner.h).
 */
#include "course/runner_contracts.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backward_steps.h"
#include "course/attn_block.h"
#include "course/runner_trace.h"
#include "flash_simple.h"
#include "ring_method.h"
#include "sliding_window_step.h"
#include "softmax_merge.h"
#include "softmax_rows.h"
#include "softmax_twist.h"

/* dlsym gives a void *, which ISO C does not let us cast to a function. */
static int call_attn(const RunnerCall *call)
{
    AttnBlock block;
    AttnFn function;
    memcpy(&function, &call->function, sizeof function);
    if (attn_block_open(&block, call) != 0)
        return -1;
    runner_trace_shape(block.args.shape.Nq, block.args.shape.d);
    return (int)function(&block.args);
}

/* --- small contracts ---------------------------------------------------------------------------*/

/* The numbers of a call; 0: they are not those of a small contract. */
static int read_numbers(const RunnerCall *call, SmallNumbers *n, void *pointer[SMALL_POINTERS])
{
    if (call->bytes != sizeof *n)
        return 0;
    memcpy(n, call->numbers, sizeof *n);
    for (int i = 0; i < SMALL_POINTERS; i++)
        pointer[i] = runner_pointer(call, n->pointer[i]);
    runner_trace_shape(n->integer[0], n->integer[1]); /* N and d where states mean something */
    return 1;
}

/* A function `call_NAME` that calls what has the prototype `of`, with p[] and n[]. */
#define CALL(name, of, ...)                                                                        \
    static int call_##name(const RunnerCall *call)                                                 \
    {                                                                                              \
        SmallNumbers numbers;                                                                      \
        void *p[SMALL_POINTERS];                                                                   \
        const int32_t *n = numbers.integer;                                                        \
        __typeof__(of) *function;                                                                  \
        memcpy(&function, &call->function, sizeof function);                                       \
        return read_numbers(call, &numbers, p) ? function(__VA_ARGS__) : -1;                       \
    }

CALL(flash_simple, flash_simple_variant, p[0], p[1], p[2], p[3], p[4], n[0], n[1], n[2])
CALL(flash_cuda, flash_cuda_variant, p[0], p[1], p[2], p[3], p[4], n[0], n[1], n[2], p[5], p[6])
CALL(delta, backward_delta_variant, p[0], p[1], p[2], n[0], n[1])
CALL(dv, backward_dv_variant, p[0], p[1], p[2], p[3], p[4], n[0], n[1], n[2])
CALL(dk, backward_dk_variant, p[0], p[1], p[2], p[3], p[4], p[5], p[6], n[0], n[1], n[2])
CALL(dq, backward_dq_variant, p[0], p[1], p[2], p[3], p[4], p[5], p[6], n[0], n[1], n[2])
CALL(rows, softmax_rows_variant, p[0], p[1], p[2], n[0], n[1])
CALL(twist, softmax_twist_variant, p[0], p[1], p[2], n[0], n[1], n[2])
CALL(merge, softmax_merge_variant, p[0], p[1], p[2], p[3], p[4], p[5], n[0])

static int call_step(const RunnerCall *call)
{
    SmallNumbers numbers;
    void *p[SMALL_POINTERS];
    const int32_t *n = numbers.integer;
    __typeof__(sliding_window_step_variant) *function;
    SlidingStep step;
    if (!read_numbers(call, &numbers, p))
        return -1;
    memcpy(&function, &call->function, sizeof function);
    step = (SlidingStep){.Br = n[0],
                         .Bc = n[1],
                         .d = n[2],
                         .rows_q = n[3],
                         .rows_k = n[4],
                         .position_q = n[5],
                         .position_k = n[6],
                         .left = n[7],
                         .right = n[8],
                         .first_row = n[9],
                         .Nq = n[10],
                         .scale = numbers.real,
                         .Q_i = p[0],
                         .K_j = p[1],
                         .V_j = p[2],
                         .global_o = p[3],
                         .global_lse = p[4]};
    return function(&step);
}

/* --- a ring method -----------------------------------------------------------------------------*/

enum { MAX_WORLD = 64 };

/* What `harness` of a part points to. */
typedef struct Mailbox {
    unsigned char *data;
    size_t bytes;
    pthread_mutex_t one_at_a_time; /* threads of a submission may send, too */
} Mailbox;

/* Tells the judge and waits for its answer. No answer: it has ended the run. */
static void ask_judge(RunnerSays says, int peer, size_t bytes)
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
    ask_judge(RUNNER_SENDS, to, bytes);
    pthread_mutex_unlock(&mailbox->one_at_a_time);
}

static void ring_receive(const RingPart *part, int from, void *data, size_t bytes)
{
    Mailbox *mailbox = part->harness;
    pthread_mutex_lock(&mailbox->one_at_a_time);
    ask_judge(RUNNER_RECEIVES, from, bytes);
    memcpy(data, mailbox->data, bytes);
    pthread_mutex_unlock(&mailbox->one_at_a_time);
}

static int call_ring(const RunnerCall *call)
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

static const RunnerContract contracts[] = {{"attn", call_attn},
                                           {"flash_simple", call_flash_simple},
                                           {"flash_cuda", call_flash_cuda},
                                           {"delta", call_delta},
                                           {"dV", call_dv},
                                           {"dK", call_dk},
                                           {"dQ", call_dq},
                                           {"softmax_rows", call_rows},
                                           {"softmax_merge", call_merge},
                                           {"softmax_twist", call_twist},
                                           {"sliding_window_step", call_step},
                                           {"ring_method", call_ring}};

const RunnerContract *runner_contract(const char *name)
{
    for (size_t i = 0; i < sizeof contracts / sizeof *contracts; i++)
        if (strcmp(contracts[i].name, name) == 0)
            return &contracts[i];
    return NULL;
}
