/* SPDX-License-Identifier: MIT
 *
 * watch.h: put before a rung (clang -include), it writes down what the rung does. The rung's source
 * stays as it is. Its units are included here first; then their functions get macros of the same
 * name, which call them and write a line into the log. A macro knows the line of C and the words of
 * its arguments ("fast->K_j"), so the page can show both.
 *
 * Interface:
 * - watch_values: one line of the log: `rows` x `cols` numbers. op: '<' into fast memory, '>' out
 *   of it, '=' computed, '*' a factor of a product, other letters: see the macros.
 * - watch_clear, watch_length: of the log.
 * - watch_tile: from now on this tile is at work. watch_fast: its fast memory.
 * - watch_rank: in this line the rank asks for attention, in the step in which it is.
 */
#ifndef WATCH_H
#define WATCH_H

#include <math.h>

#include "problem.h"
#include "problem_rows.h"
#include "runtime/rank.h"
#include "units/exp.h"
#include "units/gradient_tiles.h"
#include "units/half_rows.h"
#include "units/scores.h"
#include "units/softmax_state.h"

typedef struct WatchAt { /* where in the rung */
    const char *name, *file, *function;
    int line;
} WatchAt;

extern const FastMemory *watch_fast;
extern const Problem *watch_problem;
extern int watch_query;            /* of the last query_row */
extern int watch_rows, watch_keys; /* in the place of stage 04's TILE_ROWS and TILE_KEYS */
void watch_rank(const RingRank *r, WatchAt at);
void watch_clear(void);
int watch_length(void);
void watch_tile(int64_t i, int64_t rows, int64_t j, int64_t cols);
void watch_values(int op, WatchAt at, const float *slow, const float *values, int64_t rows,
                  int64_t cols, int64_t ld);

#define AT(name) ((WatchAt){name, __FILE__, __func__, __LINE__})

/* A function with another name than below is an error here. */
static inline void watch_names(void)
{
    (void)load_tile, (void)store_tile, (void)load_floats, (void)store_floats, (void)score_block;
    (void)matmul, (void)score, (void)query_row, (void)key_row, (void)first_key, (void)softmax_push;
    (void)softmax_merge, (void)store_row, (void)ring_see_keys, (void)ring_see_last_keys;
    (void)ring_differentiate;
}

static inline float watch_number(int op, WatchAt at, float value)
{
    watch_values(op, at, NULL, &value, 1, 1, 1);
    return value;
}

static inline SoftmaxState watch_pair(int op, WatchAt at, SoftmaxState a, SoftmaxState b,
                                      SoftmaxState both)
{
    const float alpha = expf(a.m - softmax_shift(both.m));
    const float values[] = {a.m, a.l, b.m, b.l, both.m, both.l, alpha};
    watch_values(op, at, NULL, values, 1, 7, 7);
    return both;
}

/* Before a product m and l of the rows are already at the new maximum. */
static inline void watch_state(WatchAt at, int64_t rows)
{
    if (!watch_fast || !watch_fast->m_i)
        return;
    at.name = "m_i";
    watch_values('=', at, NULL, watch_fast->m_i, rows, 1, 1);
    at.name = "l_i";
    watch_values('=', at, NULL, watch_fast->l_i, rows, 1, 1);
}

/* --- the door of fast memory (03, 04) ----------------------------------------------------------*/

