/* SPDX-License-Identifier: MIT
 *
 * hints_case.c: the inputs of a case in float64, and the questions that a mistake answers wrongly:
 * which row is read, which pair is visible, what is its score.
 *
 * Nothing here is fast and nothing is shared with what is judged, except attn_visible and the
 * classes of tiles, as in the oracle.
 *
 * Interface: hint_case_new, hint_case_free (hints.h), hint_see, hint_score, hint_feed rows
 * (hints_internal.h).
 */
#include "attn_pairs.h"
#include "course/hints_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dtype_f64.h"
#include "harness/io/philox.h"
#include "tensor.h"

enum { SCRATCH = 512 }; /* padding keys behind the last: of the largest tile that is tried */

/* --- inputs ------------------------------------------------------------------------------------*/

/* [B][N][heads][d] and the lengths of the rows. */
static int load(double **values, double **norms, const Tensor *t)
{
    const int64_t *n = t->shape, rows = n[0] * n[1] * n[2], d = n[3];
    float *row = malloc((size_t)d * sizeof *row);
    *values = malloc((size_t)(rows * d) * sizeof **values);
    *norms = malloc((size_t)rows * sizeof **norms);
    for (int64_t r = 0; row && *values && *norms && r < rows; r++) {
        double sum = 0.0;
        tensor_read_row(t, r / (n[1] * n[2]), r / n[2] % n[1], r % n[2], row);
        for (int64_t x = 0; x < d; x++) {
            (*values)[r * d + x] = row[x];
            sum += (double)row[x] * row[x];
        }
        (*norms)[r] = sqrt(sum);
    }
    free(row);
    return row && *values && *norms ? 0 : -1;
}

/* The QK normalisation of stage 05, rounded to the dtype as the tensor would be; instead[0] keeps
 * what there was before, instead[1] gets what comes out if the mean is always that of the first
 * group. */
static int normalise(const HintCase *c, double *X, double *norms, int64_t rows, int64_t heads,
                     const float *w, double *instead[2])
{
    const AttnOptions *o = c->args->options;
    const int64_t d = c->n.d, group = o->norm_group;
    const size_t bytes = (size_t)(rows * d) * sizeof *X;
    instead[0] = malloc(bytes);
    instead[1] = malloc(bytes);
    if (!instead[0] || !instead[1])
        return -1;
    memcpy(instead[0], X, bytes);
    for (int64_t e = 0; e < rows * d; e++) {
        const int64_t row = e / d * d, first = row + e % d / group * group;
        /* in place: where the second group begins, the first one is normalised already */
        const double *one = first == row ? instead[0] + row : instead[1] + row;
        const double mean[2] = {hint_dot(instead[0] + first, instead[0] + first, group) /
                                    (double)group,
                                hint_dot(one, one, group) / (double)group};
        for (int k = 0; k < 2; k++) {
            const double factor = 1.0 / sqrt(mean[k] + (double)o->norm_eps);
            (k ? instead[1] : X)[e] = dtype_round_f64(
                c->args->Q.dtype, factor * w[e / d % heads * d + e % d] * instead[0][e]);
        }
    }
    for (int64_t r = 0; r < rows; r++)
        norms[r] = sqrt(hint_dot(X + r * d, X + r * d, d));
    return 0;
}

static int read_options(HintCase *c)
{
    const AttnOptions *o = c->args->options;
    c->temperature = o ? o->temperature : 1.0;
    c->kept = 1.0;
    c->gain = 1.0;
    if (!o)
        return 0;
    c->clips = o->clip_low != 0.0f || o->clip_high != 1.0f;
    c->clip_low = o->clip_low;
    c->gain = (double)o->clip_high - o->clip_low;
    c->drops = o->dropout > 0.0f;
    c->kept = 1.0 / (1.0 - (double)o->dropout);
    c->threshold = attn_dropout_threshold(o->dropout);
    c->norms = o->norm_group > 0;
    if (!c->norms)
        return 0;
    return normalise(c, c->Q, c->Q_norm, c->n.B * c->n.Nq * c->n.H, c->n.H, o->wq, c->Q_else) |
           normalise(c, c->K, c->K_norm, c->n.B * c->n.Nk * c->n.Hkv, c->n.Hkv, o->wk, c->K_else);
}

