/* SPDX-License-Identifier: MIT
 *
 * trace_screen.c: --trace, a plan as one screen of text: which tokens each rank has, whose block is
 * where at each step of both passes, and how much of it is seen.
 *
 *     triangle   a diagonal goes through: pairs are asked one by one
 *     full       all pairs are visible: the kernel asks nobody
 *     half       a half of the queries sees all keys, or all queries see a half of them
 *     band       the edge of a window goes through
 *     mask       a full mask has holes in it
 *     skip       nothing is visible: the block only passes through
 *
 * The table is drawn from the timetable that the method has written (schedule.h); nobody computes.
 *
 * Interface: ring_trace_screen, ring_trace_steps (trace.h).
 */
#include "show/trace.h"

#include "planner/schedule.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 80, LABEL = 8 };

/* One word for a pair of shards. "half" is what zigzag makes of every pair of different ranks. */
static const char *mask_word(const RingPlan *plan, int q_rank, int k_rank)
{
    const RingWork work = ring_pair_work(plan, q_rank, k_rank);
    if (work.tile == ATTN_TILE_SKIP)
        return "skip";
    if (work.tile == ATTN_TILE_CLEAN)
        return "full";
    if (plan->mask)
        return "mask";
    /* Each query sees whole runs of keys: rectangles, no edge. Between a rank's own tokens there is
     * one; where runs have one token, no row shows it. */
    if (work.partial_rows == 0 && q_rank != k_rank)
        return "half";
    return plan->rule.left >= 0 || plan->rule.right > 0 ? "band" : "triangle";
}

/* --- who has which tokens ----------------------------------------------------------------------*/

/* "0-7 56-63", or with stripes "1 5 9 ... 61": as much as fits into `room` characters. */
static void print_tokens(FILE *out, const RingShard *shard, int room)
{
    int used = 0; /* characters */
    for (int64_t p = 0; p < shard->count; p++) {
        const RingPiece *piece = &shard->pieces[p];
        const int64_t stride = piece->stride, first = piece->global;
        const int64_t last = first + (piece->length - 1) * stride;
        char text[96];
        if (last == first)
            snprintf(text, sizeof text, " %" PRId64, first);
        else if (stride == 1)
            snprintf(text, sizeof text, " %" PRId64 "-%" PRId64, first, last);
        else
            snprintf(text, sizeof text, " %" PRId64 " %" PRId64 " .. %" PRId64, first,
                     first + stride, last);
        used += (int)strlen(text);
        if (used > room - 4) {
            fputs(" ...", out);
            return;
        }
        fputs(text, out);
    }
    if (shard->count == 0)
        fputs(" none", out);
}

/* Queries and keys have shards of their own where there are more of the one than of the other. */
static void print_shares(FILE *out, const RingPlan *plan)
{
    const int crossed = plan->shape.Nq != plan->shape.Nk;
    for (int r = 0; r < plan->setup.ranks; r++) {
        const RingShard *sides[] = {&plan->q[r], &plan->k[r]};
        fprintf(out, "rank %-2d ", r);
        for (int side = 0; side <= crossed; side++) {
            fputs(!crossed ? "tokens" : side ? ", keys" : "queries", out);
            print_tokens(out, sides[side], crossed ? 28 : 64);
        }
        fputc('\n', out);
    }
}

/* --- who has whose block -----------------------------------------------------------------------*/

typedef char Cell[96];

/* Adds one remote block, as "K3 half" or "Q3 half"; letters: of the word. */
static void add_remote(Cell cell, const RingSchedule *s, int rank, const RingAction *a, int letters)
{
    const int queries_visit = ring_queries_travel(s->plan, s->pass);
    const size_t used = strlen(cell);
    if (a->heads < 1) { /* a part of the heads for each rank: ulysses, and nobody visits */
        const int64_t share = s->plan->shape.H / s->ranks;
        snprintf(cell, sizeof(Cell), "heads %" PRId64 "-%" PRId64 " of all tokens", rank * share,
                 (rank + 1) * share - 1);
        return;
    }
    snprintf(cell + used, sizeof(Cell) - used, "%s%c%d %.*s", used ? " " : "",
             queries_visit ? 'Q' : 'K', queries_visit ? a->q.owner : a->k.owner, letters,
             mask_word(s->plan, a->q.owner, a->k.owner));
}

