/* SPDX-License-Identifier: MIT
 *
 * oracle_tiles.c: tiles of one head past a sample of the other side.
 *
 * A block of tiles is converted by all threads, then each thread takes a few samples past the whole
 * block while the tiles are in its cache. The sums of a sample grow in the order of the tiles, so
 * no result depends on the number of threads. What no sample sees is not even read: a window costs
 * what is inside of it.
 *
 * Interface: oracle_tiles.h.
 */
#include "oracle/oracle_tiles.h"
#include "attn_pairs.h"

#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "tensor.h"

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

int64_t oracle_tile_seen(const OraclePlan *p, const OracleTile *tile, int of_keys, int64_t at,
                         int64_t *index)
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

int oracle_tiles_walk(const OracleWalk *w, int threads)
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
                if (!is_finite_f32(tensor_get(t, tensor_offset(t, b, n, h) + x)))
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
