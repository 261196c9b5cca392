/* SPDX-License-Identifier: MIT
 *
 * hints_forward.c: O and lse of one row with one mistake.
 *
 * Every mistake of the sum comes down to weights: O = sum_j w_j V_j, whatever a kernel did in which
 * order. An online softmax that forgets to rescale O has the right weights times exp(m_end - m_j),
 * where m_j is the maximum when tile j was read. So a mistake is a rule for w and lse, and one
 * product with V serves all.
 *
 * Tolerances follow the bound of oracle.h with the mistake's own weights and scores, twice over: a
 * counterfactual is recognised, not graded.
 *
 * Interface: hint_forward_row (hints_internal.h).
 */
#include "course/hints_internal.h"

#include <math.h>

/* The row at hand: c->s, c->see and c->w hold its scores and weights. */
typedef struct Row {
    HintCase *c;
    const HintBug *bug;
    HintTile tile;
    int64_t b, h, i;
    int64_t keys; /* Nk and the padding */
    int64_t seen;
    double m, l; /* of the visible scores */
    double lse;
} Row;

static void fill_scores(Row *r)
{
    HintCase *c = r->c;
    const HintBug *bug = r->bug;
    const double *q = hint_q(c, bug->feed, r->b, r->h, r->i);
    const int64_t T = r->tile.T, d = c->n.d, step = hint_row_step(c, bug->feed) * d;
    const double *k = hint_keys(c, bug->feed) + hint_k_row(c, bug->feed, r->b, r->h, 0) * d;
    r->keys = bug->see == SEE_PADDING ? (c->n.Nk + T - 1) / T * T : c->n.Nk;
    r->seen = 0;
    r->m = -INFINITY;
    r->l = 0.0;
    for (int64_t j = 0; j < r->keys; j++) {
        int visible = hint_see(c, bug, r->tile, r->i, j);
        double qk = 0.0;
        if (j < c->n.Nk && (visible || bug->score == SCORE_CAP_AFTER_MASK))
            qk = hint_dot(q, k + j * step, d);
        if (visible || bug->score != SCORE_CAP_AFTER_MASK || hint_tile_visited(c, r->tile, r->i, j))
            c->s[j] = hint_score(c, bug, qk, &visible);
        c->see[j] = (uint8_t)visible;
        r->seen += visible;
        if (visible && c->s[j] > r->m)
            r->m = c->s[j];
    }
    for (int64_t j = 0; j < r->keys; j++)
        r->l += c->see[j] ? exp(c->s[j] - r->m) : 0.0;
    r->lse = r->seen ? r->m + log(r->l) : -INFINITY;
}

/* w = exp(s - shift) over the visible keys from .. to - 1; returns their sum. */
static double weigh(Row *r, int64_t from, int64_t to, double shift)
{
    double sum = 0.0;
    for (int64_t j = from; j < to; j++) {
        r->c->w[j] = r->c->see[j] ? exp(r->c->s[j] - shift) : 0.0;
        sum += r->c->w[j];
    }
    return sum;
}

static void multiply(Row *r, int64_t from, int64_t to, double factor)
{
    for (int64_t j = from; j < to; j++)
        r->c->w[j] *= factor;
}

static double maximum(const Row *r, int64_t from, int64_t to)
{
    double m = -INFINITY;
    for (int64_t j = from; j < to; j++)
        if (r->c->see[j] && r->c->s[j] > m)
            m = r->c->s[j];
    return m;
}

/* An online softmax over tiles that forgets a factor. Tiles in which the row sees nothing leave
 * everything as it is. */
