/* SPDX-License-Identifier: MIT
 *
 * trace.c: the backward pass of one head, tile by tile, on one screen.
 *
 * The loops are v1_fa2_backward's: keys outside. Each tile computes P again from lse, then dP and
 * dS, and leaves its share in three places. dK and dV of the tile's keys are finished when its last
 * queries have gone by. dQ of a query is finished only after the last tile of keys: in between it
 * waits in slow memory, and that is where the variants of this stage differ.
 *
 * Interface:
 * - flash_backward_trace: head 0 of batch 0 (of the kv head that it reads: this head's share of dK
 *   and dV). O and lse come from stage 03's v1_fa2_rows, in float32.
 * - flash_backward_trace_steps: the same, a tile a page.
 */
#include <math.h>
#include <stdlib.h>

#include "attention/rows.h"
#include "attn_pairs.h"
#include "harness/report/pages.h"
#include "harness/rung.h"

STAGE_TRACE(flash_backward);

RUNG_FN(flash_forward, v1_fa2_rows)

#define TRACE_MAX 8 /* queries, keys and channels: what the command line lets through */
#define TILE      2 /* Br and Bc */

typedef struct Trace {
    const AttnArgs *args;
    FILE *to;
    int64_t Nq, Nk, d;
    float Q[TRACE_MAX * TRACE_MAX], dO[TRACE_MAX * TRACE_MAX]; /* [Nq][d] */
    float K[TRACE_MAX * TRACE_MAX], V[TRACE_MAX * TRACE_MAX];  /* [Nk][d] */
    float O[TRACE_MAX * TRACE_MAX];                            /* [Nq][d] of the forward pass */
    float lse[TRACE_MAX], delta[TRACE_MAX];                    /* [Nq] */
    float dQ[TRACE_MAX * TRACE_MAX], dK[TRACE_MAX * TRACE_MAX], dV[TRACE_MAX * TRACE_MAX];
} Trace;

/* What exists of a tile at a time. */
typedef struct TraceTile {
    int64_t i, rows, j, cols;
    float P[TILE * TILE], dP[TILE * TILE], dS[TILE * TILE]; /* [rows][TILE] */
} TraceTile;

static float dot(const float *a, const float *b, int64_t count)
{
    float sum = 0.0f;
    for (int64_t x = 0; x < count; x++)
        sum += a[x] * b[x];
    return sum;
}

/* O [Nq][d] and lse of head 0; 0, or -1: memory is short. */
static int run_forward(Trace *t)
{
    const AttnShape *n = &t->args->shape;
    AttnArgs copy = *t->args;
    float *O = malloc((size_t)(n->B * n->Nq * n->H * n->d) * sizeof *O);
    float *lse = malloc((size_t)(n->B * n->H * n->Nq) * sizeof *lse);
    const int failed = !O || !lse;
    copy.O = t->args->Q; /* the same shape; contiguous float32 */
    copy.O.data = O;
    copy.O.dtype = ATTN_F32;
    copy.O.stride[2] = n->d;
    copy.O.stride[1] = n->H * copy.O.stride[2];
    copy.O.stride[0] = n->Nq * copy.O.stride[1];
    copy.lse = lse;
    int status = failed || flash_forward_v1_fa2_rows(&copy) != ATTN_OK ? -1 : 0;
    for (int64_t i = 0; status == 0 && i < n->Nq; i++) {
        attn_load_rows(&copy.O, 0, 0, i, 1, t->O + i * n->d);
        t->lse[i] = lse[i];
    }
    free(O);
    free(lse);
    return status;
}

/* P, dP and dS of one pair. */
static void compute_pair(const Trace *t, TraceTile *tile, int64_t r, int64_t c)
{
    const int64_t i = tile->i + r, j = tile->j + c, e = r * TILE + c;
    const float s = attn_score(t->args, dot(t->Q + i * t->d, t->K + j * t->d, t->d));
    const float cap = t->args->softcap;
    tile->P[e] = attn_sees(t->args, i, j) ? expf(s - t->lse[i]) : 0.0f;
    tile->dP[e] = dot(t->dO + i * t->d, t->V + j * t->d, t->d);
    tile->dS[e] = tile->P[e] * (tile->dP[e] - t->delta[i]);
    if (cap > 0.0f)
        tile->dS[e] *= 1.0f - (s / cap) * (s / cap);
}