/* Positions, and those of queries counted from both corners of each sequence. */
static void place(HintCase *c)
{
    const AttnPositions q = c->args->positions_q, k = c->args->positions_k;
    for (int64_t i = 0; i < c->n.Nq; i++)
        c->q_at[i] = attn_position(q, i);
    for (int64_t j = 0; j < c->n.Nk; j++)
        c->k_at[j] = attn_position(k, j);
    for (int64_t s = 0; s < q.count; s++) {
        const AttnSegment *own = &q.segments[s];
        int64_t keys = 0;
        for (int64_t t = 0; t < k.count; t++)
            keys += k.segments[t].sequence == own->sequence ? k.segments[t].length : 0;
        for (int64_t i = own->first; i < own->first + own->length; i++) {
            c->corner[i] = i - own->first;
            c->corner[c->n.Nq + i] = i - own->first + keys - own->length;
        }
    }
}

static int make_scratch(HintCase *c)
{
    const size_t Nk = (size_t)c->n.Nk + SCRATCH;
    const size_t longest = c->n.Nq > c->n.Nk ? (size_t)c->n.Nq : (size_t)c->n.Nk;
    int hypotheses = 0;
    for (int m = 0; m < hint_mistake_count; m++)
        hypotheses += hint_tile_count(hint_mistakes[m].tiles);
    c->q_at = malloc((size_t)c->n.Nq * sizeof *c->q_at);
    c->k_at = malloc((size_t)c->n.Nk * sizeof *c->k_at);
    c->corner = malloc(2 * (size_t)c->n.Nq * sizeof *c->corner);
    c->s = malloc(Nk * sizeof *c->s);
    c->w = malloc(Nk * sizeof *c->w);
    c->keep = malloc(Nk * sizeof *c->keep);
    c->see = malloc(Nk);
    c->column_lse = malloc(longest * sizeof *c->column_lse);
    c->column_of = -1;
    c->last.T = 0;
    c->rows = calloc((size_t)hypotheses * 3, sizeof *c->rows);
    return c->q_at && c->k_at && c->corner && c->s && c->w && c->keep && c->see && c->column_lse &&
                   c->rows
               ? 0
               : -1;
}

HintCase *hint_case_new(const AttnArgs *args, const Oracle *oracle, int backward, double factor)
{
    const AttnShape *n = &args->shape;
    HintCase *c = oracle->whole ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return NULL;
    c->args = args;
    c->oracle = oracle;
    c->right = (HintGiven){oracle->O.value, oracle->lse.value};
    c->n = *n;
    c->backward = backward;
    c->c = factor;
    c->scale = args->scale;
    c->cap = args->softcap;
    c->u16 = args->Q.dtype == ATTN_BF16 ? 0x1p-8 : args->Q.dtype == ATTN_F16 ? 0x1p-11 : 0.0;
    c->eta = args->Q.dtype == ATTN_F16 ? 0x1p-25 : 0x1p-126;
    if ((double)(n->B * n->H) * (double)n->Nq * (double)n->Nk * (double)n->d > 64.0 * HINT_WORK ||
        load(&c->Q, &c->Q_norm, &args->Q) != 0 || load(&c->K, &c->K_norm, &args->K) != 0 ||
        load(&c->V, &c->V_norm, &args->V) != 0 ||
        (backward && load(&c->dO, &c->dO_norm, &args->dO) != 0) || make_scratch(c) != 0 ||
        read_options(c) != 0) {
        hint_case_free(c);
        return NULL;
    }
    for (int64_t r = 0; r < n->B * n->Nk * n->Hkv; r++)
        c->largest_k = c->K_norm[r] > c->largest_k ? c->K_norm[r] : c->largest_k;
    place(c);
    return c;
}

void hint_case_free(HintCase *c)
{
    int hypotheses = 0;
    if (!c)
        return;
    for (int m = 0; m < hint_mistake_count; m++)
        hypotheses += hint_tile_count(hint_mistakes[m].tiles);
    for (int n = 0; c->rows && n < 3 * hypotheses; n++)
        free(c->rows[n].at);
    double *const all[] = {c->Q,         c->K,          c->V,         c->dO,        c->Q_norm,
                           c->K_norm,    c->V_norm,     c->dO_norm,   c->s,         c->w,
                           c->keep,      c->column_lse, c->Q_else[0], c->Q_else[1], c->K_else[0],
                           c->K_else[1], c->shared.at};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        free(all[n]);
    free(c->q_at);
    free(c->k_at);
    free(c->corner);
    free(c->see);
    free(c->rows);
    free(c);
}

