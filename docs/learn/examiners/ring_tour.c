/* SPDX-License-Identifier: MIT
 *
 * ring_tour.c: judges in which order the ranks of a ring compute gradients and pass on keys and
 * sums. It does what the learner's function asks for, and knows what lies where.
 *
 * Interface: -G ranks, -n tokens of a rank, -d channels, --causal, --hand: the four tokens on four
 * ranks.
 */
#include <math.h>

#include "ring_tour.h"

#include "learn.h"

void ring_backward(RingTour *tour, int G);

enum {
    RIGHT,
    WRONG_HOME,
    KEYS_TURN_THE_OLD_WAY,
    SUMS_STAY,
    SUM_LEFT_EARLY,
    ONE_HOP_SHORT,
    TURNED_NAMES,
    OWN_KEYS_FIRST
};

const Mistake mistakes[] = {
    {"wrong_home",
     "dQ is right, dK and dV are complete, and they lie at the wrong rank: keys and sums turn the "
     "old way. Turn the other way, and the last step is at home."},
    {"keys_turn_the_old_way",
     "Keys go to rank r + 1 and their sums to rank r - 1: parts are added to other owners' sums."},
    {"sums_stay", "The sums never move, so a rank adds the parts of all keys to the same sums."},
    {"sum_left_early", "A sum is passed on before this rank has added to it, so its part lands in "
                       "the sum of the next keys."},
    {"one_hop_short", "The last block, the rank's own keys, was never used: there are G steps and "
                      "G - 1 hops."},
    {"turned_names", "The causal mask takes the block for another rank's. With way = -1 rank r has "
                     "the keys of rank r + 1 + t at step t."},
    {"own_keys_first",
     "The causal mask takes the first block for the rank's own. The forward pass has left the keys "
     "of rank r + 1."},
    {NULL, NULL}};

/* Which rank's keys lie at each rank, and which of the sums: sums have no owner of their own. */
struct RingTour {
    int keys[16], sums[16];
    double *dQ, *dK, *dV; /* dK, dV [sums][n][d] */
};

static float *Q, *K, *V, *dO;
static double *lse, *delta;
static Output *out[3]; /* dQ, dK, dV */
static long G, n, d, key_hops, sum_hops;
static int causal;

static double score(long i, long j)
{
    return dot_in_double(Q + i * d, K + j * d, d) / sqrt((double)d);
}

/* lse and delta of the whole sequence, as the forward pass leaves them. */
static void forward(void)
{
    for (long i = 0; i < G * n; i++) {
        double sum = 0;
        delta[i] = 0;
        for (long j = 0; j < G * n; j++)
            sum += !causal || j <= i ? exp(score(i, j)) : 0;
        lse[i] = log(sum);
        for (long j = 0; j < G * n && (!causal || j <= i); j++)
            delta[i] += exp(score(i, j) - lse[i]) * dot_in_double(dO + i * d, V + j * d, d);
    }
}

void prepare(void)
{
    G = case_size("-G", 2, 4), n = case_size("-n", 2, 1), d = case_size("-d", 2, 2);
    causal = has_flag("--causal");
    Q = normal_input("Q", G * n * d, 1, hand_Q), K = normal_input("K", G * n * d, 2, hand_K);
    V = normal_input("V", G * n * d, 3, hand_V), dO = normal_input("dO", G * n * d, 4, hand_dO);
    lse = case_memory(G * n, sizeof *lse), delta = case_memory(G * n, sizeof *delta);
    for (int k = 0; k < 3; k++)
        out[k] = output(k == 0 ? "dQ" : k == 1 ? "dK" : "dV", G * n, d, "token", "channel");
    forward();
}

/* Query i and key j add to their rows; named: which token the mask takes j for. */
static void add_tokens(double *dQ, double *dK, double *dV, long i, long j, long named)
{
    const double p = !causal || named <= i ? exp(score(i, j) - lse[i]) : 0;
    const double dS = p * (dot_in_double(dO + i * d, V + j * d, d) - delta[i]) / sqrt((double)d);
    for (long x = 0; x < d; x++) {
        dQ[x] += dS * K[j * d + x];
        dK[x] += dS * Q[i * d + x];
        dV[x] += p * dO[i * d + x];
    }
}

