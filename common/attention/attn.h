/* SPDX-License-Identifier: MIT */
/* clang-format off */
/*
 * attn.h: the contract of attention that all stages, all devices and the oracle share.
 *
 * What attention is, in the symbols used everywhere in this suite:
 *
 *     s_ij = scale * sum_x Q[i][x] K[j][x]        then, with a cap: s_ij = cap * tanh(s_ij / cap)
 *     P_ij = exp(s_ij - lse_i)                    over the keys j that query i may see, else 0
 *     O_i  = sum_j P_ij V_j                       lse_i = ln sum_j exp(s_ij)
 *
 * Glossary
 *     B H Hkv       batch, query heads, key/value heads: H % Hkv == 0, head h reads kv head
 *                   h / (H / Hkv)
 *     Nq Nk d       queries, keys, channels of one head
 *     Q K V O       inputs and output
 *     S P           scores and probabilities, Nq x Nk: what we try not to store
 *     lse           log-sum-exp of a row, natural logarithm, after scale, cap and mask
 *     dQ dK dV dO   gradients of a scalar loss (d = gradient; device pointers end in _dev)
 *     m_i l_i       running row maximum and running sum of exp(s - m_i) of the online softmax
 *     delta         rowsum(dO * O), the term that the softmax Jacobian needs in backward
 *     Br Bc Tr Tc   rows and columns of a tile, numbers of row and column tiles
 *
 * A row that sees no key has O = 0, lse = -inf and zero gradients. It is never NaN.
 * NaN and infinity in an input reach every row that sees them. A row that does not see them keeps
 * its lse, and its O but for one case: a tile multiplies V of a hidden key by P = 0, and 0 x NaN is
 * NaN. Where V[j][x] is not finite, O[i][x] may be NaN in rows that share a tile with key j, and
 * gradients that are made from such an O, or in which K, Q or dO, or the slope of the cap at such a
 * score, is multiplied like V.
 *
 * Interface:
 * - AttnArgs is what every variant of every stage receives; AttnFn is its prototype.
 * - attn_position() maps a local index to (sequence, position).
 * - tensor_offset() finds a row of a strided tensor.
 * - FlashTiles, flash_tiles_of(): the tiles of a kernel.
 * - workspace_alloc(), workspace_free(), memory_enough_for(): its memory on the host.
 * Pairs of a query and a key, who sees whom and with what score: attn_pairs.h. What only stage 05
 * knows: attn_options.h.
 * The header is C11 and C++17 (nvcc compiles it for host and device).
 */
/* clang-format on */
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ATTN_HD __host__ __device__
#else
#define ATTN_HD
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ATTN_E4M3: Q, K and V hold what a byte and the power of two of its head and block can (tensor.h),
 * O is bfloat16. All are stored as bfloat16, which holds these numbers exactly. The operator and
 * the library do not take it. */
typedef enum AttnDtype { ATTN_F32 = 0, ATTN_F16 = 1, ATTN_BF16 = 2, ATTN_E4M3 = 3 } AttnDtype;

/* What a variant answers. Anything but ATTN_OK and ATTN_SKIP ends the program with exit status 3.
 */
typedef enum AttnStatus {
    ATTN_OK = 0,
    ATTN_SKIP = 1,      /* this variant cannot compute this case by what it is */
    ATTN_NO_MEMORY = 2, /* host or device memory ran out */
    ATTN_CUDA_ERROR = 3 /* a CUDA call failed; the message is on stderr already */
} AttnStatus;

/* A view of a 4-D tensor: logical order [B][N][H][d] whatever the strides say, so that BSHD, SBHD
 * and BHSD are the same code. Strides count elements; stride[3] is always 1. The base pointer is
 * aligned to one element only: a vector load has to check first. */
typedef struct Tensor {
    void *data;
    AttnDtype dtype;
    int64_t shape[4];
    int64_t stride[4];
} Tensor;

/* One run of consecutive local indexes: local index first + t has position `position + t * stride`
 * inside sequence `sequence`, for 0 <= t < length. */
typedef struct AttnSegment {
    int64_t first, length;
    int64_t sequence;
    int64_t position, stride;
} AttnSegment;

