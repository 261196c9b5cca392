/* SPDX-License-Identifier: MIT
 *
 * trace.c: the blocks of one head being visited, on one screen.
 *
 * Above, the matrix of blocks: rows are blocks of queries, columns blocks of keys, and a number
 * tells in which turn --order came by. Beside it the state fills in: lse of the last query of each
 * row of blocks, at four moments. Orders differ in between and agree at the end.
 *
 * Below, one query in full, the last one: what it knew, what the block alone says, and the sum of
 * both. The block alone is the same step from an empty state, so nothing here knows a formula that
 * the module does not.
 *
 * Interface:
 * - sliding_window_trace: head 0 of batch 0, one sequence, in float32.
 * - sliding_window_trace_steps: the same, a block a page.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/rows.h"
#include "attention/window/cpu/online_internal.h"
#include "attention/window/window_library.h"
#include "attn_pairs.h"
#include "harness/report/pages.h"
#include "harness/visits.h"

STAGE_TRACE(sliding_window);

#define MOMENTS  4 /* at which lse is shown */
#define CHANNELS 4 /* of O */

/* A block that the last query met. */
typedef struct Merge {
    int64_t turn, j;
    float lse_before, lse_block, lse;
    float O[CHANNELS];
} Merge;

typedef struct Trace {
    AttnArgs args; /* of the one head: contiguous float32 tensors that `memory` holds */
    FILE *to;
    int pages; /* one after each turn */
    int64_t bq, bkv, Tr, Tc;
    int64_t turns;              /* blocks that are not skipped */
    int64_t *visits, *turn;     /* [Tr*Tc] in order; of block (i, j), 0 = skipped */
    float *O, *lse;             /* [Nq][d], [Nq]: the state */
    float *O_block, *lse_block; /* the same, for a step from an empty state */
    float *O_offline; /* [Nq][d] of the library at once; its lse is lse_block in the end */
    float *moments;   /* [Tr][MOMENTS] */
    Merge *merges;    /* [Tc] */
    int64_t merge_count;
} Trace;

/* --- the case ----------------------------------------------------------------------------------*/

/* Head 0 of t, padded with zeros to whole blocks. */
static int copy_head(Tensor *to, const Tensor *t, int64_t padded)
{
    const int64_t N = t->shape[1], d = t->shape[3];
    float *rows = workspace_alloc((size_t)(padded * d) * sizeof *rows);
    if (!rows)
        return -1;
    memset(rows, 0, (size_t)(padded * d) * sizeof *rows);
    attn_load_rows(t, 0, 0, 0, N, rows);
    *to = (Tensor){rows, ATTN_F32, {1, N, 1, d}, {padded * d, d, d, 1}};
    return 0;
}

static void *zeros(int64_t count, size_t element)
{
    void *p = workspace_alloc((size_t)count * element);
    return p ? memset(p, 0, (size_t)count * element) : NULL;
}

static int make_trace(Trace *t, const AttnArgs *args)
{
    const int64_t Nq = args->shape.Nq, Nk = args->shape.Nk, d = args->shape.d;
    t->bq = visits_block_q() < Nq ? visits_block_q() : Nq;
    t->bkv = visits_block_kv() < Nk ? visits_block_kv() : Nk;
    t->Tr = (Nq + t->bq - 1) / t->bq;
    t->Tc = (Nk + t->bkv - 1) / t->bkv;
    t->args = *args;
    t->args.shape = (AttnShape){1, 1, 1, Nq, Nk, d};
    t->args.Q.data = t->args.K.data = t->args.V.data = NULL; /* the caller's: copies follow */
    t->visits = zeros(t->Tr * t->Tc, sizeof *t->visits);
    t->turn = zeros(t->Tr * t->Tc, sizeof *t->turn);
    t->O = zeros(Nq * d, sizeof *t->O);
    t->O_block = zeros(Nq * d, sizeof *t->O_block);
    t->O_offline = zeros(Nq * d, sizeof *t->O_offline);
    t->lse = zeros(Nq, sizeof *t->lse);
    t->lse_block = zeros(Nq, sizeof *t->lse_block);
    t->moments = zeros(t->Tr * MOMENTS, sizeof *t->moments);
    t->merges = zeros(t->Tc, sizeof *t->merges);
    if (!t->visits || !t->turn || !t->O || !t->O_block || !t->O_offline || !t->lse ||
        !t->lse_block || !t->moments || !t->merges)
        return -1;
    return copy_head(&t->args.Q, &args->Q, t->Tr * t->bq) ||
                   copy_head(&t->args.K, &args->K, t->Tc * t->bkv) ||
                   copy_head(&t->args.V, &args->V, t->Tc * t->bkv)
               ? -1
               : 0;
}

