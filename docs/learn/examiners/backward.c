/* SPDX-License-Identifier: MIT
 *
 * backward.c: judges a part of the backward pass of one head, or all of it.
 *
 * dV and dQ have the prototypes of the course kit's contract `backward_steps`, dK has keys as
 * columns. A learner's file defines one of the functions; the others stay empty (weak) and are not
 * called.
 *
 * Interface: --part dV|dK|dQ|all, -N tokens, -d channels, --causal, --hand: the four tokens;
 * --alike: all keys and values are the same; --ranks, for what a ring's mistake would give;
 * for `all` --keys, too, with the causal mask in the lower right corner, and --memory:
 * with little of it.
 */
#include <math.h>

#include "learn.h"
#include "limits.h"

#define WEAK __attribute__((weak))
#define TILE 8            /* keys of a tile in step 04.2c */
#define ROOM (256L << 10) /* bytes of memory with --memory */

WEAK int backward_dv_variant(const float *Q, const float *K, const float *lse, const float *dO,
                             float *dV, int N, int d, int causal);
WEAK void key_gradient(const float *Q, const float *K_T, const float *V, const float *lse,
                       const float *dO, const float *delta, float *dK_T, int N, int d, int causal);
WEAK int backward_dq_variant(const float *Q, const float *K, const float *V, const float *lse,
                             const float *dO, const float *delta, float *dQ, int N, int d,
                             int causal);
WEAK void attention_backward(const float *Q, const float *K, const float *V, const float *O,
                             const float *lse, const float *dO, float *dQ, float *dK, float *dV,
                             int Nq, int Nk, int d, int causal);

enum {
    RIGHT,
    DELTA_MISSING,
    DELTA_ADDED,
    DQ_WITHOUT_SCALE,
    DK_WITHOUT_SCALE,
    BOTH_WITHOUT_SCALE,
    NOT_TRANSPOSED,
    P_NOT_NORMALISED,
    P_WITHOUT_SCALE,
    DS_WITHOUT_P,
    NO_MASK,
    OTHER_CORNER,
    OVERWRITTEN,
    LSE_OF_THE_KEY,
    DELTA_OF_THE_KEY,
    ROW_OF_THE_KEY,
    DS_PARENTHESIS,
    DV_WITH_SCALE,
    LSE_SCALED,
    DV_WITH_DS,
    DQ_WITH_Q,
    DP_TURNED,
    DIAGONAL_TILE_WHOLE,
    STALE_KEYS,
    MASK_TURNED,
    K_NOT_TRANSPOSED,
    DK_NOT_TRANSPOSED
};

const Mistake mistakes[] = {
    {"delta_missing", "dS is P * dP here: delta, the mean of dP, is not subtracted."},
    {"delta_added", "dS is P * (dP + delta) here: delta is to be subtracted."},
    {"dq_without_scale", "dQ lacks the scale 1/sqrt(d): S = scale * Q K^T, so dQ = scale * dS K."},
    {"dk_without_scale",
     "dK lacks the scale 1/sqrt(d): S = scale * Q K^T, so dK = scale * dS^T Q."},
    {"dq_dk_without_scale", "dQ and dK lack the scale 1/sqrt(d)."},
    {"not_transposed", "The factor is not transposed: a key's row sums over the queries, so it "
                       "takes a column of P or "
                       "dS. Both have the same shape when N queries meet N keys."},
    {"p_not_normalised", "P is exp(s) here; it is exp(s - lse)."},
    {"no_scale", "The scores in P lack the scale 1/sqrt(d): s = q . k / sqrt(d), as in lse."},
    {"ds_without_p", "dS is dP - delta here: the factor P is missing."},
    {"no_mask", "All queries see all keys here; under a causal mask key j is seen if j <= i."},
    {"other_corner",
     "Query i stands at position i + Nk - Nq under a causal mask: the last query at the last key."},
    {"dkv_overwritten",
     "Only the last pair that touches a row is in it: the sums are to be added up, +=."},
    {"lse_of_the_key", "P takes lse of the key's number, lse[j]; a row of P has one lse: lse[i]."},
    {"delta_of_the_key",
     "dS takes delta of the key's number; delta belongs to the query: delta[i]."},
    {"row_of_the_key", "dS is multiplied by the key's own row, Q_j (dV: P by dO_j). It is the "
                       "query's, row i: the sum "
                       "of a key runs over queries."},
    {"ds_parenthesis", "dS is P * dP - delta here; it is P * (dP - delta)."},
    {"dv_with_scale", "dV has the scale 1/sqrt(d) once more: it is in P already, and dV = P^T dO."},
    {"lse_scaled", "lse is multiplied by the scale, too: P = exp(scale * q . k - lse)."},
    {"dv_with_ds", "dV is dS^T dO here. It is P^T dO: nothing of the softmax's slope is in it."},
    {"dq_with_q", "dQ is dS Q here; a query's gradient sums over rows of K: dQ = scale * dS K."},
    {"dp_turned", "dP is dO_j . V_i here; it is dO_i . V_j: O_i was made of the values V_j."},
    {"diagonal_tile_whole",
     "The tile that the diagonal cuts is taken whole: a row ends at its own key there, and not at "
     "the end of the tile."},
    {"stale_keys", "Each rank computes with the keys that it had at first, whoever's sums are "
                   "here: keys and sums "
                   "of a block have to travel together."},
    {"mask_turned",
     "The mask is turned: key j is seen by the queries from j on, and by none before."},
    {"k_not_transposed",
     "K_T is read as if each row were a key. Row x holds channel x of all keys: "
     "K_T[x * N + j]."},
    {"dk_not_transposed", "dK_T is written as if each row were a key. Row x holds channel x of all "
                          "keys: dK_T[x * N + j]."},
    {NULL, NULL}};

