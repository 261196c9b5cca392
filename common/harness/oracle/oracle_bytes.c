/* SPDX-License-Identifier: MIT
 *
 * oracle_bytes.c: what P in bytes (e4m3) and the sums of tensor cores may do to O and lse.
 *
 * e4m3. The byte of a P errs by 2^-4 of it, or by 2^-14 of the row's largest where that is more
 *   (subnormal) or by itself (lost): the rung's m lies 4 powers of two below the largest score.
 *   A step of a tensor core's sum (common/simt/tensor_sum.h) cuts 32 products, what they are added
 *   to, and what comes out: each by less than 2^-13 of the largest of these. So a step loses less
 *   than 34 of that. No number is larger than the sum of all sizes: a score loses up to
 *   34 d / 32 2^-13 of sum |q||k|, and the 16 steps between two flushes up to 16 * 34 * 2^-13 of
 *   P|V|. That is the worst case; large products of one sign, and then small ones, come near half
 *   of it (tests/unit/test_e4m3.c). All this is W's, and passes a dropped key. So lse.square has
 *   what the squares of a row's errors are expected to add up to, and check.c compares a head's
 *   root mean square.
 *
 * Interface: oracle_bytes_weigh, oracle_score_sum, oracle_byte_error (oracle_core.h).
 */
#include "harness/oracle/oracle_core.h"

#include <math.h>
#include <string.h>

static const double u_sum = 0x1p-13; /* of the largest number that a tensor core adds to others */

#define STEP 34 /* numbers that a step cuts */

/* A row's largest error of a score. Here the numbers of each step are known: the largest product,
 * and the sum before and after. Random ones stay far below the sum of their sizes. */
static void find_score_error(const OraclePlan *p, const OracleGroup *g, const OracleScratch *m,
                             int64_t n, OracleRowState *state)
{
    const int64_t d = p->args->shape.d;
    for (int64_t t = 0; t < n; t++) {
        const float *K = g->K.at + m->index[t] * d;
        double sum = 0, largest = 0, lost = 0;
        for (int64_t x = 0; x < d; x++) {
            const double product = m->row[x] * K[x];
            largest = fmax(largest, fabs(product));
            sum += product;
            if (x % 32 == 31 || x == d - 1) {
                lost += STEP * u_sum * fmax(largest, fabs(sum));
                largest = fabs(sum);
            }
        }
        state->score = fmax(state->score, fabs(p->scale) * lost);
    }
}

double oracle_score_sum(const OraclePlan *p, double A)
{
    return STEP * ceil((double)p->args->shape.d / 32) * u_sum * A;
}

static double largest_of(const double *P, int64_t n)
{
    double largest = 0;
    for (int64_t t = 0; t < n; t++)
        largest = P[t] > largest ? P[t] : largest;
    return largest;
}

double oracle_byte_error(const OracleRowState *state, double P, double largest)
{
    const double lost = P < 0x1p-14 * largest ? P : 0x1p-14 * largest;
    return (P * 0x1p-4 > lost ? P * 0x1p-4 : lost) + P * (state->score + 16 * STEP * u_sum);
}

/* The sum over channels of the squares that errors of row i are expected to have. Roundings
 * of P are as often up as down and differ from key to key: squares add up, and the mean is a third
 * of the square of the largest. P that is lost is lost for all: sums add up. */
static double expected_square(const OraclePlan *p, const OracleGroup *g, OracleScratch *m,
                              const OracleRowState *state, int64_t n)
{
    const int64_t d = p->args->shape.d;
    const double largest = largest_of(m->P, n), score = state->score / 6;
    double *rounded = m->z, *weighed = m->zc, *lost = m->zf, *O = m->row2, *W = m->row2_size;
    double all = 0;
    memset(m->z, 0, sizeof(double) * (size_t)(3 * d));
    memset(O, 0, sizeof(double) * (size_t)d);
    memset(W, 0, sizeof(double) * (size_t)d);
    for (int64_t t = 0; t < n; t++) {
        const float *V = g->V.at + m->index[t] * d;
        const double P = m->P[t];
        const double half = P < 0x1p-10 * largest ? 0x1p-14 * largest : 0x1p-4 * P;
        for (int64_t x = 0; x < d; x++) {
            const double V2 = (double)V[x] * V[x];
            O[x] += P * V[x];
            W[x] += P * fabs((double)V[x]);
            rounded[x] += half * half * V2;
            weighed[x] += P * P * V2;
            lost[x] += P < 0x1p-14 * largest ? P * fabs((double)V[x]) : 0;
        }
    }
    for (int64_t x = 0; x < d; x++) {
        const double sums = 4 * STEP * u_sum * (fabs(O[x]) + sqrt(weighed[x]));
        const double other = p->u16 * fabs(O[x]) + 16 * ORACLE_U * state->forward * W[x] + lost[x];
        all += rounded[x] / 3 + sums * sums + other * other + score * score * weighed[x];
    }
    return all;
}

void oracle_bytes_weigh(const OraclePlan *p, const OracleGroup *g, OracleScratch *m, int64_t n,
                        OracleRowState *state, double *square)
{
    if (!p->bytes)
        return;
    const double largest = largest_of(m->P, n);
    find_score_error(p, g, m, n, state);
    for (int64_t t = 0; t < n; t++)
        m->wf[t] += oracle_byte_error(state, m->P[t], largest);
    if (square)
        *square = expected_square(p, g, m, state, n);
}
