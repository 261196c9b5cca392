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

void prepare(void)
{
    const long n = case_size("-N", 1, 4), d = case_size("-d", 2, 2);
    float *q = normal_input("q", d, 1, hand_Q + 6), *K = normal_input("K", n * d, 2, hand_K);
    float *V = case_memory(n * d, sizeof *V);
    const float slope = has_flag("--growing") ? 0.7f : has_flag("--falling") ? -0.7f : 0.0f;
    long e;
    head_O = output("O", 1, d, "query", "channel");
    head_lse = output("lse", 1, 1, "query", "");
    fill_normal(V, n * d, 3);
    if (has_flag("--hand"))
        memcpy(V, hand_V, sizeof hand_V);
    for (e = 0; e < n && slope != 0.0f; e++) {
        q[0] = 2.0f;
        K[e * d] = slope * (float)e;
    }
    for (e = 0; e < d && has_flag("--large"); e++)
        q[e] *= 1e4f;
    head_O->tolerance = has_flag("--large") ? 2e-2 : 1e-4;
    V_T = input("V_T", n * d);
    for (e = 0; e < n * d; e++)
        V_T[e % d * n + e / d] = V[e];
    head = (Head){q, K, V, 1, n, d, 0, NULL};
}

void call(void)
{
    attend_row(head.Q, head.K, V_T, head_O->found, head_lse->found, (int)head.Nk, (int)head.d);
}

void expect(int mistake)
{
    Head other = head;
    if (mistake == 1)
        other.V = V_T;
    expect_head(&other, mistake ? mistake - 1 : RIGHT);
}

const Mistake *diagnose(void)
{
    return diagnose_attention(1);
}
