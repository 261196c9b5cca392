/* SPDX-License-Identifier: MIT
 *
 * oracle_tiles.c: cases whose heads are too long to be copied whole: tiles of one head past a
 * sample of the other side.
 *
 * A block of tiles is converted by all threads, then each thread takes a few samples past the whole
 * block while the tiles are in its cache. The sums of a sample grow in the order of the tiles, so
 * no result depends on the number of threads. What no sample sees is not even read: a window costs
 * what is inside of it.
 *
 * Interface: oracle_run_given, oracle_given_free (oracle.h); oracle_ranges, oracle_stream_groups
 * (oracle_core.h).
 */
#include "attn_pairs.h"
#include "harness/oracle/oracle_core.h"
#include "tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct OracleTile {
    OracleMatrix X, Y;   /* [count][d]: K and V, or Q and dO */
    OracleMatrix Xt, Yt; /* [d][count] */
    int64_t first, count;
    int wanted;            /* some sample sees something of it */
    OracleRowState *state; /* [count] of queries, or NULL: tiles of keys */
} OracleTile;

/* One walk. visit is called for every sample and every tile that any sample sees; for one sample in
 * the order of tiles, and never twice at once. prepare (or NULL) completes a tile after loading. */
typedef struct OracleWalk {
    const OraclePlan *p;
    const Tensor *X, *Y;
    int64_t b, head; /* of X and Y */
    int of_keys;     /* 1: tiles of keys past sampled queries, 0: the other way round */
    const OracleSample *sample;
    int64_t count; /* samples: (heads of the group) times those of `sample`, or once those */
    void *all;     /* handed to prepare and visit */
    void (*prepare)(void *all, OracleTile *tile);
    void (*visit)(void *all, int64_t n, const OracleTile *tile, OracleScratch *m);
} OracleWalk;

#define BLOCK 16 /* tiles between two meetings of the threads */
#define CHUNK 4  /* samples that share a tile in a thread's cache, at most */

/* --- what is visible ---------------------------------------------------------------------------*/

/* The position rule and the full mask. */
static int sees(const OraclePlan *p, int64_t i, int64_t j)
{
    const AttnArgs *a = p->args;
    return attn_visible(a->rule, p->q_at[i], p->k_at[j]) &&
           !(a->mask && a->mask[i * a->shape.Nk + j]);
}

OracleRange *oracle_ranges(const AttnPosition *at, int64_t N)
{
    const int64_t count = (N + ORACLE_TILE - 1) / ORACLE_TILE;
    OracleRange *ranges = malloc((size_t)count * sizeof *ranges);
    for (int64_t t = 0; ranges && t < count; t++) {
        const int64_t first = t * ORACLE_TILE,
                      last = first + ORACLE_TILE < N ? first + ORACLE_TILE : N;
        OracleRange r = {at[first].sequence, at[first].position, at[first].position};
        for (int64_t i = first; i < last; i++) {
            r.sequence = at[i].sequence == r.sequence ? r.sequence : -1;
            r.low = at[i].position < r.low ? at[i].position : r.low;
            r.high = at[i].position > r.high ? at[i].position : r.high;
        }
        ranges[t] = r;
    }
    return ranges;
}

typedef enum Sight { SEES_NOTHING, SEES_SOME, SEES_ALL } Sight;

/* What query (of_keys) or key `at` sees of the tile's tokens, as far as positions tell. */
static Sight sight_of(const OraclePlan *p, int64_t tile, int of_keys, int64_t at)
{
    const OracleRange *r = of_keys ? &p->k_range[tile] : &p->q_range[tile];
    const AttnPosition *where = of_keys ? &p->q_at[at] : &p->k_at[at];
    const AttnRule rule = p->args->rule;
    /* key - query: the smallest and the largest difference */
    const int64_t low = of_keys ? r->low - where->position : where->position - r->high;
    const int64_t high = of_keys ? r->high - where->position : where->position - r->low;
    if (r->sequence < 0)
        return SEES_SOME;
    if (r->sequence != where->sequence || (rule.left >= 0 && high < -rule.left) ||
        (rule.right >= 0 && low > rule.right))
        return SEES_NOTHING;
    if (p->args->mask || (rule.left >= 0 && low < -rule.left) ||
        (rule.right >= 0 && high > rule.right))
        return SEES_SOME;
    return SEES_ALL;
}

