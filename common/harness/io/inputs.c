/* SPDX-License-Identifier: MIT
 *
 * inputs.c: the inputs of one case, in guarded storage with the memory layout of --strides and
 * --pack: from .npy files, of which every mismatch is refused with one sentence that names the
 * file, or filled from a seed.
 *
 * Interface: inputs.h.
 */
#include "harness/io/inputs.h"

#include "attn_config.h"
#include "attn_pairs.h"
#include "dtype_f64.h"
#include "e4m3.h"
#include "harness/bench/bench.h"
#include "harness/io/npy.h"
#include "problem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- a file ------------------------------------------------------------------------------------*/

/* A tensor in a file, in logical order [B][N][H][d] whatever --tensor-layout and --pack make of
 * it: channel x of (b, n, h) is element first + b*stride[0] + n*stride[1] + h*stride[2] + x. */
typedef struct FileTensor {
    const NpyArray *file; /* NULL: no such file */
    const char *flag;     /* by which the user asked for it */
    int64_t first, shape[4], stride[3];
} FileTensor;

typedef struct ProblemFiles {
    FileTensor Q, K, V, dO;
    NpyArray q, k, v, d_o, mask; /* data NULL: no such file */
    NpyArray cu_q, cu_kv;        /* [n+1] */
    NpyArray wq, wk;
} ProblemFiles;

typedef enum ProblemTypes { TYPES_REAL, TYPES_MASK, TYPES_INTEGER } ProblemTypes;

/* The dimensions of a file, in the order in which it has them. */
static const char *dimensions(CliTensors tensors)
{
    return tensors == CLI_THD    ? "3: [tokens][H][d]"
           : tensors == CLI_SBHD ? "4: [N][B][H][d]"
                                 : "4: [B][N][H][d]";
}

/* npy_read for a flag that takes these types: EXIT_OK, EXIT_USAGE or, when memory is short,
 * EXIT_RUNTIME (sentence printed). */
static int read_file(const char *flag, ProblemTypes types, const char *path, NpyArray *a)
{
    static const struct {
        unsigned bits;
        const char *words;
    } accepted[] = {[TYPES_REAL] = {1u << NPY_F2 | 1u << NPY_F4 | 1u << NPY_F8, "f2, f4 or f8"},
                    [TYPES_MASK] = {1u << NPY_U1 | 1u << NPY_BOOL, "u1 or bool"},
                    [TYPES_INTEGER] = {1u << NPY_I4 | 1u << NPY_I8, "i4 or i8"}};
    const char *words = accepted[types].words;
    char error[NPY_ERROR_SIZE];
    const int failed = npy_read(path, a, error);
    if (failed == NPY_NO_MEMORY) {
        cli_refuse("%s: %s", flag, error);
        return EXIT_RUNTIME;
    }
    if (failed)
        return cli_refuse("%s (%s takes a .npy file of %s)", error, flag, words);
    if (!(accepted[types].bits >> a->type & 1u))
        return cli_refuse("%s: found type %s, accepted is %s", path, npy_type_name(a->type), words);
    return EXIT_OK;
}

/* --- several sequences in a row, and weights ---------------------------------------------------*/

/* cu_seqlens is the running sum of the lengths: sequence t has the tokens cu[t] .. cu[t+1]-1. Each
 * becomes one segment of the position map, with positions of its own; tokens of different sequences
 * never see each other. */

/* attn_position walks the segments one by one. */
#define MAX_SEQUENCES 4096

/* total: the tokens that there are; 0: that is what the file tells. */
static int open_lengths(const char *flag, const char *path, NpyArray *a, int64_t *total,
                        const char *of)
{
    const int status = read_file(flag, TYPES_INTEGER, path, a);
    if (status != EXIT_OK)
        return status;
    if (a->ndim != 1)
        return cli_refuse("%s: found %d dimensions, accepted is one: [n+1]", path, a->ndim);
    if (a->count < 2 || a->count > MAX_SEQUENCES + 1)
        return cli_refuse("%s: found %" PRId64 " numbers, accepted are 2 to %d", path, a->count,
                          MAX_SEQUENCES + 1);
    if (npy_value(a, 0) != 0.0)
        return cli_refuse("%s: found %.15g at its start, accepted is 0", path, npy_value(a, 0));
    for (int64_t t = 1; t < a->count; t++)
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

/* s->Nq and s->Nk are the tokens of the files, or 0: then they come from cu_seqlens. */
static int sequences_open(ProblemFiles *f, const CliCase *c, AttnShape *s)
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
    const int status = read_file(flag, TYPES_REAL, path, a);
    if (status != EXIT_OK)
        return status;
    if (a->ndim != 1 || a->count != heads * d)
        return cli_refuse("%s: found %" PRId64 " numbers in %d dimensions, accepted are %" PRId64
                          " (%" PRId64 " heads of %" PRId64 " channels) in one",
                          path, a->count, a->ndim, heads * d, heads, d);
    return EXIT_OK;
}

