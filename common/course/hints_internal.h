/* SPDX-License-Identifier: MIT
 *
 * hints_internal.h: a mistake as data, and attention with that mistake, row by row.
 *
 * A mistake changes one of the questions that an attention kernel answers: which memory is a row
 * read from, which pairs are visible, what is the score of a pair, how are the weights summed up,
 * what becomes lse, what does the gradient do. Mistakes of tiled kernels depend on the tile.
 *
 * Interface:
 * - HintBug: the answers. HintMistake: a row of the table hint_mistakes (hints_table.c).
 * - HintCase, hint_see, hint_score, hint_feed_...: hints_case.c.
 * - hint_forward_row: O and lse of a row with their tolerances (hints_forward.c).
 * - hint_dq_row, hint_dkv_row: gradients of a row or a key (hints_gradient.c).
 */
#ifndef ATTN_HINTS_INTERNAL_H
#define ATTN_HINTS_INTERNAL_H

#include "course/hints.h"

/* Which pairs are visible. T: of keys, Tq: of queries. */
enum {
    SEE_RIGHT,
    SEE_ALL,          /* neither rule nor mask */
    SEE_NO_RULE,      /* mask, but no causal rule and no window */
    SEE_NO_MASK,      /* rule, but no full mask */
    SEE_NO_LEFT,      /* no left end of the window */
    SEE_NO_RIGHT,     /* no right end: of a causal window only its left end */
    SEE_OTHER_CORNER, /* upper-left for lower-right, or the reverse */
    SEE_FROM_FIRST,   /* upper-left, whatever is asked for */
    SEE_FROM_LAST,
    SEE_NONE,
    SEE_POLARITY,        /* 1 = visible */
    SEE_MASK_TRANSPOSED, /* mask[j * Nq + i] */
    SEE_SWAPPED,         /* query and key exchanged */
    SEE_MIRRORED,        /* left and right exchanged */
    SEE_MOVED,           /* ends moved by bug.left and bug.right */
    SEE_ONE_SEQUENCE,    /* positions of one long run, no sequences */
    SEE_ANY_SEQUENCE,    /* positions within the sequences, which are not compared */
    SEE_NOT_LAST_KEY,
    SEE_NOT_FIRST_KEY,
    SEE_NO_TAIL,          /* the last partial tile of T keys is dropped */
    SEE_NO_TAIL_ROWS,     /* that of T queries: in dK and dV */
    SEE_PADDING,          /* keys of zeros up to a whole tile of T are seen */
    SEE_NOT_FIRST_TILE,   /* the first tile of T keys is dropped */
    SEE_NOT_LAST_VISIBLE, /* the last tile of T keys that Tq queries see is dropped */
    SEE_CLEAN_ONLY,       /* tiles of Tq x T that hide a pair are skipped */
    SEE_TILES_WHOLE,      /* those that show a pair are seen as a whole */
    SEE_STRIP_END,        /* Tq queries see what the last of them sees to the right */
    SEE_WRONG_SIDE,       /* tiles of queries behind the tile of keys are skipped */
    SEE_LEFT_EDGE,        /* the key at the left end is hidden where it does not begin a vector */
    SEE_RIGHT_EDGE        /* that at the right end where it does not end one */
};

/* Which memory is read. */
enum {
    FEED_RIGHT,
    FEED_KV_MODULO, /* kv head h % Hkv */
    FEED_KV_FIRST,  /* kv head 0 */
    FEED_BATCH_Q,   /* batch 0 for all */
    FEED_BATCH_K,
    FEED_BATCH_V,
    FEED_BATCH_KV,
    FEED_K_FOR_V,
    FEED_V_TRANSPOSED,   /* a head of [Nk][d] taken for [d][Nk] */
    FEED_SWAPPED,        /* Q and K, where there are as many of both */
    FEED_LAYOUT,         /* [B][N][H][d] taken for [B][H][N][d], inputs and outputs */
    FEED_NOT_NORMALISED, /* Q and K before the QK normalisation */
    FEED_FIRST_GROUP,    /* all groups divided by the root mean square of the first */
};

