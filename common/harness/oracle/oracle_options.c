/* SPDX-License-Identifier: MIT
 *
 * oracle_options.c: rows and keys with stage 05's options: QK normalisation, clip and dropout, in
 * float64, with the rounding bound of each element. oracle_core.c has the notation and the rest.
 *
 *     A_ij = clip(gain P_ij + low, 0, 1)     weight = f_ij A_ij,  f = 0 or 1/(1 - p) of dropout
 *     O_i  = sum_j weight V_j                D_ij = f gain [0 <= gain P + low <= 1] (dO_i . V_j)
 *     dV_j = sum_i weight dO_i               dS = P slope (D - delta),  delta_i = sum_j P D
 * Without a clip delta is rowsum(dO * O), dropout or not, and implementations take it from there.
 *
 * THE BOUNDS. A right implementation has P in float32 with the relative error c u g as in
 * oracle_core.c, applies clip and dropout to that, and rounds the weight to 16 bits for a tensor
 * core.
 *
 * Dropout. f is exact but for three roundings: 1 more in g, and sum_x|dO||V| counts once more in
 * the error of D (gain does the same there). Where f is 0 there is no error at all.
 *
 * Forward, with clip or dropout, whoever makes weights has m and l of the whole row, and weights
 * exp(s - m) / l sum to 1 whatever the scores are. (exp(s - lse) do not. Nothing forces that error
 * upon a forward pass, so no |lse| excuses it; backward has only lse, and |lse| in g.) Errors of
 * x/2 in each score then change the odds P / (1 - P) by a factor of e^x at most:
 *   |error of P| <= P (1 - P) E / (1 + min(P, 1 - P) E),   E = e^x - 1,   x = C u D A
 * To first order that is (1 - P) x P, and 0 for an only key. The bound has it where it is less than
 * c u D A P.
 *
 * Clip. t = gain P + low errs by gain times P's error + c u (gain P + |low|). A errs no more than
 * t, and by 0 where t is outside [0, 1] by more than its error (with the largest c in use: 4 for
 * f32, which has no tensor cores, else 16); the sum that an exact weight goes into rounds all the
 * same, c u (sqrt(n) + 2) A. The slope of the clip jumps at 0 and 1: where t is within its error of
 * one, and nowhere else, D may be the one of the other side, which a `jump` of f gain |dO . V|
 * covers, in D and in delta. delta is a float32 sum here and has no 16-bit part:
 *   |error of delta| <= sum_j P (c u (g |D| + 2 f gain sum_x|dO||V|) + jump |dO . V|).
 *
 * QK normalisation. dq_x is by how much Qn_x may differ from the oracle's (mostly 0 for 16 bits),
 * dk_x likewise. A score is then off by up to
 *   e_ij = scale sum_x (dq (|k| + dk) + |q| dk)
 * beside c u D A, lse by at most L_i = ln sum_j P exp(e_ij), P by the factor exp(e_ij + L_i), so by
 *   rho_ij = exp(e_ij + L_i) - 1,       for f32 to first order: e and L carry c u.
 *   O: + sum_j rho weight |V|           lse: + L          dV: + sum_i rho weight |dO|
 *   delta: + sum_x |dO| times that of O and its floor (with a clip: + sum_j P rho |D|)
 *   dS: + P rho |D - delta| + P (1 + rho) |error of delta|; with a cap 0.77 e/cap P |D - delta|
 *       too: the slope 1 - tanh^2 of the cap never changes faster than 0.77.
 *   dQn: the errors of dS times |Kn|, and (|dS| + its error) dk. dKn likewise with Q.
 * These parts are fixed for 16 bits; for f32 they scale with c.
 *
 * Interface: oracle_core.h (oracle_option_row, _gradient, _key).
 */
#include "dtype_f64.h"
#include "harness/io/philox.h"
#include "harness/oracle/oracle_core.h"
#include "tensor.h"

#include <math.h>
#include <string.h>

/* --- QK normalisation --------------------------------------------------------------------------*/