static void weigh_online(Row *r, int mistake)
{
    double m_i = -INFINITY, l_i = 0.0;
    for (int64_t j = 0; j < r->keys; j += r->tile.T) {
        const int64_t to = j + r->tile.T < r->keys ? j + r->tile.T : r->keys;
        const double m_tile = maximum(r, j, to), m_new = m_tile > m_i ? m_tile : m_i;
        const double alpha = exp(m_i - m_new);
        double beta = exp(m_tile - m_new), l_tile;
        if (m_tile == -INFINITY) {
            weigh(r, j, to, 0.0);
            continue;
        }
        l_tile = weigh(r, j, to, m_tile);
        multiply(r, j, to, mistake == SUM_STALE_NEW || mistake == SUM_STALE_NEW_L ? 1.0 : beta);
        if (mistake == SUM_STALE_NEW_L)
            beta = 1.0;
        /* FlashAttention-1 normalises O after each tile: its l_old and 1 / l_new cancel, and a
         * factor that is missing there is the same one. */
        if (mistake != SUM_STALE_O && mistake != SUM_STALE_BOTH)
            multiply(r, 0, j, alpha);
        l_i = (mistake == SUM_STALE_L || mistake == SUM_STALE_BOTH ? 1.0 : alpha) * l_i +
              beta * l_tile;
        m_i = m_new;
        if (mistake == SUM_NORMALISED_TWICE)
            multiply(r, 0, to, 1.0 / l_i);
    }
    multiply(r, 0, r->keys, l_i > 0.0 ? 1.0 / l_i : 0.0);
    r->lse = l_i > 0.0 ? m_i + log(l_i) : -INFINITY;
}

/* Blocks of which each has its own O and lse, merged by lse. */
static void weigh_merged(Row *r, int mistake)
{
    double lse = -INFINITY;
    for (int64_t j = 0; j < r->keys; j += r->tile.T) {
        const int64_t to = j + r->tile.T < r->keys ? j + r->tile.T : r->keys;
        const double m_tile = maximum(r, j, to);
        double lse_tile, together, l_tile;
        if (m_tile == -INFINITY) {
            weigh(r, j, to, 0.0);
            continue;
        }
        l_tile = weigh(r, j, to, m_tile);
        lse_tile = m_tile + log(l_tile);
        together = lse > lse_tile ? lse + log1p(exp(lse_tile - lse))
                                  : lse_tile + log1p(exp(lse - lse_tile));
        multiply(r, j, to,
                 (mistake == SUM_OLD_NOT_WEIGHTED ? exp(lse_tile - together) : 1.0) / l_tile);
        if (mistake == SUM_NEW_NOT_WEIGHTED)
            multiply(r, 0, j, exp(lse - together));
        lse = together;
    }
    r->lse = lse;
}

/* The maximum stays -inf, so that exp(m_i - m_new) = 0 wipes out all tiles but the last. */
static void weigh_last_tile(Row *r, int mistake)
{
    const int64_t last = hint_last_tile(r->c, r->tile, r->i), from = last * r->tile.T;
    const int64_t to = from + r->tile.T < r->keys ? from + r->tile.T : r->keys;
    double m, l;
    weigh(r, 0, r->keys, INFINITY);
    if (last < 0)
        return;
    m = maximum(r, from, to);
    l = m > -INFINITY ? weigh(r, from, to, m) : 0.0;
    multiply(r, from, to, l > 0.0 ? 1.0 / l : 0.0);
    r->lse = l > 0.0 && mistake == SUM_LAST_TILE ? m + log(l) : -INFINITY;
}

/* l from the keys before `end` alone, all weights divided by it. */
static void weigh_by_part(Row *r, int64_t end)
{
    const double m = maximum(r, 0, end);
    double l = 0.0;
    for (int64_t j = 0; j < end; j++)
        l += r->c->see[j] ? exp(r->c->s[j] - r->m) : 0.0;
    weigh(r, 0, r->keys, r->m);
    multiply(r, 0, r->keys, l > 0.0 ? 1.0 / l : 0.0);
    r->lse = m > -INFINITY ? r->m + log(l) : -INFINITY;
}

static int64_t largest_tree(const Row *r)
{
    const int64_t tiles = (r->keys + r->tile.T - 1) / r->tile.T;
    int64_t power = 1;
    while (2 * power <= tiles)
        power *= 2;
    return power * r->tile.T < r->keys ? power * r->tile.T : r->keys;
}

