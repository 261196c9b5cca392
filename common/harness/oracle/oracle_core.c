/* SPDX-License-Identifier: MIT
 *
 * oracle_core.c: attention and its gradient in float64, with the rounding bound of each element.
 *
 * Everything is written as y = w^T M (weights times the rows of a matrix): the scores of a query
 * are q^T K^T, its output is P^T V, dQ is dS^T K. Beside y the same loop sums |w||M|, which is what
 * a rounding bound needs.
 *
 * THE BOUNDS. u = 2^-24 is half a float32 ulp, u16 the same for the storage type (0 for f32). c
 * stands for the constants that depend on the order of a float32 sum; it scales every float32 term.
 *
 * Forward. A score is a dot product of d terms. In float32, in whatever order, its error is at most
 *   d u sum_x scale |q||k|, and when roundings are as often up as down about sqrt(d) u times that
 *   sum (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019). Two
 *   keys that share a row can err in opposite directions, so O feels twice the error of one score.
 *   With A the largest sum_x scale |q||k| of the row, c u D A with D = 1 + sqrt(d)/4 covers both:
 *   at c = 4 that is (4 + sqrt(d)) u A. (A constant D = 1 refuses right results: OpenBLAS reached
 *   5 u A at d = 32 on scores of some hundreds, where two keys carry a row.)
 *   exp turns an absolute error of the score into a relative one of P; summing n of them adds about
 *   sqrt(n), the exp and the division a few: 8.
 *     |lse - ref| <= c u (D A + sqrt(n) + |lse| + 8)
 *     |O - ref|   <= u16 (|O| + W) + c u (D A + sqrt(n) + 8) W + eta (1 + sum_j |V|),
 *                    W = sum_j P|V|
 *   u16 W is P rounded to 16 bits, u16 |O| the rounded result, eta a P too small for its type.
 *
 * Backward. P = exp(s - lse) has the relative error c u g_i, with
 *     g_i = D A (1 + 2/cap) + |lse_i| + sqrt(n) + sqrt(terms summed) + 8.
 *   2/cap: the slope of the cap is 1 - t^2 with t = tanh(s/cap); an error c u D A of s moves it by
 *   at most 2|t|(1 - t^2) c u D A / cap, an absolute error that stays when the slope itself is 0.
 *     dV = sum_i P dO               u16 (|dV| + sum_i P|dO|) + c u sum_i g_i P|dO|
 *                                   + eta (1 + sum_i |dO|)
 *   dS = P slope (dP - delta) errs by P's error times |dP - delta|, by dP's rounding
 *   c u sum_x |dO||V|, and by delta's error. delta = sum_x dO O is computed from the O that the
 *   forward pass stored: its error is that of O, element by element the bound above, plus the
 *   rounding of the dot product. So with W_i = sum_x |dO| W, E_i = sum_x |dO||O| (W_i >= E_i) and
 *   F_i = sum_x |dO| (1 + sum_j |V|), what O's floor becomes:
 *     |error of delta| <= u16 (E_i + W_i) + c u (g_i W_i + E_i) + eta F_i.
 *   W_i cannot be left out. Where V's of both signs cancel in O, |O| says nothing about the error
 *   of O; test_bounds.c holds a case with E_i = 0 in which a right implementation needs it. Nor can
 *   F_i: the rounding of a subnormal O is as large as O in f16, and a large dO multiplies it.
 *     dK = scale sum_i dS Q         u16 (|dK| + scale sum_i (|dS| + P (E_i + W_i)) |Q|)
 *          + c u scale sum_i P (g_i (|dP - delta| + W_i) + sum_x|dO||V| + E_i) |Q|
 *          + eta (1 + max(scale,1) sum_i |Q|) + 2^-126 max(scale,1) sum_i |dP - delta| |Q|
 *          + eta scale sum_i P F_i |Q|
 *   The last but one is a P below float32's normal range, flushed to 0 and then multiplied by
 *   |dP - delta|, which for large inputs is far above 1. dQ is the same with K, summed over keys.
 *
 * Large scores. An error of x in the exponent multiplies P by exp(x), which is 1 + x only while x
 * is small: with scores of 10^7 one rounding is 1 and more. So wherever g stands as a factor it is
 *     (exp(C u g) - 1) / (C u),   C = 4 for f32, 16 otherwise: the largest c in use.
 * From C u g = 80 on P may leave float32's range and nothing can be said of gradients: o->beyond.
 *
 * Stage 05's options are in oracle_options.c, with what they add to this. A
 * temperature is part of scale; a right implementation rounds their quotient to float32, which
 * moves every score by u of itself and adds 1/2 to D (two keys, c = 4).
 *
 * Interface: oracle_core.h.
 */
#include "harness/oracle/oracle_core.h"

#include <math.h>
#include <string.h>

static const double u = ORACLE_U, tiny = ORACLE_TINY;

double oracle_cap_score(const OraclePlan *p, double qk, double *slope)
{
    const double s = p->scale * qk;
    double t;
    *slope = 1;
    if (p->cap == 0)
        return s;
    t = tanh(s / p->cap);
    *slope = 1 - t * t;
    return p->cap * t;
}

