/* SPDX-License-Identifier: MIT
 *
 * problem_files.c: inputs from .npy files. Every mismatch is refused with one sentence that names
 * the file. See problem_internal.h.
 */
#include "problem_internal.h"

#include "attn_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* flag: by which the user asked for this file. */
static int open_tensor(const char *flag, const char *path, NpyArray *a)
{
    char error[NPY_ERROR_SIZE];
    int t;
    if (npy_read(path, a, error) != 0)
        return cli_refuse("%s (%s takes a .npy file of f2, f4 or f8)", error, flag);
    if (a->type != NPY_F2 && a->type != NPY_F4 && a->type != NPY_F8)
        return cli_refuse("%s: found type %s, accepted is f2, f4 or f8", path,
                          npy_type_name(a->type));
    if (a->ndim != 4)
        return cli_refuse("%s: found %d dimensions, accepted are 4: [B][N][H][d]", path, a->ndim);
    for (t = 0; t < 4; t++)
        if (a->shape[t] < 1)
            return cli_refuse("%s: found dimension %d of size %" PRId64 ", accepted is 1 or more",
                              path, t, a->shape[t]);
    return EXIT_OK;
}

/* A file whose shape is known already from others. */
static int same_shape(const char *path, const NpyArray *a, const int64_t want[4])
{
    if (memcmp(a->shape, want, 4 * sizeof *want) == 0)
        return EXIT_OK;
    return cli_refuse("%s: found shape (%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                      "), accepted is (%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                      ") to go with the other tensors",
                      path, a->shape[0], a->shape[1], a->shape[2], a->shape[3], want[0], want[1],
                      want[2], want[3]);
}

static int open_mask(const char *path, NpyArray *a, const AttnShape *s)
{
    char error[NPY_ERROR_SIZE];
    if (npy_read(path, a, error) != 0)
        return cli_refuse("%s (--mask-file takes a .npy file of u1 or bool)", error);
    if (a->type != NPY_U1 && a->type != NPY_BOOL)
        return cli_refuse("%s: found type %s, accepted is u1 or bool", path,
                          npy_type_name(a->type));
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

static int open_qkv(ProblemFiles *f, const CliCase *c, AttnShape *s, const char *const path[3])
{
    int64_t want[4];
    int status = open_tensor(c->bundled ? "--bundled" : "--q", path[0], &f->Q);
    if (status == EXIT_OK)
        status = open_tensor(c->bundled ? "--bundled" : "--k", path[1], &f->K);
    if (status == EXIT_OK)
        status = open_tensor(c->bundled ? "--bundled" : "--v", path[2], &f->V);
    if (status != EXIT_OK)
        return status;
    memcpy(want, f->K.shape, sizeof want);
    want[0] = f->Q.shape[0];
    want[3] = f->Q.shape[3];
    status = same_shape(path[1], &f->K, want);
    if (status == EXIT_OK)
        status = same_shape(path[2], &f->V, want);
    if (status != EXIT_OK)
        return status;
    *s = (AttnShape){f->Q.shape[0], f->Q.shape[2], f->K.shape[2],
                     f->Q.shape[1], f->K.shape[1], f->Q.shape[3]};
    if (s->H % s->Hkv != 0)
        return cli_refuse("%s: found %" PRId64 " heads, accepted is a divisor of the %" PRId64
                          " heads of %s",
                          path[1], s->Hkv, s->H, path[0]);
    return agree(c, s, path[0], path[1]);
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
        status = cli_check_shape(c, s);
    want[0] = s->B;
    want[1] = s->Nq;
    want[2] = s->H;
    want[3] = s->d;
    if (status == EXIT_OK && c->backward && path[3]) {
        status = open_tensor(c->do_file ? "--do" : "--bundled", path[3], &f->dO);
        if (status == EXIT_OK)
            status = same_shape(path[3], &f->dO, want);
    }
    if (status == EXIT_OK && c->mask_file)
        status = open_mask(c->mask_file, &f->mask, s);
    if (status != EXIT_OK)
        files_close(f);
    return status;
}

void files_fill(const NpyArray *a, const Tensor *t)
{
    int64_t b, n, h, x, from = 0;
    for (b = 0; b < t->shape[0]; b++)
        for (n = 0; n < t->shape[1]; n++)
            for (h = 0; h < t->shape[2]; h++) {
                int64_t to = tensor_offset(t, b, n, h);
                for (x = 0; x < t->shape[3]; x++)
                    tensor_set(t, to + x, (float)npy_value(a, from++));
            }
}

void files_close(ProblemFiles *f)
{
    npy_free(&f->Q);
    npy_free(&f->K);
    npy_free(&f->V);
    npy_free(&f->dO);
    npy_free(&f->mask);
}
