/* SPDX-License-Identifier: MIT
 *
 * oracle_overflow.c: can a number on the way to a finite result be too large for float32?
 *
 * Inputs near 1e38 may have a result that fits, and still nobody can compute it in float32: a score
 * q.k of 1e40, or a sum of 1e39 before it is divided by l. In whatever order a right implementation
 * works, these bound what it meets, with |.| the length of a row and sums over visible rows:
 *
 *     scores                |q| |k| max(1, scale log2 e)      products with Q, K scaled or not
 *     O before 1/l          sum_j |V_jx|                      a weight is at most 1
 *     dP, delta, dP - delta 2 |dO| |v|                        = M, since O is a mean of V
 *     dV                    sum_i |dO_ix|
 *     dQ, dK                M |k|, M sum_i |Q_ix|, times max(1, scale)
 *     QK normalisation      sum of squares of a group
 *
 * A bound that is passed is no proof, but such a case says nothing about a variant. Non-finite
 * inputs are another matter (oracle.h, taint), and rows that see nothing and keys that nobody sees
 * do not count.
 *
 * Interface: oracle_overflows (oracle.h).
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn_options.h"
#include "attn_pairs.h"
#include "harness/oracle/oracle.h"
#include "tensor.h"

/* Of one kv head and the query heads that read it. */
typedef struct Sizes {
    double q, k, v, g;          /* longest row of Q, K, V, dO */
    double sum_q, sum_v, sum_g; /* largest column sum of |Q|, |V|, |dO| */
    double square;              /* largest sum of squares that a normalisation takes */
} Sizes;

/* seen [N], or NULL: all rows count. Returns the longest finite row, adds |row| to columns [d]. */
static double longest_row(const Tensor *t, int64_t b, int64_t h, const uint8_t *seen,
                          double *columns)
{
    const int64_t d = t->shape[3];
    double longest = 0;
    float row[1024]; /* the largest d there is */
    for (int64_t n = 0; n < t->shape[1]; n++) {
        double squares = 0;
        if (seen && !seen[n])
            continue;
        tensor_read_row(t, b, n, h, row);
        for (int64_t x = 0; x < d; x++)
            squares += (double)row[x] * row[x];
        if (!isfinite(squares))
            continue;
        for (int64_t x = 0; x < d; x++)
            columns[x] += fabs((double)row[x]);
        longest = fmax(longest, sqrt(squares));
    }
    return longest;
}

/* A comparison here and below: gcc 12 for aarch64 breaks down when it makes vectors of fmax. */
static double largest(const double *x, int64_t count)
{
    double most = 0;
    for (int64_t n = 0; n < count; n++)
        most = x[n] > most ? x[n] : most;
    return most;
}

/* A normalised row of d channels is no longer than the largest weight times sqrt(d). */
static double normalised(const float *w, int64_t d)
{
    double most = 0;
    for (int64_t x = 0; x < d; x++)
        most = fabs((double)w[x]) > most ? fabs((double)w[x]) : most;
    return most * sqrt((double)d);
}

/* columns [3][d] */
static Sizes sizes_of(const AttnArgs *a, int64_t b, int64_t kv, int backward, const uint8_t *q_seen,
                      const uint8_t *k_seen, double *columns)
{
    const int64_t d = a->shape.d, heads = a->shape.H / a->shape.Hkv;
    const AttnOptions *o = a->options && a->options->norm_group > 0 ? a->options : NULL;
    Sizes s = {0};
    memset(columns, 0, (size_t)(3 * d) * sizeof *columns);
    s.k = longest_row(&a->K, b, kv, k_seen, columns);
    s.square = s.k * s.k;
    memset(columns, 0, (size_t)d * sizeof *columns);
    s.v = longest_row(&a->V, b, kv, k_seen, columns + d);
    for (int64_t h = kv * heads; h < (kv + 1) * heads; h++) {
        const double q = longest_row(&a->Q, b, h, q_seen, columns);
        s.square = fmax(s.square, q * q);
        s.q = fmax(s.q, o ? normalised(o->wq + h * d, d) : q);
        if (backward)
            s.g = fmax(s.g, longest_row(&a->dO, b, h, q_seen, columns + 2 * d));
    }
    s.k = o ? normalised(o->wk + kv * d, d) : s.k;
    s.square = o ? s.square : 0;
    s.sum_q = o ? s.q * (double)(heads * a->shape.Nq) : largest(columns, d);
    s.sum_v = largest(columns + d, d);
    s.sum_g = largest(columns + 2 * d, d);
    return s;
}

static int exceeds(const Sizes *s, const AttnArgs *a)
{
    const AttnOptions *o = a->options;
    const double kept = o && o->dropout > 0 ? 1 / (1 - (double)o->dropout) : 1;
    const double heat = o && !(a->softcap > 0) ? (double)o->temperature : 1;
    const double factor = fmax(1, fabs((double)a->scale) / heat * 1.4426950408889634);
    const double M = 2 * kept * s->g * s->v;
    const double all[] = {s->square,       s->q * s->k * factor, kept * s->sum_v,      M,
                          kept * s->sum_g, M * s->k * factor,    M * s->sum_q * factor};
    return largest(all, sizeof all / sizeof *all) > FLT_MAX;
}

static int any_exceeds(const AttnArgs *a, int backward, const uint8_t *q_seen,
                       const uint8_t *k_seen, double *columns)
{
    int found = 0;
    for (int64_t group = 0; group < a->shape.B * a->shape.Hkv && !found; group++) {
        const Sizes s = sizes_of(a, group / a->shape.Hkv, group % a->shape.Hkv, backward, q_seen,
                                 k_seen, columns);
        found = exceeds(&s, a);
    }
    return found;
}

int oracle_overflows(const AttnArgs *a, int backward)
{
    const int64_t Nq = a->shape.Nq, Nk = a->shape.Nk;
    double *columns = malloc((size_t)(3 * a->shape.d) * sizeof *columns);
    uint8_t *seen = calloc((size_t)(Nq + Nk), 1);
    int found = columns && seen ? any_exceeds(a, backward, NULL, NULL, columns) : -1;
    for (int64_t i = 0; found > 0 && i < Nq; i++) /* hardly ever: who sees whom? */
        for (int64_t j = 0; j < Nk; j++)
            if (attn_sees(a, i, j))
                seen[i] = seen[Nq + j] = 1;
    if (found > 0)
        found = any_exceeds(a, backward, seen, seen + Nq, columns);
    free(columns);
    free(seen);
    return found;
}
