/* SPDX-License-Identifier: MIT
 *
 * inputs_sequences.c: several sequences in a row (--cu-seqlens-*), and the weights of --qk-norm.
 *
 * cu_seqlens is the running sum of the lengths: sequence t has the tokens cu[t] .. cu[t+1]-1. Each
 * becomes one segment of the position map, with positions of its own; tokens of different sequences
 * never see each other.
 *
 * Interface: see inputs_internal.h.
 */
#include "attn_pairs.h"
#include "harness/io/inputs_internal.h"

#include <inttypes.h>
#include <stdlib.h>

/* attn_position walks the segments one by one. */
#define MAX_SEQUENCES 4096

/* total: the tokens that there are; 0: that is what the file tells. */
static int open_lengths(const char *flag, const char *path, NpyArray *a, int64_t *total,
                        const char *of)
{
    int64_t t;
    const int status = inputs_read(flag, TYPES_INTEGER, path, a);
    if (status != EXIT_OK)
        return status;
    if (a->ndim != 1)
        return cli_refuse("%s: found %d dimensions, accepted is one: [n+1]", path, a->ndim);
    if (a->count < 2 || a->count > MAX_SEQUENCES + 1)
        return cli_refuse("%s: found %" PRId64 " numbers, accepted are 2 to %d", path, a->count,
                          MAX_SEQUENCES + 1);
    if (npy_value(a, 0) != 0.0)
        return cli_refuse("%s: found %.15g at its start, accepted is 0", path, npy_value(a, 0));
    for (t = 1; t < a->count; t++)
        if (npy_value(a, t) < npy_value(a, t - 1))
            return cli_refuse("%s: found %.15g behind %.15g, accepted are numbers that never fall",
                              path, npy_value(a, t), npy_value(a, t - 1));
    if (*total && npy_value(a, a->count - 1) != (double)*total)
        return cli_refuse("%s: found %.15g at its end, accepted is %" PRId64 ", the tokens of %s",
                          path, npy_value(a, a->count - 1), *total, of);
    if (npy_value(a, a->count - 1) < 1.0 || npy_value(a, a->count - 1) > 0x1p40)
        return cli_refuse("%s: found %.15g at its end, accepted are 1 to 2^40 tokens", path,
                          npy_value(a, a->count - 1));
    *total = (int64_t)npy_value(a, a->count - 1);
    return EXIT_OK;
}

int sequences_open(ProblemFiles *f, const CliCase *c, AttnShape *s)
{
    const int files = c->q_file != NULL;
    int status;
    if (!c->cu_q_file)
        return EXIT_OK;
    status = open_lengths("--cu-seqlens-q", c->cu_q_file, &f->cu_q, &s->Nq,
                          files ? c->q_file : "--seq-q");
    if (status == EXIT_OK)
        status = open_lengths("--cu-seqlens-kv", c->cu_kv_file, &f->cu_kv, &s->Nk,
                              !files      ? "--seq-kv"
                              : c->k_file ? c->k_file
                                          : c->q_file);
    if (status == EXIT_OK && f->cu_q.count != f->cu_kv.count)
        return cli_refuse("%s: found %" PRId64 " sequences, accepted are the %" PRId64 " of %s",
                          c->cu_kv_file, f->cu_kv.count - 1, f->cu_q.count - 1, c->cu_q_file);
    return status;
}

static int open_weights(const char *flag, const char *path, NpyArray *a, int64_t heads, int64_t d)
{
    const int status = inputs_read(flag, TYPES_REAL, path, a);
    if (status != EXIT_OK)
        return status;
    if (a->ndim != 1 || a->count != heads * d)
        return cli_refuse("%s: found %" PRId64 " numbers in %d dimensions, accepted are %" PRId64
                          " (%" PRId64 " heads of %" PRId64 " channels) in one",
                          path, a->count, a->ndim, heads * d, heads, d);
    return EXIT_OK;
}

int weights_open(ProblemFiles *f, const CliCase *c, const AttnShape *s)
{
    int status = EXIT_OK;
    if (c->wq_file)
        status = open_weights("--wq", c->wq_file, &f->wq, s->H, s->d);
    if (status == EXIT_OK && c->wk_file)
        status = open_weights("--wk", c->wk_file, &f->wk, s->Hkv, s->d);
    return status;
}

int sequences_make(Inputs *p, const CliCase *c, const ProblemFiles *f)
{
    const AttnShape *s = &p->args.shape;
    const int64_t count = f->cu_q.data ? f->cu_q.count - 1 : 1;
    AttnSegment *q = calloc((size_t)(2 * count), sizeof *q), *k = q + count;
    int64_t t;
    if (!q)
        return EXIT_RUNTIME;
    for (t = 0; t < count; t++) {
        q[t] = (AttnSegment){0, s->Nq, t, 0, 1};
        k[t] = (AttnSegment){0, s->Nk, t, 0, 1};
        if (f->cu_q.data) {
            q[t].first = (int64_t)npy_value(&f->cu_q, t);
            q[t].length = (int64_t)npy_value(&f->cu_q, t + 1) - q[t].first;
            k[t].first = (int64_t)npy_value(&f->cu_kv, t);
            k[t].length = (int64_t)npy_value(&f->cu_kv, t + 1) - k[t].first;
        }
        /* Lower-right alignment shifts the queries so that the last one stands at the position of
         * the last key: of its own sequence. */
        if (c->mask != ATTN_MASK_CAUSAL_UPPER_LEFT)
            q[t].position = k[t].length - q[t].length;
    }
    p->segments = q;
    p->args.positions_q = attn_positions(q, count);
    p->args.positions_k = attn_positions(k, count);
    p->args.rule = (AttnRule){c->window_left, c->window_right};
    return EXIT_OK;
}