static int weights_open(ProblemFiles *f, const CliCase *c, const AttnShape *s)
{
    int status = EXIT_OK;
    if (c->wq_file)
        status = open_weights("--wq", c->wq_file, &f->wq, s->H, s->d);
    if (status == EXIT_OK && c->wk_file)
        status = open_weights("--wk", c->wk_file, &f->wk, s->Hkv, s->d);
    return status;
}

/* One segment for each sequence and side, or one a side without cu_seqlens. EXIT_RUNTIME: memory */
static int sequences_make(Inputs *p, const CliCase *c, const ProblemFiles *f)
{
    const AttnShape *s = &p->args.shape;
    const int64_t count = f->cu_q.data ? f->cu_q.count - 1 : 1;
    AttnSegment *q = calloc((size_t)(2 * count), sizeof *q), *k = q + count;
    if (!q)
        return EXIT_RUNTIME;
    for (int64_t t = 0; t < count; t++) {
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

/* --- the files of a case -----------------------------------------------------------------------*/

/* flag: by which the user asked for this file. */
static int open_tensor(const char *flag, const char *path, CliTensors tensors, NpyArray *a,
                       FileTensor *view)
{
    const int ndim = tensors == CLI_THD ? 3 : 4, sbhd = tensors == CLI_SBHD;
    const int status = read_file(flag, TYPES_REAL, path, a);
    if (status != EXIT_OK)
        return status;
    if (a->ndim != ndim)
        return cli_refuse("%s: found %d dimensions, accepted are %s", path, a->ndim,
                          dimensions(tensors));
    for (int t = 0; t < ndim; t++)
        if (a->shape[t] < 1)
            return cli_refuse("%s: found dimension %d of size %" PRId64 ", accepted is 1 or more",
                              path, t, a->shape[t]);
    view->file = a;
    view->flag = flag;
    view->first = 0;
    view->shape[0] = ndim == 3 ? 1 : a->shape[sbhd];
    view->shape[1] = ndim == 3 ? a->shape[0] : a->shape[!sbhd];
    view->shape[2] = a->shape[ndim - 2];
    view->shape[3] = a->shape[ndim - 1];
    view->stride[2] = view->shape[3];
    view->stride[1] = view->shape[2] * view->shape[3] * (sbhd ? view->shape[0] : 1);
    view->stride[0] = view->shape[2] * view->shape[3] * (sbhd ? 1 : view->shape[1]);
    return EXIT_OK;
}

/* Heads first .. first+count-1 of a tensor. */
static FileTensor file_heads(FileTensor t, int64_t first, int64_t count)
{
    t.first += first * t.stride[2];
    t.shape[2] = count;
    return t;
}

/* "(2, 5, 4, 8)" in the order of the file */
static const char *shape_text(char text[128], const int64_t shape[4], CliTensors tensors)
{
    const int sbhd = tensors == CLI_SBHD;
    if (tensors == CLI_THD)
        snprintf(text, 128, "(%" PRId64 ", %" PRId64 ", %" PRId64 ")", shape[1], shape[2],
                 shape[3]);
    else
        snprintf(text, 128, "(%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ")", shape[sbhd],
                 shape[!sbhd], shape[2], shape[3]);
    return text;
}

/* A file whose shape is known already from others. */
static int same_shape(const char *path, const FileTensor *t, const int64_t want[4],
                      CliTensors tensors)
{
    char found[128], accepted[128];
    if (memcmp(t->shape, want, 4 * sizeof *want) == 0)
        return EXIT_OK;
    return cli_refuse("%s: found shape %s, accepted is %s to go with the other tensors", path,
                      shape_text(found, t->shape, tensors), shape_text(accepted, want, tensors));
}

static int open_mask(const char *path, NpyArray *a, const AttnShape *s)
{
    const int status = read_file("--mask-file", TYPES_MASK, path, a);
    if (status != EXIT_OK)
        return status;
    if (a->ndim != 2 || a->shape[0] != s->Nq || a->shape[1] != s->Nk)
        return cli_refuse("%s: found %d dimensions (%" PRId64 ", %" PRId64
                          " ...), accepted is shape (%" PRId64 ", %" PRId64 ")",
                          path, a->ndim, a->ndim > 0 ? a->shape[0] : 0,
                          a->ndim > 1 ? a->shape[1] : 0, s->Nq, s->Nk);
    return EXIT_OK;
}

/* Sizes come from the files; a flag that says something else is an error. */
static int agree(const CliCase *c, const AttnShape *s, const char *q, const char *k)
{
    const struct {
        const char *flag;
        int64_t asked, found;
        const char *file;
    } sizes[] = {{"--batch", c->B, s->B, q},    {"--heads", c->H, s->H, q},
                 {"--seq-q", c->Nq, s->Nq, q},  {"--seq-kv", c->Nk, s->Nk, k},
                 {"--head-dim", c->d, s->d, q}, {"--kv-heads", c->Hkv, s->Hkv, k}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].asked && sizes[i].asked != sizes[i].found)
            return cli_refuse("%s%s: found %" PRId64 ", but %s has %" PRId64
                              ": accepted is that, or no flag",
                              i == 2 && c->Nq == c->Nk ? "--seq or " : "", sizes[i].flag,
                              sizes[i].asked, sizes[i].file, sizes[i].found);
    return EXIT_OK;
}

