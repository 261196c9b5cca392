/* SPDX-License-Identifier: MIT
 *
 * oracle.h: attention in float64 by the plain loops of the definition, with the error bound of
 * every element computed beside it. Everything in this suite is judged by this code, so it shares
 * nothing with what it judges but attn_visible and attn_position.
 *
 * Interface:
 * - oracle_run: O and lse, and with a backward dQ, dK, dV, with the bound of every element; all of
 *   them, or a sample when the case is big. oracle_free.
 * - oracle_run_reference: the same for a program that judges runs: with the bound of variants that
 *   round partial sums on their way, and of the largest cases without gradients, which
 *   oracle_run_given computes from the O and lse of the run that is judged. oracle_given_free.
 * - oracle_overflows: can these inputs be computed with in float32 at all?
 * - Oracle.rows, .keys, .kv_heads, .whole, .given: what was computed; oracle_sample_find: is this
 *   one of them?
 *
 * Bounds (in words: docs/00, those of gradients docs/04; u = 2^-24, u16 = 2^-8 bf16, 2^-11 f16, 0
 * f32; c = 4, tensor cores 16): the part that scales with c and the part that does not are kept
 * apart, so that one oracle run serves every variant: bound = fixed + c * per_c. What is analysed
 * where: oracle_core.c (the plain definition), oracle_options.c (args->options).
 */
#ifndef ATTN_ORACLE_H
#define ATTN_ORACLE_H

#include "attn.h"

/* One quantity with its bound: arrays of `count` elements. */
typedef struct OracleArray {
    double *value, *fixed, *per_c;
    double *copied; /* of dK and dV with OracleRoundings.copies: to add to fixed; else NULL */
    double *square; /* of lse in e4m3: what the squares of O's errors of the row's channels are
                       expected to add up to (0: unknown); else NULL */
    int64_t count;
} OracleArray;

/* What stage 06 rounds on the way of a result, beside what a single device does; 0: nothing. */
typedef struct OracleRoundings {
    double partials;
    int64_t copies; /* of a kv head, its query heads divided among them */
} OracleRoundings;

/* Local indexes that were computed, ascending. */
typedef struct OracleSample {
    int64_t *index;
    int64_t count;
} OracleSample;

/* Place of an index in the sample, or -1. */
int64_t oracle_sample_find(const OracleSample *s, int64_t index);

/* Where an input held NaN or infinity. What it reaches is expected to be non-finite. What only
 * shares a tile with it may be, since a tile multiplies by P = 0 what it hides, and 0 x NaN is NaN
 * (check.c says which channels of which output); a bound that became infinite says nothing.
 * In a group without taint nothing is unspecified.
 * A row all of whose scores are -inf, because an input is infinite, has no weight to give away: it
 * is taken for a row that sees no key (O = 0, lse = -inf, nothing for dK and dV). A kernel that
 * looks for empty rows only where a tile hides something says NaN instead, and that is not wrong
 * either. A finite O other than 0 is, and a finite lse. */
enum { ORACLE_TAINT_K = 1, ORACLE_TAINT_V = 2, ORACLE_TAINT_Q = 4, ORACLE_TAINT_DO = 8 };

typedef struct Oracle {
    AttnShape shape;
    AttnDtype dtype;           /* of O and the gradients */
    OracleRoundings roundings; /* as given to oracle_run_reference */
    int beyond;   /* 1: scores so large that float32 cannot say what the gradients are */
    int whole;    /* 0: a sample, chosen by seed */
    int streamed; /* 1: a sample of a case with groups too large to be computed whole */
    int given;    /* 1: gradients are for oracle_run_given */
    uint64_t seed;
    OracleSample rows;     /* of the Nq queries */
    OracleSample keys;     /* of the Nk keys (backward) */
    OracleSample kv_heads; /* b*Hkv + kv head: those whose dK and dV were computed */
    uint8_t *tainted;      /* [B][Hkv] bits */
    uint8_t *tainted_at;   /* [B][Hkv][d] the same of each channel */
    OracleArray O;         /* [B][H][rows.count][d] */
    OracleArray lse;       /* [B][H][rows.count] */
    OracleArray dQ;        /* [B][H][rows.count][d] */
    OracleArray dK, dV;    /* [kv_heads.count][keys.count][d] */
    OracleArray dwq,
        dwk; /* [H][d], [Hkv][d]: with QK normalisation, and when nothing is a sample */
} Oracle;

/* Above 10^10 pair-channels (B*H*Nq*Nk*d) a sample of rows and keys: first, last, tile edges
 * (multiples of 64 and their neighbours at a few places), 64 random ones, others in every run
 * unless the environment's ATTN_SAMPLE_SEED says which. dK and dV of a key need lse and delta of
 * every row that sees it, so then they are computed for as many (batch, kv head) groups as keep
 * their visible pair-channels below 4*10^10, at least one. Otherwise everything.
 * args holds host tensors; what was in O, lse, dQ, dK, dV does not matter.
 * Returns 0, or -1 when memory is short. threads >= 1. */
int oracle_run(Oracle *o, const AttnArgs *args, int backward, int threads);

/* For a program that has the run's output to judge. Two differences:
 * Where one group alone is above 4*10^10 visible pair-channels (and no option of stage 05 but a
 * temperature is used), nothing is computed whole: the sample's O and lse cost N d a row, and
 * o->given says that dQ, dK and dV are left to oracle_run_given.
 * Stage 06 with --partials bf16: O and sums of gradients are rounded several times before they are
 * done. Where O_t is the mean over the keys so far and w_t its weight in the end, one rounding adds
 *     u w_t sum_j P_t |V| = u sum_j P |V| <= u W     over the keys j of that part
 * to the bound of O, which is what u16 W stands for, and likewise for sums of dQ, dK and dV, whose
 * parts are bounded by the sums of absolute values that u16 multiplies. So u16 grows by
 * `partials` = u (1 + u)^r r for r roundings.
 * And ulysses with `copies` of a kv head: each has some of the query heads that read it, and rounds
 * its part of dK and dV to the dtype before the parts are added. That is one rounding more of each,
 *     dK, dV: + u16 sum over copies |part| + copies eta
 * in `copied`, for methods that do so. */
int oracle_run_reference(Oracle *o, const AttnArgs *args, int backward, int threads,
                         OracleRoundings roundings);

/* *with becomes *o with the dQ, dK and dV that follow from args->O and args->lse, N d a row or key:
 * right only if these are, which the sampled rows of *o tell. Everything but the gradients still
 * belongs to *o. o->given must be set. Returns 0, or -1 when memory is short. */
int oracle_run_given(Oracle *with, const Oracle *o, const AttnArgs *args, int threads);
void oracle_given_free(Oracle *with); /* only what it does not share */
void oracle_free(Oracle *o);
/* 1: on the way to its results some number may be too large for float32, so that the case says
 * nothing about a variant. 0; -1: memory is short. */
int oracle_overflows(const AttnArgs *args, int backward);
#endif
