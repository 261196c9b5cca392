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
#include <stdarg.h>
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
    RingPrediction p;
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

/* --- the paragraph -----------------------------------------------------------------------------*/

typedef struct Text {
    char *to;
    size_t left;
} Text;

__attribute__((format(printf, 2, 3))) static void add(Text *text, const char *format, ...)
{
    va_list list;
    int length;
    va_start(list, format);
    length = vsnprintf(text->to, text->left, format, list);
    va_end(list);
    if (length > 0) {
        const size_t moved = (size_t)length < text->left ? (size_t)length : text->left - 1;
        text->to += moved;
        text->left -= moved;
    }
}

static void add_bytes(Text *text, int64_t bytes)
{
    char size[32];
    add(text, "%s", ring_bytes_text(size, bytes));
}

/* Three digits are more than a prediction deserves. */
static void add_ms(Text *text, double ms)
{
    add(text, ms < 100 ? "%.3g ms" : "%.0f ms", ms);
}

/* Beside the chosen layout stands the one that somebody would have tried instead. */
static void explain_layout(Text *text, const RingSetup *setup, const Candidate *layouts, int count)
{
    const Candidate *chosen = NULL, *other = NULL;
    for (int n = 0; n < count; n++)
        if (layouts[n].layout == setup->layout)
            chosen = &layouts[n];
    for (int n = 0; n < count; n++)
        if (layouts[n].layout ==
            (chosen->layout == RING_CONTIGUOUS ? RING_ZIGZAG : RING_CONTIGUOUS))
            other = &layouts[n];
    if (count == 1)
        add(text, "The layout %s was asked for. ", ring_layout_name(chosen->layout));
    else if (chosen->hops < setup->ranks - 1)
        add(text,
            "Layout %s: the window ends %d rank%s away, so keys make %d hop%s instead of %d. ",
            ring_layout_name(chosen->layout), chosen->hops, chosen->hops == 1 ? "" : "s",
            chosen->hops, chosen->hops == 1 ? "" : "s", setup->ranks - 1);
    else
        add(text,
            "Layout %s: if all ranks wait for the slowest at each step, %.0f %% of the time is "
            "useful, against %.0f %% with %s. ",
            ring_layout_name(chosen->layout), 100 * chosen->efficiency, 100 * other->efficiency,
            ring_layout_name(other->layout));
}

static void explain_method(Text *text, const Candidate *c, const Candidate *chosen, int backward)
{
    if (c == chosen)
        return;
    add(text, "%s", ring_method_name(c->method));
    if (c->possible < 0) {
        add(text, " sends more than its ring, ");
        add_bytes(text, c->bytes[backward ? 1 : 0]);
        add(text, " backward; ");
    } else if (!c->possible) {
        add(text, " cannot deal out these heads; ");
    } else {
        add(text, " sends ");
        add_bytes(text, all_bytes(c));
        add(text, ", ");
        add_ms(text, c->ms);
        add(text, "; ");
    }
}

/* A choice without a reason cannot be argued with. So the losers stand in the paragraph too, each
 * with what it would have cost. */
static void explain(char why[RING_WHY], const RingSetup *setup, const AttnArgs *args,
                    const Candidate *layouts, int layout_count, const Candidate *methods,
                    int method_count, const Candidate *chosen)
{
    const AttnShape *n = &args->shape;
    const int backward = args->dO.data != NULL;
    Text text = {why, RING_WHY};
    add(&text, "%s, %s: %lld x %lld tokens over %d ranks%s, %lld heads, %lld kv heads. ",
        ring_method_name(chosen->method), ring_layout_name(setup->layout), (long long)n->Nq,
        (long long)n->Nk, setup->ranks, setup->nodes > 1 ? " on several nodes" : "",
        (long long)n->H, (long long)n->Hkv);
    explain_layout(&text, setup, layouts, layout_count);
    add(&text, "Method %s: a rank sends ", ring_method_name(chosen->method));
    add_bytes(&text, chosen->bytes[0]);
    if (backward) {
        add(&text, " forward and ");
        add_bytes(&text, chosen->bytes[1]);
        add(&text, " backward");
    }
    add(&text, ", %.0f %% of it while it computes, in ", 100 * chosen->hidden);
    add_ms(&text, chosen->ms);
    add(&text, ". ");
    if (method_count > 1)
        add(&text, "The others (times within 3 %% count as equal): ");
    for (int m = 0; m < method_count; m++)
        explain_method(&text, &methods[m], chosen, backward);
    if (text.to - why >= 2 && text.to[-2] == ';')
        text.to[-2] = '.';
    if (text.to > why && text.to[-1] == ' ')
        text.to[-1] = '\0';
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
    even.places[0] = even.places[1] = 1;
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
    const Candidate *chosen = NULL;
    AttnArgs all = *args;
    int layout_count, method_count = 1, status;
    all.mask = NULL; /* kernels compute what a full mask hides, and then hide it */
    status = choose_layout(setup, free_layout, &all, rates, layouts, &layout_count, why);
    if (status != 0)
        return status;
    if (setup->ranks == 1) {
        if (setup->method == RING_METHOD_AUTO)
            setup->method = RING_METHOD_RING;
        snprintf(why, RING_WHY, "%s, %s: one rank has all tokens, and nothing travels.",
                 ring_method_name(setup->method), ring_layout_name(setup->layout));
        return 0;
    }
    if (setup->method == RING_METHOD_AUTO) {
        if (weigh_methods(setup, &all, rates, methods, &method_count, why) != 0)
            return -2;
        chosen = best_of(methods, method_count);
    } else {
        methods[0] = (Candidate){.method = setup->method, .layout = setup->layout};
        status = weigh(&methods[0], setup, &all, rates, why);
        if (status != 0 || !methods[0].possible)
            return status ? status : -1;
        chosen = &methods[0];
    }
    setup->method = chosen->method;
    explain(why, setup, args, layouts, layout_count, methods, method_count, chosen);
    return 0;
}
