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
#include "limits.h"

int flash_simple_variant(const float *Q, const float *K, const float *V, float *O, float *lse,
                         int N, int d, int causal);

#define ROOM     (48L << 10) /* bytes */
#define DISTINCT 4           /* rows of Q with --memory: the expected result takes no time */

const Mistake mistakes[] = {ATTENTION_MISTAKES, {NULL, NULL}};

static Head head;
static Output *O, *lse;

void prepare(void)
{
    const int hand = has_flag("--hand");
    const int pages = has_flag("--pages");
    const long N = hand ? 4 : number("-N", 1);
    const long d = hand ? 2 : pages ? page_floats() : number("-d", 1);
    float *Q = input("Q", N * d), *K = pages ? paged_input(N) : input("K", N * d);
    float *V = pages ? paged_input(N) : input("V", N * d);
    long e;
    O = output("O", N, d, "query", "channel");
    lse = output("lse", N, 1, "query", "");
    fill_head(Q, K, V, N, N, d);
    for (e = DISTINCT * d; e < N * d && has_flag("--memory"); e++)
        Q[e] = Q[e - DISTINCT * d];
    O->tolerance = has_flag("--large") || has_flag("--below") ? 3e-3 : 1e-4;
    head = (Head){Q, K, V, N, N, d, has_flag("--causal"), NULL};
}

static int status;

static void variant(void)
{
    status = flash_simple_variant(head.Q, head.K, head.V, O->found, lse->found, (int)head.Nq,
                                  (int)head.d, head.causal);
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
    long i, x;
    for (i = 0; i < head.Nq; i++) {
        if (i < rows)
            reference_row(&head, mistake, i, O->expected + i * head.d, lse->expected + i);
        for (x = 0; x < head.d && i >= rows; x++)
            O->expected[i * head.d + x] = O->expected[(i - rows) * head.d + x];
        if (i >= rows)
            lse->expected[i] = lse->expected[i - rows];
    }
}

const Mistake *diagnose(void)
{
    return diagnose_attention(O, lse, 1);
}
