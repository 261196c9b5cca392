/* SPDX-License-Identifier: MIT
 *
 * contract_ring.c: the contract of ring methods. Each rank is a process of its own with its own
 * shard; a thread of the judge stands beside each and carries its messages.
 *
 *     rank 0's process <-> thread 0 -+
 *     rank 1's process <-> thread 1 -+- queue[from][to] -> who waits for whom is known here
 *     rank 2's process <-> thread 2 -+
 *
 * A send is copied into a queue and returns. A receive waits until the queue has something. So the
 * only way to hang together is that every rank that is still at work waits for an empty queue, and
 * that is seen at once, with the reason.
 *
 * With --backward the backward pass is judged alone: each rank gets O and lse of the reference.
 *
 * Interface: contract_ring_method (contract.h).
 */
#include "course/contract.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORLD = 16, MAILBOX_LEAST = 1 << 20, MAILBOX_MOST = 1 << 24, MOST_QUEUED = 1 << 26 };
#define FIXED (2.0 * 0x1p20)

/* Which tokens a rank has, and its part of all tensors. */
typedef struct Shard {
    int32_t count, *position; /* in the sequence, which is the row of the whole tensors, too */
    float *Q, *K, *V, *dO, *O, *lse; /* O and lse: of the reference, for a backward pass */
} Shard;

typedef struct RingCase {
    int world;
    int32_t tokens[MAX_WORLD], *positions; /* [N], rank after rank */
    Shard shard[MAX_WORLD];
    size_t mailbox_bytes;
} RingCase;

/* --- shards ------------------------------------------------------------------------------------*/

/* The rank that has token t of N. */
static int owner(const CliRing *ring, int world, int64_t t, int64_t N)
{
    const RingLayout layout = ring->layout_given ? ring->layout : RING_CONTIGUOUS;
    if (layout == RING_STRIPED)
        return (int)(t % world);
    if (layout == RING_ZIGZAG) {
        const int64_t chunk = t * 2 * world / N;
        return (int)(chunk < world ? chunk : 2 * world - 1 - chunk);
    }
    return (int)(t * world / N);
}

/* Rows of a tensor [1][N][heads][d] that belong to a shard: [count][heads][d]. */
static float *gather(const Shard *s, const Tensor *from)
{
    const int64_t heads = from->shape[2], d = from->shape[3];
    float *to = case_alloc(s->count * heads * d, sizeof *to);
    for (int32_t n = 0; n < s->count; n++)
        for (int64_t h = 0; h < heads; h++)
            tensor_read_row(from, 0, s->position[n], h, to + (n * heads + h) * d);
    return to;
}

static void scatter(const Shard *s, const float *from, const Tensor *to)
{
    const int64_t heads = to->shape[2], d = to->shape[3];
    for (int32_t n = 0; n < s->count; n++)
        for (int64_t h = 0; h < heads; h++)
            tensor_write_row(to, 0, s->position[n], h, from + (n * heads + h) * d);
}

static void make_reference_shard(const JudgeCase *c, Shard *s)
{
    const int64_t H = c->flags->H, N = c->flags->Nq, d = c->flags->d;
    s->O = case_alloc(s->count * H * d, sizeof *s->O);
    s->lse = case_alloc(s->count * H, sizeof *s->lse);
    for (int64_t h = 0; h < H; h++)
        for (int32_t n = 0; n < s->count; n++) {
            const int64_t row = h * N + s->position[n];
            s->lse[h * s->count + n] = (float)c->oracle.lse.value[row];
            for (int64_t x = 0; x < d; x++)
                s->O[(n * H + h) * d + x] = (float)c->oracle.O.value[row * d + x];
        }
}

static void make_shards(const JudgeCase *c, RingCase *ring)
{
    const int64_t N = c->flags->Nq;
    const AttnArgs *a = &c->problem.args;
    int32_t *at = ring->positions = case_alloc(N, sizeof *at);
    for (int r = 0; r < ring->world; r++) {
        Shard *s = &ring->shard[r];
        s->position = at;
        for (int64_t t = 0; t < N; t++)
            if (owner(&c->flags->ring, ring->world, t, N) == r)
                at[s->count++] = (int32_t)t;
        at += s->count;
        ring->tokens[r] = s->count;
        s->Q = gather(s, &a->Q);
        s->K = gather(s, &a->K);
        s->V = gather(s, &a->V);
        if (c->flags->backward) {
            s->dO = gather(s, &a->dO);
            make_reference_shard(c, s);
        }
    }
}