/* QK normalisation and its gradient in float64, and what rounding does there.
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
 * element is uncertain by c u G |Xn|. The rows and keys below follow these uncertainties to the
 * results.
 *
 * Backward, from a float32 dXn with the bound (fixed, per_c):
 *   both parts go through the same linear map with absolute values,
 *     r (|w| f + |hat| mean(|w| f |hat|)),
 *   and its own float32 arithmetic adds, with G for r and for each hat and G for the mean's sum,
 *     c u r ((G + 1) |w dXn| + (3 G + 2) |hat| mean |w dXn hat|).
 *   dw adds its sum of T = B N tokens: sum |hat| (f + c u (G + sqrt(T)/4) |dXn|). */

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

static void oracle_normalise_query(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i,
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

/* --- rows and keys -----------------------------------------------------------------------------*/

static const double tiny = ORACLE_TINY;

/* What the options make of one pair. */
typedef struct Pair {
    double weight;       /* what multiplies V */
    double gain;         /* d weight / d P */
    double jump;         /* what gain may be off by: the pair stands at a kink of the clip */
    double fixed, per_c; /* error of weight before it is rounded to 16 bits */
    double rho_f, rho_c; /* relative error of P from the normalisation */
} Pair;

/* What clip or dropout multiplies by 0 is taken out: not even a NaN of it is left. */
static double times(double factor, double x)
{
    return factor == 0 ? 0 : factor * x;
}

/* f of a pair */
static double dropout_factor(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i,
                             int64_t j)
{
    const int64_t head = g->kv_head * g->heads + h, sequence = g->b + p->q_at[i].sequence;
    if (!p->drops)
        return 1;
    return attn_keeps(p->options, p->threshold, sequence, head, p->q_in[i], p->k_in[j]) ? p->kept
                                                                                        : 0;
}

/* P has the relative error c u relative beside that of the uncertainties of score and lse; the
 * weight goes into a sum of sqrt_terms^2 terms, which relative knows. */
static Pair make_pair(const OraclePlan *p, double P, double relative, double sqrt_terms,
                      double factor, double score, double shift)
{
    const double largest_c = p->u16 == 0 ? 4 : 16;
    Pair r = {.rho_f = p->u16 == 0 ? 0 : expm1(score + shift),
              .rho_c = p->u16 == 0 ? score + shift : 0};
    double A = P, gain = 1, jump = 0;
    r.fixed = P * r.rho_f;
    r.per_c = P * (u * relative + r.rho_c);
    if (p->clips) {
        const double t = p->gain * P + p->clip_low;
        double margin;
        r.fixed *= p->gain;
        r.per_c = p->gain * r.per_c + u * (p->gain * P + fabs(p->clip_low));
        margin = r.fixed + largest_c * r.per_c;
        A = t < 0 ? 0 : t > 1 ? 1 : t;
        gain = t < 0 || t > 1 ? 0 : p->gain;
        if (t < -margin || t > 1 + margin) { /* the weight is exact */
            r.fixed = 0;
            r.per_c = u * (sqrt_terms + 2 + p->drops) * A;
        } else if (t < margin || t > 1 - margin) {
            jump = p->gain;
        }
    }
    r.weight = times(factor, A);
    r.gain = times(factor, gain);
    r.jump = times(factor, jump);
    r.fixed = times(factor, r.fixed);
    r.per_c = times(factor, r.per_c);
    return r;
}

/* m->unsure: e of row `row` of A with the n rows in m->index of B, which is given transposed. */
static void unsure_scores(const OraclePlan *p, const OracleMatrix *A, const OracleMatrix *Au,
                          int64_t row, const OracleMatrix *Bt, const OracleMatrix *But, int64_t n,
                          OracleScratch *m)
{
    const int64_t d = p->args->shape.d, first = m->index[0], last = m->index[n - 1] + 1;
    if (!p->norm_group) {
        memset(m->unsure, 0, sizeof(double) * (size_t)n);
        return;
    }
    for (int64_t x = 0; x < d; x++) {
        m->spare[x] = Au->at[row * d + x];
        m->spare2[x] = fabs((double)A->at[row * d + x]) + m->spare[x];
    }
    oracle_dot_columns(Bt, first, last, m->spare, m->spare, m->v, m->vc);
    oracle_dot_columns(But, first, last, m->spare2, m->spare2, m->v, m->vf);
    for (int64_t t = 0; t < n; t++)
        m->unsure[t] = fabs(p->scale) * (m->vc[m->index[t]] + m->vf[m->index[t]]);
}

/* Adds (|dS| + its error) times the uncertainty of the row that it multiplies: m->w and m->wf are
 * the weights of the n pairs, which this overwrites. */
static void unsure_rows(const OraclePlan *p, const OracleMatrix *U, int64_t n, double *per_c,
                        double *fixed, OracleScratch *m)
{
    if (!p->norm_group)
        return;
    for (int64_t t = 0; t < n; t++)
        m->w[t] = fabs(m->w[t]) + m->wf[t];
    oracle_weigh_rows(U, m->index, n, 0, p->args->shape.d, m->w, m->w, NULL,
                      p->u16 == 0 ? per_c : fixed, m->spare, NULL);
}

/* Weights of dS of the t-th pair in dQn or dKn: m->w, wc and wf. g_i: error of P. */
static void weigh_pair(const OraclePlan *p, const OracleRowState *row, const Pair *r, double dP,
                       double size_dP, double g_i, int64_t t, OracleScratch *m)
{
    const double scale = fabs(p->scale), larger = scale > 1 ? scale : 1;
    const double P = m->P[t], D = times(r->gain, dP), off = fabs(D - row->delta);
    const double dS = P * (D - row->delta) * m->slope[t];
    const double bend = p->cap == 0 ? 0 : 0.77 * m->unsure[t] / p->cap * off;
    const double own = g_i * off + (1 + p->clips + p->drops) * times(r->gain, size_dP);
    const double error_c = u * own + r->rho_c * off + row->delta_c;
    const double error_f = row->delta_f + times(r->jump, fabs(dP)) + (p->u16 == 0 ? 0 : bend);
    m->w[t] = p->scale * dS;
    m->wc[t] = scale * P * ((1 + r->rho_f) * error_c + (p->u16 == 0 ? bend : 0));
    m->wf[t] = scale * (p->u16 * fabs(dS) + P * (r->rho_f * off + (1 + r->rho_f) * error_f)) +
               larger * (p->eta + tiny * off);
}

/* The relative error of P in units of c u where the other keys have the weight `others`. */
static double shared_error(const OraclePlan *p, const OracleRowState *row, double P, double others)
{
    const double Cu = (p->u16 == 0 ? 4 : 16) * u, DA = row->output - row->rounding;
    const double E = expm1(Cu * DA), moved = others * E / (1 + fmin(P, others) * E) / Cu;
    return row->rounding + (E < INFINITY && moved < DA ? moved : DA);
}

void oracle_option_row(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i, int64_t n,
                       OracleScratch *m, OracleRowState *state)
{
    const int64_t d = p->args->shape.d;
    int64_t top = 0;
    double rest = 0;
    unsure_scores(p, &g->Q[h], &g->Qu[h], i, &g->Kt, &g->Kut, n, m);
    for (int64_t t = 0; t < n; t++)
        state->shift += m->P[t] * (p->u16 == 0 ? m->unsure[t] : expm1(m->unsure[t]));
    if (p->u16 != 0)
        state->shift = log1p(state->shift); /* L */
    for (int64_t t = 1; t < n; t++) { /* 1 - P of the largest, which a subtraction would lose */
        rest += m->P[t] > m->P[top] ? m->P[top] : m->P[t];
        top = m->P[t] > m->P[top] ? t : top;
    }
    for (int64_t t = 0; t < n; t++) {
        const double f = dropout_factor(p, g, h, i, m->index[t]);
        const double shared = shared_error(p, state, m->P[t], t == top ? rest : 1 - m->P[t]);
        const double error = p->clips || p->drops ? shared : state->output;
        const Pair r = make_pair(p, m->P[t], error, sqrt((double)n), f, m->unsure[t], state->shift);
        m->w[t] = r.weight;
        m->wc[t] = r.per_c;
        m->wf[t] = r.fixed + p->eta;
    }
    memset(m->y, 0, sizeof(double) * (size_t)(6 * d)); /* y and z */
    oracle_weigh_rows(&g->V, m->index, n, 0, d, m->w, m->w, m->wf, m->y, m->yc, m->yf);
    oracle_weigh_rows(&g->V, m->index, n, 0, d, m->w, m->wc, NULL, m->z, m->zc, NULL);
}

/* delta_f and delta_c without a clip, from those of O; with one, delta too, from m->dot = dP. */
static void row_delta(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i, int64_t n,
                      double g_i, OracleScratch *m, OracleRowState *state)
{
    if (!p->clips) {
        state->delta_f = p->u16 * (state->dO_O + state->dO_W);
        state->delta_c = u * (state->dO_O + (g_i - state->forward) * state->dO_W);
        for (int64_t x = 0; x < p->args->shape.d; x++) {
            state->delta_f += m->row2_size[x] * (m->yf[x] + p->eta);
            state->delta_c += m->row2_size[x] * m->zc[x];
        }
        return;
    }
    state->delta = 0;
    for (int64_t t = 0; t < n; t++) {
        const double P = m->P[t], dP = m->dot[m->index[t]], size = m->size[m->index[t]];
        const double f = dropout_factor(p, g, h, i, m->index[t]);
        const Pair r = make_pair(p, P, g_i, 0, f, m->unsure[t], state->shift);
        const double D = times(r.gain, dP), jump = times(r.jump, fabs(dP));
        state->delta += P * D;
        state->delta_f += P * (r.rho_f * fabs(D) + (1 + r.rho_f) * jump);
        state->delta_c +=
            P * ((u * g_i + r.rho_c) * fabs(D) + u * (2 + p->drops) * times(r.gain, size));
    }
}

void oracle_option_gradient(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i,
                            int64_t n, OracleScratch *m, OracleRowState *state,
                            const OracleTarget *dQ)
{
    const int64_t d = p->args->shape.d, first = m->index[0], last = m->index[n - 1] + 1;
    const double g_i = state->g + sqrt((double)n);
    if (p->clips || dQ)
        oracle_dot_columns(&g->Vt, first, last, m->row2, m->row2_size, m->dot, m->size);
    row_delta(p, g, h, i, n, g_i, m, state);
    if (!dQ)
        return;
    for (int64_t t = 0; t < n; t++) {
        const int64_t j = m->index[t];
        const Pair r = make_pair(p, m->P[t], g_i, 0, dropout_factor(p, g, h, i, j), m->unsure[t],
                                 state->shift);
        weigh_pair(p, state, &r, m->dot[j], m->size[j], g_i, t, m);
    }
    memset(m->z, 0, sizeof(double) * (size_t)(3 * d));
    oracle_weigh_rows(&g->K, m->index, n, 0, d, m->w, m->wc, m->wf, m->z, m->zc, m->zf);
    unsure_rows(p, &g->Ku, n, m->zc, m->zf, m);
    if (p->norm_group)
        oracle_normalise_query(p, g, h, i, m);
    oracle_finish(p, d, m->z, m->zf, m->zc, dQ);
}

void oracle_option_key(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t j, int64_t n,
                       double sqrt_terms, OracleScratch *m)
{
    const int64_t d = p->args->shape.d;
    const OracleRowState *rows = &g->state[h * p->args->shape.Nq];
    unsure_scores(p, &g->K, &g->Ku, j, &g->Qt[h], &g->Qut[h], n, m);
    for (int64_t t = 0; t < n; t++) {
        const int64_t i = m->index[t];
        const double g_i = rows[i].g + sqrt_terms;
        const Pair r = make_pair(p, m->P[t], g_i, sqrt_terms, dropout_factor(p, g, h, i, j),
                                 m->unsure[t], rows[i].shift);
        weigh_pair(p, &rows[i], &r, m->dot[i], m->size[i], g_i, t, m);
        m->v[t] = r.weight;
        m->vc[t] = r.per_c;
        m->vf[t] = p->u16 * r.weight + r.fixed + p->eta;
    }
    oracle_weigh_rows(&g->dO[h], m->index, n, 0, d, m->v, m->vc, m->vf, m->z, m->zc, m->zf);
    oracle_weigh_rows(&g->Q[h], m->index, n, 0, d, m->w, m->wc, m->wf, m->y, m->yc, m->yf);
    unsure_rows(p, &g->Qu[h], n, m->yc, m->yf, m);
}
