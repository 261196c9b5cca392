/* SPDX-License-Identifier: MIT
 *
 * fa1_tiles.c: judges a changed 03_flash_forward/cpu/v0_fa1_tiles.c.
 *
 * Interface: the flags of make_head; --cols Bc, for which the fast memory is made (Br follows).
 */
#include <math.h>

#include "stage_args.h"
#include "units/exp_rows.h"
#include "units/fast_memory.h"
#include "units/product.h"

#define OF_ALGORITHM_1 2 /* mistakes before those of attention.h */

const Mistake mistakes[] = {
    {"new_tile_not_rescaled",
     "The new tile is not brought to the new maximum: beta = exp(m~ - m_new) is "
     "missing on P~ V_j, as in the notes that were published."},
    {"o_not_rescaled",
     "The old O is not brought to the new maximum: alpha = exp(m - m_new) is missing."},
    ATTENTION_MISTAKES,
    {NULL, NULL}};

static Head head;
static Output *O, *lse;

extern const Rung rung_flash_forward_v0_fa1_tiles;

void access_counts_add(int64_t loads, int64_t stores)
{
    (void)loads, (void)stores; /* nobody asks here */
}

/* What units/product.c computes, in the plainest form. */
void matmul(Transpose A_transposed, Transpose B_transposed, int64_t m, int64_t n, int64_t k,
            float alpha, const float *A, int64_t ld_A, const float *B, int64_t ld_B, float beta,
            float *C, int64_t ld_C)
{
    int64_t i, j, x;
    for (i = 0; i < m; i++)
        for (j = 0; j < n; j++) {
            float sum = 0.0f;
            for (x = 0; x < k; x++)
                sum += (A_transposed ? A[x * ld_A + i] : A[i * ld_A + x]) *
                       (B_transposed ? B[j * ld_B + x] : B[x * ld_B + j]);
            C[i * ld_C + j] = alpha * sum + (beta == 0.0f ? 0.0f : beta * C[i * ld_C + j]);
        }
}

float row_max(const float *row, int64_t n)
{
    float most = -INFINITY;
    int64_t j;
    for (j = 0; j < n; j++)
        most = row[j] > most ? row[j] : most;
    return most;
}

float softmax_exp_row(const float *x, float *y, int64_t n, float m)
{
    const float shift = m == -INFINITY ? 0.0f : m;
    float sum = 0.0f;
    int64_t j;
    for (j = 0; j < n; j++)
        sum += y[j] = expf(x[j] - shift);
    return sum;
}

void prepare(void)
{
    head = make_head(&O, &lse);
}

void call(void)
{
    call_rung(&head, &rung_flash_forward_v0_fa1_tiles, O->found, lse->found);
}

/* Algorithm 1 with one factor missing on O; l is right, and lse with it. */
static void without_factor(int mistake, long i, double *O_i, double *row_lse)
{
    const long Bc = number("--cols", 4), d = head.d;
    double m = -INFINITY, l = 0.0;
    long j, c, x;
    for (x = 0; x < d; x++)
        O_i[x] = 0.0;
    for (j = 0; j < head.Nk; j += Bc) {
        Head tile = head;
        double m_tile = -INFINITY, l_tile = 0.0, m_new, l_new, alpha, beta,
               *P = calloc((size_t)Bc, 8);
        const long cols = head.Nk - j < Bc ? head.Nk - j : Bc;
        for (c = 0; c < cols; c++) {
            P[c] = -INFINITY;
            if (head_sees(&tile, RIGHT, i, j + c))
                for (P[c] = 0.0, x = 0; x < d; x++)
                    P[c] += (double)head.Q[i * d + x] * head.K[(j + c) * d + x] / sqrt((double)d);
            m_tile = fmax(m_tile, P[c]);
        }
        for (c = 0; c < cols; c++)
            l_tile += P[c] = m_tile > -INFINITY ? exp(P[c] - m_tile) : 0.0;
        m_new = fmax(m, m_tile);
        alpha = m > -INFINITY ? exp(m - m_new) : 0.0;
        beta = m_tile > -INFINITY ? exp(m_tile - m_new) : 0.0;
        l_new = alpha * l + beta * l_tile;
        for (x = 0; x < d && l_new > 0.0; x++) {
            double sum = 0.0;
            for (c = 0; c < cols; c++)
                sum += P[c] * head.V[(j + c) * d + x];
            O_i[x] =
                (l * (mistake == 2 ? 1.0 : alpha) * O_i[x] + (mistake == 1 ? 1.0 : beta) * sum) /
                l_new;
        }
        m = m_new, l = l_new;
        free(P);
    }
    *row_lse = m + log(l);
}

void expect(int mistake)
{
    long i;
    if (mistake == 0 || mistake > OF_ALGORITHM_1) {
        reference(&head, mistake ? mistake - OF_ALGORITHM_1 : RIGHT, O->expected, lse->expected);
        return;
    }
    for (i = 0; i < head.Nq; i++)
        without_factor(mistake, i, O->expected + i * head.d, lse->expected + i);
}

const Mistake *diagnose(void)
{
    return diagnose_attention(O, lse, 1);
}
