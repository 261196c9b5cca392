/* SPDX-License-Identifier: MIT
 *
 * attention_by_softmax: attention around any CPU softmax of this stage.
 *
 * For each head: stage 01's scores S [Nq][Nk] (scaled, capped, -inf where masked), the softmax on
 * them in place, stage 01's product with V. Threads take heads when there are at least as many
 * heads as threads; otherwise heads come one after the other and the softmax gets the threads.
 *
 * Interface:
 * - attention_by_softmax: AttnArgs with host pointers.
 */
#include "naive.h"
#include "tiled_softmax.h"

/* Floats that one thread needs: Q and O of a head, K and V of its kv head, and S. */
static int64_t head_floats(const AttnShape *n)
{
    return 2 * n->Nq * n->d + 2 * n->Nk * n->d + n->Nq * n->Nk;
}

static AttnStatus attend_head(const AttnArgs *args, SoftmaxFn softmax, int64_t b, int64_t h,
                              int threads, float *workspace)
{
    const AttnShape *n = &args->shape;
    int64_t kv_head = naive_kv_head(n, h);
    float *Q_bh = workspace;           /* [Nq][d] */
    float *O_bh = Q_bh + n->Nq * n->d; /* [Nq][d] */
    float *K_bh = O_bh + n->Nq * n->d; /* [Nk][d] */
    float *V_bh = K_bh + n->Nk * n->d; /* [Nk][d] */
    float *S = V_bh + n->Nk * n->d;    /* [Nq][Nk], then P */
    SoftmaxArgs rows = {S,    S,   args->lse + (b * n->H + h) * n->Nq, n->Nq, n->Nk, threads,
                        NULL, NULL};
    AttnStatus status;

    naive_load_rows(&args->Q, b, h, 0, n->Nq, Q_bh);
    naive_load_rows(&args->K, b, kv_head, 0, n->Nk, K_bh);
    naive_load_rows(&args->V, b, kv_head, 0, n->Nk, V_bh);
    naive_scores(args, Q_bh, 0, n->Nq, K_bh, 0, n->Nk, S, n->Nk);
    status = softmax(&rows);
    naive_weighted_sum(S, n->Nk, n->Nq, n->Nk, V_bh, n->d, 0.0f, O_bh);
    naive_store_rows(&args->O, b, h, 0, n->Nq, O_bh);
    return status;
}

AttnStatus attention_by_softmax(const AttnArgs *args, SoftmaxFn softmax)
{
    const AttnShape *n = &args->shape;
    int64_t heads = n->B * n->H;
    int workers = heads >= args->threads ? args->threads : 1; /* threads that take heads */
    int inner = heads >= args->threads ? 1 : args->threads;   /* threads inside one softmax */
    int64_t floats = head_floats(n);
    float *workspace = workspace_alloc((size_t)(workers * floats) * sizeof *workspace);
    AttnStatus worst = ATTN_OK;
    if (!workspace)
        return ATTN_NO_MEMORY;

#pragma omp parallel for num_threads(workers) schedule(static) reduction(max                       \
                                                                         : worst) if (workers > 1)
    for (int worker = 0; worker < workers; worker++)
        for (int64_t head = worker; head < heads; head += workers) {
            AttnStatus status = attend_head(args, softmax, head / n->H, head % n->H, inner,
                                            workspace + worker * floats);
            worst = status > worst ? status : worst;
        }
    workspace_free(workspace);
    return worst;
}