static int make_ring(JudgeCase *c)
{
    const CliCase *f = c->flags;
    RingCase *ring;
    int status;
    if (case_is_square(c) != EXIT_OK)
        return EXIT_USAGE;
    if (f->ring.ranks > MAX_WORLD || f->Nq < 2 * f->ring.ranks)
        return cli_refuse("--ranks: found %" PRId64 " for %" PRId64
                          " tokens, accepted are 1 to %d, "
                          "and two tokens for each at least",
                          f->ring.ranks, f->Nq, MAX_WORLD);
    status = case_make_reference(c);
    if (status != EXIT_OK)
        return status;
    c->own = ring = case_alloc(1, sizeof *ring);
    ring->world = (int)f->ring.ranks;
    /* a few tensors of all tokens in one message; MAILBOX_MOST: a larger one is refused */
    ring->mailbox_bytes = (size_t)(8 * f->Nq * (f->H + f->Hkv) * f->d) * sizeof(float);
    if (ring->mailbox_bytes < MAILBOX_LEAST)
        ring->mailbox_bytes = MAILBOX_LEAST;
    if (ring->mailbox_bytes > MAILBOX_MOST)
        ring->mailbox_bytes = MAILBOX_MOST;
    make_shards(c, ring);
    return EXIT_OK;
}

/* --- messages ----------------------------------------------------------------------------------*/

typedef struct Letter {
    struct Letter *next;
    size_t bytes;
    unsigned char data[];
} Letter;

typedef struct Post {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int world;
    Letter *first[MAX_WORLD][MAX_WORLD]; /* [from][to] */
    int waits_for[MAX_WORLD];            /* a rank; -1: it is at work; world: it has ended */
    int64_t messages, sent_bytes, to_strangers, empty;
    size_t queued; /* bytes that nobody has received yet */
    int stopped, late;
    const char *code;
    char why[512]; /* the harness's reason to stop, "" if a rank ended by itself */
} Post;

typedef struct RingRankRun {
    Post *post;
    int rank;
} RingRankRun;

/* Into p->why: what, and what each rank does. */
static void explain_ranks(Post *p, const char *what)
{
    size_t used = (size_t)snprintf(p->why, sizeof p->why, "%s: ", what);
    for (int r = 0; r < p->world && used < sizeof p->why; r++) {
        char *to = p->why + used;
        const size_t room = sizeof p->why - used;
        const char *comma = r > 0 ? ", " : "";
        used += (size_t)(p->waits_for[r] < 0 ? snprintf(to, room, "%srank %d is at work", comma, r)
                         : p->waits_for[r] == p->world
                             ? snprintf(to, room, "%srank %d has ended", comma, r)
                             : snprintf(to, room, "%srank %d waits for a message of rank %d", comma,
                                        r, p->waits_for[r]));
    }
}

/* All who are still there wait for a message that nobody sent: 1, and p->why says who for whom. */
static int is_stuck(Post *p)
{
    int waiting = 0;
    for (int r = 0; r < p->world; r++) {
        if (p->waits_for[r] < 0 ||
            (p->waits_for[r] < p->world && p->first[p->waits_for[r]][r] != NULL))
            return 0;
        waiting += p->waits_for[r] < p->world;
    }
    if (waiting == 0)
        return 0;
    explain_ranks(p, "no rank can go on");
    p->code = "deadlock";
    return 1;
}

static void stop(Post *p)
{
    p->stopped = 1;
    pthread_cond_broadcast(&p->changed);
}