/* Of tokens first .. first+count-1, which are tile number first / ORACLE_TILE; index counts from
 * `from`. */
static int64_t seen(const OraclePlan *p, int64_t first, int64_t count, int of_keys, int64_t at,
                    int64_t from, int64_t *index)
{
    const Sight sight = p->k_range ? sight_of(p, first / ORACLE_TILE, of_keys, at) : SEES_SOME;
    int64_t n = 0;
    if (sight == SEES_NOTHING || (sight == SEES_ALL && !index))
        return sight == SEES_ALL ? count : 0;
    for (int64_t other = first; other < first + count; other++) {
        if (sight == SEES_SOME && !sees(p, of_keys ? at : other, of_keys ? other : at))
            continue;
        if (index)
            index[n] = other - from;
        n++;
    }
    return n;
}

/* How many tokens of the tile query (of_keys) or key `at` sees; their places in the tile into index
 * [ORACLE_TILE], ascending, unless that is NULL. */
static int64_t oracle_tile_seen(const OraclePlan *p, const OracleTile *tile, int of_keys,
                                int64_t at, int64_t *index)
{
    return seen(p, tile->first, tile->count, of_keys, at, tile->first, index);
}

int64_t oracle_seen(const OraclePlan *p, int of_keys, int64_t at, int64_t *index)
{
    const int64_t N = of_keys ? p->args->shape.Nk : p->args->shape.Nq;
    int64_t n = 0;
    for (int64_t first = 0; first < N; first += ORACLE_TILE)
        n += seen(p, first, N - first < ORACLE_TILE ? N - first : ORACLE_TILE, of_keys, at, 0,
                  index ? index + n : NULL);
    return n;
}

/* --- tiles -------------------------------------------------------------------------------------*/

/* Tokens first .. first+count-1 of t as a tensor of their own. */
static Tensor part_of(const Tensor *t, int64_t first, int64_t count)
{
    Tensor part = *t;
    part.data = (char *)t->data + (size_t)(first * t->stride[1]) * dtype_size(t->dtype);
    part.shape[1] = count;
    return part;
}

static void load(const Tensor *t, OracleMatrix *M, OracleMatrix *Mt, const OracleTile *tile,
                 int64_t b, int64_t head)
{
    const Tensor part = part_of(t, tile->first, tile->count);
    M->rows = Mt->cols = tile->count;
    oracle_matrix_load(M, Mt, &part, b, head);
}

/* Which samples see something of the tile? If any, fill it. */
static void tile_load(const OracleWalk *w, OracleTile *tile, int64_t first)
{
    const AttnShape *s = &w->p->args->shape;
    const int64_t N = w->of_keys ? s->Nk : s->Nq;
    tile->wanted = 0;
    tile->first = first;
    tile->count = N - first < ORACLE_TILE ? N - first : ORACLE_TILE;
    if (tile->count <= 0)
        return;
    for (int64_t t = 0; t < w->sample->count && !tile->wanted; t++)
        tile->wanted =
            sight_of(w->p, first / ORACLE_TILE, w->of_keys, w->sample->index[t]) != SEES_NOTHING;
    if (!tile->wanted)
        return;
    load(w->X, &tile->X, &tile->Xt, tile, w->b, w->head);
    load(w->Y, &tile->Y, &tile->Yt, tile, w->b, w->head);
    if (w->prepare)
        w->prepare(w->all, tile);
}

static void visit_all(const OracleWalk *w, const OracleTile *tiles, int64_t first, int64_t last,
                      OracleScratch *m)
{
    for (int t = 0; t < BLOCK; t++)
        for (int64_t n = first; tiles[t].wanted && n < last; n++)
            w->visit(w->all, n, &tiles[t], m);
}

