/* SPDX-License-Identifier: MIT
 *
 * trace.c: one head, tile by tile, on one screen.
 *
 * Interface:
 * - flash_trace: for the last query of head 0, the loop of v1_fa2_rows with tiles of two keys: the
 *   tile's scores, then m, alpha, l and O after it; below, the tile sizes and the traffic that both
 *   loop orders have with --sram elements of fast memory.
 */
#include "flash_forward.h"

#include <stdlib.h>

#include "naive.h"
#include "tiled_softmax.h"

#define TRACE_KEYS 2 /* keys of a tile */
#define TRACE_MAX  8 /* keys and channels shown */

/* O_i of the query, before the division. */
typedef struct TraceRow {
    SoftmaxState state;
    float O_i[TRACE_MAX];
} TraceRow;

static void print_row(const TraceRow *row, int64_t d, FILE *to)
{
    fprintf(to, "%8.4f %7.4f  ", (double)row->state.m, (double)row->state.l);
    for (int64_t x = 0; x < d; x++)
        fprintf(to, " %7.4f", (double)row->O_i[x]);
    fprintf(to, "\n");
}

/* One tile: s [count] scores, V_j [count][d]. */
static void visit_tile(TraceRow *row, const float *s, int64_t count, const float *V_j, int64_t d,
                       FILE *to)
{
    float m_new = row->state.m, alpha, shift;
    for (int64_t c = 0; c < count; c++)
        m_new = s[c] > m_new ? s[c] : m_new;
    shift = softmax_shift(m_new);
    alpha = expf(row->state.m - shift);
    row->state.l *= alpha;
    for (int64_t x = 0; x < d; x++)
        row->O_i[x] *= alpha;
    for (int64_t c = 0; c < count; c++) {
        float P = expf(s[c] - shift);
        row->state.l += P;
        for (int64_t x = 0; x < d; x++)
            row->O_i[x] += P * V_j[c * d + x];
    }
    row->state.m = m_new;
    for (int64_t c = 0; c < TRACE_KEYS; c++)
        if (c < count)
            fprintf(to, " %8.4f", (double)s[c]);
        else
            fprintf(to, "         ");
    fprintf(to, "  %7.4f ", (double)alpha);
    print_row(row, d, to);
}

static void print_traffic(const AttnArgs *args, int64_t M, FILE *to)
{
    FlashTiles tiles = flash_tiles(&args->shape, M);
    AttnArgs copy = *args;
    FlashTraffic fa1, fa2;
    size_t outputs = (size_t)(args->shape.B * args->shape.Nq * args->shape.H * args->shape.d);
    float *O = malloc(outputs * sizeof *O);
    float *lse = malloc((size_t)(args->shape.B * args->shape.H * args->shape.Nq) * sizeof *lse);
    copy.O = args->Q; /* the same shape; contiguous float32 of our own */
    copy.O.data = O;
    copy.O.dtype = ATTN_F32;
    copy.O.stride[2] = args->shape.d;
    copy.O.stride[1] = args->shape.H * copy.O.stride[2];
    copy.O.stride[0] = args->shape.Nq * copy.O.stride[1];
    copy.lse = lse;
    if (O && lse && flash_fa1(&copy, M, &fa1) == ATTN_OK &&
        flash_fa2(&copy, M, NULL, &fa2) == ATTN_OK) {
        fprintf(
            to,
            "\nFast memory M = %lld elements: Bc = ceil(M / 4d) = %lld, Br = min(Bc, d) = %lld, "
            "%lld x %lld tiles.\n",
            (long long)M, (long long)tiles.Bc, (long long)tiles.Br, (long long)tiles.Tr,
            (long long)tiles.Tc);
        fprintf(to, "elements moved           loads  stores\n");
        fprintf(to, "  v0 keys outside     %8lld %7lld\n", (long long)fa1.loads,
                (long long)fa1.stores);
        fprintf(to, "  v1 queries outside  %8lld %7lld\n\n", (long long)fa2.loads,
                (long long)fa2.stores);
    }
    free(O);
    free(lse);
}

int flash_trace(const AttnArgs *args, int64_t M, FILE *to)
{
    const AttnShape *n = &args->shape;
    int64_t i = n->Nq - 1, d = n->d < TRACE_MAX ? n->d : TRACE_MAX;
    int64_t Nk = n->Nk < TRACE_MAX ? n->Nk : TRACE_MAX;
    float Q_i[TRACE_MAX], K[TRACE_MAX * TRACE_MAX], V[TRACE_MAX * TRACE_MAX], s[TRACE_MAX];
    TraceRow row = {softmax_empty(), {0}};
    if (n->d > TRACE_MAX)
        return 0; /* the command line refuses it */
    naive_load_rows(&args->Q, 0, 0, i, 1, Q_i);
    naive_load_rows(&args->K, 0, 0, 0, Nk, K);
    naive_load_rows(&args->V, 0, 0, 0, Nk, V);
    naive_scores(args, Q_i, i, 1, K, 0, Nk, s, Nk);

    fprintf(to,
            "Query %d of head 0, tiles of %d keys. alpha = exp(m_old - m_new) corrects what was "
            "there before.\n\n",
            (int)i, TRACE_KEYS);
    fprintf(to, "keys   scores of tile      alpha        m       l   O, not yet divided\n");
    for (int64_t j = 0; j < Nk; j += TRACE_KEYS) {
        int64_t count = Nk - j < TRACE_KEYS ? Nk - j : TRACE_KEYS;
        fprintf(to, "%d..%d ", (int)j, (int)(j + count - 1));
        visit_tile(&row, s + j, count, V + j * d, d, to);
    }
    fprintf(to, "\nlse = m + ln l = %.4f     O / l =", (double)softmax_lse(row.state));
    for (int64_t x = 0; x < d; x++)
        fprintf(to, " %7.4f", (double)(row.O_i[x] * softmax_inverse(row.state)));
    fprintf(to, "\n");
    print_traffic(args, M, to);
    return 0;
}
