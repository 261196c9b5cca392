/* SPDX-License-Identifier: MIT
 *
 * gradient_by_hand.c: the gradients of the four-token example, in float64, beside the slopes of the
 * loss. For lessons 04.1 and 04.2; it needs nothing but this file.
 *
 * The loss is sum(dO * O), so dO is its gradient with respect to O. Every number of Q, K and V is
 * moved up and down by a little, and the slope of the loss is set beside the gradient that the
 * formulas give. With the argument `forget-delta` the backward pass leaves out one term.
 *
 *     cc -O2 docs/examples/gradient_by_hand.c -o gradient_by_hand -lm && ./gradient_by_hand
 *
 * Exit status 0: all slopes agree with the formulas.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 4, D = 2 };
typedef double Matrix[N][D];

static Matrix Q = {{1, 0}, {0, 1}, {2, 0}, {1, 1}}, K = {{1, 0}, {0, 1}, {1, 1}, {0, 0}};
static Matrix V = {{1, 0}, {0, 1}, {2, 2}, {0, 4}}, O, dQ, dK, dV;
static const Matrix dO = {{1, 0}, {0, 1}, {1, 1}, {1, -1}};
static const double scale = 0.70710678118654752; /* 1 / sqrt(D) */
static double P[N][N];
static int forget_delta;

static double dot(const double *a, const double *b)
{
    return a[0] * b[0] + a[1] * b[1];
}

/* Returns the loss. */
static double forward(void)
{
    double loss = 0;
    memset(O, 0, sizeof O);
    for (int i = 0; i < N; i++) {
        double sum = 0;
        for (int j = 0; j < N; j++)
            sum += P[i][j] = exp(scale * dot(Q[i], K[j]));
        for (int j = 0; j < N; j++) {
            P[i][j] /= sum;
            for (int x = 0; x < D; x++)
                O[i][x] += P[i][j] * V[j][x];
        }
        loss += dot(dO[i], O[i]);
    }
    return loss;
}

/* [row] Query i: its dQ, and what it adds to dK and dV. */
static void backward_row(int i)
{
    double dP[N], delta = 0;
    for (int j = 0; j < N; j++) {
        dP[j] = dot(dO[i], V[j]);
        delta += P[i][j] * dP[j]; /* the mean of dP under the weights P */
    }
    for (int j = 0; j < N; j++) {
        const double dS = P[i][j] * (dP[j] - (forget_delta ? 0 : delta));
        for (int x = 0; x < D; x++) {
            dV[j][x] += P[i][j] * dO[i][x];
            dQ[i][x] += scale * dS * K[j][x];
            dK[j][x] += scale * dS * Q[i][x];
        }
    }
}
/* [/row] */

static int compare(const char *name, Matrix A, Matrix dA)
{
    const double eps = 1e-5;
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        double slope[D];
        for (int x = 0; x < D; x++) {
            const double kept = A[i][x];
            A[i][x] = kept + eps;
            const double up = forward();
            A[i][x] = kept - eps;
            slope[x] = (up - forward()) / (2 * eps);
            A[i][x] = kept;
            wrong += !(fabs(slope[x] - dA[i][x]) < 1e-6);
        }
        if (i == N - 1) /* one row of each is enough to read */
            printf("%s[%d]   %8.4f %8.4f   %8.4f %8.4f\n", name, i, dA[i][0] + 0.0, dA[i][1] + 0.0,
                   slope[0] + 0.0, slope[1] + 0.0);
    }
    return wrong;
}

int main(int argc, char **argv)
{
    forget_delta = argc > 1 && strcmp(argv[1], "forget-delta") == 0;
    forward();
    for (int i = 0; i < N; i++)
        backward_row(i);
    printf("           formulas            slopes of the loss\n");
    const int q = compare("dQ", Q, dQ), k = compare("dK", K, dK), v = compare("dV", V, dV);
    printf("numbers that disagree, of %d each: dQ %d, dK %d, dV %d\n", N * D, q, k, v);
    return q + k + v != 0;
}