static float *Q, *K, *K_T, *V, *O, *lse, *dO, *delta;
static Output *out[3]; /* of `all`: dQ, dK, dV; else the one that is wanted */
static long Nq, Nk, d;
static int causal;
static double *P, *dP; /* [Nq][Nk] */

static int head_sees(int mistake, long i, long j)
{
    const long position = mistake == OTHER_CORNER ? i : i + Nk - Nq;
    if (mistake == DIAGONAL_TILE_WHOLE)
        return !causal || j / TILE <= position / TILE;
    if (mistake == MASK_TURNED)
        return !causal || j >= position;
    return !causal || mistake == NO_MASK || j <= position;
}

/* O, lse and delta, and P and dP in double. */
static void forward(void)
{
    const double scale = 1 / sqrt((double)d);
    for (long i = 0; i < Nq; i++) {
        double sum = 0, row[64] = {0}, mean = 0;
        for (long j = 0; j < Nk; j++)
            sum += head_sees(RIGHT, i, j) ? exp(scale * dot_in_double(Q + i * d, K + j * d, d)) : 0;
        lse[i] = (float)log(sum);
        for (long j = 0; j < Nk; j++) {
            const double s = scale * dot_in_double(Q + i * d, K + j * d, d);
            P[i * Nk + j] = head_sees(RIGHT, i, j) ? exp(s) / sum : 0;
            dP[i * Nk + j] = dot_in_double(dO + i * d, V + j * d, d);
            for (long x = 0; x < d; x++)
                row[x] += P[i * Nk + j] * V[j * d + x];
        }
        for (long x = 0; x < d; x++) {
            O[i * d + x] = (float)row[x];
            mean += dO[i * d + x] * row[x];
        }
        delta[i] = (float)mean;
    }
}

void prepare(void)
{
    const int all = is_word("--part", "all");
    Nq = case_size("-N", 1, 4);
    Nk = all ? number("--keys", Nq) : Nq;
    d = case_size("-d", 2, 2);
    causal = has_flag("--causal");
    Q = normal_input("Q", Nq * d, 1, hand_Q), K = normal_input("K", Nk * d, 2, hand_K);
    V = normal_input("V", Nk * d, 3, hand_V), O = input("O", Nq * d), lse = input("lse", Nq);
    dO = normal_input("dO", Nq * d, 4, hand_dO), delta = input("delta", Nq);
    for (long e = d; e < Nk * d && has_flag("--alike"); e++)
        K[e] = K[e - d], V[e] = V[e - d];
    K_T = input("K_T", Nk * d);
    for (long e = 0; e < Nk * d; e++)
        K_T[e % d * Nk + e / d] = K[e];
    P = case_memory(Nq * Nk, sizeof *P), dP = case_memory(Nq * Nk, sizeof *dP);
    forward();
    if (is_word("--part", "dQ") || all)
        out[0] = output("dQ", Nq, d, "query", "channel");
    if (is_word("--part", "dK") || all)
        out[all ? 1 : 0] =
            all ? output("dK", Nk, d, "key", "channel") : output("dK_T", d, Nk, "channel", "key");
    if (is_word("--part", "dV") || all)
        out[all ? 2 : 0] = output("dV", Nk, d, "key", "channel");
}

static void missing(const char *name)
{
    refuse("missing", "There is no function %s in your file.", name);
}

static void whole(void)
{
    attention_backward(Q, K, V, O, lse, dO, out[0]->found, out[1]->found, out[2]->found, (int)Nq,
                       (int)Nk, (int)d, causal);
}

