/* SPDX-License-Identifier: MIT
 *
 * problem.c: the inputs of one case, in guarded storage with the memory layout of --strides.
 * See problem.h.
 */
#include "problem_internal.h"

#include <math.h>
#include <string.h>

/* Bytes of the mask end at a guard page like any tensor: a variant that reads past them faults. */
static int make_mask(Problem *p, const NpyArray *file, uint64_t seed)
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

/* Ordinary attention: one segment a side. Lower-right alignment shifts the queries so that the last
 * one stands at the position of the last key. */
static void make_positions(Problem *p, const CliCase *c)
{
    const AttnShape *s = &p->args.shape;
    const int64_t first = c->mask == ATTN_MASK_CAUSAL_UPPER_LEFT ? 0 : s->Nk - s->Nq;
    p->segment_q = (AttnSegment){0, s->Nq, 0, first, 1};
    p->segment_k = (AttnSegment){0, s->Nk, 0, 0, 1};
    p->args.positions_q = (AttnPositions){&p->segment_q, 1};
    p->args.positions_k = (AttnPositions){&p->segment_k, 1};
    p->args.rule = (AttnRule){c->window_left, c->window_right};
}

static int make_tensor(Storage *to, const CliCase *c, int64_t N, int64_t H, const AttnShape *s,
                       const NpyArray *file, FillTensor which)
{
    if (tensor_new(to, c->dtype, c->layout, s->B, N, H, s->d) != 0)
        return EXIT_RUNTIME;
    if (file->data)
        files_fill(file, &to->view);
    else
        fill_tensor(&to->view, which, c->seed, c->dist);
    return EXIT_OK;
}

int problem_make(Problem *p, const CliCase *c)
{
    static uint64_t serial;
    AttnArgs *a = &p->args;
    AttnShape *s = &a->shape;
    ProblemFiles f;
    int status;
    memset(p, 0, sizeof *p);
    cli_refuse_context(NULL, c->cases_file, c->line);
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
    make_positions(p, c);
    status = make_tensor(&p->Q, c, s->Nq, s->H, s, &f.Q, FILL_Q);
    if (status == EXIT_OK)
        status = make_tensor(&p->K, c, s->Nk, s->Hkv, s, &f.K, FILL_K);
    if (status == EXIT_OK)
        status = make_tensor(&p->V, c, s->Nk, s->Hkv, s, &f.V, FILL_V);
    if (status == EXIT_OK && c->backward)
        status = make_tensor(&p->dO, c, s->Nq, s->H, s, &f.dO, FILL_DO);
    if (status == EXIT_OK && c->mask == ATTN_MASK_FULL)
        status = make_mask(p, &f.mask, c->seed);
    files_close(&f);
    if (status != EXIT_OK) {
        problem_free(p);
        cli_refuse("out of memory: the inputs of this case do not fit into what is free now");
        return status;
    }
    a->Q = p->Q.view;
    a->K = p->K.view;
    a->V = p->V.view;
    a->dO = p->dO.view;
    return EXIT_OK;
}

void problem_free(Problem *p)
{
    tensor_free(&p->Q);
    tensor_free(&p->K);
    tensor_free(&p->V);
    tensor_free(&p->dO);
    tensor_free(&p->mask);
}

uint64_t problem_fingerprint(const Problem *p)
{
    const Storage *all[] = {&p->Q, &p->K, &p->V, &p->dO, &p->mask};
    const int64_t *words[] = {&p->segment_q.first, &p->segment_k.first};
    uint64_t hash = 0;
    size_t i, w;
    for (i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->mapping)
            hash = hash * UINT64_C(0xD6E8FEB86659FD93) + tensor_fingerprint(all[i]);
    for (i = 0; i < 2; i++)
        for (w = 0; w < sizeof(AttnSegment) / sizeof(int64_t); w++)
            hash = hash * UINT64_C(0xD6E8FEB86659FD93) + (uint64_t)words[i][w];
    return hash;
}
