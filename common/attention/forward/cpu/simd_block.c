/* SPDX-License-Identifier: MIT
 *
 * simd_block.c: one block of queries of the library.
 *
 * A strip is as many rows as a register tile has (simd_kernels.c). Its S, 18 KiB, stays in L1. In
 * which order do strips meet keys?
 *
 *     many keys:   for each block of SIMD_KEYS keys, for each strip: a piece
 *     few keys:    for each strip, for each run of at most SIMD_ROW keys that it sees: a piece
 *
 * With many, the block of keys stays in L2 while all strips use it. The keys of a narrow window
 * stay there anyway, and a strip begins with the first key that it sees, not with a multiple of
 * SIMD_KEYS. Each piece costs a strip an update of its state and of O: a window of 256 is one
 * piece, 270 keys, and would be two or three.
 *
 * Masks: each strip has a span of keys in which it sees anything; what is outside is neither
 * computed nor multiplied with V. Under a causal mask the span ends at the strip's last query: the
 * product Q K^T rounds that up to a vector, the product P V does not. In a narrow window it begins
 * with what the strip's first query sees, rounded in the same way: of 14 rows and 257 keys each,
 * that leaves 270 keys for P V and about 285 for Q K^T. Inside, attn_tile_class says which tiles
 * have hidden pairs.
 *
 * Interface: simd_block.h.
 */
#include "simd_block.h"
#include "attn_pairs.h"

#include <math.h>
#include <string.h>

#include "attention/rows.h"
#include "index_span.h"
#include "simd_mask.h"
#include "tensor.h"

/* --- masks -------------------------------------------------------------------------------------*/

/* Hides pairs of S [strip][SIMD_ROW]: `rows` rows from row `first` of the block (query i) on, the
 * first `width` columns, keys j .. of one panel. */
static void mask_tile(const AttnArgs *args, const Plan *p, const Block *block, int64_t i,
                      int64_t first, int64_t rows, int64_t j, int64_t width, float *S)
{
    int64_t panel = j / p->simd->panel, cols = smaller(width, args->shape.Nk - j);
    int usual = !args->mask && p->straight[panel]; /* what a row sees is an interval of columns */
    AttnRange columns = p->ranges[panel];
    columns.min += j % p->simd->panel;
    hide_intervals(p->simd, args->rule, block->positions + first, usual ? rows : 0, columns, cols,
                   width, S);
    if (!usual)
        attn_mask_rows(args, i + first, rows, j, cols, S, SIMD_ROW);
}

/* Keys first .. last-1 are all that a strip can see anything of. Column 0 of its S is key `start`,
 * the first one of a vector. */
typedef struct Span {
    int64_t start, first, last;
} Span;

/* Of keys j .. j+count-1, for strip s; j starts a panel. */
static Span find_span(const AttnArgs *args, const Plan *p, const Block *block, int64_t s, int64_t j,
                      int64_t count)
{
    const AttnRange *ranges = p->ranges, *queries = &block->ranges[s];
    int64_t width = p->simd->panel, first = j / width;
    int64_t last = (smaller(j + count, p->keys) + width - 1) / width;
    Span span = {0, 0, 0};
    while (first < last && attn_tile_class(args->rule, *queries, ranges[first]) == ATTN_TILE_SKIP)
        first++;
    while (first < last &&
           attn_tile_class(args->rule, *queries, ranges[last - 1]) == ATTN_TILE_SKIP)
        last--;
    if (first == last)
        return span;
    span.start = span.first = first * width;
    span.last = smaller(last * width, args->shape.Nk);
    /* causal: the last panel ends at the position of the strip's last query */
    if (args->rule.right >= 0 && p->straight[last - 1] && queries->sequence >= 0)
        span.last = smaller(span.last, (last - 1) * width + queries->max + args->rule.right + 1 -
                                           ranges[last - 1].min);
    if (p->narrow) { /* and the first one begins with what its first query sees */
        int64_t hidden = queries->min - args->rule.left - ranges[first].min;
        span.first += hidden > 0 ? hidden : 0;
        span.start = round_down(span.first, p->simd->lanes);
    }
    return span;
}

/* --- one piece: a strip and at most SIMD_ROW keys ----------------------------------------------*/

/* S of strip s and the span, masked. A panel of which only one half is visible is computed by
 * half. */
