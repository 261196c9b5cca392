/* SPDX-License-Identifier: MIT
 *
 * three_tokens: attention on the sentence "dogs chase cats", from the tokens to the output.
 *
 * Every token is a row x of two numbers. Three small matrices turn it into a query, a key and a
 * value; then each token takes the mean of all values, weighted by how well its query fits the
 * keys. In a trained model the matrices are learned and much larger; here they are chosen so that
 * the result can be read.
 *
 *     cc three_tokens.c -o three_tokens -lm && ./three_tokens
 *
 * Interface: none, it prints.
 */
#include <math.h>
#include <stdio.h>

enum { N = 3, d = 2 };
static const char *word[N] = {"dogs", "chase", "cats"};
static const float x[N][d] = {{2, 0}, {0, 2}, {1, 0}}; /* channel 0: an animal, 1: an action */
static const float W_Q[d][d] = {{0, 1}, {1, 0}};       /* looks for the other kind */
static const float W_K[d][d] = {{1, 0}, {0, 1}};       /* offers what it is */
static const float W_V[d][d] = {{1, 0}, {0, 3}}; /* hands over what it is, actions threefold */

/* Y = x W */
static void project(const float W[d][d], float Y[N][d])
{
    for (int i = 0; i < N; i++)
        for (int c = 0; c < d; c++) {
            Y[i][c] = 0;
            for (int k = 0; k < d; k++)
                Y[i][c] += x[i][k] * W[k][c];
        }
}

/* [attention] */
static void attend(float Q[N][d], float K[N][d], float V[N][d], float P[N][N], float O[N][d])
{
    for (int i = 0; i < N; i++) {
        float sum = 0;
        for (int j = 0; j < N; j++) {
            float s = 0; /* how well query i fits key j */
            for (int c = 0; c < d; c++)
                s += Q[i][c] * K[j][c];
            P[i][j] = expf(s / sqrtf(d));
            sum += P[i][j];
        }
        for (int j = 0; j < N; j++)
            P[i][j] /= sum; /* now the weights of a row sum to 1 */
        for (int c = 0; c < d; c++) {
            O[i][c] = 0;
            for (int j = 0; j < N; j++)
                O[i][c] += P[i][j] * V[j][c];
        }
    }
}
/* [/attention] */

int main(void)
{
    float Q[N][d], K[N][d], V[N][d], P[N][N], O[N][d];
    project(W_Q, Q);
    project(W_K, K);
    project(W_V, V);
    attend(Q, K, V, P, O);
    printf("           Q        K        V      weights on dogs  chase  cats     output\n");
    for (int i = 0; i < N; i++)
        printf("%-5s   (%g, %g)   (%g, %g)   (%g, %g)         %8.4f %6.4f %6.4f     (%.4f, %.4f)\n",
               word[i], Q[i][0], Q[i][1], K[i][0], K[i][1], V[i][0], V[i][1], P[i][0], P[i][1],
               P[i][2], O[i][0], O[i][1]);
    return 0;
}