/* Who visits a rank at a step; all quarters of a block are one. Where the two rings of a window
 * meet, there are two. */
static void fill_cell(Cell cell, const RingSchedule *s, int rank, int step, int letters)
{
    const RingAction *last = NULL;
    cell[0] = '\0';
    for (int64_t n = 0; n < s->count[rank]; n++) {
        const RingAction *a = &s->actions[rank][n];
        if (a->kind != RING_ACT_COMPUTE || a->step != step ||
            (last && last->q.owner == a->q.owner && last->k.owner == a->k.owner))
            continue;
        add_remote(cell, s, rank, a, letters);
        last = a;
    }
}

/* A rank's share of the whole work, in percent. In pairs, not in time: what a rank has to do, not
 * how long it takes. */
static double share_of_work(const RingSchedule *s, int rank)
{
    double mine = 0, all = 0;
    for (int r = 0; r < s->ranks; r++)
        for (int64_t n = 0; n < s->count[r]; n++) {
            const double pairs = (double)s->actions[r][n].work.pairs * s->actions[r][n].heads;
            all += pairs;
            mine += r == rank ? pairs : 0;
        }
    return all > 0 ? 100 * mine / all : 0;
}

/* Steps in which somebody computes attention. */
static int steps_of(const RingSchedule *s)
{
    int steps = 1;
    for (int r = 0; r < s->ranks; r++)
        for (int64_t n = 0; n < s->count[r]; n++)
            if (s->actions[r][n].step >= steps && s->actions[r][n].kind == RING_ACT_COMPUTE)
                steps = s->actions[r][n].step + 1;
    return steps;
}

/* A table is as wide as its widest word. */
static int longest_cell(const RingSchedule *s, int steps, int letters)
{
    int longest = 7; /* "step 63" */
    for (int r = 0; r < s->ranks; r++)
        for (int t = 0; t < steps; t++) {
            Cell cell;
            fill_cell(cell, s, r, t, letters);
            longest = (int)strlen(cell) > longest ? (int)strlen(cell) : longest;
        }
    return longest;
}

/* If the words do not fit into a line of 80, three letters of each have to do. Of the steps, the
 * first `shown` are filled in. */
static void print_steps(FILE *out, const RingSchedule *s, int shown)
{
    const int steps = steps_of(s), all_letters = 8, few_letters = 3;
    int letters = all_letters, width = longest_cell(s, steps, letters) + 1;
    if (LABEL + steps * width + 5 > WIDTH) {
        letters = few_letters;
        width = longest_cell(s, steps, letters) + 1;
    }
    fprintf(out, "%-*s", LABEL, s->pass == RING_FORWARD ? "forward" : "backward");
    for (int t = 0; t < steps; t++)
        fprintf(out, " step %-*d", width - 6, t);
    fputs(" work\n", out);
    for (int r = 0; r < s->ranks; r++) {
        fprintf(out, "rank %-*d", LABEL - 5, r);
        for (int t = 0; t < steps; t++) {
            Cell cell;
            fill_cell(cell, s, r, t, letters);
            fprintf(out, " %-*s", width - 1, t < shown ? cell : "-");
        }
        fprintf(out, " %2.0f %%\n", share_of_work(s, r));
    }
}

/* --- who sends how much ------------------------------------------------------------------------*/

/* The rank that sends most, since all wait for it. From the formulas, not from a run. */
static void print_bytes(FILE *out, const RingModelCase *m, RingPass pass)
{
    RingModelBytes most = {{0}, 0, 0};
    int64_t outer = 0, left;
    char text[32];
    int used;
    for (int r = 0; r < m->ranks; r++) {
        const RingModelBytes b = model_ring_sent(m, pass, r);
        outer = b.outer > outer ? b.outer : outer;
        if (model_ring_total(&b) > model_ring_total(&most))
            most = b;
    }
    left = model_ring_total(&most);
    used = fprintf(out, "a rank sends %s%s", ring_bytes_text(text, left), left ? ":" : "");
    for (int t = 0; t < RING_TENSORS; t++) {
        char word[64];
        if (!most.sent[t])
            continue;
        left -= most.sent[t];
        snprintf(word, sizeof word, " %s %s%s", ring_tensor_name((RingTensor)t),
                 ring_bytes_text(text, most.sent[t]), left ? "," : "");
        if (used + (int)strlen(word) > WIDTH)
            used = fprintf(out, "\n            ") - 1;
        used += fprintf(out, "%s", word);
    }
    fputc('\n', out);
    if (outer)
        fprintf(out, "             %s of it to another node\n", ring_bytes_text(text, outer));
}