static void score_strip(const AttnArgs *args, const Plan *p, const Block *block, const Keys *keys,
                        int64_t i, int64_t s, Span span)
{
    int64_t d = args->shape.d, width = p->simd->panel, lanes = p->simd->lanes, cols;
    int64_t row = s * p->simd->strip, rows = smaller(p->simd->strip, args->shape.Nq - i - row);
    for (int64_t j = span.start; j < span.last; j += cols) {
        int64_t half = j % width; /* 0, or lanes */
        const float *K_panel = keys->K + (j - half - keys->first) * d + half;
        float *S = block->S + j - span.start;
        cols = half > 0 || span.last - j <= lanes ? lanes : width;
        p->simd->scores(block->Q_i + row * d, K_panel, d, S, cols);
        if (args->softcap > 0.0f)
            p->simd->cap(S, NULL, args->softcap * (float)M_LOG2E, cols);
        if (args->mask || j + cols > args->shape.Nk ||
            attn_tile_class(args->rule, block->ranges[s], p->ranges[j / width]) != ATTN_TILE_CLEAN)
            mask_tile(args, p, block, i, row, rows, j, cols, S);
    }
}

static void attend_piece(const AttnArgs *args, const Plan *p, Block *block, const Keys *keys,
                         int64_t i, int64_t s, Span span)
{
    int64_t width = p->simd->panel, row = s * p->simd->strip, cols = span.last - span.start;
    const float *P = block->S + (span.first - span.start);
    const float *V = keys->V + (span.first - keys->first) * width;
    score_strip(args, p, block, keys, i, s, span);
    p->simd->update(block->S, round_up(cols, p->simd->lanes), block->m_i + row,
                    block->l_i + row * p->simd->lanes, block->alpha);
    for (int64_t x = 0; x < p->channels; x += width)
        p->simd->weighted_sum(P, span.last - span.first, V + x * p->capacity, block->alpha,
                              block->O_i + row * p->channels + x, p->channels);
}

/* --- one block of queries ----------------------------------------------------------------------*/

static void start_block(const AttnArgs *args, const Plan *p, Block *block, const float *O_state,
                        int64_t b, int64_t h, int64_t i, int64_t rows)
{
    const AttnShape *n = &args->shape;
    int64_t strip = p->simd->strip, padded = round_up(rows, strip);
    flash_pack_queries(args, p, block, b, h, i, rows);
    memset(block->O_i, 0, (size_t)(padded * p->channels) * sizeof(float));
    memset(block->l_i, 0, (size_t)(padded * p->simd->lanes) * sizeof(float));
    for (int64_t r = 0; r < padded + SIMD_MAX_LANES; r++)
        block->m_i[r] = -INFINITY;
    for (int64_t r = 0; r < rows; r++)
        block->positions[r] = attn_position(args->positions_q, i + r);
    for (int64_t s = 0; s * strip < rows; s++)
        block->ranges[s] =
            attn_range(args->positions_q, i + s * strip, smaller(strip, rows - s * strip));
    for (int64_t r = 0; O_state && r < rows; r++) { /* resume: m = lse, l = 1 */
        const int64_t row = (b * n->H + h) * n->Nq + i + r;
        const float lse = args->lse[row];
        if (p->earlier.m) { /* unnormalised: l is added at the end (add_earlier) */
            block->m_i[r] = p->earlier.m[row];
        } else {
            block->m_i[r] = lse * (float)M_LOG2E;
            block->l_i[r * p->simd->lanes] = lse == -INFINITY ? 0.0f : 1.0f;
        }
        memcpy(block->O_i + r * p->channels, O_state + ((b * n->Nq + i + r) * n->H + h) * n->d,
               (size_t)n->d * sizeof(float));
    }
}

/* l of a row over this block's keys becomes that of all keys so far, and the row's m, l and l_rest
 * are written. In float64, and kept in two floats: a float32 sum over many blocks, rescaled and
 * rounded after each of them, is what would make the error of lse grow with their number. */
static float add_earlier(FlashRows rows, int64_t row, float m, float l_block)
{
    const double earlier = (double)rows.l[row] + (double)rows.l_rest[row];
    double l = l_block;
    if (earlier != 0.0) /* 0: m may be -inf; not > 0, which would lose a NaN */
        l += earlier * exp2((double)rows.m[row] - (double)m);
    rows.m[row] = m;
    rows.l[row] = (float)l;
    rows.l_rest[row] = (float)(l - (double)rows.l[row]);
    return rows.l[row];
}

/* Divides by l, unless that is put off, and brings a strip to where it belongs; 16-bit tensors by
 * way of the copy. */
