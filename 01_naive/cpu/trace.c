/* SPDX-License-Identifier: MIT
 *
 * trace.c: --trace prints one head of naive attention, small enough for one screen.
 *
 * It shows v0_loops step by step: the scores S (a dot where the mask hides a key), the
 * probabilities P, whose rows sum to 1, and the output O, whose rows are means of V's rows. The
 * command line lets --trace have up to 8 tokens and 8 channels.
 *
 * Interface: naive_trace (naive.h).
 */
#include <math.h>
#include <stdlib.h>

#include "naive.h"
#include "tensor.h"

/* M [rows][cols], titled, with the row's name in front: q0, k0 ... */
static void print_matrix(FILE *to, const char *title, char row_name, const float *M, int64_t rows,
                         int64_t cols)
{
    int64_t r, c;
    fprintf(to, "\n%s\n", title);
    for (r = 0; r < rows; r++) {
        fprintf(to, "  %c%d ", row_name, (int)r);
        for (c = 0; c < cols; c++)
            if (M[r * cols + c] == -INFINITY)
                fprintf(to, " %8s", ".");
            else
                fprintf(to, " %8.4f", (double)M[r * cols + c] + 0.0); /* + 0.0: no "-0.0000" */
        fprintf(to, "\n");
    }
}

/* Row i: S_i becomes P_i [Nk], O_i [d]. Returns lse_i. The algorithm of v0_loops. */
static float attend(int64_t Nk, int64_t d, const float *S_i, const float *V, float *P_i, float *O_i)
{
    float m_i = -INFINITY, l_i = 0.0f;
    int64_t j, x;
    for (j = 0; j < Nk; j++)
        m_i = fmaxf(m_i, S_i[j]);
    m_i = m_i == -INFINITY ? 0.0f : m_i;
    for (j = 0; j < Nk; j++)
        l_i += P_i[j] = expf(S_i[j] - m_i);
    for (j = 0; j < Nk; j++)
        P_i[j] = l_i == 0.0f ? 0.0f : P_i[j] / l_i;
    for (x = 0; x < d; x++) {
        O_i[x] = 0.0f;
        for (j = 0; j < Nk; j++)
            O_i[x] += P_i[j] * V[j * d + x];
    }
    return m_i + logf(l_i);
}

int naive_trace(const AttnArgs *args, FILE *to)
{
    const int64_t Nq = args->shape.Nq, Nk = args->shape.Nk, d = args->shape.d;
    const size_t floats = (size_t)(2 * Nq * d + 2 * Nk * d + Nq) + 2 * (size_t)Nq * (size_t)Nk;
    float *Q = malloc(floats * sizeof *Q), *O, *K, *V, *lse, *S, *P;
    int64_t i, j, x;
    if (!Q)
        return -1;
    O = Q + Nq * d;
    K = O + Nq * d;
    V = K + Nk * d;
    lse = V + Nk * d;
    S = lse + Nq;
    P = S + Nq * Nk;
    naive_load_rows(&args->Q, 0, 0, 0, Nq, Q);
    naive_load_rows(&args->K, 0, 0, 0, Nk, K);
    naive_load_rows(&args->V, 0, 0, 0, Nk, V);
    for (i = 0; i < Nq; i++) {
        for (j = 0; j < Nk; j++) {
            float qk = 0.0f;
            for (x = 0; x < d; x++)
                qk += Q[i * d + x] * K[j * d + x];
            S[i * Nk + j] = attn_sees(args, i, j) ? attn_score(args, qk) : -INFINITY;
        }
        lse[i] = attend(Nk, d, S + i * Nk, V, P + i * Nk, O + i * d);
    }
    fprintf(to, "batch 0, head 0: Nq %lld, Nk %lld, d %lld, scale %.4f\n", (long long)Nq,
            (long long)Nk, (long long)d, (double)args->scale);
    print_matrix(to, "Q: one row a query, one column a channel", 'q', Q, Nq, d);
    print_matrix(to, "K: one row a key", 'k', K, Nk, d);
    print_matrix(to, "V: one row a value, beside its key", 'v', V, Nk, d);
    print_matrix(to, "S = scale Q K^T: row = query, column = key, . = not visible", 'q', S, Nq, Nk);
    print_matrix(to, "P = softmax of each row of S: sums to 1", 'q', P, Nq, Nk);
    print_matrix(to, "O = P V: each row is a mean of the rows of V", 'q', O, Nq, d);
    print_matrix(to, "lse = ln sum_j exp(S_ij)", 'q', lse, Nq, 1);
    free(Q);
    return 0;
}