/* 0, or -1 when memory is short. */
static int oracle_tiles_walk(const OracleWalk *w, int threads)
{
    const AttnShape *s = &w->p->args->shape;
    const AttnShape of_tile = {1, 1, 1, ORACLE_TILE, ORACLE_TILE, s->d};
    const int64_t N = w->of_keys ? s->Nk : s->Nq, per_thread = oracle_scratch_doubles(&of_tile);
    const int64_t share = w->count / (4 * (int64_t)threads) + 1;
    const int64_t chunk = share < CHUNK ? share : CHUNK, chunks = (w->count + chunk - 1) / chunk;
    OracleTile tiles[BLOCK] = {{.first = 0}};
    OracleRowState *state = calloc(BLOCK * ORACLE_TILE, sizeof *state);
    float *memory = malloc((size_t)(BLOCK * 4 * ORACLE_TILE * s->d) * sizeof *memory), *at = memory;
    double *scratch = malloc((size_t)(per_thread * threads) * sizeof *scratch);
    const int bad = !state || !memory || !scratch;
    for (int t = 0; !bad && t < BLOCK; t++) {
        at = oracle_matrix_place(&tiles[t].X, at, ORACLE_TILE, s->d);
        at = oracle_matrix_place(&tiles[t].Xt, at, s->d, ORACLE_TILE);
        at = oracle_matrix_place(&tiles[t].Y, at, ORACLE_TILE, s->d);
        at = oracle_matrix_place(&tiles[t].Yt, at, s->d, ORACLE_TILE);
        tiles[t].state = w->of_keys ? NULL : state + t * ORACLE_TILE;
    }
    for (int64_t first = 0; !bad && first < N; first += BLOCK * ORACLE_TILE) {
#pragma omp parallel num_threads(threads)
        {
            OracleScratch m =
                oracle_scratch_divide(&of_tile, scratch + oracle_thread_number() * per_thread);
#pragma omp for schedule(dynamic, 1)
            for (int t = 0; t < BLOCK; t++)
                tile_load(w, &tiles[t], first + t * ORACLE_TILE);
#pragma omp for schedule(dynamic, 1)
            for (int64_t c = 0; c < chunks; c++)
                visit_all(w, tiles, c * chunk,
                          c * chunk + chunk < w->count ? c * chunk + chunk : w->count, &m);
        }
    }
    free(state);
    free(memory);
    free(scratch);
    return bad ? -1 : 0;
}

/* --- non-finite inputs -------------------------------------------------------------------------*/

/* Into o, of head h of t. seen_by NULL: any row counts; else only those that see a key under this
 * plan. */
static void mark_nonfinite(Oracle *o, int64_t group, unsigned bit, const OraclePlan *seen_by,
                           const Tensor *t, int64_t h, int threads)
{
    const int64_t b = group / o->shape.Hkv, d = o->shape.d;
    (void)threads;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < t->shape[1]; n++) {
        if (row_nonfinite(t, b, n, h) == 0 || (seen_by && oracle_seen(seen_by, 1, n, NULL) == 0))
            continue;
#pragma omp critical(mark_nonfinite)
        {
            o->tainted[group] |= (uint8_t)bit;
            for (int64_t x = 0; x < d; x++)
                if (!isfinite(tensor_get(t, tensor_offset(t, b, n, h) + x)))
                    o->tainted_at[group * d + x] |= (uint8_t)bit;
        }
    }
}

void oracle_find_taint(Oracle *o, const OraclePlan *p, int64_t group, int backward, int threads)
{
    const AttnArgs *a = p->args;
    const int64_t kv_head = group % o->shape.Hkv, heads = o->shape.H / o->shape.Hkv;
    mark_nonfinite(o, group, ORACLE_TAINT_K, NULL, &a->K, kv_head, threads);
    mark_nonfinite(o, group, ORACLE_TAINT_V, NULL, &a->V, kv_head, threads);
    for (int64_t h = kv_head * heads; h < (kv_head + 1) * heads; h++) {
        mark_nonfinite(o, group, ORACLE_TAINT_Q, NULL, &a->Q, h, threads);
        if (backward)
            mark_nonfinite(o, group, ORACLE_TAINT_DO, p, &a->dO, h, threads);
    }
}

/* --- gradients from the O and lse of a run -----------------------------------------------------*/