void add_pair(RingTour *tour, int rank, int owner)
{
    if (rank < 0 || rank >= G || owner < 0 || owner >= G)
        refuse("no_such_rank", "add_pair was called with rank %d and owner %d; both are 0 to %ld.",
               rank, owner, G - 1);
    for (long i = 0; i < n; i++)
        for (long j = 0; j < n; j++) {
            const long sum = (tour->sums[rank] * n + j) * d, row = rank * n + i;
            add_tokens(tour->dQ + row * d, tour->dK + sum, tour->dV + sum, row,
                       tour->keys[rank] * n + j, owner * n + j);
        }
}

static void turn(int *here, int way)
{
    int before[16];
    if (way != 1 && way != -1)
        refuse("way", "Blocks were passed on with way = %d; +1 and -1 are accepted.", way);
    memcpy(before, here, sizeof before);
    for (long r = 0; r < G; r++)
        here[r] = before[(r - way + G) % G];
}

void pass_keys(RingTour *tour, int way)
{
    turn(tour->keys, way);
    key_hops++;
}

void pass_sums(RingTour *tour, int way)
{
    turn(tour->sums, way);
    sum_hops++;
}

static RingTour start(void)
{
    const long count = G * n * d;
    RingTour tour = {.dQ = case_memory(count, sizeof(double)),
                     .dK = case_memory(count, sizeof(double)),
                     .dV = case_memory(count, sizeof(double))};
    for (long r = 0; r < G; r++)
        tour.keys[r] = tour.sums[r] = (int)((r + 1) % G);
    return tour;
}

/* The gradients as they lie at the end: rank r's are the rows of its own tokens. */
static double result(const RingTour *tour, int k, long e)
{
    const long r = e / (n * d), sum = tour->sums[r] * n * d + e % (n * d);
    return k == 0 ? tour->dQ[e] : (k == 1 ? tour->dK : tour->dV)[sum];
}

static void free_tour(RingTour *tour)
{
    free(tour->dQ), free(tour->dK), free(tour->dV);
}

void call(void)
{
    RingTour tour = start();
    key_hops = sum_hops = 0;
    ring_backward(&tour, (int)G);
    if (key_hops > G - 1 || sum_hops > G - 1)
        refuse("one_hop_too_many", "Keys made %ld hops and sums %ld; G - 1 is %ld.", key_hops,
               sum_hops, G - 1);
    for (int k = 0; k < 3; k++)
        for (long e = 0; e < G * n * d; e++)
            out[k]->found[e] = (float)result(&tour, k, e);
    free_tour(&tour);
}

const Mistake *diagnose(void)
{
    static const Mistake only_sums = {
        "sums_only", "dQ is right: every rank has used all keys, under their right names. dK or dV "
                     "is not: look at when the sums move, and where they end."};
    return is_right(out[0]) ? &only_sums : NULL;
}

static void wrong_tour(RingTour *tour, int mistake)
{
    const int way = mistake == WRONG_HOME ? 1 : -1;
    const long steps = mistake == ONE_HOP_SHORT && G > 1 ? G - 1 : G;
    for (long t = 0; t < steps; t++) {
        if (t < G - 1 && mistake == SUM_LEFT_EARLY)
            turn(tour->sums, way);
        for (long r = 0; r < G; r++) {
            long owner = r + 1 + t;
            if (mistake == WRONG_HOME || mistake == TURNED_NAMES)
                owner = r + 1 - t + G;
            if (mistake == OWN_KEYS_FIRST)
                owner = r + t;
            add_pair(tour, (int)r, (int)(owner % G));
        }
        if (t == G - 1)
            continue;
        turn(tour->keys, mistake == KEYS_TURN_THE_OLD_WAY ? 1 : way);
        if (mistake != SUMS_STAY && mistake != SUM_LEFT_EARLY)
            turn(tour->sums, way);
    }
}

/* What is right comes from the definition, over all tokens; what a mistake gives, from its tour. */
void expect(int mistake)
{
    RingTour tour = start();
    if (mistake == RIGHT) {
        for (long r = 0; r < G; r++)
            tour.sums[r] = (int)r;
        for (long i = 0; i < G * n; i++)
            for (long j = 0; j < G * n; j++)
                add_tokens(tour.dQ + i * d, tour.dK + j * d, tour.dV + j * d, i, j, j);
    } else {
        wrong_tour(&tour, mistake);
    }
    for (int k = 0; k < 3; k++)
        for (long e = 0; e < G * n * d; e++)
            out[k]->expected[e] = result(&tour, k, e);
    free_tour(&tour);
}
