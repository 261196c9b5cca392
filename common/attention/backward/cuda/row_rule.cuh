/* SPDX-License-Identifier: MIT
 *
 * row_rule.cuh: which queries see a key, where positions grow with the index: stage 03's key_rule.h
 * with queries and keys exchanged, and left and right. So a zigzag shard of a ring, or every fourth
 * position, is seen like one run.
 *
 * A query that sees nothing may hold anything, so a kernel has to know such queries: they stand
 * before first_row or from end_row on. With several runs and a window that ends on both sides there
 * could be others between, and the answer is no.
 *
 * Interface:
 * - RowRule, make_row_rule (host).
 * - RowSight, sight_of: what a block of keys asks. rows_of_key, rows_that_see, sees_all.
 */
#ifndef FLASH_BACKWARD_ROW_RULE_CUH
#define FLASH_BACKWARD_ROW_RULE_CUH

#define KEY_RULE_KEEPS_ITS_LOOP
#include "attention/forward/cuda/key_rule.h"
#include "units/backward_pass.cuh"

#define FAR (1 << 30) /* no tensor has so many rows */

namespace hopper_backward
{

struct RowRule {
    KeyRule turned; /* its rows are keys */
    int first_row, end_row;
};

static bool make_row_rule(RowRule *rule, const AttnArgs *a)
{
    AttnArgs turned = *a;
    KeyRule keys;
    turned.positions_q = a->positions_k;
    turned.positions_k = a->positions_q;
    turned.rule.left = a->rule.right;
    turned.rule.right = a->rule.left;
    turned.shape.Nq = a->shape.Nk;
    turned.shape.Nk = a->shape.Nq;
    if (!make_key_rule(&keys, a) || !make_key_rule(&rule->turned, &turned))
        return false;
    if (a->rule.left >= 0 && a->rule.right >= 0 && (keys.q_count > 1 || keys.k_count > 1))
        return false;
    int bounds[2]; /* queries before the first that has a last key; ... that has no first one */
    for (int n = 0; n < 2; n++) {
        int low = 0, high = (int)a->shape.Nq;
        while (low < high) {
            const int i = (low + high) / 2, p = row_position(&keys, i);
            if (n == 0 ? last_key(&keys, p) < 0 : first_key(&keys, p) < (int)a->shape.Nk)
                low = i + 1;
            else
                high = i;
        }
        bounds[n] = low;
    }
    rule->first_row = bounds[0];
    rule->end_row = keys.from > keys.to ? 0 : bounds[1]; /* a window between two keys */
    return true;
}

/* For the keys of one block. seen: queries that see any of them; full_begin ... full_end - 1 see
 * all. */
struct RowSight {
    const KeyRule *turned;
    int Nk, j0, first_row, end_row, full_begin, full_end;
    RowRange seen;
};

/* The queries that see one key. */
static __device__ __forceinline__ RowRange rows_of_key(const RowSight &sight, int key)
{
    const int p = row_position(sight.turned, key);
    RowRange rows;
    rows.begin = key < sight.Nk ? first_key(sight.turned, p) : FAR;
    rows.end = last_key(sight.turned, p) + 1;
    return rows;
}

/* Of the block's own keys, which is known, or of another one's. */
static __device__ __forceinline__ RowRange rows_that_see(const RowSight &sight, int j0, int count)
{
    RowRange rows;
    if (j0 == sight.j0)
        return sight.seen;
    rows.begin = max(rows_of_key(sight, j0).begin, sight.first_row);
    rows.end = min(rows_of_key(sight, min(j0 + count, sight.Nk) - 1).end, sight.end_row);
    return rows;
}

/* Do all queries of the tile see all keys of the block? */
template <class C> static __device__ __forceinline__ bool sees_all(const RowSight &sight, int i0)
{
    return i0 >= sight.full_begin && i0 + C::Br <= sight.full_end;
}

/* Asked once by each block, before its first load: every instruction counts. */
static __device__ __forceinline__ RowSight sight_of(const RowRule &rule, int Nk, int j0, int count)
{
    RowSight sight;
    sight.turned = &rule.turned;
    sight.Nk = Nk;
    sight.j0 = j0;
    sight.first_row = rule.first_row;
    sight.end_row = rule.end_row;
    const RowRange first = rows_of_key(sight, j0),
                   last = rows_of_key(sight, min(j0 + count, Nk) - 1);
    sight.seen.begin = max(first.begin, rule.first_row);
    sight.seen.end = min(last.end, rule.end_row);
    sight.full_begin = j0 + count <= Nk ? last.begin : FAR; /* FAR: not all keys exist */
    sight.full_end = min(first.end, rule.end_row);
    return sight;
}

} // namespace hopper_backward

#endif