/* Several tensors in one file: each gets its heads. */
static int unpack(ProblemFiles *f, const CliCase *c, const char *const path[3])
{
    FileTensor all = c->pack == CLI_QKV ? f->Q : f->K;
    const int64_t heads = all.shape[2], H = c->pack == CLI_QKV ? c->H : 0;
    const int64_t Hkv = c->pack == CLI_QKV ? c->Hkv : heads / 2;
    if (c->pack == CLI_QKV && heads != H + 2 * Hkv)
        return cli_refuse("%s: found %" PRId64 " heads, accepted are %" PRId64 ": %" PRId64
                          " of Q (--heads), %" PRId64 " of K and of V (--kv-heads)",
                          path[0], heads, H + 2 * Hkv, H, Hkv);
    if (c->pack == CLI_Q_KV && heads % 2 != 0)
        return cli_refuse("%s: found %" PRId64 " heads, accepted is an even number: as many of K "
                          "as of V",
                          path[1], heads);
    if (c->pack == CLI_QKV)
        f->Q = file_heads(all, 0, H);
    f->K = file_heads(all, H, Hkv);
    f->V = file_heads(all, H + Hkv, Hkv);
    return EXIT_OK;
}

static int open_qkv(ProblemFiles *f, const CliCase *c, AttnShape *s, const char *const path[3])
{
    static const char *const flags[] = {"--q", "--k", "--v"};
    const CliTensors tensors = c->bundled ? CLI_BSHD : c->tensors;
    NpyArray *const arrays[] = {&f->q, &f->k, &f->v};
    FileTensor *const views[] = {&f->Q, &f->K, &f->V};
    int64_t want[4];
    int status = EXIT_OK;
    for (int t = 0; t < 3 && status == EXIT_OK; t++)
        if (path[t])
            status = open_tensor(c->bundled ? "--bundled" : flags[t], path[t], tensors, arrays[t],
                                 views[t]);
    if (status == EXIT_OK && c->pack != CLI_Q_K_V && !c->bundled)
        status = unpack(f, c, path);
    if (status != EXIT_OK)
        return status;
    memcpy(want, f->K.shape, sizeof want);
    want[0] = f->Q.shape[0];
    want[3] = f->Q.shape[3];
    status = same_shape(path[1], &f->K, want, tensors);
    if (status == EXIT_OK)
        status = same_shape(path[2], &f->V, want, tensors);
    if (status != EXIT_OK)
        return status;
    *s = (AttnShape){f->Q.shape[0], f->Q.shape[2], f->K.shape[2],
                     f->Q.shape[1], f->K.shape[1], f->Q.shape[3]};
    if (s->H % s->Hkv != 0)
        return cli_refuse("%s: found %" PRId64 " heads, accepted is a divisor of the %" PRId64
                          " heads of %s",
                          path[1] ? path[1] : "--kv-heads", s->Hkv, s->H, path[0]);
    return agree(c, s, path[0], path[1] ? path[1] : path[0]);
}