static int post_letter(Post *p, int rank, const IsolateMessage *m)
{
    Letter *letter, **end;
    if (p->queued + m->bytes > MOST_QUEUED || !(letter = malloc(sizeof *letter + m->bytes))) {
        snprintf(p->why, sizeof p->why,
                 "rank %d sends, and more than %d MiB of messages wait for a rank that receives "
                 "them",
                 rank, MOST_QUEUED >> 20);
        return 0;
    }
    p->queued += m->bytes;
    letter->next = NULL;
    letter->bytes = m->bytes;
    memcpy(letter->data, m->data, m->bytes);
    for (end = &p->first[rank][m->peer]; *end; end = &(*end)->next)
        ;
    *end = letter;
    p->messages++;
    p->empty += m->bytes == 0;
    p->sent_bytes += (int64_t)m->bytes;
    p->to_strangers +=
        m->peer != (rank + 1) % p->world && m->peer != (rank + p->world - 1) % p->world;
    pthread_cond_broadcast(&p->changed);
    return 1;
}

static int fetch_letter(Post *p, int rank, const IsolateMessage *m)
{
    Letter *letter;
    p->waits_for[rank] = m->peer;
    while (!p->stopped && !p->first[m->peer][rank]) {
        if (is_stuck(p))
            return 0;
        /* no limit here: somebody is at work, and has a limit of its own */
        pthread_cond_wait(&p->changed, &p->lock);
    }
    if (p->stopped)
        return 0;
    p->waits_for[rank] = -1;
    letter = p->first[m->peer][rank];
    if (letter->bytes != m->bytes) {
        p->code = "message_size";
        snprintf(p->why, sizeof p->why,
                 "rank %d receives %zu bytes of rank %d, whose next message has %zu", rank,
                 m->bytes, m->peer, letter->bytes);
        return 0;
    }
    memcpy(m->data, letter->data, letter->bytes);
    p->queued -= letter->bytes;
    p->first[m->peer][rank] = letter->next;
    free(letter);
    return 1;
}

static int carry(void *context, const IsolateMessage *m)
{
    const RingRankRun *me = context;
    Post *p = me->post;
    int good;
    pthread_mutex_lock(&p->lock);
    good = !p->stopped;
    if (good && (m->peer < 0 || m->peer >= p->world)) {
        p->code = "no_such_rank";
        snprintf(p->why, sizeof p->why, "rank %d %s rank %d, accepted is 0 to %d", me->rank,
                 m->is_send ? "sends to" : "receives of", m->peer, p->world - 1);
        good = 0;
    }
    if (good)
        good = m->is_send ? post_letter(p, me->rank, m) : fetch_letter(p, me->rank, m);
    if (!good)
        stop(p);
    pthread_mutex_unlock(&p->lock);
    return good;
}

static int somebody_waits(const Post *p)
{
    for (int r = 0; r < p->world; r++)
        if (p->waits_for[r] >= 0 && p->waits_for[r] < p->world)
            return 1;
    return 0;
}

static void end_rank(Post *p, int rank, int good, IsolateEnd end)
{
    pthread_mutex_lock(&p->lock);
    if (end == ISOLATE_TIME && !p->stopped && somebody_waits(p)) {
        p->late = 1;
        explain_ranks(p, "the time is over");
    }
    p->waits_for[rank] = p->world;
    if (!good || is_stuck(p))
        stop(p);
    pthread_mutex_unlock(&p->lock);
}

/* --- ranks -------------------------------------------------------------------------------------*/

typedef struct RankThread {
    RingRankRun me;
    const JudgeCase *c;
    IsolateTask task;
    RingNumbers numbers;
    const char *symbol;
    IsolateResult end;
    pthread_barrier_t *together;
    float *O, *lse, *dQ, *dK, *dV, *mailbox; /* of this rank */
    int intact;
} RankThread;

static void *run_rank(void *argument)
{
    RankThread *t = argument;
    Isolate *session = isolate_open(&t->task, &t->end);
    int good;
    pthread_barrier_wait(t->together);
    good =
        session && isolate_call(session, "ring_method", t->symbol, &t->numbers, sizeof t->numbers);
    t->intact = !good || isolate_take(session);
    end_rank(t->me.post, t->me.rank, good && t->end.status == 0, t->end.end);
    if (session)
        isolate_close(session);
    return NULL;
}

