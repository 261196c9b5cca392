/* SPDX-License-Identifier: MIT
 *
 * debug.c: calls the four functions on the inputs of a case, see debug_case.h. O, lse and delta
 * would come from a forward pass. This program has none: it makes numbers up, so dV, dK and dQ are
 * no gradients.
 *
 *     make debug CASE="-N 3 -d 2 --causal"      make asan CASE="-N 333 -d 32"
 *
 * Interface: none.
 */
#include <math.h>

#include "backward_steps.h"
#include "debug_case.h"

int main(int count, char *words[])
{
    const DebugCase c = debug_read(count, words);
    const int n = c.N * c.d;
    float *Q = debug_inputs(&c, FILL_Q, n), *K = debug_inputs(&c, FILL_K, n);
    float *V = debug_inputs(&c, FILL_V, n), *dO = debug_inputs(&c, FILL_DO, n);
    float *O = debug_inputs(&c, FILL_V, n), *lse = debug_inputs(&c, FILL_WQ, c.N);
    float *drawn = debug_inputs(&c, FILL_WK, c.N), *sums = debug_results(c.N);
    float *dV = debug_results(n), *dK = debug_results(n), *dQ = debug_results(n);
    int status;
    for (int i = 0; i < c.N; i++) /* beyond the scores, so that no weight overflows */
        lse[i] = fabsf(lse[i]) + logf((float)c.N) + (c.dist == FILL_LARGE ? 400.0f : 4.0f);
    debug_show("Q", Q, c.N, c.d), debug_show("K", K, c.N, c.d);
    debug_show("V", V, c.N, c.d), debug_show("dO", dO, c.N, c.d);
    debug_show("made up delta", drawn, c.N, 1);
    status = backward_delta_variant(O, dO, sums, c.N, c.d);
    debug_show("your delta", sums, c.N, 1);
    if (!status)
        status = backward_dv_variant(Q, K, lse, dO, dV, c.N, c.d, c.causal);
    if (!status)
        status = backward_dk_variant(Q, K, V, lse, dO, drawn, dK, c.N, c.d, c.causal);
    if (!status)
        status = backward_dq_variant(Q, K, V, lse, dO, drawn, dQ, c.N, c.d, c.causal);
    debug_show("dV", dV, c.N, c.d), debug_show("dK", dK, c.N, c.d), debug_show("dQ", dQ, c.N, c.d);
    free(Q), free(K), free(V), free(dO), free(O), free(lse), free(drawn);
    free(sums), free(dV), free(dK), free(dQ);
    return status;
}
