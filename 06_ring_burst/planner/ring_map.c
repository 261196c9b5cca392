/* SPDX-License-Identifier: MIT
 *
 * ring_map: which method for how many GPUs? A program beside ring_burst, without ranks: it asks the
 * cost model.
 *
 *     ring_map [--rates FILE]                            one JSON line for each method, number of
 *                                                        GPUs (16 to 4096) and tokens per GPU
 *     ring_map --ask                                     answers lines on stdin, for fit_ring.py:
 *
 *         rate NAME VALUE                                a speed (the names of a file of rates)
 *         run METHOD LAYOUT RANKS NODES B H KV NQ NK D LEFT RIGHT DTYPE BACKWARD DETERMINISTIC
 *                                                        -> forward ms, backward ms, hidden shares
 *         alone TOKENS H KV D DTYPE                      the kernel alone: forward ms, backward ms
 *
 * --rates FILE: what common/tools/fit_ring.py found. Without it the speeds in rates.c.
 * 8 GPUs a node; 32 query heads, 8 key heads, d = 128, bf16, causal, zigzag, forward and backward.
 */
#include "attn_pairs.h"
#include "planner/cost.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NODE = 8,
    HEADS = 32,
    KV_HEADS = 8,
    MOST_GPUS = 4096,
    MOST_HEADS = 65536,
    MOST_KNOWN = 2048,
    EXIT_BAD_USAGE = 2,
    EXIT_NOT_TAKEN = 3
};
#define MOST_TOKENS (INT64_C(1) << 26)

/* --- the map -----------------------------------------------------------------------------------*/

/* Both passes, or what they would take if messages were free; -1: the method cannot do it. What was
 * found for one number of GPUs is kept: the next ones are asked on the same lines. */
static double total_ms(const RingMapCase *c, const RingRates *r, int computing_only)
{
    static struct Known {
        RingMapCase c;
        int computing_only, status;
        RingLine pass[2];
    } known[MOST_KNOWN];
    static int count;
    struct Known *k = known;
    const int all_to_all = c->method == RING_METHOD_ULYSSES || c->method == RING_METHOD_ALLGATHER;
    RingRates rates = *r;
    while (k < known + count &&
           (k->c.method != c->method || k->c.n != c->n || k->computing_only != computing_only ||
            (all_to_all && k->c.ranks != c->ranks)))
        k++;
    if (k == known + count) {
        count += count < MOST_KNOWN - 1;
        for (int link = 0; computing_only && link < 2; link++) {
            rates.latency[link] = 0;
            rates.bandwidth[link] = INFINITY;
        }
        *k = (struct Known){.c = *c, .computing_only = computing_only};
        k->status = ring_map_line(&k->pass[0], c, &rates, RING_FORWARD) ||
                    ring_map_line(&k->pass[1], c, &rates, RING_BACKWARD);
    }
    return k->status ? -1
                     : ring_line_ms(&k->pass[0], c->ranks) + ring_line_ms(&k->pass[1], c->ranks);
}

/* Fewest tokens per GPU, a multiple of 16, with which a method is within 2 % of its time without
 * messages, and stays so; 0: more than 2^20. Bisection: between a size that is free and one that is
 * not, the middle is asked; but first `guess` and the size below it. */
static int64_t free_from(RingMapCase c, const RingRates *r, int64_t guess)
{
    int64_t low = 0, high = INT64_C(1) << 20; /* in between: not free at low, free at high */
    c.n = high;
    if (total_ms(&c, r, 0) < 0 || total_ms(&c, r, 0) > 1.02 * total_ms(&c, r, 1))
        return 0;
    for (int asked = 0; high - low > 16; asked++) {
        const int64_t near = guess - 16 * asked;
        c.n = asked < 2 && near > low && near < high ? near : (low + high) / 32 * 16;
        if (total_ms(&c, r, 0) <= 1.02 * total_ms(&c, r, 1))
            high = c.n;
        else
            low = c.n;
    }
    return high;
}

/* Of a rank, by the formulas that runs are checked with. n: room for c->ranks numbers. */
static int64_t sent_bytes(const RingMapCase *c, int64_t *n)
{
    const RingModelCase m = {.method = c->method,
                             .ranks = (int)c->ranks,
                             .nodes = (int)c->nodes,
                             .hops_up = (int)c->ranks - 1,
                             .shape = {1, c->H, c->Hkv, 0, 0, c->d},
                             .dtype = c->dtype,
                             .nq = n,
                             .nk = n};
    int64_t all = 0;
    for (int64_t r = 0; r < c->ranks; r++)
        n[r] = c->n;
    for (int pass = RING_FORWARD; pass <= RING_BACKWARD; pass++) {
        const RingModelBytes b = model_ring_sent(&m, (RingPass)pass, 0);
        all += model_ring_total(&b);
    }
    return all;
}

/* Every method that one would use, at every size, also where it loses; no more of it where nobody
 * takes it. */
