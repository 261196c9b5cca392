/* SPDX-License-Identifier: MIT
 *
 * v1_online_block: one block of queries and one of keys a step, merged in place, in any order.
 *
 *     O = 0, lse = -inf
 *     for each visit (i, j), in --order:
 *         (O_ij, lse_ij) = attention of the queries of block i over the keys of block j alone
 *         O_i, lse_i = both together
 *
 * Everything that a row i has learned from the keys S that it has seen fits in two things,
 *
 *     lse = ln sum of exp(s_ij) over j in S,     O = sum of exp(s_ij - lse) V_j over j in S
 *
 * and two such pairs of disjoint S1 and S2 have one sum. With both on the same footing,
 *
 *     exp(lse) = exp(lse1) + exp(lse2)           exp(lse) O = exp(lse1) O1 + exp(lse2) O2
 *
 * that is addition: associative and commutative. Hence any order of blocks, from anywhere. It is
 * only the notation that has to be careful, since exp(lse) overflows from 89 on:
 *
 *     lse = max + log1p(exp(min - max))          O = exp(lse1 - lse) O1 + exp(lse2 - lse) O2
 *
 * of max and min of lse1, lse2. No exponent is positive now. S = {} is lse = -inf, O = 0; where
 * both sides are empty, min - max would be -inf - -inf = NaN, and there is nothing to do.
 *
 * A block outside the window costs four comparisons. Every other step reads its block anew and the
 * state of its rows, and writes that back in the dtype of O: with 16-bit tensors a row is rounded
 * as often as it meets a block with something to see. That is the price of in place; lesson 05.4
 * measures it.
 *
 * A block's own attention is two products and, between them, the softmax by powers of 2 of stage
 * 03's v4_exp2.
 *
 * Interface: the rung of stage 05 that goes in steps, and keeps the tensors' dtype between them.
 */
#include <math.h>

#include "problem.h"
#include "units/exp2_vector.h"
#include "units/half_rows.h"
#include "units/product.h"

/* What one thread works in. */
typedef struct Block {
    float *Q_i, *O_ij; /* [block_q][d] */
    float *K_j, *V_j;  /* [block_kv][d] */
    float *S;          /* [block_q][ld_S] scores, then P */
    float *lse_ij;     /* [block_q] */
    int64_t ld_S;      /* block_kv in whole pairs of the widest vectors */
} Block;

static int64_t round_up(int64_t a)
{
    return (a + 2 * MOST_LANES - 1) / (2 * MOST_LANES) * (2 * MOST_LANES);
}

static int64_t block_floats(const Problem *p)
{
    const int64_t Br = p->block_q, Bc = p->block_kv;
    return Br * round_up(Bc) + round_up(2 * (Br + Bc) * p->d + Br);
}

static Block block_of_thread(const Problem *p, int thread)
{
    Block block = {.ld_S = round_up(p->block_kv)};
    block.S = (float *)p->work + thread * block_floats(p);
    block.Q_i = block.S + p->block_q * block.ld_S;
    block.O_ij = block.Q_i + (int64_t)p->block_q * p->d;
    block.K_j = block.O_ij + (int64_t)p->block_q * p->d;
    block.V_j = block.K_j + (int64_t)p->block_kv * p->d;
    block.lse_ij = block.V_j + (int64_t)p->block_kv * p->d;
    return block;
}

/* Queries i0 .. i0+rows-1 meet keys j0 .. j0+cols-1. */
typedef struct Step {
    int i0, rows, j0, cols;
} Step;

/* Of the keys of the step, query i sees first .. end-1, counted from j0. What it does not see
 * becomes -inf, up to `cols`: also what is past the last key in its vector. */
static void hide_keys(const Problem *p, Step step, int i, float *S_i, int64_t cols)
{
    const int first = first_key(p, i) - step.j0;
    const int all = end_key(p, i) - step.j0, end = all < step.cols ? all : step.cols;
    for (int c = 0; c < first && c < cols; c++)
        S_i[c] = -INFINITY;
    for (int c = end > 0 ? end : 0; c < cols; c++)
        S_i[c] = -INFINITY;
}

/* S, scores times log2(e), becomes P; lse_ij. */
static void softmax_rows(const Problem *p, Step step, const Block *block)
{
    const int64_t cols = round_up(step.cols);
    for (int r0 = 0; r0 < step.rows; r0 += ROOM) {
        const int rows = step.rows - r0 < ROOM ? step.rows - r0 : ROOM;
        float *S = block->S + r0 * block->ld_S, m[ROOM], l[ROOM] = {0}, alpha[ROOM] = {0};
        for (int r = 0; r < rows; r++) {
            hide_keys(p, step, step.i0 + r0 + r, S + r * block->ld_S, cols);
            m[r] = -INFINITY;
        }
        update_rows(S, block->ld_S, rows, cols, m, l, alpha);
        for (int r = 0; r < rows; r++) {
            const float inverse = l[r] == 0.0f ? 0.0f : 1.0f / l[r];
            block->lse_ij[r0 + r] =
                m[r] * (float)M_LN2 + logf(l[r]); /* nothing seen: -inf + log(0) */
            for (int c = 0; c < step.cols; c++)
                S[r * block->ld_S + c] *= inverse;
        }
    }
}

