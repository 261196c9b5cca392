/* SPDX-License-Identifier: MIT
 *
 * 05.4b: one block of queries meets one block of keys, in place.
 */
#include <math.h>
#include <stdlib.h>

static float dot(const float *a, const float *b, int d)
{
    float sum = 0.0f;
    for (int x = 0; x < d; x++)
        sum += a[x] * b[x];
    return sum;
}

static void merge_row(float *O, float *lse, const float *O_block, float lse_block, int d)
{
    const float max = *lse > lse_block ? *lse : lse_block;
    const float min = *lse > lse_block ? lse_block : *lse;
    const float both = max + log1pf(expf(min - max));
    const float of_old = expf(*lse - both), of_block = expf(lse_block - both);
    for (int x = 0; x < d; x++)
        O[x] = of_old * O[x] + of_block * O_block[x];
    *lse = both;
}

void online_step(const float *Q_i, const float *K_j, const float *V_j, float *O, float *lse, int i,
                 int j, int bq, int bk, int Nq, int Nk, int d, int w)
{
    float *a = malloc(sizeof *a * (size_t)d);
    for (int r = 0; a && r < bq && i * bq + r < Nq; r++) {
        const int row = i * bq + r, position = row + Nk - Nq;
        float m = -INFINITY, l = 0.0f;
        for (int x = 0; x < d; x++)
            a[x] = 0.0f;
        for (int c = 0; c < bk && j * bk + c < Nk; c++) {
            const int key = j * bk + c;
            if (key > position + w || key < position - w)
                continue;
            const float s = dot(Q_i + r * d, K_j + c * d, d) / sqrtf((float)d);
            const float m_new = s > m ? s : m, alpha = expf(m - m_new), p = expf(s - m_new);
            l = alpha * l + p;
            for (int x = 0; x < d; x++)
                a[x] = alpha * a[x] + p * V_j[c * d + x];
            m = m_new;
        }
        if (l == 0.0f)
            continue;
        for (int x = 0; x < d; x++)
            a[x] /= l;
        merge_row(O + row * d, lse + row, a, m + logf(l), d);
    }
    free(a);
}
