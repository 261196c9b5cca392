/* SPDX-License-Identifier: MIT
 *
 * window_plain.h: sliding-window attention as plain loops in double, for the tests of stage 05's
 * online module and stream. Written from the definition: no position map, no visibility function,
 * no normalisation of the suite is in it.
 *
 * Interface:
 * - Plain, plain_new, plain_free: contiguous BSHD tensors of a WindowConfig, filled.
 * - plain_attend: (O, lse) of some queries over some keys, added to what is there.
 * - plain_check: a result against it.
 */
#ifndef WINDOW_PLAIN_H
#define WINDOW_PLAIN_H

#include <math.h>

#include "attention/window/sliding_window_module.h"
#include "attention/window/window_library.h"
#include "harness/visits.h"
#include "oracle_case.h"

typedef struct Plain {
    WindowConfig c;
    int64_t B, sq, skv;
    Tensor Q, K, V;      /* [B][s][heads][d] */
    const uint8_t *mask; /* [sq][skv] or NULL */
    float *wq, *wk;      /* weights of the normalisation */
    double *O, *lse;     /* [B][sq][hq][d], [B][hq][sq] */
    double *flip;        /* [B][hq][sq] what one rounding to the other neighbour does to a score */
    double *A, *W;       /* [B][hq][sq] largest scale * sum |q||k|; [B][sq][hq][d] sum of P |V| */
} Plain;

static inline Tensor plain_tensor(AttnDtype dtype, int64_t B, int64_t N, int64_t heads, int64_t d)
{
    Tensor t = {NULL, dtype, {B, N, heads, d}, {N * heads * d, heads * d, d, 1}};
    t.data = malloc((size_t)(B * N * heads * d) * dtype_size(dtype));
    assert_non_null(t.data);
    return t;
}

static inline void *plain_zeros(int64_t count, size_t size)
{
    void *p = calloc((size_t)count, size);
    assert_non_null(p);
    return p;
}

static inline float *plain_weights(int64_t count)
{
    float *w = malloc((size_t)count * sizeof *w);
    assert_non_null(w);
    for (int64_t n = 0; n < count; n++)
        w[n] = 1.0f + 0.25f * case_normal();
    return w;
}

/* Nothing seen yet: O = 0, lse = -inf. */
static inline void plain_start(Plain *p)
{
    const int64_t rows = p->B * p->sq * p->c.heads_q;
    memset(p->O, 0, (size_t)(rows * p->c.head_dim) * sizeof *p->O);
    memset(p->W, 0, (size_t)(rows * p->c.head_dim) * sizeof *p->W);
    memset(p->A, 0, (size_t)rows * sizeof *p->A);
    memset(p->flip, 0, (size_t)rows * sizeof *p->flip);
    for (int64_t row = 0; row < rows; row++)
        p->lse[row] = -INFINITY;
}

static inline Plain *plain_new(const WindowConfig *c, int64_t B, int64_t sq, int64_t skv)
{
    Plain *p = plain_zeros(1, sizeof *p);
    const int64_t rows = B * sq * c->heads_q;
    p->c = *c;
    p->B = B, p->sq = sq, p->skv = skv;
    p->Q = plain_tensor(c->dtype, B, sq, c->heads_q, c->head_dim);
    p->K = plain_tensor(c->dtype, B, skv, c->heads_kv, c->head_dim);
    p->V = plain_tensor(c->dtype, B, skv, c->heads_kv, c->head_dim);
    case_fill(&p->Q, 1.5f);
    case_fill(&p->K, 1.5f);
    case_fill(&p->V, 1);
    p->wq = plain_weights(c->heads_q * c->head_dim);
    p->wk = plain_weights(c->heads_kv * c->head_dim);
    p->c.options.wq = p->wq;
    p->c.options.wk = p->wk;
    p->O = plain_zeros(rows * c->head_dim, sizeof *p->O);
    p->W = plain_zeros(rows * c->head_dim, sizeof *p->W);
    p->A = plain_zeros(rows, sizeof *p->A);
    p->flip = plain_zeros(rows, sizeof *p->flip);
    p->lse = plain_zeros(rows, sizeof *p->lse);
    plain_start(p);
    return p;
}

static inline void plain_free(Plain *p)
{
    void *all[] = {p->Q.data, p->K.data, p->V.data, p->wq,  p->wk, p->O,
                   p->W,      p->A,      p->flip,   p->lse, p};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        free(all[n]);
}

/* Row (b, n, h) as double, normalised and rounded to the dtype if the config says so. */
static inline void plain_row(const Plain *p, const Tensor *t, const float *w, int64_t b, int64_t n,
                             int64_t h, double *row)
{
    const int64_t d = p->c.head_dim, group = p->c.options.norm_group;
    for (int64_t x = 0; x < d; x++)
        row[x] = (double)case_get(t, b, n, h, x);
    for (int64_t first = 0; group > 0 && first < d; first += group) {
        double squares = 0;
        for (int64_t x = first; x < first + group; x++)
            squares += row[x] * row[x];
        const double root = sqrt(squares / (double)group + (double)p->c.options.norm_eps);
        for (int64_t x = first; x < first + group; x++)
            row[x] = (double)dtype_round_f64(t->dtype, (double)w[h * d + x] * row[x] / root);
    }
}

static inline int plain_sees(const Plain *p, int64_t i, int64_t j)
{
    const int64_t self = i + p->skv - p->sq, w = p->c.window; /* lower-right */
    if (p->mask && p->mask[i * p->skv + j])
        return 0;
    if (p->c.causal && j > self)
        return 0;
    return w < 0 || (j - self >= -w && j - self <= w); /* no sum: w may be any number */
}

