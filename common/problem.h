/* SPDX-License-Identifier: MIT */
/* clang-format off */
/*
 * problem.h: the plain problem, all that a rung is asked, and the line by which it registers.
 *
 * What attention is, in the symbols used everywhere in this suite:
 *
 *     s_ij = scale * sum_x Q[i][x] K[j][x]        one score for every query i and key j
 *     P_ij = exp(s_ij - lse_i)                    over the keys j that query i sees, else 0
 *     O_i  = sum_j P_ij V_j                       lse_i = ln sum_j exp(s_ij)
 *
 * and backward, with dO, the gradient of a scalar loss by O:
 *
 *     dV_j = sum_i P_ij dO_i                      dP_ij = dO_i . V_j
 *     dS_ij = P_ij (dP_ij - delta_i)              delta_i = dO_i . O_i
 *     dQ_i = scale sum_j dS_ij K_j                dK_j = scale sum_i dS_ij Q_i
 *
 * Glossary
 *     B H Hkv       batch, query heads, key/value heads: H % Hkv == 0, head h reads kv head
 *                   h / (H / Hkv)
 *     Nq Nk d       queries, keys, channels of one head
 *     S P           scores and probabilities, Nq x Nk: what we try not to store
 *     lse           log-sum-exp of a row, natural logarithm
 *     m_i l_i       running maximum and running sum of exp(s - m_i) of the online softmax
 *     Br Bc         rows and columns of a tile of S
 *
 * Who sees whom is a band around the diagonal, for all rows the same two numbers:
 *
 *     query i sees key j when  from <= j - i <= to        no mask: -oo, oo
 *                                                         causal: -oo, c
 *                                                         window L, R: c - L, c + R
 *
 * c is Nk - Nq (lower right: the last query sees the last key) or 0 (upper left).
 *
 * A row that sees no key has O = 0, lse = -inf and zero gradients. It is never NaN.
 *
 * A rung is for reading, so this is all. Whatever else a user may say, the harness turns into a
 * plain problem where that is exact, outside of what is timed (other strides: contiguous copies; 16
 * bits on a CPU: widened before, rounded after); or it skips the rung with one sentence, and the
 * library (attn.h) computes the case. Outputs, gradients and work space arrive full of NaN.
 *
 * Interface:
 * - Problem. query_row, key_row, lse_row: where the row of a token lies. kv_head.
 * - first_key, end_key: the keys that a query sees. sees, score: the same for one pair, with the
 *   mask and the cap that only FULL rungs get.
 * - Rung, RUNG: the last line of a rung's file. (C11 and C++17, for host and device.)
 */
/* clang-format on */
#ifndef PROBLEM_H
#define PROBLEM_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define PROBLEM_HD __host__ __device__
#else
#define PROBLEM_HD
#endif

/* Types of an element: one of them, or several that a rung takes. Accumulators, m, l and lse are
 * float32 for all of them. */
enum { F32 = 1, F16 = 2, BF16 = 4, E4M3 = 8 };

/* E4M3: a byte of Q, K and V, times the scale of its head and block of so many tokens. Scales are
 * powers of two. O is bfloat16. */
#define E4M3_BLOCK 512

/* Tensors are contiguous, [B][N][heads][d]; on a GPU they start on 256 bytes. Forward reads Q K V
 * and writes O and lse. Backward reads Q K V O lse dO and writes dQ dK dV. */
typedef struct Problem {
    int B, H, Hkv, Nq, Nk, d; /* Nq, Nk < 2^30 - 1024; H d, B H Nq < 2^31 - 2^20 */
    float scale;              /* > 0; of any sign: of FULL rungs */
    int from, to;             /* -2^30, 2^30: no limit; an index can be added to either */
    int dtype;                /* F32, F16, BF16 or E4M3; on a CPU F32, but for STEPS */
    const void *Q, *dO;       /* [B][Nq][H][d] */
    const void *K, *V;        /* [B][Nk][Hkv][d] */
    void *O, *dQ;             /* [B][Nq][H][d] */
    float *lse;               /* [B][H][Nq] */
    void *dK, *dV;            /* [B][Nk][Hkv][d] */
    void *work;               /* as many bytes as the rung asked for, at a multiple of 64 */
    int threads;              /* CPU threads to use, >= 1 */
    void *stream;             /* cudaStream_t on the GPU */
    int64_t sram;             /* stage 03: elements of fast memory that tiles are made for */
    int block_q, block_kv;    /* STEPS: queries and keys of a step */
    const int64_t *visits;    /* [Tr Tc] host: step t takes block visits[t] = i Tc + j */
    const uint8_t *mask;      /* [Nq][Nk], 1 = masked out, or NULL: of FULL rungs */
    float softcap;            /* s becomes cap * tanh(s / cap); 0 = no cap: of FULL rungs */
    const float *scales[3];   /* E4M3: of Q, K, V: [B][heads][ceil(N / E4M3_BLOCK)] */
} Problem;

