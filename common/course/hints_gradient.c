/* SPDX-License-Identifier: MIT
 *
 * hints_gradient.c: dQ of one row, dK and dV of one key, with one mistake.
 *
 *     P = exp(s - lse)     dP = dO V     delta = rowsum(dO O)     dS = P (dP - delta) slope
 *     dV = P^T dO          dQ = scale dS K                        dK = scale dS^T Q
 *
 * O and lse are given: where a submission's own forward pass was wrong, its gradients are compared
 * with what follows from that O and that lse. A mistake of visibility, of memory or of the score is
 * made here as it is in the forward pass.
 *
 * With a QK normalisation these are gradients of the normalised Q and K at first, and then go
 * through it: hat = r X, r = 1 / sqrt(mean of the group's X^2 + eps), and
 *
 *     dX = r (w g - hat mean over the group of w g hat)        g: the gradient of w hat
 *
 * Interface: hint_dq_row, hint_dkv_row (hints_internal.h).
 */
#include "attn_options.h"
#include "course/hints_internal.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_KEPT = 1 << 22 };

/* A row of queries at which the gradient stands. */
typedef struct Row {
    HintCase *c;
    const HintBug *bug;
    HintTile tile;
    int64_t b, h, i;
    const double *q, *dO;
    double lse, delta, O_norm, dO_norm;
    const double *given; /* where lse is from */
} Row;

/* What one pair gives, and how far its dS may be off. */
typedef struct Pair {
    double A, dS, P; /* A: the weight that met V */
    double dS_reach, P_reach;
    int64_t k_row, v_row;
} Pair;

static Row row_of(HintCase *c, const HintBug *bug, HintTile tile, const HintGiven *g, int64_t b,
                  int64_t h, int64_t i)
{
    const int64_t d = c->n.d, at = (b * c->n.Nq + i) * c->n.H + h;
    const double *O = g->O + ((b * c->n.H + h) * c->n.Nq + i) * d;
    Row r = {c, bug, tile, b, h,     i, hint_q(c, bug->feed, b, h, i), c->dO + at * d,
             0, 0,   0,    0, g->lse};
    r.lse = g->lse[(b * c->n.H + h) * c->n.Nq + i];
    r.delta = hint_dot(r.dO, O, d);
    r.O_norm = sqrt(hint_dot(O, O, d));
    r.dO_norm = c->dO_norm[at];
    return r;
}

static double score_of(const Row *r, int64_t j, int *visible)
{
    const int64_t row = hint_k_row(r->c, r->bug->feed, r->b, r->h, j);
    *visible = hint_see(r->c, r->bug, r->tile, r->i, j);
    if (!*visible &&
        (r->bug->score != SCORE_CAP_AFTER_MASK || !hint_tile_visited(r->c, r->tile, r->i, j)))
        return -INFINITY;
    return hint_score(r->c, r->bug,
                      hint_dot(r->q, hint_keys(r->c, r->bug->feed) + row * r->c->n.d, r->c->n.d),
                      visible);
}

/* The largest visible score of the keys from .. to - 1. */
static double maximum(const Row *r, int64_t from, int64_t to)
{
    double m = -INFINITY;
    for (int64_t j = from; j < to; j++) {
        int visible;
        const double s = score_of(r, j, &visible);
        m = visible && s > m ? s : m;
    }
    return m;
}

static int64_t tile_end(const Row *r, int64_t j)
{
    const int64_t end = (j / r->tile.T + 1) * r->tile.T;
    return end < r->c->n.Nk ? end : r->c->n.Nk;
}

/* Sums and maxima that all keys of a tile share with a query, or all keys: found once for all the
 * gradients of a hypothesis. The place of one, or NULL where that would be too many; NaN: not yet
 * found. tile: its number, or -1 for all keys. */
