/* SPDX-License-Identifier: MIT
 *
 * attention_head.c: judges attention of one head, O and lse.
 *
 * Interface: -N queries, --keys, -d channels, --causal, --hand: the four tokens, --below: scores
 * far below 0, --large: scores in the hundreds, --pages: rows of a page, and one page of K and one
 * of V is readable at a time, so that computing a score twice is seen.
 */
#include "attention.h"
#include "limits.h"

void attention(const float *Q, const float *K, const float *V, float *O, float *lse, int Nq, int Nk,
               int d, int causal);

const Mistake mistakes[] = {ATTENTION_MISTAKES, {NULL, NULL}};

static Head head;
static Output *O, *lse;

void prepare(void)
{
    const int hand = has_flag("--hand"), pages = has_flag("--pages");
    const long Nq = hand ? 4 : number("-N", 1), Nk = hand ? 4 : number("--keys", Nq);
    const long d = hand ? 2 : pages ? page_floats() : number("-d", 1);
    float *Q = input("Q", Nq * d), *K = pages ? paged_input(Nk) : input("K", Nk * d);
    float *V = pages ? paged_input(Nk) : input("V", Nk * d);
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
    if (has_flag("--pages"))
        close_pages();
    attention(head.Q, head.K, head.V, O->found, lse->found, (int)head.Nq, (int)head.Nk, (int)head.d,
              head.causal);
    if (has_flag("--pages"))
        refuse_second_pass(head.Nq * head.Nk, "keep those of a row until its maximum is known");
}

void expect(int mistake)
{
    reference(&head, mistake, O->expected, lse->expected);
}

const Mistake *diagnose(void)
{
    return diagnose_attention(O, lse, 0);
}
