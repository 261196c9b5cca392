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
 * - OraclePlan, oracle_plan_make / oracle_plan_free: what holds for the whole case.
 * - OracleGroup: the float64 copy of one group, whatever dtype and strides the inputs have.
 * - oracle_weigh_rows, oracle_dot_columns, oracle_matrix_...: y = w^T M.
 * - oracle_row, oracle_key: the definition of attention, of its gradient, and the bounds.
 * - oracle_option_..., oracle_normalise_...: what stage 05's options make of a row and of a key.
 * - oracle_sample_...: which rows and keys of a big case are computed.
 */
#ifndef ATTN_ORACLE_CORE_H
#define ATTN_ORACLE_CORE_H

#include "attn_options.h"
#include "harness/oracle/oracle.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#define ORACLE_TILE 256 /* tokens, of cases that go tile by tile: oracle_tiles.c */

/* Of up to ORACLE_TILE tokens in a row. (attn_range and attn_tile_class are among what is
 * judged.) */
typedef struct OracleRange {
    int64_t sequence, low, high; /* sequence -1: of several, so nothing is known */
} OracleRange;

typedef struct OraclePlan {
    const AttnArgs *args;
    double scale, cap;  /* cap 0 = none */
    double u16, eta;    /* of the dtype of O: see oracle.h; u16 with partials */
    double u_copy;      /* the dtype's own, when there are copies */
    int bytes;          /* 1: P in e4m3 */
    int64_t copies;     /* of a kv head; 0: none, or nothing is rounded */
    AttnPosition *q_at; /* [Nq] */
    AttnPosition *k_at; /* [Nk] */
    /* Positions of every 256 tokens, so that what a window hides is passed over; NULL when nothing
     * is a sample: then every pair is asked. */
    OracleRange *q_range, *k_range;
    /* NULL: none, or only a temperature, and that is part of scale */
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
void oracle_matrix_load(OracleMatrix *M, OracleMatrix *Mt, const Tensor *t, int64_t b, int64_t h);
void oracle_matrix_row(const OracleMatrix *M, int64_t row, double *value, double *size);
void oracle_dot_columns(const OracleMatrix *M, int64_t first, int64_t last, const double *w,
                        const double *size_w, double *dot, double *size);
void oracle_weigh_rows(const OracleMatrix *M, const int64_t *index, int64_t count, int64_t first,
                       int64_t last, const double *w, const double *wa, const double *wb,
                       double *value, double *size_a, double *size_b);

/* What the key pass needs to know of a row. */
typedef struct OracleRowState {
    double lse, delta;
    double rounding; /* sqrt(n) + 8, which does not come from the scores */
    double forward;  /* D A + rounding: error of P in the forward pass, in units of c u P */
    double output;   /* the same for O: without D A where one key is seen, whose P is 1 anyhow */
    double g;        /* forward + |lse| + 2 D A / cap: in the backward pass */
    double dO_O;     /* sum_x |dO||O| */
    double dO_W;     /* sum_x |dO| W */
    double dO_floor; /* eta F */
    double score;    /* e4m3: error of a score by the tensor core's sum */
    /* with options */
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
} OracleGroup;

/* Where one result row goes: [d] each; value of lse is one element. */
typedef struct OracleTarget {
    double *value, *fixed, *per_c;
    double *copied, *square; /* or NULL */
} OracleTarget;

static inline OracleTarget oracle_target_at(const OracleArray *a, int64_t element)
{
    const OracleTarget to = {a->value + element, a->fixed + element, a->per_c + element,
                             a->copied ? a->copied + element : NULL,
                             a->square ? a->square + element : NULL};
    return to;
}

/* The arrays of one thread. N = max(Nq, Nk). */
typedef struct OracleScratch {
    int64_t *index;           /* [N] what is seen, ascending */
    double *dot, *size;       /* [N] scores or dP, and their sums of magnitudes */
    double *P, *slope;        /* [N] like index: of the t-th one seen */
    double *w, *wc, *wf;      /* [N] weights for value, per_c, fixed */
    double *v, *vc, *vf;      /* [N] a second set */
    double *row, *row_size;   /* [d] */
    double *row2, *row2_size; /* [d] */
    double *y, *yc, *yf;      /* [d] sums */
    double *z, *zc, *zf;      /* [d] a second set */
    double *unsure;           /* [N] with options: uncertainty of a score, like index */
    double *spare, *spare2;   /* [d] */
} OracleScratch;

static inline int oracle_thread_number(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

#define ORACLE_U    0x1p-24  /* half an ulp of float32 */
#define ORACLE_TINY 0x1p-126 /* smallest normal float32 */
#define ORACLE_MOST 80.0     /* error of an exponent beyond which float32 says nothing */

/* roundings: oracle.h. whole: nothing is a sample. 0, or -1 when memory is short; oracle_plan_free
 * is right after both. */
int oracle_plan_make(OraclePlan *p, const AttnArgs *args, OracleRoundings roundings, int whole);
void oracle_plan_free(OraclePlan *p);

/* What is computed of a case, in pair-channels (pairs times d). */
typedef struct OracleLimits {
    double whole;  /* of all pairs: up to here everything, beyond it a sample */
    double groups; /* visible ones: of groups with whole dK and dV. If one alone has more: */
    double given; /* visible ones of sampled keys, with O and lse of a run; 0: whole groups still */
} OracleLimits;

/* What oracle_run and oracle_run_reference do, with limits of their own. */
int oracle_run_within(Oracle *o, const AttnArgs *args, int backward, int threads,
                      OracleRoundings roundings, const OracleLimits *limits);

int oracle_group_load(OracleGroup *g, const OraclePlan *p, int64_t b, int64_t kv_head,
                      int backward);
void oracle_group_free(OracleGroup *g);

/* Memory for what o->rows, keys and kv_heads ask for. 0, or nonzero when memory is short.
 * of_tokens: where a token's part of dwq and dwk goes, with QK normalisation. */
int oracle_allocate(Oracle *o, OraclePlan *p, int backward, OracleArray of_tokens[2]);
int oracle_new_gradients(Oracle *o, const OraclePlan *p);
void oracle_array_free(OracleArray *a);
int64_t oracle_scratch_doubles(const AttnShape *s); /* what oracle_row and oracle_key need */
OracleScratch oracle_scratch_divide(const AttnShape *s, double *memory);

/* How many keys query `at` sees (of_keys), or how many queries see key `at`; which ones, ascending,
 * into index unless that is NULL. */
int64_t oracle_seen(const OraclePlan *p, int of_keys, int64_t at, int64_t *index);
/* o->tainted and o->tainted_at of a group, b * Hkv + kv head. (dO of a row without keys is padding:
 * it reaches nothing, whatever it is.) */
void oracle_find_taint(Oracle *o, const OraclePlan *p, int64_t group, int backward, int threads);
/* The score after scale and cap, and the derivative of the cap there. */
double oracle_cap_score(const OraclePlan *p, double qk, double *slope);
/* exp(score - shift), shift the largest score of the row, or its lse; 0 where both are -inf. */
double oracle_weight(double score, double shift);
/* D: what an error of one score may be, in units of c u sum_x scale |q||k|. */
double oracle_score_error(const OraclePlan *p);
/* The factor of P that a relative error c u g becomes when it is not small; oracle_core.c. */
double oracle_grown(const OraclePlan *p, double g);
int oracle_is_beyond(const OraclePlan *p, double g);
/* forward and g of a row with its lse: A as above, n visible keys. */
void oracle_row_errors(const OraclePlan *p, double A, int64_t n, OracleRowState *state);
/* Weights of dS in dQ or dK, from everything known of the pair (i, j); value, per_c, fixed. */
void oracle_weigh_pair(const OraclePlan *p, const OracleRowState *row, double P, double slope,
                       double dP, double size_dP, double g_i, double *w, double *wc, double *wf);

/* e4m3, oracle_bytes.c (else nothing happens). Of a row whose P is known: state->score, what its
 * bytes add to m->wf, and, unless NULL, what the squares of its errors should add up to. */
void oracle_bytes_weigh(const OraclePlan *p, const OracleGroup *g, OracleScratch *m, int64_t n,
                        OracleRowState *state, double *square);
/* Error of a score by the tensor core's sum, if only A = sum |q||k| scale is known. */
double oracle_score_sum(const OraclePlan *p, double A);
/* How far a P may be off when it is multiplied, and its product when it is summed; P and the
 * largest of the row. */
double oracle_byte_error(const OracleRowState *state, double P, double largest);

/* Row i of the group's head h. O, lse, dQ may be NULL: only the row state is wanted. */
void oracle_row(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i, int backward,
                double *scratch, const OracleTarget *O, const OracleTarget *lse,
                const OracleTarget *dQ);
/* Key j of the group, all its heads. Every row that sees j must have its state. */
void oracle_key(const OraclePlan *p, const OracleGroup *g, int64_t j, double *scratch,
                const OracleTarget *dK, const OracleTarget *dV);

/* Adds the rounding of a finished sum: value [d] holds it, fixed and per_c its |w||M| sums. */
void oracle_finish(const OraclePlan *p, int64_t d, const double *value, const double *fixed,
                   const double *per_c, const OracleTarget *to);
/* After query head h of a key: if it is the last one of a copy, the copy's part is what sum [d] has
 * gained since `before`, which becomes sum; copied [d] grows by what rounding the part may do. */
void oracle_note_copy(const OraclePlan *p, int64_t h, const double *sum, double *before,
                      double *copied);
void oracle_target_fill(const OracleTarget *to, int64_t d, double value, double fixed,
                        double per_c);

/* With options, oracle_options.c. Row i of head h, whose P and n are known: y = O, yc = W, yf and
 * zc the parts of its bound, and its state. */
void oracle_option_row(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i, int64_t n,
                       OracleScratch *m, OracleRowState *state);
/* After it: delta and its error, and dQ unless that is NULL. */
void oracle_option_gradient(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t i,
                            int64_t n, OracleScratch *m, OracleRowState *state,
                            const OracleTarget *dQ);
/* Adds what head h gives to dKn and dV of key j: y and z. P, slope, dot = dP and size are known. */
void oracle_option_key(const OraclePlan *p, const OracleGroup *g, int64_t h, int64_t j, int64_t n,
                       double sqrt_terms, OracleScratch *m);

/* row [d] becomes its normalised and rounded self, unsure [d] what may be off
 * in it: per c for f32, else fixed. */
void oracle_normalise_row(const OraclePlan *p, const float *w, float *row, float *unsure);
/* z of query i of head h, or y of key j, is the gradient of the normalised row with its bound and
 * becomes that of the row; the token's part of dwq, dwk is written where one is wanted. */
void oracle_normalise_key(const OraclePlan *p, const OracleGroup *g, int64_t j, OracleScratch *m);
/* dwq and dwk from the parts of all tokens, [B][heads][N][d]. */
void oracle_normalise_sum(Oracle *o, const OracleArray of_tokens[2]);

/* oracle_tiles.c: positions of every ORACLE_TILE of N tokens; NULL when memory is short. O and lse
 * of the sampled rows of all groups, tile by tile: 0, or -1. */
OracleRange *oracle_ranges(const AttnPosition *at, int64_t N);
int oracle_stream_groups(Oracle *o, const OraclePlan *p, int backward, int threads);

/* Which rows, keys and groups of a case: o->rows, keys, kv_heads and what follows from them. 0, or
 * -1. */
int oracle_sample_choose(Oracle *o, const OraclePlan *p, int backward, const OracleLimits *limits);
/* ATTN_SAMPLE_SEED, or a number that differs from run to run. */
uint64_t oracle_sample_seed(void);

#endif
