/* SPDX-License-Identifier: MIT
 *
 * oracle.h: attention in float64 by the plain loops of the definition, with the error bound of
 * every element computed beside it. Everything in this suite is judged by this code, so it shares
 * nothing with what it judges but attn_visible and attn_position.
 *
 * Interface:
 * - oracle_rows: which rows (queries) and keys are computed: all, or a sample for big cases.
 * - oracle_forward: O and lse of those rows and their bounds.
 * - oracle_backward: dQ of those rows, dK and dV of those keys, and their bounds.
 *
 * Bounds (DESIGN.md section 5; u = 2^-24, u16 = 2^-8 bf16, 2^-11 f16, 0 f32; c = 4, tensor cores
 * 16): the part that scales with c and the part that does not are kept apart, so that one oracle
 * run serves every variant: bound = fixed + c * per_c.
 */
#ifndef ATTN_ORACLE_H
#define ATTN_ORACLE_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One quantity with its bound: arrays of `count` elements. */
typedef struct OracleArray {
    double *value, *fixed, *per_c;
    int64_t count;
} OracleArray;

/* Local indexes that were computed, ascending. */
typedef struct OracleSample {
    int64_t *index;
    int64_t count;
} OracleSample;

typedef struct Oracle {
    AttnShape shape;
    OracleSample rows;  /* of the Nq queries */
    OracleSample keys;  /* of the Nk keys (backward) */
    OracleArray O;      /* [B][H][rows.count][d] */
    OracleArray lse;    /* [B][H][rows.count] */
    OracleArray dQ;     /* [B][H][rows.count][d] */
    OracleArray dK, dV; /* [B][Hkv][keys.count][d] */
} Oracle;

/* Above 10^10 pair-channels (B*H*Nq*Nk*d) samples: first, last, tile edges (multiples of 64 and
 * their neighbours at a few places), 64 random ones from the seed. Otherwise everything. args holds
 * host tensors. Returns 0, or -1 when memory is short. threads >= 1. */
int oracle_run(Oracle *o, const AttnArgs *args, int backward, int threads);
void oracle_free(Oracle *o);

#ifdef __cplusplus
}
#endif
#endif