double oracle_weight(double score, double shift)
{
    return score == -INFINITY && shift == -INFINITY ? 0 : exp(score - shift);
}

void oracle_weigh_pair(const OraclePlan *p, const OracleRowState *row, double P, double slope,
                       double dP, double size_dP, double g_i, double *w, double *wc, double *wf)
{
    const double scale = fabs(p->scale), larger = scale > 1 ? scale : 1;
    const double off = fabs(dP - row->delta), dS = P * (dP - row->delta) * slope;
    *w = p->scale * dS;
    *wc = u * scale * P * (oracle_grown(p, g_i) * (off + row->dO_W) + size_dP + row->dO_O);
    *wf = p->u16 * scale * (fabs(dS) + P * (row->dO_O + row->dO_W)) + scale * P * row->dO_floor +
          larger * (p->eta + tiny * off);
}

void oracle_finish(const OraclePlan *p, int64_t d, const double *value, const double *fixed,
                   const double *per_c, const OracleTarget *to)
{
    for (int64_t x = 0; x < d; x++) {
        to->value[x] = value[x];
        to->fixed[x] = fixed[x] + p->u16 * fabs(value[x]) + p->eta;
        to->per_c[x] = per_c[x];
    }
}

void oracle_target_fill(const OracleTarget *to, int64_t d, double value, double fixed, double per_c)
{
    for (int64_t x = 0; x < d; x++) {
        to->value[x] = value;
        to->fixed[x] = fixed;
        to->per_c[x] = per_c;
    }
}

/* s and P of row i over the n keys in m->index. Fills m->P, m->slope, *A and returns lse. */
static double softmax_row(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i,
                          int64_t n, OracleScratch *m, double *A)
{
    double max = -INFINITY, sum = 0;
    oracle_matrix_row(&g->Q[h], i, m->row, m->row_size);
    oracle_dot_columns(&g->Kt, m->index[0], m->index[n - 1] + 1, m->row, m->row_size, m->dot,
                       m->size);
    *A = 0;
    for (int64_t t = 0; t < n; t++) {
        const double size = fabs(p->scale) * m->size[m->index[t]];
        m->P[t] = oracle_cap_score(p, m->dot[m->index[t]], &m->slope[t]);
        max = m->P[t] > max ? m->P[t] : max;
        *A = size > *A ? size : *A;
    }
    for (int64_t t = 0; t < n; t++)
        sum += m->P[t] = oracle_weight(m->P[t], max);
    for (int64_t t = 0; t < n; t++)
        m->P[t] /= sum;
    return max + log(sum);
}

/* dQ of row i, once P, O and W are known. */
static void row_gradient(const OraclePlan *p, const OracleGroup *g, const OracleRowState *state,
                         int64_t n, OracleScratch *m, const OracleTarget *dQ)
{
    const int64_t d = p->args->shape.d;
    const double g_i = state->g + sqrt((double)n);
    oracle_dot_columns(&g->Vt, m->index[0], m->index[n - 1] + 1, m->row2, m->row2_size, m->dot,
                       m->size);
    for (int64_t t = 0; t < n; t++)
        oracle_weigh_pair(p, state, m->P[t], m->slope[t], m->dot[m->index[t]], m->size[m->index[t]],
                          g_i, &m->w[t], &m->wc[t], &m->wf[t]);
    memset(m->z, 0, sizeof(double) * (size_t)(3 * d));
    oracle_weigh_rows(&g->K, m->index, n, 0, p->args->shape.d, m->w, m->wc, m->wf, m->z, m->zc,
                      m->zf);
    oracle_finish(p, d, m->z, m->zf, m->zc, dQ);
}

/* Adds delta and what it inherits from O, whose floor is eta + floor: [d] each. */
static void row_delta(const double *dO, const double *O, const double *W, const double *floor,
                      double eta, int64_t d, OracleRowState *state)
{
    for (int64_t x = 0; x < d; x++) {
        state->delta += dO[x] * O[x];
        state->dO_O += fabs(dO[x] * O[x]);
        state->dO_W += fabs(dO[x]) * W[x];
        state->dO_floor += fabs(dO[x]) * (eta + floor[x]);
    }
}