/* --- which row is read -------------------------------------------------------------------------*/

double hint_dot(const double *a, const double *b, int64_t d)
{
    double sum[4] = {0.0, 0.0, 0.0, 0.0}, rest = 0.0;
    int64_t x = 0;
    for (; x + 4 <= d; x += 4)
        for (int k = 0; k < 4; k++)
            sum[k] += a[x + k] * b[x + k];
    for (; x < d; x++)
        rest += a[x] * b[x];
    return sum[0] + sum[1] + (sum[2] + sum[3]) + rest;
}

int64_t hint_kv_head(const HintCase *c, int feed, int64_t h)
{
    return feed == FEED_KV_MODULO  ? h % c->n.Hkv
           : feed == FEED_KV_FIRST ? 0
                                   : h / (c->n.H / c->n.Hkv);
}

const double *hint_q(const HintCase *c, int feed, int64_t b, int64_t h, int64_t i)
{
    const AttnShape *n = &c->n;
    if (c->norms && feed >= FEED_NOT_NORMALISED)
        return c->Q_else[feed - FEED_NOT_NORMALISED] + ((b * n->Nq + i) * n->H + h) * n->d;
    if (feed == FEED_SWAPPED && c->n.H == c->n.Hkv && c->n.Nq == c->n.Nk)
        return c->K + ((b * n->Nk + i) * n->Hkv + h) * n->d;
    if (feed == FEED_LAYOUT)
        return c->Q + ((b * n->H + h) * n->Nq + i) * n->d;
    return c->Q + (((feed == FEED_BATCH_Q ? 0 : b) * n->Nq + i) * n->H + h) * n->d;
}

const double *hint_keys(const HintCase *c, int feed)
{
    if (feed == FEED_SWAPPED && c->n.H == c->n.Hkv && c->n.Nq == c->n.Nk)
        return c->Q;
    return c->norms && feed >= FEED_NOT_NORMALISED ? c->K_else[feed - FEED_NOT_NORMALISED] : c->K;
}

static int64_t kv_row(const HintCase *c, int feed, int64_t b, int64_t h, int64_t j)
{
    const int64_t h_kv = hint_kv_head(c, feed, h);
    return feed == FEED_LAYOUT ? (b * c->n.Hkv + h_kv) * c->n.Nk + j
                               : (b * c->n.Nk + j) * c->n.Hkv + h_kv;
}

int64_t hint_k_row(const HintCase *c, int feed, int64_t b, int64_t h, int64_t j)
{
    return kv_row(c, feed, feed == FEED_BATCH_K || feed == FEED_BATCH_KV ? 0 : b, h, j);
}

int64_t hint_v_row(const HintCase *c, int feed, int64_t b, int64_t h, int64_t j)
{
    return kv_row(c, feed, feed == FEED_BATCH_V || feed == FEED_BATCH_KV ? 0 : b, h, j);
}

int64_t hint_row_step(const HintCase *c, int feed)
{
    return feed == FEED_LAYOUT ? 1 : c->n.Hkv;
}

/* --- which pair is visible ---------------------------------------------------------------------*/

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static AttnTile class_of(const HintCase *c, HintTile tile, int64_t i, int64_t j)
{
    const int64_t row = i / tile.Tq * tile.Tq, col = j / tile.T * tile.T;
    const AttnArgs *a = c->args;
    return attn_tile_class(a->rule,
                           attn_range(a->positions_q, row, smaller(tile.Tq, c->n.Nq - row)),
                           attn_range(a->positions_k, col, smaller(tile.T, c->n.Nk - col)));
}

int64_t hint_last_tile(HintCase *c, HintTile tile, int64_t i)
{
    int64_t at = (c->n.Nk - 1) / tile.T;
    if (c->last.T == tile.T && c->last.Tq == tile.Tq && c->last.strip == i / tile.Tq)
        return c->last.tile;
    while (at >= 0 && class_of(c, tile, i, at * tile.T) == ATTN_TILE_SKIP)
        at--;
    c->last.T = tile.T;
    c->last.Tq = tile.Tq;
    c->last.strip = i / tile.Tq;
    c->last.tile = at;
    return at;
}

int hint_tile_visited(const HintCase *c, HintTile tile, int64_t i, int64_t j)
{
    return tile.T > c->n.Nk || class_of(c, tile, i, j) != ATTN_TILE_SKIP;
}

