/* SPDX-License-Identifier: MIT
 *
 * attention_head.c: judges attention of one head, O and lse.
 *
 * Interface: -N queries, --keys, -d channels, --causal, --hand: the four tokens, --below: scores
 * far below 0, --large: scores in the hundreds.
 */
#include "attention.h"

void attention(const float *Q, const float *K, const float *V, float *O, float *lse, int Nq, int Nk,
               int d, int causal);

const Mistake mistakes[] = {ATTENTION_MISTAKES, {NULL, NULL}};

static Head head;
static Output *O, *lse;

void prepare(void)
{
    const int hand = has_flag("--hand");
    const long Nq = hand ? 4 : number("-N", 1), Nk = hand ? 4 : number("--keys", Nq);
    const long d = hand ? 2 : number("-d", 1);
    float *Q = input("Q", Nq * d), *K = input("K", Nk * d), *V = input("V", Nk * d);
    long e;
    O = output("O", Nq, d, "query", "channel");
    lse = output("lse", Nq, 1, "query", "");
    fill_normal(Q, Nq * d, 1);
    fill_normal(K, Nk * d, 2);
    fill_normal(V, Nk * d, 3);
    if (hand) {
        memcpy(Q, hand_Q, sizeof hand_Q);
        memcpy(K, hand_K, sizeof hand_K);
        memcpy(V, hand_V, sizeof hand_V);
    }
    for (e = 0; e < Nq * d && has_flag("--large"); e++)
        Q[e] *= 100.0f;
    for (e = 0; e < Nq * d && has_flag("--below"); e += d)
        Q[e] = 30.0f;
    for (e = 0; e < Nk * d && has_flag("--below"); e += d)
        K[e] = -30.0f; /* scores around -900 / sqrt(d) */
    O->tolerance = has_flag("--large") || has_flag("--below") ? 3e-3 : 1e-4;
    head = (Head){Q, K, V, Nq, Nk, d, has_flag("--causal"), NULL};
}

void call(void)
{
    attention(head.Q, head.K, head.V, O->found, lse->found, (int)head.Nq, (int)head.Nk, (int)head.d,
              head.causal);
}

void expect(int mistake)
{
    reference(&head, mistake, O->expected, lse->expected);
}

const Mistake *diagnose(void)
{
    return diagnose_attention(O, lse, 0);
}
