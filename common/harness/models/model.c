/* SPDX-License-Identifier: MIT
 *
 * model.c: how much work and traffic attention costs, derived from the shape alone.
 *
 * FLOPs count only visible pairs: a causal kernel that computes the masked half as well does not
 * get credit for it. Bytes are what an ideal cache would have to move; a variant that moves more is
 * slower than its model, and that is what the table shows.
 *
 * Interface: model.h, flash_tiles_of (attn.h). The derivations of the backward pass
 * and of the windows stand there, too; here they are added up.
 */
#include "harness/models/model.h"

#include "attn_pairs.h"
#include "tensor.h"

/* Ceilings: a division that rounds down loses the last rows. */
FlashTiles flash_tiles_of(const AttnShape *shape, int64_t Br, int64_t Bc)
{
    FlashTiles tiles = {Br, Bc, (shape->Nq + Br - 1) / Br, (shape->Nk + Bc - 1) / Bc, 1};
    return tiles;
}

/* Floor of a / b for b > 0, also for negative a. */
static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && a < 0);
}

/* Indexes t of 0 .. length-1 with at_least <= position + t*stride <= at_most: *first .. *last,
 * empty when *first > *last. An infinite side has no_low or no_high set. */
static void run_inside(const AttnSegment *g, int64_t low, int no_low, int64_t high, int no_high,
                       int64_t *first, int64_t *last)
{
    int64_t t0 = 0, t1 = g->length - 1;
    if (g->stride == 0) {
        if ((!no_low && g->position < low) || (!no_high && g->position > high))
            t1 = -1;
    } else if (g->stride > 0) {
        const int64_t from = no_low ? 0 : -floor_div(g->position - low, g->stride);
        const int64_t to = no_high ? t1 : floor_div(high - g->position, g->stride);
        t0 = from > t0 ? from : t0;
        t1 = to < t1 ? to : t1;
    } else {
        const int64_t from = no_high ? 0 : -floor_div(high - g->position, -g->stride);
        const int64_t to = no_low ? t1 : floor_div(g->position - low, -g->stride);
        t0 = from > t0 ? from : t0;
        t1 = to < t1 ? to : t1;
    }
    *first = t0;
    *last = t1;
}

/* Each query takes a constant number of steps per key segment of its sequence; only with a full
 * mask are pairs looked at one by one. */
int64_t model_visible_pairs(const AttnArgs *args)
{
    const int64_t far = INT64_MAX / 4; /* beyond every position, and sums with it fit in 64 bits */
    const AttnRule r = {args->rule.left < far ? args->rule.left : far,
                        args->rule.right < far ? args->rule.right : far};
    int64_t pairs = 0;
    for (int64_t a = 0; a < args->positions_q.count; a++) {
        const AttnSegment *q = &args->positions_q.segments[a];
        for (int64_t b = 0; b < args->positions_k.count; b++) {
            const AttnSegment *k = &args->positions_k.segments[b];
            if (q->sequence != k->sequence)
                continue;
            for (int64_t t = 0; t < q->length; t++) {
                const int64_t at = q->position + t * q->stride;
                const uint8_t *row =
                    args->mask ? args->mask + (q->first + t) * args->shape.Nk + k->first : NULL;
                int64_t first, last;
                run_inside(k, r.left < 0 ? 0 : at - r.left, r.left < 0,
                           r.right < 0 ? 0 : at + r.right, r.right < 0, &first, &last);
                if (!row && first <= last)
                    pairs += last - first + 1;
                for (int64_t j = first; row && j <= last; j++)
                    pairs += row[j] == 0;
            }
        }
    }
    return pairs;
}

double model_flops(const AttnArgs *args, int backward)
{
    const AttnShape *s = &args->shape;
    const double forward =
        4.0 * (double)s->B * (double)s->H * (double)s->d * (double)model_visible_pairs(args);
    return backward ? 2.5 * forward : forward;
}

/* Elements of a tensor like Q, of one like K, and rows of lse. */
static double elements_q(const AttnShape *s)
{
    return (double)s->B * (double)s->Nq * (double)s->H * (double)s->d;
}

static double elements_k(const AttnShape *s)
{
    return (double)s->B * (double)s->Nk * (double)s->Hkv * (double)s->d;
}

static double bytes_lse(const AttnShape *s)
{
    return 4.0 * (double)s->B * (double)s->H * (double)s->Nq;
}

/* Of an element of Q, K or V. What e4m3 answers has 16 bits. */
static double bytes_input(const AttnArgs *args)
{
    return args->Q.dtype == ATTN_E4M3 ? 1.0 : (double)dtype_size(args->Q.dtype);
}

/* Forward: Q K V in, O lse out. Backward: Q K V O dO lse in, dQ dK dV out. */
double model_compulsory_bytes(const AttnArgs *args, int backward)
{
    const AttnShape *s = &args->shape;
    const double like_q = backward ? 3 : 1, like_k = backward ? 2 : 0;
    return bytes_input(args) * (elements_q(s) + 2 * elements_k(s)) +
           (double)dtype_size(args->Q.dtype) * (like_q * elements_q(s) + like_k * elements_k(s)) +
           bytes_lse(s);
}