enum {
    SCORE_RIGHT,
    SCORE_NO_SCALE,
    SCORE_SCALED_TWICE,
    SCORE_DEFAULT_SCALE, /* 1/sqrt(d), whatever the caller asks for */
    SCORE_BY_D,          /* 1/d */
    SCORE_BASE_2,        /* 2^s */
    SCORE_ZERO,          /* of every pair */
    SCORE_NO_CAP,
    SCORE_CAP_AFTER_MASK,
    SCORE_CAP_NOT_SCALED, /* tanh(s / cap) */
    SCORE_CAP_BEFORE_SCALE,
    SCORE_TEMPERATURE_BEFORE_CAP, /* although there is a cap */
    SCORE_TEMPERATURE_BEHIND_CAP,
    SCORE_NO_TEMPERATURE
};

/* How weights become O. */
enum {
    SUM_RIGHT,
    SUM_NOT_NORMALISED,     /* sum of exp(s - m) V */
    SUM_RAW_NOT_NORMALISED, /* sum of exp(s) V */
    SUM_MEAN_VISIBLE,
    SUM_MEAN_ALL,
    SUM_ZEROS,
    SUM_NOT_WRITTEN,
    SUM_OVER_QUERIES, /* the softmax of a column */
    SUM_NOT_LAST_KEY, /* in the product with V alone */
    SUM_NOT_FIRST_KEY,
    SUM_NO_TAIL_PV,      /* the tail tile's weights meet no V */
    SUM_NO_TAIL_L,       /* the tail tile is not in the sum */
    SUM_TAIL_NOT_EXP,    /* nor is it put through exp: its weights are scores */
    SUM_LARGEST_TREE,    /* the sum of the largest power of two of tiles */
    SUM_NO_MAX,          /* exp(s) overflows float32 */
    SUM_M_FROM_ZERO,     /* max(0, scores) is subtracted: exp may vanish */
    SUM_LARGE_NUMBER,    /* hidden scores are a large negative number, not -inf */
    SUM_NAN_EMPTY,       /* a row whose first tile of T hides all: NaN */
    SUM_NAN_EMPTY_RULED, /* the same of the first tile that the rule lets Tq rows see */
    SUM_STALE_O,         /* O is not rescaled */
    SUM_STALE_L,
    SUM_STALE_BOTH,
    SUM_STALE_NEW,        /* the new tile keeps the shift of its own maximum */
    SUM_STALE_NEW_L,      /* and so does its sum */
    SUM_NORMALISED_TWICE, /* O is divided by l after each tile, and at the end */
    SUM_STALE_M,          /* the running maximum stays -inf */
    SUM_LAST_TILE,        /* O and lse of the last tile that Tq rows see */
    SUM_TILES_NORMALISED, /* each tile normalised by itself, added up */
    SUM_NEW_NOT_WEIGHTED, /* blocks merged by lse: the new one without its weight */
    SUM_OLD_NOT_WEIGHTED,
    SUM_NO_DROPOUT,
    SUM_DROPOUT_NOT_SCALED,
    SUM_DROPOUT_BY_TILE, /* the generator counts keys from the start of a tile */
    SUM_NO_CLIP,
    SUM_CLIP_NOT_CUT /* below 0 */
};

enum {
    LSE_RIGHT,
    LSE_BASE_2,
    LSE_BASE_10,
    LSE_LOG2_L, /* m + log2(l) */
    LSE_NO_MAX,
    LSE_NO_LOG_L,
    LSE_L_NOT_LOG, /* m + l */
    LSE_IS_L,
    LSE_ZERO,
    LSE_NOT_WRITTEN
};

