/* SPDX-License-Identifier: MIT
 *
 * dropout.cuh: the options of the weights as kernels want them, and which pairs dropout keeps.
 *
 * Whether a pair is kept is a function of its place: sequence, head, and the indexes of query and
 * key within the sequence (philox.h). One call of the generator decides on four neighbouring keys,
 * and four neighbouring keys are what a thread has side by side: in columns where queries own the
 * tile, in rows where keys do. An index within a sequence is a walk over the position map, so a
 * small kernel in front notes it once for each token.
 *
 * Interface:
 * - Weights, make_weights. Token: a token's place in its sequence.
 * - kept_of_four: four neighbouring keys of one query.
 */
#ifndef WINDOW_DROPOUT_CUH
#define WINDOW_DROPOUT_CUH

#include "attention/window/window_library.h"
#include "attn_options.h"
#include "harness/device/cuda_check.h"
#include "harness/io/philox.h"

/* Index of a token within its sequence, and the sequence. */
struct Token {
    int index, sequence;
};

struct Weights {
    float clip_low, clip_span; /* 0, 1: none */
    bool clips, drops;
    float kept; /* 1 / (1 - dropout) */
    uint32_t threshold, key_low, key_high;
    const Token *queries, *keys; /* [Nq], [Nk]; only with dropout */
};

/* Four neighbouring keys of one query, from local index j on: bit e is key j + e. The generator
 * gives four words for four indexes that start at a multiple of 4, which j need not be. */
static __device__ __forceinline__ uint32_t kept_of_four(const Weights &w, int b, int h, Token query,
                                                        int j, int Nk)
{
    PhiloxWords words = {};
    int group = -1;
    uint32_t bits = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int index = w.keys[min(j + e, Nk - 1)].index;
        if (index / 4 != group) {
            const PhiloxWords counter = {{(uint32_t)(index / 4), (uint32_t)query.index, (uint32_t)h,
                                          (uint32_t)(b + query.sequence)}};
            group = index / 4;
            words = philox_4x32_10(counter, w.key_low, w.key_high);
        }
        const uint32_t low = index & 1 ? words.word[1] : words.word[0];
        const uint32_t high = index & 1 ? words.word[3] : words.word[2];
        bits |= (uint32_t)((index & 2 ? high : low) >= w.threshold) << e;
    }
    return bits;
}

/* Each token's place in its sequence, once for all blocks: a sequence begins where the first of its
 * segments does. */
static __global__ void __launch_bounds__(256)
    note_tokens_kernel(AttnPositions map, int64_t N, Token *tokens)
{
    const int64_t i = blockIdx.x * (int64_t)256 + threadIdx.x;
    int64_t s = 0, begin = 0;
    if (i >= N)
        return;
    while (s + 1 < map.count && i >= map.segments[s + 1].first)
        s++;
    while (map.segments[begin].sequence != map.segments[s].sequence)
        begin++;
    tokens[i].index = (int)(i - map.segments[begin].first);
    tokens[i].sequence = (int)map.segments[s].sequence;
}

/* tokens_dev [Nq + Nk], or NULL without dropout */
static AttnStatus make_weights(const AttnArgs *a, Weights *w, Token *tokens_dev)
{
    const AttnOptions *o = a->options;
    const int64_t Nq = a->shape.Nq, Nk = a->shape.Nk;
    const cudaStream_t stream = (cudaStream_t)a->stream;
    w->clips = attn_clips(a);
    w->drops = attn_drops(a);
    w->clip_low = o->clip_low;
    w->clip_span = o->clip_high - o->clip_low;
    w->kept = w->drops ? 1.0f / (1.0f - o->dropout) : 1.0f;
    w->threshold = attn_dropout_threshold(o->dropout);
    w->key_low = (uint32_t)o->dropout_seed;
    w->key_high = (uint32_t)(o->dropout_seed >> 32);
    w->queries = tokens_dev;
    w->keys = tokens_dev + Nq;
    if (!w->drops)
        return ATTN_OK;
    note_tokens_kernel<<<(unsigned)((Nq + 255) / 256), 256, 0, stream>>>(a->positions_q, Nq,
                                                                         tokens_dev);
    note_tokens_kernel<<<(unsigned)((Nk + 255) / 256), 256, 0, stream>>>(a->positions_k, Nk,
                                                                         tokens_dev + Nq);
    CUDA_TRY_LAUNCH();
    return ATTN_OK;
}

#endif
