/* SPDX-License-Identifier: MIT
 *
 * window_world.h: a setting of stage 05's offline module with data, for the module and as
 * arguments: sequences lie one behind the other.
 *
 * Interface:
 * - Setting, settings, SETTINGS: every option alone and with others, one sequence and many.
 * - World: a setting with data and room for results, all as floats in one order: sequence by
 *   sequence, [tokens][heads][d]. world_new, world_from, world_free.
 * - world_args: the same as AttnArgs for a variant. world_collect: results back into the world.
 * - assert_near; assert_gradients_near: whole worlds.
 */
#ifndef WINDOW_WORLD_H
#define WINDOW_WORLD_H

#include <math.h>

#include "attention/window/sliding_window_module.h"
#include "attn_pairs.h"
#include "judge_case.h"

#define MAX_SEQUENCES 14

typedef struct Setting {
    const char *name;
    int64_t H, Hkv, d;
    int causal;
    int64_t window;
    float scale, cap, temperature, low, high, dropout;
    int64_t group;
    int sequences;
    int64_t Nq[MAX_SEQUENCES], Nk[MAX_SEQUENCES];
} Setting;

/* clang-format off */
static const Setting settings[] = {
    {"plain", 1, 1, 3, 0, -1, 0, 0, 1, 0, 1, 0, 0, 1, {6}, {6}},
    {"causal", 2, 1, 4, 1, -1, 0, 0, 1, 0, 1, 0, 0, 2, {5, 5}, {5, 5}},
    {"causal, more keys", 2, 2, 4, 1, -1, 0, 0, 1, 0, 1, 0, 0, 1, {4}, {7}},
    {"causal, empty rows", 4, 2, 4, 1, -1, 0, 0, 1, 0, 1, 0, 0, 1, {7}, {4}},
    {"window", 2, 1, 4, 0, 2, 0, 0, 1, 0, 1, 0, 0, 1, {8}, {8}},
    {"window 0", 2, 1, 4, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1, {5}, {6}},
    {"causal window 1", 2, 1, 4, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, {9}, {7}},
    {"window larger than N", 2, 2, 4, 1, 1000000, 0, 0, 1, 0, 1, 0, 0, 1, {6}, {6}},
    {"scale, temperature", 1, 1, 5, 0, 3, 0.3f, 0, 2.5f, 0, 1, 0, 0, 1, {6}, {7}},
    {"cap wins", 2, 1, 4, 1, -1, 1.5f, 0.8f, 7, 0, 1, 0, 0, 1, {6}, {6}},
    {"clip", 2, 1, 4, 0, -1, 1, 0, 1, -0.1f, 1.2f, 0, 0, 1, {6}, {6}},
    {"clip below only, window", 2, 2, 4, 1, 3, 1, 0, 1, -0.2f, 1, 0, 0, 2, {7, 7}, {6, 6}},
    {"clip, cap, temperature", 4, 2, 4, 0, 2, 1, 2, 3, -0.05f, 1.6f, 0, 0, 1, {6}, {8}},
    {"dropout", 4, 2, 4, 0, -1, 0, 0, 1, 0, 1, 0.3f, 0, 2, {5, 5}, {6, 6}},
    {"dropout, causal window", 2, 1, 4, 1, 4, 0, 0, 1, 0, 1, 0.5f, 0, 1, {8}, {8}},
    {"norm", 2, 1, 6, 0, -1, 0, 0, 1, 0, 1, 0, 6, 1, {5}, {6}},
    {"norm in groups", 4, 2, 6, 1, 3, 1, 0, 1, 0, 1, 0, 2, 2, {6, 6}, {6, 6}},
    {"everything", 4, 2, 8, 1, 4, 1, 3, 2, -0.04f, 1.3f, 0.25f, 4, 1, {7}, {9}},
    {"sequences", 2, 1, 4, 1, -1, 0, 0, 1, 0, 1, 0, 0, 4, {4, 1, 0, 5}, {4, 3, 2, 2}},
    {"sequences, no keys", 2, 2, 3, 0, 2, 0, 0, 1, 0, 1, 0, 0, 3, {3, 2, 4}, {3, 0, 6}},
    {"sequences, everything", 4, 2, 4, 1, 3, 1, 0, 2, -0.1f, 1.1f, 0.2f, 2, 3,
     {5, 3, 4}, {5, 6, 0}},
    {"many sequences", 2, 1, 3, 1, -1, 0, 0, 1, 0, 1, 0, 0, 14,
     {2, 3, 2, 2, 3, 1, 2, 3, 2, 2, 0, 3, 2, 2}, {2, 3, 3, 2, 2, 2, 2, 3, 0, 2, 2, 3, 2, 3}},
    {"many sequences, clip, dropout", 2, 1, 3, 1, 2, 0, 0, 1, -0.1f, 1.2f, 0.2f, 0, 14,
     {2, 3, 2, 2, 3, 1, 2, 3, 2, 2, 0, 3, 2, 2}, {2, 3, 3, 2, 2, 2, 2, 3, 0, 2, 2, 3, 2, 3}},
};
/* clang-format on */

