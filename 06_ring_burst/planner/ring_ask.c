/* SPDX-License-Identifier: MIT
 *
 * ring_ask: the cost model alone, without ranks: it answers lines of stdin, for fit_ring.py.
 *
 *     rate NAME VALUE                                a speed (the names of a file of rates)
 *     run METHOD LAYOUT RANKS NODES B H KV NQ NK D LEFT RIGHT DTYPE BACKWARD DETERMINISTIC
 *                                                    -> forward ms, backward ms, hidden shares
 *     alone TOKENS H KV D DTYPE                      the kernel alone: forward ms, backward ms
 *
 * Exit: 0 ok, 2 bad usage or a question that cannot be answered, 3 nobody took the answers.
 */
#include "attn_pairs.h"
#include "planner/cost.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_RANKS = 4096, MOST_HEADS = 65536, EXIT_BAD_USAGE = 2, EXIT_NOT_TAKEN = 3 };
#define MOST_TOKENS (INT64_C(1) << 26)

typedef struct Question {
    char method[32], layout[32], dtype[8];
    int64_t ranks, nodes, backward, deterministic;
    AttnShape shape;
    AttnRule rule;
} Question;

/* An AttnDtype; -1: there is none. */
static int dtype_from_name(const char *name)
{
    static const char *const names[] = {"f32", "f16", "bf16"};
    for (int n = 0; n < 3; n++)
        if (strcmp(name, names[n]) == 0)
            return n;
    return -1;
}

/* A question is a plan without data. One segment for each side, aligned at the end. 0, or -1. */
static int answer(const Question *ask, const RingRates *rates, char why[256])
{
    const int method = ring_method_from_name(ask->method);
    const int layout = ring_layout_from_name(ask->layout), dtype = dtype_from_name(ask->dtype);
    const AttnSegment q = {0, ask->shape.Nq, 0, ask->shape.Nk - ask->shape.Nq, 1};
    const AttnSegment k = {0, ask->shape.Nk, 0, 0, 1};
    AttnArgs args = {.shape = ask->shape,
                     .rule = ask->rule,
                     .positions_q = attn_positions(&q, 1),
                     .positions_k = attn_positions(&k, 1)};
    const RingSetup setup = {.method = (RingMethod)method,
                             .layout = (RingLayout)layout,
                             .ranks = (int)ask->ranks,
                             .nodes = (int)ask->nodes,
                             .deterministic = (int)ask->deterministic};
    static RingPrediction p; /* too large for a small stack */
    RingPlan plan;
    int status;
    if (method < 0 || layout < 0 || dtype < 0) {
        snprintf(why, 256, "no method, layout or dtype of this name");
        return -1;
    }
    args.Q.dtype = (AttnDtype)dtype;
    args.dO.data = ask->backward ? &args : NULL;
    if (ring_plan_make(&plan, &args, &setup, why) != 0)
        return -1;
    status = ring_predict(&p, &plan, rates);
    ring_plan_free(&plan);
    if (status != 0) {
        snprintf(why, 256, "memory is short");
        return -1;
    }
    printf("%.9g %.9g %.6g %.6g\n", p.ms[0], p.ms[1], p.hidden[0], p.hidden[1]);
    ring_prediction_free(&p);
    return 0;
}

static int within(int64_t value, int64_t least, int64_t most)
{
    return least <= value && value <= most;
}

/* Sizes as a program would accept them: none of their products wraps. */
static int sensible(const Question *ask)
{
    const AttnShape *n = &ask->shape;
    const int64_t size[] = {n->B, n->H, n->Hkv, n->Nq, n->Nk, n->d};
    double most = 1;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        if (!within(size[i], 1, MOST_TOKENS))
            return 0;
        most *= i == 2 ? 1.0 : (double)size[i];
    }
    return most <= 0x1p62 && n->H % n->Hkv == 0 && within(ask->ranks, 1, MOST_RANKS) &&
           within(ask->nodes, 1, MOST_RANKS) && within(ask->backward, 0, 1) &&
           within(ask->deterministic, 0, 1) && within(ask->rule.left, -1, MOST_TOKENS) &&
           within(ask->rule.right, -1, MOST_TOKENS);
}

/* -> forward ms, backward ms of the kernel alone. */
static int answer_alone(const char *line, const RingRates *rates)
{
    AttnShape n = {.B = 1};
    char name[8], rest;
    double ms[2];
    if (sscanf(line, "alone %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %7s %c", &n.Nq, &n.H,
               &n.Hkv, &n.d, name, &rest) != 5)
        return -1;
    const int dtype = dtype_from_name(name);
    n.Nk = n.Nq;
    if (dtype < 0 || !within(n.Nq, 1, MOST_TOKENS) || n.Hkv < 1 ||
        !within(n.H, n.Hkv, MOST_HEADS) || n.H % n.Hkv || !within(n.d, 1, MOST_TOKENS))
        return -1;
    for (int pass = 0; pass < 2; pass++)
        if ((ms[pass] = ring_alone_ms(&n, (AttnDtype)dtype, rates,
                                      pass ? RING_BACKWARD : RING_FORWARD)) < 0)
            return -1;
    printf("%.9g %.9g\n", ms[0], ms[1]);
    return 0;
}

static int read_question(Question *ask, const char *line)
{
    AttnShape *n = &ask->shape;
    char rest;
    memset(ask, 0, sizeof *ask);
    return sscanf(line,
                  "run %31s %31s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64
                  " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %7s %" SCNd64
                  " %" SCNd64 " %c",
                  ask->method, ask->layout, &ask->ranks, &ask->nodes, &n->B, &n->H, &n->Hkv, &n->Nq,
                  &n->Nk, &n->d, &ask->rule.left, &ask->rule.right, ask->dtype, &ask->backward,
                  &ask->deterministic, &rest) == 15 &&
                   sensible(ask)
               ? 0
               : -1;
}

/* One process answers thousands of questions of a fit; a line in, a line out. */
static int answer_all(RingRates *rates)
{
    char line[512], name[64], rest, why[256] = "this is no question";
    double value;
    while (fgets(line, sizeof line, stdin)) {
        Question ask;
        int status;
        if (sscanf(line, "rate %63s %lf %c", name, &value, &rest) == 2)
            status = ring_rates_set(rates, name, value);
        else if (strncmp(line, "alone ", 6) == 0)
            status = answer_alone(line, rates);
        else
            status = read_question(&ask, line) != 0 ? -1 : answer(&ask, rates, why);
        if (status != 0) {
            line[strcspn(line, "\n")] = '\0';
            fprintf(stderr, "ring_ask: %s: %s\n", why, line);
            return EXIT_BAD_USAGE;
        }
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    RingRates rates = ring_rates_default("nccl", ATTN_BF16);
    if (argc > 1) {
        fprintf(stderr, "ring_ask: found '%s', accepted are lines on the standard input\n",
                argv[1]);
        return EXIT_BAD_USAGE;
    }
    const int status = answer_all(&rates);
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "ring_ask: the standard output did not take the answers\n");
    return EXIT_NOT_TAKEN;
}