static void free_trace(Trace *t)
{
    void *const all[] = {t->args.Q.data, t->args.K.data, t->args.V.data, t->visits,
                         t->turn,        t->O,           t->O_block,     t->O_offline,
                         t->lse,         t->lse_block,   t->moments,     t->merges};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        workspace_free(all[n]);
}

/* --- the walk ----------------------------------------------------------------------------------*/

static AttnTile class_of(const Trace *t, int64_t i, int64_t j)
{
    const int64_t q = i * t->bq, k = j * t->bkv;
    const int64_t rows = t->args.shape.Nq - q < t->bq ? t->args.shape.Nq - q : t->bq;
    const int64_t cols = t->args.shape.Nk - k < t->bkv ? t->args.shape.Nk - k : t->bkv;
    const AttnTile found = attn_tile_class(t->args.rule, attn_range(t->args.positions_q, q, rows),
                                           attn_range(t->args.positions_k, k, cols));
    return found == ATTN_TILE_CLEAN && t->args.mask ? ATTN_TILE_MASKED : found;
}

static void number_blocks(Trace *t)
{
    visits_fill(t->Tr, t->Tc, t->visits);
    for (int64_t v = 0; v < t->Tr * t->Tc; v++)
        if (class_of(t, t->visits[v] / t->Tc, t->visits[v] % t->Tc) != ATTN_TILE_SKIP)
            t->turn[t->visits[v]] = ++t->turns;
}

static WindowStatus step(const Trace *t, SlidingWindowOnline *w, float *O, float *lse, int64_t i,
                         int64_t j, char error[WINDOW_ERROR])
{
    const int64_t d = t->args.shape.d, q = i * t->bq * d, k = j * t->bkv * d;
    return sliding_window_online_step(w, (const float *)t->args.Q.data + q,
                                      (const float *)t->args.K.data + k,
                                      (const float *)t->args.V.data + k, O, lse, i, j, error);
}

/* One turn. In the last row of blocks the block is asked alone first. */
static WindowStatus take_turn(Trace *t, SlidingWindowOnline *w, int64_t i, int64_t j,
                              char error[WINDOW_ERROR])
{
    const int64_t last = t->args.shape.Nq - 1, d = t->args.shape.d;
    Merge *m = i == t->Tr - 1 ? &t->merges[t->merge_count++] : NULL;
    WindowStatus status = WINDOW_OK;
    if (m) {
        *m = (Merge){.turn = t->turn[i * t->Tc + j], .j = j, .lse_before = t->lse[last]};
        memset(t->O_block + i * t->bq * d, 0, (size_t)((last + 1 - i * t->bq) * d) * sizeof(float));
        for (int64_t r = i * t->bq; r <= last; r++)
            t->lse_block[r] = -INFINITY;
        status = step(t, w, t->O_block, t->lse_block, i, j, error);
        m->lse_block = t->lse_block[last];
    }
    if (status == WINDOW_OK)
        status = step(t, w, t->O, t->lse, i, j, error);
    if (m)
        m->lse = t->lse[last];
    for (int64_t x = 0; m && x < CHANNELS && x < d; x++)
        m->O[x] = t->O[last * d + x];
    return status;
}

/* Moment n is after so many turns; the last one is after all of them. */
static int64_t moment(const Trace *t, int64_t n)
{
    return ((n + 1) * t->turns + MOMENTS - 1) / MOMENTS;
}

static int64_t last_query(const Trace *t, int64_t i)
{
    const int64_t next = (i + 1) * t->bq;
    return (next < t->args.shape.Nq ? next : t->args.shape.Nq) - 1;
}

static void print_page(const Trace *t, int64_t i, int64_t j);

static WindowStatus walk(Trace *t, SlidingWindowOnline *w, char error[WINDOW_ERROR])
{
    WindowStatus status = WINDOW_OK;
    for (int64_t r = 0; r < t->args.shape.Nq; r++)
        t->lse[r] = -INFINITY;
    for (int64_t v = 0; v < t->Tr * t->Tc && status == WINDOW_OK; v++) {
        const int64_t turn = t->turn[t->visits[v]];
        if (turn > 0)
            status = take_turn(t, w, t->visits[v] / t->Tc, t->visits[v] % t->Tc, error);
        if (turn > 0 && t->pages && status == WINDOW_OK)
            print_page(t, t->visits[v] / t->Tc, t->visits[v] % t->Tc);
        for (int64_t n = 0; turn > 0 && n < MOMENTS; n++)
            for (int64_t i = 0; turn == moment(t, n) && i < t->Tr; i++)
                t->moments[i * MOMENTS + n] = t->lse[last_query(t, i)];
    }
    return status;
}

