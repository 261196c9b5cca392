/* SPDX-License-Identifier: MIT
 *
 * v5_own_heads: v4_exp2 with another division of labour among threads.
 *
 * v4 packs all kv heads, waits for all threads, and computes then. By that time the first
 * head's copy has left the caches of the core that made it, and the copies of all heads take as
 * much memory as K and V. Where the kv heads divide evenly among the threads, a thread here packs
 * one head, computes all that needs it, and packs the next one into the same place:
 *
 *     thread 0:   pack kv 0 | blocks of kv 0 | pack kv 2 | blocks of kv 2 ...
 *     thread 1:   pack kv 1 | blocks of kv 1 | pack kv 3 | blocks of kv 3 ...
 *
 * Nobody waits before the end, and `threads` copies are enough. Where the heads do not divide
 * evenly, blocks are shared as in v4, but each thread takes the next one when it is free, the last
 * block of a head first: under a causal mask that is from much work to little, so all threads end
 * together.
 *
 * Prediction: little time, since packing is 2 N d copies beside 4 N^2 d operations: one or two per
 * cent at N = 2048. Memory for the copies falls from B * Hkv heads to one a thread.
 *
 * Instruction sets: Meson compiles this file once for each (units/vector.h). The copy for any
 * processor holds the choice (EACH_ISA) and registers the rung.
 *
 * Interface: the rung of stage 03 in which a thread packs what it computes; float32.
 */
#include "problem.h"
#include "units/exp2_vector.h"
#include "units/strips.h"

/* What a strip sees of keys j .. j+BLOCK_KEYS-1: S, P, and O = alpha O + P V. */
static void attend_strip(const Problem *p, const Block *block, const Packed *packed, int64_t i,
                         int64_t r, int64_t j)
{
    const int64_t from = first_key(p, (int)i), first = from > j ? from : j;
    const int64_t last = smaller(i + STRIP, p->Nq) - 1;
    const int64_t end = smaller(end_key(p, (int)last), j + BLOCK_KEYS);
    const int64_t start = first / PANEL * PANEL, cols = round_up(end - start, PANEL);
    float alpha[ROOM] = {0};
    if (first >= end)
        return;
    score_strip(block, packed, p->d, r, start, cols);
    for (int row = 0; row < STRIP; row++) { /* rows of a strip see different keys */
        const int q = (int)i + row;
        hide_keys(block->S + row * S_ROW, first_key(p, q) - start, end_key(p, q) - start, cols);
    }
    update_rows(block->S, S_ROW, STRIP, cols, block->m_i + r, block->l_i + r, alpha);
    add_values(block, packed, r, alpha, block->S + first - start, first, end);
}

static void attend_block(const Problem *p, const Block *block, const Packed *packed, int b, int h,
                         int64_t i)
{
    const int64_t rows = smaller(BLOCK_ROWS, p->Nq - i), ld = p->H * p->d;
    const int64_t query = query_row(p, b, h, (int)i);
    const int64_t end = end_key(p, (int)(i + rows - 1)); /* later queries see later keys */
    start_block(block, (const float *)p->Q + query, ld, rows, p->d, p->scale * (float)M_LOG2E);
    for (int64_t j = first_key(p, (int)i) / BLOCK_KEYS * BLOCK_KEYS; j < end; j += BLOCK_KEYS)
        for (int64_t r = 0; r < rows; r += STRIP)
            attend_strip(p, block, packed, i + r, r, j);
    finish_block(block, (float *)p->O + query, ld, p->lse + lse_row(p, b, h, (int)i), rows, p->d,
                 (float)M_LN2);
}

/* --- who packs what ----------------------------------------------------------------------------*/

/* Keys j .. of kv head `kv` (batch * Hkv + head). */
static void pack_keys(const Problem *p, const Packed *to, int64_t kv, int64_t j)
{
    const int64_t key = key_row(p, (int)(kv / p->Hkv), (int)(kv % p->Hkv), (int)j);
    pack_panel(to, (const float *)p->K + key, (const float *)p->V + key, p->Hkv * p->d, p->d, j,
               p->Nk - j);
}

/* Kv heads of one thread, one after the other, in one place. */
static void own_heads(const Problem *p, const Block *block, const Packed *packed, int thread)
{
    const int group = p->H / p->Hkv;
    for (int kv = thread; kv < p->B * p->Hkv; kv += p->threads) {
        for (int64_t j = 0; j < p->Nk; j += PANEL)
            pack_keys(p, packed, kv, j);
        for (int head = kv * group; head < (kv + 1) * group; head++) /* batch * H + h */
            for (int64_t i = 0; i < p->Nq; i += BLOCK_ROWS)
                attend_block(p, block, packed, head / p->H, head % p->H, i);
    }
}

/* All kv heads, by all threads. */
static void pack_heads(const Problem *p, float *heads)
{
    const int64_t panels = round_up(p->Nk, PANEL) / PANEL;
#pragma omp parallel for num_threads(p->threads) schedule(static) if (p->threads > 1)
    for (int64_t t = 0; t < p->B * p->Hkv * panels; t++) {
        const Packed packed = packed_head(heads, t / panels, p->Nk, p->d);
        pack_keys(p, &packed, t / panels, t % panels * PANEL);
    }
}

/* Blocks of all heads: each thread takes the next one when it is free. */
static void shared_blocks(const Problem *p, const Block *block, float *heads, int64_t *next)
{
    const int64_t blocks = (p->Nq + BLOCK_ROWS - 1) / BLOCK_ROWS, group = p->H / p->Hkv;
    for (;;) {
        int64_t t;
#pragma omp atomic capture
        t = (*next)++;
        if (t >= p->B * p->H * blocks)
            return;
        const int64_t head = t / blocks;
        const Packed packed = packed_head(heads, head / group, p->Nk, p->d);
        attend_block(p, block, &packed, (int)(head / p->H), (int)(head % p->H),
                     (blocks - 1 - t % blocks) * BLOCK_ROWS);
    }
}

/* Kv heads that are packed at a time: one a thread, or all. */
static int heads_at_a_time(const Problem *p)
{
    return p->B * p->Hkv % p->threads == 0 ? p->threads : p->B * p->Hkv;
}

static void attend(const Problem *p)
{
    const int threads = p->threads, own = p->B * p->Hkv % threads == 0;
    float *heads = p->work;
    float *of_threads = heads + heads_at_a_time(p) * packed_floats(p->Nk, p->d, PANEL);
    int64_t next = 0;
    if (!own)
        pack_heads(p, heads);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        const Block block =
            place_block(of_threads + thread * block_floats(p->d, PANEL, STRIP), p->d);
        const Packed packed = packed_head(heads, own ? thread : 0, p->Nk, p->d);
        own ? own_heads(p, &block, &packed, thread) : shared_blocks(p, &block, heads, &next);
    }
}

/* Enough for the widest vectors. */
static int64_t work(const Problem *p, int backward)
{
    (void)backward;
    return (int64_t)sizeof(float) * (heads_at_a_time(p) * packed_floats(p->Nk, p->d, MOST_PANEL) +
                                     p->threads * block_floats(p->d, MOST_PANEL, MOST_STRIP));
}

/* For the byte model: panels with AVX2. */
static Tiles tiles(const Problem *p)
{
    (void)p;
    return (Tiles){BLOCK_ROWS, 16};
}

EACH_ISA(flash_forward_v5_own_heads, attend, forward)

RUNG(flash_forward, v5_own_heads, "each thread packs the heads that it computes", F32, forward,
     NULL, work, tiles, 0);