static void store_strip(const AttnArgs *args, const Plan *p, Block *block, float *O_state,
                        int64_t b, int64_t h, int64_t i, int64_t first, int64_t count)
{
    const AttnShape *n = &args->shape;
    const Tensor *O = &args->O;
    float l[SIMD_MAX_STRIP + SIMD_MAX_LANES], *to = block->copy;
    const int64_t row = (b * n->H + h) * n->Nq + i + first;
    float *lse = args->lse + row;
    int64_t ld = n->d;
    if (O_state) {
        to = O_state + ((b * n->Nq + i + first) * n->H + h) * n->d;
        ld = n->H * n->d;
    } else if (O->dtype == ATTN_F32) {
        to = (float *)O->data + tensor_offset(O, b, i + first, h);
        ld = O->stride[1];
    }
    p->simd->sums(block->l_i + first * p->simd->lanes, l);
    for (int64_t r = 0; r < count; r++) {
        if (p->earlier.m)
            l[r] = add_earlier(p->earlier, row + r, block->m_i[first + r], l[r]);
        lse[r] = l[r] == 0.0f ? -INFINITY : block->m_i[first + r] * (float)M_LN2 + logf(l[r]);
        l[r] = p->earlier.m ? 1.0f : l[r] == 0.0f ? 0.0f : 1.0f / l[r];
    }
    p->simd->scale_rows(block->O_i + first * p->channels, p->channels, l, count, n->d, to, ld,
                        p->O_past_caches && !O_state);
    for (int64_t r = 0; r < count && to == block->copy; r++)
        tensor_write_row(O, b, i + first + r, h, to + r * ld);
}

static void finish_block(const AttnArgs *args, const Plan *p, Block *block, float *O_state,
                         int64_t b, int64_t h, int64_t i, int64_t rows)
{
    int64_t strip = p->simd->strip;
    for (int64_t r = 0; r < rows; r += strip) {
        if (!O_state && !p->O_past_caches)
            flash_fetch_rows(&args->O, b, h, i + r + strip, smaller(strip, rows - r - strip));
        store_strip(args, p, block, O_state, b, h, i, r, smaller(strip, rows - r));
    }
}

static void attend_many(const AttnArgs *args, const Plan *p, Block *block, const Keys *keys,
                        int64_t i, int64_t strips, IndexSpan seen)
{
    for (int64_t j = round_down(seen.first, SIMD_KEYS); j < seen.last; j += SIMD_KEYS)
        for (int64_t s = 0; s < strips; s++) {
            Span span = find_span(args, p, block, s, j, SIMD_KEYS);
            if (span.first < span.last)
                attend_piece(args, p, block, keys, i, s, span);
        }
}

static void attend_few(const AttnArgs *args, const Plan *p, Block *block, const Keys *keys,
                       int64_t i, int64_t s, IndexSpan seen)
{
    int64_t j = round_down(seen.first, p->simd->panel);
    const Span span = find_span(args, p, block, s, j, seen.last - j);
    for (Span piece = span; piece.start < span.last; piece.start = piece.first = piece.last) {
        piece.last = smaller(span.last, piece.start + SIMD_ROW);
        attend_piece(args, p, block, keys, i, s, piece);
    }
}

/* Strip s's share of what the next block reads: rows that arrive while this one is computed. All of
 * them at once would keep the processor waiting, more often than that disturbs the products. */
static void fetch_next(const AttnArgs *args, const Plan *p, const NextBlock *next, int64_t s,
                       int64_t strips)
{
    int64_t strip = p->simd->strip, kv_head = attn_kv_head(&args->shape, next->h);
    int64_t share = (next->last_key - next->first_key + strips - 1) / strips;
    int64_t first = next->first_key + s * share, count = smaller(share, next->last_key - first);
    flash_fetch_rows(&args->Q, next->b, next->h, next->i + s * strip, strip);
    flash_fetch_rows(&args->K, next->b, kv_head, first, count);
    flash_fetch_rows(&args->V, next->b, kv_head, first, count);
}

void flash_attend_block(const AttnArgs *args, const Plan *p, Block *block, const Keys *keys,
                        float *O_state, int64_t b, int64_t h, int64_t i, const NextBlock *next)
{
    int64_t strip = p->simd->strip, rows = smaller(p->rows, args->shape.Nq - i);
    int64_t strips = (rows + strip - 1) / strip;
    const IndexSpan seen = span_of_keys(args, i, rows);

    start_block(args, p, block, O_state, b, h, i, rows);
    if (!p->narrow) {
        attend_many(args, p, block, keys, i, strips, seen);
        finish_block(args, p, block, O_state, b, h, i, rows);
        return;
    }
    for (int64_t s = 0; s < strips; s++) {
        if (!O_state && !p->O_past_caches)
            flash_fetch_rows(&args->O, b, h, i + s * strip, strip);
        if (next)
            fetch_next(args, p, next, s, strips);
        attend_few(args, p, block, keys, i, s, seen);
        store_strip(args, p, block, O_state, b, h, i, s * strip, smaller(strip, rows - s * strip));
    }
}
