/* SPDX-License-Identifier: MIT
 *
 * inputs.c: the inputs of one case, in guarded storage with the memory layout of --strides and
 * --pack. See inputs.h.
 */
#include "harness/io/inputs_internal.h"

#include "e4m3.h"
#include "harness/bench/bench.h"
#include "problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HASH_FACTOR UINT64_C(0xD6E8FEB86659FD93)

/* Bytes of the mask end at a guard page like any tensor: a variant that reads past them faults. */
static int make_mask(Inputs *p, const NpyArray *file, uint64_t seed)
{
    const int64_t Nq = p->args.shape.Nq, Nk = p->args.shape.Nk, count = Nq * Nk;
    uint8_t *mask;
    int64_t i;
    if (tensor_new(&p->mask, ATTN_BF16, LAYOUT_BSHD, 1, 1, 1, (count + 1) / 2) != 0)
        return EXIT_RUNTIME;
    mask = p->mask.base + p->mask.bytes - count;
    if (file->data)
        for (i = 0; i < count; i++)
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
    int t;
    for (t = 0; t < 3; t++) {
        int64_t all = heads[t];
        if (home[t] != t)
            continue;
        for (int other = t + 1; other < 3; other++)
            all += home[other] == t ? heads[other] : 0;
        if (tensor_new(storage[t], c->dtype, c->layout, s->B, N[t], all, s->d) != 0)
            return -1;
    }
    for (t = 0; t < 3; t++) {
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
    int64_t i;
    if (tensor_new(to, ATTN_F32, LAYOUT_BSHD, 1, 1, heads, d) != 0)
        return EXIT_RUNTIME;
    w = to->view.data;
    for (i = 0; i < heads * d; i++)
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
    int64_t t;
    size_t i;
    inputs_storages(p, all);
    for (i = 0; i < INPUT_STORAGES; i++)
        if (all[i]->mapping)
            hash = hash * HASH_FACTOR + tensor_fingerprint(all[i]);
    for (i = 0; i < sizeof p->options; i++)
        hash = hash * HASH_FACTOR + options[i];
    for (t = 0; t < segments; t++) {
        const AttnSegment *g = &p->segments[t];
        const int64_t words[] = {g->first, g->length, g->sequence, g->position, g->stride};
        for (i = 0; i < sizeof words / sizeof *words; i++)
            hash = hash * HASH_FACTOR + (uint64_t)words[i];
    }
    return hash;
}