#define load_tile(fast, tile, from, ld, count)                                                     \
    (load_tile(fast, tile, from, ld, count), watch_fast = (fast),                                  \
     watch_values('<', AT(#tile), from, tile, count, (fast)->d, (fast)->d))
#define store_tile(fast, to, ld, tile, count)                                                      \
    (store_tile(fast, to, ld, tile, count), watch_fast = (fast),                                   \
     watch_values('>', AT(#tile), to, tile, count, (fast)->d, (fast)->d))
#define load_floats(fast, tile, slow, count)                                                       \
    (load_floats(fast, tile, slow, count), watch_fast = (fast),                                    \
     watch_values('<', AT(#tile), slow, tile, count, 1, 1))
#define store_floats(fast, slow, tile, count)                                                      \
    (store_floats(fast, slow, tile, count), watch_fast = (fast),                                   \
     watch_values('>', AT(#tile), slow, tile, count, 1, 1))

/* --- products (03, 04, 05) ---------------------------------------------------------------------*/

#define score_block(rule, Q_i, ld_Q, i, rows, K_j, ld_K, j, cols, d, S, ld_S)                      \
    (score_block(rule, Q_i, ld_Q, i, rows, K_j, ld_K, j, cols, d, S, ld_S),                        \
     watch_tile(i, rows, j, cols), watch_values('=', AT("S"), NULL, S, rows, cols, ld_S))
#define matmul(A_is, B_is, m, n, k, alpha, A, ld_A, B, ld_B, beta, C, ld_C)                        \
    (watch_state(AT(NULL), m),                                                                     \
     watch_values('*', AT(#A), NULL, A, (A_is) ? (k) : (m), (A_is) ? (m) : (k), ld_A),             \
     matmul(A_is, B_is, m, n, k, alpha, A, ld_A, B, ld_B, beta, C, ld_C),                          \
     watch_values('=', AT(#C), NULL, C, m, n, ld_C))
#undef TILE_ROWS
#undef TILE_KEYS
#define TILE_ROWS watch_rows
#define TILE_KEYS watch_keys

/* --- one number at a time (01, 02, and alpha everywhere) ---------------------------------------*/

#define expf(x)               watch_number('e', AT(#x), expf(x))
#define score(p, qk)          watch_number('s', AT("s"), score(p, qk))
#define query_row(p, b, h, i) (watch_query = (i), query_row(p, b, h, i))
/* 'o': O of the query, as it is before its key j */
#define key_row(p, b, h, j)                                                                        \
    (watch_tile(watch_query, 1, j, 1),                                                             \
     watch_values('o', AT("O_i"), NULL, (const float *)(p)->O + watch_query * (p)->d, 1, (p)->d,   \
                  (p)->d),                                                                         \
     key_row(p, b, h, j))
#define first_key(p, i)     (watch_number('f', AT("i"), (float)(i)), first_key(p, i))
#define ONE_SCORE(s)        ((SoftmaxState){s, 1.0f})
#define softmax_push(a, s)  watch_pair('p', AT(NULL), a, ONE_SCORE(s), softmax_push(a, s))
#define softmax_merge(a, b) watch_pair('m', AT(NULL), a, b, softmax_merge(a, b))
#define LOAD_BLOCK(block, x, n)                                                                    \
    (LOAD_BLOCK(block, x, n), watch_values('<', AT(#block), x, block, 1, n, n))

/* --- steps and streams (05) --------------------------------------------------------------------*/

#define store_row(to, dtype, at, d, row)                                                           \
    (store_row(to, dtype, at, d, row),                                                             \
     watch_values('>', AT("O"), (const float *)(to) + (at), row, 1, d, d),                         \
     watch_values('=', AT("lse"), NULL, watch_problem->lse, 1, watch_problem->Nq,                  \
                  watch_problem->Nq))
#define weigh_values(cache, S, m, O)                                                               \
    ({                                                                                             \
        watch_values('=', AT("V"), NULL, (cache)->V, (cache)->count, (cache)->d, (cache)->ld);     \
        watch_values('=', AT("S"), NULL, S, 1, (cache)->count, (cache)->count);                    \
        const float l_ = watch_number('=', AT("l"), weigh_values(cache, S, m, O));                 \
        watch_values('=', AT("P"), NULL, S, 1, (cache)->count, (cache)->count);                    \
        l_;                                                                                        \
    })

/* --- ranks, while a method writes down its timetable (06) --------------------------------------*/

#define ring_see_keys(r, s, k)      (watch_rank(r, AT("ring")), ring_see_keys(r, s, k))
#define ring_see_last_keys(r, s, k) (watch_rank(r, AT("ring")), ring_see_last_keys(r, s, k))
#define ring_differentiate(r, q, k, dQ, dK, dV)                                                    \
    (watch_rank(r, AT("ring")), ring_differentiate(r, q, k, dQ, dK, dV))
#endif
