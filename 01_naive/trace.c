/* SPDX-License-Identifier: MIT
 *
 * trace.c: --trace prints one head of naive attention, small enough for one screen.
 *
 * It shows v0_loops step by step: the scores S (a dot where the mask hides a key), the
 * probabilities P, whose rows sum to 1, and the output O, whose rows are means of V's rows. The
 * command line lets --trace have up to 8 tokens and 8 channels.
 *
 * Interface: naive_trace, naive_trace_steps.
 */
#include <math.h>
#include <stdlib.h>

#include "attention/rows.h"
#include "attn_pairs.h"
#include "harness/report/pages.h"
#include "tensor.h"

STAGE_TRACE(naive);

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
            if (S_i[j] != -INFINITY) /* 0 x NaN is NaN: V of a hidden key stays out */
                O_i[x] += P_i[j] * V[j * d + x];
    }
    return m_i + logf(l_i);
}

/* All arrays of the head that is shown. */
typedef struct Trace {
    int64_t Nq, Nk, d;
    float *Q, *O, *K, *V, *lse, *S, *P; /* Q is the one block of memory */
} Trace;

/* 0, or -1: no memory. The caller frees t->Q. */
static int compute(Trace *t, const AttnArgs *args)
{
    const int64_t Nq = args->shape.Nq, Nk = args->shape.Nk, d = args->shape.d;
    const size_t floats = (size_t)(2 * Nq * d + 2 * Nk * d + Nq) + 2 * (size_t)Nq * (size_t)Nk;
    *t = (Trace){.Nq = Nq, .Nk = Nk, .d = d, .Q = malloc(floats * sizeof(float))};
    if (!t->Q)
        return -1;
    t->O = t->Q + Nq * d;
    t->K = t->O + Nq * d;
    t->V = t->K + Nk * d;
    t->lse = t->V + Nk * d;
    t->S = t->lse + Nq;
    t->P = t->S + Nq * Nk;
    attn_load_rows(&args->Q, 0, 0, 0, Nq, t->Q);
    attn_load_rows(&args->K, 0, 0, 0, Nk, t->K);
    attn_load_rows(&args->V, 0, 0, 0, Nk, t->V);
    for (int64_t i = 0; i < Nq; i++) {
        for (int64_t j = 0; j < Nk; j++) {
            float qk = 0.0f;
            for (int64_t x = 0; x < d; x++)
                qk += t->Q[i * d + x] * t->K[j * d + x];
            t->S[i * Nk + j] = attn_sees(args, i, j) ? attn_score(args, qk) : -INFINITY;
        }
        t->lse[i] = attend(Nk, d, t->S + i * Nk, t->V, t->P + i * Nk, t->O + i * d);
    }
    return 0;
}

int naive_trace(const AttnArgs *args, FILE *to)
{
    Trace t;
    if (compute(&t, args) != 0)
        return -1;
    fprintf(to, "batch 0, head 0: Nq %lld, Nk %lld, d %lld, scale %.4f\n", (long long)t.Nq,
            (long long)t.Nk, (long long)t.d, (double)args->scale);
    print_matrix(to, "Q: one row a query, one column a channel", 'q', t.Q, t.Nq, t.d);
    print_matrix(to, "K: one row a key", 'k', t.K, t.Nk, t.d);
    print_matrix(to, "V: one row a value, beside its key", 'v', t.V, t.Nk, t.d);
    print_matrix(to, "S = scale Q K^T: row = query, column = key, . = not visible", 'q', t.S, t.Nq,
                 t.Nk);
    print_matrix(to, "P = softmax of each row of S: sums to 1", 'q', t.P, t.Nq, t.Nk);
    print_matrix(to, "O = P V: each row is a mean of the rows of V", 'q', t.O, t.Nq, t.d);
    print_matrix(to, "lse = ln sum_j exp(S_ij)", 'q', t.lse, t.Nq, 1);
    free(t.Q);
    return 0;
}

/* `count` numbers, then blanks up to `room` of them. */
static void print_row(FILE *to, const float *x, int64_t count, int64_t room)
{
    for (int64_t n = 0; n < room; n++)
        if (n >= count)
            fprintf(to, " %8s", "");
        else if (x[n] == -INFINITY)
            fprintf(to, " %8s", ".");
        else
            fprintf(to, " %8.4f", (double)x[n] + 0.0);
}

static const char *mask_of(const AttnArgs *args)
{
    return args->mask                                     ? "full mask"
           : args->rule.right == 0 && args->rule.left < 0 ? "causal"
           : args->rule.right < 0 && args->rule.left < 0  ? "no mask"
                                                          : "window";
}

/* One page: query i meets all keys. Rows of O below i are not known yet. */
static void print_query(const Trace *t, const AttnArgs *args, int64_t i, FILE *to)
{
    fprintf(to, "Naive attention, %s, query q%d: all of its scores, then all of P, then O\n\n",
            mask_of(args), (int)i);
    fprintf(to, "  q%d          ", (int)i);
    print_row(to, t->Q + i * t->d, t->d, t->d);
    fprintf(to, "\n\n  key         ");
    for (int64_t j = 0; j < t->Nk; j++)
        fprintf(to, " %7s%d", "k", (int)j);
    for (int64_t x = 0; x < t->d; x++) {
        fprintf(to, "\n  K channel %d ", (int)x);
        for (int64_t j = 0; j < t->Nk; j++)
            fprintf(to, " %8.4f", (double)t->K[j * t->d + x] + 0.0);
    }
    fprintf(to, "\n  scale * q.k ");
    print_row(to, t->S + i * t->Nk, t->Nk, t->Nk);
    fprintf(to, "\n  P           ");
    print_row(to, t->P + i * t->Nk, t->Nk, t->Nk);
    fprintf(to, "\n\n  %-38s   V\n", "O = P V");
    for (int64_t r = 0; r < t->Nq || r < t->Nk; r++) {
        fprintf(to, "  %c%c", r < t->Nq ? 'q' : ' ', r < t->Nq ? '0' + (int)r : ' ');
        print_row(to, t->O + r * t->d, r <= i && r < t->Nq ? t->d : 0, t->d);
        fprintf(to, "%*s", 38 - 9 * (int)t->d, "");
        if (r < t->Nk) {
            fprintf(to, "v%d", (int)r);
            print_row(to, t->V + r * t->d, t->d, t->d);
        }
        fputc('\n', to);
    }
    fprintf(to, "\n  lse of q%d = ln sum_j exp(s_j) = %.4f\n", (int)i, (double)t->lse[i]);
    fprintf(to,
            "  S and P of all queries: %d numbers, each written once and read once\n"
            "  . = a key that the query does not see\n\f",
            (int)(2 * t->Nq * t->Nk));
}

int naive_trace_steps(const AttnArgs *args, FILE *to)
{
    Trace t;
    if (compute(&t, args) != 0)
        return -1;
    for (int64_t i = 0; i < t.Nq; i++)
        print_query(&t, args, i, to);
    free(t.Q);
    return 0;
}