static void files_close(ProblemFiles *f)
{
    NpyArray *const all[] = {&f->q,    &f->k,     &f->v,  &f->d_o, &f->mask,
                             &f->cu_q, &f->cu_kv, &f->wq, &f->wk};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        npy_free(all[i]);
}

/* Q, K, V, dO and the mask, as far as the case names files. Without files shape comes from the
 * flags. */
static int files_open(ProblemFiles *f, const CliCase *c, AttnShape *s)
{
    char bundled[4][4096];
    const char *path[4] = {c->q_file, c->k_file, c->v_file, c->do_file};
    int64_t want[4];
    int status = EXIT_OK;
    memset(f, 0, sizeof *f);
    *s = (AttnShape){c->B, c->H, c->Hkv, c->Nq, c->Nk, c->d};
    if (c->bundled) {
        const char *folder = getenv("ATTN_DATA_DIR");
        const int causal = c->bundled == CLI_BUNDLED_CAUSAL;
        for (int t = 0; t < (causal && !c->do_file ? 4 : 3); t++) { /* a user's own --do wins */
            static const char *const names[] = {"q", "k", "v", "do"};
            snprintf(bundled[t], sizeof bundled[t], "%s/%s_%s.npy", folder ? folder : ATTN_DATA_DIR,
                     causal ? "causal" : "encoder", names[t]);
            path[t] = bundled[t];
        }
    }
    if (path[0])
        status = open_qkv(f, c, s, path);
    if (status == EXIT_OK)
        status = sequences_open(f, c, s);
    if (status == EXIT_OK)
        status = cli_check_shape(c, s);
    want[0] = s->B;
    want[1] = s->Nq;
    want[2] = s->H;
    want[3] = s->d;
    if (status == EXIT_OK && c->backward && path[3]) {
        const CliTensors tensors = c->do_file ? c->tensors : CLI_BSHD;
        status = open_tensor(c->do_file ? "--do" : "--bundled", path[3], tensors, &f->d_o, &f->dO);
        if (status == EXIT_OK)
            status = same_shape(path[3], &f->dO, want, tensors);
    }
    if (status == EXIT_OK)
        status = weights_open(f, c, s);
    if (status == EXIT_OK && c->mask_file)
        status = open_mask(c->mask_file, &f->mask, s);
    if (status != EXIT_OK)
        files_close(f);
    return status;
}

/* A file may hold numbers that the dtype cannot: 1e300 in f8, 1e5 for f16. They become infinite,
 * and the results show it. One note for each program is enough: many cases may read one file. */
static void note_overflow(const FileTensor *from, const Tensor *t, int64_t count, double first)
{
    static int noted;
    if (count == 0 || noted++)
        return;
    fprintf(stderr, "note: %s: %" PRId64 " %s too large for %s (the first is %g): infinite there\n",
            from->flag, count, count == 1 ? "value is" : "values are", dtype_name(t->dtype), first);
}

static void files_fill(const FileTensor *from, const Tensor *t)
{
    int64_t overflows = 0;
    double first = 0.0;
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t n = 0; n < t->shape[1]; n++)
            for (int64_t h = 0; h < t->shape[2]; h++) {
                const int64_t to = tensor_offset(t, b, n, h);
                const int64_t at =
                    from->first + b * from->stride[0] + n * from->stride[1] + h * from->stride[2];
                for (int64_t x = 0; x < t->shape[3]; x++) {
                    const double value = npy_value(from->file, at + x);
                    tensor_set(t, to + x, dtype_round_f64(t->dtype, value));
                    if (isfinite(value) && !isfinite(tensor_get(t, to + x)) && overflows++ == 0)
                        first = value;
                }
            }
    note_overflow(from, t, overflows, first);
}

