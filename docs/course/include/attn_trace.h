/* SPDX-License-Identifier: MIT
 *
 * attn_trace.h: show the judge the state of your online softmax, tile by tile. You need not. If a
 * case is wrong and you do, the report names the first state that is not what it should be:
 *
 *     after query tile 2, key tile 3: l of row 37 is 4.1, expected 5.2
 *
 * Call attn_trace_begin where the work on a head begins and attn_trace after each tile of keys:
 *
 *     attn_trace_begin(0, 0, Br, Bc);
 *     for each tile i of Br queries
 *         for each tile j of Bc keys
 *             ... update m_i, l_i, O_i ...
 *             attn_trace(i, j, m_i, l_i, O_i);
 *
 * What the judge expects, of the keys in tiles 0 to j that row r sees (s: their scores, scaled, as
 * natural exponents: a kernel that computes 2^s multiplies its m by ln 2 first):
 *
 *     m[r]     the largest s; -inf as long as it sees none
 *     l[r]     the sum of exp(s - m[r]); 0 as long as it sees none
 *     O[r][x]  the sum of exp(s - m[r]) V[key][x], not divided by l[r]
 *
 * Go through the tiles of keys in ascending order. You may skip those that no row of the tile sees.
 * The last tiles are shorter: row r of tile i is query i * Br + r, and rows behind the last query
 * are not looked at.
 *
 * The calls cost nothing that counts. A case is judged and timed first, without recording anything;
 * only if it is wrong it is run a second time, and the first 8 MiB of states are kept. Outside of
 * the judge, in a program of your own, the calls do nothing.
 *
 * Interface:
 * - attn_trace_begin: of which head the next calls of this thread are, and how large its tiles are.
 * - attn_trace: the state after a tile of keys.
 */
#ifndef COURSE_ATTN_TRACE_H
#define COURSE_ATTN_TRACE_H

#ifdef __cplusplus
extern "C" {
#endif

/* The judge's; absent elsewhere. */
void attn_judge_begin(int b, int h, int Br, int Bc) __attribute__((weak));
void attn_judge_trace(int i, int j, const float *m, const float *l, const float *O)
    __attribute__((weak));

/* b, h: batch and query head, 0 and 0 where there is one only. */
static inline void attn_trace_begin(int b, int h, int Br, int Bc)
{
    if (attn_judge_begin)
        attn_judge_begin(b, h, Br, Bc);
}

/* i, j: tile of queries, tile of keys, both from 0. m, l [rows] and O [rows][d], row after row. */
static inline void attn_trace(int i, int j, const float *m, const float *l, const float *O)
{
    if (attn_judge_trace)
        attn_judge_trace(i, j, m, l, O);
}

#ifdef __cplusplus
}
#endif
#endif