/* ln sum_i exp(s_ij) of each key over all queries: what the rows of a transposed softmax divide
 * by. Of one head at a time. */
static void fill_columns(Row *r)
{
    HintCase *c = r->c;
    const int64_t d = c->n.d, head = r->b * c->n.H + r->h;
    if (c->column_of == head)
        return;
    c->column_of = head;
    for (int64_t j = 0; j < c->n.Nk; j++) {
        const double *k = c->K + hint_k_row(c, FEED_RIGHT, r->b, r->h, j) * d;
        double m = -INFINITY, l = 0.0;
        for (int64_t i = 0; i < c->n.Nq; i++) {
            int visible = hint_see(c, r->bug, r->tile, i, j);
            const double s = hint_score(
                c, r->bug, hint_dot(hint_q(c, FEED_RIGHT, r->b, r->h, i), k, d), &visible);
            if (!visible)
                continue;
            l = s > m ? l * exp(m - s) + 1.0 : l + exp(s - m);
            m = s > m ? s : m;
        }
        c->column_lse[j] = m + log(l);
    }
}

static void fill_weights(Row *r, double value)
{
    for (int64_t j = 0; j < r->keys; j++)
        r->c->w[j] = value;
}

/* A row that sees nothing in its first tile meets exp(-inf - -inf). */
static int first_tile_is_empty(Row *r, int mistake)
{
    for (int64_t j = 0; j < r->keys; j += r->tile.T) {
        const int64_t to = j + r->tile.T < r->keys ? j + r->tile.T : r->keys;
        if (mistake == SUM_NAN_EMPTY || hint_tile_visited(r->c, r->tile, r->i, j))
            return maximum(r, j, to) == -INFINITY;
    }
    return 0;
}

/* exp without a maximum in float32: what overflows cannot be told from what it makes of O. O is
 * not divided yet, so it overflows before l does. */
static void weigh_without_max(Row *r, double *accept_all)
{
    if (r->seen && (r->m > 83.0 || r->lse < -80.0)) {
        *accept_all = 1.0;
        r->lse = r->m > 89.0 ? NAN : r->lse;
    }
}

/* max(0, scores) is subtracted: below about -88 float32 has few bits, below -104 none. */
static void weigh_from_zero(Row *r, double *accept_all)
{
    if (r->seen && r->m < -80.0) {
        *accept_all = 1.0;
        r->lse = -INFINITY;
    }
}

/* Mistakes that leave w as it is or make something simple of it. */
static void weigh_simply(Row *r, double *accept_all)
{
    HintCase *c = r->c;
    const int64_t tail = r->keys / r->tile.T * r->tile.T;
    switch (r->bug->sum) {
    case SUM_NOT_NORMALISED:
        multiply(r, 0, r->keys, r->l);
        break;
    case SUM_RAW_NOT_NORMALISED:
        multiply(r, 0, r->keys, r->seen ? exp(r->lse) : 0.0);
        break;
    case SUM_MEAN_VISIBLE:
        for (int64_t j = 0; j < r->keys; j++)
            c->w[j] = c->see[j] ? 1.0 / (double)r->seen : 0.0;
        break;
    case SUM_MEAN_ALL:
        fill_weights(r, 1.0 / (double)c->n.Nk);
        break;
    case SUM_ZEROS:
        fill_weights(r, 0.0);
        break;
    case SUM_NOT_LAST_KEY:
        c->w[r->keys - 1] = 0.0;
        break;
    case SUM_NOT_FIRST_KEY:
        c->w[0] = 0.0;
        break;
    case SUM_NO_TAIL_PV:
        multiply(r, tail, r->keys, 0.0);
        break;
    case SUM_TAIL_NOT_EXP:
        weigh_by_part(r, tail);
        for (int64_t j = tail; j < r->keys; j++)
            c->w[j] = c->see[j] && isfinite(r->lse) ? c->s[j] / exp(r->lse - r->m) : NAN;
        break;
    case SUM_NO_MAX:
        weigh_without_max(r, accept_all);
        break;
    case SUM_M_FROM_ZERO:
        weigh_from_zero(r, accept_all);
        break;
    case SUM_LARGE_NUMBER: /* all scores are equal then */
        if (!r->seen)
            fill_weights(r, 1.0 / (double)c->n.Nk);
        break;
    case SUM_NAN_EMPTY:
    case SUM_NAN_EMPTY_RULED:
        if (first_tile_is_empty(r, r->bug->sum)) {
            fill_weights(r, NAN);
            r->lse = NAN;
        }
        break;
    default:
        break;
    }
}

