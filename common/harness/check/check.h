/* SPDX-License-Identifier: MIT
 *
 * check.h: is this output right? The first thing tested in this suite.
 *
 * A value is good only if (error <= bound), so NaN is never good. (No compiler may fold that away:
 * exact_math.h.)
 *
 * Interface:
 * - check_outputs: compares host outputs with the oracle, element by element against its bound.
 * - check_explain: prints the worst element as (b,h,i,x), expected, found, bound, how many are off
 *   and where they cluster (one head? the tail tile? the empty rows?): check_place.
 * - check_everywhere: of a case that is sampled all the rest, looked through for NaN.
 * - check_value, check_slot, check_find: one comparison, and the arrays behind a verdict.
 * - check_online_reach: what rounding O after every step may add.
 */
#ifndef ATTN_CHECK_H
#define ATTN_CHECK_H

#include <stdio.h>

#include "harness/oracle/oracle.h"

/* Verdict on one quantity (O, lse, a gradient). */
typedef struct CheckArray {
    const char *name;
    int checked;
    int64_t compared, off; /* elements looked at; of those outside their bound */
    int64_t unspecified;   /* not compared: the contract leaves them open (oracle.h, taint) */
    int64_t shared;        /* rows or keys with such a value because of 0 x NaN in a shared tile */
    int64_t nonfinite;     /* found non-finite where a finite value was expected, or the reverse */
    double worst_ratio;    /* largest error / bound; infinity for a non-finite one */
    double max_error;      /* largest |found - expected| over finite ones */
    double rms_ratio;      /* O in e4m3: of a head's root mean square error and its limit; or 0 */
    int64_t b, h, i, x;    /* where worst_ratio is; i is a row for O lse dQ, a key for dK dV, 0 for
                              dwq dwk */
    double expected, found, bound;
    /* for the explanation */
    int64_t off_heads, off_rows; /* distinct (b,h) and distinct i among the off ones */
    int64_t first_off_row, last_off_row;
    int64_t off_tail;  /* of the off ones, in the last partial tile of 64 rows or keys */
    int64_t off_empty; /* of the off ones, in rows that see no key */
    int64_t off_nan;   /* of the off ones, a NaN anywhere outside of the sample */
    char hint[128];    /* what the wrong values look like ("the sign is flipped"), or "" */
} CheckArray;

/* What a verdict rests on. */
typedef struct CheckSample {
    int sampled; /* 0: everything was looked at; 1: a sample, and NaN was looked for everywhere */
    int given;   /* 1: gradients were compared with what follows from O and lse of the run itself */
    int64_t rows, keys, kv_heads; /* rows of every head; keys of so many (batch, kv head) */
    uint64_t seed;                /* ATTN_SAMPLE_SEED chooses the same rows and keys again */
} CheckSample;

/* The last two: weights of the QK normalisation, only with a backward pass that has one. */
enum { CHECK_O, CHECK_LSE, CHECK_DQ, CHECK_DK, CHECK_DV, CHECK_DWQ, CHECK_DWK, CHECK_COUNT };

typedef struct Check {
    int pass;
    double bound_ratio; /* worst over all quantities */
    int64_t nonfinite;
    int inputs_intact;  /* 0: a variant wrote into its inputs */
    int storage_intact; /* 0: it wrote outside its outputs (canary, stride gaps) */
    CheckSample sample;
    int copies;           /* 1: dK and dV are sums of parts that were rounded (OracleRoundings) */
    int64_t online_block; /* keys of a step after which O is rounded to its dtype; 0 = none */
    CheckArray array[CHECK_COUNT];
} Check;

typedef enum CheckVerdict { CHECK_GOOD, CHECK_OFF, CHECK_OFF_NONFINITE, CHECK_OPEN } CheckVerdict;

/* One comparison. limit: magnitudes from here on round to infinity in the storage type. tainted: a
 * non-finite input shares the head and makes the bound infinite, or was multiplied by 0.
 * *ratio = error / bound. */
CheckVerdict check_value(double expected, double bound, float found, double limit, int tainted,
                         double *ratio);

/* The found and the expected side of one quantity; O is NULL for lse. */
typedef struct CheckSlot {
    const OracleArray *expected;
    const Tensor *found; /* NULL: found_f32, contiguous [b][h][i][x] */
    const float *found_f32;
    const OracleSample *sample; /* rows or keys */
    int64_t N, heads, outer;    /* Nq or Nk, H or Hkv, how many (b, head) were computed */
    const int64_t *outer_index; /* their numbers b * heads + h; NULL = 0 .. outer-1 */
    int64_t width;              /* d, or 1 for lse */
    int which;                  /* CHECK_... */
} CheckSlot;

CheckSlot check_slot(const Oracle *o, const AttnArgs *args, int which);

/* reach [d]: by how much row i of O may be off because it was rounded after every step of `block`
 * keys that the row sees: steps * half an ulp of the dtype * max over the row's keys of |V|, since
 * O is a mean of some of their V at every step, and later steps only shrink an error. */
void check_online_reach(const AttnArgs *args, int64_t block, int64_t b, int64_t h, int64_t i,
                        double *reach);
/* c: 4, or 16 for tensor cores. args holds the host outputs. Sets everything but online_block,
 * copies and the two *_intact fields, which the caller knows and sets first (1 or 0: pass counts
 * them). */
void check_outputs(Check *check, const Oracle *o, const AttnArgs *args, int backward, double c);
/* In which part of the output the off elements lie, in words. */
void check_place(const CheckArray *a, int which, const AttnShape *s, FILE *to);
void check_explain(const Check *check, const char *label, const AttnArgs *args, FILE *to);
/* What was let pass: rows and keys that are not finite because a hidden neighbour is not. */
void check_note_shared(const Check *check, const char *label, FILE *to);
#endif