/* The rule with other ends. */
static int moved(AttnRule rule, const HintBug *bug, AttnPosition q, AttnPosition k)
{
    const int64_t ahead = k.position - q.position;
    return q.sequence == k.sequence && (rule.left < 0 || ahead >= -(rule.left + bug->left)) &&
           (rule.right < 0 || ahead <= rule.right + bug->right);
}

/* Mistakes of the position rule; the full mask is asked apart. */
static int rule_sees(const HintCase *c, const HintBug *bug, AttnPosition q, AttnPosition k,
                     int64_t i, int64_t j)
{
    AttnRule rule = c->args->rule;
    switch (bug->see) {
    case SEE_ALL:
    case SEE_NO_RULE:
        return q.sequence == k.sequence;
    case SEE_NO_LEFT:
        rule.left = -1;
        break;
    case SEE_NO_RIGHT:
        rule.right = -1;
        break;
    case SEE_OTHER_CORNER:
        q.position = c->corner[q.position == c->corner[i] ? c->n.Nq + i : i];
        break;
    case SEE_FROM_FIRST:
        q.position = c->corner[i];
        break;
    case SEE_FROM_LAST:
        q.position = c->corner[c->n.Nq + i];
        break;
    case SEE_MIRRORED:
        rule = (AttnRule){rule.right, rule.left};
        break;
    case SEE_MOVED:
        return moved(rule, bug, q, k);
    case SEE_ONE_SEQUENCE:
        q = (AttnPosition){0, i + c->n.Nk - c->n.Nq};
        k = (AttnPosition){0, j};
        break;
    case SEE_ANY_SEQUENCE:
        q.sequence = k.sequence;
        break;
    case SEE_SWAPPED: /* query j asks for key i, in or out of range */
        q = attn_position(c->args->positions_q, j);
        k = attn_position(c->args->positions_k, i);
        break;
    default:
        break;
    }
    return attn_visible(rule, q, k);
}

/* Mistakes of tiles, about a pair that is visible or not. */
static int tile_sees(HintCase *c, const HintBug *bug, HintTile tile, int64_t i, int64_t j,
                     int right, int masked)
{
    const AttnShape *n = &c->n;
    const int64_t ahead = c->k_at[j].position - c->q_at[i].position;
    int last_row;
    switch (bug->see) {
    case SEE_NONE:
        return 0;
    case SEE_NOT_LAST_KEY:
        return right && j < n->Nk - 1;
    case SEE_NOT_FIRST_KEY:
        return right && j > 0;
    case SEE_NO_TAIL:
        return right && j < n->Nk / tile.T * tile.T;
    case SEE_NO_TAIL_ROWS:
        return right && i < n->Nq / tile.Tq * tile.Tq;
    case SEE_NOT_FIRST_TILE:
        return right && j >= tile.T;
    case SEE_NOT_LAST_VISIBLE:
        return right && j / tile.T < hint_last_tile(c, tile, i);
    case SEE_CLEAN_ONLY:
        return right && class_of(c, tile, i, j) == ATTN_TILE_CLEAN;
    case SEE_TILES_WHOLE:
        return !masked && class_of(c, tile, i, j) != ATTN_TILE_SKIP;
    case SEE_LEFT_EDGE:
        return right && !(c->args->rule.left >= 0 && ahead == -c->args->rule.left &&
                          j % tile.T != 0 && (i % tile.Tq != 0 || j % (tile.T / 2) != 0));
    case SEE_RIGHT_EDGE:
        last_row = i % tile.Tq == tile.Tq - 1 || i == n->Nq - 1;
        return right && !(c->args->rule.right >= 0 && ahead == c->args->rule.right &&
                          j % tile.T != tile.T - 1 && j != n->Nk - 1 &&
                          (!last_row || (j + 1) % (tile.T / 2) != 0));
    case SEE_WRONG_SIDE:
        return right && (c->args->rule.right != 0 || i / tile.Tq * tile.Tq <= j / tile.T * tile.T);
    default:
        return right;
    }
}