static double *kept_of(const Row *r, int64_t tile)
{
    HintCase *c = r->c;
    const int64_t tiles = (c->n.Nk - 1) / r->tile.T + 1, rows = c->n.B * c->n.H * c->n.Nq;
    if (rows * (tiles + 1) > MOST_KEPT)
        return NULL;
    if (!c->shared.at || c->shared.bug != r->bug || c->shared.tile.T != r->tile.T ||
        c->shared.tile.Tq != r->tile.Tq || c->shared.given != r->given) {
        free(c->shared.at);
        c->shared.at = malloc((size_t)(rows * (tiles + 1)) * sizeof *c->shared.at);
        for (int64_t n = 0; c->shared.at && n < rows * (tiles + 1); n++)
            c->shared.at[n] = NAN;
        c->shared.bug = r->bug;
        c->shared.tile = r->tile;
        c->shared.given = r->given;
    }
    return c->shared.at
               ? c->shared.at + ((r->b * c->n.H + r->h) * c->n.Nq + r->i) * (tiles + 1) + tile + 1
               : NULL;
}

/* What `find` says of the tile of key j, or of all keys where j < 0. */
static double once(const Row *r, int64_t j, double (*find)(const Row *, int64_t, int64_t))
{
    const int64_t T = r->tile.T;
    double *kept = kept_of(r, j < 0 ? -1 : j / T);
    double value = kept ? *kept : NAN;
    if (isnan(value))
        value = j < 0 ? find(r, 0, r->c->n.Nk) : find(r, j / T * T, tile_end(r, j));
    if (kept)
        *kept = value;
    return value;
}

/* What P is exp of, beside the score. */
static double shift_of(const Row *r, int64_t j)
{
    switch (r->bug->gradient) {
    case GRADIENT_P_RAW:
        return 0.0;
    case GRADIENT_P_M: /* its tile has all keys */
    case GRADIENT_P_TILE_M:
        return once(r, j, maximum);
    default:
        return r->lse;
    }
}

/* dP through clipping and dropout: d O / d P. */
static double gradient_of_p(const Row *r, int64_t j, double P, double dA)
{
    const HintCase *c = r->c;
    const double A = hint_weight(c, r->bug, r->tile, r->b, r->h, r->i, j, P);
    const double clipped = c->gain * P + c->clip_low;
    if (!c->clips && !c->drops)
        return dA;
    if ((c->drops && A == 0.0) || (c->clips && (clipped < 0.0 || clipped > 1.0)))
        return 0.0;
    return dA * (c->clips ? c->gain : 1.0) *
           (c->drops && r->bug->sum != SUM_DROPOUT_NOT_SCALED ? c->kept : 1.0);
}

/* Sum of P dP over the keys from .. to - 1. */
static double sum_p_dp(const Row *r, int64_t from, int64_t to)
{
    double sum = 0.0;
    for (int64_t j = from; j < to; j++) {
        int visible;
        const double s = score_of(r, j, &visible), P = visible ? exp(s - r->lse) : 0.0;
        const double *v = r->c->V + hint_v_row(r->c, r->bug->feed, r->b, r->h, j) * r->c->n.d;
        if (visible)
            sum += P * gradient_of_p(r, j, P, hint_dot(r->dO, v, r->c->n.d));
    }
    return sum;
}

static double delta_of(const Row *r, int64_t j)
{
    HintCase *c = r->c;
    int64_t key = r->i;
    switch (r->bug->gradient) {
    case GRADIENT_NO_DELTA:
        return 0.0;
    case GRADIENT_DELTA_ADDED:
        return -r->delta;
    case GRADIENT_DELTA_V_TILE:
        key = j / r->tile.T * r->tile.T + r->i % r->tile.T;
        if (key >= c->n.Nk) /* a partial tile leaves the rows of the one before it in place */
            key -= r->tile.T;
        if (key < 0)
            return NAN;
        return hint_dot(r->dO, c->V + hint_v_row(c, FEED_RIGHT, r->b, r->h, key) * c->n.d, c->n.d);
    case GRADIENT_DELTA_V:
        if (key >= c->n.Nk)
            return NAN;
        return hint_dot(r->dO, c->V + hint_v_row(c, FEED_RIGHT, r->b, r->h, key) * c->n.d, c->n.d);
    case GRADIENT_DELTA_TILE:
        return once(r, j, sum_p_dp);
    case GRADIENT_DELTA_CLIPPED:
        return r->delta;
    default:
        return r->delta;
    }
}