/* `count` rows of a tensor, `ld` elements apart, in float32: where they are, or in `room`. */
static const float *float_rows(const Problem *p, const void *from, int64_t first, int64_t *ld,
                               int count, float *room)
{
    if (p->dtype == F32)
        return (const float *)from + first;
    for (int r = 0; r < count; r++)
        load_row(from, p->dtype, first + r * *ld, p->d, room + (int64_t)r * p->d);
    *ld = p->d;
    return room;
}

/* O_ij and lse_ij: attention over the keys of this block alone. */
static void attend_block(const Problem *p, Step step, int b, int h, const Block *block)
{
    const int64_t key = key_row(p, b, kv_head(p, h), step.j0);
    int64_t ld_q = (int64_t)p->H * p->d, ld_k = (int64_t)p->Hkv * p->d, ld_v = ld_k;
    const float *Q_i =
        float_rows(p, p->Q, query_row(p, b, h, step.i0), &ld_q, step.rows, block->Q_i);
    const float *K_j = float_rows(p, p->K, key, &ld_k, step.cols, block->K_j);
    const float *V_j = float_rows(p, p->V, key, &ld_v, step.cols, block->V_j);
    matmul(AS_IS, TRANSPOSED, step.rows, step.cols, p->d, p->scale * (float)M_LOG2E, Q_i, ld_q, K_j,
           ld_k, 0.0f, block->S, block->ld_S); /* S = scale Q_i K_j^T, for powers of 2 */
    softmax_rows(p, step, block);
    matmul(AS_IS, AS_IS, step.rows, p->d, step.cols, 1.0f, block->S, block->ld_S, V_j, ld_v, 0.0f,
           block->O_ij, p->d); /* O_ij = P V_j */
}

/* One row: its state (O, lse) gains the block's. */
static void merge_row(float *O, float *lse, const float *O_block, float lse_block, int d)
{
    const float max = *lse > lse_block ? *lse : lse_block;
    const float min = *lse > lse_block ? lse_block : *lse;
    const float together = max + log1pf(expf(min - max));
    /* exp(*lse - together) and the other, not from a rounded `together`: their sum is 1 */
    const float weight = 1.0f / (1.0f + expf(lse_block - *lse));
    const float weight_block = 1.0f / (1.0f + expf(*lse - lse_block));
    for (int x = 0; x < d; x++)
        O[x] = weight * O[x] + weight_block * O_block[x];
    *lse = together;
}

/* Row by row through float32; each row that gained something is rounded to the dtype again. What a
 * row sees of this block may be nothing; then it stays as it is, to the bit. */
static void merge_block(const Problem *p, Step step, int b, int h, const Block *block)
{
    float *O_r = block->Q_i; /* no longer needed */
    for (int r = 0; r < step.rows; r++) {
        const int64_t query = query_row(p, b, h, step.i0 + r);
        if (block->lse_ij[r] == -INFINITY)
            continue;
        load_row(p->O, p->dtype, query, p->d, O_r);
        merge_row(O_r, p->lse + lse_row(p, b, h, step.i0 + r), block->O_ij + (int64_t)r * p->d,
                  block->lse_ij[r], p->d);
        store_row(p->O, p->dtype, query, p->d, O_r);
    }
}

/* All heads of one pair of blocks. */
static void take_step(const Problem *p, Step step)
{
    /* Waking a team costs tens of microseconds, more on a busy machine: a step of a millisecond. */
    const double work = (double)(p->B * p->H) * (double)step.rows * (double)step.cols * p->d;
    const int last = step.i0 + step.rows - 1, threads = work > 2e7 ? p->threads : 1;
    if (first_key(p, step.i0) >= step.j0 + step.cols || end_key(p, last) <= step.j0)
        return; /* nobody sees anything: nothing is read */
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        const Block block = block_of_thread(p, thread);
        for (int bh = thread; bh < p->B * p->H; bh += threads) {
            attend_block(p, step, bh / p->H, bh % p->H, &block);
            merge_block(p, step, bh / p->H, bh % p->H, &block);
        }
    }
}

static void attend(const Problem *p)
{
    const int64_t Tr = (p->Nq + p->block_q - 1) / p->block_q;
    const int64_t Tc = (p->Nk + p->block_kv - 1) / p->block_kv;
    const int64_t all_rows = (int64_t)p->B * p->H * p->Nq;
    memset(p->O, 0, (size_t)(all_rows * p->d) * (p->dtype == F32 ? 4 : 2));
    for (int64_t row = 0; row < all_rows; row++)
        p->lse[row] = -INFINITY;
    for (int64_t t = 0; t < Tr * Tc; t++) {
        const int i0 = (int)(p->visits[t] / Tc) * p->block_q;
        const int j0 = (int)(p->visits[t] % Tc) * p->block_kv;
        const int rows = p->Nq - i0, cols = p->Nk - j0;
        take_step(p, (Step){i0, rows < p->block_q ? rows : p->block_q, j0,
                            cols < p->block_kv ? cols : p->block_kv});
    }
}

static int64_t work(const Problem *p, int backward)
{
    (void)backward;
    return (int64_t)sizeof(float) * p->threads * block_floats(p);
}

static Tiles tiles(const Problem *p)
{
    return (Tiles){p->block_q, p->block_kv};
}

EACH_ISA(sliding_window_v1_online_block, attend, forward)

RUNG(sliding_window, v1_online_block, "one block of queries and keys a step, merged in place",
     F32 | F16 | BF16, forward, NULL, work, tiles, STEPS);