/* Gradients when the rows are too many to make lse and delta of all of them again:
 * lse and O are given by the run that is judged.
 *
 * A key needs P = exp(s - lse) and delta = rowsum(dO * O) of every row that sees it, and each lse
 * costs all keys: N^2 d for a single key. With lse and O given it is N d. What the verdict says is
 * then: O and lse are right on the sampled rows, and dQ on these rows and dK and dV on the sampled
 * keys are right *given* O and lse of the run, all rows of them for dK and dV. dK and dV do not
 * show an O or lse that is wrong in a row that was not checked. So each run checks other rows
 * (oracle_case.c) and looks for a NaN in all of them (check.c). These lines take
 * nothing else from the run.
 *
 * THE BOUND is that of oracle_core.c, less what came from the errors of lse and O: they are given,
 * and a backward pass reads the same numbers. With a_ij = sum_x scale |q||k| of the pair alone, and
 * E_i from the O that is given:
 *     g_ij = D a_ij (1 + 2/cap) + |lse_i| + sqrt(terms summed) + 8
 *     dV: u16 (|dV| + sum_i P|dO|) + c u sum_i g_ij P|dO| + eta (1 + sum_i |dO|)
 *     dK: u16 (|dK| + scale sum_i (|dS| + P E_i) |Q|)
 *         + c u scale sum_i P (g_ij |dP - delta| + sum_x|dO||V| + E_i) |Q|
 *         + eta scale sum_i P sum_x|dO| |Q| + the other floors as there
 * A (the largest a_ij of a row), sqrt(n) and W are gone: they are what lse and O may be off by. E_i
 * stays once with u16, and of F_i sum_x |dO|: delta may come from O before it was rounded to be
 * stored. dQ likewise with K, where W counts most: of long rows it was nearly all of the bound, and
 * hid a missing hop. */

static const double u = ORACLE_U;

/* One sampled key. Arrays [d]. */
typedef struct KeySum {
    int64_t j;
    double terms; /* rows that see it, of all heads */
    double *k, *k_size, *v, *v_size;
    double *y, *yc, *yf;         /* dK */
    double *z, *zc, *zf;         /* dV */
    double *y_so_far, *z_so_far; /* up to the last copy */
} KeySum;

#define KEY_ARRAYS 12

typedef struct Keys {
    const OraclePlan *p;
    int64_t b, head; /* query head of the walk */
    KeySum *key;
    double *memory;
    int64_t count;
} Keys;

/* lse, delta, dO_O and dO_floor of one row from the O and lse in p->args; dO [d]. */
static OracleRowState oracle_given_row(const OraclePlan *p, int64_t b, int64_t head, int64_t i,
                                       const double *dO)
{
    const AttnArgs *args = p->args;
    OracleRowState state = {.lse = args->lse[(b * args->shape.H + head) * args->shape.Nq + i]};
    float O[1024];
    tensor_read_row(&args->O, b, i, head, O);
    for (int64_t x = 0; x < args->shape.d; x++) {
        state.delta += dO[x] * O[x];
        state.dO_O += fabs(dO[x] * O[x]);
        state.dO_floor += p->eta * fabs(dO[x]);
    }
    return state;
}

/* g_ij: size = sum_x |q||k|, terms summed. */
static double oracle_given_error(const OraclePlan *p, double size, double lse, double terms)
{
    const double D = oracle_score_error(p) * (p->cap == 0 ? 1 : 1 + 2 / p->cap);
    return D * fabs(p->scale) * size + fabs(lse) + sqrt(terms) + 8;
}

/* lse and delta of the tile's rows, from the run's own output. */
static void read_rows(void *all, OracleTile *tile)
{
    const Keys *keys = all;
    const AttnArgs *a = keys->p->args;
    const int64_t d = a->shape.d;
    for (int64_t t = 0; t < tile->count; t++) {
        double dO[1024];
        for (int64_t x = 0; x < d; x++)
            dO[x] = tile->Y.at[t * d + x];
        tile->state[t] = oracle_given_row(keys->p, keys->b, keys->head, tile->first + t, dO);
    }
}