int hint_see(HintCase *c, const HintBug *bug, HintTile tile, int64_t i, int64_t j)
{
    const AttnShape *n = &c->n;
    const uint8_t *mask = c->args->mask;
    AttnPosition q = c->q_at[i], k = c->k_at[j < n->Nk ? j : n->Nk - 1];
    int masked;
    if (j >= n->Nk) { /* a padding key behind the last one */
        k.position += j - n->Nk + 1;
        if (bug->tiled)
            return !mask && class_of(c, tile, i, n->Nk - 1) == ATTN_TILE_CLEAN;
        return !mask && attn_visible(c->args->rule, q, k);
    }
    masked = mask && mask[i * n->Nk + j];
    if (bug->see == SEE_ALL || bug->see == SEE_NO_MASK)
        masked = 0;
    else if (bug->see == SEE_POLARITY)
        masked = mask && !masked;
    else if (bug->see == SEE_MASK_TRANSPOSED)
        masked = mask && mask[j * n->Nq + i];
    else if (bug->see == SEE_SWAPPED)
        masked = mask && j * n->Nk + i < n->Nq * n->Nk && mask[j * n->Nk + i];
    else if (bug->see == SEE_STRIP_END) {
        const int64_t last = smaller(i / tile.Tq * tile.Tq + tile.Tq, n->Nq) - 1;
        const AttnRule left = {c->args->rule.left, -1}, right = {-1, c->args->rule.right};
        return !masked && attn_visible(left, q, k) && attn_visible(right, c->q_at[last], k);
    }
    if (bug->tiled) {
        const AttnTile class = class_of(c, tile, i, j);
        if (class != ATTN_TILE_MASKED)
            return !masked && class == ATTN_TILE_CLEAN;
    }
    return tile_sees(c, bug, tile, i, j, !masked && rule_sees(c, bug, q, k, i, j), masked);
}

/* --- what is its score, its weight -------------------------------------------------------------*/

/* What a score is multiplied with. */
static double scale_of(const HintCase *c, const HintBug *bug)
{
    const double scale = c->scale, d = (double)c->n.d;
    switch (bug->score) {
    case SCORE_NO_SCALE:
        return 1.0;
    case SCORE_SCALED_TWICE:
        return scale * scale;
    case SCORE_DEFAULT_SCALE:
        return 1.0 / sqrt(d);
    case SCORE_BY_D:
        return 1.0 / d;
    case SCORE_BASE_2:
        return scale * log(2.0);
    case SCORE_ZERO:
        return 0.0;
    default:
        return scale;
    }
}

double hint_score(const HintCase *c, const HintBug *bug, double qk, int *visible)
{
    const double cap = bug->score == SCORE_NO_CAP ? 0.0 : c->cap;
    double s = scale_of(c, bug) * qk;
    if (bug->score == SCORE_CAP_BEFORE_SCALE && cap > 0.0)
        return c->scale * cap * tanh(qk / cap);
    if (cap > 0.0 && bug->score == SCORE_TEMPERATURE_BEFORE_CAP)
        s /= c->temperature;
    if (cap > 0.0)
        s = (bug->score == SCORE_CAP_NOT_SCALED ? 1.0 : cap) * tanh(s / cap);
    if (bug->score != SCORE_NO_TEMPERATURE &&
        (cap == 0.0 || bug->score == SCORE_TEMPERATURE_BEHIND_CAP))
        s /= c->temperature;
    if (bug->score == SCORE_CAP_AFTER_MASK && cap > 0.0 && !*visible) {
        *visible = 1; /* tanh(-inf) is -1 */
        return -cap;
    }
    return s;
}

double hint_weight(const HintCase *c, const HintBug *bug, HintTile tile, int64_t b, int64_t h,
                   int64_t i, int64_t j, double P)
{
    double A = P;
    if (c->clips && bug->sum != SUM_NO_CLIP) {
        A = c->gain * P + c->clip_low;
        if (A < 0.0 && bug->sum != SUM_CLIP_NOT_CUT)
            A = 0.0;
        A = A > 1.0 ? 1.0 : A;
    }
    if (!c->drops || bug->sum == SUM_NO_DROPOUT)
        return A;
    if (!attn_keeps(c->args->options, c->threshold, b, h, i,
                    bug->sum == SUM_DROPOUT_BY_TILE ? j % tile.T : j))
        return 0.0;
    return bug->sum == SUM_DROPOUT_NOT_SCALED ? A : A * c->kept;
}

double hint_factor(const HintCase *c, int factor)
{
    const double group = (double)c->n.H / (double)c->n.Hkv, N = (double)c->n.Nk;
    const double factors[] = {1.0, -1.0, c->scale,       1.0 / c->scale, group, 1.0 / group,
                              2.0, 0.5,  1.0 / log(2.0), log(2.0),       N,     1.0 / N};
    return factors[factor];
}