void oracle_row(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i, int backward,
                double *scratch, const OracleTarget *O, const OracleTarget *lse,
                const OracleTarget *dQ)
{
    const AttnShape *s = &p->args->shape;
    OracleScratch m = oracle_scratch_divide(s, scratch);
    OracleRowState *state = &g->state[h * s->Nq + i];
    const int64_t n = oracle_seen(p, 1, i, m.index);
    double A;
    memset(state, 0, sizeof *state);
    state->lse = -INFINITY;
    if (n > 0)
        state->lse = softmax_row(p, g, h, i, n, &m, &A);
    if (state->lse == -INFINITY) { /* no weight: exact zeros, and -inf */
        if (O) {
            oracle_target_fill(O, s->d, 0, 0, 0);
            oracle_target_fill(lse, 1, -INFINITY, n > 0 ? INFINITY : 0, 0);
        }
        if (dQ)
            oracle_target_fill(dQ, s->d, 0, 0, 0);
        return;
    }
    oracle_row_errors(p, A, n, state);
    if (p->options) {
        oracle_option_row(p, g, h, i, n, &m, state);
    } else {
        for (int64_t t = 0; t < n; t++) {
            m.wc[t] = m.P[t]; /* sum_j P|V| = W */
            m.wf[t] = p->eta;
        }
        oracle_bytes_weigh(p, g, &m, n, state, O ? lse->square : NULL);
        memset(m.y, 0, sizeof(double) * (size_t)(3 * s->d));
        oracle_weigh_rows(&g->V, m.index, n, 0, p->args->shape.d, m.P, m.wc, m.wf, m.y, m.yc, m.yf);
    }
    if (backward) {
        oracle_matrix_row(&g->dO[h], i, m.row2, m.row2_size);
        row_delta(m.row2, m.y, m.yc, m.yf, p->eta, s->d, state);
    }
    if (O) {
        for (int64_t x = 0; x < s->d; x++) {
            O->fixed[x] = m.yf[x] + p->u16 * m.yc[x];
            O->per_c[x] = p->options ? m.zc[x] : m.yc[x] * (u * oracle_grown(p, state->output));
        }
        oracle_finish(p, s->d, m.y, O->fixed, O->per_c, O);
        oracle_target_fill(lse, 1, state->lse, p->u16 == 0 ? 0 : state->shift + state->score,
                           u * (state->forward + fabs(state->lse)) +
                               (p->u16 == 0 ? state->shift : 0));
    }
    if (!backward)
        return;
    if (p->options)
        oracle_option_gradient(p, g, h, i, n, &m, state, dQ);
    else if (dQ)
        row_gradient(p, g, state, n, &m, dQ);
}

/* Adds what head h gives to dK and dV of key j: m->y and m->z. terms = rows summed, all heads. */
static void key_head(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t j, int64_t n,
                     double sqrt_terms, OracleScratch *m)
{
    const AttnShape *s = &p->args->shape;
    const OracleRowState *rows = &g->state[h * s->Nq];
    const int64_t first = m->index[0], last = m->index[n - 1] + 1;
    oracle_dot_columns(&g->Qt[h], first, last, m->row, m->row_size, m->dot, m->size);
    for (int64_t t = 0; t < n; t++) {
        const int64_t i = m->index[t];
        m->P[t] = oracle_weight(oracle_cap_score(p, m->dot[i], &m->slope[t]), rows[i].lse);
    }
    oracle_dot_columns(&g->dOt[h], first, last, m->row2, m->row2_size, m->dot, m->size);
    if (p->options) {
        oracle_option_key(p, g, h, j, n, sqrt_terms, m);
        return;
    }
    for (int64_t t = 0; t < n; t++) {
        const int64_t i = m->index[t];
        const double g_i = rows[i].g + sqrt_terms;
        oracle_weigh_pair(p, &rows[i], m->P[t], m->slope[t], m->dot[i], m->size[i], g_i, &m->w[t],
                          &m->wc[t], &m->wf[t]);
        m->vc[t] = u * oracle_grown(p, g_i) * m->P[t];
        m->vf[t] = p->u16 * m->P[t] + p->eta;
    }
    oracle_weigh_rows(&g->Q[h], m->index, n, 0, p->args->shape.d, m->w, m->wc, m->wf, m->y, m->yc,
                      m->yf);
    oracle_weigh_rows(&g->dO[h], m->index, n, 0, p->args->shape.d, m->P, m->vc, m->vf, m->z, m->zc,
                      m->zf);
}

void oracle_key(const OraclePlan *p, const OracleGroup *g, int64_t j, double *scratch,
                const OracleTarget *dK, const OracleTarget *dV)
{
    const AttnShape *s = &p->args->shape;
    OracleScratch m = oracle_scratch_divide(s, scratch);
    const int64_t n = oracle_seen(p, 0, j, m.index);
    if (n == 0) { /* nobody sees this key */
        oracle_target_fill(dK, s->d, 0, 0, 0);
        oracle_target_fill(dV, s->d, 0, 0, 0);
        return;
    }
    oracle_matrix_row(&g->K, j, m.row, m.row_size);
    oracle_matrix_row(&g->V, j, m.row2, m.row2_size);
    memset(m.y, 0, sizeof(double) * (size_t)(6 * s->d));
    memset(m.spare, 0, sizeof(double) * (size_t)(2 * s->d)); /* spare2 too: y and z so far */
    for (int64_t h = 0; h < g->heads; h++) {
        key_head(p, g, h, j, n, sqrt((double)(n * g->heads)), &m);
        oracle_note_copy(p, h, m.y, m.spare, dK->copied);
        oracle_note_copy(p, h, m.z, m.spare2, dV->copied);
    }
    if (p->norm_group)
        oracle_normalise_key(p, g, j, &m);
    oracle_finish(p, s->d, m.y, m.yf, m.yc, dK);
    oracle_finish(p, s->d, m.z, m.zf, m.zc, dV);
}
