/* SPDX-License-Identifier: MIT
 *
 * inputs_files.c: inputs from .npy files. Every mismatch is refused with one sentence that names
 * the file. See inputs_internal.h.
 */
#include "harness/io/inputs_internal.h"

#include "attn_config.h"
#include "dtype_f64.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The dimensions of a file, in the order in which it has them. */
static const char *dimensions(CliTensors tensors)
{
    return tensors == CLI_THD    ? "3: [tokens][H][d]"
           : tensors == CLI_SBHD ? "4: [N][B][H][d]"
                                 : "4: [B][N][H][d]";
}

int inputs_read(const char *flag, ProblemTypes types, const char *path, NpyArray *a)
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

/* flag: by which the user asked for this file. */
static int open_tensor(const char *flag, const char *path, CliTensors tensors, NpyArray *a,
                       FileTensor *view)
{
    const int ndim = tensors == CLI_THD ? 3 : 4, sbhd = tensors == CLI_SBHD;
    int t;
    const int status = inputs_read(flag, TYPES_REAL, path, a);
    if (status != EXIT_OK)
        return status;
    if (a->ndim != ndim)
        return cli_refuse("%s: found %d dimensions, accepted are %s", path, a->ndim,
                          dimensions(tensors));
    for (t = 0; t < ndim; t++)
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
    const int status = inputs_read("--mask-file", TYPES_MASK, path, a);
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
    size_t i;
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++)
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
    int t, status = EXIT_OK;
    for (t = 0; t < 3 && status == EXIT_OK; t++)
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

int files_open(ProblemFiles *f, const CliCase *c, AttnShape *s)
{
    char bundled[4][4096];
    const char *path[4] = {c->q_file, c->k_file, c->v_file, c->do_file};
    int64_t want[4];
    int t, status = EXIT_OK;
    memset(f, 0, sizeof *f);
    *s = (AttnShape){c->B, c->H, c->Hkv, c->Nq, c->Nk, c->d};
    if (c->bundled) {
        const char *folder = getenv("ATTN_DATA_DIR");
        const int causal = c->bundled == CLI_BUNDLED_CAUSAL;
        for (t = 0; t < (causal && !c->do_file ? 4 : 3); t++) { /* a user's own --do wins */
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

void files_fill(const FileTensor *from, const Tensor *t)
{
    int64_t b, n, h, x, overflows = 0;
    double first = 0.0;
    for (b = 0; b < t->shape[0]; b++)
        for (n = 0; n < t->shape[1]; n++)
            for (h = 0; h < t->shape[2]; h++) {
                const int64_t to = tensor_offset(t, b, n, h);
                const int64_t at =
                    from->first + b * from->stride[0] + n * from->stride[1] + h * from->stride[2];
                for (x = 0; x < t->shape[3]; x++) {
                    const double value = npy_value(from->file, at + x);
                    tensor_set(t, to + x, dtype_round_f64(t->dtype, value));
                    if (isfinite(value) && !isfinite(tensor_get(t, to + x)) && overflows++ == 0)
                        first = value;
                }
            }
    note_overflow(from, t, overflows, first);
}

void files_close(ProblemFiles *f)
{
    NpyArray *const all[] = {&f->q,    &f->k,     &f->v,  &f->d_o, &f->mask,
                             &f->cu_q, &f->cu_kv, &f->wq, &f->wk};
    size_t i;
    for (i = 0; i < sizeof all / sizeof *all; i++)
        npy_free(all[i]);
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