/* --- the screen --------------------------------------------------------------------------------*/

static void print_matrix(const Trace *t)
{
    fprintf(
        t->to,
        "Blocks of %d queries x %d keys. A number: the turn in which (i, j) is visited, with ' "
        "if some\nof its pairs are hidden. A dot: nothing to see, the step returns at once.\n\n",
        (int)t->bq, (int)t->bkv);
    fprintf(t->to, "%9s%*s   lse of the row's last query, after turn\n   i   j", "", 4 * (int)t->Tc,
            "");
    for (int64_t j = 0; j < t->Tc; j++)
        fprintf(t->to, "%3d ", (int)j);
    fprintf(t->to, "    ");
    for (int64_t n = 0; n < MOMENTS; n++)
        fprintf(t->to, " %7d", (int)moment(t, n));
    for (int64_t i = 0; i < t->Tr; i++) {
        fprintf(t->to, "\n%4d    ", (int)i);
        for (int64_t j = 0; j < t->Tc; j++)
            if (t->turn[i * t->Tc + j] == 0)
                fprintf(t->to, "  . ");
            else
                fprintf(t->to, "%3d%c", (int)t->turn[i * t->Tc + j],
                        class_of(t, i, j) == ATTN_TILE_MASKED ? '\'' : ' ');
        fprintf(t->to, "    ");
        for (int64_t n = 0; n < MOMENTS; n++)
            fprintf(t->to, " %7.4f", (double)t->moments[i * MOMENTS + n]);
    }
}

static void print_floats(FILE *to, const float *x, int64_t count)
{
    for (int64_t n = 0; n < count; n++)
        fprintf(to, " %7.4f", (double)x[n] + 0.0); /* + 0.0: no "-0.0000" */
    fputc('\n', to);
}

/* The blocks done so far, lse of each row of blocks, and what this turn did to the last query. */
static void print_page(const Trace *t, int64_t i, int64_t j)
{
    const int64_t turn = t->turn[i * t->Tc + j], last = last_query(t, i), d = t->args.shape.d;
    fprintf(t->to, "Turn %d of %d: block (i, j) = (%d, %d), queries %d to %d\n\n   i   j ",
            (int)turn, (int)t->turns, (int)i, (int)j, (int)(i * t->bq), (int)last);
    for (int64_t c = 0; c < t->Tc; c++)
        fprintf(t->to, "%3d ", (int)c);
    fprintf(t->to, "   lse and O of the row's last query\n");
    for (int64_t r = 0; r < t->Tr; r++) {
        fprintf(t->to, "%4d     ", (int)r);
        for (int64_t c = 0; c < t->Tc; c++)
            if (t->turn[r * t->Tc + c] == 0)
                fprintf(t->to, "  . ");
            else if (t->turn[r * t->Tc + c] > turn)
                fprintf(t->to, "  - ");
            else
                fprintf(t->to, "%3d%c", (int)t->turn[r * t->Tc + c],
                        class_of(t, r, c) == ATTN_TILE_MASKED ? '\'' : ' ');
        fprintf(t->to, "   %7.4f", (double)t->lse[last_query(t, r)]);
        print_floats(t->to, t->O + last_query(t, r) * d,
                     t->Tc > 6 ? (d < 2 ? d : 2) : (d < CHANNELS ? d : CHANNELS));
    }
    fprintf(t->to, "\n  a number: the turn of a block that is done, ' if some of its pairs are "
                   "hidden\n  - not done yet     . nothing to see: the step returns at once\n\n");
    if (i == t->Tr - 1) {
        const Merge *m = &t->merges[t->merge_count - 1];
        fprintf(t->to,
                "  query %d:  lse so far %.4f, of the block alone %.4f\n  both: lse = ln(exp(%.4f) "
                "+ exp(%.4f)) = %.4f\n",
                (int)last, (double)m->lse_before, (double)m->lse_block, (double)m->lse_before,
                (double)m->lse_block, (double)m->lse);
    }
    fputc('\f', t->to);
}

