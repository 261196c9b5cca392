/* SPDX-License-Identifier: MIT
 *
 * philox.h: dropout without a state. Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3", 2011) is a function from a counter and a key to four random words:
 * ten rounds, each of two 32 x 32 -> 64 bit products. Whoever needs the number of a pair (i, j)
 * computes it, in any order, on any device, in the forward pass and again in the backward pass.
 * Nothing is stored and no tile size can change it.
 *
 * Interface:
 * - philox_4x32_10: the function.
 * - attn_dropout_threshold, attn_keeps: is the pair (i, j) kept?
 * The header is C11 and C++17 (nvcc compiles it for host and device).
 */
#ifndef ATTN_PHILOX_H
#define ATTN_PHILOX_H

#include "attn.h"
#include "attn_options.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct PhiloxWords {
    uint32_t word[4];
} PhiloxWords;

static inline ATTN_HD PhiloxWords philox_4x32_10(PhiloxWords counter, uint32_t key_low,
                                                 uint32_t key_high)
{
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * counter.word[0];
        const uint64_t b = (uint64_t)0xCD9E8D57u * counter.word[2];
        PhiloxWords next;
        next.word[0] = (uint32_t)(b >> 32) ^ counter.word[1] ^ key_low;
        next.word[1] = (uint32_t)b;
        next.word[2] = (uint32_t)(a >> 32) ^ counter.word[3] ^ key_high;
        next.word[3] = (uint32_t)a;
        counter = next;
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    return counter;
}

/* A pair is kept when its word is not below this: floor(p * 2^32), 0 <= p < 1. */
static inline ATTN_HD uint32_t attn_dropout_threshold(float p)
{
    return (uint32_t)((double)p * 4294967296.0);
}

/* i and j are indexes within their sequence (how many of its tokens the tensor holds before them),
 * h is the query head and b the index of the sequence: the batch, or with several sequences in one
 * (THD) the sequence id. Counter words 0 to 3 are j / 4, i, h, b, and the pair takes output word
 * j % 4. */
static inline ATTN_HD int attn_keeps(const AttnOptions *o, uint32_t threshold, int64_t b, int64_t h,
                                     int64_t i, int64_t j)
{
    PhiloxWords counter;
    counter.word[0] = (uint32_t)(j / 4);
    counter.word[1] = (uint32_t)i;
    counter.word[2] = (uint32_t)h;
    counter.word[3] = (uint32_t)b;
    counter = philox_4x32_10(counter, (uint32_t)o->dropout_seed, (uint32_t)(o->dropout_seed >> 32));
    return counter.word[j % 4] >= threshold;
}

#ifdef __cplusplus
}
#endif
#endif
