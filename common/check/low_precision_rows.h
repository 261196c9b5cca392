/* SPDX-License-Identifier: MIT
 *
 * low_precision_rows.h: the plain low-precision implementation, one row of queries or one key. For
 * low_precision.c alone.
 *
 * Interface:
 * - PlainHead, plain_make / plain_free: room for one key/value head of a case and for some rows.
 * - plain_load: another key/value head; with `keys` its sums of dK and dV begin at zero.
 * - plain_forward, plain_backward: one row. plain_key: what rows give to one key.
 * - plain_round: to the dtype.
 */
#ifndef ATTN_LOW_PRECISION_ROWS_H
#define ATTN_LOW_PRECISION_ROWS_H

#include "attn.h"
#include "check/low_precision_options.h"

#define ROWS_MOST  64      /* rows side by side, fewer where they are long: */
#define ROW_FLOATS 4194304 /* of a [Nk] array for all of them */

/* One row of queries on its way: what a framework would have stored of it. */
typedef struct PlainRow {
    int64_t i, first, end;  /* it sees nothing outside of keys first .. end-1 */
    int64_t b, h;           /* of which head */
    float max, sum;         /* of the scores, of exp(score - max) */
    float *q, *dO, *O, *dQ; /* [d] */
    float *S, *P, *dP;      /* [Nk] */
    float *slope;           /* [Nk] */
    float *A, *gain;        /* [Nk] what multiplies V, and its derivative by P */
    float *dS;              /* [Nk] */
    uint8_t *seen;          /* [Nk] */
} PlainRow;

/* One key/value head as float rows, the sums that all its query heads add to, and some rows. */
typedef struct PlainHead {
    const AttnArgs *args;
    AttnDtype dtype;
    AttnPosition *q_at, *k_at;
    float *Kt, *Vt; /* [d][Nk]: a row of scores is then d long additions of rows */
    float *K, *V;   /* [Nk][d] */
    float *dK, *dV; /* [Nk][d], backward */
    LowPrecisionOptions options;
    int64_t places; /* rows that are computed side by side */
    PlainRow row[ROWS_MOST];
    uint8_t *seen;
    float *memory;
} PlainHead;

/* 0, or -1 when memory is short. */
int plain_make(PlainHead *p, const AttnArgs *args);
void plain_free(PlainHead *p);
void plain_load(PlainHead *p, int64_t b, int64_t kv, int keys, int threads);
float plain_round(const PlainHead *p, float x);

/* P and O of row r->i of query head h of batch b. threads: of this row, whose result does not
 * depend on them. */
void plain_forward(const PlainHead *p, PlainRow *r, int64_t b, int64_t h, int threads);
/* dS and dQ of the same row, after plain_forward. */
void plain_backward(const PlainHead *p, PlainRow *r, int64_t b, int64_t h);
/* What the first `count` rows give to key j, in the order of rows whatever the threads. */
void plain_key(PlainHead *p, int64_t count, int64_t j);

#endif