static void add_rows(void *all, int64_t at, const OracleTile *tile, OracleScratch *m)
{
    const Keys *keys = all;
    const OraclePlan *p = keys->p;
    KeySum *key = &keys->key[at];
    const int64_t d = p->args->shape.d, n = oracle_tile_seen(p, tile, 0, key->j, m->index);
    double *g = m->unsure;
    if (n == 0)
        return;
    oracle_dot_columns(&tile->Xt, m->index[0], m->index[n - 1] + 1, key->k, key->k_size, m->dot,
                       m->size);
    for (int64_t t = 0; t < n; t++) {
        const int64_t i = m->index[t];
        const double lse = tile->state[i].lse;
        m->P[t] = oracle_weight(oracle_cap_score(p, m->dot[i], &m->slope[t]), lse);
        g[t] = oracle_given_error(p, m->size[i], lse, key->terms);
    }
    oracle_dot_columns(&tile->Yt, m->index[0], m->index[n - 1] + 1, key->v, key->v_size, m->dot,
                       m->size);
    for (int64_t t = 0; t < n; t++) {
        const int64_t i = m->index[t];
        oracle_weigh_pair(p, &tile->state[i], m->P[t], m->slope[t], m->dot[i], m->size[i], g[t],
                          &m->w[t], &m->wc[t], &m->wf[t]);
        m->vc[t] = u * oracle_grown(p, g[t]) * m->P[t];
        m->vf[t] = p->u16 * m->P[t] + p->eta;
    }
    oracle_weigh_rows(&tile->X, m->index, n, 0, d, m->w, m->wc, m->wf, key->y, key->yc, key->yf);
    oracle_weigh_rows(&tile->Y, m->index, n, 0, d, m->P, m->vc, m->vf, key->z, key->zc, key->zf);
}

/* Token n of head h: value [d], and the magnitudes, size [d]. */
static void oracle_read_row(const Tensor *t, int64_t b, int64_t n, int64_t h, double *value,
                            double *size)
{
    float row[1024];
    tensor_read_row(t, b, n, h, row);
    for (int64_t x = 0; x < t->shape[3]; x++) {
        value[x] = row[x];
        size[x] = fabs(value[x]);
    }
}

static int keys_make(Keys *keys, const Oracle *o, int64_t kv_head, int threads)
{
    const OraclePlan *p = keys->p;
    const AttnArgs *a = p->args;
    const int64_t d = a->shape.d, heads = a->shape.H / a->shape.Hkv;
    double *at;
    (void)threads;
    keys->count = o->keys.count;
    keys->key = calloc((size_t)keys->count, sizeof *keys->key);
    at = keys->memory = calloc((size_t)(keys->count * KEY_ARRAYS * d), sizeof *at);
    if (!keys->key || !keys->memory)
        return -1;
    for (int64_t n = 0; n < keys->count; n++) {
        KeySum *k = &keys->key[n];
        double **const arrays[KEY_ARRAYS] = {&k->k,  &k->k_size, &k->v,        &k->v_size,
                                             &k->y,  &k->yc,     &k->yf,       &k->z,
                                             &k->zc, &k->zf,     &k->y_so_far, &k->z_so_far};
        for (int e = 0; e < KEY_ARRAYS; e++, at += d)
            *arrays[e] = at;
        k->j = o->keys.index[n];
        oracle_read_row(&a->K, keys->b, k->j, kv_head, k->k, k->k_size);
        oracle_read_row(&a->V, keys->b, k->j, kv_head, k->v, k->v_size);
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t n = 0; n < keys->count; n++)
        keys->key[n].terms = (double)(heads * oracle_seen(p, 0, keys->key[n].j, NULL));
    return 0;
}

/* dK and dV of the sampled keys of o's group number `slot`, from the O and lse in p->args. */
static int oracle_given_keys(Oracle *o, const OraclePlan *p, int64_t slot, int threads)
{
    const AttnArgs *a = p->args;
    const int64_t d = a->shape.d, heads = a->shape.H / a->shape.Hkv;
    const int64_t group = o->kv_heads.index[slot], kv_head = group % a->shape.Hkv;
    Keys keys = {.p = p, .b = group / a->shape.Hkv};
    int bad = keys_make(&keys, o, kv_head, threads);
    for (int64_t h = 0; h < heads && !bad; h++) {
        const OracleWalk walk = {.p = p,
                                 .X = &a->Q,
                                 .Y = &a->dO,
                                 .b = keys.b,
                                 .head = keys.head = kv_head * heads + h,
                                 .of_keys = 0,
                                 .sample = &o->keys,
                                 .count = keys.count,
                                 .all = &keys,
                                 .prepare = read_rows,
                                 .visit = add_rows};
        bad = oracle_tiles_walk(&walk, threads);
        for (int64_t n = 0; n < keys.count && !bad; n++) {
            const int64_t at = (slot * o->keys.count + n) * d;
            const KeySum *k = &keys.key[n];
            oracle_note_copy(p, h, k->y, k->y_so_far, oracle_target_at(&o->dK, at).copied);
            oracle_note_copy(p, h, k->z, k->z_so_far, oracle_target_at(&o->dV, at).copied);
        }
    }
    for (int64_t n = 0; n < keys.count && !bad; n++) {
        const KeySum *k = &keys.key[n];
        const int64_t at = (slot * o->keys.count + n) * d;
        const OracleTarget dK = oracle_target_at(&o->dK, at), dV = oracle_target_at(&o->dV, at);
        if (k->terms == 0) { /* nobody sees this key */
            oracle_target_fill(&dK, d, 0, 0, 0);
            oracle_target_fill(&dV, d, 0, 0, 0);
            continue;
        }
        oracle_finish(p, d, k->y, k->yf, k->yc, &dK);
        oracle_finish(p, d, k->z, k->zf, k->zc, &dV);
    }
    free(keys.key);
    free(keys.memory);
    return bad ? -1 : 0;
}