static void print_map(const RingRates *r)
{
    static int64_t tokens[MOST_GPUS];
    int64_t free_n[RING_METHODS] = {0}; /* hardly depends on the number of GPUs */
    for (int64_t G = 16; G <= MOST_GPUS; G *= 2)
        for (int method = RING_METHOD_RING; method < RING_METHOD_RING_MINIMAL && !ferror(stdout);
             method++) {
            RingMapCase c = {(RingMethod)method, G,   G / NODE, 0,        HEADS,
                             KV_HEADS,           128, 1,        ATTN_BF16};
            free_n[method] = free_from(c, r, free_n[method]);
            for (c.n = 256; c.n <= 131072; c.n *= 2) {
                const double ms = total_ms(&c, r, 0);
                if (ms >= 0)
                    printf("{\"schema\":1,\"stage\":\"ring_burst\",\"experiment\":\"ring_map\","
                           "\"variant\":\"%s\",\"ranks\":%" PRId64 ",\"nodes\":%" PRId64
                           ",\"tokens\":%" PRId64 ",\"H\":%" PRId64 ",\"Hkv\":%" PRId64
                           ",\"d\":128,\"dtype\":\"bf16\",\"ms\":%.6g,\"compute_ms\":%.6g,"
                           "\"free_from\":%" PRId64 ",\"sent_bytes\":%" PRId64 ",\"pass\":null}\n",
                           ring_method_name(c.method), G, c.nodes, c.n, c.H, c.Hkv, ms,
                           total_ms(&c, r, 1), free_n[method], sent_bytes(&c, tokens));
            }
        }
}

/* --- questions ---------------------------------------------------------------------------------*/

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
    return most <= 0x1p62 && n->H % n->Hkv == 0 && within(ask->ranks, 1, MOST_GPUS) &&
           within(ask->nodes, 1, MOST_GPUS) && within(ask->backward, 0, 1) &&
           within(ask->deterministic, 0, 1) && within(ask->rule.left, -1, MOST_TOKENS) &&
           within(ask->rule.right, -1, MOST_TOKENS);
}

/* -> forward ms, backward ms of the kernel alone. */
static int answer_alone(const char *line, const RingRates *rates)
{
    RingMapCase c = {.ranks = 1, .nodes = 1};
    char name[8], rest;
    double ms[2];
    int dtype;
    if (sscanf(line, "alone %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %7s %c", &c.n, &c.H,
               &c.Hkv, &c.d, name, &rest) != 5)
        return -1;
    dtype = dtype_from_name(name);
    if (dtype < 0 || c.n < 1 || c.n > MOST_TOKENS || c.Hkv < 1 || c.H < c.Hkv || c.H > MOST_HEADS ||
        c.H % c.Hkv || c.d < 1 || c.d > MOST_TOKENS)
        return -1;
    c.dtype = (AttnDtype)dtype;
    for (int pass = 0; pass < 2; pass++)
        if ((ms[pass] = ring_alone_ms(&c, rates, pass ? RING_BACKWARD : RING_FORWARD)) < 0)
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
            fprintf(stderr, "ring_map: %s: %s\n", why, line);
            return EXIT_BAD_USAGE;
        }
        fflush(stdout);
    }
    return 0;
}

/* --- the command line --------------------------------------------------------------------------*/

static const char page[] =
    "ring_map: which method for how many GPUs? The cost model alone: nothing is computed.\n"
    "\n"
    "usage: ring_map [--rates FILE]\n"
    "       ring_map --ask [--rates FILE]\n"
    "\n"
    "  --rates FILE   speeds of kernels and links, as fit_ring.py --rates writes them (without:\n"
    "                 those recorded on Hopper GPUs)\n"
    "  --ask          answers lines of stdin: forward ms, backward ms, of a run hidden shares\n"
    "       rate NAME VALUE\n"
    "       run METHOD LAYOUT RANKS NODES B H KV NQ NK D LEFT RIGHT DTYPE BACKWARD DETERMINISTIC\n"
    "       alone TOKENS H KV D DTYPE\n"
    "  -h, --help     this page\n"
    "\n"
    "Without --ask: a JSON line for each method, 16 to 4096 GPUs (8 a node) and 256 to 131072\n"
    "tokens a GPU; 32 query heads, 8 key heads, d = 128, bf16, causal, zigzag, both passes.\n"
    "\n"
    "Exit: 0 ok, 2 bad usage or a question that cannot be answered, 3 nobody took the answers.\n";

typedef struct Options {
    RingRates rates;
    int ask, help;
} Options;

static int refuse(const char *flag, const char *what)
{
    fprintf(stderr, "ring_map: '%s': %s\n", flag, what);
    return -1;
}

static int read_options(Options *o, int argc, char **argv)
{
    int status = 0;
    for (int a = 1; a < argc && status == 0; a++) {
        const char *flag = argv[a];
        char why[256];
        if (strcmp(flag, "--ask") == 0)
            o->ask = 1;
        else if (strcmp(flag, "--help") == 0 || strcmp(flag, "-h") == 0)
            o->help = 1;
        else if (strcmp(flag, "--rates") != 0)
            status = refuse(flag, "accepted are the flags of --help");
        else if (++a == argc)
            status = refuse(flag, "found no value, accepted is one: see --help");
        else if (ring_rates_read(&o->rates, argv[a], why) != 0)
            status = refuse(flag, why);
    }
    return status;
}

int main(int argc, char **argv)
{
    Options o = {.rates = ring_rates_default("nccl", ATTN_BF16)};
    int status = 0;
    if (read_options(&o, argc, argv) != 0)
        return EXIT_BAD_USAGE;
    if (o.help)
        fputs(page, stdout);
    else if (o.ask)
        status = answer_all(&o.rates);
    else
        print_map(&o.rates);
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "ring_map: the standard output did not take the answers\n");
    return EXIT_NOT_TAKEN;
}