/* One line that says what the screen is about. */
static void print_head(FILE *out, const RingPlan *plan)
{
    const AttnRule rule = plan->rule;
    fprintf(out, "%s, %s, ", ring_method_name(plan->setup.method),
            ring_layout_name(plan->setup.layout));
    if (rule.left >= 0 || rule.right > 0)
        fprintf(out, "window %" PRId64 ",%" PRId64, rule.left, rule.right);
    else
        fputs(rule.right == 0 ? "causal" : plan->mask ? "full mask" : "no mask", out);
    fprintf(out, ": %" PRId64 " x %" PRId64 " tokens over %d ranks", plan->shape.Nq, plan->shape.Nk,
            plan->setup.ranks);
    if (plan->setup.nodes > 1)
        fprintf(out, " on %d nodes", plan->setup.nodes);
    fputs("\n", out);
}

/* What rank `from` sends to rank `to` in the step: bits of tensors. */
static unsigned tensors_sent(const RingSchedule *s, int step, int from, int to)
{
    unsigned sent = 0;
    for (int64_t n = 0; n < s->message_count; n++) {
        const RingMessage *m = &s->messages[n];
        if (m->step == step && m->from == from && m->to == to)
            sent |= 1u << m->tensor;
    }
    return sent;
}

/* A line for each rank: "rank 0  sends to 1: K V". */
static void print_messages(FILE *out, const RingSchedule *s, int step)
{
    for (int from = 0; from < s->ranks; from++) {
        int count = 0, used = fprintf(out, "rank %-2d sends", from);
        for (int to = 0; to < s->ranks; to++) {
            const unsigned sent = tensors_sent(s, step, from, to);
            if (!sent)
                continue;
            if (used > WIDTH - 24) {
                fputs(" ...", out);
                break;
            }
            used += fprintf(out, "%s to %d:", count++ ? "," : "", to);
            for (int t = 0; t < RING_TENSORS; t++)
                if (sent & 1u << t)
                    used += fprintf(out, " %s", ring_tensor_name((RingTensor)t));
        }
        fputs(count ? "\n" : " nothing\n", out);
    }
}

int ring_trace_steps(FILE *out, const RingPlan *plan)
{
    for (int pass = RING_FORWARD; pass <= (plan->backward ? RING_BACKWARD : RING_FORWARD); pass++) {
        RingSchedule s;
        if (ring_schedule_make(&s, plan, (RingPass)pass) != 0)
            return -1;
        for (int step = 0; step < steps_of(&s); step++) {
            print_head(out, plan);
            fprintf(out, "\n%s pass, step %d: who works with whose block\n\n",
                    pass == RING_FORWARD ? "forward" : "backward", step);
            print_steps(out, &s, step + 1);
            fputs("\nwhile they work\n", out);
            print_messages(out, &s, step);
            fputc('\f', out);
        }
        ring_schedule_free(&s);
    }
    return 0;
}

/* A plan is enough: no rank runs, and nothing is sent. */
int ring_trace_screen(FILE *out, const RingPlan *plan)
{
    const RingModelCase m = ring_model_case(plan);
    print_head(out, plan);
    print_shares(out, plan);
    for (int pass = RING_FORWARD; pass <= (plan->backward ? RING_BACKWARD : RING_FORWARD); pass++) {
        RingSchedule s;
        if (ring_schedule_make(&s, plan, (RingPass)pass) != 0)
            return -1;
        print_steps(out, &s, steps_of(&s));
        print_bytes(out, &m, (RingPass)pass);
        ring_schedule_free(&s);
    }
    fputs("K1: keys of rank 1; triangle, band: an edge of the mask inside; skip: none seen\n", out);
    if (plan->setup.method != RING_METHOD_ULYSSES)
        fprintf(out, "If all wait for the slowest at each step, %.0f %% of the time is useful.\n",
                100 * ring_plan_efficiency(plan));
    return 0;
}
