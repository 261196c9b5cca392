/* SPDX-License-Identifier: MIT
 *
 * model_window.c: what a window leaves of the tiles, and what stage 05's own walks move.
 *
 * A row tile's queries stand at positions q_min .. q_max, so it sees something of the keys at
 * q_min - left .. q_max + right, and all of them see the keys at q_max - left .. q_min + right. Two
 * divisions by Bc turn each run of keys into a run of tiles. No tile is asked.
 *
 * Interface: model_window_tiles, model_online_traffic, model_stream_traffic, model_decode_traffic
 * (model.h).
 */
#include "models/model_internal.h"

/* Tiles of Bc keys, of Nk keys in all, that have at least one (whole: all) of the keys first ..
 * last; any of the two may lie outside 0 .. Nk-1. */
static int64_t tiles_of_run(int64_t first, int64_t last, int64_t Nk, int64_t Bc, int whole)
{
    const int64_t Tc = (Nk + Bc - 1) / Bc;
    int64_t from = 0, to = Tc; /* tiles from .. to-1 */
    if (last < 0 || first > Nk - 1 || first > last)
        return 0;
    if (first > 0)
        from = whole ? (first + Bc - 1) / Bc : first / Bc;
    if (last < Nk - 1)
        to = whole ? (last + 1) / Bc : last / Bc + 1;
    return to > from ? to - from : 0;
}

/* One head of one sequence, whose queries stand at shift, shift + 1, ... if its keys do at 0, 1 */
static void add_sequence(ModelTiles *sum, AttnRule r, int64_t Nq, int64_t Nk, int64_t shift,
                         int64_t Br, int64_t Bc)
{
    const int64_t Tc = (Nk + Bc - 1) / Bc;
    for (int64_t i = 0; i < Nq; i += Br) {
        const int64_t q_min = shift + i, q_max = shift + (Nq - i < Br ? Nq : i + Br) - 1;
        const int64_t seen = tiles_of_run(r.left < 0 ? 0 : q_min - r.left,
                                          r.right < 0 ? Nk - 1 : q_max + r.right, Nk, Bc, 0);
        const int64_t clean = tiles_of_run(r.left < 0 ? 0 : q_max - r.left,
                                           r.right < 0 ? Nk - 1 : q_min + r.right, Nk, Bc, 1);
        sum->skipped += Tc - seen;
        sum->masked += seen - clean;
        sum->clean += clean;
    }
}

ModelTiles model_window_tiles(const AttnArgs *args, int64_t Br, int64_t Bc)
{
    const AttnPositions queries = args->positions_q, keys = args->positions_k;
    const ModelTiles unknown = {-1, -1, -1};
    const int64_t heads = args->shape.B * args->shape.H;
    ModelTiles sum = {0, 0, 0};
    if (queries.count != keys.count || (queries.count > 1 && (args->mask || args->shape.B != 1)))
        return unknown;
    for (int64_t s = 0; s < queries.count; s++) {
        const AttnSegment *q = &queries.segments[s], *k = &keys.segments[s];
        if (q->sequence != s || k->sequence != s || q->stride != 1 || k->stride != 1)
            return unknown;
        add_sequence(&sum, args->rule, q->length, k->length, q->position - k->position, Br, Bc);
    }
    if (args->mask) { /* it is asked about every pair */
        sum.masked += sum.clean;
        sum.clean = 0;
    }
    return (ModelTiles){heads * sum.skipped, heads * sum.masked, heads * sum.clean};
}

ModelTraffic model_online_traffic(const AttnArgs *args, int64_t Br, int64_t Bc)
{
    const double d = (double)args->shape.d, Nq = (double)args->shape.Nq;
    const VisibleTiles seen = model_visible_tiles(args, Br, Bc);
    return model_heads_traffic(args, 2 * seen.rows * d + 2 * seen.cols * d, seen.rows,
                               (seen.rows + Nq) * d, seen.rows + Nq);
}

ModelTraffic model_stream_traffic(const AttnArgs *args)
{
    const AttnShape *s = &args->shape;
    const double q = (double)s->Nq * (double)s->d;
    const double k = (double)s->Nk * (double)s->d * (double)s->Hkv / (double)s->H;
    const double pairs = (double)model_visible_pairs(args);
    return model_heads_traffic(args, q + 2 * k, 2 * pairs * (double)s->d, q, 2 * k + (double)s->Nq);
}

ModelTraffic model_decode_traffic(const AttnArgs *args)
{
    const AttnShape *s = &args->shape;
    const double q = (double)s->Nq * (double)s->d, group = (double)(s->H / s->Hkv);
    const double pairs = (double)model_visible_pairs(args);
    return model_heads_traffic(args, q + 2 * pairs * (double)s->d / group, 0, q, (double)s->Nq);
}
