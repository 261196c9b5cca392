/* SPDX-License-Identifier: MIT
 *
 * model_window.c: what stage 05's own walks move. The derivation of each line stands in model.h.
 *
 * Interface: model_online_traffic, model_stream_traffic, model_decode_traffic (model.h).
 */
#include "harness/models/model_internal.h"

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