/* Room for a rank's results, and its task. 0, or -1: no memory. */
static int prepare_rank(RankThread *t, const JudgeLimits *limits, const char *library, int backward)
{
    const JudgeCase *c = t->c;
    const RingCase *ring = c->own;
    const Shard *s = &ring->shard[t->me.rank];
    const AttnArgs *a = &c->problem.args;
    const size_t rows = (size_t)(s->count * c->flags->H), keys = (size_t)(s->count * c->flags->Hkv);
    const size_t q = rows * (size_t)c->flags->d * sizeof(float);
    const size_t kv = keys * (size_t)c->flags->d * sizeof(float), lse = rows * sizeof(float);
    IsolateTask *task = &t->task;
    RingNumbers *n = &t->numbers;
    *task = run_task(limits, library);
    t->O = malloc(q + lse + 1);
    t->dQ = malloc(q + 2 * kv + 1);
    t->mailbox = malloc(ring->mailbox_bytes);
    if (!t->O || !t->dQ || !t->mailbox)
        return -1;
    t->lse = t->O + rows * (size_t)c->flags->d;
    t->dK = t->dQ + rows * (size_t)c->flags->d;
    t->dV = t->dK + keys * (size_t)c->flags->d;
    memset(t->O, 0xFF, q + lse);
    if (backward)
        memset(t->dQ, 0xFF, q + 2 * kv);
    run_add(task, "Q", s->Q, q, 0);
    run_add(task, "K", s->K, kv, 0);
    run_add(task, "V", s->V, kv, 0);
    run_add(task, "O", backward ? s->O : t->O, q, !backward);
    run_add(task, "lse", backward ? s->lse : t->lse, lse, !backward);
    run_add(task, "tokens", ring->tokens, (size_t)ring->world * sizeof *ring->tokens, 0);
    run_add(task, "positions", ring->positions, (size_t)c->flags->Nq * sizeof *ring->positions, 0);
    run_add(task, "a message", t->mailbox, ring->mailbox_bytes, 1);
    task->mailbox = task->array_count - 1;
    if (backward) {
        run_add(task, "dO", s->dO, q, 0);
        run_add(task, "dQ", t->dQ, q, 1);
        run_add(task, "dK", t->dK, kv, 1);
        run_add(task, "dV", t->dV, kv, 1);
    }
    task->relay = carry;
    task->context = &t->me;
    *n = (RingNumbers){.Q = isolate_pointer(task, s->Q),
                       .K = isolate_pointer(task, s->K),
                       .V = isolate_pointer(task, s->V),
                       .O = isolate_pointer(task, task->arrays[3].data),
                       .lse = isolate_pointer(task, task->arrays[4].data),
                       .tokens = isolate_pointer(task, task->arrays[5].data),
                       .positions = isolate_pointer(task, ring->positions),
                       .mailbox = isolate_pointer(task, t->mailbox),
                       .mailbox_bytes = (int64_t)ring->mailbox_bytes,
                       .rank = t->me.rank,
                       .world = ring->world,
                       .H = (int32_t)c->flags->H,
                       .Hkv = (int32_t)c->flags->Hkv,
                       .d = (int32_t)c->flags->d,
                       .left = (int32_t)a->rule.left,
                       .right = (int32_t)a->rule.right,
                       .scale = a->scale};
    if (backward) {
        n->dO = isolate_pointer(task, s->dO);
        n->dQ = isolate_pointer(task, t->dQ);
        n->dK = isolate_pointer(task, t->dK);
        n->dV = isolate_pointer(task, t->dV);
    }
    return 0;
}

/* What one rank computed into the whole tensors. */
static void collect_rank(const RankThread *t, JudgeRun *run, int backward)
{
    const JudgeCase *c = t->c;
    const Shard *s = &((const RingCase *)c->own)->shard[t->me.rank];
    const AttnArgs *out = &run->out.args;
    const float *lse = backward ? s->lse : t->lse;
    scatter(s, backward ? s->O : t->O, &out->O);
    for (int64_t h = 0; h < c->flags->H; h++)
        for (int32_t n = 0; n < s->count; n++)
            out->lse[h * c->flags->Nq + s->position[n]] = lse[h * s->count + n];
    if (backward) {
        scatter(s, t->dQ, &out->dQ);
        scatter(s, t->dK, &out->dK);
        scatter(s, t->dV, &out->dV);
    }
}

