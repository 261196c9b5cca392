/* SPDX-License-Identifier: MIT
 *
 * trace.c: one head, tile by tile, on one screen.
 *
 * Slow memory in Algorithm 1 holds a finished answer for the keys so far: O is divided by l after
 * every tile. FlashAttention-2 keeps the sum unnormalised until the last one. The trace shows both,
 * so that the two can be followed with a pencil; they end in the same O.
 *
 * Interface:
 * - flash_forward_begin: says what tiles --sram gives, and keeps it for the trace.
 * - flash_forward_trace: m~, l~ of each tile and what slow memory holds after it (v0); the last
 *   query with all its keys (v1); below, what both loop orders moved. Tiles follow from --sram; its
 *   default would be one single tile here, so without it M is 8d, tiles of two keys.
 * - flash_forward_trace_steps: v0, a tile a page.
 */

#include <math.h>
#include <stdlib.h>

#include "attention/rows.h"
#include "harness/report/pages.h"
#include "harness/rung.h"
#include "problem_rows.h"
#include "units/fast_memory.h"
#include "units/softmax_state.h"

STAGE_TRACE(flash_forward);

extern const Rung rung_flash_forward_v0_fa1_tiles, rung_flash_forward_v1_fa2_rows;

#define TRACE_MAX   8  /* queries, keys and channels: what the command line lets through */
#define TRACE_LINES 16 /* of Algorithm 1; beyond that the last queries only */

typedef struct TraceCase {
    FlashTiles tiles;
    int64_t Nq, Nk, d;
    float Q[TRACE_MAX * TRACE_MAX]; /* [Nq][d] */
    float K[TRACE_MAX * TRACE_MAX]; /* [Nk][d] */
    float V[TRACE_MAX * TRACE_MAX]; /* [Nk][d] */
    float S[TRACE_MAX * TRACE_MAX]; /* [Nq][Nk] scaled, capped, masked */
} TraceCase;

static int64_t tile_end(int64_t first, int64_t tile, int64_t N)
{
    return first + tile < N ? first + tile : N;
}

static void print_floats(FILE *to, const float *x, int64_t count)
{
    for (int64_t n = 0; n < count; n++)
        fprintf(to, " %7.4f", (double)x[n]);
}

/* Keys j .. end-1 for one query, as in Algorithm 1: O [d] is divided before and after. */
static void step_fa1(const TraceCase *t, int64_t i, int64_t j, int64_t end, SoftmaxState *state,
                     float *O, FILE *to)
{
    const float *s = t->S + i * t->Nk;
    SoftmaxState tile = softmax_empty();
    for (int64_t c = j; c < end; c++)
        tile = softmax_push(tile, s[c]);
    SoftmaxState both = softmax_merge(*state, tile);
    float shift = softmax_shift(both.m), inverse = softmax_inverse(both);
    float alpha = expf(state->m - shift), beta = expf(tile.m - shift);
    for (int64_t x = 0; x < t->d; x++) {
        float PV = 0.0f; /* P~ V_j */
        for (int64_t c = j; c < end; c++)
            PV += expf(s[c] - softmax_shift(tile.m)) * t->V[c * t->d + x];
        O[x] = (state->l * alpha * O[x] + beta * PV) * inverse;
    }
    *state = both;
    if (to) {
        fprintf(to, "%d..%d   q%d  %7.4f %7.4f %8.4f %7.4f %8.4f %7.4f  ", (int)j, (int)end - 1,
                (int)i, (double)tile.m, (double)tile.l, (double)alpha, (double)beta, (double)both.m,
                (double)both.l);
        print_floats(to, O, t->d);
        fprintf(to, "\n");
    }
}

static void trace_fa1(const TraceCase *t, int64_t M, FILE *to)
{
    SoftmaxState state[TRACE_MAX];
    float O[TRACE_MAX * TRACE_MAX] = {0};
    int64_t shown = TRACE_LINES / t->tiles.Tc < t->Nq ? TRACE_LINES / t->tiles.Tc : t->Nq;
    for (int64_t i = 0; i < t->Nq; i++)
        state[i] = softmax_empty();
    fprintf(to,
            "Algorithm 1 (v0). M = %d elements: Bc = ceil(M / 4d) = %d, Br = min(Bc, d) = %d, "
            "%d x %d tiles.\n",
            (int)M, (int)t->tiles.Bc, (int)t->tiles.Br, (int)t->tiles.Tr, (int)t->tiles.Tc);
    fprintf(to,
            "\nkeys  query      m~      l~    alpha    beta        m       l   O, divided by l\n");
    for (int64_t j = 0; j < t->Nk; j += t->tiles.Bc)
        for (int64_t i = 0; i < t->Nq; i++) /* the tiles of queries, one behind the other */
            step_fa1(t, i, j, tile_end(j, t->tiles.Bc, t->Nk), &state[i], O + i * t->d,
                     i < t->Nq - shown ? NULL : to);
}