/* A position map: ordinary attention has one segment, a zigzag shard two, varlen one per sequence.
 * Segments are sorted by `first` and cover 0 .. N-1 without gaps. In a kernel's arguments
 * `segments` is a device pointer, and `host` is the same list in host memory: whoever launches a
 * kernel has to know what it is. Elsewhere the two are equal
 * (attn_positions, attn_pairs.h). */
typedef struct AttnPositions {
    const AttnSegment *segments;
    int64_t count;
    const AttnSegment *host;
} AttnPositions;

typedef struct AttnPosition {
    int64_t sequence, position;
} AttnPosition;

/* The position rule, both ends inclusive: position_q - left <= position_k <= position_q + right.
 * -1 = no limit on that side. A causal mask is right = 0. */
typedef struct AttnRule {
    int64_t left, right;
} AttnRule;

typedef struct AttnShape {
    int64_t B, H, Hkv, Nq, Nk, d;
} AttnShape;

/* How a kernel cuts the score matrix, told by its own constants: the byte models ask. */
typedef struct FlashTiles {
    int64_t Br, Bc, Tr, Tc;
    int64_t splits; /* blocks that share the keys of a row tile: 1 but in the GPU's library */
} FlashTiles;

/* Tiles of Br x Bc, counted. */
FlashTiles flash_tiles_of(const AttnShape *shape, int64_t Br, int64_t Bc);

/* Everything that a variant may read or write. On the GPU all data pointers are device pointers
 * (shape, scale and the segment counts are plain values). Forward reads Q K V and writes O and lse.
 * Backward reads Q K V O lse dO and writes dQ dK dV. */
typedef struct AttnArgs {
    AttnShape shape;
    float scale;   /* multiplies q.k; 1/sqrt(d) unless the user says otherwise */
    float softcap; /* 0 = no cap */
    AttnRule rule;
    AttnPositions positions_q, positions_k; /* of Nq and Nk local indexes */
    const uint8_t *mask;                    /* [Nq][Nk], 1 = masked out; NULL = no full mask */
    Tensor Q;                               /* [B][Nq][H][d] */
    Tensor K, V;                            /* [B][Nk][Hkv][d] */
    Tensor O;                               /* [B][Nq][H][d] */
    float *lse;                             /* [B][H][Nq], contiguous, float32 for every dtype */
    Tensor dO;                              /* [B][Nq][H][d] */
    Tensor dQ;                              /* [B][Nq][H][d] */
    Tensor dK, dV;                          /* [B][Nk][Hkv][d] */
    int threads;                            /* CPU threads to use, >= 1 */
    void *stream;                           /* cudaStream_t on the GPU, else NULL */
    const struct AttnOptions *options;      /* of stage 05 (host pointer); NULL = none of them */
} AttnArgs;

typedef AttnStatus (*AttnFn)(const AttnArgs *args);

/* Host memory beside inputs and outputs: 64-byte aligned, filled with 0xFF (NaN), and counted
 * (alloc.h). NULL when it is short; 0 bytes is a valid request, and NULL may be freed. */
void *workspace_alloc(size_t bytes);
void workspace_free(void *p);
/* 0: memory is short. Asks only for large sizes, so it may stand anywhere. */
int memory_enough_for(size_t bytes);

/* Offset in elements of channel 0 of token n, head h, batch b. 64 bits: B*N*H*d can pass 2^31. */
static inline ATTN_HD int64_t tensor_offset(const Tensor *t, int64_t b, int64_t n, int64_t h)
{
    return b * t->stride[0] + n * t->stride[1] + h * t->stride[2];
}

/* Where local index i stands. The list is short (1 to a few), so a linear walk is right. Among
 * segments with the same `first` all but the last are empty (varlen sequences of length 0), so the
 * walk stops at the last one that starts at or before i. */
static inline ATTN_HD AttnPosition attn_position(AttnPositions map, int64_t i)
{
    int64_t s = 0;
    AttnPosition where;
    while (s + 1 < map.count && i >= map.segments[s + 1].first)
        s++;
    where.sequence = map.segments[s].sequence;
    where.position =
        map.segments[s].position + (i - map.segments[s].first) * map.segments[s].stride;
    return where;
}

#ifdef __cplusplus
}
#endif
#endif