/* What the pair adds to the three gradients. */
static void add_pair(Trace *t, const TraceTile *tile, int64_t r, int64_t c)
{
    const int64_t i = (tile->i + r) * t->d, j = (tile->j + c) * t->d;
    const float P = tile->P[r * TILE + c], dS = t->args->scale * tile->dS[r * TILE + c];
    for (int64_t x = 0; x < t->d; x++) {
        t->dV[j + x] += P * t->dO[i + x];
        t->dK[j + x] += dS * t->Q[i + x];
        t->dQ[i + x] += dS * t->K[j + x];
    }
}

/* `count` numbers in the room of `room`. */
static void print_floats(FILE *to, const float *x, int64_t count, int64_t room)
{
    fputs(" ", to);
    for (int64_t n = 0; n < room; n++)
        if (n < count)
            fprintf(to, " %7.4f", (double)x[n] + 0.0); /* + 0.0: no "-0.0000" */
        else
            fprintf(to, " %7s", "");
}

/* Row r of the tile: pairs, its query's dQ, its key's dK and dV, as they stand after the tile. */
static void print_row(const Trace *t, const TraceTile *tile, int64_t r)
{
    const int64_t pairs = r < tile->rows ? tile->cols : 0, d = t->d;
    if (pairs)
        fprintf(t->to, "%3s q%d", "", (int)(tile->i + r));
    else
        fprintf(t->to, "%3s %2s", "", "");
    print_floats(t->to, tile->P + r * TILE, pairs, TILE);
    print_floats(t->to, tile->dP + r * TILE, pairs, TILE);
    print_floats(t->to, tile->dS + r * TILE, pairs, TILE);
    print_floats(t->to, t->dQ + (tile->i + r) * d, pairs ? d : 0, d);
    if (r < tile->cols) {
        fprintf(t->to, "   k%d", (int)(tile->j + r));
        print_floats(t->to, t->dK + (tile->j + r) * d, d, d);
        print_floats(t->to, t->dV + (tile->j + r) * d, d, d);
    }
    fputc('\n', t->to);
}

/* The tile's pairs, and what they add to the gradients. 0: nothing is seen, nothing done. */
static int compute_tile(Trace *t, TraceTile *made, int64_t i, int64_t j)
{
    TraceTile tile = {.i = i, .j = j};
    tile.rows = t->Nq - i < TILE ? t->Nq - i : TILE;
    tile.cols = t->Nk - j < TILE ? t->Nk - j : TILE;
    if (attn_tile_class(t->args->rule, attn_range(t->args->positions_q, i, tile.rows),
                        attn_range(t->args->positions_k, j, tile.cols)) == ATTN_TILE_SKIP) {
        *made = tile;
        return 0;
    }
    for (int64_t r = 0; r < tile.rows; r++)
        for (int64_t c = 0; c < tile.cols; c++) {
            compute_pair(t, &tile, r, c);
            add_pair(t, &tile, r, c);
        }
    *made = tile;
    return 1;
}

static void visit_tile(Trace *t, int64_t i, int64_t j)
{
    TraceTile tile;
    if (!compute_tile(t, &tile, i, j)) {
        fprintf(t->to, "    q%d to q%d see none of k%d to k%d: skipped\n", (int)i,
                (int)(i + tile.rows - 1), (int)j, (int)(j + tile.cols - 1));
        return;
    }
    for (int64_t r = 0; r < tile.rows || r < tile.cols; r++)
        print_row(t, &tile, r);
}

static void print_kept(const Trace *t)
{
    fprintf(t->to, "kept by the forward pass, and delta = rowsum(dO * O):\n         lse   delta\n");
    for (int64_t i = 0; i < t->Nq; i++)
        fprintf(t->to, "    q%d %7.4f %7.4f\n", (int)i, (double)t->lse[i], (double)t->delta[i]);
}

static void print_heading(const Trace *t)
{
    const int room = 8 * (int)t->d;
    fprintf(t->to,
            "\nkeys outside, tiles of %d x %d pairs; gradients as they stand after each tile\n",
            TILE, TILE);
    fprintf(t->to, "       %-*s  %-*s  %-*s  %-*s       %-*s  %s\n", 8 * TILE, " P", 8 * TILE,
            " dP", 8 * TILE, " dS", room, " dQ", room, " dK", " dV");
}

static void print_end(const Trace *t)
{
    const int64_t d = t->d;
    fprintf(t->to, "\nin the end\n       %-*s  %-*s  %s\n", 8 * (int)d, " dQ", 8 * (int)d, " dK",
            " dV");
    for (int64_t r = 0; r < t->Nq || r < t->Nk; r++) {
        fprintf(t->to, "   %2d ", (int)r);
        print_floats(t->to, t->dQ + r * d, r < t->Nq ? d : 0, d);
        print_floats(t->to, t->dK + r * d, r < t->Nk ? d : 0, d);
        print_floats(t->to, t->dV + r * d, r < t->Nk ? d : 0, d);
        fputc('\n', t->to);
    }
    fputc('\n', t->to);
}