/* How all ranks together ended: as the first that did not end well, or as the harness says. */
static void sum_up(const RankThread *ranks, const Post *p, JudgeRun *run)
{
    int worst = 0;
    for (int r = p->world - 1; r >= 0; r--) {
        const int was_stopped = ranks[r].end.end == ISOLATE_REFUSED && p->why[0];
        run->ms = ranks[r].end.ms > run->ms ? ranks[r].end.ms : run->ms;
        if ((ranks[r].end.end != ISOLATE_FINISHED || ranks[r].end.status != 0) && !was_stopped)
            worst = r;
    }
    for (int r = p->world - 1; r >= 0;
         r--) /* one that another's end has stopped is not the cause */
        if (ranks[r].end.end != ISOLATE_FINISHED &&
            strcmp(ranks[r].end.sentence, "its message was refused") != 0)
            worst = r;
    run->end = ranks[worst].end;
    for (int r = 0; r < p->world; r++)
        if (ranks[r].end.peak_bytes > run->end.peak_bytes)
            run->end.peak_bytes = ranks[r].end.peak_bytes;
    if (p->late) {
        run->end.end = ISOLATE_TIME;
        memcpy(run->end.sentence, p->why, sizeof p->why);
    } else if (p->why[0]) {
        run->end.end = ISOLATE_FINISHED;
        run->end.status = 0;
        snprintf(run->message, sizeof run->message, "%s", p->why);
        run->code = p->code;
    } else if (run->end.end != ISOLATE_FINISHED && p->world > 1)
        snprintf(run->end.sentence, sizeof run->end.sentence, "rank %d: %.480s", worst,
                 ranks[worst].end.sentence);
}

static void require_ring(const JudgeCase *c, const Post *p, JudgeRun *run)
{
    if (!c->require_ring || p->world == 1 || run->message[0] || run->end.end != ISOLATE_FINISHED)
        return;
    if (p->messages == 0)
        snprintf(run->end.sentence, sizeof run->end.sentence,
                 "no rank sent a message, accepted is a ring (--require ring)");
    else if (p->to_strangers > 0)
        snprintf(run->end.sentence, sizeof run->end.sentence,
                 "%" PRId64 " of %" PRId64 " messages went to ranks that are no neighbours, "
                 "accepted is a ring (--require ring)",
                 p->to_strangers, p->messages);
    else if (p->empty > 0)
        snprintf(run->end.sentence, sizeof run->end.sentence,
                 "%" PRId64 " of %" PRId64 " messages were empty, accepted are those that move "
                 "something (--require ring)",
                 p->empty, p->messages);
    else if (p->queued > 0)
        snprintf(run->end.sentence, sizeof run->end.sentence,
                 "%zu bytes of messages were sent and never received, accepted is a ring "
                 "(--require ring)",
                 p->queued);
    else
        return;
    run->end.end = ISOLATE_REFUSED;
}

/* What a rank may take beside its own arrays and the message in transit, which are in memory before
 * it is called and so not in its peak: three blocks of K and V, a copy of its own among them, and
 * three arrays as large as O (float64 sums, and a block's result). FIXED: code, stacks, rows. */
static void require_blocks(const JudgeCase *c, const RankThread *ranks, int world, JudgeRun *run)
{
    const int64_t d = c->flags->d;
    const int32_t *tokens = ((const RingCase *)c->own)->tokens;
    int32_t most = 0;
    if (!c->require_blocks || run->message[0] || run->end.end != ISOLATE_FINISHED)
        return;
    for (int r = 0; r < world; r++)
        most = tokens[r] > most ? tokens[r] : most;
    for (int r = 0; r < world; r++) {
        const double sums = 3.0 * (double)(tokens[r] * c->flags->H * d);
        const double blocks = 3.0 * 2.0 * (double)(most * c->flags->Hkv * d);
        const double allowed = FIXED + sizeof(float) * (sums + blocks);
        const double took = (double)ranks[r].end.peak_bytes;
        if (took <= allowed)
            continue;
        run->end.end = ISOLATE_MEMORY;
        run->code = "more_than_three_blocks";
        snprintf(run->end.sentence, sizeof run->end.sentence,
                 "rank %d took %.1f MiB, accepted are %.1f: three blocks of K and V, and sums "
                 "(--require blocks)",
                 r, took / 0x1p20, allowed / 0x1p20);
        return;
    }
}

