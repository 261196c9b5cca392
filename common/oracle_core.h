/* SPDX-License-Identifier: MIT
 *
 * oracle_core.h: the inside of the oracle: one key/value head and the query heads that read it, in
 * float64. Nobody outside oracle*.c includes it.
 *
 * A row pass takes one query over all keys it sees (O, lse, dQ); a key pass takes one key over all
 * queries that see it (dK, dV) and computes P again from lse. So no pass writes what another one
 * reads, rows and keys go to threads freely, and the result does not depend on their number.
 *
 * Interface:
 * - OraclePlan: what holds for the whole case. OracleGroup: the float64 copy of one group.
 * - oracle_group_load / oracle_group_free: convert inputs of any dtype and stride.
 * - oracle_weigh_rows, oracle_dot_columns, oracle_matrix_...: oracle_matrix.c.
 * - oracle_row, oracle_key: the definition of attention, of its gradient, and the bounds.
 * - oracle_pair, oracle_normalise...: oracle_options.c, what stage 05's options add.
 */
#ifndef ATTN_ORACLE_CORE_H
#define ATTN_ORACLE_CORE_H

#include "oracle.h"

typedef struct OraclePlan {
    const AttnArgs *args;
    double scale, cap;  /* cap 0 = none */
    double u16, eta;    /* of the dtype of O: DESIGN section 5 */
    AttnPosition *q_at; /* [Nq] */
    AttnPosition *k_at; /* [Nk] */
    /* NULL: scale says everything, and results are those of the plain definition bit by bit */
    const AttnOptions *options;
    int64_t *q_in, *k_in;         /* [Nq], [Nk] index within the sequence; with options */
    int64_t norm_group;           /* 0 = none */
    int clips, drops;             /* 1: as the options say */
    double clip_low, gain;        /* the weight is clip(gain P + clip_low, 0, 1) */
    double kept;                  /* 1 / (1 - dropout) */
    uint32_t threshold;           /* of dropout */
    int folds;                    /* 1: a temperature other than 1 is part of scale */
    OracleArray *dwq_of, *dwk_of; /* [B][H][Nq][d], [B][Hkv][Nk][d]: a token's part, or NULL */
} OraclePlan;

/* A matrix [rows][cols], row by row. float holds a value of any input dtype exactly, and the memory
 * to stream is what limits the big cases; every product and sum is double. */
typedef struct OracleMatrix {
    float *at;
    int64_t rows, cols;
} OracleMatrix;

float *oracle_matrix_place(OracleMatrix *M, float *memory, int64_t rows, int64_t cols);
int oracle_matrix_load(OracleMatrix *M, OracleMatrix *Mt, const Tensor *t, int64_t b, int64_t h,
                       float *row);
void oracle_matrix_row(const OracleMatrix *M, int64_t row, double *value, double *size);
void oracle_dot_columns(const OracleMatrix *M, int64_t first, int64_t last, const double *w,
                        const double *size_w, double *dot, double *size);
void oracle_weigh_rows(const OracleMatrix *M, const int64_t *index, int64_t count, int64_t first,
                       int64_t last, const double *w, const double *wa, const double *wb,
                       double *value, double *size_a, double *size_b);

/* What the key pass needs to know of a row. */
typedef struct OracleRowState {
    double lse, delta;
    double g;    /* A (1 + 2/cap) + |lse| + sqrt(n) + 8 */
    double dO_O; /* sum_x |dO||O| */
    double dO_W; /* sum_x |dO| W */
    /* with options */
    double forward;          /* error of P in the forward pass, in units of c u P */
    double shift;            /* uncertainty of lse from rounded Qn and Kn */
    double delta_f, delta_c; /* error of delta: fixed, per c */
} OracleRowState;

typedef struct OracleGroup {
    int64_t b, kv_head, heads; /* heads = H / Hkv */
    OracleMatrix K, V;         /* [Nk][d] */
    OracleMatrix Kt, Vt;       /* [d][Nk] */
    OracleMatrix *Q, *Qt;      /* per head: [Nq][d], [d][Nq] */
    OracleMatrix *dO, *dOt;
    /* with QK normalisation: by how much an element may differ; per c for f32, else fixed */
    OracleMatrix Ku, Kut, *Qu, *Qut;
    OracleRowState *state; /* [heads][Nq] */
    float *memory;         /* all of the above */
    unsigned tainted;      /* ORACLE_TAINT_... */
} OracleGroup;

/* Where one result row goes: [d] each; value of lse is one element. */
typedef struct OracleTarget {
    double *value, *fixed, *per_c;
} OracleTarget;

int oracle_group_load(OracleGroup *g, const OraclePlan *p, int64_t b, int64_t kv_head,
                      int backward);
void oracle_group_free(OracleGroup *g);

/* What the options make of one pair. */
typedef struct OraclePair {
    double weight;       /* f A: what multiplies V */
    double slope;        /* d weight / d P */
    double jump;         /* what slope may be off by: the pair stands at a kink of the clip */
    double fixed, per_c; /* error of weight before it is rounded to 16 bits */
    double rho_f, rho_c; /* relative error of P from rounded Qn and Kn */
} OraclePair;

/* P has the relative error c u relative, and `score` is the uncertainty of its score. */
OraclePair oracle_pair(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i, int64_t j,
                       double P, double relative, double score);
/* row [d] of head h becomes its normalised and rounded self, unsure [d] what may be off in it. */
void oracle_normalise_row(const OraclePlan *p, const float *w, float *row, float *unsure);
/* value, fixed, per_c [d] of dXn become those of dX (before it is rounded); part: of dw. */
void oracle_normalise_gradient(const OraclePlan *p, const float *w, const float *row,
                               double sqrt_tokens, double *value, double *fixed, double *per_c,
                               const OracleTarget *part);

int64_t oracle_scratch_doubles(const AttnShape *s); /* what oracle_row and oracle_key need */
/* Row i of the group's head h. O, lse, dQ may be NULL: only the row state is wanted. */
void oracle_row(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i, int backward,
                double *scratch, const OracleTarget *O, const OracleTarget *lse,
                const OracleTarget *dQ);
/* Key j of the group, all its heads. Every row that sees j must have its state. */
void oracle_key(const OraclePlan *p, const OracleGroup *g, int64_t j, double *scratch,
                const OracleTarget *dK, const OracleTarget *dV);

#endif