enum {
    GRADIENT_RIGHT,
    GRADIENT_NO_OUTER_SCALE, /* with a score that has none either */
    GRADIENT_NO_DELTA,
    GRADIENT_DELTA_ADDED,
    GRADIENT_DELTA_V,       /* dO_i V_i */
    GRADIENT_DELTA_V_TILE,  /* dO_i V of the same row in the tile of T keys */
    GRADIENT_DELTA_TILE,    /* sum of P dP of the tile */
    GRADIENT_DELTA_CLIPPED, /* rowsum(dO O), though weights are clipped */
    GRADIENT_NO_SLOPE,
    GRADIENT_P_RAW,    /* exp(s) */
    GRADIENT_P_M,      /* exp(s - m) */
    GRADIENT_P_TILE_M, /* m of the tile */
    GRADIENT_NO_P,     /* dS = dP - delta */
    GRADIENT_GROUP_LAST,
    GRADIENT_GROUP_FIRST,
    GRADIENT_GROUP_STRIDED, /* heads of a group are Hkv apart, dQ is stored as if they were not */
    GRADIENT_GROUP_STORED,  /* a group's sums go where its last head reads, over what was there */
    GRADIENT_NORM_IGNORED,  /* dQ and dK are those of the normalised Q and K */
    GRADIENT_NORM_NO_MEAN,  /* the root mean square is taken for a constant */
    GRADIENT_NORM_NO_WEIGHT,
    GRADIENT_DK_NOT_TRANSPOSED,
    GRADIENT_DV_NOT_TRANSPOSED,
    GRADIENT_DQ_LAST_TILE, /* dQ holds what the last visible tile of T keys gave */
    GRADIENT_DKV_LAST_TILE,
    GRADIENT_DQ_PART_LOST, /* of Tq parts, which take tiles of T keys in turn, the last */
    GRADIENT_DQ_ONE_PART   /* all but the first */
};

/* A constant factor on an array. */
enum {
    FACTOR_NONE,
    FACTOR_MINUS_1,
    FACTOR_SCALE,
    FACTOR_INVERSE_SCALE,
    FACTOR_GROUP,
    FACTOR_INVERSE_GROUP,
    FACTOR_2,
    FACTOR_HALF,
    FACTOR_LOG2_E,
    FACTOR_LN_2,
    FACTOR_N,
    FACTOR_INVERSE_N
};

typedef struct HintBug {
    int see, left, right;
    int feed, score, sum, lse, gradient, factor;
    int shift; /* row i holds what belongs to row i + shift */
    int tiled; /* 1: the mistake is made in tiles of Tq x T that hide some pairs and show others */
} HintBug;

/* Sets of tiles (T, Tq) to try. */
enum {
    TILES_NONE,
    TILES_ROW,   /* T = 1 .. 128 and some larger ones, Tq = 1: what a row does by itself */
    TILES_EVEN,  /* the same T, Tq = T */
    TILES_SRAM,  /* the same T, Tq = min(T, d): FlashAttention-1's rule */
    TILES_QUERY, /* Tq = 1 .. 128 */
    TILES_FEW,   /* T = Tq = 8, 16, 32 ... */
    TILES_PAIRS, /* Tq and T of usual sizes */
    TILES_PARTS  /* T = 4, 8 .. 128, Tq = 2 .. 8 parts */
};

typedef struct HintTile {
    int64_t T, Tq;
} HintTile;

#define HINT_O         (1 << CHECK_O)
#define HINT_LSE       (1 << CHECK_LSE)
#define HINT_DQ        (1 << CHECK_DQ)
#define HINT_DK        (1 << CHECK_DK)
#define HINT_DV        (1 << CHECK_DV)
#define HINT_FORWARD   (HINT_O | HINT_LSE)
#define HINT_GRADIENTS (HINT_DQ | HINT_DK | HINT_DV)
#define HINT_ALL       (HINT_FORWARD | HINT_GRADIENTS)
#define HINT_TOGETHER  (1 << CHECK_COUNT) /* all of a mistake's arrays must be wrong */

typedef struct HintMistake {
    const char *code, *sentence;
    int arrays; /* what it may make wrong */
    int tiles;  /* TILES_... */
    HintBug bug;
} HintMistake;

extern const HintMistake hint_mistakes[];
extern const int hint_mistake_count;
int hint_tile_count(int tiles);
HintTile hint_tile(int tiles, int n, int64_t d); /* 0 <= n < hint_tile_count(tiles) */

/* Where a gradient starts: the O and lse that a backward pass got, in float64. */
typedef struct HintGiven {
    double *O, *lse; /* [B][H][Nq][d], [B][H][Nq] */
} HintGiven;