/* --- sampled rows ------------------------------------------------------------------------------*/

/* Tile by tile of keys. O and lse in one walk; its softmax is the online one, in float64: m is the
 * largest score so far, and what was summed before is scaled when it grows. dQ in a second walk,
 * from the O and lse of a run. The bounds of O and lse are oracle_core.c's. */

/* One sampled row of one head. Arrays [d]. */
typedef struct RowSum {
    int64_t i, n;   /* n: keys that it sees */
    double m, l, A; /* largest score, sum of exp(s - m), largest sum_x scale |q||k| */
    double *q, *q_size, *dO, *dO_size;
    double *y, *yc, *yf; /* sums of P V, P|V| and eta |V|; P lacks 1/l until finish_forward */
    double *z, *zc, *zf; /* dQ */
    OracleRowState state;
} RowSum;

#define ROW_ARRAYS 10

typedef struct Rows {
    const OraclePlan *p;
    RowSum *row;
    double *memory;
    int64_t count;
} Rows;

/* y += w^T M where M are rows of tile, and likewise for sums of magnitudes. */
static void add_forward(void *all, int64_t at, const OracleTile *tile, OracleScratch *m)
{
    const Rows *rows = all;
    const OraclePlan *p = rows->p;
    RowSum *r = &rows->row[at];
    const int64_t d = p->args->shape.d, n = oracle_tile_seen(p, tile, 1, r->i, m->index);
    double max = r->m, slope;
    if (n == 0)
        return;
    oracle_dot_columns(&tile->Xt, m->index[0], m->index[n - 1] + 1, r->q, r->q_size, m->dot,
                       m->size);
    for (int64_t t = 0; t < n; t++) {
        const double size = fabs(p->scale) * m->size[m->index[t]];
        m->P[t] = oracle_cap_score(p, m->dot[m->index[t]], &slope);
        max = m->P[t] > max ? m->P[t] : max;
        r->A = size > r->A ? size : r->A;
    }
    if (max > r->m) {
        const double before = exp(r->m - max); /* 0 in the first tile */
        r->m = max;
        r->l *= before;
        for (int64_t x = 0; x < d; x++) {
            r->y[x] *= before;
            r->yc[x] *= before;
        }
    }
    r->n += n;
    for (int64_t t = 0; t < n; t++) {
        r->l += m->P[t] = oracle_weight(m->P[t], max);
        m->wf[t] = p->eta;
    }
    oracle_weigh_rows(&tile->Y, m->index, n, 0, d, m->P, m->P, m->wf, r->y, r->yc, r->yf);
}

