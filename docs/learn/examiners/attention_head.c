/* SPDX-License-Identifier: MIT
 *
 * attention_head.c: judges attention of one head, O and lse.
 *
 * Interface: -N queries, --keys, -d channels, --causal, --hand: the four tokens, --below: scores
 * far below 0, --large: scores in the hundreds; --tile, --chunks, --halves: what a mistake in
 * tiles, in zigzag chunks or in two halves of the keys would give; --pages: rows of a page, and one
 * page of K and one of V is readable at a time, so that computing a score twice is seen.
 */
#include "attention.h"

void attention(const float *Q, const float *K, const float *V, float *O, float *lse, int Nq, int Nk,
               int d, int causal);

#define IN_BASE_2 1 /* the one mistake before those of attention.h */

const Mistake mistakes[] = {
    {"half_in_base_2",
     "The lse of the second half is a logarithm to base 2, that of the first a natural one: ln x = "
     "ln 2 * log2 x."},
    ATTENTION_MISTAKES,
    {NULL, NULL}};

static Head head;

void prepare(void)
{
    head = head_of_flags();
}

void call(void)
{
    if (has_flag("--pages"))
        close_pages();
    attention(head.Q, head.K, head.V, head_O->found, head_lse->found, (int)head.Nq, (int)head.Nk,
              (int)head.d, head.causal);
    if (has_flag("--pages"))
        refuse_second_pass(head.Nq * head.Nk, "keep those of a row until its maximum is known");
}

/* Two halves of the visible keys, the second with its lse to base 2. */
static void halves(long i, double *O_i, double *lse_i)
{
    Head a = head, b = head;
    double *O_b = case_memory(head.d, sizeof *O_b), lse_b, both, of_a, of_b;
    long seen = 0, x;
    while (seen < head.Nk && head_sees(&head, RIGHT, i, seen))
        seen++;
    a.Q = b.Q = head.Q + i * head.d;
    a.Nq = b.Nq = 1, a.causal = b.causal = 0;
    a.Nk = seen / 2, b.Nk = seen - a.Nk;
    b.K += a.Nk * head.d, b.V += a.Nk * head.d;
    reference_row(&a, RIGHT, 0, O_i, lse_i);
    reference_row(&b, RIGHT, 0, O_b, &lse_b);
    lse_b /= log(2.0);
    both = fmax(*lse_i, lse_b) + log1p(exp(-fabs(*lse_i - lse_b)));
    of_a = exp(*lse_i - both), of_b = exp(lse_b - both);
    for (x = 0; x < head.d; x++)
        O_i[x] = of_a * O_i[x] + of_b * O_b[x];
    *lse_i = both;
    free(O_b);
}

void expect(int mistake)
{
    long i;
    if (mistake != IN_BASE_2 || !has_flag("--halves"))
        expect_head(&head, mistake > IN_BASE_2 ? mistake - IN_BASE_2 : RIGHT);
    else
        for (i = 0; i < head.Nq; i++)
            halves(i, head_O->expected + i * head.d, head_lse->expected + i);
}

/* Two digits of O are right everywhere. */
static int is_rounded(void)
{
    const Output *O = head_O;
    long e;
    for (e = 0; e < O->rows * O->cols; e++)
        if (!(fabs(O->found[e] - O->expected[e]) <= 0.02 * (1.0 + fabs(O->expected[e]))))
            return 0;
    return is_right(head_lse);
}

const Mistake *diagnose(void)
{
    static const Mistake rounded = {"rounded_on_its_way",
                                    "lse is right, and O is right to two digits everywhere: a part "
                                    "of it was rounded to 16 bits "
                                    "before it was complete."};
    if (is_rounded())
        return &rounded;
    return diagnose_attention(0);
}
