/* SPDX-License-Identifier: MIT
 *
 * debug.c: calls your part A on the inputs of a case, see debug_case.h.
 *
 *     make debug CASE="-N 3 -d 2 --causal"      make asan CASE="-N 333 -d 64"
 *
 * Interface: none.
 */
#include "debug_case.h"
#include "flash_simple.h"
#include "tensor.h"

/* Part B calls these, which are the judge's; here nobody calls part B. */
void tensor_read_row(const Tensor *t, int64_t b, int64_t n, int64_t h, float *row)
{
    (void)t, (void)b, (void)n, (void)h, (void)row;
    abort();
}

void tensor_write_row(const Tensor *t, int64_t b, int64_t n, int64_t h, const float *row)
{
    (void)t, (void)b, (void)n, (void)h, (void)row;
    abort();
}

int main(int count, char *words[])
{
    const DebugCase c = debug_read(count, words);
    const int elements = c.N * c.d;
    float *Q = debug_inputs(&c, FILL_Q, elements), *K = debug_inputs(&c, FILL_K, elements);
    float *V = debug_inputs(&c, FILL_V, elements);
    float *O = debug_results(elements), *lse = debug_results(c.N);
    int status;
    debug_show("Q", Q, c.N, c.d);
    debug_show("K", K, c.N, c.d);
    debug_show("V", V, c.N, c.d);
    status = flash_simple_variant(Q, K, V, O, lse, c.N, c.d, c.causal);
    debug_show("O", O, c.N, c.d);
    debug_show("lse", lse, c.N, 1);
    free(Q), free(K), free(V), free(O), free(lse);
    return status;
}