static void add_gradient(void *all, int64_t at, const OracleTile *tile, OracleScratch *m)
{
    const Rows *rows = all;
    const OraclePlan *p = rows->p;
    const RowSum *r = &rows->row[at];
    const int64_t n = oracle_tile_seen(p, tile, 1, r->i, m->index);
    double *g = m->unsure;
    if (n == 0)
        return;
    oracle_dot_columns(&tile->Xt, m->index[0], m->index[n - 1] + 1, r->q, r->q_size, m->dot,
                       m->size);
    for (int64_t t = 0; t < n; t++) {
        const int64_t j = m->index[t];
        m->P[t] = oracle_weight(oracle_cap_score(p, m->dot[j], &m->slope[t]), r->state.lse);
        g[t] = oracle_given_error(p, m->size[j], r->state.lse, (double)r->n);
    }
    oracle_dot_columns(&tile->Yt, m->index[0], m->index[n - 1] + 1, r->dO, r->dO_size, m->dot,
                       m->size);
    for (int64_t t = 0; t < n; t++)
        oracle_weigh_pair(p, &r->state, m->P[t], m->slope[t], m->dot[m->index[t]],
                          m->size[m->index[t]], g[t], &m->w[t], &m->wc[t], &m->wf[t]);
    oracle_weigh_rows(&tile->X, m->index, n, 0, p->args->shape.d, m->w, m->wc, m->wf, r->z, r->zc,
                      r->zf);
}

static void finish_forward(const OraclePlan *p, RowSum *r, const OracleTarget *O,
                           const OracleTarget *lse)
{
    const int64_t d = p->args->shape.d;
    OracleRowState *state = &r->state;
    state->lse = r->m + log(r->l);
    if (state->lse == -INFINITY) {
        oracle_target_fill(O, d, 0, 0, 0);
        oracle_target_fill(lse, 1, -INFINITY, r->n > 0 ? INFINITY : 0, 0);
        return;
    }
    for (int64_t x = 0; x < d; x++) {
        r->y[x] /= r->l;
        r->yc[x] /= r->l;
    }
    oracle_row_errors(p, r->A, r->n, state);
    /* e4m3: lost P by oracle_byte_error; yf is eta sum |V|, and eta is 2^-126. The expected squares
     * need all P of a row at once, so a head in tiles has none: no root mean square is asked. */
    state->score = p->bytes ? oracle_score_sum(p, r->A) : 0;
    const double of_P = p->bytes ? oracle_byte_error(state, 1, 0) : 0;
    for (int64_t x = 0; x < d; x++) {
        r->yf[x] *= p->bytes ? 1 + 0x1p112 / r->l : 1;
        r->yf[x] += (p->u16 + of_P) * r->yc[x];
        r->yc[x] *= u * oracle_grown(p, state->output);
    }
    oracle_finish(p, d, r->y, r->yf, r->yc, O);
    oracle_target_fill(lse, 1, state->lse, state->score, u * (state->forward + fabs(state->lse)));
}

/* The samples of a group, head by head. */
static int rows_make(Rows *rows, const Oracle *o, const OraclePlan *p, int64_t b, int64_t kv_head,
                     int backward)
{
    const AttnArgs *a = p->args;
    const int64_t d = a->shape.d, heads = a->shape.H / a->shape.Hkv;
    double *at;
    rows->p = p;
    rows->count = heads * o->rows.count;
    rows->row = calloc((size_t)rows->count, sizeof *rows->row);
    at = rows->memory = calloc((size_t)(rows->count * ROW_ARRAYS * d), sizeof *at);
    if (!rows->row || !rows->memory)
        return -1;
    for (int64_t n = 0; n < rows->count; n++) {
        RowSum *r = &rows->row[n];
        double **const arrays[ROW_ARRAYS] = {&r->q,  &r->q_size, &r->dO, &r->dO_size, &r->y,
                                             &r->yc, &r->yf,     &r->z,  &r->zc,      &r->zf};
        const int64_t head = kv_head * heads + n / o->rows.count;
        for (int k = 0; k < ROW_ARRAYS; k++, at += d)
            *arrays[k] = at;
        r->i = o->rows.index[n % o->rows.count];
        r->m = -INFINITY;
        oracle_read_row(&a->Q, b, r->i, head, r->q, r->q_size);
        if (backward)
            oracle_read_row(&a->dO, b, r->i, head, r->dO, r->dO_size);
    }
    return 0;
}

static OracleWalk walk_of(Rows *rows, const Oracle *o, int64_t b, int64_t kv_head)
{
    return (OracleWalk){.p = rows->p,
                        .X = &rows->p->args->K,
                        .Y = &rows->p->args->V,
                        .b = b,
                        .head = kv_head,
                        .of_keys = 1,
                        .sample = &o->rows,
                        .count = rows->count,
                        .all = rows};
}