static double slope_of(const Row *r, double s)
{
    const HintCase *c = r->c;
    const int score = r->bug->score;
    if (c->cap <= 0.0 || score == SCORE_NO_CAP)
        return 1.0 / (score == SCORE_NO_TEMPERATURE ? 1.0 : c->temperature);
    if (r->bug->gradient == GRADIENT_NO_SLOPE)
        return 1.0;
    s = score == SCORE_TEMPERATURE_BEHIND_CAP ? s * c->temperature : s;
    return (1.0 - (s / c->cap) * (s / c->cap)) /
           (score == SCORE_TEMPERATURE_BEFORE_CAP || score == SCORE_TEMPERATURE_BEHIND_CAP
                ? c->temperature
                : 1.0);
}

/* 0: the pair gives nothing. */
static int look_at_pair(Row *r, int64_t j, Pair *p)
{
    const HintCase *c = r->c;
    const double u = c->c * 0x1p-24, d = (double)c->n.d;
    double s, dP, slope, g;
    int visible;
    if (r->lse == -INFINITY)
        return 0;
    s = score_of(r, j, &visible);
    if (!visible)
        return 0;
    p->k_row = hint_k_row(c, r->bug->feed, r->b, r->h, j);
    p->v_row = hint_v_row(c, r->bug->feed, r->b, r->h, j);
    p->P = exp(s - shift_of(r, j));
    p->A = hint_weight(c, r->bug, r->tile, r->b, r->h, r->i, j, p->P);
    dP = gradient_of_p(r, j, p->P, hint_dot(r->dO, c->V + p->v_row * c->n.d, c->n.d));
    slope = slope_of(r, s);
    p->dS = (r->bug->gradient == GRADIENT_NO_P ? 1.0 : p->P) * (dP - delta_of(r, j)) * slope;
    g = (1.0 + sqrt(d) / 4.0) * fabs(c->scale) * c->largest_k * sqrt(hint_dot(r->q, r->q, c->n.d)) *
            (1.0 + (c->cap > 0.0 ? 2.0 / c->cap : 0.0)) +
        fabs(r->lse) + sqrt((double)(c->n.Nk + c->n.Nq)) + 16.0;
    p->P_reach = c->u16 + u * g;
    p->dS_reach = c->u16 * fabs(p->dS) + (r->bug->gradient == GRADIENT_NO_P ? 1.0 : p->P) *
                                             (c->u16 + u * g) * r->dO_norm * c->gain * c->kept *
                                             (c->V_norm[p->v_row] + r->O_norm);
    p->dS_reach += p->P * c->eta * sqrt(d) * r->dO_norm; /* delta is made from a rounded O */
    return 1;
}

/* Clipped weights: rowsum(dO O) is no longer the sum of P dP. */
static void mend_delta(Row *r)
{
    if (r->c->clips && r->bug->gradient != GRADIENT_DELTA_CLIPPED)
        r->delta = once(r, -1, sum_p_dp);
}

static double outer_scale(const HintCase *c, const HintBug *bug)
{
    return bug->gradient == GRADIENT_NO_OUTER_SCALE ? 1.0 : c->scale;
}

/* A row's gradient g [d] and its tolerance through the normalisation. from: the row before it; w:
 * the head's weights. */
