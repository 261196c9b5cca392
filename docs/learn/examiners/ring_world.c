/* SPDX-License-Identifier: MIT
 *
 * ring_world.c: judges a ring whose ranks play in one process. It moves the blocks, counts hops and
 * compares with attention over all tokens. A block that was passed on is overwritten where it lay,
 * and with --memory there is no room to keep copies of all.
 *
 * Interface: -G ranks, -n tokens of a rank, -d channels, --causal, --large: scores in the
 * hundreds, --below: far below 0, --hand: the four tokens on two ranks, --memory: 48 KiB.
 */
#include <math.h>

#include "ring_world.h"

#include "limits.h"

#define ROOM (48L << 10) /* bytes with --memory */

void ring_attention(RingWorld *world, int G, int n, int d, int causal);

enum {
    RIGHT,
    NOTHING_MOVES,
    TURNED_NAMES,
    MASK_OF_THE_BLOCK,
    NO_MASK,
    ONE_HOP_SHORT,
    NO_SCALE,
    LSE_FROM_ZERO,
    WHOLE_BLOCKS,
    OWN_KEY_HIDDEN,
    NEGATIVE_MODULO
};

const Mistake mistakes[] = {
    {"nothing_moves", "Each rank has seen its own keys G times: O is attention over them alone, "
                      "and lse is too large "
                      "by ln G. Nothing was passed on."},
    {"turned_names", "The mask takes the block for that of rank r + t. Blocks go to the next rank, "
                     "so at step t rank r "
                     "has the keys of rank r - t."},
    {"mask_of_the_block", "The causal mask is laid into each block. Token numbers count through "
                          "the whole sequence: r * n + "
                          "i and owner * n + j."},
    {"no_mask", "All queries see all keys here."},
    {"one_hop_short", "The keys of rank r + 1 were never seen: there are G steps and G - 1 hops."},
    {"no_scale", "The scores lack the scale 1/sqrt(d)."},
    {"lse_from_zero", "lse begins at 0, as if one key with the score 0 had been seen already. "
                      "Nothing seen is lse = -inf."},
    {"whole_blocks",
     "The mask compares ranks only: in a rank's own block every query sees every key. "
     "There token i sees token j <= i."},
    {"window_off_by_one",
     "A token does not see itself here; it sees token j <= i of the sequence."},
    {"negative_modulo", "In C -1 % G is -1 and not G - 1: the owner is (r - t + G) % G."},
    {NULL, NULL}};

static float *Q, *K, *V;
static Output *O, *lse;
static RingPlayer *players;
static long G, n, d, hops;
static int causal;
static float *here[2],
    *last; /* K and V where they lie now; a block on its way from the last rank */

void pass_on(RingWorld *world)
{
    const size_t block = sizeof(float) * (size_t)(n * d);
    (void)world;
    for (int k = 0; k < 2; k++) {
        memcpy(last, here[k] + (G - 1) * n * d, block);
        memmove(here[k] + n * d, here[k], block * (size_t)(G - 1));
        memcpy(here[k], last, block);
    }
    hops++;
}

void prepare(void)
{
    G = number("-G", 2), n = case_size("-n", 2, 2), d = case_size("-d", 2, 2);
    causal = has_flag("--causal");
    Q = normal_input("Q", G * n * d, 1, hand_Q), K = normal_input("K", G * n * d, 2, hand_K);
    V = normal_input("V", G * n * d, 3, hand_V);
    O = output("O", G * n, d, "token", "channel"), lse = output("lse", G * n, 1, "token", "");
    O->tolerance = move_scores(Q, G * n, K, G * n, d);
    players = case_memory(G, sizeof *players), last = case_memory(n * d, sizeof *last);
    here[0] = case_memory(G * n * d, sizeof *here[0]),
    here[1] = case_memory(G * n * d, sizeof *here[1]);
    memcpy(here[0], K, sizeof(float) * (size_t)(G * n * d));
    memcpy(here[1], V, sizeof(float) * (size_t)(G * n * d));
    for (long r = 0; r < G; r++)
        players[r] = (RingPlayer){Q + r * n * d, here[0] + r * n * d, here[1] + r * n * d,
                                  O->found + r * n * d, lse->found + r * n};
}

static void ring(void)
{
    RingWorld world = {players};
    ring_attention(&world, (int)G, (int)n, (int)d, causal);
}

void call(void)
{
    if (has_flag("--memory"))
        little_memory(ring, ROOM,
                      "There are 48 KiB of heap and of stack in this case. The blocks of all ranks "
                      "have 128 KiB: use a block while it is here, and keep only O and lse.");
    else
        ring();
    if (hops > G - 1)
        refuse("one_hop_too_many",
               "The blocks made %ld hop%s; G - 1 is %ld. After that many all ranks have seen all "
               "keys, and one more brings a block home.",
               hops, hops == 1 ? "" : "s", G - 1);
    expect(RIGHT);
    if (hops < G - 1 && is_right(O) && is_right(lse))
        refuse("keys_not_passed_on",
               "O and lse are right, but the blocks made %ld hop%s; G - 1 is %ld. Keys were read "
               "where they lie, in another rank's memory: read those of world->rank[r] for rank r.",
               hops, hops == 1 ? "" : "s", G - 1);
}

static double score(int mistake, long i, long j)
{
    const double sum = dot_in_double(Q + i * d, K + j * d, d);
    return mistake == NO_SCALE ? sum : sum / sqrt((double)d);
}

const Mistake *diagnose(void)
{
    return diagnose_overflow(lse);
}

/* How many times does token i count token j? */
static int counts(int mistake, long i, long j)
{
    const long r = i / n, owner = j / n, t = (r - owner + G) % G;
    const long named = mistake == TURNED_NAMES ? (r + t) % G : owner;
    int visible = !causal || named * n + j % n <= i;
    if (mistake == NOTHING_MOVES) { /* the own block, once for each name that it gets */
        int times = 0;
        for (long step = 0; step < G && owner == r; step++)
            times += !causal || (r - step + G) % G * n + j % n <= i;
        return times;
    }
    if (mistake == MASK_OF_THE_BLOCK)
        visible = !causal || j % n <= i % n;
    if (mistake == WHOLE_BLOCKS)
        visible = !causal || owner <= r;
    if (mistake == OWN_KEY_HIDDEN)
        visible = !causal || j < i;
    if (mistake == NEGATIVE_MODULO)
        visible = !causal || (r - t) % G * n + j % n <= i;
    if (mistake == NO_MASK)
        visible = 1;
    return visible && !(mistake == ONE_HOP_SHORT && G > 1 && owner == (r + 1) % G);
}

void expect(int mistake)
{
    for (long i = 0; i < G * n; i++) {
        double sum, most = mistake == LSE_FROM_ZERO ? 0 : -INFINITY;
        for (long x = 0; x < d; x++)
            O->expected[i * d + x] = 0;
        for (long j = 0; j < G * n; j++)
            most = counts(mistake, i, j) ? fmax(most, score(mistake, i, j)) : most;
        sum = mistake == LSE_FROM_ZERO ? exp(-most) : 0; /* of a key with the score 0 */
        for (long j = 0; j < G * n; j++) {
            const int times = counts(mistake, i, j);
            const double p = times ? times * exp(score(mistake, i, j) - most) : 0;
            sum += p;
            for (long x = 0; x < d; x++)
                O->expected[i * d + x] += p * V[j * d + x];
        }
        for (long x = 0; x < d && sum > 0; x++)
            O->expected[i * d + x] /= sum;
        lse->expected[i] = most + log(sum);
    }
}
