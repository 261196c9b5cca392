/* SPDX-License-Identifier: MIT
 *
 * window_call.h: the numbers of a World (window_definition.h) as a call of the offline module, in
 * any layout and packing. Where an element lies is written down once more here, as an index, and
 * not taken from the module's strides.
 *
 * Interface:
 * - Buffers, make_call, free_buffers: memory of a call, filled from a world.
 * - copy_tensor: between a tensor of the call and an array of the world.
 */
#ifndef WINDOW_CALL_H
#define WINDOW_CALL_H

#include "window_definition.h"

/* Memory of a call; packed tensors lie in the first one of their pack. Q K V O dO dQ dK dV */
typedef struct Buffers {
    void *at[8];
    int64_t count[8]; /* elements */
    float *lse;
    int32_t cu_q[MAX_SEQUENCES + 1], cu_k[MAX_SEQUENCES + 1];
} Buffers;

enum { AT_Q, AT_K, AT_V, AT_O, AT_DO, AT_DQ, AT_DK, AT_DV };

/* Heads side by side where tensor t lies, and the first of its own among them. *home: whose memory
 * that is. */
static inline int64_t stored_heads(const World *w, WindowPack pack, int t, int *home,
                                   int64_t *first)
{
    const int64_t H = w->s.H, Hkv = w->s.Hkv;
    const int part = t <= AT_V ? t : t >= AT_DQ ? t - AT_DQ : -1, base = t <= AT_V ? 0 : AT_DQ;
    *home = t, *first = 0;
    if (part < 0 || pack == WINDOW_Q_K_V || (pack == WINDOW_Q_KV && part == 0))
        return part == 1 || part == 2 ? Hkv : H;
    *home = base + (pack == WINDOW_Q_KV ? 1 : 0);
    if (pack == WINDOW_Q_KV)
        *first = part == 2 ? Hkv : 0;
    else
        *first = part == 0 ? 0 : part == 1 ? H : H + Hkv;
    return pack == WINDOW_Q_KV ? 2 * Hkv : H + 2 * Hkv;
}

/* Where channel 0 of tensor t is: token i of sequence n, head h. */
static inline int64_t element_of(const World *w, WindowLayout layout, WindowPack pack, int t, int n,
                                 int64_t i, int64_t h)
{
    const int keys = t == AT_K || t == AT_V || t == AT_DK || t == AT_DV;
    int home;
    int64_t first;
    const int64_t stored = stored_heads(w, pack, t, &home, &first);
    const int64_t before = keys ? w->first_k[n] : w->first_q[n];
    const int64_t token = layout == WINDOW_SBHD ? i * w->s.sequences + n : before + i;
    return (token * stored + first + h) * w->s.d;
}

/* Copies tensor t between its buffer and an array of the world; from != NULL: into the buffer. */
static inline void copy_tensor(const World *w, const WindowConfig *c, const Buffers *b, int t,
                               const double *from, float *to)
{
    const int keys = t == AT_K || t == AT_V || t == AT_DK || t == AT_DV;
    const int64_t heads = keys ? w->s.Hkv : w->s.H, d = w->s.d;
    int home;
    int64_t first, at = 0;
    stored_heads(w, c->pack, t, &home, &first);
    const Tensor view = {b->at[home], c->dtype, {1, 1, 1, 1}, {1, 1, 1, 1}};
    for (int n = 0; n < w->s.sequences; n++)
        for (int64_t i = 0; i < (keys ? w->s.Nk[n] : w->s.Nq[n]); i++)
            for (int64_t h = 0; h < heads; h++) {
                const int64_t e = element_of(w, c->layout, c->pack, t, n, i, h);
                for (int64_t x = 0; x < d; x++, at++) {
                    if (from)
                        tensor_set(&view, e + x, (float)from[at]);
                    else
                        to[at] = tensor_get(&view, e + x);
                }
            }
}

static inline WindowCall make_call(const World *w, const WindowConfig *c, Buffers *b)
{
    const int64_t d = w->s.d;
    memset(b, 0, sizeof *b);
    for (int t = 0; t < 8; t++) {
        const int keys = t == AT_K || t == AT_V || t == AT_DK || t == AT_DV;
        int home;
        int64_t first;
        const int64_t stored = stored_heads(w, c->pack, t, &home, &first);
        if (home != t)
            continue;
        b->count[t] = (keys ? w->total_k : w->total_q) * stored * d;
        b->at[t] = window_memory(b->count[t], dtype_size(c->dtype));
    }
    b->lse = window_memory(w->s.H * w->total_q, sizeof *b->lse);
    copy_tensor(w, c, b, AT_Q, w->input[IN_Q], NULL);
    copy_tensor(w, c, b, AT_K, w->input[IN_K], NULL);
    copy_tensor(w, c, b, AT_V, w->input[IN_V], NULL);
    copy_tensor(w, c, b, AT_DO, w->input[IN_DO], NULL);
    for (int n = 0; n <= w->s.sequences; n++) {
        b->cu_q[n] = (int32_t)w->first_q[n];
        b->cu_k[n] = (int32_t)w->first_k[n];
    }
    const int thd = c->layout == WINDOW_THD;
    /* clang-format off */
    return (WindowCall){
        w->s.sequences, thd ? w->total_q : w->s.Nq[0], thd ? w->total_k : w->s.Nk[0],
        thd ? b->cu_q : NULL, thd ? b->cu_k : NULL, b->at[AT_Q], b->at[AT_K], b->at[AT_V],
        b->at[AT_O], b->lse, b->at[AT_DO], b->at[AT_DQ], b->at[AT_DK], b->at[AT_DV]};
    /* clang-format on */
}

static inline void free_buffers(Buffers *b)
{
    for (int t = 0; t < 8; t++)
        free(b->at[t]);
    free(b->lse);
}

#endif
