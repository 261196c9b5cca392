/* SPDX-License-Identifier: MIT
 *
 * oracle_options.c: what stage 05's options add to the oracle: QK normalisation, clip and dropout,
 * in float64, with what they add to the bounds.
 *
 * Interface: oracle_core.h (oracle_pair, oracle_normalise_row, oracle_normalise_gradient).
 */
#include <math.h>
#include <string.h>

#include "oracle_core.h"
#include "philox.h"
#include "tensor.h"

static const double u = 0x1p-24;

/* Errors of a normalised value in units of c u of it: the mean of n squares, root, division, two
 * products. */
static double norm_error(const OraclePlan *p)
{
    return 2 + sqrt((double)p->norm_group) / 4;
}

OraclePair oracle_pair(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i, int64_t j,
                       double P, double relative, double score)
{
    const double c = p->u16 == 0 ? 4 : 16; /* the largest in use */
    const int64_t head = g->kv_head * g->heads + h;
    const double factor = !p->drops ? 1
                          : attn_keeps(p->options, p->threshold, g->b + p->q_at[i].sequence, head,
                                       p->q_in[i], p->k_in[j])
                              ? p->kept
                              : 0;
    OraclePair r = {0};
    double A = P, slope = 1, jump = 0, fixed, per_c;
    if (p->u16 == 0)
        r.rho_c = score;
    else
        r.rho_f = score;
    fixed = P * r.rho_f;
    per_c = u * P * relative + P * r.rho_c;
    if (p->clips) {
        const double t = p->gain * P + p->clip_low;
        double margin;
        fixed *= p->gain;
        per_c = p->gain * per_c + u * (p->gain * P + fabs(p->clip_low));
        margin = fixed + c * per_c;
        A = t < 0 ? 0 : t > 1 ? 1 : t;
        slope = t < 0 || t > 1 ? 0 : p->gain;
        if (t < -margin || t > 1 + margin)
            fixed = per_c = 0;
        else if (t < margin || t > 1 - margin)
            jump = p->gain;
    }
    r.weight = factor * A;
    r.slope = factor * slope;
    r.jump = factor * jump;
    r.fixed = factor * fixed;
    r.per_c = factor * per_c;
    return r;
}

/* r = 1 / sqrt(mean(X^2) + eps) of the group that starts at x */
static double inverse_size(const OraclePlan *p, const float *row, int64_t x)
{
    double sum = 0;
    for (int64_t n = 0; n < p->norm_group; n++)
        sum += (double)row[x + n] * row[x + n];
    return 1 / sqrt(sum / (double)p->norm_group + (double)p->options->norm_eps);
}

void oracle_normalise_row(const OraclePlan *p, const float *w, float *row, float *unsure)
{
    const int64_t d = p->args->shape.d;
    const AttnDtype dtype = p->args->Q.dtype;
    for (int64_t x = 0; x < d; x += p->norm_group) {
        const double r = inverse_size(p, row, x);
        for (int64_t n = x; n < x + p->norm_group; n++) {
            const double exact = (double)w[n] * row[n] * r;
            const double off = u * norm_error(p) * fabs(exact);
            row[n] = dtype_round(dtype, (float)exact);
            if (dtype == ATTN_F32) {
                unsure[n] = (float)off;
                continue;
            }
            unsure[n] = fmaxf(fabsf(dtype_round(dtype, (float)(exact + 4 * off)) - row[n]),
                              fabsf(dtype_round(dtype, (float)(exact - 4 * off)) - row[n]));
        }
    }
}

void oracle_normalise_gradient(const OraclePlan *p, const float *w, const float *row,
                               double sqrt_tokens, double *value, double *fixed, double *per_c,
                               const OracleTarget *part)
{
    const int64_t d = p->args->shape.d, group = p->norm_group;
    const double G = norm_error(p);
    for (int64_t x = 0; x < d; x += group) {
        const double r = inverse_size(p, row, x);
        double mean = 0, mean_size = 0, mean_f = 0, mean_c = 0;
        for (int64_t n = x; n < x + group; n++) {
            const double hat = r * row[n], size = fabs(hat), weight = fabs((double)w[n]);
            if (part) {
                part->value[n] = hat * value[n];
                part->fixed[n] = size * fixed[n];
                part->per_c[n] = size * (per_c[n] + u * (G + sqrt_tokens / 4) * fabs(value[n]));
            }
            mean += w[n] * value[n] * hat / (double)group;
            mean_size += weight * fabs(value[n]) * size / (double)group;
            mean_f += weight * fixed[n] * size / (double)group;
            mean_c += weight * per_c[n] * size / (double)group;
        }
        for (int64_t n = x; n < x + group; n++) {
            const double hat = r * row[n], size = fabs(hat), weight = fabs((double)w[n]);
            const double rounding =
                (G + 1) * weight * fabs(value[n]) + size * (3 * G + 2) * mean_size;
            value[n] = r * (w[n] * value[n] - hat * mean);
            fixed[n] = r * (weight * fixed[n] + size * mean_f);
            per_c[n] = r * (weight * per_c[n] + size * mean_c + u * rounding);
        }
    }
}