static void weigh_row(Row *r, double *accept_all)
{
    const int sum = r->bug->sum;
    const int64_t T = r->tile.T;
    *accept_all = 0.0;
    if (sum >= SUM_STALE_O && sum <= SUM_NORMALISED_TWICE) {
        weigh_online(r, sum);
    } else if (sum == SUM_STALE_M || sum == SUM_LAST_TILE) {
        weigh_last_tile(r, sum);
    } else if (sum >= SUM_TILES_NORMALISED && sum <= SUM_OLD_NOT_WEIGHTED) {
        weigh_merged(r, sum);
    } else if (sum == SUM_NO_TAIL_L || sum == SUM_LARGEST_TREE) {
        weigh_by_part(r, sum == SUM_NO_TAIL_L ? r->keys / T * T : largest_tree(r));
    } else if (sum == SUM_OVER_QUERIES) {
        fill_columns(r);
        for (int64_t j = 0; j < r->keys; j++)
            r->c->w[j] = r->c->see[j] ? exp(r->c->s[j] - r->c->column_lse[j]) : 0.0;
    } else {
        weigh(r, 0, r->keys, r->lse);
        weigh_simply(r, accept_all);
    }
    if (r->c->clips || r->c->drops)
        for (int64_t j = 0; j < r->c->n.Nk; j++)
            r->c->w[j] = hint_weight(r->c, r->bug, r->tile, r->b, r->h, r->i, j, r->c->w[j]);
}

/* What became of lse, and how much its rounding grew. */
static double wrong_lse(const Row *r, double *growth)
{
    *growth = 1.0;
    switch (r->bug->lse) {
    case LSE_BASE_2:
        *growth = 1.5;
        return r->lse / log(2.0);
    case LSE_BASE_10:
        return r->lse / log(10.0);
    case LSE_LOG2_L:
        *growth = 1.5;
        return r->seen ? r->m + log2(r->l) : -INFINITY;
    case LSE_NO_MAX:
        return r->seen ? log(r->l) : -INFINITY;
    case LSE_NO_LOG_L:
        return r->m;
    case LSE_L_NOT_LOG:
        *growth = 1.0 + r->l;
        return r->m + r->l;
    case LSE_IS_L:
        *growth = 1.0 + r->l;
        return r->l;
    case LSE_ZERO:
        return 0.0;
    default:
        return r->lse;
    }
}

/* Row j of V, if the head's values lay as [d][Nk]. */
static const double *transposed(const HintCase *c, int64_t b, int64_t h, int64_t j, double *to)
{
    const int64_t d = c->n.d, rows = c->n.Nk / d, rest = c->n.Nk % d; /* from x to x + 1 */
    const double *v = c->V + hint_v_row(c, FEED_RIGHT, b, h, 0) * d;
    int64_t row = j / d, column = j % d;
    for (int64_t x = 0; x < d; x++) {
        to[x] = v[row * c->n.Hkv * d + column];
        row += rows + (column + rest >= d);
        column += column + rest >= d ? rest - d : rest;
    }
    return to;
}

