/* SPDX-License-Identifier: MIT
 *
 * ring.c: stage 06 for a step page: the timetable that a method writes down itself
 * (planner/rehearse.c), as numbers. No rank is started, nothing is sent.
 *
 *     0 rank first stride length 0 0       tokens that a rank has
 *     1 pass step rank q k pairs           a rank works with queries of rank q and keys of rank k
 *     2 pass step from to tensor bytes     a message
 *     3 ...                                as 1, and the queries came to it, not the keys
 *
 * and, after all of a forward pass, lse and O of each token, one line a step. They are
 * found by a replay: each pair of blocks of the timetable goes to the library's block kernel, which
 * resumes from the state of the step before. So a wrong neighbour shows, a damaged message doesn't.
 *
 * Interface: step_ring, whose result is the log's length, and -1 a case that the stage refuses.
 */
#include <stdlib.h>

#include "attention/forward/flash_library.h"
#include "planner/schedule.h"
#include "planner/shard.h"
#include "runtime/ring_world.h"
#include "watch.h"

enum { NUMBERS = 7, MOST_STEPS = 64, MOST_TOKENS = 64, MOST_D = 16 };

static WatchAt at_line[3][RING_MAX_RANKS][MOST_STEPS]; /* pass, rank, step */

void watch_rank(const RingRank *r, WatchAt at)
{
    if (r->step >= 0 && r->step < MOST_STEPS)
        at_line[r->pass][r->rank][r->step] = at;
}

static void append(WatchAt at, float kind, float a, float b, float c, float d, float e, float f)
{
    const float row[NUMBERS] = {kind, a, b, c, d, e, f};
    watch_values('r', at, NULL, row, 1, NUMBERS, NUMBERS);
}

/* --- the replay --------------------------------------------------------------------------------*/

typedef struct Tokens {
    float lse[MOST_TOKENS], O[MOST_TOKENS * MOST_D]; /* of the whole sequence */
} Tokens;

/* Rows of a whole tensor become rows of a block, or go back. */
static void move_rows(const RingShard *s, float *whole, float *block, int64_t d, int back)
{
    for (int64_t p = 0; p < s->count; p++)
        for (int64_t t = 0; t < s->pieces[p].length * d; t++) {
            const RingPiece *piece = &s->pieces[p];
            float *a = whole + (piece->global + t / d * piece->stride) * d + t % d;
            float *b = block + piece->first * d + t;
            *(back ? a : b) = *(back ? b : a);
        }
}

static Tensor view(float *data, int64_t N, int64_t d)
{
    return (Tensor){data, ATTN_F32, {1, N, 1, d}, {N * d, d, d, 1}};
}

static int replay_pair(const RingPlan *plan, const RingAction *a, Tokens *state)
{
    static float Q[MOST_TOKENS * MOST_D], K[MOST_TOKENS * MOST_D], V[MOST_TOKENS * MOST_D],
        O[MOST_TOKENS * MOST_D], lse[MOST_TOKENS];
    const int64_t d = plan->shape.d, nq = a->q.tokens, nk = a->k.tokens;
    const Problem *p = watch_problem;
    RingShard q, k;
    AttnStatus status = ATTN_NO_MEMORY;
    if (ring_shard_cut(&q, &plan->q[a->q.owner], 1, a->q.first, nq) == 0 &&
        ring_shard_cut(&k, &plan->k[a->k.owner], 1, a->k.first, nk) == 0) {
        AttnArgs args = {.shape = {1, 1, 1, nq, nk, d}, .scale = plan->scale, .threads = 1};
        args.positions_q = attn_positions(q.segments, q.count);
        args.positions_k = attn_positions(k.segments, k.count);
        args.Q = view(Q, nq, d), args.K = view(K, nk, d), args.V = view(V, nk, d);
        args.rule = plan->rule, args.lse = lse;
        move_rows(&q, (float *)p->Q, Q, d, 0);
        move_rows(&k, (float *)p->K, K, d, 0);
        move_rows(&k, (float *)p->V, V, d, 0);
        move_rows(&q, state->O, O, d, 0);
        move_rows(&q, state->lse, lse, 1, 0);
        status = flash_block_cpu(&args, O);
        move_rows(&q, state->O, O, d, 1);
        move_rows(&q, state->lse, lse, 1, 1);
    }
    ring_shard_free(&q);
    ring_shard_free(&k);
    return status == ATTN_OK ? 0 : -1;
}