/* 1: ready; 0: larger than what the command line lets through; -1: no memory. */
static int make_trace(Trace *t)
{
    t->Nq = t->args->shape.Nq;
    t->Nk = t->args->shape.Nk;
    t->d = t->args->shape.d;
    if (t->Nq > TRACE_MAX || t->Nk > TRACE_MAX || t->d > TRACE_MAX)
        return 0;
    if (run_forward(t) != 0)
        return -1;
    attn_load_rows(&t->args->Q, 0, 0, 0, t->Nq, t->Q);
    attn_load_rows(&t->args->dO, 0, 0, 0, t->Nq, t->dO);
    attn_load_rows(&t->args->K, 0, 0, 0, t->Nk, t->K);
    attn_load_rows(&t->args->V, 0, 0, 0, t->Nk, t->V);
    for (int64_t i = 0; i < t->Nq; i++)
        t->delta[i] = dot(t->dO + i * t->d, t->O + i * t->d, t->d);
    return 1;
}

int flash_backward_trace(const AttnArgs *args, FILE *to)
{
    Trace t = {.args = args, .to = to};
    const int made = make_trace(&t);
    if (made < 1)
        return made;
    print_kept(&t);
    print_heading(&t);
    for (int64_t j = 0; j < t.Nk; j += TILE)
        for (int64_t i = 0; i < t.Nq; i += TILE)
            visit_tile(&t, i, j);
    print_end(&t);
    return 0;
}

/* --- a tile a page -----------------------------------------------------------------------------*/

static void print_tile(const Trace *t, const TraceTile *tile, int seen)
{
    fprintf(t->to, "Backward, keys outside: keys k%d to k%d, queries q%d to q%d\n\n", (int)tile->j,
            (int)(tile->j + tile->cols - 1), (int)tile->i, (int)(tile->i + tile->rows - 1));
    fprintf(t->to, "  %-22s%-22s%s\n", "   P = exp(S - lse)", "dP = dO V^T",
            "dS = P * (dP - delta)");
    for (int64_t r = 0; r < TILE; r++) {
        const int64_t pairs = seen && r < tile->rows ? tile->cols : 0;
        fprintf(t->to, "  %c%c", r < tile->rows ? 'q' : ' ',
                r < tile->rows ? '0' + (int)(tile->i + r) : ' ');
        print_floats(t->to, tile->P + r * TILE, pairs, TILE);
        fputs("    ", t->to);
        print_floats(t->to, tile->dP + r * TILE, pairs, TILE);
        fputs("    ", t->to);
        print_floats(t->to, tile->dS + r * TILE, pairs, TILE);
        fputs(!seen && r == 0 ? "nothing is visible: skipped\n" : "\n", t->to);
    }
}

/* All three gradients as they stand now: dQ beside lse and delta, dK beside dV. */
static void print_gradients(const Trace *t)
{
    const int64_t d = t->d;
    const int room = 8 * (int)d;
    fprintf(t->to, "\n       %-*s       lse   delta\n", room, "dQ, a share of every tile of keys");
    for (int64_t i = 0; i < t->Nq; i++) {
        fprintf(t->to, "  q%d ", (int)i);
        print_floats(t->to, t->dQ + i * d, d, d > 4 ? d : 4);
        fprintf(t->to, "   %7.4f %7.4f\n", (double)t->lse[i], (double)t->delta[i]);
    }
    fprintf(t->to, "\n       %-*s  dV\n", d > 2 ? room : 16, "dK");
    for (int64_t j = 0; j < t->Nk; j++) {
        fprintf(t->to, "  k%d ", (int)j);
        print_floats(t->to, t->dK + j * d, d, d > 2 ? d : 2);
        print_floats(t->to, t->dV + j * d, d, d);
        fputc('\n', t->to);
    }
    fputc('\f', t->to);
}

int flash_backward_trace_steps(const AttnArgs *args, FILE *to)
{
    Trace t = {.args = args, .to = to};
    const int made = make_trace(&t);
    if (made < 1)
        return made;
    for (int64_t j = 0; j < t.Nk; j += TILE)
        for (int64_t i = 0; i < t.Nq; i += TILE) {
            TraceTile tile;
            const int seen = compute_tile(&t, &tile, i, j);
            print_tile(&t, &tile, seen);
            print_gradients(&t);
        }
    return 0;
}
