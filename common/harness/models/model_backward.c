/* SPDX-License-Identifier: MIT
 *
 * model_backward.c: what the tiles of a backward pass move. The derivation of each line stands in
 * model.h; here they are added up.
 *
 * Interface: model.h.
 */
#include "harness/models/model_internal.h"

/* Elements of a head: queries, the kv head's share, rows of all visible tiles. */
typedef struct HeadSizes {
    double Nq, d, q, k, rows, cols;
} HeadSizes;

static HeadSizes sizes_of(const AttnArgs *args, int64_t Br, int64_t Bc)
{
    const AttnShape *s = &args->shape;
    const VisibleTiles seen = model_visible_tiles(args, Br, Bc);
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
    return model_heads_traffic(args, 2 * n.k + 3 * n.rows * n.d, n.rows * (n.d + 1) + n.q,
                               n.q + 2 * n.k, n.q + n.rows * n.d);
}

ModelTraffic model_fa2_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc, int64_t parts)
{
    const HeadSizes n = sizes_of(args, Br, Bc);
    const double dQs = (double)parts * n.q;
    return model_heads_traffic(args, 2 * n.q + 2 * n.k + 2 * n.rows * n.d,
                               n.rows * (n.d + 2) + 4 * n.k + dQs + 2 * n.q, n.q + 2 * n.k,
                               n.Nq + 2 * n.q + dQs + n.rows * n.d + 4 * n.k);
}

ModelTraffic model_packed_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc,
                                           int64_t parts)
{
    const HeadSizes n = sizes_of(args, Br, Bc);
    const double dQs = (double)parts * n.q;
    return model_heads_traffic(args, 4 * n.q + 2 * n.k, /* delta, packing; K V */
                               n.rows * (5 * n.d + 2) + 4 * n.k + dQs + 2 * n.q, n.q + 2 * n.k,
                               n.Nq + 6 * n.q + dQs + n.rows * n.d + 4 * n.k);
}

ModelTraffic model_atomic_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc, int direct)
{
    const HeadSizes n = sizes_of(args, Br, Bc);
    const double sums = direct ? 0.0 : 4 * n.k;
    return model_heads_traffic(args, 2 * n.q + 2 * n.k + 2 * n.rows * n.d,
                               n.q + n.rows * (n.d + 2) + sums, n.q + 2 * n.k,
                               n.Nq + n.q + n.rows * n.d + sums);
}

ModelTraffic model_two_kernels_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc)
{
    const HeadSizes n = sizes_of(args, Br, Bc);
    return model_heads_traffic(args, 4 * n.q + 2 * n.cols * n.d + 2 * n.k + 2 * n.rows * n.d,
                               2 * n.Nq + 2 * n.rows, n.q + 2 * n.k, n.Nq);
}