static int replay(const RingSchedule *s, const RingPlan *plan)
{
    static Tokens state;
    const int64_t N = plan->shape.Nq, d = plan->shape.d;
    int last = 0, failed = 0;
    memset(&state, 0, sizeof state);
    for (int64_t t = 0; t < N; t++)
        state.lse[t] = -INFINITY;
    for (int step = 0; step <= last; step++) {
        for (int r = 0; r < s->ranks; r++)
            for (int n = 0; n < s->count[r]; n++) {
                const RingAction *a = &s->actions[r][n];
                last = a->step > last ? a->step : last;
                if (a->step == step && a->kind == RING_ACT_COMPUTE && a->work.pairs > 0)
                    failed |= replay_pair(plan, a, &state);
            }
        watch_values('=', AT("lse"), NULL, state.lse, N, 1, 1);
        watch_values('=', AT("O"), NULL, state.O, N, d, d);
    }
    return failed;
}

/* --- the timetable -----------------------------------------------------------------------------*/

static int append_pass(const RingPlan *plan, RingPass pass)
{
    const float number = pass == RING_BACKWARD, kind = ring_queries_travel(plan, pass) ? 3 : 1;
    int failed = 0;
    RingSchedule s;
    if (ring_schedule_make(&s, plan, pass) != 0)
        return -1;
    for (int r = 0; r < s.ranks; r++)
        for (int n = 0; n < s.count[r]; n++) {
            const RingAction *a = &s.actions[r][n];
            if (a->kind == RING_ACT_COMPUTE)
                append(at_line[pass][r][a->step % MOST_STEPS], kind, number, (float)a->step,
                       (float)r, (float)a->q.owner, (float)a->k.owner, (float)a->work.pairs);
        }
    for (int n = 0; n < s.message_count; n++) {
        const RingMessage *m = &s.messages[n];
        append(AT("ring"), 2, number, (float)m->step, (float)m->from, (float)m->to,
               (float)m->tensor, (float)m->bytes);
    }
    if (pass == RING_FORWARD)
        failed = replay(&s, plan);
    ring_schedule_free(&s);
    return failed;
}

/* left: the window, or -1. After step_case, whose Q, K, V are those of the replay. */
__attribute__((export_name("step_ring"))) int32_t step_ring(int32_t method, int32_t layout,
                                                            int32_t ranks, int32_t causal,
                                                            int32_t left, int32_t backward)
{
    const int32_t N = watch_problem->Nq, d = watch_problem->d;
    AttnSegment all = {0, N, 0, 0, 1};
    AttnArgs args = {.shape = {1, 1, 1, N, N, d}, .rule = {left, causal ? 0 : -1}, .threads = 1};
    RingSetup setup = {.ranks = ranks, .nodes = 1, .partials = ATTN_F32, .threads = 1};
    char why[256];
    RingPlan plan;
    int failed;
    setup.method = (RingMethod)method, setup.layout = (RingLayout)layout;
    args.positions_q = args.positions_k = (AttnPositions){&all, 1, &all};
    args.scale = watch_problem->scale;
    args.dO.data = backward ? (void *)&at_line : NULL; /* that there is one is all that is asked */
    watch_clear();
    if (N > MOST_TOKENS || ring_plan_make(&plan, &args, &setup, why) != 0)
        return -1;
    for (int r = 0; r < ranks; r++)
        for (int64_t p = 0; p < plan.q[r].count; p++) {
            const RingPiece *t = &plan.q[r].pieces[p];
            append(AT("ring"), 0, (float)r, (float)t->global, (float)t->stride, (float)t->length, 0,
                   0);
        }
    failed = append_pass(&plan, RING_FORWARD) || (backward && append_pass(&plan, RING_BACKWARD));
    ring_plan_free(&plan);
    return failed ? -1 : watch_length();
}

/* alloc.c asks for huge pages; wasi-libc has no such call. */
int madvise(void *at, size_t bytes, int advice)
{
    (void)at, (void)bytes, (void)advice;
    return 0;
}