static void run_ranks(const JudgeCase *c, RankThread *ranks, Post *post, JudgeRun *run)
{
    pthread_t threads[MAX_WORLD];
    pthread_barrier_t together;
    int started = 0;
    pthread_mutex_init(&post->lock, NULL);
    pthread_cond_init(&post->changed, NULL);
    pthread_barrier_init(&together, NULL, (unsigned)post->world);
    for (int r = 0; r < post->world; r++) {
        ranks[r].together = &together;
        if (pthread_create(&threads[r], NULL, run_rank, &ranks[r]) != 0)
            abort(); /* those that wait at the barrier would wait for ever */
        started++;
    }
    for (int r = 0; r < started; r++)
        pthread_join(threads[r], NULL);
    sum_up(ranks, post, run);
    require_ring(c, post, run);
    require_blocks(c, ranks, post->world, run);
    pthread_barrier_destroy(&together);
    pthread_cond_destroy(&post->changed);
    pthread_mutex_destroy(&post->lock);
}

static void run_ring(const JudgeCase *c, const JudgeLimits *limits, const char *library,
                     JudgeRun *run)
{
    const int world = ((const RingCase *)c->own)->world, backward = c->flags->backward;
    RankThread *ranks = calloc(MAX_WORLD, sizeof *ranks);
    Post *post = calloc(1, sizeof *post);
    int failed = !ranks || !post;
    if (run_outputs_new(c, run) != 0)
        failed = 1;
    for (int r = 0; !failed && r < world; r++) {
        post->world = world;
        post->waits_for[r] = -1;
        ranks[r] =
            (RankThread){.me = {post, r},
                         .c = c,
                         .symbol = backward ? "ring_method_variant_backward" : c->contract->symbol};
        failed = prepare_rank(&ranks[r], limits, library, backward) != 0;
    }
    if (failed)
        run->end.end = ISOLATE_BROKEN;
    else
        run_ranks(c, ranks, post, run);
    for (int r = 0; ranks && r < world; r++) {
        if (!failed && run->end.end == ISOLATE_FINISHED) {
            collect_rank(&ranks[r], run, backward);
            run->check.storage_intact &= ranks[r].intact;
        }
        free(ranks[r].O);
        free(ranks[r].dQ);
        free(ranks[r].mailbox);
        for (int to = 0; post && to < world; to++)
            while (post->first[r][to]) {
                Letter *letter = post->first[r][to];
                post->first[r][to] = letter->next;
                free(letter);
            }
    }
    if (post) {
        run->messages = post->messages;
        run->sent_bytes = post->sent_bytes;
    }
    free(ranks);
    free(post);
}

static void judge_ring(const JudgeCase *c, JudgeRun *run)
{
    const RingCase *ring = c->own;
    if (run->message[0]) /* it did not come to an end: nothing to compare */
        return;
    run_take_truth(c, run);
    check_outputs(&run->check, &c->oracle, &run->out.args, c->flags->backward, 4.0);
    if (!run->check.pass && !c->flags->backward && c->truth.mask == c->problem.args.mask &&
        c->truth.softcap == c->problem.args.softcap)
        ring_hints_find(c, ring->world, ring->tokens, ring->positions, run);
}

static const char *const ring_flags[] = {"--seq",      "-N",         "--heads",    "-H",
                                         "--kv-heads", "--head-dim", "-d",         "--causal",
                                         "--window",   "--scale",    "--seed",     "--dist",
                                         "--ranks",    "--layout",   "--backward", NULL};
const Contract contract_ring_method = {.name = "ring_method",
                                       .symbol = "ring_method_variant",
                                       .features = STAGE_HAS_RANKS | STAGE_HAS_BACKWARD,
                                       .flags = ring_flags,
                                       .make = make_ring,
                                       .run = run_ring,
                                       .judge = judge_ring};