/* Forward S and P, backward P, dP and dS: each matrix is written once and read once. */
double model_materialised_bytes(const AttnArgs *args, int backward)
{
    const AttnShape *s = &args->shape;
    const double matrix = 4.0 * (double)s->B * (double)s->H * (double)s->Nq * (double)s->Nk;
    return model_compulsory_bytes(args, backward) + (backward ? 6 : 4) * matrix;
}

/* Q and O once; K and V of its kv head once for each of the ceil(Nq/Br) row tiles of each head. */
double model_row_tiles_bytes(const AttnArgs *args, int64_t Br)
{
    const AttnShape *s = &args->shape;
    const double element = (double)dtype_size(args->Q.dtype);
    const double tiles = (double)((s->Nq + Br - 1) / Br);
    const double kv = 2.0 * (double)s->B * (double)s->H * (double)s->Nk * (double)s->d;
    return element * (2 * elements_q(s) + tiles * kv) + bytes_lse(s);
}

double model_softmax_bytes(int64_t rows, int64_t cols, int accesses, size_t element_bytes)
{
    return (double)rows * (double)cols * (double)accesses * (double)element_bytes;
}

/* The visible ones of the Tr x Tc tiles of one head: how many there are, how many rows and columns
 * they have in all, and how many keys are in a visible tile at all. */
typedef struct VisibleTiles {
    double tiles, rows, cols, keys;
} VisibleTiles;

static VisibleTiles visible_tiles(const AttnArgs *args, int64_t Br, int64_t Bc)
{
    const AttnShape *s = &args->shape;
    VisibleTiles sum = {0, 0, 0, 0};
    for (int64_t j = 0; j < s->Nk; j += Bc) {
        const int64_t cols = s->Nk - j < Bc ? s->Nk - j : Bc;
        const AttnRange range_k = attn_range(args->positions_k, j, cols);
        int seen = 0;
        for (int64_t i = 0; i < s->Nq; i += Br) {
            const int64_t rows = s->Nq - i < Br ? s->Nq - i : Br;
            if (attn_tile_class(args->rule, attn_range(args->positions_q, i, rows), range_k) ==
                ATTN_TILE_SKIP)
                continue;
            sum.tiles += 1;
            sum.rows += (double)rows;
            sum.cols += (double)cols;
            seen = 1;
        }
        sum.keys += seen ? (double)cols : 0.0;
    }
    return sum;
}

static ModelTraffic heads_traffic(const AttnArgs *args, double element_loads, double float_loads,
                                  double element_stores, double float_stores)
{
    const double heads = (double)args->shape.B * (double)args->shape.H;
    const double element = (double)dtype_size(args->Q.dtype);
    ModelTraffic t;
    t.loads = heads * (element_loads + float_loads);
    t.stores = heads * (element_stores + float_stores);
    t.load_bytes = heads * (bytes_input(args) * element_loads + 4.0 * float_loads);
    t.store_bytes = heads * (element * element_stores + 4.0 * float_stores);
    return t;
}

ModelTraffic model_fa1_traffic(const AttnArgs *args, int64_t Br, int64_t Bc)
{
    const double d = (double)args->shape.d, Nq = (double)args->shape.Nq;
    const VisibleTiles seen = visible_tiles(args, Br, Bc);
    return heads_traffic(args, 2 * seen.keys * d + seen.rows * d, /* K V, Q */
                         seen.rows * (d + 2) + 2 * Nq,            /* O m l */
                         0, (seen.rows + Nq) * (d + 2) + Nq);     /* O m l, lse */
}

/* Each of the Tr row tiles reads all of K for the first product and all of V for the second. */
ModelTraffic model_standard_traffic(const AttnArgs *args, int64_t Br)
{
    const double d = (double)args->shape.d, Nq = (double)args->shape.Nq;
    const double Nk = (double)args->shape.Nk, pairs = Nq * Nk;
    const double Tr = (double)((args->shape.Nq + Br - 1) / Br);
    return heads_traffic(args, Nq * d + 2 * Tr * Nk * d, 2 * pairs, /* Q K V, S P */
                         Nq * d, 2 * pairs + Nq);                   /* O, S P lse */
}

static int64_t round_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b * b;
}

/* Padding is moved like everything else, so it counts: panels are whole in both directions. */
ModelTraffic model_packed_traffic(const AttnArgs *args, int64_t Br, int64_t panel)
{
    const AttnShape *s = &args->shape;
    const double d = (double)s->d, Nq = (double)s->Nq, group = (double)(s->H / s->Hkv);
    const double row = d + (double)round_up(s->d, panel); /* of a key, in K's and V's panels */
    const double keys = (double)round_up(s->Nk, panel);
    const VisibleTiles seen = visible_tiles(args, Br, panel);
    return heads_traffic(args, Nq * d + 2 * (double)s->Nk * d / group,
                         seen.tiles * (double)panel * row, Nq * d, keys * row / group + Nq);
}