static void through_norm(const HintCase *c, const HintBug *bug, const double *from, const float *w,
                         double *g, double *tolerance)
{
    const int64_t group = c->args->options->norm_group;
    const double own = c->c * 0x1p-24 * (3.0 * sqrt((double)group) + 16.0);
    if (bug->gradient == GRADIENT_NORM_IGNORED)
        return;
    for (int64_t first = 0; first < c->n.d; first += group) {
        const double squares = hint_dot(from + first, from + first, group);
        const double r = 1.0 / sqrt(squares / (double)group + (double)c->args->options->norm_eps);
        double mean = 0.0, reach = 0.0;
        for (int64_t x = first; x < first + group; x++) {
            const double weight = bug->gradient == GRADIENT_NORM_NO_WEIGHT ? 1.0 : w[x];
            mean += weight * g[x] * r * from[x] / (double)group;
            reach += fabs(weight * r * from[x]) * (tolerance[x] + own * fabs(g[x])) / (double)group;
        }
        if (bug->gradient == GRADIENT_NORM_NO_MEAN)
            mean = 0.0;
        for (int64_t x = first; x < first + group; x++) {
            const double weight = bug->gradient == GRADIENT_NORM_NO_WEIGHT ? 1.0 : w[x];
            tolerance[x] =
                r * (fabs(weight) * (tolerance[x] + own * fabs(g[x])) + fabs(r * from[x]) * reach);
            g[x] = r * (weight * g[x] - r * from[x] * mean);
        }
    }
}

static int dq_takes(HintCase *c, const HintBug *bug, HintTile tile, int64_t i, int64_t j)
{
    const int64_t tiles = (c->n.Nk + tile.T - 1) / tile.T; /* no part is without one */
    const int64_t parts = tiles < tile.Tq ? tiles : tile.Tq;
    switch (bug->gradient) {
    case GRADIENT_DQ_LAST_TILE:
        return j / tile.T == hint_last_tile(c, (HintTile){tile.T, 1}, i);
    case GRADIENT_DQ_PART_LOST:
        return j / tile.T % parts != parts - 1;
    case GRADIENT_DQ_ONE_PART:
        return j / tile.T % parts == 0;
    default:
        return 1;
    }
}

void hint_dq_row(HintCase *c, const HintBug *bug, HintTile tile, const HintGiven *g, int64_t b,
                 int64_t h, int64_t i, double *out)
{
    const int64_t d = c->n.d;
    const double factor = outer_scale(c, bug) * hint_factor(c, bug->factor);
    double *dQ = out, *tolerance = out + d;
    const int64_t group = c->n.H / c->n.Hkv;
    Row r =
        row_of(c, bug, tile, g, b,
               bug->gradient == GRADIENT_GROUP_STRIDED ? h % group * c->n.Hkv + h / group : h, i);
    Pair p;
    for (int64_t x = 0; x < 2 * d; x++)
        out[x] = 0.0;
    mend_delta(&r);
    for (int64_t j = 0; j < c->n.Nk; j++) {
        const double *k;
        if (!dq_takes(c, bug, tile, i, j) || !look_at_pair(&r, j, &p))
            continue;
        k = hint_keys(c, bug->feed) + p.k_row * d;
        for (int64_t x = 0; x < d; x++) {
            dQ[x] += p.dS * k[x];
            tolerance[x] += (p.dS_reach + c->eta) * fabs(k[x]);
        }
    }
    for (int64_t x = 0; x < d; x++) {
        dQ[x] *= factor;
        tolerance[x] *= fabs(factor);
    }
    if (c->norms)
        through_norm(c, bug, hint_q(c, FEED_NOT_NORMALISED, b, h, i), c->args->options->wq + h * d,
                     dQ, tolerance);
    for (int64_t x = 0; x < d; x++) {
        tolerance[x] = 2.0 * (tolerance[x] + c->u16 * fabs(dQ[x]) + c->eta);
        if (bug->sum == SUM_NOT_WRITTEN) {
            dQ[x] = NAN;
            tolerance[x] = -1.0;
        }
        if (bug->sum == SUM_ZEROS)
            dQ[x] = 0.0;
    }
}

/* GRADIENT_GROUP_STORED: the group that was the last to write to h_kv, or -1. */
static int64_t stored_group(const HintCase *c, int64_t h_kv)
{
    const int64_t group = c->n.H / c->n.Hkv;
    int64_t last = -1;
    for (int64_t g = 0; g < c->n.Hkv; g++)
        if ((g * group + group - 1) % c->n.Hkv == h_kv)
            last = g;
    return last;
}