static void print_merges(const Trace *t)
{
    const int64_t last = t->args.shape.Nq - 1, d = t->args.shape.d;
    const int64_t shown = d < CHANNELS ? d : CHANNELS;
    fprintf(t->to,
            "\n\nQuery %d, block after block: lse so far, of the block alone, of both; what share "
            "of the sum each\nof the two is; and O%s.\n\nturn   j    so far    block     both   "
            "shares           O\n",
            (int)last, d > shown ? " (its first channels)" : "");
    for (int64_t n = 0; n < t->merge_count; n++) {
        const Merge *m = &t->merges[n];
        const float c = m->lse == -INFINITY ? 0.0f : expf(m->lse_before - m->lse);
        const float c_block = m->lse == -INFINITY ? 0.0f : expf(m->lse_block - m->lse);
        fprintf(t->to, "%4d %3d  %8.4f %8.4f %8.4f   %.4f %.4f ", (int)m->turn, (int)m->j,
                (double)m->lse_before, (double)m->lse_block, (double)m->lse, (double)c,
                (double)c_block);
        print_floats(t->to, m->O, shown);
    }
    fprintf(t->to, "offline %20s %8.4f %17s", "", (double)t->lse_block[last], "");
    print_floats(t->to, t->O_offline + last * d, shown);
}

/* The same at once, and how far the two are apart in any query. */
static AttnStatus compare(Trace *t)
{
    const int64_t Nq = t->args.shape.Nq, d = t->args.shape.d;
    float lse = 0.0f, O = 0.0f;
    AttnStatus status;
    t->args.O = (Tensor){t->O_offline, ATTN_F32, {1, Nq, 1, d}, {Nq * d, d, d, 1}};
    t->args.lse = t->lse_block;
    status = sliding_window_library_cpu(&t->args);
    if (status != ATTN_OK)
        return status;
    print_merges(t);
    for (int64_t i = 0; i < Nq; i++)
        if (t->lse[i] != t->lse_block[i]) /* and not where both are -inf */
            lse = fmaxf(lse, fabsf(t->lse[i] - t->lse_block[i]));
    for (int64_t e = 0; e < Nq * d; e++)
        O = fmaxf(O, fabsf(t->O[e] - t->O_offline[e]));
    fprintf(t->to, "\nLargest difference between online and offline: lse %.1e, O %.1e.\n\n",
            (double)lse, (double)O);
    return ATTN_OK;
}

static WindowOnlineConfig config_of(const Trace *t)
{
    WindowOnlineConfig c = {.base = WINDOW_CONFIG_DEFAULT, .batch = 1};
    c.base.heads_q = c.base.heads_kv = 1;
    c.base.head_dim = t->args.shape.d;
    c.base.cap = t->args.softcap;
    if (t->args.options)
        c.base.options = *t->args.options;
    c.seqlen_q = t->args.shape.Nq;
    c.seqlen_kv = t->args.shape.Nk;
    c.block_size_q = t->bq;
    c.block_size_kv = t->bkv;
    return c;
}

/* The whole screen, or with pages = 1 a page a turn. */
static int trace(const AttnArgs *args, int pages, FILE *to)
{
    Trace t = {.to = to, .pages = pages};
    SlidingWindowOnline *w = NULL;
    char error[WINDOW_ERROR] = "";
    WindowStatus status = WINDOW_NO_MEMORY;
    if (args->positions_q.count != 1 || args->positions_k.count != 1) {
        fprintf(to, "No trace: it shows one sequence.\n\n");
        return 0;
    }
    if (make_trace(&t, args) == 0) {
        const WindowOnlineConfig config = config_of(&t);
        const WindowPlace place = {
            args->rule, args->positions_q.segments->position - args->positions_k.segments->position,
            args->scale, args->mask, args->shape.Nk};
        status = window_online_create_at(&w, &config, &place, error);
    }
    if (status == WINDOW_OK) {
        number_blocks(&t);
        status = walk(&t, w, error);
    }
    if (status == WINDOW_OK && !pages) {
        print_matrix(&t);
        status = compare(&t) == ATTN_OK ? WINDOW_OK : WINDOW_NO_MEMORY;
    } else if (status != WINDOW_OK && status != WINDOW_NO_MEMORY) { /* clipping, dropout */
        fprintf(to, "No trace: %s.\n\n", error);
        status = WINDOW_OK;
    }
    sliding_window_online_destroy(w);
    free_trace(&t);
    return status == WINDOW_OK ? 0 : -1;
}

int sliding_window_trace(const AttnArgs *args, FILE *to)
{
    return trace(args, 0, to);
}

int sliding_window_trace_steps(const AttnArgs *args, FILE *to)
{
    return trace(args, 1, to);
}
