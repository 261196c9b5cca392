/* SPDX-License-Identifier: MIT
 *
 * oracle_normalise.c: QK normalisation and its gradient in float64, and what rounding does there.
 *
 *     hat_x = r X_x,   r = 1 / sqrt(mean over the group of X^2 + eps)
 *     Xn_x = round(w_x hat_x) to the dtype                        what the scores are made of
 *     dX_x = r (w_x dXn_x - hat_x mean over the group of w dXn hat)
 *     dw_x = sum over batches and tokens of dXn_x hat_x
 * Rounding to the dtype has no derivative and counts as the identity.
 *
 * THE BOUNDS. A right implementation has the statistics in float32, the sum of n = norm_group
 * squares in any order, and a rounding or two for the mean, the root (2 ulp on a GPU), the division
 * and the products. All squares are positive, so w hat has a relative error of
 *   c u G,   G = 2 + sqrt(n)/4                at c = 4: (8 + sqrt(n)) u.
 * Then it is rounded to the dtype. For 16 bits that takes nearly every right implementation to the
 * same value as the oracle, and all that follows is exact in it. Only where w hat lies within
 * 4 u G |w hat| of the middle between two values may the other one be taken: that element is
 * uncertain by one ulp, all others by 0. (Norms never run on tensor cores: c is 4.) For f32 every
 * element is uncertain by c u G |Xn|. oracle_options.c follows these uncertainties to the results.
 *
 * Backward, from a float32 dXn with the bound (fixed, per_c):
 *   both parts go through the same linear map with absolute values,
 *     r (|w| f + |hat| mean(|w| f |hat|)),
 *   and its own float32 arithmetic adds, with G for r and for each hat and G for the mean's sum,
 *     c u r ((G + 1) |w dXn| + (3 G + 2) |hat| mean |w dXn hat|).
 *   dw adds its sum of T = B N tokens: sum |hat| (f + c u (G + sqrt(T)/4) |dXn|).
 *
 * Interface: oracle_core.h (oracle_normalise_row, _query, _key, _sum).
 */
#include <math.h>

#include "dtype_f64.h"
#include "oracle/oracle_core.h"
#include "tensor.h"

static const double u = ORACLE_U;

/* G of above. */
static double norm_error(const OraclePlan *p)
{
    return 2 + sqrt((double)p->norm_group) / 4;
}

/* r of the group that starts at x */
static double inverse_size(const OraclePlan *p, const float *row, int64_t x)
{
    double sum = 0;
    for (int64_t n = 0; n < p->norm_group; n++)
        sum += (double)row[x + n] * row[x + n];
    return 1 / sqrt(sum / (double)p->norm_group + (double)p->options->norm_eps);
}

void oracle_normalise_row(const OraclePlan *p, const float *w, float *row, float *unsure)
{
    const AttnDtype dtype = p->args->Q.dtype;
    for (int64_t first = 0; first < p->args->shape.d; first += p->norm_group) {
        const double r = inverse_size(p, row, first);
        for (int64_t x = first; x < first + p->norm_group; x++) {
            const double exact = (double)w[x] * row[x] * r;
            const double off = u * norm_error(p) * fabs(exact);
            const float above = dtype_round_f64(dtype, exact + 4 * off);
            const float below = dtype_round_f64(dtype, exact - 4 * off);
            row[x] = dtype_round_f64(dtype, exact);
            unsure[x] = dtype == ATTN_F32 ? (float)off : fmaxf(above - row[x], row[x] - below);
        }
    }
}

/* The gradient of one row X [d] in place: value, fixed, per_c [d]. */
static void normalise_gradient(const OraclePlan *p, const float *w, const double *X, double tokens,
                               double *value, double *fixed, double *per_c,
                               const OracleTarget *part)
{
    const int64_t group = p->norm_group;
    const double G = norm_error(p), sum_error = u * (G + sqrt(tokens) / 4);
    for (int64_t first = 0; first < p->args->shape.d; first += group) {
        double squares = 0, r, mean = 0, mean_size = 0, mean_f = 0, mean_c = 0;
        for (int64_t x = first; x < first + group; x++)
            squares += X[x] * X[x];
        r = 1 / sqrt(squares / (double)group + (double)p->options->norm_eps);
        for (int64_t x = first; x < first + group; x++) {
            const double hat = r * X[x], size = fabs(w[x] * hat) / (double)group;
            mean += w[x] * hat * value[x] / (double)group;
            mean_size += size * fabs(value[x]);
            mean_f += size * fixed[x];
            mean_c += size * per_c[x];
            if (!part)
                continue;
            part->value[x] = hat * value[x];
            part->fixed[x] = fabs(hat) * fixed[x];
            part->per_c[x] = fabs(hat) * (per_c[x] + sum_error * fabs(value[x]));
        }
        for (int64_t x = first; x < first + group; x++) {
            const double hat = fabs(r * X[x]), weight = fabs((double)w[x]);
            const double own = (G + 1) * weight * fabs(value[x]) + (3 * G + 2) * hat * mean_size;
            value[x] = r * (w[x] * value[x] - r * X[x] * mean);
            fixed[x] = r * (weight * fixed[x] + hat * mean_f);
            per_c[x] = r * (weight * per_c[x] + hat * mean_c + u * own);
        }
    }
}

/* Token n of head h of tensor t; parts: [B][heads][N][d], or NULL. */
static void normalise_token(const OraclePlan *p, const Tensor *t, const float *w,
                            OracleArray *parts, int64_t b, int64_t n, int64_t h, double *X,
                            double *value, double *fixed, double *per_c)
{
    const int64_t N = t->shape[1], d = t->shape[3], at = ((b * t->shape[2] + h) * N + n) * d;
    OracleTarget part;
    for (int64_t x = 0; x < d; x++)
        X[x] = tensor_get(t, tensor_offset(t, b, n, h) + x);
    if (parts)
        part = oracle_target_at(parts, at);
    normalise_gradient(p, w + h * d, X, (double)(t->shape[0] * N), value, fixed, per_c,
                       parts ? &part : NULL);
}

void oracle_normalise_query(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i,
                            OracleScratch *m)
{
    normalise_token(p, &p->args->Q, p->options->wq, p->dwq_of, g->b, i, g->kv_head * g->heads + h,
                    m->spare, m->z, m->zf, m->zc);
}

void oracle_normalise_key(const OraclePlan *p, const OracleGroup *g, int64_t j, OracleScratch *m)
{
    normalise_token(p, &p->args->K, p->options->wk, p->dwk_of, g->b, j, g->kv_head, m->spare, m->y,
                    m->yf, m->yc);
}

/* dw [heads][d]: the parts [B][heads][N][d] of all tokens. */
static void sum_tokens(OracleArray *dw, const OracleArray *of, int64_t B, int64_t heads, int64_t N,
                       int64_t d)
{
    for (int64_t e = 0; e < B * heads * N * d; e++) {
        const int64_t to = e / (N * d) % heads * d + e % d;
        dw->value[to] += of->value[e];
        dw->fixed[to] += of->fixed[e];
        dw->per_c[to] += of->per_c[e];
    }
}

void oracle_normalise_sum(Oracle *o, const OracleArray of_tokens[2])
{
    const AttnShape *s = &o->shape;
    sum_tokens(&o->dwq, &of_tokens[0], s->B, s->H, s->Nq, s->d);
    sum_tokens(&o->dwk, &of_tokens[1], s->B, s->Hkv, s->Nk, s->d);
}