#define SETTINGS ((int)(sizeof settings / sizeof *settings))

/* Inputs and results of one precision each: Q and O [total_q][H][d], lse [total_q][H], ... */
typedef struct World {
    Setting s;
    WindowConfig config; /* THD, Q_K_V */
    int64_t first_q[MAX_SEQUENCES + 1], first_k[MAX_SEQUENCES + 1], total_q, total_k;
    int64_t sizes[6];   /* elements of the inputs below */
    double *input[6];   /* Q K V wq wk dO: values that the dtype can hold */
    float *O, *lse;     /* what somebody computed */
    float *gradient[5]; /* dQ dK dV dwq dwk */
    float wq[64], wk[64];
    AttnSegment segments_q[MAX_SEQUENCES], segments_k[MAX_SEQUENCES];
    Tensor tensors[8]; /* Q K V O dO dQ dK dV of world_args */
    float *args_lse;
    AttnOptions options;
    AttnArgs args; /* without tensors: who sees whom, and how scores are made */
} World;

enum { IN_Q, IN_K, IN_V, IN_WQ, IN_WK, IN_DO };

static uint64_t window_state = 1;

static inline double window_random(void) /* in [-1, 1] */
{
    window_state = window_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int32_t)(window_state >> 32) / 2147483648.0;
}

static inline void *window_memory(int64_t count, size_t size)
{
    void *memory = malloc((size_t)(count > 0 ? count : 1) * size);
    assert_non_null(memory);
    memset(memory, 0xFF, (size_t)(count > 0 ? count : 1) * size);
    return memory;
}

/* larger multiplies all lengths. */
static inline World *world_new(const Setting *s, AttnDtype dtype, int64_t larger)
{
    World *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->s = *s;
    for (int n = 0; n < s->sequences; n++) {
        w->s.Nq[n] *= larger, w->s.Nk[n] *= larger;
        w->first_q[n + 1] = w->first_q[n] + w->s.Nq[n];
        w->first_k[n + 1] = w->first_k[n] + w->s.Nk[n];
    }
    if (larger > 1 && s->window > 0)
        w->s.window = s->window * larger - 1;
    w->total_q = w->first_q[s->sequences], w->total_k = w->first_k[s->sequences];
    const int64_t q = w->total_q * s->H * s->d, k = w->total_k * s->Hkv * s->d;
    const int64_t sizes[] = {q, k, k, s->H * s->d, s->Hkv * s->d, q};
    memcpy(w->sizes, sizes, sizeof sizes);
    for (int n = 0; n < 6; n++) {
        const int is_weight = n == IN_WQ || n == IN_WK;
        w->input[n] = window_memory(sizes[n], sizeof(double));
        for (int64_t e = 0; e < sizes[n]; e++)
            w->input[n][e] = is_weight ? (float)(1 + 0.5 * window_random())
                                       : dtype_round_f64(dtype, 2 * window_random());
    }
    for (int n = 0; n < 5; n++)
        w->gradient[n] = window_memory(sizes[n], sizeof(float));
    w->O = window_memory(q, sizeof(float));
    w->lse = window_memory(w->total_q * s->H, sizeof(float));
    for (int64_t e = 0; e < 64; e++) {
        w->wq[e] = e < sizes[IN_WQ] ? (float)w->input[IN_WQ][e] : NAN;
        w->wk[e] = e < sizes[IN_WK] ? (float)w->input[IN_WK][e] : NAN;
    }
    w->options =
        (AttnOptions){s->temperature, s->low, s->high, s->dropout,     12345678901234, s->group,
                      1e-5f,          w->wq,  w->wk,   w->gradient[3], w->gradient[4]};
    w->config = (WindowConfig){WINDOW_THD, WINDOW_Q_K_V, dtype,    s->H,   s->Hkv,     s->d,
                               s->causal,  w->s.window,  s->scale, s->cap, w->options, 1};
    for (int n = 0; n < s->sequences; n++) {
        w->segments_q[n] = (AttnSegment){w->first_q[n], w->s.Nq[n], n, w->s.Nk[n] - w->s.Nq[n], 1};
        w->segments_k[n] = (AttnSegment){w->first_k[n], w->s.Nk[n], n, 0, 1};
    }
    w->args = (AttnArgs){.shape = {1, s->H, s->Hkv, w->total_q, w->total_k, s->d},
                         .Q = {.dtype = dtype},
                         .scale = s->scale != 0 ? s->scale : 1 / sqrtf((float)s->d),
                         .softcap = s->cap,
                         .rule = {w->s.window, s->causal ? 0 : w->s.window},
                         .positions_q = attn_positions(w->segments_q, s->sequences),
                         .positions_k = attn_positions(w->segments_k, s->sequences),
                         .threads = 1,
                         .options = &w->options};
    return w;
}