/* Rows of one array group and one hypothesis, in the order of hint_unit. */
typedef struct HintRows {
    double *at;
    int64_t count, room;
} HintRows;

struct HintCase {
    const AttnArgs *args;
    AttnShape n;
    int backward;
    double c, u16, eta, scale, cap, temperature;
    double *Q, *K, *V, *dO;        /* [B][N][heads][d] */
    double *Q_else[2], *K_else[2]; /* with a QK normalisation: not normalised, by the first group */
    double *K_norm;                /* [B][Nk][Hkv] Euclidean length of the row; V likewise */
    double *V_norm, *Q_norm, *dO_norm;
    double largest_k;
    AttnPosition *q_at, *k_at; /* [Nq], [Nk] */
    int64_t *corner; /* [2][Nq] position of a query counted from the first key, from the last */
    int clips, drops, norms;
    double clip_low, gain, kept;
    uint32_t threshold;
    double *s, *w, *keep; /* [Nk + SCRATCH] of the row at hand */
    uint8_t *see;         /* [Nk + SCRATCH] */
    double *column_lse;   /* [Nq or Nk], of head column_of, or -1 */
    int64_t column_of;
    const Oracle *oracle; /* the definition itself */
    HintGiven right;      /* its O and lse */
    struct {              /* of the row asked for last */
        int64_t strip, T, Tq, tile;
    } last;
    struct { /* hints_gradient.c: [B][H][Nq][1 + tiles] of one hypothesis */
        const HintBug *bug;
        const double *given;
        HintTile tile;
        double *at;
    } shared;
    HintRows *rows; /* [hypotheses][3] */
    size_t kept_bytes;
};

/* Flat rows of the float64 copies. */
int64_t hint_kv_head(const HintCase *c, int feed, int64_t h);
const double *hint_q(const HintCase *c, int feed, int64_t b, int64_t h, int64_t i);
const double *hint_keys(const HintCase *c, int feed); /* of the rows that hint_k_row numbers */
int64_t hint_k_row(const HintCase *c, int feed, int64_t b, int64_t h, int64_t j);
int64_t hint_v_row(const HintCase *c, int feed, int64_t b, int64_t h, int64_t j);
int64_t hint_row_step(const HintCase *c, int feed); /* from key j to key j + 1 */
double hint_dot(const double *a, const double *b, int64_t d);

/* The last tile of tile.T keys that the tile.Tq queries around i see a part of, -1 = none. */
int64_t hint_last_tile(HintCase *c, HintTile tile, int64_t i);
/* i < 0: of a padding key, j >= Nk, behind the last. */
int hint_see(HintCase *c, const HintBug *bug, HintTile tile, int64_t i, int64_t j);
double hint_score(const HintCase *c, const HintBug *bug, double qk, int *visible);
/* Is any pair of the tile around (i, j) visible by the rule? 1 without tiles. */
int hint_tile_visited(const HintCase *c, HintTile tile, int64_t i, int64_t j);
double hint_factor(const HintCase *c, int factor);
/* The weight that meets V: clipped, dropped. */
double hint_weight(const HintCase *c, const HintBug *bug, HintTile tile, int64_t b, int64_t h,
                   int64_t i, int64_t j, double P);

/* out [2 * (d + 1)]: O, lse, then the tolerance of each; INFINITY = anything is accepted,
 * -1 of a NaN: the bytes that memory is filled with before a run; HINT_OR_NAN: this or a NaN. */
#define HINT_OR_NAN (-2.0)
void hint_forward_row(HintCase *c, const HintBug *bug, HintTile tile, int64_t b, int64_t h,
                      int64_t i, double *out);
/* out [2 * d] */
void hint_dq_row(HintCase *c, const HintBug *bug, HintTile tile, const HintGiven *g, int64_t b,
                 int64_t h, int64_t i, double *out);
/* out [4 * d]: dK, dV, then the tolerances */
void hint_dkv_row(HintCase *c, const HintBug *bug, HintTile tile, const HintGiven *g, int64_t b,
                  int64_t h_kv, int64_t j, double *out);

#endif