/* Does the gradient of kv head h_kv count query head h, and row i for key j? */
static int dkv_takes(HintCase *c, const HintBug *bug, HintTile tile, int64_t h, int64_t h_kv,
                     int64_t i, int64_t j)
{
    const int64_t group = c->n.H / c->n.Hkv;
    if (bug->gradient == GRADIENT_GROUP_STORED)
        return h / group == stored_group(c, h_kv);
    if (hint_kv_head(c, bug->feed, h) != h_kv ||
        (bug->gradient == GRADIENT_GROUP_LAST && h % group != group - 1) ||
        (bug->gradient == GRADIENT_GROUP_FIRST && h % group != 0))
        return 0;
    if (bug->gradient != GRADIENT_DKV_LAST_TILE)
        return 1;
    (void)j;
    return i / tile.T == (c->n.Nq - 1) / tile.T;
}

static void add_pair(const Row *r, const Pair *p, double *out, const double *q, const double *dO)
{
    const int64_t d = r->c->n.d;
    double *dK = out, *dV = out + d, *dK_tolerance = out + 2 * d, *dV_tolerance = out + 3 * d;
    for (int64_t x = 0; x < d; x++) {
        dK[x] += p->dS * q[x];
        dK_tolerance[x] += (p->dS_reach + r->c->eta) * fabs(q[x]);
        dV[x] += p->A * dO[x];
        dV_tolerance[x] +=
            (fabs(p->P) * r->c->gain * r->c->kept * p->P_reach + r->c->eta) * fabs(dO[x]);
    }
}

void hint_dkv_row(HintCase *c, const HintBug *bug, HintTile tile, const HintGiven *g, int64_t b,
                  int64_t h_kv, int64_t j, double *out)
{
    const int64_t d = c->n.d;
    const int turned =
        bug->gradient == GRADIENT_DK_NOT_TRANSPOSED || bug->gradient == GRADIENT_DV_NOT_TRANSPOSED;
    const double factor = hint_factor(c, bug->factor);
    for (int64_t x = 0; x < 4 * d; x++)
        out[x] = 0.0;
    for (int64_t h = 0; h < c->n.H; h++)
        for (int64_t i = 0; i < c->n.Nq; i++) {
            /* not transposed: key j gets what query j has of key i */
            const int64_t query = turned ? j : i, key = turned ? i : j;
            Row r;
            Pair p;
            if (query >= c->n.Nq || key >= c->n.Nk || !dkv_takes(c, bug, tile, h, h_kv, i, j))
                continue;
            r = row_of(c, bug, tile, g, b, h, query);
            mend_delta(&r);
            if (look_at_pair(&r, key, &p))
                add_pair(&r, &p, out, hint_q(c, bug->feed, b, h, i),
                         c->dO + ((b * c->n.Nq + i) * c->n.H + h) * d);
        }
    for (int64_t x = 0; x < 2 * d; x++) {
        const double scale = x < d ? factor * outer_scale(c, bug) : factor;
        out[x] *= scale;
        out[2 * d + x] *= fabs(scale);
    }
    if (c->norms)
        through_norm(c, bug,
                     hint_keys(c, FEED_NOT_NORMALISED) + ((b * c->n.Nk + j) * c->n.Hkv + h_kv) * d,
                     c->args->options->wk + h_kv * d, out, out + 2 * d);
    for (int64_t x = 0; x < 2 * d; x++) {
        out[2 * d + x] = 2.0 * (out[2 * d + x] + c->u16 * fabs(out[x]) + c->eta);
        if (bug->sum == SUM_NOT_WRITTEN ||
            (bug->gradient == GRADIENT_GROUP_STORED && stored_group(c, h_kv) < 0)) {
            out[x] = NAN;
            out[2 * d + x] = -1.0;
        }
        if (bug->sum == SUM_ZEROS)
            out[x] = 0.0;
    }
}