static inline void world_free(World *w)
{
    for (int n = 0; n < 6; n++)
        free(w->input[n]);
    for (int n = 0; n < 5; n++)
        free(w->gradient[n]);
    for (int n = 0; n < 8; n++)
        free(w->tensors[n].data);
    free(w->O);
    free(w->lse);
    free(w->args_lse);
    free(w);
}

/* The same numbers from the same state. */
static inline World *world_from(uint64_t state, const Setting *s, AttnDtype dtype, int64_t larger)
{
    window_state = state;
    return world_new(s, dtype, larger);
}

/* --- for variants ------------------------------------------------------------------------------*/

/* [1][N][heads][d] of the dtype, with values or (NULL) NaN in it. */
static inline Tensor world_tensor(const World *w, int64_t N, int64_t heads, const double *values)
{
    const int64_t d = w->s.d, count = N * heads * d;
    Tensor t = {window_memory(count, dtype_size(w->config.dtype)),
                w->config.dtype,
                {1, N, heads, d},
                {count, heads * d, d, 1}};
    for (int64_t e = 0; values && e < count; e++)
        tensor_set(&t, e, (float)values[e]);
    return t;
}

/* One batch, a segment for each sequence; the world owns the memory. Call it once. */
static inline AttnArgs world_args(World *w)
{
    const Setting *s = &w->s;
    AttnArgs a = w->args;
    a.lse = w->args_lse = window_memory(s->H * w->total_q, sizeof *a.lse);
    Tensor *const all[] = {&a.Q, &a.K, &a.V, &a.O, &a.dO, &a.dQ, &a.dK, &a.dV};
    const double *const from[] = {w->input[IN_Q],  w->input[IN_K], w->input[IN_V], NULL,
                                  w->input[IN_DO], NULL,           NULL,           NULL};
    for (int n = 0; n < 8; n++) {
        const int keys = n == 1 || n == 2 || n == 6 || n == 7;
        w->tensors[n] =
            world_tensor(w, keys ? w->total_k : w->total_q, keys ? s->Hkv : s->H, from[n]);
        *all[n] = w->tensors[n];
    }
    return a;
}

/* O, lse [H][total_q], dQ, dK, dV of args into the world. dwq and dwk are there already. */
static inline void world_collect(World *w, const AttnArgs *a)
{
    for (int64_t e = 0; e < w->sizes[IN_Q]; e++) {
        w->O[e] = tensor_get(&a->O, e);
        w->gradient[0][e] = tensor_get(&a->dQ, e);
    }
    for (int64_t e = 0; e < w->sizes[IN_K]; e++) {
        w->gradient[1][e] = tensor_get(&a->dK, e);
        w->gradient[2][e] = tensor_get(&a->dV, e);
    }
    for (int64_t i = 0; i < w->total_q; i++)
        for (int64_t h = 0; h < w->s.H; h++)
            w->lse[i * w->s.H + h] = a->lse[h * w->total_q + i];
}

/* |found - wanted| <= tolerance (1 + |wanted|); -inf is near to itself only, NaN to nothing. */
static inline void assert_near(double found, double wanted, double tolerance, const char *what,
                               const char *name, int64_t e)
{
    if (found == wanted ||
        (isfinite(wanted) && fabs(found - wanted) <= tolerance * (1 + fabs(wanted))))
        return;
    print_message("%s of '%s': element %lld is %.9g, expected is %.9g\n", what, name, (long long)e,
                  found, wanted);
    fail();
}

static inline void assert_gradients_near(const World *found, const World *wanted, double tolerance)
{
    for (int g = 0; g < (found->s.group > 0 ? 5 : 3); g++)
        for (int64_t e = 0; e < found->sizes[g]; e++)
            assert_near(found->gradient[g][e], wanted->gradient[g][e], tolerance, "a gradient",
                        found->s.name, e);
}

#endif