int inputs_read_result(const char *path, const CliCase *c, const Tensor *to)
{
    NpyArray a = {.data = NULL};
    FileTensor file;
    int status = open_tensor("--judge", path, c->tensors, &a, &file);
    if (status == EXIT_OK)
        status = same_shape(path, &file, to->shape, c->tensors);
    if (status == EXIT_OK)
        files_fill(&file, to);
    npy_free(&a);
    return status;
}

/* --- the case ----------------------------------------------------------------------------------*/

#define HASH_FACTOR UINT64_C(0xD6E8FEB86659FD93)

/* Bytes of the mask end at a guard page like any tensor: a variant that reads past them faults. */
static int make_mask(Inputs *p, const NpyArray *file, uint64_t seed)
{
    const int64_t Nq = p->args.shape.Nq, Nk = p->args.shape.Nk, count = Nq * Nk;
    uint8_t *mask;
    if (tensor_new(&p->mask, ATTN_BF16, LAYOUT_BSHD, 1, 1, 1, (count + 1) / 2) != 0)
        return EXIT_RUNTIME;
    mask = p->mask.base + p->mask.bytes - count;
    if (file->data)
        for (int64_t i = 0; i < count; i++)
            mask[i] = npy_value(file, i) != 0.0;
    else
        fill_mask(mask, Nq, Nk, seed);
    p->args.mask = mask;
    return EXIT_OK;
}

/* The values are the same whether tensors are packed or not: they depend on logical indexes. */
static void fill_view(const Tensor *to, const CliCase *c, const FileTensor *file, FillTensor which)
{
    if (file->file)
        files_fill(file, to);
    else
        fill_tensor(to, which, c->seed, c->dist);
}

int tensors_new(Storage *const storage[3], Tensor *const view[3], const CliCase *c,
                const AttnShape *s)
{
    const int64_t heads[3] = {s->H, s->Hkv, s->Hkv}, N[3] = {s->Nq, s->Nk, s->Nk};
    /* the storage that each tensor lies in */
    const int home[3] = {0, c->pack == CLI_QKV ? 0 : 1,
                         c->pack == CLI_QKV    ? 0
                         : c->pack == CLI_Q_KV ? 1
                                               : 2};
    int64_t used[3] = {0, 0, 0};
    for (int t = 0; t < 3; t++) {
        int64_t all = heads[t];
        if (home[t] != t)
            continue;
        for (int other = t + 1; other < 3; other++)
            all += home[other] == t ? heads[other] : 0;
        if (tensor_new(storage[t], c->dtype, c->layout, s->B, N[t], all, s->d) != 0)
            return -1;
    }
    for (int t = 0; t < 3; t++) {
        *view[t] = tensor_heads(&storage[home[t]]->view, used[home[t]], heads[t]);
        used[home[t]] += heads[t];
    }
    return 0;
}

static int make_tensors(Inputs *p, const CliCase *c, const ProblemFiles *f)
{
    AttnArgs *a = &p->args;
    const AttnShape *s = &a->shape;
    Storage *const storage[] = {&p->Q, &p->K, &p->V};
    Tensor *const view[] = {&a->Q, &a->K, &a->V};
    if (tensors_new(storage, view, c, s) != 0)
        return EXIT_RUNTIME;
    fill_view(&a->Q, c, &f->Q, FILL_Q);
    fill_view(&a->K, c, &f->K, FILL_K);
    fill_view(&a->V, c, &f->V, FILL_V);
    for (int t = 0; t < 3 && c->dtype == ATTN_E4M3; t++)
        tensor_e4m3(view[t], E4M3_BLOCK, NULL, NULL);
    if (!c->backward)
        return EXIT_OK;
    if (tensor_new(&p->dO, c->dtype, c->layout, s->B, s->Nq, s->H, s->d) != 0)
        return EXIT_RUNTIME;
    a->dO = p->dO.view;
    fill_view(&a->dO, c, &f->dO, FILL_DO);
    return EXIT_OK;
}

/* Weights of the normalisation, [heads*d]: around 1, so that leaving them out shows. */
static int make_weights(Storage *to, int64_t heads, int64_t d, const NpyArray *file,
                        FillTensor which, uint64_t seed)
{
    float *w;
    if (tensor_new(to, ATTN_F32, LAYOUT_BSHD, 1, 1, heads, d) != 0)
        return EXIT_RUNTIME;
    w = to->view.data;
    for (int64_t i = 0; i < heads * d; i++)
        w[i] = file->data ? (float)npy_value(file, i)
                          : 1.0f + fill_value(seed, (int)which, (uint64_t)i, FILL_NORMAL) / 8.0f;
    return EXIT_OK;
}

