/* SPDX-License-Identifier: MIT
 *
 * attend_row.c: judges attention of one query, one key after the other.
 *
 * Interface: -N keys (0 too), -d channels, --hand: query 3 of the four tokens, --growing, --falling
 * scores, --large: scores of 1e4.
 */
#include "attention.h"

void attend_row(const float *q, const float *K, const float *V_T, float *O, float *lse, int n,
                int d);

const Mistake mistakes[] = {{"rows_for_columns", "V_T is read as if it had a key in each row. Row "
                                                 "x holds channel x of all keys: V_T[x * n + j]."},
                            ATTENTION_MISTAKES,
                            {NULL, NULL}};

static Head head;
static float *V_T; /* [d][n] */
static Output *O, *lse;

void prepare(void)
{
    const int hand = has_flag("--hand");
    const long n = hand ? 4 : number("-N", 1), d = hand ? 2 : number("-d", 2);
    float *q = input("q", d), *K = input("K", n * d), *V = malloc(sizeof *V * (size_t)(n * d + 1));
    const float slope = has_flag("--growing") ? 0.7f : has_flag("--falling") ? -0.7f : 0.0f;
    long e;
    O = output("O", 1, d, "query", "channel");
    lse = output("lse", 1, 1, "query", "");
    fill_normal(q, d, 1);
    fill_normal(K, n * d, 2);
    fill_normal(V, n * d, 3);
    for (e = 0; e < n && slope != 0.0f; e++) {
        q[0] = 2.0f;
        K[e * d] = slope * (float)e;
    }
    for (e = 0; e < d && has_flag("--large"); e++)
        q[e] *= 1e4f;
    O->tolerance = has_flag("--large") ? 2e-2 : 1e-4;
    if (hand) {
        memcpy(q, hand_Q + 6, sizeof(float) * 2);
        memcpy(K, hand_K, sizeof hand_K);
        memcpy(V, hand_V, sizeof hand_V);
    }
    V_T = input("V_T", n * d);
    for (e = 0; e < n * d; e++)
        V_T[e % d * n + e / d] = V[e];
    head = (Head){q, K, V, 1, n, d, 0, NULL};
}

void call(void)
{
    attend_row(head.Q, head.K, V_T, O->found, lse->found, (int)head.Nk, (int)head.d);
}

void expect(int mistake)
{
    Head other = head;
    other.V = V_T;
    if (mistake == 1)
        reference(&other, RIGHT, O->expected, lse->expected);
    else
        reference(&head, mistake ? mistake - 1 : RIGHT, O->expected, lse->expected);
}

const Mistake *diagnose(void)
{
    return diagnose_attention(O, lse, 1);
}