ModelTraffic model_fa2_traffic(const AttnArgs *args, int64_t Br, int64_t Bc, int64_t splits)
{
    const double d = (double)args->shape.d, Nq = (double)args->shape.Nq;
    const double states = splits > 1 ? (double)splits * Nq * (d + 1) : 0.0;
    const VisibleTiles seen = visible_tiles(args, Br, Bc);
    return heads_traffic(args, (double)splits * Nq * d + 2 * seen.cols * d, states, Nq * d,
                         Nq + states);
}

/* --- the backward pass (stage 04) --------------------------------------------------------------*/

/* Elements of a head: queries, the kv head's share, rows of all visible tiles. */
typedef struct HeadSizes {
    double Nq, d, q, k, rows, cols;
} HeadSizes;

static HeadSizes sizes_of(const AttnArgs *args, int64_t Br, int64_t Bc)
{
    const AttnShape *s = &args->shape;
    const VisibleTiles seen = visible_tiles(args, Br, Bc);
    HeadSizes n;
    n.Nq = (double)s->Nq;
    n.d = (double)s->d;
    n.q = n.Nq * n.d;
    n.k = (double)s->Nk * n.d / (double)(s->H / s->Hkv);
    n.rows = seen.rows;
    n.cols = seen.cols;
    return n;
}

ModelTraffic model_fa1_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc)
{
    const HeadSizes n = sizes_of(args, Br, Bc);
    return heads_traffic(args, 2 * n.k + 3 * n.rows * n.d, n.rows * (n.d + 1) + n.q, n.q + 2 * n.k,
                         n.q + n.rows * n.d);
}

ModelTraffic model_fa2_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc, int64_t parts)
{
    const HeadSizes n = sizes_of(args, Br, Bc);
    const double dQs = (double)parts * n.q;
    return heads_traffic(args, 2 * n.q + 2 * n.k + 2 * n.rows * n.d, n.rows * (n.d + 2) + dQs,
                         n.q + 2 * n.k, n.Nq + dQs + n.rows * n.d);
}

ModelTraffic model_packed_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc,
                                           int64_t parts)
{
    const HeadSizes n = sizes_of(args, Br, Bc);
    const double dQs = (double)parts * n.q;
    return heads_traffic(args, 4 * n.q + 2 * n.k, /* delta, packing; K V */
                         n.rows * (5 * n.d + 2) + 4 * n.k + dQs + 2 * n.q, n.q + 2 * n.k,
                         n.Nq + 6 * n.q + dQs + n.rows * n.d + 4 * n.k);
}

ModelTraffic model_atomic_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc, int direct)
{
    const HeadSizes n = sizes_of(args, Br, Bc);
    const double sums = direct ? 0.0 : 4 * n.k;
    return heads_traffic(args, 2 * n.q + 2 * n.k + 2 * n.rows * n.d,
                         n.q + n.rows * (n.d + 2) + sums, n.q + 2 * n.k,
                         n.Nq + n.q + n.rows * n.d + sums);
}

ModelTraffic model_two_kernels_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc)
{
    const HeadSizes n = sizes_of(args, Br, Bc);
    return heads_traffic(args, 4 * n.q + 2 * n.cols * n.d + 2 * n.k + 2 * n.rows * n.d,
                         2 * n.Nq + 2 * n.rows, n.q + 2 * n.k, n.Nq);
}

/* --- windows (stage 05) ------------------------------------------------------------------------*/

ModelTraffic model_online_traffic(const AttnArgs *args, int64_t Br, int64_t Bc)
{
    const double d = (double)args->shape.d, Nq = (double)args->shape.Nq;
    const VisibleTiles seen = visible_tiles(args, Br, Bc);
    return heads_traffic(args, 2 * seen.rows * d + 2 * seen.cols * d, seen.rows,
                         (seen.rows + Nq) * d, seen.rows + Nq);
}

ModelTraffic model_stream_traffic(const AttnArgs *args)
{
    const AttnShape *s = &args->shape;
    const double q = (double)s->Nq * (double)s->d;
    const double k = (double)s->Nk * (double)s->d * (double)s->Hkv / (double)s->H;
    const double pairs = (double)model_visible_pairs(args);
    return heads_traffic(args, q + 2 * k, 2 * pairs * (double)s->d, q, 2 * k + (double)s->Nq);
}

ModelTraffic model_decode_traffic(const AttnArgs *args)
{
    const AttnShape *s = &args->shape;
    const double q = (double)s->Nq * (double)s->d, group = (double)(s->H / s->Hkv);
    const double pairs = (double)model_visible_pairs(args);
    return heads_traffic(args, q + 2 * pairs * (double)s->d / group, 0, q, (double)s->Nq);
}
