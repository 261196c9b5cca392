/* SPDX-License-Identifier: MIT
 *
 * planner.c: which method and which layout, and why. Nothing is guessed: every candidate's plan is
 * made, its bytes are counted by the formulas of common/model_ring and its time is played through
 * with the machine's speeds.
 *
 *     layout   the one in which a ring is fastest without latencies, which are the same for all.
 *              Causal: zigzag, since all ranks do the same at every step. A small window:
 *              contiguous, since keys go to the next rank only. No mask: contiguous, as good as any
 *     method   the fastest. burst only where it sends less than ring in the backward pass (about as
 *              many query heads as kv heads) and never for two ranks, where dQ's way home is half
 *              of its way; ulysses only where heads can be dealt out; two levels only on several
 *              nodes
 *
 * Times within 3 % of the best count as equal: then a method wins whose messages hide behind its
 * computations (a slower link would cost it nothing yet), then fewer bytes, then the better
 * balance, then the simpler one.
 *
 * Interface: ring_choose (cost.h).
 */
#include "planner/cost.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define EQUAL 1.03 /* what is nearer than that, a model cannot tell apart */

typedef struct Candidate {
    RingMethod method;
    RingLayout layout;
    int possible;      /* -1: it could be done, but is no choice: it sends more than its ring */
    double ms, hidden; /* both passes; share of the messages' time behind computations */
    double efficiency; /* useful share, if all wait for the slowest at each step */
    int64_t bytes[2];  /* of the rank that sends most: forward, backward */
    int hops;
} Candidate;

/* --- one candidate -----------------------------------------------------------------------------*/

/* The largest sum over ranks counts, since all wait for it. A candidate is known by its plan alone:
 * no rank has to run to count what it would send. */
static void count_bytes(Candidate *c, const RingPlan *plan)
{
    const RingModelCase m = ring_model_case(plan);
    for (int pass = RING_FORWARD; pass <= (plan->backward ? RING_BACKWARD : RING_FORWARD); pass++)
        for (int r = 0; r < m.ranks; r++) {
            const RingModelBytes b = model_ring_sent(&m, (RingPass)pass, r);
            const int64_t all = model_ring_total(&b);
            int64_t *most = &c->bytes[pass == RING_BACKWARD];
            *most = all > *most ? all : *most;
        }
}

/* 0 also for what is not possible; -2: no memory. why: of what is not possible. Makes a plan, asks
 * the formulas and the model, throws the plan away. */
static int weigh(Candidate *c, const RingSetup *setup, const AttnArgs *args, const RingRates *rates,
                 char why[256])
{
    RingSetup mine = *setup;
    static RingPrediction p; /* too large for a small stack */
    RingPlan plan;
    int status;
    mine.method = c->method;
    mine.layout = c->layout;
    c->possible = 0;
    if (ring_plan_make(&plan, args, &mine, why) != 0)
        return strncmp(why, "memory", 6) == 0 ? -2 : 0;
    count_bytes(c, &plan);
    status = ring_predict(&p, &plan, rates) != 0 ? -2 : 0;
    if (status == 0) {
        const double passes = plan.backward ? p.ms[0] + p.ms[1] : p.ms[0];
        c->possible = 1;
        c->ms = passes;
        c->hidden = passes > 0 ? (p.ms[0] * p.hidden[0] + p.ms[1] * p.hidden[1]) / passes : 1;
        c->efficiency = ring_plan_efficiency(&plan);
        c->hops = plan.hops_up + plan.hops_down;
        ring_prediction_free(&p);
    }
    ring_plan_free(&plan);
    return status;
}

/* Of both passes. */
static int64_t all_bytes(const Candidate *c)
{
    return c->bytes[0] + c->bytes[1];
}

/* Only asked among those that are equally fast. Whether messages hide is a yes or no: the share
 * itself is as uncertain as the times are. */
static int better(const Candidate *a, const Candidate *b)
{
    const int a_hides = a->hidden > 0.5, b_hides = b->hidden > 0.5;
    const double a_bytes = (double)all_bytes(a), b_bytes = (double)all_bytes(b);
    if (a_hides != b_hides)
        return a_hides;
    if (a_bytes * EQUAL < b_bytes || b_bytes * EQUAL < a_bytes)
        return a_bytes < b_bytes;
    return a->efficiency > b->efficiency * EQUAL;
}

/* The first of the best among those that are about as fast as the fastest. */
static const Candidate *best_of(const Candidate *list, int count)
{
    const Candidate *best = NULL;
    double fastest = INFINITY;
    for (int n = 0; n < count; n++)
        if (list[n].possible > 0 && list[n].ms < fastest)
            fastest = list[n].ms;
    for (int n = 0; n < count; n++)
        if (list[n].possible > 0 && list[n].ms <= fastest * EQUAL &&
            (!best || better(&list[n], best)))
            best = &list[n];
    return best;
}

/* --- the reasons -------------------------------------------------------------------------------*/

/* What it sends, how much of it while it computes, and how long it takes. Three digits are more
 * than a prediction deserves. */
static void explain_method(FILE *to, const Candidate *c)
{
    char sent[2][32];
    fprintf(to, "%-12s ", ring_method_name(c->method));
    if (!c->possible) {
        fputs("cannot deal out these heads\n", to);
        return;
    }
    fprintf(to, "%9s %9s %5.0f %%   ", ring_bytes_text(sent[0], c->bytes[0]),
            ring_bytes_text(sent[1], c->bytes[1]), 100 * c->hidden);
    fprintf(to, c->ms < 100 ? "%.3g ms" : "%.0f ms", c->ms);
    fputs(c->possible < 0 ? ", no choice: sends more than its ring\n" : "\n", to);
}

