/* SPDX-License-Identifier: MIT
 *
 * online_internal.h: between the files of the online module, on the CPU and on the GPU.
 *
 * Interface:
 * - WindowPlace, window_online_create_at: an object for any rule, alignment and piece of a mask;
 *   the public one knows only a window and lower-right.
 * - OnlineStep: one block, cut to what exists of it. window_online_step_cuda takes it
 *   (library/cuda/online.cu); so does the CPU.
 * - window_check_values, window_countable: what all three modules refuse. window_check_config,
 *   window_refuse: what both modules that take tokens in pieces refuse.
 * - window_stream_create_at, window_stream_append: a stream with any scale; a token that nobody
 *   asks for.
 */
#ifndef SLIDING_WINDOW_ONLINE_INTERNAL_H
#define SLIDING_WINDOW_ONLINE_INTERNAL_H

#include "attention/window/sliding_window_module.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WINDOW_MAX_DIM 1024 /* channels on the CPU */

/* Where the object's queries and keys stand: query i at position i + shift, key j at position j. */
typedef struct WindowPlace {
    AttnRule rule;
    int64_t shift;
    float scale;         /* as it multiplies q.k, the temperature not yet divided in */
    const uint8_t *mask; /* [seqlen_q][mask_ld], or NULL */
    int64_t mask_ld;
} WindowPlace;

WindowStatus window_online_create_at(SlidingWindowOnline **out, const WindowOnlineConfig *config,
                                     const WindowPlace *place, char error[WINDOW_ERROR]);

/* args: shape with Nq = valid rows and Nk = valid columns of the block; Q, K, V of the block; O =
 * the block's rows of global_o. scale has the temperature in it; options ask for QK normalisation
 * and nothing else, or are NULL. mask is NULL: the block's own is below.
 * The position maps have one segment each, on the host; nothing but its `position` is needed:
 * query r stands at q.position + r, key c at k.position + c. */
typedef struct OnlineStep {
    AttnArgs args;
    AttnSegment q, k;
    float *lse; /* row r of (b, h) at lse[(b * H + h) * lse_ld + r] */
    int64_t lse_ld;
    const uint8_t *mask; /* row r, column c at mask[r * mask_ld + c]; NULL = none */
    int64_t mask_ld;
} OnlineStep;

/* Device pointers: tensors, lse, mask and the weights of the normalisation. Queued on args.stream.
 * Without CUDA nobody calls them. _refuses: WINDOW_OK, or why this device cannot do it. */
WindowStatus window_online_cuda_refuses(const WindowOnlineConfig *config, char error[WINDOW_ERROR]);
WindowStatus window_online_step_cuda(const OnlineStep *step);

/* Writes one sentence into error (NULL is allowed) and returns status. */
#if defined(__GNUC__) && !defined(__CUDACC__)
__attribute__((format(printf, 3, 4)))
#endif
WindowStatus
window_refuse(char error[WINDOW_ERROR], WindowStatus status, const char *format, ...);

/* Sizes, dtype and numbers, one by one: what every module refuses. */
WindowStatus window_check_values(const WindowConfig *config, char error[WINDOW_ERROR]);
/* The same, and what is refused by a module that sees the weights of one piece at a time: no clip,
 * no dropout, BSHD, three tensors. module: its name, for the sentence. */
WindowStatus window_check_config(const WindowConfig *config, const char *module,
                                 char error[WINDOW_ERROR]);
/* All that the online module refuses; NULL too. */
WindowStatus window_check_online(const WindowOnlineConfig *config, char error[WINDOW_ERROR]);
/* 1: the elements of a tensor of `tokens` tokens in `batch` batches, with all heads of Q, K and V
 * side by side, can be counted; both are at least 1. */
int window_countable(const WindowConfig *config, int64_t batch, int64_t tokens);
/* The scale of a config: 0 stands for 1/sqrt(head_dim). */
float window_config_scale(const WindowConfig *config);
/* Its window as a rule: both ends inclusive, -1 = infinite, 0 on the right if causal. */
AttnRule window_config_rule(const WindowConfig *config);

WindowStatus window_stream_create_at(WindowStream **out, const WindowConfig *config, int64_t batch,
                                     float scale, char error[WINDOW_ERROR]);
/* The next token's key and value, without a query. */
WindowStatus window_stream_append(WindowStream *s, const void *k, const void *v);

#ifdef __cplusplus
}
#endif
#endif