void call(void)
{
    const int n = (int)Nq, c = (int)d;
    int status = 0;
    if (is_word("--part", "dV")) {
        if (!backward_dv_variant)
            missing("backward_dv_variant");
        status = backward_dv_variant(Q, K, lse, dO, out[0]->found, n, c, causal);
    } else if (is_word("--part", "dK")) {
        if (!key_gradient)
            missing("key_gradient");
        key_gradient(Q, K_T, V, lse, dO, delta, out[0]->found, n, c, causal);
    } else if (is_word("--part", "dQ")) {
        if (!backward_dq_variant)
            missing("backward_dq_variant");
        status = backward_dq_variant(Q, K, V, lse, dO, delta, out[0]->found, n, c, causal);
    } else {
        if (!attention_backward)
            missing("attention_backward");
        if (has_flag("--memory"))
            little_memory(
                whole, ROOM,
                "There are 256 KiB of heap and of stack in this case. An array of Nq x Nk "
                "numbers has 1 MiB.");
        else
            whole();
    }
    if (status != 0)
        refuse("status", "Your function returned %d; 0 means that all is done.", status);
}

/* P and dS of a pair, as they are or as a mistake makes them. */
static void pair(int mistake, long i, long j, double *p, double *dS)
{
    const float *k = (mistake == K_NOT_TRANSPOSED ? K_T : K) + j * d;
    const double s =
        dot_in_double(Q + i * d, k, d) / (mistake == P_WITHOUT_SCALE ? 1 : sqrt((double)d));
    double mean = delta[mistake == DELTA_OF_THE_KEY && j < Nq ? j : i];
    *p = !head_sees(mistake, i, j)     ? 0
         : mistake == P_NOT_NORMALISED ? exp(s)
         : mistake == LSE_OF_THE_KEY   ? exp(s - lse[j < Nq ? j : i])
         : mistake == LSE_SCALED       ? exp(s - lse[i] / sqrt((double)d))
         : isinf(lse[i])               ? 0
                                       : exp(s - lse[i]);
    if (mistake == DELTA_MISSING)
        mean = 0;
    if (mistake == DELTA_ADDED)
        mean = -mean;
    if (mistake == DS_PARENTHESIS) {
        *dS = head_sees(mistake, i, j) ? *p * dP[i * Nk + j] - mean : 0;
        return;
    }
    *dS = (mistake == DS_WITHOUT_P ? head_sees(mistake, i, j) : *p) *
          (dP[mistake == DP_TURNED && Nq == Nk ? j * Nk + i : i * Nk + j] - mean);
}

static void add(int mistake, double *to, long row, double factor, const float *from)
{
    for (long x = 0; x < d; x++)
        to[row * d + x] = (mistake == OVERWRITTEN ? 0 : to[row * d + x]) + factor * from[x];
}

/* [Nk][d] to [d][Nk], in place. */
static void transpose(double *x)
{
    double *copy = case_memory(Nk * d, sizeof *copy);
    memcpy(copy, x, sizeof *copy * (size_t)(Nk * d));
    for (long e = 0; e < Nk * d; e++)
        x[e % d * Nk + e / d] = copy[e];
    free(copy);
}

void expect(int mistake)
{
    const double scale = 1 / sqrt((double)d);
    const int both = mistake == BOTH_WITHOUT_SCALE, turned = mistake == NOT_TRANSPOSED && Nq == Nk;
    const double scale_q = both || mistake == DQ_WITHOUT_SCALE ? 1 : scale;
    const double scale_k = both || mistake == DK_WITHOUT_SCALE ? 1 : scale;
    const double scale_v = mistake == DV_WITH_SCALE ? scale : 1;
    double *dQ = NULL, *dK = NULL, *dV = NULL;
    for (int n = 0; n < 3; n++)
        if (out[n]) {
            memset(out[n]->expected, 0, sizeof(double) * (size_t)(out[n]->rows * out[n]->cols));
            if (!strcmp(out[n]->name, "dQ"))
                dQ = out[n]->expected;
            else
                *(!strncmp(out[n]->name, "dK", 2) ? &dK : &dV) = out[n]->expected;
        }
    for (long i = 0; i < Nq; i++)
        for (long j = 0; j < Nk; j++) {
            const long row = mistake == ROW_OF_THE_KEY && j < Nq ? j : i;
            const long n = Nk / number("--ranks", 1);
            const long used = mistake == STALE_KEYS ? i / n * n + j % n : j; /* whose K and V */
            double p, dS, p_turned, dS_turned;
            pair(mistake, i, used, &p, &dS);
            p_turned = p, dS_turned = dS;
            if (turned)
                pair(mistake, j, i, &p_turned, &dS_turned);
            if (mistake == OVERWRITTEN && !head_sees(mistake, i, j))
                continue;
            if (dQ)
                add(mistake, dQ, i, scale_q * dS,
                    (mistake == DQ_WITH_Q && j < Nq ? Q : K) + used * d);
            if (dK)
                add(mistake, dK, j, scale_k * dS_turned, Q + row * d);
            if (dV)
                add(mistake, dV, j, scale_v * (mistake == DV_WITH_DS ? dS : p_turned),
                    dO + row * d);
        }
    if (dK && !is_word("--part", "all") && mistake != DK_NOT_TRANSPOSED)
        transpose(dK);
}