/* The last query, all keys: O stays unnormalised until the end. */
static void trace_fa2(const TraceCase *t, FILE *to)
{
    const float *s = t->S + (t->Nq - 1) * t->Nk;
    SoftmaxState state = softmax_empty();
    float O[TRACE_MAX] = {0};
    fprintf(to,
            "\nFlashAttention-2 (v1), query %d.\n\nkeys  %*s scores    alpha        m       l   "
            "O, not yet divided\n",
            (int)t->Nq - 1, (int)(t->tiles.Bc - 1) * 8, "");
    for (int64_t j = 0; j < t->Nk; j += t->tiles.Bc) {
        int64_t end = tile_end(j, t->tiles.Bc, t->Nk);
        float m_new = state.m, alpha, shift;
        for (int64_t c = j; c < end; c++)
            m_new = s[c] > m_new ? s[c] : m_new;
        shift = softmax_shift(m_new);
        alpha = expf(state.m - shift);
        state.m = m_new;
        state.l *= alpha;
        for (int64_t x = 0; x < t->d; x++)
            O[x] *= alpha;
        for (int64_t c = j; c < end; c++) {
            float P = expf(s[c] - shift);
            state.l += P;
            for (int64_t x = 0; x < t->d; x++)
                O[x] += P * t->V[c * t->d + x];
        }
        fprintf(to, "%d..%d ", (int)j, (int)end - 1);
        print_floats(to, s + j, end - j);
        fprintf(to, "%*s %8.4f %8.4f %7.4f  ", (int)(t->tiles.Bc - end + j) * 8, "", (double)alpha,
                (double)state.m, (double)state.l);
        print_floats(to, O, t->d);
        fprintf(to, "\n");
    }
    fprintf(to, "\nlse = m + ln l = %.4f    O / l =", (double)softmax_lse(state));
    for (int64_t x = 0; x < t->d; x++)
        O[x] *= softmax_inverse(state);
    print_floats(to, O, t->d);
    fprintf(to, "\n");
}

/* Runs v0 and v1 into outputs of our own and shows their counters. */
static int trace_traffic(const AttnArgs *args, int64_t M, FILE *to)
{
    const AttnShape *n = &args->shape;
    AttnArgs copy = *args;
    AccessCounts fa1, fa2;
    const FastMemory fast = fast_memory(M, (int)n->Nq, (int)n->Nk, (int)n->d);
    float *O = malloc((size_t)(n->B * n->Nq * n->H * n->d) * sizeof *O);
    float *lse = malloc((size_t)(n->B * n->H * n->Nq) * sizeof *lse);
    int status = -1;
    copy.O = args->Q; /* the same shape; contiguous float32 */
    copy.O.data = O;
    copy.O.dtype = ATTN_F32;
    copy.O.stride[2] = n->d;
    copy.O.stride[1] = n->H * copy.O.stride[2];
    copy.O.stride[0] = n->Nq * copy.O.stride[1];
    copy.lse = lse;
    if (O && lse && rung_count(&rung_flash_forward_v0_fa1_tiles, &copy, 0, M, &fa1) == ATTN_OK &&
        rung_count(&rung_flash_forward_v1_fa2_rows, &copy, 0, M, &fa2) == ATTN_OK) {
        fprintf(to, "\nelements moved           loads  stores\n");
        fprintf(to, "  v0 keys outside     %8lld %7lld\n", (long long)fa1.loads,
                (long long)fa1.stores);
        fprintf(to, "  v1 queries outside  %8lld %7lld\n", (long long)fa2.loads,
                (long long)fa2.stores);
        fprintf(to, "Tiles, S, m and l really take %lld elements of fast memory: %.2f times M.\n\n",
                (long long)fast_elements(&fast), (double)fast_elements(&fast) / (double)M);
        status = 0;
    }
    free(O);
    free(lse);
    return status;
}

/* 0, or -1: larger than what the command line lets through. */
static int load_case(TraceCase *t, const AttnArgs *args, int64_t M)
{
    t->Nq = args->shape.Nq;
    t->Nk = args->shape.Nk;
    t->d = args->shape.d;
    if (t->Nq > TRACE_MAX || t->Nk > TRACE_MAX || t->d > TRACE_MAX)
        return -1;
    const FastMemory fast = fast_memory(M, (int)t->Nq, (int)t->Nk, (int)t->d);
    t->tiles = flash_tiles_of(&args->shape, fast.Br, fast.Bc);
    attn_load_rows(&args->Q, 0, 0, 0, t->Nq, t->Q);
    attn_load_rows(&args->K, 0, 0, 0, t->Nk, t->K);
    attn_load_rows(&args->V, 0, 0, 0, t->Nk, t->V);
    attn_score_block(args, t->Q, 0, t->Nq, t->K, 0, t->Nk, t->S, t->Nk);
    return 0;
}