/* A row that sees a key, but by this mistake none. */
static int emptied(const Row *r)
{
    static const HintBug none = {0};
    int seen = 0;
    if (!r->bug->see || r->bug->see == SEE_NONE || r->seen)
        return 0;
    for (int64_t j = 0; j < r->c->n.Nk && !seen; j++)
        seen = hint_see(r->c, &none, r->tile, r->i, j);
    return seen;
}

void hint_forward_row(HintCase *c, const HintBug *bug, HintTile tile, int64_t b, int64_t h,
                      int64_t i, double *out)
{
    const int64_t d = c->n.d;
    const int64_t step = hint_row_step(c, bug->feed) * d;
    const double *values;
    double *O = out, *O_tolerance = out + d + 1, accept_all, growth, relative, reach;
    Row r = {.c = c, .bug = bug, .tile = tile, .b = b, .h = h, .i = i + bug->shift};
    if (r.i < 0 || r.i >= c->n.Nq) { /* what a shift finds there is anybody's guess */
        for (int64_t x = 0; x <= d; x++) {
            O[x] = 0.0;
            O_tolerance[x] = INFINITY;
        }
        return;
    }
    fill_scores(&r);
    weigh_row(&r, &accept_all);
    for (int64_t x = 0; x < 2 * d + 2; x++)
        out[x] = 0.0;
    if (c->clips || c->drops) /* a clipped weight is a difference: its rounding is that of P */
        for (int64_t j = 0; j < c->n.Nk; j++)
            c->keep[j] = c->see[j] ? c->gain * c->kept * exp(c->s[j] - r.lse) : 0.0;
    values = (bug->feed == FEED_K_FOR_V ? c->K : c->V) + hint_v_row(c, bug->feed, b, h, 0) * d;
    for (int64_t j = 0; j < c->n.Nk; j++) {
        const double *v = values + j * step;
        double turned[1024];
        const double w = c->w[j], size = fabs(w) + (c->clips || c->drops ? c->keep[j] : 0.0);
        if (bug->feed == FEED_V_TRANSPOSED && size != 0.0)
            v = transposed(c, b, h, j, turned);
        for (int64_t x = 0; size != 0.0 && x < d; x++) {
            O[x] += w * v[x];
            O_tolerance[x] += (size + c->eta) * fabs(v[x]);
        }
    }
    reach = fabs(bug->score == SCORE_NO_SCALE ? 1.0 : c->scale) * c->largest_k *
            sqrt(hint_dot(hint_q(c, bug->feed, b, h, r.i), hint_q(c, bug->feed, b, h, r.i), d));
    relative = (1.0 + sqrt((double)d) / 4.0) * reach + sqrt((double)c->n.Nk) + 8.0;
    for (int64_t x = 0; x < d; x++) {
        O[x] *= hint_factor(c, bug->factor);
        O_tolerance[x] *= fabs(hint_factor(c, bug->factor));
        O_tolerance[x] = accept_all ? INFINITY
                                    : 2.0 * (c->u16 * (fabs(O[x]) + O_tolerance[x]) + c->eta +
                                             c->c * 0x1p-24 * relative * O_tolerance[x]);
    }
    out[d] = wrong_lse(&r, &growth) * (bug->lse ? 1.0 : hint_factor(c, bug->factor));
    out[2 * d + 1] =
        2.0 * growth * c->c * 0x1p-24 * (relative + (isfinite(out[d]) ? fabs(out[d]) : 0.0));
    for (int64_t x = 0; x <= d; x++)
        if (x < d ? bug->sum == SUM_NOT_WRITTEN : bug->lse == LSE_NOT_WRITTEN) {
            O[x] = NAN;
            O_tolerance[x] = -1.0;
        }
    if (emptied(&r)) /* 0 / 0 where nobody thought of such a row */
        for (int64_t x = 0; x <= d; x++)
            O_tolerance[x] = HINT_OR_NAN;
    if (bug->sum == SUM_LARGE_NUMBER && !r.seen)
        out[2 * d + 1] = INFINITY;
    if (accept_all && !isnan(out[d]))
        out[2 * d + 1] = INFINITY;
}
