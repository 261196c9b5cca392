/* SPDX-License-Identifier: MIT
 *
 * flash_simple.c: judges attention of one head, from a state (m, l, O) for each row.
 *
 * Two cases leave no room for anything else. One has rows of a page, and one page of K and one of V
 * is readable at a time: who computes scores twice opens K more often than V. The other has 16384
 * tokens and 48 KiB of memory: a row of scores has 64.
 *
 * Interface: -N queries and keys, -d channels, --causal, --hand, --large, --below: scores far
 * below 0, --pages: rows of a page, --memory: with little memory.
 */
#include "attention.h"

int flash_simple_variant(const float *Q, const float *K, const float *V, float *O, float *lse,
                         int N, int d, int causal);

#define ROOM     (48L << 10) /* bytes */
#define DISTINCT 4           /* rows of Q with --memory: the expected result takes no time */

const Mistake mistakes[] = {ATTENTION_MISTAKES, {NULL, NULL}};

static Head head;

void prepare(void)
{
    long e;
    head = head_of_flags();
    for (e = DISTINCT * head.d; e < head.Nq * head.d && has_flag("--memory"); e++)
        head.Q[e] = head.Q[e - DISTINCT * head.d];
}

static int status;

static void variant(void)
{
    status = flash_simple_variant(head.Q, head.K, head.V, head_O->found, head_lse->found,
                                  (int)head.Nq, (int)head.d, head.causal);
}

void call(void)
{
    if (has_flag("--pages")) {
        close_pages();
        variant();
        refuse_second_pass(head.Nq * head.Nk, "the state (m, l, O) of a row makes one pass enough");
    } else if (has_flag("--memory")) {
        little_memory(variant, ROOM,
                      "There are 48 KiB of heap and of stack in this case. A row of all scores has "
                      "64 KiB, and an N x N matrix 1 GiB.");
    } else {
        variant();
    }
    if (status != 0)
        refuse("status", "Your function returned %d. (The last case has 48 KiB of memory.)",
               status);
}

void expect(int mistake)
{
    const long rows = has_flag("--memory") ? DISTINCT : head.Nq;
    double *O = head_O->expected, *lse = head_lse->expected;
    long i, x;
    for (i = 0; i < head.Nq; i++) {
        if (i < rows)
            reference_row(&head, mistake, i, O + i * head.d, lse + i);
        for (x = 0; x < head.d && i >= rows; x++)
            O[i * head.d + x] = O[(i - rows) * head.d + x];
        if (i >= rows)
            lse[i] = lse[i - rows];
    }
}

const Mistake *diagnose(void)
{
    return diagnose_attention(1);
}
