/* SPDX-License-Identifier: MIT
 *
 * nothing_moves.c: exercise 1 of docs/lab/06_exercises.md. BurstAttention's global part as a
 * well-known piece of pseudo-code has it, on 4 ranks that are rows of arrays, in float64: forward,
 * backward, and two checks. Without an argument turn() does what the pseudo-code does (K_buffer =
 * K_j, another name for the same block); with the argument `moves` blocks go to the next rank.
 *
 *     cc -O2 docs/examples/nothing_moves.c -o nothing_moves -lm && ./nothing_moves
 *
 * Exit status 0: both checks pass.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { G = 4, N_LOCAL = 5, N = G * N_LOCAL, D = 3 };

typedef double Matrix[N][D]; /* rank r has rows r * N_LOCAL ... */

static Matrix Q, K, V, dO, O, dQ, dK, dV;
static double lse[N];
static int moves;

static double dot(const double *a, const double *b)
{
    double sum = 0;
    for (int x = 0; x < D; x++)
        sum += a[x] * b[x];
    return sum;
}

/* held[r]: the owner of the block that rank r looks at. */
static void turn(int held[G])
{
    for (int r = 0; r < G && moves; r++)
        held[r] = (held[r] + G - 1) % G;
}

static double score(int i, int j)
{
    return dot(Q[i], K[j]) / sqrt(D);
}

/* Row i gains the keys of one block: m, l and the unnormalised O. */
static void see_block(int i, int owner, double *m, double *l)
{
    for (int j = owner * N_LOCAL; j < (owner + 1) * N_LOCAL; j++) {
        const double s = score(i, j), m_new = s > *m ? s : *m;
        const double old = exp(*m - m_new), p = exp(s - m_new);
        *l = old * *l + p;
        for (int x = 0; x < D; x++)
            O[i][x] = old * O[i][x] + p * V[j][x];
        *m = m_new;
    }
}

static void forward(void)
{
    double m[N], l[N] = {0};
    int held[G] = {0, 1, 2, 3};
    memset(O, 0, sizeof O);
    for (int i = 0; i < N; i++)
        m[i] = -INFINITY;
    for (int step = 0; step < G; step++, turn(held))
        for (int i = 0; i < N; i++)
            see_block(i, held[i / N_LOCAL], &m[i], &l[i]);
    for (int i = 0; i < N; i++) {
        for (int x = 0; x < D; x++)
            O[i][x] /= l[i];
        lse[i] = m[i] + log(l[i]);
    }
}

/* Keys j stay, queries i visit. */
static void backward_pair(int i, int j)
{
    const double p = exp(score(i, j) - lse[i]);
    const double dS = p * (dot(dO[i], V[j]) - dot(dO[i], O[i])) / sqrt(D);
    for (int x = 0; x < D; x++) {
        dV[j][x] += p * dO[i][x];
        dK[j][x] += dS * Q[i][x];
        dQ[i][x] += dS * K[j][x];
    }
}

static void backward(void)
{
    int held[G] = {0, 1, 2, 3};
    memset(dQ, 0, sizeof dQ);
    memset(dK, 0, sizeof dK);
    memset(dV, 0, sizeof dV);
    for (int step = 0; step < G; step++, turn(held))
        for (int j = 0; j < N; j++)
            for (int local = 0; local < N_LOCAL; local++)
                backward_pair(held[j / N_LOCAL] * N_LOCAL + local, j);
}

static double loss(void)
{
    double sum = 0;
    forward();
    for (int i = 0; i < N; i++)
        sum += dot(dO[i], O[i]);
    return sum;
}

/* Largest difference between a gradient and the slope of the loss, over all elements of A. */
static double slope_difference(Matrix A, Matrix dA)
{
    const double h = 1e-5;
    double worst = 0;
    for (int e = 0; e < N * D; e++) {
        double *a = &A[0][0] + e;
        const double kept = *a;
        *a = kept + h;
        const double above = loss();
        *a = kept - h;
        worst = fmax(worst, fabs((above - loss()) / (2 * h) - (&dA[0][0])[e]));
        *a = kept;
    }
    return worst;
}

/* Attention of row i over keys j0 .. j1-1 by its definition. Returns its lse. */
static double define(int i, int j0, int j1, double *row)
{
    double sum = 0;
    memset(row, 0, D * sizeof *row);
    for (int j = j0; j < j1; j++)
        sum += exp(score(i, j));
    for (int j = j0; j < j1; j++)
        for (int x = 0; x < D; x++)
            row[x] += exp(score(i, j)) / sum * V[j][x];
    return log(sum);
}

/* Largest difference of O from attention over all keys, or over those of the row's own rank; and
 * the smallest and largest difference of lse. */
static double differences(int all, double lse_off[2])
{
    double worst = 0;
    lse_off[0] = INFINITY;
    lse_off[1] = -INFINITY;
    for (int i = 0; i < N; i++) {
        const int first = all ? 0 : i / N_LOCAL * N_LOCAL;
        double row[D];
        const double off = lse[i] - define(i, first, all ? N : first + N_LOCAL, row);
        lse_off[0] = fmin(lse_off[0], off);
        lse_off[1] = fmax(lse_off[1], off);
        for (int x = 0; x < D; x++)
            worst = fmax(worst, fabs(O[i][x] - row[x]));
    }
    return worst;
}

/* Rounding errors differ from machine to machine, so what is below the limit is not printed. */
static void tell(const char *what, double difference, double limit)
{
    if (difference < limit)
        printf("%-44s below %.0e\n", what, limit);
    else
        printf("%-44s %.0e  WRONG\n", what, difference);
}

int main(int argc, char **argv)
{
    double *const all[] = {&Q[0][0], &K[0][0], &V[0][0], &dO[0][0]};
    double lse_all[2], lse_own[2];
    moves = argc > 1 && strcmp(argv[1], "moves") == 0;
    for (int t = 0; t < 4; t++)
        for (int e = 0; e < N * D; e++)
            all[t][e] = sin(1.7 * e + 3.1 * t * t + 0.4);
    forward();
    backward();
    const double gradient =
        fmax(slope_difference(Q, dQ), fmax(slope_difference(K, dK), slope_difference(V, dV)));
    forward();
    const double from_all = differences(1, lse_all);
    tell("gradients against slopes of the loss", gradient, 1e-8);
    tell("O against attention over all keys", from_all, 1e-12);
    if (!moves) {
        tell("O against the keys of the row's own rank", differences(0, lse_own), 1e-12);
        printf("%-44s %.4f to %.4f, and ln %d = %.4f\n", "lse minus that of these keys", lse_own[0],
               lse_own[1], G, log(G));
    }
    return gradient < 1e-8 && from_all < 1e-12 ? 0 : 1;
}