/* What only stage 05 knows; args.options stays NULL where nothing of it is asked for. */
static int make_options(Inputs *p, const CliCase *c, const ProblemFiles *f)
{
    const AttnShape *s = &p->args.shape;
    AttnOptions *o = &p->options;
    int status = EXIT_OK;
    o->temperature = c->temperature;
    o->clip_low = c->clip_low;
    o->clip_high = c->clip_high;
    o->dropout = c->dropout;
    o->dropout_seed = c->seed;
    o->norm_group = c->norm_group;
    o->norm_eps = 1e-5f;
    if (c->temperature != 1.0f || c->clip_low != 0.0f || c->clip_high != 1.0f ||
        c->dropout != 0.0f || c->norm_group)
        p->args.options = o;
    if (c->norm_group) {
        status = make_weights(&p->wq, s->H, s->d, &f->wq, FILL_WQ, c->seed);
        if (status == EXIT_OK)
            status = make_weights(&p->wk, s->Hkv, s->d, &f->wk, FILL_WK, c->seed);
        o->wq = p->wq.view.data;
        o->wk = p->wk.view.data;
    }
    return status;
}

int inputs_make(Inputs *p, const CliCase *c)
{
    static uint64_t serial;
    AttnArgs *a = &p->args;
    AttnShape *s = &a->shape;
    ProblemFiles f;
    int status;
    memset(p, 0, sizeof *p);
    status = cli_check_device(c);
    if (status == EXIT_OK)
        status = files_open(&f, c, s);
    if (status != EXIT_OK)
        return status;
    p->serial = ++serial;
    p->mask_type = c->mask;
    p->layout = c->layout;
    p->backward = c->backward;
    a->scale = c->scale != 0.0f ? c->scale : (float)(1.0 / sqrt((double)s->d));
    a->softcap = c->softcap;
    a->threads = c->threads;
    bench_set_threads(c->threads); /* the last case may have left another number behind */
    status = sequences_make(p, c, &f);
    if (status == EXIT_OK)
        status = make_tensors(p, c, &f);
    if (status == EXIT_OK)
        status = make_options(p, c, &f);
    if (status == EXIT_OK && c->mask == ATTN_MASK_FULL)
        status = make_mask(p, &f.mask, c->seed);
    files_close(&f);
    if (status != EXIT_OK) {
        inputs_free(p);
        cli_refuse("out of memory: the inputs of this case do not fit into what is free now");
    }
    return status;
}

void inputs_storages(const Inputs *p, const Storage *all[INPUT_STORAGES])
{
    const Storage *const in_order[INPUT_STORAGES] = {&p->Q,    &p->K,  &p->V, &p->dO,
                                                     &p->mask, &p->wq, &p->wk};
    memcpy(all, in_order, sizeof in_order);
}

void inputs_free(Inputs *p)
{
    const Storage *all[INPUT_STORAGES];
    inputs_storages(p, all);
    for (int i = 0; i < INPUT_STORAGES; i++)
        tensor_free((Storage *)all[i]);
    free(p->segments);
    p->segments = NULL;
}

uint64_t inputs_fingerprint(const Inputs *p)
{
    const Storage *all[INPUT_STORAGES];
    const unsigned char *options = (const unsigned char *)&p->options;
    const int64_t segments = p->args.positions_q.count + p->args.positions_k.count;
    uint64_t hash = 0;
    inputs_storages(p, all);
    for (size_t i = 0; i < INPUT_STORAGES; i++)
        if (all[i]->mapping)
            hash = hash * HASH_FACTOR + tensor_fingerprint(all[i]);
    for (size_t i = 0; i < sizeof p->options; i++)
        hash = hash * HASH_FACTOR + options[i];
    for (int64_t t = 0; t < segments; t++) {
        const AttnSegment *g = &p->segments[t];
        const int64_t words[] = {g->first, g->length, g->sequence, g->position, g->stride};
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            hash = hash * HASH_FACTOR + (uint64_t)words[i];
    }
    return hash;
}
