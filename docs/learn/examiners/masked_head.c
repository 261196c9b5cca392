/* SPDX-License-Identifier: MIT
 *
 * masked_head.c: judges attention of one head under any mask, which the learner's function gets as
 * a matrix.
 *
 * Interface: -N queries, --keys, -d channels; --causal, or --mask, of which every fifth row is
 * hidden in whole.
 */
#include "attention.h"

void masked_attention(const float *Q, const float *K, const float *V, const unsigned char *mask,
                      float *O, float *lse, int Nq, int Nk, int d);

#define LEFTOVER 1 /* the one mistake before those of attention.h */

const Mistake mistakes[] = {
    {"leftover_scores",
     "At a hidden key stands the score that an earlier row had there: S_i serves all rows, and "
     "what a row does not write, it inherits."},
    ATTENTION_MISTAKES,
    {NULL, NULL}};

static Head head;

void prepare(void)
{
    unsigned char *mask;
    long Nq, Nk, e;
    head = head_of_flags();
    Nq = head.Nq, Nk = head.Nk;
    mask = case_memory(Nq * Nk, 1);
    for (e = 0; e < Nq * Nk; e++)
        mask[e] = head.causal ? e % Nk > e / Nk + Nk - Nq
                              : has_flag("--mask") && (e / Nk % 5 == 4 || e * 7 % 3 == 1);
    head.causal = 0;
    head.mask = mask;
}

void call(void)
{
    const int masked = has_flag("--causal") || has_flag("--mask");
    masked_attention(head.Q, head.K, head.V, masked ? head.mask : NULL, head_O->found,
                     head_lse->found, (int)head.Nq, (int)head.Nk, (int)head.d);
}

/* The score that stands at key j when row i is summed; -inf: none. */
static double leftover(long i, long j)
{
    const long d = head.d;
    while (i >= 0 && head.mask[i * head.Nk + j])
        i--;
    return i < 0 ? -INFINITY : dot_in_double(head.Q + i * d, head.K + j * d, d) / sqrt((double)d);
}

void expect(int mistake)
{
    long i, j, x;
    if (mistake != LEFTOVER) {
        expect_head(&head, mistake ? mistake - LEFTOVER : RIGHT);
        return;
    }
    for (i = 0; i < head.Nq; i++) {
        double *row = head_O->expected + i * head.d, l = 0.0;
        int sees = 0;
        memset(row, 0, sizeof *row * (size_t)head.d);
        for (j = 0; j < head.Nk; j++) {
            const double p = exp(leftover(i, j));
            sees |= !head.mask[i * head.Nk + j];
            l += p;
            for (x = 0; x < head.d; x++)
                row[x] += p * head.V[j * head.d + x];
        }
        for (x = 0; x < head.d && l > 0.0; x++)
            row[x] /= l;
        head_lse->expected[i] = sees ? log(l) : -INFINITY;
    }
}

const Mistake *diagnose(void)
{
    return diagnose_attention(0);
}