/* Channel 0 of query i of head h, and of key j of kv head h: in elements. 64 bits: B*N*H*d can
 * pass 2^31. */
static inline PROBLEM_HD int64_t query_row(const Problem *p, int b, int h, int i)
{
    return (((int64_t)b * p->Nq + i) * p->H + h) * p->d;
}

static inline PROBLEM_HD int64_t key_row(const Problem *p, int b, int h_kv, int j)
{
    return (((int64_t)b * p->Nk + j) * p->Hkv + h_kv) * p->d;
}

static inline PROBLEM_HD int64_t lse_row(const Problem *p, int b, int h, int i)
{
    return ((int64_t)b * p->H + h) * p->Nq + i;
}

static inline PROBLEM_HD int kv_head(const Problem *p, int h)
{
    return h / (p->H / p->Hkv);
}

/* Query i sees keys first_key <= j < end_key; none if first_key >= end_key. */
static inline PROBLEM_HD int first_key(const Problem *p, int i)
{
    return i + p->from > 0 ? i + p->from : 0;
}

static inline PROBLEM_HD int end_key(const Problem *p, int i)
{
    return i + p->to < p->Nk ? i + p->to + 1 : p->Nk;
}

static inline PROBLEM_HD int sees(const Problem *p, int i, int j)
{
    return p->from <= j - i && j - i <= p->to && !(p->mask && p->mask[(int64_t)i * p->Nk + j]);
}

static inline PROBLEM_HD float score(const Problem *p, float qk)
{
    const float s = p->scale * qk;
    return p->softcap > 0.0f ? p->softcap * tanhf(s / p->softcap) : s;
}

/* --- registration ------------------------------------------------------------------------------*/

typedef struct Tiles {
    int Br, Bc; /* 0, 0: no tiles */
} Tiles;

typedef struct Rung {
    const char *name, *idea;
    unsigned dtypes, flags;
    void (*forward)(const Problem *p);  /* NULL: a backward rung; its O and lse are the library's */
    void (*backward)(const Problem *p); /* NULL: it has none */
    int64_t (*work)(const Problem *p, int backward); /* bytes that a pass needs; NULL: none */
    Tiles (*tiles)(const Problem *p);                /* NULL: it has none */
} Rung;

/* A rung's flags. */
enum {
    FULL = 1,          /* takes mask and softcap, and a scale of any sign */
    ATOMICS = 2,       /* sums in any order: --deterministic skips it */
    SM80 = 4,          /* tensor cores by mma.sync */
    SM90A = 8,         /* Hopper's own instructions */
    TENSOR_CORES = 16, /* its products are a library's, which may truncate as SM80's do */
    ANY_D = 32,        /* on a GPU: d up to 256, not 64 and 128 only */
    D_256 = 1024,      /* on a GPU: d = 256 only */
    BLAS = 64,         /* built where OpenBLAS is */
    CUBLAS = 128,      /* built where cuBLAS is */
    STEPS = 256,       /* goes in steps of a block, in the tensors' dtype; O is rounded in each */
    STREAM = 512       /* a token at a time: each query needs a key of its own, and a window */
};

/* The last line of a rung's file. Some files are compiled again, for each SIMD path (vector.h) or
 * to count their memory accesses: these copies register nothing. */
#if defined(COUNT_ACCESSES)
#define RUNG(...)
#elif defined(FLASH_ISA) && !defined(ANY_PROCESSOR)
#define RUNG(stage, name, idea, dtypes, forward, backward, work, tiles, flags)                     \
    static const Rung unused                                                                       \
        __attribute__((unused)) = {#name, idea, dtypes, flags, NULL, NULL, work, tiles}
#elif defined(__cplusplus)
#define RUNG(stage, name, idea, dtypes, forward, backward, work, tiles, flags)                     \
    extern "C" const Rung rung_##stage##_##name = {#name,   idea,     dtypes, flags,               \
                                                   forward, backward, work,   tiles}
#else
#define RUNG(stage, name, idea, dtypes, forward, backward, work, tiles, flags)                     \
    const Rung rung_##stage##_##name = {#name, idea, dtypes, flags, forward, backward, work, tiles}
#endif

#endif