static inline double plain_scale(const Plain *p)
{
    return p->c.scale != 0 ? (double)p->c.scale : 1 / sqrt((double)p->c.head_dim);
}

static inline double plain_score(const Plain *p, double qk)
{
    const double s = plain_scale(p) * qk, cap = (double)p->c.cap;
    return cap > 0 ? cap * tanh(s / cap) : s / (double)p->c.options.temperature;
}

/* Half a unit in the last place of the dtype, as a factor; float32 counts in u. */
static inline double plain_u16(AttnDtype dtype)
{
    return dtype == ATTN_F32 ? 0 : dtype == ATTN_F16 ? 0x1p-11 : 0x1p-8;
}

/* One query, keys j0 .. j1-1: exp(lse) and exp(lse) O grow by what the keys add, one at a time. */
static inline void plain_attend_row(Plain *p, int64_t b, int64_t i, int64_t h, int64_t j0,
                                    int64_t j1)
{
    const int64_t d = p->c.head_dim, kv = h / (p->c.heads_q / p->c.heads_kv);
    const int64_t row = (b * p->c.heads_q + h) * p->sq + i;
    const int64_t at = ((b * p->sq + i) * p->c.heads_q + h) * d;
    double q[1024], k[1024];
    plain_row(p, &p->Q, p->wq, b, i, h, q);
    for (int64_t j = j0; j < j1; j++) {
        double qk = 0, absolute = 0, largest = 0, old, add, lse;
        if (!plain_sees(p, i, j))
            continue;
        plain_row(p, &p->K, p->wk, b, j, kv, k);
        for (int64_t x = 0; x < d; x++) {
            qk += q[x] * k[x];
            absolute += fabs(q[x] * k[x]);
            largest = fmax(largest, fabs(q[x] * k[x]));
        }
        const double s = plain_score(p, qk);
        const double most = fmax(p->lse[row], s);
        lse = most + log(exp(p->lse[row] - most) + exp(s - most));
        old = exp(p->lse[row] - lse);
        add = exp(s - lse);
        for (int64_t x = 0; x < d; x++) {
            const double v = (double)case_get(&p->V, b, j, kv, x);
            p->O[at + x] = old * p->O[at + x] + add * v;
            p->W[at + x] = old * p->W[at + x] + add * fabs(v);
        }
        p->lse[row] = lse;
        p->A[row] = fmax(p->A[row], fabs(plain_scale(p)) * absolute);
        if (p->c.options.norm_group > 0)
            p->flip[row] =
                fmax(p->flip[row], 2 * plain_u16(p->c.dtype) * largest * fabs(plain_scale(p)));
    }
}

static inline void plain_attend(Plain *p, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t h = 0; h < p->c.heads_q; h++)
            for (int64_t i = i0; i < i1; i++)
                plain_attend_row(p, b, i, h, j0, j1);
}

/* The suite's bound for a row that was merged `steps` times: each step rounds O to the dtype, and
 * in float32 its weights are off by u times |lse| and a few. Statistics of a normalisation in
 * float32 round now and then to the other neighbour in 16 bits: two of each row's channels may. */
static inline int plain_row_is_right(const Plain *p, const Tensor *O, const float *lse, int64_t b,
                                     int64_t i, int64_t h, int64_t steps)
{
    const int64_t d = p->c.head_dim, row = (b * p->c.heads_q + h) * p->sq + i;
    const int64_t at = ((b * p->sq + i) * p->c.heads_q + h) * d;
    const double u = 0x1p-24, u16 = plain_u16(p->c.dtype), A = p->A[row], want = p->lse[row];
    const double n = (double)p->skv, T = (double)steps;
    double largest = 0, f32;
    if (want == -INFINITY) {
        for (int64_t x = 0; x < d; x++)
            if (case_get(O, b, i, h, x) != 0.0f)
                return 0;
        return lse[row] == -INFINITY;
    }
    f32 = u * (4 * (A + sqrt(n) + 8) + T * (fabs(want) + 4)) + 4 * p->flip[row];
    if (!(fabs((double)lse[row] - want) <= f32 + 4 * u * fabs(want)))
        return 0;
    for (int64_t x = 0; x < d; x++)
        largest = fmax(largest, p->W[at + x]);
    for (int64_t x = 0; x < d; x++) {
        const double bound = u16 * (fabs(p->O[at + x]) + p->W[at + x] + T * largest) +
                             f32 * p->W[at + x] + 0x1p-24 * (p->c.dtype == ATTN_F16);
        if (!(fabs((double)case_get(O, b, i, h, x) - p->O[at + x]) <= bound))
            return 0;
    }
    return 1;
}

/* All rows; says which one is off. */
static inline void plain_check(const Plain *p, const Tensor *O, const float *lse, int64_t steps,
                               const char *label)
{
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t h = 0; h < p->c.heads_q; h++)
            for (int64_t i = 0; i < p->sq; i++)
                if (!plain_row_is_right(p, O, lse, b, i, h, steps)) {
                    const int64_t row = (b * p->c.heads_q + h) * p->sq + i;
                    fail_msg("%s: row (b=%d, h=%d, i=%d): O[0] %g for %g, lse %g for %g", label,
                             (int)b, (int)h, (int)i, (double)case_get(O, b, i, h, 0),
                             p->O[((b * p->sq + i) * p->c.heads_q + h) * p->c.head_dim],
                             (double)lse[row], p->lse[row]);
                }
}

#endif