static int64_t asked_sram; /* --sram, or 0 */

/* --sram M is what tile sizes are made from; this is what has to fit. */
void flash_forward_begin(const CliCase *c, const AttnShape *n, int quiet)
{
    const FastMemory fast = fast_memory(c->sram, (int)n->Nq, (int)n->Nk, (int)n->d);
    const int64_t elements = fast_elements(&fast);
    asked_sram = c->sram;
    if (c->sram && !quiet)
        printf("# M = %lld elements: v0_fa1_tiles and v1_fa2_rows have tiles of %d x %d; with S, m "
               "and l %lld elements have to fit, %.2f M\n",
               (long long)c->sram, fast.Br, fast.Bc, (long long)elements,
               (double)elements / (double)c->sram);
}

int flash_forward_trace(const AttnArgs *args, FILE *to)
{
    const int64_t M = asked_sram ? asked_sram : 8 * args->shape.d;
    TraceCase t;
    if (load_case(&t, args, M) != 0)
        return 0;
    trace_fa1(&t, M, to);
    trace_fa2(&t, to);
    return trace_traffic(args, M, to);
}

/* --- a tile a page -----------------------------------------------------------------------------*/

/* The tile's scores and P~, in the columns of their keys. */
static void print_tile(const TraceCase *t, int64_t i, int64_t i_end, int64_t j, int64_t j_end,
                       FILE *to)
{
    fprintf(to,
            "  in fast memory: S = scale Q_i K_j^T, P~ = exp(S - m~) of this tile alone\n      ");
    for (int64_t c = 0; c < t->Nk; c++)
        fprintf(to, " %6s%d", "k", (int)c);
    fputc('\n', to);
    for (int64_t r = i; r < i_end; r++) {
        const float *s = t->S + r * t->Nk;
        float m = -INFINITY;
        for (int64_t c = j; c < j_end; c++)
            m = s[c] > m ? s[c] : m;
        for (int P = 0; P < 2; P++) {
            fprintf(to, "  %s%d ", P ? "P~" : "S ", (int)r);
            for (int64_t c = 0; c < t->Nk; c++)
                if (c < j || c >= j_end)
                    fprintf(to, " %7s", "-");
                else
                    fprintf(to, " %7.4f", (double)(P ? expf(s[c] - softmax_shift(m)) : s[c]) + 0.0);
            fputc('\n', to);
        }
    }
}

static void print_state(const TraceCase *t, const SoftmaxState *state, const float *O, FILE *to)
{
    fprintf(to,
            "\n  in slow memory       m       l   O, divided by l: exact for the keys so far\n");
    for (int64_t i = 0; i < t->Nq; i++) {
        fprintf(to, "  q%d             %7.4f %7.4f  ", (int)i, (double)state[i].m,
                (double)state[i].l);
        print_floats(to, O + i * t->d, t->d);
        fputc('\n', to);
    }
}

int flash_forward_trace_steps(const AttnArgs *args, FILE *to)
{
    SoftmaxState state[TRACE_MAX];
    float O[TRACE_MAX * TRACE_MAX] = {0};
    TraceCase t;
    if (load_case(&t, args, asked_sram ? asked_sram : 8 * args->shape.d) != 0)
        return 0;
    for (int64_t i = 0; i < t.Nq; i++)
        state[i] = softmax_empty();
    for (int64_t j = 0; j < t.Nk; j += t.tiles.Bc)
        for (int64_t i = 0; i < t.Nq; i += t.tiles.Br) {
            const int64_t j_end = tile_end(j, t.tiles.Bc, t.Nk);
            const int64_t i_end = tile_end(i, t.tiles.Br, t.Nq);
            for (int64_t r = i; r < i_end; r++)
                step_fa1(&t, r, j, j_end, &state[r], O + r * t.d, NULL);
            fprintf(to, "Algorithm 1, keys outside: keys k%d to k%d, queries q%d to q%d\n\n",
                    (int)j, (int)j_end - 1, (int)i, (int)i_end - 1);
            print_tile(&t, i, i_end, j, j_end, to);
            print_state(&t, state, O, to);
            fprintf(
                to,
                "\n  K_j and V_j stay while the tiles of queries go by; O, m and l travel.\n\f");
        }
    return 0;
}