/* Place of the group's first row in o->lse. */
static int64_t first_row(const Oracle *o, int64_t b, int64_t kv_head)
{
    const AttnShape *s = &o->shape;
    return (b * s->H + kv_head * (s->H / s->Hkv)) * o->rows.count;
}

/* O and lse of the sampled rows of group (b, kv_head). */
static int stream_rows(Oracle *o, const OraclePlan *p, int64_t b, int64_t kv_head, int threads)
{
    const int64_t d = o->shape.d, first = first_row(o, b, kv_head);
    Rows rows = {.p = p};
    int bad = rows_make(&rows, o, p, b, kv_head, 0);
    OracleWalk walk = walk_of(&rows, o, b, kv_head);
    walk.visit = add_forward;
    bad = bad || oracle_tiles_walk(&walk, threads) != 0;
    for (int64_t n = 0; !bad && n < rows.count; n++) {
        const OracleTarget O = oracle_target_at(&o->O, (first + n) * d),
                           lse = oracle_target_at(&o->lse, first + n);
        finish_forward(p, &rows.row[n], &O, &lse);
        o->beyond |= oracle_is_beyond(p, rows.row[n].state.g);
    }
    free(rows.row);
    free(rows.memory);
    return bad ? -1 : 0;
}

/* dQ of the sampled rows of group (b, kv_head), from the O and lse in p->args. 0, or -1. */
static int oracle_given_rows(Oracle *o, const OraclePlan *p, int64_t b, int64_t kv_head,
                             int threads)
{
    const AttnArgs *a = p->args;
    const int64_t d = o->shape.d, first = first_row(o, b, kv_head);
    Rows rows = {.p = p};
    int bad = rows_make(&rows, o, p, b, kv_head, 1);
    OracleWalk walk = walk_of(&rows, o, b, kv_head);
    walk.visit = add_gradient;
    for (int64_t n = 0; !bad && n < rows.count; n++) {
        RowSum *r = &rows.row[n];
        const int64_t head = kv_head * (a->shape.H / a->shape.Hkv) + n / o->rows.count;
        r->n = oracle_seen(p, 1, r->i, NULL);
        r->state = oracle_given_row(p, b, head, r->i, r->dO);
    }
    bad = bad || oracle_tiles_walk(&walk, threads) != 0;
    for (int64_t n = 0; !bad && n < rows.count; n++) {
        const RowSum *r = &rows.row[n];
        const OracleTarget dQ = oracle_target_at(&o->dQ, (first + n) * d);
        if (r->n == 0) /* exactly 0, without the rounding that oracle_finish allows for */
            oracle_target_fill(&dQ, d, 0, 0, 0);
        else
            oracle_finish(p, d, r->z, r->zf, r->zc, &dQ);
    }
    free(rows.row);
    free(rows.memory);
    return bad ? -1 : 0;
}

int oracle_stream_groups(Oracle *o, const OraclePlan *p, int backward, int threads)
{
    const int64_t Hkv = o->shape.Hkv;
    int bad = 0;
    for (int64_t group = 0; !bad && group < o->shape.B * Hkv; group++) {
        oracle_find_taint(o, p, group, backward, threads);
        bad = stream_rows(o, p, group / Hkv, group % Hkv, threads);
    }
    return bad;
}

/* --- both --------------------------------------------------------------------------------------*/

int oracle_run_given(Oracle *with, const Oracle *o, const AttnArgs *args, int threads)
{
    OraclePlan plan;
    int bad;
    *with = *o;
    memset(&with->dQ, 0, sizeof with->dQ);
    memset(&with->dK, 0, sizeof with->dK);
    memset(&with->dV, 0, sizeof with->dV);
    bad = oracle_plan_make(&plan, args, o->roundings, 0) != 0 || oracle_new_gradients(with, &plan);
    for (int64_t group = 0; !bad && group < o->shape.B * o->shape.Hkv; group++)
        bad = oracle_given_rows(with, &plan, group / o->shape.Hkv, group % o->shape.Hkv, threads);
    for (int64_t slot = 0; !bad && slot < with->kv_heads.count; slot++)
        bad = oracle_given_keys(with, &plan, slot, threads);
    oracle_plan_free(&plan);
    if (bad)
        oracle_given_free(with);
    return bad ? -1 : 0;
}
