/* SPDX-License-Identifier: MIT
 *
 * debug.c: calls your step for all blocks of a case, rows first, see debug_case.h.
 *
 *     make debug CASE="-N 3 -d 2 --block-q 4 --block-kv 4"      make asan CASE="-N 333 -d 32"
 *
 * Interface: none.
 */
#include <math.h>

#include "debug_case.h"
#include "sliding_window_step.h"

typedef struct Block {
    int rows; /* tokens; the rest of its memory holds zeros */
    float *values;
} Block;

/* Rows `first` to `first + size - 1` of a tensor [count][d]. */
static Block block_of(const float *from, int count, int d, int first, int size)
{
    Block block = {count - first > size ? size : count - first, NULL};
    block.values = calloc((size_t)(size * d), sizeof *from);
    if (!block.values)
        exit(3);
    for (int e = 0; e < block.rows * d; e++)
        block.values[e] = from[first * d + e];
    return block;
}

int main(int count, char *words[])
{
    const DebugCase c = debug_read(count, words);
    float *Q = debug_inputs(&c, FILL_Q, c.N * c.d), *K = debug_inputs(&c, FILL_K, c.Nk * c.d);
    float *V = debug_inputs(&c, FILL_V, c.Nk * c.d);
    float *O = calloc((size_t)(c.N * c.d), sizeof *O), *lse = debug_results(c.N);
    int status = O ? 0 : 3;
    for (int token = 0; token < c.N; token++)
        lse[token] = -INFINITY;
    debug_show("Q", Q, c.N, c.d), debug_show("K", K, c.Nk, c.d), debug_show("V", V, c.Nk, c.d);
    for (int i = 0; !status && i < c.N; i += c.Br)
        for (int j = 0; !status && j < c.Nk; j += c.Bc) {
            const Block q = block_of(Q, c.N, c.d, i, c.Br), k = block_of(K, c.Nk, c.d, j, c.Bc);
            const Block v = block_of(V, c.Nk, c.d, j, c.Bc);
            const SlidingStep step = {.Br = c.Br,
                                      .Bc = c.Bc,
                                      .d = c.d,
                                      .rows_q = q.rows,
                                      .rows_k = k.rows,
                                      .position_q = i + c.Nk - c.N,
                                      .position_k = j,
                                      .left = c.left,
                                      .right = c.right,
                                      .scale = 1.0f / sqrtf((float)c.d),
                                      .Q_i = q.values,
                                      .K_j = k.values,
                                      .V_j = v.values,
                                      .first_row = i,
                                      .Nq = c.N,
                                      .global_o = O,
                                      .global_lse = lse};
            status = sliding_window_step_variant(&step);
            free(q.values), free(k.values), free(v.values);
        }
    debug_show("global_o", O, O ? c.N : 0, c.d), debug_show("global_lse", lse, c.N, 1);
    free(Q), free(K), free(V), free(O), free(lse);
    return status;
}