/* A choice without a reason cannot be argued with. So the losers stand in the table too, each with
 * what it would have cost. 0, or -2: no memory. */
static int explain(char why[RING_WHY], const RingSetup *setup, const AttnShape *n,
                   const Candidate *layouts, int layout_count, const Candidate *methods,
                   int method_count)
{
    FILE *to = fmemopen(why, RING_WHY, "w");
    if (!to)
        return -2;
    fprintf(to, "%s, %s: %lld x %lld tokens over %d ranks%s, %lld heads, %lld kv heads\n",
            ring_method_name(setup->method), ring_layout_name(setup->layout), (long long)n->Nq,
            (long long)n->Nk, setup->ranks, setup->nodes > 1 ? " on several nodes" : "",
            (long long)n->H, (long long)n->Hkv);
    fputs("layout       hops  useful, if all ranks wait for the slowest at each step\n", to);
    for (int l = 0; l < layout_count; l++)
        fprintf(to, "%-12s %4d  %3.0f %%%s\n", ring_layout_name(layouts[l].layout), layouts[l].hops,
                100 * layouts[l].efficiency, layout_count == 1 ? ", was asked for" : "");
    fputs("method         forward  backward   hidden   time (within 3 % counts as equal)\n", to);
    for (int m = 0; m < method_count; m++)
        explain_method(to, &methods[m]);
    return fclose(to) == 0 ? 0 : -2;
}

/* --- the choice --------------------------------------------------------------------------------*/

/* The layout is chosen for a ring and kept for all methods: balance is a matter of who has which
 * tokens, not of who sends what. */
static int choose_layout(RingSetup *setup, int free_layout, const AttnArgs *args,
                         const RingRates *rates, Candidate layouts[RING_LAYOUTS], int *count,
                         char why[256])
{
    RingRates even = *rates;
    int status;
    even.call_s = even.latency[RING_INNER] = even.latency[RING_OUTER] = 0;
    even.bandwidth[RING_OUTER] = even.bandwidth[RING_INNER]; /* what a method makes of it: later */
    *count = 0;
    for (int l = 0; l < RING_LAYOUTS; l++) {
        Candidate *c = &layouts[*count];
        if (!free_layout && (RingLayout)l != setup->layout)
            continue;
        *c = (Candidate){.method = RING_METHOD_RING, .layout = (RingLayout)l};
        status = weigh(c, setup, args, &even, why);
        if (status != 0 || !c->possible)
            return status ? status : -1;
        (*count)++;
    }
    setup->layout = best_of(layouts, *count)->layout;
    return 0;
}

/* The simple ones first, since best_of takes the first of equals; a ring before its burst, which is
 * compared with it. */
static int weigh_methods(const RingSetup *setup, const AttnArgs *args, const RingRates *rates,
                         Candidate *methods, int *count, char why[256])
{
    static const RingMethod order[] = {RING_METHOD_RING,        RING_METHOD_BURST,
                                       RING_METHOD_ULYSSES,     RING_METHOD_ALLGATHER,
                                       RING_METHOD_RING_DOUBLE, RING_METHOD_BURST_DOUBLE};
    const int several = setup->nodes > 1 && setup->nodes < setup->ranks;
    const Candidate *ring = NULL;
    *count = 0;
    for (size_t m = 0; m < sizeof order / sizeof *order; m++) {
        const int doubled =
            order[m] == RING_METHOD_RING_DOUBLE || order[m] == RING_METHOD_BURST_DOUBLE;
        const int burst = order[m] == RING_METHOD_BURST || order[m] == RING_METHOD_BURST_DOUBLE;
        Candidate *c = &methods[*count];
        if ((doubled && !several) || (burst && (!args->dO.data || setup->ranks <= 2)))
            continue;
        *c = (Candidate){.method = order[m], .layout = setup->layout};
        if (weigh(c, setup, args, rates, why) != 0)
            return -2;
        if (burst && all_bytes(c) >= all_bytes(ring))
            c->possible = -1;
        if (order[m] == RING_METHOD_RING || order[m] == RING_METHOD_RING_DOUBLE)
            ring = c;
        (*count)++;
    }
    return 0;
}

int ring_choose(RingSetup *setup, int free_layout, const AttnArgs *args, const RingRates *rates,
                char why[RING_WHY])
{
    Candidate layouts[RING_LAYOUTS], methods[RING_METHODS];
    AttnArgs all = *args;
    int layout_count, method_count, status;
    all.mask = NULL; /* kernels compute what a full mask hides, and then hide it */
    status = choose_layout(setup, free_layout, &all, rates, layouts, &layout_count, why);
    if (status != 0)
        return status;
    if (setup->ranks == 1) {
        setup->method = RING_METHOD_RING;
        snprintf(why, RING_WHY, "%s, %s: one rank has all tokens, and nothing travels\n",
                 ring_method_name(setup->method), ring_layout_name(setup->layout));
        return 0;
    }
    if (weigh_methods(setup, &all, rates, methods, &method_count, why) != 0)
        return -2;
    setup->method = best_of(methods, method_count)->method;
    return explain(why, setup, &args->shape, layouts, layout_count, methods, method_count);
}
